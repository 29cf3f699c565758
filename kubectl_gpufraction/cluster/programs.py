"""Our programs as their Deployments and DaemonSets start them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from contract import names

JSON = dict[str, Any]
PROGRAMS = ("webhook", "allocator", "nodeagent")
"""The modules that run permanently."""
_PREFIX = "GPUFRACTION_"
_VERBS = ("run", "serve")
"""The commands of the programs that run permanently; others, such as holders, have settings of their own."""


def pod_spec(workload: JSON) -> JSON:
    """The pod spec of a workload's template."""
    return ((workload.get("spec") or {}).get("template") or {}).get("spec") or {}


def settings_of(workloads: Iterable[JSON], program: str, configmaps: Iterable[JSON] = ()) -> dict[str, str]:
    """
    The settings of one of our programs, in the form of its flags: of its containers' flags, before their environment,
    before the ConfigMaps that this is taken from. `configmaps`: those of our namespaces, as far as they may be read.
    """
    data = {_place(each): each.get("data") or {} for each in configmaps}
    found = dict[str, str]()
    for workload in workloads:
        for container in pod_spec(workload).get("containers") or []:
            *called, verb = [*(container.get("command") or []), "", "", "", ""][:4]
            if called != ["python", "-m", program] or verb not in _VERBS:
                continue
            variables = dict[str, Any]()
            for source in container.get("envFrom") or []:
                variables |= data.get((_place(workload)[0], (source.get("configMapRef") or {}).get("name")), {})
            variables |= {str(each.get("name", "")): each.get("value", "") for each in container.get("env") or []}
            for key, value in variables.items():
                if key.startswith(_PREFIX):
                    found[key.removeprefix(_PREFIX).lower().replace("_", "-")] = str(value)
            for flag in container.get("args") or []:
                key, _, value = str(flag).removeprefix("--").partition("=")
                found[key] = value or "true"
    return found


def _place(item: JSON) -> tuple[Any, Any]:
    """Namespace and name."""
    metadata = item.get("metadata") or {}
    return metadata.get("namespace") or names.NAMESPACE, metadata.get("name")


@dataclass(frozen=True, slots=True)
class Installed:
    """One of our programs in a workload. `version`: the tag of its image; empty where it has a digest alone."""

    program: str
    image: str
    version: str
    ready: str
    """`2/3`: how many of the workload's pods are Ready."""


def installed(workloads: Iterable[JSON]) -> Iterator[Installed]:
    """Our programs in these Deployments and DaemonSets."""
    for workload in workloads:
        status, spec = workload.get("status") or {}, workload.get("spec") or {}
        wanted = status.get("desiredNumberScheduled", spec.get("replicas", 1))
        ready = f"{status.get('numberReady') or status.get('readyReplicas') or 0}/{wanted}"
        for container in pod_spec(workload).get("containers") or []:
            module = [*(container.get("command") or []), "", "", ""][2]
            if module in PROGRAMS:
                image = str(container.get("image", ""))
                yield Installed(module, image, _tag(image), ready)


def _tag(image: str) -> str:
    last = image.partition("@")[0].rpartition("/")[2]
    return last.partition(":")[2].removeprefix("v")
