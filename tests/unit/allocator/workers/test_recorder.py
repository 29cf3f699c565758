"""A pod gets its condition, even if the API server is busy for a while; outdated conditions are not written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from allocator.queue.records import EventRecord, Report, StatusUpdate
from allocator.workers.binder import EventRecorder, Tellable
from contract.reasons.claims import ClaimEventReason
from contract.reasons.nodes import Code
from contract.reasons.pods import PodEventReason, PodReason
from runtime.kubernetes.client import Kube
from runtime.kubernetes.errors import KubeError, KubeTimeout, KubeUnavailable
from tests.wires import Answer, Script

NEWS = StatusUpdate("default/p", "uid-1", False, Code.MEMORY.word, "waiting: 0 of 1 GPU nodes fit")
OK = Answer(200, {})
BUSY = Answer(429, {"kind": "Status", "code": 429}, {"retry-after": "3"})
AWAY = KubeUnavailable("cannot connect")
LOST = KubeTimeout("no answer in time")
GONE = Answer(404, {"kind": "Status", "code": 404})


@dataclass(frozen=True)
class Case:
    """What the API server answers, whether the condition was written, what was sent, and the pauses in seconds."""

    answers: list[Answer | KubeError]
    reported: bool
    sent: list[str]
    pauses: list[float]
    leads: tuple[bool, ...] = ()
    """Whether the replica leads, asked before each attempt; afterwards it always leads."""


STATUS, EVENT = "status", "events"
CASES = {
    "at once": Case([OK], True, [STATUS, EVENT], []),
    "after it was asked to wait": Case([BUSY, BUSY, OK], True, [STATUS, STATUS, STATUS, EVENT], [3.0, 3.0]),
    "after the API server was away": Case([AWAY, LOST, OK], True, [STATUS, STATUS, STATUS, EVENT], [0.5, 1.0]),
    "not where the pod is gone": Case([GONE], False, [STATUS], []),
    "not by a replica that has stopped leading": Case([AWAY, OK], False, [STATUS], [0.5], leads=(True, False)),
    "not for ever": Case([AWAY], False, [STATUS] * 8, [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]),
}


def sent(transport: Script) -> list[str]:
    return [each.path.rsplit("/", 1)[-1] for each in transport.sent]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_pod_gets_its_condition(case: Case) -> None:
    transport = Script(*case.answers, holds=True)
    pauses: list[float] = []
    leads: Iterator[bool] = iter(case.leads)

    def wait(seconds: float) -> bool:
        pauses.append(seconds)
        return False

    clock = datetime(2030, 1, 1, tzinfo=UTC)
    recorder = EventRecorder(Kube(transport), clock=lambda: clock, leading=lambda: next(leads, True))
    assert (recorder.tell(NEWS, wait), sent(transport), pauses) == (case.reported, case.sent, case.pauses)


def test_nothing_is_waited_for_when_the_program_ends() -> None:
    transport = Script(AWAY, holds=True)
    recorder = EventRecorder(Kube(transport), clock=lambda: datetime(2030, 1, 1, tzinfo=UTC))
    assert (recorder.tell(NEWS, lambda seconds: True), sent(transport)) == (False, [STATUS])


def backlog(*news: Report, size: int = 10) -> list[Tellable]:
    """The writes, in order, for news that arrived while nothing was being written."""
    recorder = EventRecorder(Kube(Script(OK, holds=True)), clock=lambda: datetime(2030, 1, 1, tzinfo=UTC), size=size)
    for each in news:
        recorder.put(each)
    return [taken for _ in range(len(news) + 1) if (taken := recorder.take(0.0)) is not None]


def test_a_pod_with_newer_news_gets_that_alone() -> None:
    placed = StatusUpdate("default/p", "uid-1", True, PodReason.ALLOCATED, "1 GPU share on node n")
    other = StatusUpdate("default/q", "uid-2", False, Code.MEMORY.word, "waiting")
    preempted = EventRecord("Pod", "default/p", "uid-1", PodEventReason.PREEMPTED, "evicted")
    assert backlog(NEWS, other, preempted, placed) == [placed, other, preempted]


def test_newer_figures_do_not_hide_that_the_pod_has_no_condition_yet() -> None:
    fresh = replace(NEWS, reason="waiting: 0 of 2 GPU nodes fit", turned=False, event=False)
    assert backlog(NEWS, fresh) == [replace(fresh, turned=True, event=True)]


def test_beyond_the_bound_the_oldest_is_dropped() -> None:
    news = [StatusUpdate(f"default/p{i}", f"uid-{i}", False, Code.MEMORY.word, "waiting") for i in range(4)]
    assert backlog(*news, size=3) == news[1:]


def test_namespaces_take_turns() -> None:
    flood = [StatusUpdate(f"flood/p{i}", f"uid-{i}", False, Code.MEMORY.word, "waiting") for i in range(3)]
    others = [StatusUpdate(f"{name}/p", f"uid-{name}", True, PodReason.ALLOCATED, "1 GPU share") for name in ("a", "b")]
    assert backlog(*flood, *others) == [flood[0], others[0], others[1], flood[1], flood[2]]


def test_beyond_the_bound_nobody_loses_news_to_another_namespace() -> None:
    other = StatusUpdate("other/p", "uid-o", True, PodReason.ALLOCATED, "1 GPU share")
    flood = [StatusUpdate(f"flood/p{i}", f"uid-{i}", False, Code.MEMORY.word, "waiting") for i in range(4)]
    assert [each for each in backlog(other, *flood, size=3) if each.key == "other/p"] == [other]


TIMES: dict[str, tuple[StatusUpdate, dict[str, Any], list[str]]] = {
    "what is new": (NEWS, {"lastTransitionTime": "2030-01-01T00:00:00Z"}, [STATUS, EVENT]),
    "another reason": (replace(NEWS, turned=False), {}, [STATUS, EVENT]),
    "other figures": (replace(NEWS, turned=False, event=False), {}, [STATUS]),
}


@pytest.mark.parametrize(("news", "time", "want"), TIMES.values(), ids=TIMES.keys())
def test_the_time_of_transition_stays_with_the_status(
    news: StatusUpdate, time: dict[str, Any], want: list[str]
) -> None:
    transport = Script(OK, holds=True)
    recorder = EventRecorder(Kube(transport), clock=lambda: datetime(2030, 1, 1, tzinfo=UTC))
    assert recorder.tell(news, lambda seconds: False)
    condition, scheduled = transport.sent[0].body["status"]["conditions"]
    assert scheduled == {"type": "PodScheduled", "message": NEWS.reason}
    written = {"type": "gpufraction.io/Allocated", "status": "False", "reason": "Memory", "message": NEWS.reason}
    assert (condition, sent(transport)) == ({**written, **time}, want)


SCHEDULED: dict[str, tuple[StatusUpdate, list[str]]] = {
    "a pod behind our gate": (
        replace(NEWS, reason="short of cores (wanted 50 %)"),
        ["short of cores (wanted 50 percent)"],
    ),
    "a pod that got its share": (replace(NEWS, allocated=True), []),
    "a pod that lost its share": (replace(NEWS, gated=False), []),
}


@pytest.mark.parametrize(("news", "want"), SCHEDULED.values(), ids=SCHEDULED.keys())
def test_the_api_servers_condition_says_why_a_gated_pod_waits(news: StatusUpdate, want: list[str]) -> None:
    """Knative uses its message as a format string, so it contains no percent sign."""
    transport = Script(OK, holds=True)
    assert EventRecorder(Kube(transport), clock=lambda: datetime(2030, 1, 1, tzinfo=UTC)).tell(news, lambda _: False)
    written = transport.sent[0].body["status"]["conditions"]
    assert [each["message"] for each in written if each["type"] == "PodScheduled"] == want


def test_where_a_policy_refuses_the_api_servers_condition_ours_is_written() -> None:
    transport = Script(Answer(403, {"kind": "Status", "code": 403}), OK, OK)
    assert EventRecorder(Kube(transport), clock=lambda: datetime(2030, 1, 1, tzinfo=UTC)).tell(NEWS, lambda _: False)
    (ours,) = transport.sent[1].body["status"]["conditions"]
    assert (ours["type"], sent(transport)) == ("gpufraction.io/Allocated", [STATUS, STATUS, EVENT])


def test_an_event_on_a_claim_names_its_kind_and_warns_where_it_should() -> None:
    transport = Script(OK, holds=True)
    recorder = EventRecorder(Kube(transport), clock=lambda: datetime(2030, 1, 1, tzinfo=UTC))
    for code, warns in ((ClaimEventReason.BOUND, False), (ClaimEventReason.LOST, True)):
        assert recorder.tell(
            EventRecord("ElasticGPUClaim", "team/c", "uid-c", code, "why", warns), lambda seconds: False
        )
    about = {
        "apiVersion": "elasticgpu.io/v1alpha1",
        "kind": "ElasticGPUClaim",
        "namespace": "team",
        "name": "c",
        "uid": "uid-c",
    }
    bodies = [call.body for call in transport.sent]
    assert [(body["involvedObject"], body["metadata"]["namespace"]) for body in bodies] == [(about, "team")] * 2
    assert [(body["reason"], body["type"]) for body in bodies] == [("ClaimBound", "Normal"), ("ClaimLost", "Warning")]
