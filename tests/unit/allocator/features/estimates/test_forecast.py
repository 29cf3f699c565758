"""The queue simulated into the future: which pod starts when, after which pod's end, and what cannot be predicted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.features.estimates.forecast import MOST_WAITING, Estimate, Forecast, NoEstimate, Waiting, forecast
from allocator.features.estimates.part import outcome
from allocator.features.estimates.scale import Scale
from allocator.features.estimates.words import said
from contract.encoding.quantity import MIB
from contract.model import Compute, FractionRequest, Gpu, NodeState, PodRequest, Usage
from contract.scheduling import fit, nodeinfo
from contract.scheduling.demand import per_gpu, shares_of
from contract.scheduling.filters import DEFAULT_LIMITS
from contract.scheduling.needs import PodNeeds, SchedulingRequest
from contract.scheduling.nodeinfo import AllocatedPod

NOW = 1_000_000.0
CARD = 10_000


def ask(memory: int, count: int = 1) -> SchedulingRequest:
    fraction = FractionRequest("main", count, memory=memory * MIB)
    return SchedulingRequest(PodRequest("native", (fraction,)), PodNeeds(Compute(0, 0, 0, 1)))


class Cluster:
    """Nodes with cards of 10,000 MiB, and pods on them."""

    def __init__(self, *nodes: str, cards: int = 1) -> None:
        room = Compute(1_000_000, 1 << 40, 0, 110)
        self.nodes = {
            name: NodeState(
                name,
                tuple(Gpu(f"GPU-{name}-{n}", n, "T4", CARD * MIB, CARD * MIB) for n in range(cards)),
                (Usage(),) * cards,
                allocatable=room,
            )
            for name in nodes
        }
        self.holders: dict[str, list[AllocatedPod]] = {name: [] for name in nodes}
        self.ends: dict[str, float] = {}

    def has_room(self, node: str, memory: int) -> bool:
        """Whether a pod that requests this much fits on the node."""
        return isinstance(fit.fit(self.nodes[node], ask(memory, 1).request, DEFAULT_LIMITS, fit.least_free), fit.Fit)

    def runs(self, key: str, node: str, memory: int, *, ends: float | None, count: int = 1) -> None:
        """A pod that holds this much; ends: in how many seconds from now."""
        wanted, state = ask(memory, count), self.nodes[node]
        found = fit.fit(state, wanted.request, DEFAULT_LIMITS, fit.least_free)
        assert isinstance(found, fit.Fit), found
        given_ = fit.allocate(state, wanted.request, found.chosen)
        self.nodes[node] = nodeinfo.booked(state, wanted, given_)
        demands = per_gpu(wanted.request, shares_of(given_))
        self.holders[node].append(AllocatedPod(key, key, node, 0, 0, demands, wanted.needs.compute))
        if ends is not None:
            self.ends[key] = NOW + ends

    def forecast(self, *queue: Waiting) -> list[Forecast]:
        found = forecast(tuple(self.nodes.values()), self.holders, self._left, queue, DEFAULT_LIMITS, NOW)
        return [found[pod.uid] for pod in queue]

    def _left(self, pod: AllocatedPod) -> tuple[float, ...]:
        return (max(0.0, self.ends[pod.uid] - NOW),) if pod.uid in self.ends else ()


def waits(key: str, memory: int, *, lasts: float | None = None, count: int = 1) -> Waiting:
    return Waiting(key, key, ask(memory, count), () if lasts is None else (lasts,))


def test_a_pod_starts_when_the_first_pod_ends_whose_room_it_needs() -> None:
    cluster = Cluster("a", "b")
    cluster.runs("t/long", "a", CARD, ends=9000)
    cluster.runs("t/short", "b", CARD, ends=600)
    assert cluster.forecast(waits("t/next", CARD)) == [Estimate(NOW + 600, "t/short")]


def test_several_pods_must_end_and_the_last_is_the_cause() -> None:
    cluster = Cluster("a")
    for number, ends in enumerate((500, 100, 900)):
        cluster.runs(f"t/p{number}", "a", 3000, ends=ends)
    assert cluster.forecast(waits("t/next", 7000)) == [Estimate(NOW + 500, "t/p0")]


def test_pods_before_it_take_their_room_first() -> None:
    cluster = Cluster("a")
    cluster.runs("t/now", "a", CARD, ends=600)
    first, second = waits("t/first", CARD, lasts=1000), waits("t/second", CARD)
    assert cluster.forecast(first, second) == [Estimate(NOW + 600, "t/now"), Estimate(NOW + 1600, "t/first")]


def test_where_too_little_is_known_nothing_is_said() -> None:
    cluster = Cluster("a")
    cluster.runs("t/now", "a", CARD, ends=None)
    first, second = waits("t/first", CARD), waits("t/huge", 2 * CARD)
    assert cluster.forecast(first, second) == [NoEstimate.HISTORY, NoEstimate.NO_ROOM]


def test_a_pod_of_unknown_length_before_it_leaves_it_unknown() -> None:
    cluster = Cluster("a")
    cluster.runs("t/now", "a", CARD, ends=60)
    assert cluster.forecast(waits("t/first", CARD), waits("t/second", CARD)) == [
        Estimate(NOW + 60, "t/now"),
        NoEstimate.HISTORY,
    ]


def test_a_pod_that_others_have_a_say_in_and_one_far_back_get_no_time() -> None:
    cluster = Cluster("a")
    ruled = replace(waits("t/ruled", 10), ruled=True)
    queue = [ruled, *(waits(f"t/p{number}", 10) for number in range(MOST_WAITING))]
    found = cluster.forecast(*queue)
    assert (found[0], found[-1]) == (NoEstimate.RULES, NoEstimate.TOO_FAR)


def test_a_pod_that_should_have_ended_is_expected_now() -> None:
    cluster = Cluster("a")
    cluster.runs("t/late", "a", CARD, ends=-50)
    assert cluster.forecast(waits("t/next", CARD)) == [Estimate(NOW, "t/late")]


pods = st.tuples(st.sampled_from("ab"), st.integers(1, 5), st.one_of(st.none(), st.floats(0, 1e6)))


@given(st.lists(pods, max_size=8), st.lists(st.tuples(st.integers(1, 11), st.one_of(st.none(), st.floats(0, 1e6)))))
def test_no_estimate_is_before_now_nor_before_the_end_that_it_names(
    running: list[tuple[str, int, float | None]], waiting: list[tuple[int, float | None]]
) -> None:
    cluster = Cluster("a", "b", cards=2)
    for number, (node, memory, ends) in enumerate(running):
        if cluster.has_room(node, memory * 1000):
            cluster.runs(f"t/r{number}", node, memory * 1000, ends=ends)
    queue = [waits(f"t/w{number}", memory * 1000, lasts=lasts) for number, (memory, lasts) in enumerate(waiting)]
    for found in cluster.forecast(*queue):
        if isinstance(found, Estimate):
            assert found.by >= NOW
            assert found.by >= cluster.ends.get(found.key, NOW)


def test_the_first_of_many_ends_sooner_than_any_one_of_them_probably_does() -> None:
    names_ = [f"n{number}" for number in range(20)]
    cluster = Cluster(*names_)
    for name in names_:
        cluster.runs(f"t/{name}", name, CARD, ends=None)
    lasts = tuple(float(each) for each in range(600, 6600, 600))
    waiting = waits("t/next", CARD)
    [found] = forecast(
        tuple(cluster.nodes.values()), cluster.holders, lambda pod: lasts, [waiting], DEFAULT_LIMITS, NOW
    ).values()
    assert isinstance(found, Estimate)
    assert found.by <= NOW + 1800


def test_what_is_played_is_scaled_by_what_came_before() -> None:
    scale = Scale()
    for _ in range(7):
        scale.came(1000, 500)
    assert scale.of(1000) == 1000
    scale.came(1000, 500)
    assert scale.of(1000) == 500
    for _ in range(100):
        scale.came(0, 1e12)
    assert scale.of(1000) == 100_000


def test_a_pod_of_another_namespace_is_never_named() -> None:
    found = Estimate(NOW, "secret-team/secret-pod")
    assert said(found, "team", "at X") == "probably starts at X or sooner, when a pod of another namespace ends"
    assert "secret" not in said(found, "team", "at X")
    assert said(found, "secret-team", "at X") == "probably starts at X or sooner, when pod secret-pod ends"
    assert said(Estimate(NOW, ""), "team", "at X") == "probably starts at X or sooner"


@pytest.mark.parametrize("why", list(NoEstimate))
def test_where_nothing_can_be_said_the_words_say_so(why: NoEstimate) -> None:
    assert said(why, "team", "").startswith("no estimate of its start: ")


def test_what_came_of_an_estimate() -> None:
    assert [outcome(0, 100, at) for at in (100, 50, 49, 101)] == ["by-then", "by-then", "sooner", "later"]
