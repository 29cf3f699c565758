"""Which Workloads need an answer, and for how long the room promised to one counts against the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from allocator.features.kueue import workloads
from allocator.features.kueue.checks import FitChecks
from allocator.features.kueue.judge import Gang, TemplateReading, gang_of
from allocator.features.kueue.workloads import CHECKS, FLAVORS, WORKLOADS, UnreadableObject, Workload
from contract import names
from contract.encoding import codec
from tests.builders import PodBuilder, pod
from tests.unit.allocator.features.kueue.objects import CHECK, SINCE, check, flavor, pod_set, workload
from tests.unit.allocator.harness import request_of

JSON = dict[str, Any]
MEMORY = "gpufraction.io/gpu-memory"
HOLD = 60.0
EIGHT = pod("w").asks(MEMORY, "8Gi")
LATER = "2026-01-05T09:00:00Z"


class Bench:
    """The checks with a clock."""

    def __init__(self) -> None:
        self.now, self.age = 100.0, 0.0
        self.checks = FitChecks(hold=HOLD, age_of=lambda stamp: self.age)
        self.checks.changed(CHECKS, check(), self.now)

    def put(self, document: JSON) -> None:
        self.checks.changed(WORKLOADS, workloads.trim(document), self.now)

    def due(self) -> list[str]:
        return [each.name for each in self.checks.due(self.now)]

    def the(self, name: str) -> Workload:
        return next(each for each in self.checks.due(self.now) if each.name == name)

    def gang(self, found: Workload) -> Gang:
        gang = gang_of(found, self.checks.flavors, {}, TemplateReading())
        assert isinstance(gang, Gang)
        return gang

    def promise(self, name: str, *, extra: float = 0.0) -> Workload:
        """Answer Ready to one that waits."""
        found = self.the(name)
        self.checks.answered(found, self.gang(found), self.now, extra=extra)
        return found

    def left(self) -> dict[str, int]:
        """By Workload, the pods that are counted and have no share."""
        found = {}
        for held in self.checks.assumed(self.now):
            held.gang = held.gang or self.gang(held.workload)
            gang = held.left()
            found[held.workload.name] = gang.pods if gang is not None else 0
        return found


def placed(made: PodBuilder, name: str, *, scheduled: str = "", namespace: str = "default") -> JSON:
    """A pod with a share."""
    text = codec.request_to_text(request_of(made.json()))
    conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": scheduled}] if scheduled else []
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "annotations": {str(names.REQUEST): text, str(names.ALLOCATION): f"the share of {name}"},
        },
        "status": {"conditions": conditions},
    }


@pytest.fixture
def bench() -> Bench:
    return Bench()


WAITS = workload("w", pod_set("main", 2, EIGHT))
NOT_DUE = {
    "no quota": workload("w", pod_set("main", 1, EIGHT), conditions={"QuotaReserved": "False"}),
    "evicted": workload("w", pod_set("main", 1, EIGHT), conditions={"Evicted": "True"}),
    "finished": workload("w", pod_set("main", 1, EIGHT), conditions={"Finished": "True"}),
    "deactivated": workload("w", pod_set("main", 1, EIGHT), spec={"active": False}),
    "being deleted": workload("w", pod_set("main", 1, EIGHT), metadata={"deletionTimestamp": SINCE}),
    "answered": workload("w", pod_set("main", 1, EIGHT), state="Ready"),
    "tried again": workload("w", pod_set("main", 1, EIGHT), state="Retry"),
    "no admission": workload("w", pod_set("main", 1, EIGHT), status={"admission": None}),
    "of no check of ours": workload("w", pod_set("main", 1, EIGHT), status={"admissionChecks": []}),
}


@pytest.mark.parametrize("document", NOT_DUE.values(), ids=NOT_DUE.keys())
def test_what_waits_for_no_answer(bench: Bench, document: JSON) -> None:
    bench.put(document)
    assert bench.due() == []
    bench.put(WAITS)
    assert bench.due() == ["w"]
    bench.put(document)
    assert bench.due() == []


def test_only_the_checks_of_our_controller_are_answered() -> None:
    bench = Bench()
    bench.put(WAITS)
    bench.checks.changed(CHECKS, check(controller="kueue.x-k8s.io/provisioning-request"), bench.now)
    assert bench.due() == []
    bench.checks.changed(CHECKS, check(active=False), bench.now)
    assert bench.due() == ["w"]
    assert [each["metadata"]["name"] for each in bench.checks.inactive()] == [CHECK]
    bench.checks.deleted(CHECKS, check())
    assert (bench.due(), bench.checks.inactive()) == ([], ())


def test_the_higher_priority_comes_first_then_the_longer_wait(bench: Bench) -> None:
    high = {"priority": 9, "priorityClassRef": {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "p"}}
    bench.put(workload("late", pod_set("main", 1, EIGHT), since=LATER))
    bench.put(workload("early", pod_set("main", 1, EIGHT)))
    bench.put(workload("urgent", pod_set("main", 1, EIGHT), since=LATER, spec=high))
    assert bench.due() == ["urgent", "early", "late"]


def test_an_answered_version_is_not_judged_again_until_the_watch_shows_another(bench: Bench) -> None:
    bench.put(WAITS)
    bench.checks.answered(bench.the("w"), None, bench.now)
    bench.put(WAITS)
    assert bench.due() == []
    bench.put(workload("w", pod_set("main", 2, EIGHT), version="2"))
    assert bench.due() == ["w"]


def test_a_promise_ends_with_its_time(bench: Bench) -> None:
    bench.put(WAITS)
    bench.promise("w")
    bench.now += HOLD - 1
    assert bench.left() == {"w": 2}
    bench.now += 1
    assert bench.left() == {}


def test_a_promise_ends_pod_by_pod_as_they_get_their_shares(bench: Bench) -> None:
    bench.put(WAITS)
    bench.promise("w")
    bench.put(workload("w", pod_set("main", 2, EIGHT), state="Ready", version="2"))
    for seen in (
        placed(EIGHT, "a"),
        placed(EIGHT, "a"),
        placed(EIGHT, "x", namespace="other"),
        placed(pod("w").asks(MEMORY, "9Gi"), "y"),
        placed(EIGHT, "older", scheduled="2025-01-05T08:00:00Z"),
        {"metadata": {"name": "z", "namespace": "default"}},
    ):
        bench.checks.pod_seen(seen)
    assert bench.left() == {"w": 1}
    bench.checks.pod_seen(placed(EIGHT, "b", scheduled=LATER))
    assert bench.left() == {}


def test_a_share_counts_for_one_pod_set_only(bench: Bench) -> None:
    bench.put(workload("w", pod_set("driver", 1, EIGHT), pod_set("workers", 2, EIGHT)))
    bench.promise("w")
    for name in ("a", "b"):
        bench.checks.pod_seen(placed(EIGHT, name))
    assert bench.left() == {"w": 1}


ENDS: dict[str, JSON] = {
    "evicted": workload("w", pod_set("main", 2, EIGHT), conditions={"Evicted": "True"}, state="Ready"),
    "finished": workload("w", pod_set("main", 2, EIGHT), conditions={"Finished": "True"}, state="Ready"),
    "admitted anew": workload("w", pod_set("main", 2, EIGHT), since=LATER, version="5"),
    "another of its name": workload("w", pod_set("main", 2, EIGHT), version="5", metadata={"uid": "other"}),
}


@pytest.mark.parametrize("document", ENDS.values(), ids=ENDS.keys())
def test_a_promise_ends_with_its_workload(bench: Bench, document: JSON) -> None:
    bench.put(WAITS)
    bench.promise("w")
    bench.put(document)
    assert bench.left() == {}


def test_a_promise_ends_when_its_workload_is_deleted(bench: Bench) -> None:
    bench.put(WAITS)
    bench.promise("w")
    bench.checks.deleted(WORKLOADS, WAITS)
    assert bench.left() == {}
    bench.put(WAITS)
    bench.promise("w")
    bench.checks.listed(WORKLOADS, [])
    assert (bench.left(), bench.due()) == ({}, [])


def test_another_replica_counts_what_the_leader_promised(bench: Bench) -> None:
    bench.age = 20.0
    bench.put(workload("w", pod_set("main", 2, EIGHT), state="Ready"))
    assert bench.left() == {"w": 2}
    bench.now += HOLD - 20.0
    assert bench.left() == {}
    bench.age = HOLD
    bench.put(workload("old", pod_set("main", 2, EIGHT), state="Ready"))
    assert bench.left() == {}, "what was started long ago is not counted"


@pytest.mark.parametrize("check_first", [True, False])
def test_what_another_leader_promised_counts_while_other_checks_wait(check_first: bool) -> None:
    bench = Bench()
    entry = {"lastTransitionTime": SINCE, "message": ""}
    entries = [{"name": "another", "state": "Pending", **entry}, {"name": CHECK, "state": "Ready", **entry}]
    found = workload("w", pod_set("main", 2, EIGHT), status={"admissionChecks": entries})
    if check_first:
        bench.put(found)
    else:
        bench.checks.listed(CHECKS, [])
        bench.put(found)
        assert bench.left() == {}, "nobody knows yet that one of the checks is ours"
        bench.checks.changed(CHECKS, check(), bench.now)
    assert (bench.left(), bench.due()) == ({"w": 2}, [])
    bench.now += HOLD
    bench.age = HOLD
    bench.put(found)
    assert bench.left() == {}


def test_a_write_that_failed_promises_nothing_and_one_without_an_answer_may(bench: Bench) -> None:
    bench.put(WAITS)
    bench.checks.not_answered(bench.promise("w"), bench.now, unknown=False)
    assert (bench.left(), bench.due()) == ({}, []), "a write that was refused is not repeated every second"
    bench.now += 60
    found = bench.promise("w")
    bench.checks.not_answered(found, bench.now, unknown=True)
    assert (bench.left(), bench.due(), bench.checks.is_assumed(found)) == ({"w": 2}, ["w"], True)


def test_a_repeated_write_that_is_refused_ends_no_promise_in_doubt(bench: Bench) -> None:
    """The first write took effect, so the version that both name no longer exists. The watch shows that later."""
    bench.put(WAITS)
    bench.checks.not_answered(bench.promise("w", extra=HOLD), bench.now, unknown=True)
    bench.checks.pod_seen(placed(EIGHT, "a"))
    bench.checks.not_answered(bench.promise("w"), bench.now, unknown=False)
    assert (bench.left(), bench.due()) == ({"w": 1}, []), "its first pod has its share"
    bench.put(workload("w", pod_set("main", 2, EIGHT), state="Ready", version="2"))
    assert bench.left() == {"w": 1}
    bench.now += 2 * HOLD - 1
    assert bench.left() == {"w": 1}, "the time for new nodes stays"
    bench.now += 1
    assert bench.left() == {}


def test_a_repeated_write_without_an_answer_is_counted_from_then_on(bench: Bench) -> None:
    bench.put(WAITS)
    bench.checks.not_answered(bench.promise("w"), bench.now, unknown=True)
    bench.now += HOLD - 1
    bench.promise("w")
    bench.now += HOLD - 1
    assert bench.left() == {"w": 2}


def test_a_later_version_that_waits_ends_the_doubt(bench: Bench) -> None:
    """A write names its version, so the write of the earlier version can no longer take effect."""
    bench.put(WAITS)
    bench.checks.not_answered(bench.promise("w"), bench.now, unknown=True)
    bench.put(workload("w", pod_set("main", 2, EIGHT), version="2"))
    bench.checks.not_answered(bench.promise("w"), bench.now, unknown=False)
    assert bench.left() == {}


def test_what_cannot_be_judged_is_tried_again_later_or_when_it_changes(bench: Bench) -> None:
    bench.put(WAITS)
    bench.checks.set_aside(bench.the("w"), bench.now)
    bench.now += 59
    assert bench.due() == []
    bench.now += 1
    assert bench.due() == ["w"]
    bench.checks.set_aside(bench.the("w"), bench.now)
    bench.put(workload("w", pod_set("main", 2, EIGHT), version="2"))
    assert bench.due() == ["w"]


def test_a_write_that_is_refused_since_the_workload_changed_waits_for_nothing(bench: Bench) -> None:
    """The watch may deliver the change before the write's refusal arrives."""
    bench.put(WAITS)
    judged = bench.promise("w")
    bench.put(workload("w", pod_set("main", 2, EIGHT), version="2"))
    bench.checks.not_answered(judged, bench.now, unknown=False)
    assert (bench.left(), bench.due(), bench.the("w").version) == ({}, ["w"], "2")


ODD: Sequence[JSON] = (
    {**WAITS, "spec": {"podSets": "none"}},
    {**WAITS, "spec": {"podSets": [{"name": "main", "count": "many", "template": {}}]}},
    {**WAITS, "spec": {"podSets": [7]}},
    {**WAITS, "status": {**WAITS["status"], "admission": "yes"}},
    {**WAITS, "status": {**WAITS["status"], "admissionChecks": [{"state": "Pending"}]}},
    {**WAITS, "status": {**WAITS["status"], "conditions": [5]}},
)


@pytest.mark.parametrize("document", ODD)
def test_a_workload_of_another_shape_counts_as_absent(bench: Bench, document: JSON) -> None:
    bench.put(workload("good", pod_set("main", 1, EIGHT)))
    bench.put(WAITS)
    with pytest.raises(UnreadableObject, match="default/w"):
        bench.put(document)
    assert "good" in bench.due()


def test_flavors_are_followed(bench: Bench) -> None:
    bench.checks.changed(FLAVORS, flavor("x", {"b": "2", "a": "1"}), bench.now)
    assert bench.checks.flavors["x"].labels == (("a", "1"), ("b", "2"))
    bench.checks.listed(FLAVORS, [])
    assert bench.checks.flavors == {}
