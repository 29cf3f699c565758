"""
Rules about the nodes' GPUs, from what their agents published: how many are shared, and which node has which problem.

Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from contract import names
from contract.encoding import moments, resourceclaims
from contract.nodes.heartbeat import shown_silent_after
from kubectl_gpufraction.check.cluster import gpu_nodes
from kubectl_gpufraction.check.facts import ClusterFacts, installed, name_of
from kubectl_gpufraction.check.findings import FAIL, OK, UNKNOWN, WARN, Finding, Unseen, number
from kubectl_gpufraction.output.wording import few

JSON = dict[str, Any]
_CONFLICT = "PluginConflict"
_WRONG_STATUS = {
    "Ready": "False",
    "Held": "False",
    "LimitsReachContainers": "False",
    "DeliversByClaim": "False",
    "MpsDaemons": "False",
    "PreloadedLibrary": "False",
    "SharesRead": "False",
    _CONFLICT: "True",
    "OptionsRefused": "True",
    "StartupTaint": "True",
    "CordonNamesNoGpu": "True",
}
"""The status by which each condition of a GPUNode reports a problem."""
SEE = "kubectl get gpunode {node} -o yaml"
_CURES = {
    "Ready": SEE,
    "Held": f"kubectl -n {names.NAMESPACE} get pods -l {names.HOLDER}=true -o wide",
    "OptionsRefused": f"kubectl -n {names.NAMESPACE} edit configmap {names.OPTIONS}",
    "NoAgent": "kubectl get pods --all-namespaces -l app.kubernetes.io/component=nodeagent -o wide",
    "AgentSilent": "kubectl get pods --all-namespaces -l app.kubernetes.io/component=nodeagent -o wide",
    "DeliversByClaim": "see docs/dra.md",
    "SharesRead": "see docs/compatibility.md",
    "KubernetesTooOld": f"kubectl label node {{node}} {names.DELIVERY}-",
    "NoDelivery": "install NVIDIA's container toolkit on the node: docs/isolation.md",
}


def findings(facts: ClusterFacts) -> Iterator[Finding]:
    """One line with the figures, and one for each kind of problem; nothing before the installation."""
    check = "gpus"
    if installed(facts) is False or facts.gpunodes is None:
        return
    if isinstance(facts.gpunodes, Unseen):
        yield Finding(UNKNOWN, check, f"unknown: {facts.gpunodes.why}")
        return
    problems = _problems(facts)
    sharing = {name_of(each): count for each in facts.gpunodes if (count := shared_gpus(each))}
    known = {name_of(each) for each in facts.gpunodes}
    if isinstance(facts.nodes, tuple):
        known |= {name_of(each) for each in gpu_nodes(facts.nodes)}
    if not known:
        yield Finding(WARN, check, "no GPU node", "kubectl label node NODE nvidia.com/gpu.present=true")
        return
    short = few([f"{where}: {kind}" for kind, _, where in sorted(problems, key=lambda each: each[2])])
    found = f"{len(sharing)} of {len(known)} nodes share {number(sum(sharing.values()), 'GPU')}"
    level = FAIL if not sharing else OK if len(sharing) == len(known) else WARN
    yield Finding(level, check, f"{found}; {short}" if short else found)
    yield from _findings(problems)


def _findings(problems: list[tuple[str, str, str]]) -> Iterator[Finding]:
    """A line for each kind of problem, with all of its nodes. The rule of plugins reports theirs."""
    together = defaultdict[tuple[str, str], list[str]](list)
    for kind, message, node in problems:
        if kind != _CONFLICT:
            together[kind, message].append(node)
    for (kind, message), where in sorted(together.items()):
        cure = _CURES.get(kind, SEE).format(node=where[0])
        yield Finding(WARN, "node-problems", f"{few(where)}: {kind}: {message}", cure)


def shared_gpus(gpunode: JSON) -> int:
    """How many GPUs of a node take pods."""
    status = gpunode.get("status") or {}
    if _conditions(gpunode).get("Ready", {}).get("status") != "True":
        return 0
    # A card in MIG mode is listed alongside its slices and has nothing to give.
    gpus = status.get("gpus") or []
    return sum(gpu.get("health") == "Healthy" and int(gpu.get("usableBytes") or 0) > 0 for gpu in gpus)


def _conditions(gpunode: JSON) -> dict[str, JSON]:
    return {str(each.get("type")): each for each in (gpunode.get("status") or {}).get("conditions") or []}


def _problems(facts: ClusterFacts) -> list[tuple[str, str, str]]:
    """Every problem as kind, message and node."""
    assert isinstance(facts.gpunodes, tuple)
    found = list[tuple[str, str, str]]()
    for gpunode in facts.gpunodes:
        node, status = name_of(gpunode), gpunode.get("status") or {}
        for kind, condition in _conditions(gpunode).items():
            if _WRONG_STATUS.get(kind) == condition.get("status"):
                message = str(condition.get("message") or condition.get("reason") or "")
                found.append((kind, message, node))
        written, bound = moments.seconds(status.get("observedAt")), shown_silent_after(gpunode)
        if written is not None and facts.now - written > bound:
            why = f"the agent has not reported for {bound:.0f} s, so the node accepts no new pods"
            found.append(("AgentSilent", why, node))
        if ((status.get("delivery") or {}).get("modes") or []) == ["none"]:
            found.append(("NoDelivery", "no GPU reaches a container there without a device plugin", node))
        found += [
            ("UnhealthyGPU", str(gpu.get("reason") or "no reason given"), node)
            for gpu in status.get("gpus") or []
            if gpu.get("health") == "Unhealthy"
        ]
    if isinstance(facts.nodes, tuple):
        reported = {name_of(each) for each in facts.gpunodes}
        silent = [name_of(each) for each in gpu_nodes(facts.nodes) if name_of(each) not in reported]
        found += [("NoAgent", "no agent has reported the GPUs of the node", node) for node in silent]
        found += _too_old(facts.nodes, facts.version)
    return found


def _too_old(nodes: Sequence[JSON], version: tuple[int, int]) -> Iterator[tuple[str, str, str]]:
    """Nodes that must deliver by ResourceClaims in a cluster without them."""
    if version >= resourceclaims.SINCE:
        return
    needed, there = (".".join(map(str, each)) for each in (resourceclaims.SINCE, version))
    for node in nodes:
        if ((node.get("metadata") or {}).get("labels") or {}).get(names.DELIVERY) == names.BY_DRA:
            why = f"{names.DELIVERY}={names.BY_DRA} needs Kubernetes {needed}, this is {there}"
            yield "KubernetesTooOld", why, name_of(node)
