"""
Rules about what keeps programs within their shares: what each node enforces, and the one command that enforces more.

Pure. A default installation enforces nothing, which goes unnoticed until a program takes its neighbours' memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from contract import names
from contract.isolation import ISOLATION, LEAST_DRIVER, LIMITING, PRELOAD
from kubectl_gpufraction.check.facts import ClusterFacts, installed, name_of, settings
from kubectl_gpufraction.check.findings import OK, WARN, Finding
from kubectl_gpufraction.check.install import APPLY
from kubectl_gpufraction.check.nodes import SEE, shared_gpus
from kubectl_gpufraction.output.wording import few

JSON = dict[str, Any]
_ADD = f"kustomize edit add component manifests/components/{{}} && {APPLY}"
_BY_DRIVER = (
    f"kubectl -n {names.NODES_NAMESPACE} set env daemonset/gpufraction-nodeagent GPUFRACTION_DRIVER_LIMITS=true"
)
_STEPS = "see docs/isolation.md#switch-a-limiter-on, which chooses the way by what the node has"
CHOICES = ("driver-limits", "limiters-mps", "limiters-preload")
"""The agent's settings that switch a limiting level on."""
_WHOLE_SLICES = "give a pod a slice to itself: gpufraction.io/gpu-count: 1"
_OWN_KIND = "runtime.nvidia.com/gpu"
"""The CDI kind that NVIDIA's runtime describes itself: it takes no other device alongside."""


def findings(facts: ClusterFacts) -> Iterator[Finding]:
    """A line for all nodes with the same enforcement and the same cure; nothing if no GPU is shared."""
    if installed(facts) is False or not isinstance(facts.gpunodes, tuple):
        return
    agent = settings(facts, "nodeagent") if isinstance(facts.daemonsets, tuple) else None
    together = defaultdict[tuple[str, str, str], list[str]](list)
    for gpunode in facts.gpunodes:
        if shared_gpus(gpunode):
            together[_enforced(gpunode, agent)].append(name_of(gpunode))
    for (level, found, cure), where in together.items():
        yield Finding(level, "enforcement", f"{few(where)}: {found}", cure.format(node=where[0]))


def _enforced(gpunode: JSON, agent: Mapping[str, str] | None) -> tuple[str, str, str]:
    """
    The level of a node's finding, what is enforced there, and the cure, with a place for a node's name. `agent`: the
    agent's settings; None where the user may not see them.
    """
    said = (gpunode.get("status") or {}).get("isolation") or []
    levels = [level for level in ISOLATION if level in said]
    limiting = next((level for level in levels if level in LIMITING), "")
    if limiting:
        bypassed = ", unless they bypass its library" if limiting == PRELOAD.name else ""
        return OK, f"{limiting} limits programs to their shares{bypassed}", ""
    if any(gpu.get("parent") for gpu in (gpunode.get("status") or {}).get("gpus") or []):
        return WARN, "a MIG slice limits all its pods together, but nothing limits each of them", _WHOLE_SLICES
    found = "use beyond a share is reported (watch), and nothing" if levels else "shares are counted, and nothing"
    return WARN, f"{found} limits a program to its share", _more(gpunode, agent, watched=bool(levels))


def _more(gpunode: JSON, agent: Mapping[str, str] | None, *, watched: bool) -> str:
    """The command after which a node that limits nothing enforces more."""
    if agent is None:
        return _STEPS
    if not watched and "host-root" not in agent:
        return _ADD.format("node-access")
    # A condition of the GPUNode explains why a chosen way does not work.
    if not watched or any(agent.get(each, "") not in ("", "false") for each in CHOICES):
        return SEE
    if _major(gpunode) >= LEAST_DRIVER:
        return _BY_DRIVER
    return _ADD.format(PRELOAD.name) if _takes_devices(gpunode) else _STEPS


def _major(gpunode: JSON) -> int:
    major = str((gpunode.get("status") or {}).get("driverVersion") or "").partition(".")[0]
    return int(major) if major.isdecimal() else 0


def _takes_devices(gpunode: JSON) -> bool:
    """Whether containers there get CDI devices of other kinds too, so that the library needs no volume."""
    delivery = (gpunode.get("status") or {}).get("delivery") or {}
    return bool(delivery.get("byAnnotation")) or delivery.get("cdiKind", "") not in ("", _OWN_KIND)
