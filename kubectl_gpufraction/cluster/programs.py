"""Our programs as their Deployments and DaemonSets start them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

JSON = dict[str, Any]
_PREFIX = "GPUFRACTION_"
_VERBS = ("run", "serve")
"""What the programs of long standing are started with; others, such as holders, have settings of their own."""


def pod_spec(workload: JSON) -> JSON:
    """The pod spec of a workload's template."""
    return ((workload.get("spec") or {}).get("template") or {}).get("spec") or {}


def settings_of(workloads: Iterable[JSON], program: str) -> dict[str, str]:
    """The settings of one of our programs, from its containers' flags and environment, in the form of its flags."""
    found = dict[str, str]()
    for workload in workloads:
        for container in pod_spec(workload).get("containers") or []:
            *called, verb = [*(container.get("command") or []), "", "", "", ""][:4]
            if called != ["python", "-m", program] or verb not in _VERBS:
                continue
            for variable in container.get("env") or []:
                key = str(variable.get("name", ""))
                if key.startswith(_PREFIX):
                    found[key.removeprefix(_PREFIX).lower().replace("_", "-")] = str(variable.get("value", ""))
            for flag in container.get("args") or []:
                key, _, value = str(flag).removeprefix("--").partition("=")
                found[key] = value or "true"
    return found
