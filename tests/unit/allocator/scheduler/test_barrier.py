"""
A new leader decides when its watch of pods has shown a write of its own, and then tells pods what they should have
learnt before.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from allocator.cache.podinfo import pod_event
from allocator.features.elasticgpuclaims import objects
from allocator.features.elasticgpuclaims.changes import ClaimsListed
from allocator.queue.records import StatusUpdate
from allocator.scheduler.events import (
    BarrierWritten,
    FencePods,
    PodDeleted,
    ReadUntold,
    Relist,
    TickPhase,
    UntoldRead,
    WriteBarrier,
    pods_listed,
)
from allocator.workers.fence import Fencer
from contract import names, pods
from runtime.kubernetes.client import Kube
from tests.builders import PodBuilder, node, pod
from tests.unit.allocator.apiserver import ApiServer
from tests.unit.allocator.harness import SchedulerHarness, admitted
from tests.wires import Fate

JSON = dict[str, Any]
NODE = node("n").gpu(mib=16384)
SHARES = ClaimsListed(objects.SHARES, (), term=2)


def share(name: str) -> PodBuilder:
    return pod(name).asks("gpufraction.io/gpu-memory", "1Gi")


def holder(api: ApiServer, name: str) -> JSON:
    """A pod with a share, stored."""
    bench = SchedulerHarness([NODE])
    made = api.create(admitted(share(name), gated=True))
    bench.controller.handle(pod_event(pods.trim(made)))
    ((binding,), _) = bench.controller.schedule_pending()
    return made | api.create(admitted(share(f"{name}-holds").on("n"), allocation=binding.allocation))


class Standby:
    """A replica that has followed the pods of the API server, and begins to lead in term 2."""

    def __init__(self, api: ApiServer, *, synced: bool = True) -> None:
        self.api = api
        self.harness = SchedulerHarness([NODE], elected=True, leads=False, synced=False)
        self.controller = self.harness.controller
        if synced:
            self.harness.sync(api.listed())
        api.events.clear()
        self.words = 0
        self.fencer = Fencer(
            Kube(api.wire),
            self.controller,
            word=self._word,
            timeout=1,
            writers=ThreadPoolExecutor(1),
            failed=lambda: None,
        )

    def _word(self) -> str:
        self.words += 1
        return f"word-{self.words}"

    def lead(self, term: int = 2) -> None:
        self.harness.leads, self.harness.term = True, term

    def follow(self) -> None:
        self.harness.leads, self.harness.term = False, None

    def take_over(self) -> list[object]:
        """One pass: barriers and fences are written. Returns its other effects."""
        left = []
        for effect in self.controller.tick(TickPhase.TAKE_OVER):
            if isinstance(effect, WriteBarrier):
                self.fencer.write_barrier(effect)
            elif isinstance(effect, FencePods):
                self.fencer.fence(effect)
            else:
                left.append(effect)
        return left

    def decides(self) -> bool:
        """Whether it decides, after it has fenced what it must."""
        self.take_over()
        return self.controller.decides()

    def see(self, most: int = 100) -> None:
        """The watch delivers some of what has happened."""
        while self.api.events and most:
            most -= 1
            kind, seen = self.api.events.popleft()
            if kind == "put":
                self.controller.handle(pod_event(pods.trim(seen)))
            else:
                self.controller.handle(PodDeleted(pods.uid(seen)))

    def told(self) -> dict[str, str]:
        """The codes that pods are told, by their keys."""
        _, reports = self.controller.schedule_pending()
        return {each.key: each.code for each in reports if isinstance(each, StatusUpdate)}


def waiting() -> tuple[ApiServer, Standby]:
    """A new leader that has written the one pod with a share, which its watch has yet to show."""
    api = ApiServer()
    holder(api, "a")
    standby = Standby(api)
    standby.lead()
    standby.controller.handle(SHARES)
    standby.take_over()
    return api, standby


def fenced(api: ApiServer) -> dict[str, str]:
    found = {key: pods.annotations_of(each).get(names.FENCE, "") for key, each in api.pods.items()}
    return {key: word for key, word in found.items() if word}


def test_it_decides_when_its_watch_shows_its_write_without_a_list() -> None:
    api = ApiServer()
    holder(api, "a")
    standby = Standby(api)
    api.create(admitted(share("former"), gated=True))  # written before it leads, and not delivered yet
    standby.lead()
    assert standby.take_over() == [Relist(2, pods=False)]
    assert fenced(api) == {"default/a-holds": "word-1"}
    standby.controller.handle(SHARES)
    standby.see(1)
    assert standby.controller.decides() is False, "an earlier write"
    standby.see(1)
    assert standby.take_over() == []
    assert (fenced(api), standby.controller.decides()) == (
        {"default/a-holds": "word-1", "default/a": "word-2", "default/former": "word-2"},
        True,
    )
    standby.see()
    standby.controller.check_invariants()


def test_the_watch_may_be_faster_than_the_answer() -> None:
    api = ApiServer()
    holder(api, "a")
    standby = Standby(api)
    standby.lead()
    standby.controller.handle(SHARES)
    _, order = standby.controller.tick(TickPhase.TAKE_OVER)
    assert isinstance(order, WriteBarrier)
    Kube(api.wire).patch_merge(
        f"/api/v1/namespaces/default/pods/{order.key.split('/')[1]}",
        {"metadata": {"annotations": {str(names.FENCE): "early"}}},
    )
    standby.see()
    assert not standby.decides()
    standby.controller.handle(BarrierWritten(1, order.uid, "early"))
    standby.controller.handle(BarrierWritten(2, "another", "early"))
    assert not standby.decides()
    standby.controller.handle(BarrierWritten(2, order.uid, "early"))
    assert standby.decides()


@pytest.mark.parametrize("word", ["", "another", "word-"])
def test_any_other_token_does_not_count(word: str) -> None:
    api, standby = waiting()
    api.events.clear()
    made = api.pods["default/a-holds"]
    annotations = {**made["metadata"]["annotations"], names.FENCE: word}
    standby.controller.handle(
        pod_event(pods.trim({**made, "metadata": {**made["metadata"], "annotations": annotations}}))
    )
    assert not standby.decides()


LISTS: dict[str, tuple[int, list[Fate], list[object]]] = {
    "no pod can be written: all are listed": (0, [], [Relist(2)]),
    "the second is written": (2, ["refused", "answered"], []),
    "an answer was lost: another is written": (2, ["lost-and-done", "answered"], []),
    "three were refused: all are listed": (4, ["refused"] * 3, [Relist(2)]),
}


@pytest.mark.parametrize(("holders", "fates", "after"), LISTS.values(), ids=LISTS.keys())
def test_another_pod_is_tried_and_in_the_end_pods_are_listed(
    holders: int, fates: list[Fate], after: list[object]
) -> None:
    api = ApiServer()
    for number in range(holders):
        holder(api, f"p{number}")
    standby = Standby(api)
    standby.lead()
    api.wire.fates = list(fates)
    effects = [effect for _ in range(6) for effect in standby.take_over() if effect != Relist(2, pods=False)]
    assert effects == after
    standby.see()
    standby.controller.handle(SHARES)
    assert standby.decides() is not bool(after)
    standby.controller.handle(pods_listed(map(pods.trim, api.listed()), term=2))
    assert standby.decides()


def test_a_watch_that_shows_nothing_is_replaced_by_a_list() -> None:
    api = ApiServer()
    holder(api, "a")
    standby = Standby(api)
    standby.lead()
    assert standby.take_over() == [Relist(2, pods=False)]
    standby.harness.now += 5.0
    assert standby.take_over() == []
    standby.harness.now += 0.1
    assert standby.take_over() == [Relist(2)]
    standby.harness.now += 60.0
    assert standby.take_over() == [], "once"


def test_a_first_list_that_has_not_ended_begins_again() -> None:
    standby = Standby(ApiServer(), synced=False)
    standby.lead()
    assert standby.take_over() == [Relist(2)]
    standby.harness.sync()
    assert standby.take_over() == []
    assert not standby.controller.decides()


def test_a_list_of_the_same_informer_counts_at_its_end() -> None:
    """A watch that was cut lists again, perhaps with the write already."""
    api, standby = waiting()
    listed = [pods.trim(each) for each in api.listed()]
    standby.controller.handle(pods_listed(reversed(listed), last=False, term=1))
    assert not standby.decides()
    standby.controller.handle(pods_listed((), first=False, term=1))
    assert standby.decides()


def test_a_write_of_an_earlier_term_does_not_count_in_the_next() -> None:
    _, standby = waiting()
    standby.follow()
    standby.lead(4)
    standby.see()
    assert standby.take_over() == [Relist(4, pods=False)]
    standby.controller.handle(ClaimsListed(objects.SHARES, (), term=4))
    assert not standby.decides()
    standby.see()
    assert standby.decides()


# -- what pods should have learnt before ------------------------------------------------------------------------------


def that_waited(made: JSON) -> JSON:
    condition = {"type": str(names.ALLOCATED_CONDITION), "status": "False", "reason": "Memory", "message": "full"}
    return {**made, "status": {"conditions": [condition]}}


def untold() -> tuple[ApiServer, Standby]:
    """A replica that leads now. Before, its watch has shown a pod with a share whose condition says that it waits."""
    api = ApiServer()
    holder(api, "a")
    standby = Standby(api)
    api.create({**that_waited(api.pods["default/a-holds"]), "metadata": _another(api.pods["default/a-holds"], "b")})
    standby.see()
    standby.lead()
    return api, standby


def _another(made: JSON, name: str) -> JSON:
    annotations = dict(made["metadata"]["annotations"])
    annotations[names.ALLOCATION] = annotations[names.ALLOCATION].replace("id-1", f"id-{name}")
    return {**made["metadata"], "name": name, "annotations": annotations}


def ready(standby: Standby) -> list[object]:
    """It catches up; what it does then."""
    standby.controller.handle(SHARES)
    standby.take_over()
    standby.see()
    return standby.take_over()


def test_a_pod_that_should_have_learnt_something_is_read_and_told() -> None:
    api, standby = untold()
    (order,) = ready(standby)
    made = api.pods["default/b"]
    assert order == ReadUntold("default/b", pods.uid(made), 1)
    assert standby.take_over() == [], "once"
    standby.controller.handle(UntoldRead(pods.uid(made), 1, pod_event(made, pods.trim)))
    assert standby.told()["default/b"] == "Allocated"
    standby.controller.check_invariants()


def shown(api: ApiServer, standby: Standby) -> UntoldRead:
    old = pod_event(api.pods["default/b"], pods.trim)
    api.change("default/b", conditions=[{"type": str(names.ALLOCATED_CONDITION), "status": "True"}])
    standby.see()
    return UntoldRead(old.uid, 1, old)


def gone(api: ApiServer, standby: Standby) -> UntoldRead:
    old = pod_event(api.pods["default/b"], pods.trim)
    api.delete("default/b")
    standby.see()
    return UntoldRead(old.uid, 1, old)


def gone_unseen(api: ApiServer, standby: Standby) -> UntoldRead:
    uid = pods.uid(api.pods["default/b"])
    api.delete("default/b")
    return UntoldRead(uid, 1, None, deleted=True)


OVERTAKEN: dict[str, tuple[Callable[[ApiServer, Standby], UntoldRead], int]] = {
    "the watch has brought that it was told": (shown, 2),
    "the watch has brought its end": (gone, 1),
    "it does not exist, which the watch has yet to bring": (gone_unseen, 1),
}


@pytest.mark.parametrize(("happens", "confirmed"), OVERTAKEN.values(), ids=OVERTAKEN.keys())
def test_what_was_read_does_not_count_if_the_watch_has_brought_something_newer(
    happens: Callable[[ApiServer, Standby], UntoldRead], confirmed: int
) -> None:
    api, standby = untold()
    assert len(ready(standby)) == 1
    standby.controller.handle(happens(api, standby))
    assert ("default/b" in standby.told(), standby.controller.look().confirmed) == (False, confirmed)
    assert standby.take_over() == []
    standby.controller.check_invariants()


def test_a_pod_that_cannot_be_read_is_read_again() -> None:
    api, standby = untold()
    uid = pods.uid(api.pods["default/b"])
    assert ready(standby) == [ReadUntold("default/b", uid, 1)]
    standby.controller.handle(UntoldRead(uid, 1, None))
    assert standby.take_over() == [ReadUntold("default/b", uid, 2)]
    other = pod_event({**api.pods["default/b"], "metadata": {**api.pods["default/b"]["metadata"], "uid": "new"}})
    standby.controller.handle(UntoldRead(uid, 2, other))
    assert standby.take_over() == [ReadUntold("default/b", uid, 3)]


def test_the_answer_to_an_earlier_read_does_not_count() -> None:
    """It may be older than what the watch has brought meanwhile, while this replica did not lead."""
    api, standby = untold()
    ready(standby)
    uid, old = pods.uid(api.pods["default/b"]), pod_event(api.pods["default/b"], pods.trim)
    standby.follow()
    api.change("default/b", phase="Running")
    standby.see()
    standby.lead()
    assert standby.take_over() == [ReadUntold("default/b", uid, 2)]
    standby.controller.handle(UntoldRead(uid, 1, old))
    assert "default/b" not in standby.told()
    standby.controller.handle(UntoldRead(uid, 2, pod_event(api.pods["default/b"], pods.trim)))
    assert standby.told()["default/b"] == "Allocated"


def test_what_it_had_told_itself_and_pods_did_not_show_is_told_again() -> None:
    api, standby = untold()
    ready(standby)
    standby.controller.handle(UntoldRead("unknown", 1, None, deleted=True))
    made = api.pods["default/b"]
    standby.controller.handle(pod_event(pods.trim(made)))
    standby.controller.schedule_pending()  # its leadership ends before this is written
    standby.follow()
    standby.lead(4)
    standby.controller.handle(ClaimsListed(objects.SHARES, (), term=4))
    standby.take_over()
    standby.see()
    assert ("default/b", pods.uid(made)) in [
        (each.key, each.uid) for each in standby.take_over() if isinstance(each, ReadUntold)
    ]


def test_where_too_many_should_have_learnt_something_all_are_listed() -> None:
    api = ApiServer()
    holder(api, "a")
    standby, made = Standby(api), that_waited(api.pods["default/a-holds"])
    for number in range(501):
        api.create({**made, "metadata": _another(made, f"p{number}")})
    standby.see(501)
    standby.lead()
    assert ready(standby) == [Relist(2)]
