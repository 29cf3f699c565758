"""What one candidate does about one Lease, and the thread around it."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from runtime.kubernetes.client import Kube, KubeError, KubeTimeout
from runtime.kubernetes.lease import (
    NEW,
    RELEASED,
    Follow,
    Leader,
    LeaseTiming,
    LeaseWrite,
    Observed,
    TakeReleased,
    annotated,
    identity,
    released,
    step,
)
from tests.wires import Answer, Script, Sent, Transport, status_body

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


def lease(holder: str, *, version: str = "9", after: str = "", **more: Any) -> dict[str, Any]:
    """A Lease. One that was released after that version has our annotation."""
    mark = {"annotations": {RELEASED: after}} if after else {}
    return {"metadata": {"name": "l", "uid": "u", "resourceVersion": version, **mark}, "spec": spec(holder, **more)}


def taken(transitions: int, *, acquired: str = WALL, version: str = "9") -> dict[str, Any]:
    record = {**spec("me", renewed=WALL, transitions=transitions), "acquireTime": acquired}
    return {"metadata": {"name": "l", "uid": "u", "resourceVersion": version}, "spec": record}


def seen(record: dict[str, Any], at: float, **more: Any) -> Observed:
    """The state of a candidate that first read this Lease at that time."""
    stated = float(record["spec"]["leaseDurationSeconds"])
    version = ("u", record["metadata"]["resourceVersion"])
    more = {"term": record["spec"]["leaseTransitions"], **more}
    return Observed(record["spec"], version, at, stated, **more)


def led(record: dict[str, Any], until: float) -> Observed:
    """The state of the leader of the third term, which wrote this Lease."""
    return seen(record, 95.0, leads_until=until, ours=("u", record["metadata"]["resourceVersion"]))


@dataclass(frozen=True)
class Case:
    lease: dict[str, Any] | None
    want: Follow | LeaseWrite | TakeReleased
    observed: Observed = field(default_factory=Observed)


VACANT = {"leaseDurationSeconds": 15, "leaseTransitions": 0}
TAKEN = LeaseWrite("replace", taken(4))
CASES = {
    "no Lease: create one that nobody holds": Case(None, LeaseWrite("create", {"spec": VACANT})),
    "a deleted Lease keeps its count, and the patience for who held it": Case(
        None,
        LeaseWrite("create", {"spec": {"leaseDurationSeconds": 60, "leaseTransitions": 3}}),
        seen(lease("other", seconds=60), 1.0),
    ),
    "a record never seen before counts from now": Case(lease("other"), Follow()),
    "a record seen just under its duration ago is still good": Case(
        lease("other"), Follow(), seen(lease("other"), 85.001)
    ),
    "a record that did not change for its duration is up": Case(lease("other"), TAKEN, seen(lease("other"), 85.0)),
    "a renewed record starts the count again": Case(
        lease("other"), Follow(), seen(lease("other", renewed="before"), 10.0)
    ),
    "the same record in another write starts the count again": Case(
        lease("other", version="10"), Follow(), seen(lease("other"), 10.0)
    ),
    "a holder that claims longer is believed longer": Case(
        lease("other", seconds=60), Follow(), seen(lease("other", seconds=60), 50.0)
    ),
    "a holder that claims less is given our own patience": Case(
        lease("other", seconds=1), Follow(), seen(lease("other", seconds=1), 90.0)
    ),
    "a claim of years is believed for five minutes": Case(
        lease("other", seconds=2**31 - 1), TAKEN, replace(seen(lease("other", seconds=2**31 - 1), -200.0), stated=300.0)
    ),
    "a Lease without a holder ages like any other": Case(lease(""), Follow()),
    "a Lease without a holder that is old enough is taken": Case(lease(""), TAKEN, seen(lease(""), 85.0)),
    "a released Lease is taken if the server confirms it": Case(
        lease("", after="8"), TakeReleased("8", taken(4)), seen(lease("other", version="8"), 99.0)
    ),
    "a release that is none is not asked about again": Case(
        lease("", after="8"), Follow(), seen(lease("", after="8"), 99.0, refuted=("u", "9"))
    ),
    "our name in a Lease that we did not write is nobody's": Case(lease("me"), Follow()),
    "our own Lease is renewed and keeps its start": Case(
        lease("me"), LeaseWrite("replace", taken(3, acquired=EARLIER)), led(lease("me"), 101.0)
    ),
    "our own Lease with a new label is renewed while we lead": Case(
        lease("me", version="10"),
        LeaseWrite("replace", taken(3, acquired=EARLIER, version="10")),
        led(lease("me"), 101.0),
    ),
    "our own Lease with a new label ages once our time is over": Case(
        lease("me", version="10"), Follow(), led(lease("me"), 99.0)
    ),
    "our own Lease that nobody wrote since is ours, however late": Case(
        lease("me"), LeaseWrite("replace", taken(3, acquired=EARLIER)), led(lease("me"), 1.0)
    ),
    "our own Lease without its holder ends our term": Case(lease("", version="10"), Follow(), led(lease("me"), 101.0)),
    "our own Lease from an older term ends our term": Case(
        lease("me", version="10", transitions=2), Follow(), led(lease("me"), 101.0)
    ),
    "our own Lease that is gone ends our term": Case(None, Follow(), led(lease("me"), 101.0)),
    "the last number of a term is followed by another": Case(
        lease("other", transitions=2**31 - 1),
        LeaseWrite("replace", taken(0)),
        seen(lease("other", transitions=2**31 - 1), 85.0),
    ),
    "a Lease with an empty spec ages": Case({"metadata": {"resourceVersion": "9"}}, Follow()),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_step(case: Case) -> None:
    after, action = step(case.lease, "me", case.observed, now=100.0, wall=WALL, timing=LeaseTiming())
    assert action == case.want
    assert after.leading(100.0) == (case.observed.leading(100.0) and isinstance(action, LeaseWrite))


@pytest.mark.parametrize("seconds", [0, 1, -5, 10**9, None, True, "15", 15.0])
def test_an_edited_duration_neither_shortens_nor_prolongs_a_term(seconds: object) -> None:
    before = seen(lease("other", seconds=20), 85.0)
    edited = lease("other", version="10")
    edited["spec"]["leaseDurationSeconds"] = seconds
    timing = LeaseTiming()
    first, action = step(edited, "me", before, now=100.0, wall=WALL, timing=timing)
    assert action == Follow()
    assert step(edited, "me", first, now=119.9, wall=WALL, timing=timing)[1] == Follow()
    assert isinstance(step(edited, "me", first, now=120.0, wall=WALL, timing=timing)[1], LeaseWrite)


def test_what_others_do_to_the_lease_is_reported() -> None:
    def reported(record: dict[str, Any] | None, observed: Observed) -> str:
        return step(record, "me", observed, now=100.0, wall=WALL, timing=LeaseTiming())[0].trouble

    ours, others = led(lease("me"), 101.0), seen(lease("other"), 99.0, looked_at=99.0)
    found = [reported(None, Observed()), reported(None, ours), reported(None, others), reported(lease(""), others)]
    assert found == ["", "somebody deleted it", "somebody deleted it", "it has no holder, but no holder released it"]
    assert reported(lease("me", version="10", transitions=2), ours) == "another client changed it"
    assert reported(lease("other", version="10"), others) == "another client changed it"
    assert reported({"metadata": {}, "spec": VACANT}, Observed()) == NEW
    assert reported(lease("other", version="10", renewed=WALL), others) == ""


def test_only_a_lease_that_is_ours_for_certain_is_released() -> None:
    given = {**lease("", after="9"), "spec": spec("")}
    assert released(lease("me"), "me", led(lease("me"), 1.0), now=100.0) == given
    assert released(lease("me", version="10"), "me", led(lease("me"), 101.0), now=100.0) == lease(
        "", version="10", after="10"
    )
    late = released(lease("me", version="10"), "me", led(lease("me"), 99.0), now=100.0)
    assert (late, released(lease("other"), "me", led(lease("me"), 101.0), now=100.0)) == (None, None)
    assert released(lease("me"), "me", seen(lease("me"), 1.0), now=100.0) is None


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
NEW_LEASE = {"metadata": {"name": "l", "uid": "u", "resourceVersion": "1"}, "spec": VACANT}
FIRST = (NONE, Answer(201, NEW_LEASE), Answer(200, NEW_LEASE), Answer(200, taken(1)))
"""There is no Lease; it is created, and taken when it is old enough."""


def elected(*answers: Answer | KubeError, heard: list[bool] | None = None) -> tuple[Leader, Script, Clock]:
    """A candidate that has just become the first leader, and the answers that it gets from then on."""
    script, clock = Script(*FIRST, *answers), Clock()
    candidate = leader(script, clock, heard)
    candidate.tick()
    clock.now += 15.0
    candidate.tick()
    return candidate, script, clock


def test_a_new_lease_is_led_when_it_is_old_enough_and_no_sooner() -> None:
    script, clock, heard = Script(*FIRST[:2], FIRST[2], *FIRST[2:], KubeTimeout("no answer")), Clock(), list[bool]()
    candidate = leader(script, clock, heard)
    candidate.tick()
    assert (script.sent[1].method, script.sent[1].path) == (
        "POST",
        "/apis/coordination.k8s.io/v1/namespaces/ns/leases",
    )
    clock.now += 14.999
    candidate.tick()
    assert (candidate.token(), len(script.sent)) == (None, 3)
    clock.now += 0.001
    candidate.tick()
    assert candidate.token() == 1
    clock.now += 9.999
    assert candidate.is_leader()
    clock.now += 0.001
    # No round has failed or even run: the clock alone ends it.
    assert not candidate.is_leader()
    candidate.tick()
    assert heard == [True, False]


NOTED: dict[str, tuple[dict[str, str], dict[str, str | None], dict[str, str] | None]] = {
    "nothing to write": ({"a": "1"}, {}, {"a": "1"}),
    "a new one": ({"a": "1"}, {"b": "2"}, {"a": "1", "b": "2"}),
    "another value": ({"b": "1"}, {"b": "2"}, {"b": "2"}),
    "one that goes": ({"a": "1", "b": "1"}, {"b": None}, {"a": "1"}),
    "the last one": ({"b": "1"}, {"b": None}, None),
}


@pytest.mark.parametrize(("before", "written", "after"), NOTED.values(), ids=NOTED.keys())
def test_annotations_of_a_lease(
    before: dict[str, str], written: dict[str, str | None], after: dict[str, str] | None
) -> None:
    found = annotated({"metadata": {"name": "l", "annotations": before}, "spec": VACANT}, written)
    wanted = {"name": "l"} if after is None else {"name": "l", "annotations": after}
    assert found == {"metadata": wanted, "spec": VACANT}


def test_a_leader_writes_its_annotations_when_it_renews_and_no_sooner() -> None:
    candidate, script, clock = elected(Answer(200, taken(1)), Answer(200, taken(1)))
    assert "annotations" not in (script.sent[-1].body or {})["metadata"]
    candidate.annotations = lambda: {"reserved": "x"}
    clock.now += 2.0
    candidate.tick()
    assert (script.sent[-1].method, (script.sent[-1].body or {})["metadata"]["annotations"]) == (
        "PUT",
        {"reserved": "x"},
    )
    assert candidate.is_leader()


def test_an_unanswered_takeover_does_not_lead_although_the_record_names_us() -> None:
    clock = Clock()
    script = Script(
        Answer(200, lease("")),
        Answer(200, lease("")),
        KubeTimeout("no answer"),
        Answer(200, taken(4, version="10")),
        Answer(200, taken(4, version="10")),
        Answer(200, taken(5, version="11")),
    )
    candidate = leader(script, clock)
    for later in (0.0, 15.0, 2.0):
        clock.now += later
        candidate.tick()
        assert not candidate.is_leader()
    clock.now += 15.0  # after that the record is as old as any other
    candidate.tick()
    assert (candidate.token(), script.answers) == (5, [])


@pytest.mark.parametrize(
    "found",
    [
        NONE,
        Answer(200, lease("other", version="10")),
        Answer(200, lease("", version="10")),
        Answer(200, lease("me", version="10", transitions=0)),
        Answer(200, {"metadata": {"resourceVersion": "10"}}),
    ],
    ids=["deleted", "another's", "emptied", "restored", "no record"],
)
def test_who_finds_another_lease_than_its_own_stops_before_any_write(found: Answer) -> None:
    candidate, script, _ = elected(found)
    assert candidate.is_leader()
    candidate.tick()
    assert (candidate.is_leader(), [sent.method for sent in script.sent[4:]]) == (False, ["GET"])


def test_the_term_after_a_deleted_lease_has_another_number() -> None:
    candidate, script, clock = elected(NONE, NONE, *FIRST[1:3], Answer(200, taken(2, version="20")))
    candidate.tick()
    candidate.tick()
    vacant = script.sent[-1].body["spec"]
    clock.now += 15.0
    candidate.tick()
    assert (vacant["leaseTransitions"], candidate.token()) == (1, 2)


def stream(*events: tuple[str, dict[str, Any]]) -> Answer:
    return Answer(200, b"".join(json.dumps({"type": kind, "object": obj}).encode() + b"\n" for kind, obj in events))


GIVEN = lease("", after="8")
LATER = lease("", after="8", version="10")


@pytest.mark.parametrize(
    ("history", "leads"),
    [
        (stream(("BOOKMARK", {"metadata": {"resourceVersion": "8"}}), ("MODIFIED", GIVEN)), True),
        (stream(("MODIFIED", lease("third")), ("MODIFIED", LATER)), False),
        (stream(("DELETED", lease("other")), ("ADDED", GIVEN)), False),
        (stream(("ADDED", GIVEN)), False),
        (stream(("ERROR", status_body(410, "Expired"))), False),
        (stream(), False),
        (Answer(403, status_body(403, "Forbidden")), False),
        (KubeTimeout("no answer"), False),
    ],
    ids=["released", "restored later", "made again", "made", "forgotten", "never written", "not allowed", "unanswered"],
)
def test_a_release_counts_if_the_server_saw_it_follow(history: Answer | KubeError, leads: bool) -> None:
    record = GIVEN if leads else LATER
    after = [Answer(200, taken(4, version="11"))] if leads else []
    script = Script(Answer(200, record), history, *after)
    candidate = leader(script, Clock())
    candidate.tick()
    assert (candidate.is_leader(), script.answers) == (leads, [])
    sent = script.sent[1]
    assert (sent.query["fieldSelector"], sent.query["resourceVersion"]) == ("metadata.name=l", "8")


def test_losing_the_record_to_another_ends_the_term_at_once() -> None:
    candidate, _, _ = elected(Answer(200, lease("other", version="10")))
    candidate.tick()
    assert (candidate.is_leader(), candidate.holder()) == (False, "other")


def test_resigning_stops_leading_first_and_then_gives_the_lease_back() -> None:
    heard = list[bool]()
    ours = Answer(200, taken(1))
    candidate, script, _ = elected(ours, Answer(409, status_body(409, "Conflict")), ours, ours, heard=heard)
    candidate.resign()
    assert (candidate.is_leader(), heard) == (False, [True, False])
    written = script.sent[-1]
    assert (written.method, written.body["spec"]["holderIdentity"]) == ("PUT", "")
    assert written.body["metadata"]["resourceVersion"] == "9"
    assert written.body["metadata"]["annotations"] == {RELEASED: "9"}


@pytest.mark.parametrize("found", [lease("other"), lease("me"), lease("")], ids=["another's", "namesake's", "nobody's"])
def test_resigning_leaves_alone_what_is_not_ours(found: dict[str, Any]) -> None:
    script = Script(Answer(200, found))
    leader(script, Clock()).resign()
    assert [sent.method for sent in script.sent] == ["GET"]


class Stored(Transport):
    """An API server with one Lease, which any user may have written."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.written = 0

    def answer(self, sent: Sent) -> Answer:
        if sent.method == "GET" and self.lease is None:
            return NONE
        if sent.method != "GET":
            self.written += 1
            version = {"name": "l", "uid": "u", "resourceVersion": str(self.written)}
            self.lease = {**sent.body, "metadata": {**sent.body["metadata"], **version}}
        assert self.lease is not None
        return Answer(200, self.lease)


