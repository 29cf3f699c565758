"""The verdicts from figures, and what is read from logs and pods that anyone may have written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubectl_gpufraction.conformance import pods, verdicts
from kubectl_gpufraction.conformance.codes import ReportReason
from kubectl_gpufraction.conformance.pods import Look, ProbeAnswer, Share, answer_of, look_of
from kubectl_gpufraction.conformance.report import Result, because, passed
from runtime import cudaprobe

A, B, CARD = "GPU-a", "GPU-b", "GPU-card"
SEEN: dict[str, tuple[Look, tuple[str, ...], tuple[str, ...], ReportReason | None]] = {
    "its own": (Look(("0",), (A,)), (A,), (), None),
    "its own, by files alone": (Look(("0",)), (A,), (), None),
    "its own, by names alone": (Look((), (A,)), (A,), (), None),
    "another one": (Look(("0",), (B,)), (A,), (), ReportReason.OTHER_GPUS),
    "one more": (Look(("0", "1"), (A, B)), (A,), (), ReportReason.OTHER_GPUS),
    "one file more": (Look(("0", "1")), (A,), (), ReportReason.OTHER_GPUS),
    "none": (Look(), (A,), (), ReportReason.NO_GPUS),
    "one of two": (Look(("0",), (A,)), (A, B), (), ReportReason.NO_GPUS),
    "a pod that was given none": (Look(), (), (), ReportReason.NO_GPUS),
    "its slice, and the slice's card": (Look((), ("MIG-a", CARD)), ("MIG-a",), (CARD,), None),
    "another slice": (Look((), ("MIG-b", CARD)), ("MIG-a",), (CARD,), ReportReason.OTHER_GPUS),
}


@pytest.mark.parametrize(("look", "own", "parents", "reason"), SEEN.values(), ids=SEEN.keys())
def test_a_container_sees_its_own_and_no_other(
    look: Look, own: tuple[str, ...], parents: tuple[str, ...], reason: ReportReason | None
) -> None:
    figures = {"seen": look.seen, "given": len(own)}
    wanted = because(reason, "mig", "", **figures) if reason else passed("mig", "", **figures)
    assert verdicts.sees(look, own, "mig", parents=parents) == wanted


MEMORY: dict[str, tuple[ProbeAnswer, Result]] = {
    "refused at the share": (
        ProbeAnswer({"tookMiB": 2048, "code": 2, "shownMiB": 2048}),
        passed("memory", "mps", shareMiB=2048, tookMiB=2048, shownMiB=2048),
    ),
    "refused before, since the context counts": (
        ProbeAnswer({"tookMiB": 1600, "code": 2, "shownMiB": 24000}),
        passed("memory", "mps", shareMiB=2048, tookMiB=1600, shownMiB=24000),
    ),
    "refused beyond the share": (
        ProbeAnswer({"tookMiB": 2112, "code": 2, "shownMiB": 0}),
        because(ReportReason.NOT_HELD, "memory", "mps", shareMiB=2048, tookMiB=2112, shownMiB=0),
    ),
    "never refused": (
        ProbeAnswer({"tookMiB": 2048, "code": 0}),
        because(ReportReason.NOT_HELD, "memory", "mps", shareMiB=2048, tookMiB=2048, shownMiB=0),
    ),
    "no context": (
        ProbeAnswer({"code": 2}, failed=True),
        because(ReportReason.PROGRAM_FAILED, "memory", "mps", cudaError=2),
    ),
    "a card that others have filled": (
        ProbeAnswer({"code": 2}, failed=True, full=True),
        because(ReportReason.NO_IDLE_GPU, "memory", "mps"),
    ),
    "another refusal": (
        ProbeAnswer({"tookMiB": 0, "code": 700}),
        because(ReportReason.PROGRAM_FAILED, "memory", "mps", cudaError=700),
    ),
    "an answer without figures": (ProbeAnswer(), because(ReportReason.PROGRAM_FAILED, "memory", "mps", cudaError=0)),
}


@pytest.mark.parametrize(("answer", "result"), MEMORY.values(), ids=MEMORY.keys())
def test_memory_is_held_where_the_driver_refused_it(answer: ProbeAnswer, result: Result) -> None:
    assert verdicts.memory(answer, "mps", 2048) == result


@pytest.mark.parametrize(("full", "quarter", "held"), [(1000, 250, True), (1000, 500, True), (1000, 501, False)])
def test_cores_are_held_where_a_quarter_is_slower_by_half(full: int, quarter: int, held: bool) -> None:
    result = verdicts.cores(ProbeAnswer({"perSecond": full}), ProbeAnswer({"perSecond": quarter}), "mps")
    assert result.result == ("passed" if held else "failed")


def test_a_program_that_computes_nothing_is_no_limit_that_holds() -> None:
    assert (
        verdicts.cores(ProbeAnswer({"perSecond": 900}), ProbeAnswer({"perSecond": 0}), "mps").reason
        == ReportReason.PROGRAM_FAILED
    )


@given(st.text(max_size=400))
def test_any_log_is_read(text: str) -> None:
    assert look_of(text) is None or "gpufraction-end" in text
    assert answer_of(text) is None or cudaprobe.MARK in text


def test_the_last_whole_look_counts() -> None:
    log = "\n".join(
        (
            *("gpufraction-begin", "gpufraction-gpu GPU 0: x (UUID: GPU-old)", "gpufraction-end"),
            *("gpufraction-begin", "gpufraction-device 3", "gpufraction-gpu GPU 0: x (UUID: GPU-a)", "noise"),
            *("gpufraction-module", "gpufraction-end", "gpufraction-begin", "gpufraction-device 9"),
        )
    )
    assert look_of(log) == Look(("3",), ("GPU-a",), True)


ODD_ANSWERS = {
    "no number": '{"tookMiB": "x"}',
    "an endless number": f'{{"tookMiB": {10**30}}}',
    "below zero": '{"tookMiB": -1}',
    "true": '{"tookMiB": true}',
}


@pytest.mark.parametrize("text", ODD_ANSWERS.values(), ids=ODD_ANSWERS.keys())
def test_an_odd_answer_has_no_figures(text: str) -> None:
    assert answer_of(cudaprobe.MARK + text) == ProbeAnswer()


def _pod(phase: str = "Pending", node: str = "n", reason: str = "", **state: Any) -> dict[str, Any]:
    status = {"phase": phase, "reason": reason, "containerStatuses": [{"name": "probe", "state": state}]}
    return {"spec": {"nodeName": node}, "status": status}


_RUNC_SAYS = (
    'container create failed: level=error msg="runc create failed: unable to start container process: exec: '
    '\\"python3\\": executable file not found in $PATH"'
)
_CRUN_SAYS = "container create failed: executable file `python3` not found in $PATH: No such file or directory"
HOPELESS: dict[str, tuple[dict[str, Any], ReportReason | None]] = {
    "one that starts": (_pod(waiting={"reason": "ContainerCreating"}), None),
    "one that runs": (_pod("Running", running={}), None),
    "no image": (_pod(waiting={"reason": "ImagePullBackOff"}), ReportReason.NO_IMAGE),
    "no program": (_pod("Failed", terminated={"reason": "StartError", "exitCode": 128}), ReportReason.NO_PROGRAM),
    "no program, on CRI-O": (
        _pod("Pending", waiting={"reason": "CreateContainerError", "message": _RUNC_SAYS}),
        ReportReason.NO_PROGRAM,
    ),
    "no program, on CRI-O with crun": (
        _pod("Pending", waiting={"reason": "CreateContainerError", "message": _CRUN_SAYS}),
        ReportReason.NO_PROGRAM,
    ),
    "a container that is not created yet": (
        _pod("Pending", waiting={"reason": "CreateContainerError", "message": "context deadline exceeded"}),
        None,
    ),
    "no interpreter": (_pod("Failed", terminated={"reason": "Error", "exitCode": 127}), ReportReason.NO_PROGRAM),
    "refused by its node": (_pod("Failed", reason="OutOfcpu"), ReportReason.REJECTED),
    "past its deadline": (_pod("Failed", reason="DeadlineExceeded"), ReportReason.NOT_STARTED),
}


@pytest.mark.parametrize(("pod", "reason"), HOPELESS.values(), ids=HOPELESS.keys())
def test_what_no_waiting_helps(pod: dict[str, Any], reason: ReportReason | None) -> None:
    assert pods.hopeless(pod) == reason


def test_a_pod_ends_by_itself_and_meets_the_restricted_level() -> None:
    made = pods.manifest("x", "node", ("true",), image="i", seconds=60, share=Share(1024, 25, A, "mps"))
    spec, [container] = made["spec"], made["spec"]["containers"]
    assert (spec["activeDeadlineSeconds"], spec["automountServiceAccountToken"]) == (60, False)
    assert spec["securityContext"]["runAsNonRoot"]
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert made["metadata"]["annotations"] == {"gpufraction.io/gpu-uuids": A, "gpufraction.io/isolation": "mps"}
    assert container["resources"]["limits"] == {
        "cpu": "1",
        "memory": "1Gi",
        "gpufraction.io/gpu-memory": "1024Mi",
        "gpufraction.io/gpu-cores": "25",
    }


def test_the_program_stands_alone() -> None:
    """It runs from its text in an image without our code."""
    text = pods.program("memory", 1, 2)[1]
    imported = {line.split()[1].split(".")[0] for line in text.splitlines() if line.startswith(("import ", "from "))}
    assert imported == {"__future__", "ctypes", "json", "sys", "time", "typing"}
