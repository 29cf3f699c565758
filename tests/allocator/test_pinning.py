"""How a pod is tied to its node: the whole table."""

from __future__ import annotations

import pytest

from allocator import pinning
from contract.scheduling import needs_of
from tests.builders import PodBuilder, node, pod

A_NODE = node("n").gpus(1)
PLAIN = pod("p").asks("gpufraction.io/gpu-memory", "1Gi").needs(cpu="1", memory="1Gi")
CASES: dict[str, tuple[str, PodBuilder, object, str]] = {
    "all that matters was checked here": ("auto", PLAIN, A_NODE, "nodeName"),
    "a word that is no mode counts as auto": ("sideways", PLAIN, A_NODE, "nodeName"),
    "asked for by name": ("nodeName", PLAIN.spec(schedulerName="volcano"), A_NODE, "nodeName"),
    "asked for affinity": ("affinity", PLAIN, A_NODE, "affinity"),
    "the pod names its node itself": ("affinity", PLAIN.on("n"), A_NODE, "nodeName"),
    "another scheduler": ("auto", PLAIN.spec(schedulerName="volcano"), A_NODE, "affinity"),
    "a volume claim that may not be bound": (
        "auto",
        PLAIN.spec(volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]),
        A_NODE,
        "affinity",
    ),
    "an ephemeral volume": ("auto", PLAIN.spec(volumes=[{"name": "v", "ephemeral": {}}]), A_NODE, "affinity"),
    "an emptyDir is nobody's business": (
        "auto",
        PLAIN.spec(volumes=[{"name": "v", "emptyDir": {}}]),
        A_NODE,
        "nodeName",
    ),
    "anti-affinity to other pods": (
        "auto",
        PLAIN.spec(affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}),
        A_NODE,
        "affinity",
    ),
    "spread over zones": ("auto", PLAIN.spec(topologySpreadConstraints=[{}]), A_NODE, "affinity"),
    "resource claims": ("auto", PLAIN.spec(resourceClaims=[{"name": "c"}]), A_NODE, "affinity"),
    "a resource that only kube-scheduler counts": ("auto", PLAIN.asks("rdma/hca", 1), A_NODE, "affinity"),
    "little CPU is left": ("auto", PLAIN, A_NODE.requested(cpu=30_000), "affinity"),
    "the last pod slot": ("auto", PLAIN, A_NODE.requested(pods=109), "affinity"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_pin(case: tuple[str, PodBuilder, object, str]) -> None:
    mode, builder, at, want = case
    made = builder.json()
    left = pinning.only_scheduler_can_judge(made)
    assert pinning.choose(mode, left, needs_of(made), at.state()) == want  # type: ignore[attr-defined]