def test_the_thread_campaigns_and_releases() -> None:
    stored, won = Stored(), threading.Event()
    candidate = Leader(
        Kube(stored),
        namespace="ns",
        name="l",
        identity="me",
        timing=LeaseTiming(0.5, 0.3, 0.1),
        on_change=lambda leads: won.set(),
    )
    candidate.start()
    assert won.wait(10)
    candidate.stop()
    assert stored.lease is not None
    holder, mark = stored.lease["spec"]["holderIdentity"], stored.lease["metadata"]["annotations"]
    assert (candidate.is_leader(), holder, mark) == (False, "", {RELEASED: str(stored.written - 1)})


class Slow(Script):
    """An API server on which every write takes time."""

    def __init__(self, clock: Clock, seconds: float, *answers: Answer) -> None:
        super().__init__(*answers)
        self.clock, self.seconds = clock, seconds

    def answer(self, sent: Sent) -> Answer:
        if sent.method != "GET":
            self.clock.now += self.seconds
        return super().answer(sent)


def test_a_term_counts_from_before_the_renewal_was_sent() -> None:
    clock = Clock()
    candidate = leader(Slow(clock, 4.0, *FIRST), clock)
    candidate.tick()  # 4 s for the new Lease, whose age counts from then on
    clock.now = 1019.0
    candidate.tick()
    clock.now = 1028.999
    assert candidate.is_leader()
    clock.now = 1029.0
    assert not candidate.is_leader()
