"""What one candidate does about one Lease, and the thread around it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from runtime.kubernetes.client import Kube, KubeTimeout
from runtime.kubernetes.lease import Follow, Leader, LeaseTiming, LeaseWrite, Observed, identity, step
from tests.wires import Answer, Script, Sent, status_body

WALL = "2030-01-01T00:00:00.000000Z"
EARLIER = "2029-12-31T23:59:00.000000Z"


def spec(holder: str, *, renewed: str = EARLIER, transitions: int = 3, seconds: int = 15) -> dict[str, Any]:
    return {
        "holderIdentity": holder,
        "leaseDurationSeconds": seconds,
        "acquireTime": EARLIER,
        "renewTime": renewed,
        "leaseTransitions": transitions,
    }


def lease(holder: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": "l", "resourceVersion": "9"}, "spec": spec(holder, **more)}


def taken(transitions: int) -> dict[str, Any]:
    return {
        "metadata": {"name": "l", "resourceVersion": "9"},
        "spec": {**spec("me", renewed=WALL, transitions=transitions), "acquireTime": WALL},
    }


@dataclass(frozen=True)
class Case:
    lease: dict[str, Any] | None
    want: Follow | LeaseWrite
    observed: Observed = field(default_factory=Observed)


CASES = {
    "no Lease: create it": Case(
        None,
        LeaseWrite("create", {"spec": {**spec("me", renewed=WALL, transitions=0), "acquireTime": WALL}}),
    ),
    "a record never seen before counts from now": Case(lease("other"), Follow()),
    "a record seen just under its duration ago is still good": Case(
        lease("other"), Follow(), Observed(spec("other"), changed_at=85.001)
    ),
    "a record that did not change for its duration is up": Case(
        lease("other"), LeaseWrite("replace", taken(4)), Observed(spec("other"), changed_at=85.0)
    ),
    "a renewed record starts the count again": Case(
        lease("other"), Follow(), Observed(spec("other", renewed="before"), changed_at=10.0)
    ),
    "a holder that claims longer is believed longer": Case(
        lease("other", seconds=60), Follow(), Observed(spec("other", seconds=60), changed_at=50.0)
    ),
    "a holder that claims less is given our own patience": Case(
        lease("other", seconds=1), Follow(), Observed(spec("other", seconds=1), changed_at=90.0)
    ),
    "a released Lease is taken at once": Case(lease("", seconds=1), LeaseWrite("replace", taken(4))),
    "our own Lease is renewed and keeps its start": Case(
        lease("me"),
        LeaseWrite("replace", lease("me", renewed=WALL)),
    ),
    "a Lease with an empty spec is taken": Case(
        {"metadata": {"resourceVersion": "9"}},
        LeaseWrite(
            "replace",
            {
                "metadata": {"resourceVersion": "9"},
                "spec": {**spec("me", renewed=WALL, transitions=0), "acquireTime": WALL},
            },
        ),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_step(case: Case) -> None:
    _, action = step(case.lease, "me", case.observed, now=100.0, wall=WALL, timing=LeaseTiming())
    assert action == case.want


@pytest.mark.parametrize("figures", [(10, 10, 2), (15, 2, 2), (15, 10, 0)])
def test_a_pace_that_could_overlap_is_refused(figures: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="must hold"):
        LeaseTiming(*figures)


def test_identities_differ_between_two_runs_of_one_pod() -> None:
    assert identity("pod-0") != identity("pod-0")
    assert identity("pod-0").startswith("pod-0_")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def leader(script: Script, clock: Clock, heard: list[bool] | None = None) -> Leader:
    return Leader(
        Kube(script),
        namespace="ns",
        name="l",
        identity="me",
        clock=clock,
        wall=lambda: WALL,
        on_change=None if heard is None else heard.append,
    )


NONE = Answer(404, status_body(404, "NotFound"))


def test_a_created_lease_leads_until_the_renew_deadline_and_no_longer() -> None:
    clock, heard = Clock(), list[bool]()
    script = Script(NONE, Answer(201, taken(0)), KubeTimeout("no answer"))
    candidate = leader(script, clock, heard)
    assert candidate.token() is None
    candidate.tick()
    assert candidate.token() == 0
    assert (script.sent[1].method, script.sent[1].path) == (
        "POST",
        "/apis/coordination.k8s.io/v1/namespaces/ns/leases",
    )
    clock.now += 9.999
    assert candidate.is_leader()
    clock.now += 0.001
    # No round has failed or even run: the clock alone ends it.
    assert not candidate.is_leader()
    candidate.tick()
    assert heard == [True, False]


def test_an_unanswered_takeover_does_not_lead_although_the_record_names_us() -> None:
    clock = Clock()
    script = Script(Answer(200, lease("")), KubeTimeout("no answer"), Answer(200, taken(4)), KubeTimeout("no answer"))
    candidate = leader(script, clock)
    candidate.tick()
    candidate.tick()
    assert not candidate.is_leader()


def test_losing_the_record_to_another_ends_the_tenure_at_once() -> None:
    clock = Clock()
    candidate = leader(Script(NONE, Answer(201, taken(0)), Answer(200, lease("other"))), clock)
    candidate.tick()
    candidate.tick()
    assert (candidate.is_leader(), candidate.holder()) == (False, "other")


def test_resigning_stops_leading_first_and_then_gives_the_lease_back() -> None:
    clock, heard = Clock(), list[bool]()
    script = Script(
        NONE,
        Answer(201, taken(0)),
        Answer(200, taken(0)),
        Answer(409, status_body(409, "Conflict")),
        Answer(200, taken(0)),
        Answer(200, taken(0)),
    )
    candidate = leader(script, clock, heard)
    candidate.tick()
    candidate.resign()
    assert (candidate.is_leader(), heard) == (False, [True, False])
    written = script.sent[-1]
    assert (written.method, written.body["spec"]["holderIdentity"]) == ("PUT", "")
    assert written.body["metadata"]["resourceVersion"] == "9"


def test_resigning_leaves_anothers_lease_alone() -> None:
    script = Script(Answer(200, lease("other")))
    leader(script, Clock()).resign()
    assert [sent.method for sent in script.sent] == ["GET"]


def test_the_thread_campaigns_and_releases() -> None:
    script = Script(NONE, Answer(201, taken(0)), Answer(200, taken(0)), Answer(200, taken(0)))
    won = threading.Event()
    candidate = Leader(Kube(script), namespace="ns", name="l", identity="me", on_change=lambda leads: won.set())
    candidate.start()
    assert won.wait(5)
    candidate.stop()
    assert (candidate.is_leader(), script.sent[-1].method, script.answers) == (False, "PUT", [])


class Slow(Script):
    """An API server that takes its time over every write."""

    def __init__(self, clock: Clock, seconds: float, *answers: Answer) -> None:
        super().__init__(*answers)
        self.clock, self.seconds = clock, seconds

    def answer(self, sent: Sent) -> Answer:
        if sent.method != "GET":
            self.clock.now += self.seconds
        return super().answer(sent)


def test_a_tenure_counts_from_before_the_renewal_was_sent() -> None:
    clock = Clock()
    candidate = leader(Slow(clock, 4.0, NONE, Answer(201, taken(0))), clock)
    candidate.tick()
    clock.now = 1009.999
    assert candidate.is_leader()
    clock.now = 1010.0
    assert not candidate.is_leader()
