from __future__ import annotations

from dataclasses import dataclass

import pytest

from playground.api.kinds.values import JSON
from playground.machinery.scheduler.placement import Candidate, Unschedulable, choose
from tests.unit.playground.machinery.builders import GPU_MEMORY, account, candidate, node, pinned_to, pod, wish


@dataclass(frozen=True)
class Case:
    pod: JSON
    nodes: list[Candidate]
    want: str | Unschedulable


def nobody(message: str) -> Unschedulable:
    return Unschedulable(message)


GIB = 1 << 30
NOT_READY = node("n1")
NOT_READY["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]

CASES = {
    "the emptier node wins": Case(
        pod(limits={"cpu": "1"}), [candidate(node("a"), account(cpu=8000)), candidate(node("b"))], "b"
    ),
    "of two equal nodes the one with fewer pods": Case(
        pod(), [candidate(node("a"), account(pods=2)), candidate(node("b"), account(pods=1))], "b"
    ),
    "of two equal nodes with equal pods the first name": Case(pod(), [candidate(node("b")), candidate(node("a"))], "a"),
    "a soft taint is avoided where there is a choice": Case(
        pod(), [candidate(node("a", taints=("x:PreferNoSchedule",))), candidate(node("b"), account(cpu=4000))], "b"
    ),
    "a pin by metadata.name is the only choice": Case(
        pod(affinity=pinned_to("b")), [candidate(node("a")), candidate(node("b"), account(cpu=9000))], "b"
    ),
    "a resource that no node has is insufficient everywhere": Case(
        pod(limits={"example.com/unheard-of": "1"}),
        [candidate(node("a")), candidate(node("b"))],
        nobody("0/2 nodes are available: 2 Insufficient example.com/unheard-of."),
    ),
    "each node counts under its first reason": Case(
        pod(limits={GPU_MEMORY: "8Gi"}, nodeSelector={"gpu": "yes"}),
        [
            candidate(node("a", extended={GPU_MEMORY: "16Gi"})),
            candidate(node("b", labels={"gpu": "yes"}, extended={GPU_MEMORY: "16Gi"}), account(gpu_memory=9 * GIB)),
            candidate(node("c", labels={"gpu": "yes"})),
        ],
        nobody(
            "0/3 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, "
            "2 Insufficient gpufraction.io/gpu-memory."
        ),
    ),
    "a node that lacks two things gives two reasons": Case(
        pod(limits={"cpu": "99", "memory": "999Gi"}),
        [candidate(node())],
        nobody("0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient memory."),
    ),
    "a full node": Case(
        pod(),
        [candidate(node(pods=1), account(pods=1))],
        nobody("0/1 nodes are available: 1 Too many pods."),
    ),
    "a cordoned node": Case(
        pod(), [candidate(node(cordoned=True))], nobody("0/1 nodes are available: 1 node(s) were unschedulable.")
    ),
    "a cordoned node takes who tolerates it": Case(
        pod(tolerations=[{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]),
        [candidate(node(cordoned=True))],
        "n1",
    ),
    "a taint that is not tolerated": Case(
        pod(),
        [candidate(node(taints=("nvidia.com/gpu=present:NoSchedule",)))],
        nobody("0/1 nodes are available: 1 node(s) had untolerated taint {nvidia.com/gpu: present}."),
    ),
    "a node whose kubelet is silent": Case(
        pod(),
        [candidate(NOT_READY)],
        nobody("0/1 nodes are available: 1 node(s) had untolerated taint {node.kubernetes.io/not-ready: }."),
    ),
    "no nodes at all": Case(pod(), [], nobody("no nodes available to schedule pods")),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_choose(case: Case) -> None:
    assert choose(wish(case.pod), case.nodes) == case.want


def test_a_host_port_in_use_keeps_the_pod_off() -> None:
    serving = pod()
    serving["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 8080}]
    taken = candidate(node())
    wanted = wish(serving)
    assert choose(wanted, [taken]) == "n1"

    from playground.machinery.objects.resources import holding_of

    taken.account.book("other", holding_of(serving, wanted.needs))
    assert choose(wanted, [taken]) == Unschedulable(
        "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports."
    )
