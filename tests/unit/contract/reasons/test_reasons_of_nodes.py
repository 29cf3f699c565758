"""The one reason why a pod waits is that of the node on which it passed most checks, whatever most nodes say."""

from __future__ import annotations

import pytest

from contract.reasons.nodes import Code, Reason, leading, summary, tally

CORDONED, TAINT, MEMORY = Reason(Code.CORDONED), Reason(Code.TAINT, what="a=b:NoSchedule"), Reason(Code.MEMORY, 8, 4)
WORDS: dict[str, tuple[tuple[Reason, ...], str]] = {
    "no node at all": ((), "NoGPUs"),
    "all alike": ((MEMORY, MEMORY), "Memory"),
    "three cordoned, and one short of memory": ((CORDONED, CORDONED, CORDONED, MEMORY), "Memory"),
    "whichever is named first": ((MEMORY, CORDONED, CORDONED), "Memory"),
    "taints, and one not ready": ((TAINT, TAINT, Reason(Code.NOT_READY)), "Taint"),
    "short of CPU, and a sick GPU": ((Reason(Code.CPU, 2000, 500),) * 3 + (Reason(Code.UNHEALTHY),), "Unhealthy"),
    "a sick GPU, and one that an administrator may let in": (
        (Reason(Code.UNHEALTHY), Reason(Code.UNHEALTHY), Reason(Code.GPU_CORDONED)),
        "GPUCordoned",
    ),
    "a plugin's GPUs, and others of another model": ((Reason(Code.NOT_SHARED), Reason(Code.MODEL)), "Model"),
    "room on a node that is reserved for another": ((MEMORY, MEMORY, Reason(Code.RESERVED)), "Reserved"),
    "memory on most, cores on one": ((MEMORY, MEMORY, Reason(Code.CORES, 50, 20)), "Cores"),
}


@pytest.mark.parametrize(("reasons", "word"), WORDS.values(), ids=WORDS.keys())
def test_the_word(reasons: tuple[Reason, ...], word: str) -> None:
    assert leading(tally(reasons)).word == word


def test_the_summary_has_all_reasons_with_figures_the_most_frequent_first() -> None:
    assert summary(tally((CORDONED, CORDONED, Reason(Code.GPU_CORDONED), Reason(Code.NOT_SHARED)))) == (
        "0 of 4 GPU nodes fit: 2 cordoned, 1 with GPUs that an administrator cordoned, "
        "1 with GPUs that are not shared, since a vendor's device plugin may allocate them"
    )


def test_a_startup_taint_says_when_it_goes() -> None:
    starts = Reason(Code.TAINT, what="startup-taint.cluster-autoscaler.kubernetes.io/gpufraction=:NoSchedule")
    assert summary(tally((starts,))) == (
        "0 of 1 GPU nodes fit: 1 with a taint that the pod does not tolerate "
        "(startup-taint.cluster-autoscaler.kubernetes.io/gpufraction=:NoSchedule, until the node's GPUs are published)"
    )
