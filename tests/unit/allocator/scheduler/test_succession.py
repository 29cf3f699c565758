"""A new leader writes to the waiting pods before it decides, and fails pods of the previous one that come too late."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from allocator.cache.podinfo import pod_event
from allocator.features.elasticgpuclaims import objects
from allocator.features.elasticgpuclaims.changes import ClaimsListed
from allocator.queue.records import StatusUpdate
from allocator.scheduler.events import BindFailed, BindSucceeded, FencePods, PodDeleted, TickPhase, pods_listed
from allocator.workers import binder
from allocator.workers.fence import Fencer
from contract import names, pods
from contract.encoding.protocol import Placed, Wait
from contract.reasons.pods import AnswerReason
from runtime.kubernetes.client import Kube
from tests.builders import PodBuilder, node, pod
from tests.unit.allocator.apiserver import ApiServer
from tests.unit.allocator.harness import SchedulerHarness, admitted, fail_late, fence, late_pods, question
from tests.wires import Fate

JSON = dict[str, Any]
T = TypeVar("T")
ONE_GPU = node("n").gpu(mib=16384)
OTHERS = "example.com/hold"


class Leader:
    """A harness that was elected, its fencer with the shared API server, and the messages that it writes."""

    def __init__(self, api: ApiServer, term: int, writers: Executor | None = None) -> None:
        self.api, self.harness = api, SchedulerHarness([ONE_GPU], elected=True, term=term)
        self.controller = self.harness.controller
        self.failed = 0
        self.fencer = Fencer(
            Kube(api.wire),
            self.controller,
            word=lambda: f"word-{term}",
            timeout=1,
            writers=writers or ThreadPoolExecutor(1),
            failed=self._count,
        )
        self.controller.handle(pods_listed([pods.trim(p) for p in api.listed()], term=term))
        self.controller.handle(ClaimsListed(objects.SHARES, (), term=term))
        api.events.clear()

    def _count(self) -> None:
        self.failed += 1

    def see(self) -> None:
        """The watch delivers what has happened."""
        while self.api.events:
            kind, seen = self.api.events.popleft()
            if kind == "put":
                self.controller.handle(pod_event(pods.trim(seen)))
            else:
                self.controller.handle(PodDeleted(pods.uid(seen)))


def worker(name: str, size: str = "16Gi") -> PodBuilder:
    return pod(name).asks("gpufraction.io/gpu-memory", size)


def words(api: ApiServer) -> dict[str, str]:
    """By pod, what a leader has written on it."""
    found = {key: pods.annotations_of(each).get(names.FENCE, "") for key, each in api.pods.items()}
    return {key: word for key, word in found.items() if word}


def an_orphan(api: ApiServer) -> Any:
    """A placement that a leader has decided, and whose write is delayed in transit."""
    before = Leader(api, 1)
    fence(before.controller, before.fencer)
    api.create(admitted(worker("a"), gated=True))
    before.see()
    ((binding,), _) = before.controller.schedule_pending()
    return binding


def test_a_placement_of_the_leader_before_finds_its_pod_touched() -> None:
    api = ApiServer()
    binding = an_orphan(api)
    leader = Leader(api, 2)
    answer = leader.controller.reserve(question(worker("b")))
    assert isinstance(answer, Wait)
    assert answer.code == AnswerReason.NOT_LEADING
    assert leader.controller.schedule_pending() == ([], [])
    fence(leader.controller, leader.fencer)
    assert words(api) == {"default/a": "word-2"}
    assert isinstance(binder.write(Kube(api.wire), binding, 0), BindFailed)
    assert [each.pod.key for each in leader.controller.schedule_pending()[0]] == ["default/a"]


def test_the_leaders_own_placement_names_the_version_that_it_made() -> None:
    api = ApiServer()
    an_orphan(api)
    leader = Leader(api, 2)
    fence(leader.controller, leader.fencer)
    leader.see()
    ((binding,), _) = leader.controller.schedule_pending()
    assert isinstance(binder.write(Kube(api.wire), binding, 0), BindSucceeded)


def test_only_those_are_touched_who_may_have_been_placed() -> None:
    api = ApiServer()
    held = admitted(worker("held"), gated=True)
    held["spec"]["schedulingGates"].append({"name": OTHERS})
    api.create(held)
    api.create(pod("none").json())
    leader = Leader(api, 1)
    fence(leader.controller, leader.fencer)
    assert (words(api), api.wire.requests) == ({}, [])
    assert leader.controller.tick(TickPhase.TAKE_OVER) == []


def test_nobody_is_touched_twice_in_one_leadership() -> None:
    api = ApiServer()
    api.create(admitted(worker("a"), gated=True))
    leader = Leader(api, 1)
    for _ in range(3):
        fence(leader.controller, leader.fencer)
    assert len(api.wire.requests) == 1


class Batches(Executor):
    """Writes one after another, and records how many were started together."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def map(self, fn: Callable[..., T], *iterables: Iterable[Any], timeout: Any = None, chunksize: int = 1) -> Any:
        """The answers, in order."""
        found = [fn(*each) for each in zip(*iterables, strict=True)]
        self.sizes.append(len(found))
        return iter(found)


