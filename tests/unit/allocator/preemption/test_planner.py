"""Which pods make room for a pod of higher priority: the choice equals that of a search through every set of pods."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.cache.ledger import Ledger, Reservation, ReservationState, usage_of
from allocator.cache.podinfo import AllocatedPods, read_pod
from allocator.engine import reference
from allocator.engine.reference import DEFAULT_POLICY, Placement
from allocator.preemption import planner
from allocator.preemption.planner import PreemptionPlan, PreemptionRequest
from contract.encoding.quantity import GIB
from contract.model import Allocation, Compute, FractionRequest, NodeState, Overcount, PodRequest, PoolSharing
from contract.reasons.nodes import Reason
from contract.scheduling.demand import Demand
from contract.scheduling.filters import Limits
from contract.scheduling.needs import PodNeeds, SchedulingRequest
from contract.scheduling.nodeinfo import AllocatedPod
from tests.builders import node
from tests.examples import examples

LIMITS = Limits(max_sharers=3)
GPU_GIB = 8


@dataclass(frozen=True)
class Pod:
    """A pod that is placed, or waits."""

    name: str
    ask: SchedulingRequest
    priority: int = 0
    created: int = 0
    ending: bool = False


def ask(
    *shares: tuple[int, int, int], cpu: int = 0, same: bool = False, exclusive: bool = False, limit: int = 0
) -> SchedulingRequest:
    """For each container the number of GPUs, and GiB and cores on each; `limit`: GiB of the memory limit."""
    fractions = tuple(
        FractionRequest(
            f"c{i}",
            count,
            gib * GIB,
            cores=100 if exclusive else cores,
            exclusive=exclusive,
            limit=limit * GIB if limit > gib else 0,
        )
        for i, (count, gib, cores) in enumerate(shares)
    )
    needs = PodNeeds(compute=Compute(cpu=cpu, pods=1))
    return SchedulingRequest(
        PodRequest("native", fractions, same_gpus=same and len({f.count for f in fractions}) == 1), needs
    )


@dataclass
class World:
    """Nodes of two GPUs with those of these pods that had room there, one after another."""

    nodes: int
    pods: list[Pod]
    cpu: int = 8_000
    ratio: float = 0.0
    """The multiple of a GPU's memory that its memory limits may add up to."""
    placed: dict[str, tuple[Pod, Allocation]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for pod in self.pods:
            decision = reference.decide(self.states(), pod.ask, limits=LIMITS)
            if isinstance(decision, Placement):
                self.placed[pod.name] = (pod, Allocation(pod.name, decision.node, decision.containers))

    def states(self, without: frozenset[str] = frozenset()) -> dict[str, NodeState]:
        """The nodes as they are without some of the pods, computed only from the remaining ones."""
        ledger, requested = Ledger(), dict[str, int]()
        for pod, allocation in self.placed.values():
            if pod.name not in without:
                ledger.confirm(holding(pod, allocation))
                requested[allocation.node] = requested.get(allocation.node, 0) + pod.ask.needs.compute.cpu
        found = {}
        for name in (f"n{i}" for i in range(self.nodes)):
            bare = node(name).gpus(2, mib=GPU_GIB * 1024).allocatable(cpu=self.cpu).state()
            taken = Compute(cpu=requested.get(name, 0), pods=len(list(ledger.on_node(name))))
            gpus = tuple(replace(gpu, sharing=PoolSharing(limit_ratio=self.ratio)) for gpu in bare.gpus)
            found[name] = replace(bare, gpus=gpus, usage=usage_of(gpus, ledger, name), requested=taken)
        return found

    def sharers(self) -> dict[str, tuple[AllocatedPod, ...]]:
        notes = AllocatedPods()
        for pod, allocation in self.placed.values():
            metadata: dict[str, Any] = {"uid": pod.name, "creationTimestamp": f"2030-01-01T00:00:{pod.created:02}Z"}
            if pod.ending:
                metadata["deletionTimestamp"] = "2030-01-01T01:00:00Z"
            seen = read_pod({"metadata": metadata, "spec": {"priority": pod.priority}})
            notes.see(seen._replace(compute=pod.ask.needs.compute), holding(pod, allocation), 0.0)
        return notes.by_node()


def holding(pod: Pod, allocation: Allocation) -> Reservation:
    return Reservation(
        pod.name, f"ns/{pod.name}", pod.ask.request, allocation, pod.ask.needs.compute, ReservationState.CONFIRMED, 0.0
    )


def by_hand(world: World, preemptor: Pod, spared: frozenset[str]) -> tuple[str, list[str]] | None:
    """Every set of pods of every node. Returns the best set that makes room by the rules of placement."""
    leaving = frozenset(pod.name for pod, _ in world.placed.values() if pod.ending)
    best: tuple[Any, str, list[str]] | None = None
    for name in world.states():
        here = [
            pod
            for pod, allocation in world.placed.values()
            if allocation.node == name
            and pod.priority < preemptor.priority
            and not pod.ending
            and pod.name not in spared
        ]
        somebody_could_leave = here or any(a.node == name and p.ending for p, a in world.placed.values())
        for ended in subsets(here) if somebody_could_leave else ():
            after = world.states(leaving | {pod.name for pod in ended})[name]
            if not isinstance(reference.evaluate(after, preemptor.ask, LIMITS, DEFAULT_POLICY), Reason):
                worth = sorted(((pod.priority, -pod.created, pod.name) for pod in ended), reverse=True)
                cost = (len(ended), worth, name)
                if best is None or cost < best[0]:
                    best = (cost, name, sorted(pod.name for pod in ended))
    return best[1:] if best else None


def subsets(of: list[Pod]) -> Iterator[tuple[Pod, ...]]:
    return chain.from_iterable(combinations(of, count) for count in range(len(of) + 1))


SHARES = st.tuples(st.integers(1, 2), st.sampled_from((1, 2, 3, 5, 8)), st.sampled_from((0, 20, 50)))
ASKS = st.one_of(
    st.builds(lambda share, cpu: ask(share, cpu=cpu), SHARES, st.sampled_from((0, 1_000, 3_000))),
    st.builds(lambda share, limit: ask(share, limit=limit), SHARES, st.sampled_from((4, 7, 8))),
    st.builds(lambda one, two, same: ask(one, two, same=same), SHARES, SHARES, st.booleans()),
    st.builds(lambda count: ask((count, GPU_GIB, 100), exclusive=True), st.integers(1, 2)),
)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    count = draw(st.integers(1, 8))
    pods = [
        Pod(
            f"p{i}",
            draw(ASKS),
            priority=draw(st.integers(0, 3)),
            created=draw(st.integers(0, 3)),
            ending=draw(st.sampled_from((False, False, False, True))),
        )
        for i in range(count)
    ]
    return World(draw(st.integers(1, 2)), pods, ratio=draw(st.sampled_from((0.0, 0.0, 1.0, 1.5))))


@given(
    world=worlds(),
    wanted=ASKS,
    priority=st.integers(0, 4),
    spared=st.frozensets(st.sampled_from(("p0", "p1", "p2")), max_size=2),
)
@settings(max_examples=examples(80), deadline=None)
def test_the_choice_is_that_of_a_search_through_all(
    world: World, wanted: SchedulingRequest, priority: int, spared: frozenset[str]
) -> None:
    preemptor = Pod("waits", wanted, priority)
    if isinstance(reference.decide(world.states(), wanted, limits=LIMITS), Placement):
        return  # it is placed; no pod is evicted
    found = choose(world, preemptor, spared)
    plain = (found.node, sorted(v.uid for v in found.victims)) if found else None
    assert plain == by_hand(world, preemptor, spared)


def choose(world: World, preemptor: Pod, spared: frozenset[str] = frozenset()) -> PreemptionPlan | None:
    leaving = frozenset(pod.name for pod, _ in world.placed.values() if pod.ending)
    question = PreemptionRequest(preemptor.ask, preemptor.priority, LIMITS, leaving, spared)
    return planner.choose(world.states().values(), world.sharers(), question)


def small(name: str, gib: int = 4, **fields: Any) -> Pod:
    return Pod(name, ask((1, gib, 0)), **fields)


WAITS = Pod("waits", ask((1, 8, 0)), priority=5)


def test_a_pod_of_a_claim_gives_back_no_gpu() -> None:
    world = World(1, [small("a", 8)])
    (sharer,) = world.sharers()["n0"]
    pod, allocation = world.placed["a"]
    notes = AllocatedPods()
    notes.see(read_pod({"metadata": {"uid": "a"}}), holding(pod, replace(allocation, claim="share")), 0.0)
    assert (dict(sharer.demands) != {}, notes.on("n0")[0].demands) == (True, {})


CASES: dict[str, tuple[list[Pod], Pod, tuple[str, ...] | None]] = {
    "the fewest": ([small("a"), small("b"), small("c", 8)], WAITS, ("c",)),
    "of equally few the lowest": ([small("a", 8, priority=2), small("b", 8, priority=1)], WAITS, ("b",)),
    "of equally low the youngest": ([small("a", 8, created=1), small("b", 8, created=2)], WAITS, ("b",)),
    "fewer go before lower": ([small("a", 8, priority=4), small("b"), small("c")], WAITS, ("a",)),
    "the same priority never goes": ([small("a", 8, priority=5), small("b", 8, priority=5)], WAITS, None),
    "nobody goes where it would not make enough room": (
        [small("a", 5, priority=5), small("b", 3), small("c", 5, priority=5), small("d", 3)],
        WAITS,
        None,
    ),
    "who leaves anyway is waited for": ([small("a", 8, ending=True), small("b", 8)], WAITS, ()),
    "a pod that is larger than any card helps nobody to go": (
        [small("a", 8), small("b", 8)],
        Pod("waits", ask((1, 9, 0)), priority=5),
        None,
    ),
    "a whole GPU needs all of its sharers to go": (
        [small("a", 2), small("b", 2), small("c", 2), small("d", 8, priority=5)],
        Pod("waits", ask((1, 8, 100), exclusive=True), priority=5),
        ("a", "b", "c"),
    ),
    "a share makes the holder of a whole GPU go": (
        [Pod("a", ask((2, 8, 100), exclusive=True))],
        Pod("waits", ask((1, 1, 0)), priority=1),
        ("a",),
    ),
    "the CPU of the node counts too": (
        [Pod("a", ask((1, 1, 0), cpu=6_000)), Pod("b", ask((1, 8, 0), cpu=1_000))],
        Pod("waits", ask((1, 1, 0), cpu=4_000), priority=1),
        ("a",),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_who_goes(case: tuple[list[Pod], Pod, tuple[str, ...] | None]) -> None:
    pods, preemptor, want = case
    world = World(1, pods)
    assert set(world.placed) == {pod.name for pod in pods}, "the case means all of them to be placed"
    found = choose(world, preemptor)
    assert (None if found is None else tuple(sorted(v.uid for v in found.victims))) == want


def test_a_pod_is_evicted_for_the_room_that_kubernetes_lacks() -> None:
    """One card is free. For the pod on the other card Kubernetes counts more than it holds."""
    state = replace(node("a").gpu(mib=16384, used_mib=15360).gpu(mib=16384).state(), overcount=Overcount(5 * GIB))
    large = {state.gpus[0].uuid: Demand(15 * GIB, 0, False)}
    there = AllocatedPod("u", "team/u", "a", 0, 1, large, Compute(), overcount=Overcount(5 * GIB))
    wanted = PreemptionRequest(ask((1, 13, 0)), 10, LIMITS)
    assert planner.choose([state], {"a": [there]}, wanted) == PreemptionPlan("a", (there,))
    assert planner.choose([state], {"a": [there]}, replace(wanted, priority=0)) is None
    assert planner.without_any([state], wanted) is None
