"""The findings about the nodes' GPUs, by cases: how many are shared, and which node has which problem."""

from __future__ import annotations

from typing import Any

import pytest

from contract import names
from kubectl_gpufraction.check import nodes
from kubectl_gpufraction.check.facts import ClusterFacts
from kubectl_gpufraction.check.findings import FAIL, OK, UNKNOWN, WARN, Unseen

JSON = dict[str, Any]
NOW = 1_767_600_000.0  # 2026-01-05T08:00:00Z
LABELS = {"gpu": "on"}


def gpunode(
    name: str, *healths: str, seen: str = "2026-01-05T07:59:00Z", modes: tuple[str, ...] = (), **conditions: str
) -> JSON:
    """An inventory with a GPU for each health. `conditions`: their status and, after a colon, their message."""
    statuses = {"Ready": "True"} | conditions
    listed = [
        {"type": kind, "status": text.partition(":")[0], "reason": "Because", "message": text.partition(":")[2]}
        for kind, text in statuses.items()
    ]
    gpus = [
        {"health": health, "usableBytes": 1, "reason": "" if health == "Healthy" else "XID 79"} for health in healths
    ]
    status = {"gpus": gpus, "conditions": listed, "observedAt": seen, "delivery": {"modes": list(modes)}}
    return {"metadata": {"name": name}, "status": status}


def node(name: str) -> JSON:
    return {"metadata": {"name": name, "labels": LABELS}}


def see(name: str) -> str:
    return f"kubectl get gpunode {name} -o yaml"


AGENTS = "kubectl get pods --all-namespaces -l app.kubernetes.io/component=nodeagent -o wide"
CASES: dict[str, tuple[Any, Any, list[tuple[str, str, str]]]] = {
    "well": (
        (gpunode("a", "Healthy", "Healthy"), gpunode("b", "Healthy")),
        (node("a"), node("b")),
        [(OK, "2 of 2 nodes share 3 GPUs", "")],
    ),
    "one of the accounts": (
        (
            gpunode("a", "Healthy", "Healthy", "Healthy"),
            gpunode("b", "Healthy", "Healthy", "Healthy"),
            gpunode("x", "NotShared", PluginConflict="True:no GPU is shared"),
        ),
        (node("a"), node("b"), node("x")),
        [(WARN, "2 of 3 nodes share 6 GPUs; x: PluginConflict", "")],
    ),
    "no driver": (
        (gpunode("a", Ready="False:no driver"), gpunode("b", Ready="False:no driver")),
        (node("a"), node("b")),
        [
            (FAIL, "0 of 2 nodes share 0 GPUs; a: Ready, b: Ready", ""),
            (WARN, "a, b: Ready: no driver", see("a")),
        ],
    ),
    "a sick card": (
        (gpunode("a", "Healthy", "Unhealthy"),),
        (node("a"),),
        [
            (OK, "1 of 1 nodes share 1 GPU; a: UnhealthyGPU", ""),
            (WARN, "a: UnhealthyGPU: XID 79", see("a")),
        ],
    ),
    "a silent agent": (
        (gpunode("a", "Healthy", seen="2026-01-05T07:30:00Z"),),
        (node("a"),),
        [
            (OK, "1 of 1 nodes share 1 GPU; a: AgentSilent", ""),
            (WARN, "a: AgentSilent: the agent has not reported for 900 s, so the node accepts no new pods", AGENTS),
        ],
    ),
    "no agent": (
        (),
        (node("a"),),
        [
            (FAIL, "0 of 1 nodes share 0 GPUs; a: NoAgent", ""),
            (WARN, "a: NoAgent: no agent has reported the GPUs of the node", AGENTS),
        ],
    ),
    "refused options": (
        (gpunode("a", "Healthy", OptionsRefused="True:line 3"),),
        (node("a"),),
        [
            (OK, "1 of 1 nodes share 1 GPU; a: OptionsRefused", ""),
            (
                WARN,
                "a: OptionsRefused: line 3",
                "kubectl -n gpufraction-system edit configmap gpufraction-options",
            ),
        ],
    ),
    "no way to containers": (
        (gpunode("a", "Healthy", modes=("none",)),),
        (node("a"),),
        [
            (OK, "1 of 1 nodes share 1 GPU; a: NoDelivery", ""),
            (
                WARN,
                "a: NoDelivery: no GPU reaches a container there without a device plugin",
                "install NVIDIA's container toolkit on the node: docs/isolation.md",
            ),
        ],
    ),
    "no way by claims": (
        (gpunode("a", "Healthy", DeliversByClaim="False:kubelet refused"),),
        (node("a"),),
        [
            (OK, "1 of 1 nodes share 1 GPU; a: DeliversByClaim", ""),
            (WARN, "a: DeliversByClaim: kubelet refused", "see docs/dra.md"),
        ],
    ),
    "conditions that tell of no problem": (
        (gpunode("a", "Healthy", Held="True:all", LimitsReachContainers="True:by CDI", PluginConflict="False"),),
        (node("a"),),
        [(OK, "1 of 1 nodes share 1 GPU", "")],
    ),
    "no GPU node": ((), (), [(WARN, "no GPU node", "kubectl label node NODE nvidia.com/gpu.present=true")]),
    "unseen": (Unseen("you may not list gpunodes"), (), [(UNKNOWN, "unknown: you may not list gpunodes", "")]),
    "before the installation": (None, (node("a"),), []),
}


@pytest.mark.parametrize("name", CASES)
def test_nodes(name: str) -> None:
    gpunodes, known, wanted = CASES[name]
    found = list(nodes.findings(ClusterFacts(now=NOW, version=(1, 36), gpunodes=gpunodes, nodes=known)))
    assert [(each.level, each.found, each.cure) for each in found] == wanted
    assert {each.check for each in found[1:]} <= {"node-problems"}


def test_a_node_set_to_deliver_by_claims_without_their_api_is_reported() -> None:
    labelled = {"metadata": {"name": "a", "labels": {"nvidia.com/gpu.present": "true", names.DELIVERY: "dra"}}}
    for version, findings in (((1, 33), 1), ((1, 34), 0)):
        seen = ClusterFacts(now=NOW, version=version, gpunodes=(gpunode("a", "Healthy"),), nodes=(labelled,))
        found = [each for each in nodes.findings(seen) if "KubernetesTooOld" in each.found and each.cure]
        assert [(each.level, each.cure) for each in found] == findings * [
            (WARN, "kubectl label node a gpufraction.io/delivery-")
        ]