def test_an_api_server_that_does_not_answer_in_time_gets_fewer_requests() -> None:
    api = ApiServer()
    for number in range(8):
        api.create(admitted(worker(f"p{number}"), gated=True))
    writers = Batches()
    leader = Leader(api, 1, writers)
    api.wire.fates = ["dropped"] * 8
    fence(leader.controller, leader.fencer)
    fence(leader.controller, leader.fencer)
    assert (writers.sizes, len(words(api))) == ([8, 2, 4, 2], 8)


UNTOUCHED: dict[str, tuple[list[Fate], int]] = {
    "an API server that is away is asked again": (["unreachable", "dropped", "answered"], 3),
    "an answer that was lost is asked for again": (["lost-and-done", "answered"], 2),
    "a policy that refuses is passed over": (["refused"], 1),
}


@pytest.mark.parametrize(("fates", "passes"), UNTOUCHED.values(), ids=UNTOUCHED.keys())
def test_until_all_are_touched_nothing_is_decided(fates: list[Fate], passes: int) -> None:
    api = ApiServer()
    api.create(admitted(worker("a"), gated=True))
    leader = Leader(api, 1)
    api.wire.fates = list(fates)
    for done in range(passes):
        assert leader.controller.decides() is False, f"after {done} passes"
        fence(leader.controller, leader.fencer)
    assert leader.controller.decides() is True


def test_a_deleted_or_recreated_pod_need_not_be_failed() -> None:
    api = ApiServer()
    for name in ("gone", "anew"):
        api.create(admitted(worker(name), gated=True))
    leader = Leader(api, 1)
    api.delete("default/gone")
    api.delete("default/anew")
    api.create(admitted(worker("anew"), gated=True))
    fence(leader.controller, leader.fencer)
    assert (words(api), leader.controller.decides()) == ({}, True)


def test_a_leader_whose_time_is_over_touches_nobody() -> None:
    api = ApiServer()
    api.create(admitted(worker("a"), gated=True))
    leader = Leader(api, 1)
    (order,) = leader.controller.tick(TickPhase.TAKE_OVER)
    assert isinstance(order, FencePods)
    leader.harness.leads, leader.harness.term = False, None
    leader.fencer.fence(order)
    assert words(api) == {}


# -- pods that come too late --------------------------------------------------------------------------------------


def admitted_by(leader: Leader, name: str, size: str = "16Gi") -> JSON:
    """The pod as it will be stored, with the share that the leader has reserved for it."""
    answer = leader.controller.reserve(question(worker(name, size)))
    assert isinstance(answer, Placed)
    return admitted(worker(name, size).on("n"), allocation=answer.allocation)


def successor(api: ApiServer) -> tuple[Leader, JSON]:
    """A leader, and a pod with half of a GPU that the previous leader has admitted and that is not stored yet."""
    before = Leader(api, 1)
    fence(before.controller, before.fencer)
    made = admitted_by(before, "late", "8Gi")
    leader = Leader(api, 2)
    fence(leader.controller, leader.fencer)
    return leader, made


