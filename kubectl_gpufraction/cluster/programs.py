"""Our programs as their Deployments and DaemonSets start them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

JSON = dict[str, Any]
_PREFIX = "GPUFRACTION_"
_VERBS = ("run", "serve")
"""What the programs that run permanently are started with; others, such as holders, have settings of their own."""


def pod_spec(workload: JSON) -> JSON:
    """The pod spec of a workload's template."""
    return ((workload.get("spec") or {}).get("template") or {}).get("spec") or {}


def settings_of(workloads: Iterable[JSON], program: str, configmaps: Iterable[JSON] = ()) -> dict[str, str]:
    """
    The settings of one of our programs, in the form of its flags: of its containers' flags, before their environment,
    before the ConfigMaps that this is taken from. `configmaps`: those of our namespace, as far as they may be read.
    """
    data = {(each.get("metadata") or {}).get("name"): each.get("data") or {} for each in configmaps}
    found = dict[str, str]()
    for workload in workloads:
        for container in pod_spec(workload).get("containers") or []:
            *called, verb = [*(container.get("command") or []), "", "", "", ""][:4]
            if called != ["python", "-m", program] or verb not in _VERBS:
                continue
            variables = dict[str, Any]()
            for source in container.get("envFrom") or []:
                variables |= data.get((source.get("configMapRef") or {}).get("name"), {})
            variables |= {str(each.get("name", "")): each.get("value", "") for each in container.get("env") or []}
            for key, value in variables.items():
                if key.startswith(_PREFIX):
                    found[key.removeprefix(_PREFIX).lower().replace("_", "-")] = str(value)
            for flag in container.get("args") or []:
                key, _, value = str(flag).removeprefix("--").partition("=")
                found[key] = value or "true"
    return found
