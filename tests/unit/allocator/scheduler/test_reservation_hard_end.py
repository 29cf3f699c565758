"""
A reservation ends when its pod does not exist, and at last whatever fails. A share whose pod exists is not given away.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from allocator.cache.podinfo import pod_event
from allocator.scheduler.events import TickPhase, pods_listed
from allocator.workers.binder import EventRecorder
from allocator.workers.loop import SchedulingLoop
from contract import pods
from contract.encoding.protocol import Placed
from contract.reasons.pods import PodReason
from runtime.kubernetes.client import Kube, KubeError
from runtime.kubernetes.errors import KubeForbidden, KubeTooManyRequests, KubeUnavailable
from tests.unit.allocator.apiserver import ApiServer
from tests.unit.allocator.chosen import chosen
from tests.unit.allocator.harness import SchedulerHarness, admitted, late_pods, question, relists
from tests.unit.allocator.one_gpu import ONE_GPU, worker
from tests.wires import Sent, Transport

JSON = dict[str, Any]
TTL = 40.0


class Failing(Transport):
    """An API server whose lists fail."""

    def __init__(self, error: Callable[[], Exception]) -> None:
        self.error, self.requested = error, list[str]()

    def answer(self, sent: Sent) -> Any:
        self.requested.append(sent.path)
        raise self.error()


def loop_over(harness: SchedulerHarness, kube: Kube) -> SchedulingLoop:
    return SchedulingLoop(
        kube=kube,
        controller=harness.controller,
        recorder=EventRecorder(kube, clock=lambda: datetime.now(UTC)),
        woken=threading.Event(),
        now_ns=lambda: 0,
        writers=1,
        faulted=lambda place, about: "fault",
    )


def reserved(*namespaces: str) -> SchedulerHarness:
    harness = SchedulerHarness([ONE_GPU], options=chosen(assume_ttl=TTL))
    for namespace in namespaces:
        requested = replace(question(worker("p", mib=100)), namespace=namespace)
        assert isinstance(harness.controller.reserve(requested), Placed)
    return harness


FAILURES: dict[str, Callable[[], KubeError | ValueError]] = {
    "the API server is away": lambda: KubeUnavailable("away", status=503),
    "it is busy": lambda: KubeTooManyRequests("busy", status=429),
    "it refuses": lambda: KubeForbidden("no", status=403),
    "we fail ourselves": lambda: ValueError("a bug"),
}


@pytest.mark.parametrize("error", FAILURES.values(), ids=FAILURES.keys())
def test_a_reservation_has_an_end_that_no_failure_postpones(error: Callable[[], Exception]) -> None:
    harness = reserved("team")
    loop = loop_over(harness, Kube(Failing(error)))
    for since, assumed in ((TTL + 1, 1), (3 * TTL - 1, 1), (3 * TTL + 1, 0)):
        harness.now = 100.0 + since
        loop.carry_out(TickPhase.RESERVATIONS)
        assert harness.controller.look().assumed == assumed, since
    assert harness.forgotten == ["expired"]
    harness.controller.check_invariants()


@pytest.mark.parametrize("namespace", ["", "..", ".", "A", "n" * 1_200_000, "n\n", "\u0000"])
def test_a_namespace_that_cannot_be_has_no_pods(namespace: str) -> None:
    """Admission refuses such names. If one still arrives, it ends nothing and lasts no longer than others."""
    harness = reserved(namespace, "team")
    requested = Failing(lambda: KubeUnavailable("away", status=503))
    harness.now += TTL + 1
    loop_over(harness, Kube(requested)).carry_out(TickPhase.RESERVATIONS)
    assert (requested.requested, harness.controller.look().assumed) == (["/api/v1/namespaces/team/pods"], 1)


def test_a_few_namespaces_are_read_at_a_time_and_the_others_expire_anyway() -> None:
    harness = reserved(*(f"team-{i}" for i in range(40)))
    requested = Failing(lambda: KubeUnavailable("away", status=503))
    loop = loop_over(harness, Kube(requested))
    harness.now += TTL + 1
    loop.carry_out(TickPhase.RESERVATIONS)
    assert len(requested.requested) == 16
    harness.now += 2 * TTL
    loop.carry_out(TickPhase.RESERVATIONS)
    assert harness.controller.look().assumed == 0


def test_an_assumed_share_whose_pod_exists_is_kept_and_pods_are_relisted_once() -> None:
    harness, api = reserved(), ApiServer()
    answer = harness.controller.reserve(question(worker("p")))
    assert isinstance(answer, Placed)
    stored = api.create(admitted(worker("p"), allocation=answer.allocation))
    loop, relisted = loop_over(harness, Kube(api.wire)), list[bool]()
    for _ in range(6):
        harness.now += TTL + 1
        loop.carry_out(TickPhase.RESERVATIONS)
        relisted.append(bool(relists(harness.controller)))
    assert (relisted, harness.controller.look().assumed) == ([False, True, False, False, False, False], 1)
    harness.controller.handle(pods_listed([pods.trim(stored)]))
    assert (harness.controller.look().assumed, harness.controller.look().confirmed) == (0, 1)
    harness.controller.check_invariants()


def test_a_pod_that_was_stored_and_forgotten_comes_too_late() -> None:
    """This makes the end safe: the pod is failed before it uses what others got meanwhile."""
    harness = SchedulerHarness([ONE_GPU], options=chosen(assume_ttl=TTL))
    answer = harness.controller.reserve(question(worker("p")))
    assert isinstance(answer, Placed)
    harness.now += 3 * TTL + 1
    loop_over(harness, Kube(Failing(lambda: KubeUnavailable("away", status=503)))).carry_out(TickPhase.RESERVATIONS)
    other = harness.controller.reserve(question(worker("other")))
    assert isinstance(other, Placed)
    harness.controller.handle(pod_event(admitted(worker("p"), allocation=answer.allocation)))
    assert [late.key for late in late_pods(harness.controller)] == ["default/p"]
    assert PodReason.SHARE_TAKEN