def test_a_pod_whose_share_was_given_away_by_then_is_failed_with_a_condition() -> None:
    api = ApiServer()
    leader, made = successor(api)
    api.create(admitted_by(leader, "b"))
    api.create(made)
    leader.see()
    assert leader.controller.look().overcommitted == 1
    fail_late(leader.controller, leader.fencer)
    late = api.pods["default/late"]
    assert late["spec"]["activeDeadlineSeconds"] == 1
    assert set(pods.annotations_of(late)) == {names.REQUEST, names.ALLOCATION}, "no container sees a card any more"
    leader.see()
    assert leader.controller.look().confirmed == 2, "until it has ended it has its share"
    api.end_what_is_past_its_deadline()
    leader.see()
    assert (leader.failed, leader.controller.look().overcommitted, leader.controller.look().confirmed) == (1, 0, 1)
    updates = {n.key: n for n in leader.controller.schedule_pending()[1] if isinstance(n, StatusUpdate)}
    late_update = updates["default/late"]
    assert (late_update.code, late_update.warning, late_update.allocated) == ("GPUShareTaken", "GPUShareTaken", False)
    assert late_update.reason.startswith("GPU 0 of node n: more is allocated than the GPU has: 24576 of 16384 MiB")
    fail_late(leader.controller, leader.fencer)
    assert leader.failed == 1


def test_a_pod_that_still_fits_is_welcome() -> None:
    api = ApiServer()
    leader, made = successor(api)
    api.create(admitted_by(leader, "b", "8Gi"))
    api.create(made)
    leader.see()
    fail_late(leader.controller, leader.fencer)
    assert (leader.failed, leader.controller.look().confirmed) == (0, 2)


def test_so_is_one_on_whose_gpu_somebody_ends_before_it_is_failed() -> None:
    api = ApiServer()
    leader, made = successor(api)
    api.create(admitted_by(leader, "b"))
    api.create(made)
    leader.see()
    api.delete("default/b")
    leader.see()
    fail_late(leader.controller, leader.fencer)
    assert (leader.failed, leader.controller.look().overcommitted) == (0, 0)


def test_nothing_more_is_placed_on_a_gpu_that_is_promised_twice() -> None:
    api = ApiServer()
    leader, made = successor(api)
    api.create(admitted_by(leader, "b"))
    api.create(made)
    leader.see()
    api.create(admitted(worker("tiny", "1Mi"), gated=True))
    leader.see()
    assert leader.controller.schedule_pending()[0] == []


def test_it_is_found_in_a_list_too_once_all_of_it_is_there() -> None:
    api = ApiServer()
    leader, made = successor(api)
    other = api.create(admitted_by(leader, "b"))
    leader.see()
    made = api.create(made)
    late, kept = pods.trim(made), pods.trim(other)
    leader.controller.handle(pods_listed([late], last=False))
    assert late_pods(leader.controller) == []
    leader.controller.handle(pods_listed([kept], first=False))
    assert [one.key for one in late_pods(leader.controller)] == ["default/late"]


def test_one_that_could_not_be_read_is_read_again() -> None:
    api = ApiServer()
    leader, made = successor(api)
    api.create(admitted_by(leader, "b"))
    api.create(made)
    leader.see()
    api.wire.fates = ["unreachable", "answered"]
    fail_late(leader.controller, leader.fencer)
    assert (leader.failed, len(late_pods(leader.controller))) == (0, 1)
    fail_late(leader.controller, leader.fencer)
    assert (leader.failed, late_pods(leader.controller)) == (1, [])


def test_whoever_does_not_lead_fails_nobody() -> None:
    api = ApiServer()
    leader, made = successor(api)
    api.create(admitted_by(leader, "b"))
    leader.see()
    leader.harness.leads, leader.harness.term = False, None
    api.create(made)
    leader.see()
    fail_late(leader.controller, leader.fencer)
    assert (leader.failed, api.pods["default/late"]["spec"].get("activeDeadlineSeconds")) == (0, None)


def test_what_is_overcommitted_when_a_term_begins_is_only_reported() -> None:
    api = ApiServer()
    leader, made = successor(api)
    api.create(admitted_by(leader, "b"))
    api.create(made)
    third = Leader(api, 3)
    fence(third.controller, third.fencer)
    assert (late_pods(third.controller), third.controller.look().overcommitted) == ([], 1)
