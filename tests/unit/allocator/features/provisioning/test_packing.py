"""Which nodes are requested: never more than an exhaustive search finds, and none without need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.features.provisioning.packing import MOST_ASKS, Packer, Packing, PoolRoom, pack
from contract.encoding.quantity import GIB
from contract.model import Compute, FractionRequest, NodeState, PodRequest, PoolSharing, Wishes
from contract.scheduling import fit, nodeinfo
from contract.scheduling.filters import Limits, gpu_reason, node_reason, overcommitment
from contract.scheduling.needs import PodNeeds, SchedulingRequest, Toleration
from tests.builders import NodeBuilder, node
from tests.examples import examples

LIMITS = Limits(max_sharers=3)
TOLERATES = (Toleration("dedicated", "Exists"),)


def ask(
    *containers: FractionRequest, cpu: int = 0, selector: str = "", port: int = 0, same: bool = False, named: str = ""
) -> SchedulingRequest:
    needs = PodNeeds(
        compute=Compute(cpu=cpu, pods=1),
        node_name=named,
        node_selector=(("pool", selector),) if selector else (),
        tolerations=TOLERATES if selector else (),
        host_ports=frozenset([("", "TCP", port)] if port else []),
        several=any(container.count > 1 for container in containers),
    )
    return SchedulingRequest(PodRequest("native", containers, same_gpus=same), needs)


def share(
    gib: float = 0, *, name: str = "main", gpus: int = 1, percent: int = 0, cores: int = 0, one_numa: bool = False
) -> FractionRequest:
    return FractionRequest(name, gpus, 0 if percent else int(gib * GIB), percent, cores, one_numa=one_numa)


def whole(gpus: int = 1) -> FractionRequest:
    return FractionRequest("main", gpus, percent=100, cores=100, exclusive=True)


def machine(name: str, *gib: int, cpu: int = 8_000, pods: int = 110, numa: bool = False) -> NodeBuilder:
    """An empty node with a GPU of each of these sizes."""
    made = node(name).allocatable(cpu=cpu, pods=pods).labelled("pool", name)
    for position, size in enumerate(gib):
        made = made.gpu("Tesla T4", mib=size * 1024, numa=position // 2 if numa else -1)
    return made


def pool(name: str, *gib: int, most: int = 9, cpu: int = 8_000, pods: int = 110, numa: bool = False) -> PoolRoom:
    return PoolRoom(name, machine(name, *gib, cpu=cpu, pods=pods, numa=numa).state(), most)


ONE = pool("a", 8)
TWO = pool("a", 8, 8)
HALF = ask(share(4))
UNEVEN = [ask(share(gib)) for gib in (4, 4, 3, 3, 3, 3)]


@dataclass(frozen=True)
class Case:
    asks: Sequence[SchedulingRequest]
    want: Packing
    pools: Sequence[PoolRoom] = (ONE,)
    coming: Sequence[NodeState] = ()


def nodes(number: int, name: str = "a") -> tuple[tuple[str, int], ...]:
    return ((name, number),)


CASES: dict[str, Case] = {
    "nobody waits": Case([], Packing((), (), True)),
    "there is no pool": Case([HALF], Packing((), ("",), True), pools=[]),
    "a pod brings a node": Case([HALF], Packing(nodes(1), ("a/1",), True)),
    "two halves share a GPU": Case([HALF, HALF], Packing(nodes(1), ("a/1", "a/1"), True)),
    "the third takes another node": Case([HALF] * 3, Packing(nodes(2), ("a/1", "a/1", "a/2"), True)),
    "two GPUs of a node are used before a second node": Case(
        [HALF] * 5, Packing(nodes(2), ("a/1",) * 4 + ("a/2",), True), pools=[TWO]
    ),
    "small pods fill what large ones leave, whatever the order": Case(
        [ask(share(3)), ask(share(3)), ask(share(5)), ask(share(5))],
        Packing(nodes(2), ("a/1", "a/2", "a/1", "a/2"), True),
    ),
    "largest first is not always the best: 4 4 and 3 3 3 and 3 on cards of 10 GiB": Case(
        UNEVEN, Packing(nodes(2), ("a/1", "a/2", "a/1", "a/1", "a/2", "a/2"), True), pools=[pool("a", 10)]
    ),
    "a percentage counts by the card": Case(
        [ask(share(percent=60)), ask(share(percent=40)), ask(share(0.5))],
        Packing(nodes(2), ("a/1", "a/1", "a/2"), True),
    ),
    "cores run out before memory": Case([ask(share(1, cores=60))] * 2, Packing(nodes(2), ("a/1", "a/2"), True)),
    "a pod without cores goes before those that take them all": Case(
        [ask(share(1, cores=100)), ask(share(1))], Packing(nodes(1), ("a/1", "a/1"), True)
    ),
    "a GPU takes so many pods": Case([ask(share(1))] * 4, Packing(nodes(2), ("a/1",) * 3 + ("a/2",), True)),
    "a whole GPU is shared with nobody": Case([ask(whole()), ask(share(1))], Packing(nodes(2), ("a/1", "a/2"), True)),
    "two whole GPUs of one node": Case([ask(whole(2))] * 2, Packing(nodes(2), ("a/1", "a/2"), True), pools=[TWO]),
    "several GPUs leave room on each": Case(
        [ask(share(4, gpus=2)), HALF, HALF], Packing(nodes(1), ("a/1",) * 3, True), pools=[TWO]
    ),
    "containers on GPUs of their own": Case(
        [ask(share(6, name="one"), share(6, name="two")), ask(share(2))],
        Packing(nodes(1), ("a/1", "a/1"), True),
        pools=[TWO],
    ),
    "containers on the same GPU": Case(
        [ask(share(3, name="one"), share(3, name="two"), same=True)] * 2,
        Packing(nodes(1), ("a/1", "a/1"), True),
        pools=[TWO],
    ),
    "GPUs of one NUMA node": Case(
        [ask(share(4)), ask(share(5, gpus=2, one_numa=True)), ask(share(5, gpus=2, one_numa=True))],
        Packing(nodes(2), ("a/1", "a/1", "a/2"), True),
        pools=[pool("a", 8, 8, 8, numa=True)],
    ),
    "CPU runs out before GPUs": Case(
        [ask(share(1), cpu=5_000)] * 2, Packing(nodes(2), ("a/1", "a/2"), True), pools=[TWO]
    ),
    "a node takes so many pods": Case(
        [ask(share(1))] * 3, Packing(nodes(2), ("a/1", "a/1", "a/2"), True), pools=[pool("a", 8, pods=2)]
    ),
    "one host port a node": Case(
        [ask(share(1), port=80)] * 3, Packing(nodes(3), ("a/1", "a/2", "a/3"), True), pools=[TWO]
    ),
    "what no empty node serves brings none": Case(
        [ask(share(9)), HALF, ask(share(1), cpu=9_000), ask(share(1), selector="b")],
        Packing(nodes(1), ("", "a/1", "", ""), True),
    ),
    "a model that the pool does not have": Case(
        [ask(replace(share(1), wishes=Wishes(use_models=("H100",))))], Packing((), ("",), True)
    ),
    "nodes that come are filled first": Case(
        [HALF] * 3, Packing(nodes(1), ("c", "c", "a/1"), True), coming=[machine("c", 8).state()]
    ),
    "nodes that come may be enough": Case(
        [HALF] * 3,
        Packing((), ("c", "c", "d"), True),
        coming=[machine("c", 8).state(), machine("d", 8).state()],
    ),
    "a node that comes serves the pod that asked for it by name": Case(
        [HALF, ask(share(8), named="d"), HALF],
        Packing((), ("c", "d", "c"), True),
        coming=[machine("c", 8).state(), machine("d", 8).state()],
    ),
    "the first pool that serves it": Case(
        [HALF, ask(share(12))],
        Packing((("b", 1),), ("b/1", "b/1"), True),
        pools=[pool("a", 8), pool("b", 16)],
    ),
    "the first pool, where others leave no room": Case(
        [HALF, ask(share(14))],
        Packing((("a", 1), ("b", 1)), ("a/1", "b/1"), True),
        pools=[pool("a", 8), pool("b", 16)],
    ),
    "many of the first pool rather than one of the last": Case(
        [HALF] * 4, Packing(nodes(2), ("a/1", "a/1", "a/2", "a/2"), True), pools=[pool("a", 8), pool("b", 16)]
    ),
    "the last pool where the first has no more": Case(
        [HALF] * 4,
        Packing((("a", 1), ("b", 1)), ("a/1", "a/1", "b/1", "b/1"), True),
        pools=[pool("a", 8, most=1), pool("b", 16)],
    ),
    "a pool by its selector and taint": Case(
        [HALF, ask(share(4), selector="b")],
        Packing((("b", 1),), ("b/1", "b/1"), True),
        pools=[
            PoolRoom("a", machine("a", 8).tainted("no").state(), 9),
            PoolRoom("b", machine("b", 8).state(), 9),
        ],
    ),
    "with no more nodes the earlier pods come first": Case(
        [HALF, ask(share(5)), HALF, HALF], Packing(nodes(1), ("a/1", "", "a/1", ""), True), pools=[pool("a", 8, most=1)]
    ),
    "an earlier pod is served although two later ones would be": Case(
        [ask(whole()), HALF, HALF], Packing(nodes(1), ("a/1", "", ""), True), pools=[pool("a", 8, most=1)]
    ),
    "a pool that is full serves nobody": Case([HALF], Packing((), ("",), True), pools=[pool("a", 8, most=0)]),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_pack(case: Case) -> None:
    assert pack(case.asks, case.coming, case.pools, LIMITS) == case.want


def test_without_steps_the_answer_is_the_quick_one() -> None:
    found = pack(UNEVEN, (), [pool("a", 10)], LIMITS, steps=0)
    assert found == Packing(nodes(3), ("a/1", "a/1", "a/2", "a/2", "a/2", "a/3"), False)


def test_pods_beyond_the_bound_wait() -> None:
    found = pack([HALF] * (MOST_ASKS + 2), (), [pool("a", 8, most=10_000)], LIMITS)
    assert (found.opened, found.places[-3:], found.exact) == (nodes(MOST_ASKS // 2), ("a/500", "", ""), False)


HARD: dict[str, Callable[[int], SchedulingRequest]] = {
    "they fit, with many ways": lambda number: ask(
        *(share(1 + (number * 37 + each * 11) % 64 / 16, name=f"c{each}") for each in range(64))
    ),
    "each container fits, and never all together": lambda number: ask(
        *(share(8 + number / 256, name=f"c{each}") for each in range(64))
    ),
    "several GPUs for each container": lambda number: ask(
        *(share(4 + (number + each) / 256, name=f"c{each}", gpus=4) for each in range(9))
    ),
}


@pytest.mark.parametrize("hard", HARD.values(), ids=HARD.keys())
def test_pods_that_are_hard_to_pack_leave_room_for_others_to_be_packed(
    hard: Callable[[int], SchedulingRequest],
) -> None:
    eight = machine("a", *[32] * 8, cpu=96_000)
    asks = [each for number in range(60) for each in (hard(number), ask(share(8)))]
    found = pack(asks, (), [PoolRoom("a", eight.state(), 1_000)], Limits())
    assert all(place for one, place in zip(asks, found.places, strict=True) if one == ask(share(8)))


# -- an exhaustive search -------------------------------------------------------------------------------------------

Nodes = tuple[NodeState, ...]


def cored(one: SchedulingRequest) -> bool:
    return any(fraction.cores for fraction in one.request.containers)


def by_hand(
    asks: Sequence[SchedulingRequest], coming: Sequence[NodeState], pools: Sequence[PoolRoom]
) -> tuple[tuple[bool, ...], tuple[int, ...]]:
    """
    Which pods are served, and how many nodes of each pool are opened, the last pool first, in the best of all ways.
    """
    numbered = [(-1, each) for each in coming]
    numbered += [(number, each.node) for number, each in enumerate(pools) for _ in range(each.most)]
    owners = [number for number, _ in numbered]
    start: Nodes = tuple(state for _, state in numbered)
    reached: dict[object, tuple[frozenset[int], Nodes]] = {key_of(frozenset(), start, owners): (frozenset(), start)}
    for position in sorted(range(len(asks)), key=lambda at: (cored(asks[at]), at)):
        found = dict(reached)
        for served, states in reached.values():
            for at, state in enumerate(states):
                if state.requested.pods == 0 and any(
                    owners[at] == owners[other] >= 0 and states[other].requested.pods == 0 for other in range(at)
                ):
                    continue
                for after in placed(state, asks[position]):
                    way = served | {position}, (*states[:at], after, *states[at + 1 :])
                    found[key_of(*way, owners)] = way
        reached = found

    def worth(way: tuple[frozenset[int], Nodes]) -> tuple[tuple[bool, ...], tuple[int, ...]]:
        opened = [owner for owner, state in zip(owners, way[1], strict=True) if state.requested.pods and owner >= 0]
        return (
            tuple(position in way[0] for position in range(len(asks))),
            tuple(-opened.count(number) for number in reversed(range(len(pools)))),
        )

    best, opened = max(map(worth, reached.values()))
    return best, tuple(-each for each in opened)


def key_of(served: frozenset[int], states: Nodes, owners: Sequence[int]) -> object:
    return served, tuple((state.usage, state.requested, state.host_ports) for state in states)


def placed(state: NodeState, one: SchedulingRequest) -> Iterator[NodeState]:
    """The node after each valid choice of GPUs for the pod."""
    if node_reason(state, one.needs) is not None:
        return
    containers = one.request.containers
    every = [list(combinations(range(len(state.gpus)), container.count)) for container in containers]
    for chosen in product(*every):
        if one.request.same_gpus and len(set(chosen)) > 1:
            continue
        after = nodeinfo.booked(state, one, fit.allocate(state, one.request, chosen))
        if valid(state, after, one, chosen):
            yield after


def valid(state: NodeState, after: NodeState, one: SchedulingRequest, chosen: tuple[tuple[int, ...], ...]) -> bool:
    for container, gpus in zip(one.request.containers, chosen, strict=True):
        if container.one_numa and len({state.gpus[position].numa for position in gpus}) > 1:
            return False
        if any(gpu_reason(state.gpus[at], state.usage[at], container, LIMITS) for at in gpus):
            return False
    return not any(overcommitment(gpu, usage, LIMITS) for gpu, usage in zip(after.gpus, after.usage, strict=True))


def holds(state: NodeState, asks: Sequence[SchedulingRequest]) -> bool:
    """Whether all of these pods fit on the node, with the pods without cores first."""
    reached = [state]
    for one in sorted(asks, key=cored):
        after = {(each.usage, each.host_ports): each for before in reached for each in placed(before, one)}
        reached = list(after.values())
    return bool(reached)


SIZES = st.sampled_from((1, 2, 3, 4, 5, 8, 12))
CORES = st.sampled_from((0, 0, 30, 50, 100))
CPU = st.sampled_from((0, 0, 1_000, 3_000, 5_000))
ASKS = st.one_of(
    st.builds(lambda gib, cores, cpu: ask(share(gib, cores=cores), cpu=cpu), SIZES, CORES, CPU),
    st.builds(lambda gib, cores: ask(share(gib, gpus=2, cores=cores)), SIZES, CORES),
    st.builds(lambda percent, cpu: ask(share(percent=percent), cpu=cpu), st.sampled_from((20, 34, 50, 70)), CPU),
    st.builds(lambda gpus: ask(whole(gpus)), st.integers(1, 2)),
    st.builds(
        lambda one, two, cores, same: ask(
            share(one, name="one", cores=cores), share(two, name="two", cores=cores), same=same
        ),
        st.sampled_from((2, 3, 5)),
        st.sampled_from((2, 3, 5)),
        st.sampled_from((0, 30)),
        st.booleans(),
    ),
    st.builds(lambda gib, to: ask(share(gib), selector=to), SIZES, st.sampled_from(("a", "b", "c"))),
    st.builds(lambda gib: ask(share(gib), port=80), SIZES),
    st.builds(lambda gib, more: ask(replace(share(gib), limit=(gib + more) * GIB)), SIZES, st.sampled_from((2, 6))),
    st.builds(lambda gib: ask(share(gib, gpus=2, one_numa=True)), SIZES),
)
SHARING = st.sampled_from((PoolSharing(), PoolSharing(), PoolSharing(limit_ratio=1.0), PoolSharing(limit_ratio=1.5)))
GPUS = st.lists(st.sampled_from((8, 8, 16)), min_size=1, max_size=3)


@st.composite
def pools_of(draw: st.DrawFn) -> list[PoolRoom]:
    found = []
    for name in ("a", "b")[: draw(st.integers(1, 2))]:
        made = machine(name, *draw(GPUS), cpu=draw(st.sampled_from((4_000, 8_000))), numa=draw(st.booleans()))
        if draw(st.booleans()):
            made = made.tainted("dedicated")
        state, sharing = made.state(), draw(SHARING)
        state = replace(state, gpus=tuple(replace(gpu, sharing=sharing) for gpu in state.gpus))
        found.append(PoolRoom(name, state, draw(st.integers(0, 3))))
    return found


COMING = st.lists(GPUS, max_size=1).map(lambda all_: [machine("c", *gpus).state() for gpus in all_])


@given(asks=st.lists(ASKS, max_size=5), coming=COMING, pools=pools_of())
@settings(max_examples=examples(100), deadline=None)
def test_never_more_nodes_than_a_search_finds(
    asks: list[SchedulingRequest], coming: list[NodeState], pools: list[PoolRoom]
) -> None:
    found = pack(asks, coming, pools, LIMITS)
    opened = dict(found.opened)
    served = tuple(bool(place) for place in found.places)
    assert (served, tuple(opened.get(each.name, 0) for each in reversed(pools))) == by_hand(asks, coming, pools)
    assert found.exact
    check(found, asks, coming, pools)


@given(asks=st.lists(ASKS, max_size=12), coming=COMING, pools=pools_of(), steps=st.sampled_from((0, 10, 1_000)))
@settings(max_examples=examples(80), deadline=None)
def test_every_place_is_one_where_the_pod_fits(
    asks: list[SchedulingRequest], coming: list[NodeState], pools: list[PoolRoom], steps: int
) -> None:
    check(pack(asks, coming, pools, LIMITS, steps=steps), asks, coming, pools)


def check(found: Packing, asks: list[SchedulingRequest], coming: list[NodeState], pools: list[PoolRoom]) -> None:
    """Pods fit where they are placed, each opened node serves a pod, and pools of left-out pods are at their limit."""
    by_name = {each.name: each for each in coming}
    for each in pools:
        number = dict(found.opened).get(each.name, 0)
        assert number <= each.most
        by_name |= {f"{each.name}/{at + 1}": each.node for at in range(number)}
    on = {name: [one for one, place in zip(asks, found.places, strict=True) if place == name] for name in by_name}
    assert set(found.places) <= {*by_name, ""}
    assert all(on[name] for name in by_name if "/" in name)
    assert all(holds(by_name[name], here) for name, here in on.items())
    for one, place in zip(asks, found.places, strict=True):
        if not place:
            serving = [each for each in pools if each.most and holds(each.node, [one])]
            assert all(dict(found.opened).get(each.name, 0) == each.most for each in serving)


def test_a_packer_answers_as_pack_does_and_again_only_for_another_question() -> None:
    packer, rooms = Packer(LIMITS), [pool("a", 8)]
    first = packer.pack([HALF] * 3, [], rooms)
    assert first == pack([HALF] * 3, [], rooms, LIMITS)
    assert packer.pack([HALF] * 3, [], list(rooms)) is first
    assert packer.pack([HALF], [], rooms) == pack([HALF], [], rooms, LIMITS)


def test_what_an_empty_node_serves_follows_the_node() -> None:
    packer, small, large = Packer(LIMITS), pool("a", 8), pool("a", 16)
    asks = [ask(share(4)), ask(share(12))]
    assert [packer.serves("a", small.node, each) for each in asks] == [True, False]
    assert [packer.serves("a", large.node, each) for each in asks] == [True, True]
