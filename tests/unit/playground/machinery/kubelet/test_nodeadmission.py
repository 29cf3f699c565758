from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from playground.api.kinds.values import JSON
from playground.machinery.kubelet.nodeadmission import Rejected, admit
from playground.machinery.objects.resources import Account
from tests.unit.playground.machinery.builders import GPU_MEMORY, account, node, pinned_to, pod

GIB = 1 << 30


@dataclass(frozen=True)
class Case:
    pod: JSON
    node: JSON
    want: Rejected | None
    taken: Account = field(default_factory=Account)


CASES = {
    "room for everything": Case(pod(limits={"cpu": "1", GPU_MEMORY: "8Gi"}), node(extended={GPU_MEMORY: "8Gi"}), None),
    "another operating system": Case(
        {**pod(limits={"cpu": "1"}), "spec": {**pod(limits={"cpu": "1"})["spec"], "os": {"name": "windows"}}},
        node(),
        Rejected("PodOSNotSupported", "Pod was rejected: Failed to admit pod as the OS field doesn't match node OS"),
    ),
    "an extended resource that others took": Case(
        pod(limits={GPU_MEMORY: "8Gi"}),
        node(extended={GPU_MEMORY: "16Gi"}),
        Rejected(
            "OutOfgpufraction.io/gpu-memory",
            "Pod was rejected: Node didn't have enough resource: gpufraction.io/gpu-memory, requested: 8589934592, "
            "used: 9663676416, capacity: 17179869184",
        ),
        account(gpu_memory=9 * GIB),
    ),
    "an extended resource of which the node has none left at all": Case(
        pod(limits={GPU_MEMORY: "1"}),
        node(extended={GPU_MEMORY: "0"}),
        Rejected(
            "OutOfgpufraction.io/gpu-memory",
            "Pod was rejected: Node didn't have enough resource: gpufraction.io/gpu-memory, requested: 1, used: 0, "
            "capacity: 0",
        ),
    ),
    "an extended resource that the node does not know is not kubelet's business": Case(
        pod(limits={"example.com/unheard-of": "1"}), node(), None
    ),
    "CPU is said in thousandths": Case(
        pod(limits={"cpu": "20"}),
        node(),
        Rejected(
            "OutOfcpu",
            "Pod was rejected: Node didn't have enough resource: cpu, requested: 20000, used: 0, capacity: 16000",
        ),
    ),
    "pods come before everything": Case(
        pod(limits={"cpu": "20"}),
        node(pods=1),
        Rejected(
            "OutOfpods",
            "Pod was rejected: Node didn't have enough resource: pods, requested: 1, used: 1, capacity: 1",
        ),
        account(pods=1),
    ),
    "a selector that is not the node's": Case(
        pod(nodeSelector={"gpu": "yes"}),
        node(),
        Rejected(
            "NodeAffinity",
            "Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
        ),
    ),
    "a pin to another node": Case(
        pod(affinity=pinned_to("n2")),
        node("n1"),
        Rejected(
            "NodeAffinity",
            "Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
        ),
    ),
    "a NoSchedule taint keeps nobody out who is bound already": Case(pod(), node(taints=("x:NoSchedule",)), None),
    "a NoExecute taint does": Case(
        pod(),
        node(taints=("x:NoExecute",)),
        Rejected(
            "TaintToleration",
            "Pod was rejected: Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate",
        ),
    ),
    "neither does a cordon": Case(pod(), node(cordoned=True), None),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_admit(case: Case) -> None:
    assert admit(case.pod, case.node, case.taken) == case.want
