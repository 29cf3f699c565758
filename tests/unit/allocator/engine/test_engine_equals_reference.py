"""The fast engine decides as the plain one, ties included, for any placements, releases and changes of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from allocator.engine import reference
from allocator.engine.engine import Engine
from allocator.engine.reference import Placement, Policy, Prefer
from allocator.scoring import estimator
from allocator.scoring.classes import supply_of
from allocator.scoring.estimator import Learner
from allocator.scoring.tables import Tables
from allocator.selectors import holds
from contract.encoding.quantity import GIB
from contract.model import (
    NO_OVERCOUNT,
    Compute,
    Delivery,
    FractionRequest,
    NodeState,
    Overcount,
    PodRequest,
    PoolSharing,
    Usage,
    Wishes,
)
from contract.reasons.nodes import Code, Reason
from contract.reslicing import STATE_LABEL
from contract.scheduling.demand import counted, per_gpu, shares_of
from contract.scheduling.filters import Limits
from contract.scheduling.needs import PodNeeds, Requirement, SchedulingRequest, Toleration
from tests.builders import node
from tests.examples import examples

AFFINITIES = (
    None,
    None,
    (),
    ((),),
    ((Requirement("pool", "Exists"),), (Requirement("pool", "In", ("y",)),)),
    ((Requirement("pool", "NotIn", ("x", "nobody")),),),
    ((Requirement("pool", "DoesNotExist"),), (Requirement("size", "Gt", ("3",)), Requirement("pool", "Exists"))),
    ((Requirement("metadata.name", "In", ("a", "c"), field=True),),),
)
LIMITS = Limits(max_sharers=3, memory_factor=1.25, selects=holds)
NAMES = ("a", "b", "c", "d")
_BEYOND = (
    Reason(Code.POD_ANTI_AFFINITY),
    Reason(Code.TOPOLOGY_SPREAD),
    Reason(Code.CLAIM, what="that does not exist"),
    Reason(Code.CLAIM, what="that is being deleted"),
)
REFUSED = st.dictionaries(st.sampled_from((*NAMES, "not there")), st.sampled_from(_BEYOND), max_size=3)
"""Nodes that are excluded because of other pods or volumes."""
LIKED = st.none() | st.dictionaries(st.sampled_from(NAMES), st.integers(0, 2))
"""How much the pod prefers each node; None for a pod without preferences."""
MODELS = (("Tesla T4", 15109), ("V100", 32768), ("A10", 23028))

_ATTRIBUTES = "device.attributes['gpufraction.io']"
_T4, _SECOND_NUMA = f"{_ATTRIBUTES}.productName.contains('T4')", f"{_ATTRIBUTES}.numa == 1"
_SOME = f"{_ATTRIBUTES}.uuid in ['GPU-a-0', 'GPU-b-1', 'GPU-c-0'] || {_ATTRIBUTES}.type == 'mig'"
_LARGE = "device.capacity['gpufraction.io'].memory.isGreaterThan(quantity('20Gi'))"
EXPRESSIONS = (_T4, _SECOND_NUMA, _SOME, _LARGE)
selecting = st.builds(
    Wishes,
    selectors=st.sampled_from(((), (_T4,), (_SOME,), (_LARGE, _SECOND_NUMA))),
    alternatives=st.lists(st.lists(st.sampled_from(EXPRESSIONS), max_size=2).map(tuple), max_size=3).map(tuple),
)
wishes = selecting | st.sampled_from(
    (
        Wishes(),
        Wishes(use_models=("t4", "A10")),
        Wishes(avoid_models=("V100",)),
        Wishes(use_uuids=("GPU-a-0", "GPU-c-1")),
        Wishes(avoid_uuids=("GPU-b-0",)),
        Wishes(least_memory=20 << 30),
    )
)


@st.composite
def fractions(draw: st.DrawFn, name: str) -> FractionRequest:
    by_bytes = draw(st.booleans())
    cores = draw(st.sampled_from((0, 0, 10, 30, 50, 100)))
    percent = 0 if by_bytes else draw(st.sampled_from((10, 33, 50, 100)))
    memory = draw(st.sampled_from((1, 3, 7, 15, 40))) * GIB if by_bytes else 0
    limit = draw(st.sampled_from((0, 0, 0, 14 * GIB, 18 * GIB, 40 * GIB) if by_bytes else (0, 0, 60, 99, 100)))
    return FractionRequest(
        container=name,
        count=draw(st.sampled_from((1, 1, 1, 2, 3))),
        memory=memory,
        percent=percent,
        cores=cores,
        exclusive=percent == 100 and cores == 100,
        init=draw(st.integers(0, 4)) == 0,
        wishes=draw(wishes),
        one_numa=draw(st.integers(0, 4)) == 0,
        one_model=draw(st.integers(0, 4)) == 0,
        apart=draw(st.integers(0, 3)) == 0,
        limit=limit if limit > max(memory, percent) else 0,
    )


@st.composite
def large_first(draw: st.DrawFn) -> list[FractionRequest]:
    """A large init container before smaller ones: Kubernetes may count more for them than they hold."""
    drawn = [(draw(fractions(name)), name == "x") for name in ("x", "y", "z")]
    large, *others = (FractionRequest(f.container, 1, f.memory, f.percent, f.cores, init=init) for f, init in drawn)
    if large.memory:
        return [large, *(replace(each, percent=0, memory=large.memory // 3 + 1) for each in others)]
    return [large, *(each if each.memory else replace(each, percent=max(1, large.percent // 3)) for each in others)]


@st.composite
def asks(draw: st.DrawFn) -> SchedulingRequest:
    names = ("x", "y", "z")[: draw(st.sampled_from((1, 1, 1, 2, 3)))]
    large = draw(st.integers(0, 4)) == 0
    same = not large and len(names) > 1 and draw(st.booleans())
    containers = draw(large_first()) if large else [draw(fractions(name)) for name in names]
    if same:  # such a dialect requests bytes, with one count
        containers = [
            replace(f, memory=f.memory or 2 * GIB, percent=0, count=containers[0].count, exclusive=False, limit=0)
            for f in containers
        ]
    if draw(st.integers(0, 2)) == 0:
        containers = [replace(each, alone=True) for each in containers]
    policies = st.sampled_from(("", "binpack", "spread"))
    needs = PodNeeds(
        compute=Compute(cpu=draw(st.sampled_from((0, 500, 9000))), memory=draw(st.sampled_from((0, GIB))), pods=1),
        node_name=draw(st.sampled_from(("", "", "", "b"))),
        node_selector=draw(st.sampled_from(((), (), (("pool", "x"),), (("pool", "nobody"),)))),
        affinity=draw(st.sampled_from(AFFINITIES)),
        tolerations=draw(st.sampled_from(((), (Toleration("gpu", "Exists"),), (Toleration("", "Exists"),)))),
        host_ports=draw(st.sampled_from((frozenset(), frozenset(), frozenset({("", "TCP", 80)})))),
        isolation=draw(st.sampled_from(("", "", "", "mps", "hard"))),
        runtime_class=draw(st.sampled_from(("", "", "nvidia"))),
    )
    request = PodRequest("any", tuple(containers), same, draw(policies), draw(policies))
    # The node decides whether it can hold limits; without them the GPUs decide more often.
    bursts = request.bursts and draw(st.booleans())
    return SchedulingRequest(request, replace(needs, several=request.several, bursts=bursts, claim=draw(st.booleans())))


@st.composite
def nodes(draw: st.DrawFn, name: str) -> NodeState:
    made = node(name).allocatable(cpu=16_000, pods=6)
    for _ in range(draw(st.integers(0, 4))):
        model, mib = draw(st.sampled_from(MODELS))
        sick, withheld = draw(st.sampled_from((*[("", "")] * 8, ("XID 79", ""), ("", "Cordoned"), ("", "NotShared"))))
        made = made.gpu(model, mib=mib, sick=sick, withheld=withheld)
    if draw(st.booleans()):
        made = made.labelled("pool", draw(st.sampled_from(("x", "y"))))
    if draw(st.booleans()):
        made = made.labelled("size", draw(st.sampled_from(("2", "4", "large"))))
    for key in draw(st.sampled_from(((), (), ("gpu",), ("gpu", "team")))):
        made = made.tainted(key)
    if draw(st.integers(0, 6)) == 0:
        made = made.cordoned()
    if draw(st.integers(0, 6)) == 0:
        made = made.not_ready()
    if draw(st.integers(0, 6)) == 0:
        made = made.labelled(STATE_LABEL, draw(st.sampled_from(("pending", "rebooting", "success"))))
    if draw(st.integers(0, 3)) == 0:
        made = made.port_taken(80)
    # A pool's options apply to its nodes; the engines read each GPU.
    pools = (
        PoolSharing(),
        PoolSharing(2, 3.0),
        PoolSharing(5, limit_ratio=1.0),
        PoolSharing(0, 1.5, True),
        PoolSharing(limit_ratio=1.75),
    )
    pool = draw(st.sampled_from(pools))
    gpus = [
        replace(
            gpu,
            numa=draw(st.sampled_from((-1, 0, 0, 1))),
            sharing=pool,
            parent=draw(st.sampled_from(("", "", "", "GPU-whole"))),
        )
        for gpu in made.state().gpus
    ]
    ways = (
        *(None, None, Delivery(), Delivery(("",)), Delivery(("", "nvidia"), "nvidia.com/gpu", single=True)),
        Delivery(("",), "nvidia.com/gpu", dra=True),
    )
    return replace(
        made.state(),
        gpus=tuple(gpus),
        delivery=draw(st.sampled_from(ways)),
        isolation=draw(st.sampled_from(((), ("driver", "watch"), ("watch",)))),
    )


def preference(liked: Mapping[str, int] | None) -> Prefer | None:
    """A pod that prefers nodes by their names."""
    if liked is None:
        return None

    def prefer(nodes: Sequence[NodeState]) -> list[int]:
        assert len(nodes) > 1, "nothing is asked where nothing is to be decided"
        return [liked.get(node.name, 0) for node in nodes]

    return prefer


def _counted(ask: SchedulingRequest, chosen: Placement) -> Overcount:
    """What Kubernetes counts for a placed pod."""
    totals = {each.container: sum(share.memory for share in each.shares) for each in chosen.containers}
    return Overcount(*counted(ask.request, totals))


class TwoEngines(RuleBasedStateMachine):
    policy = Policy("binpack", "spread")

    def __init__(self) -> None:
        super().__init__()
        self.snapshot: dict[str, NodeState] = {}
        self.fast = Engine(limits=LIMITS, policy=self.policy)
        self.placed: list[tuple[SchedulingRequest, Placement]] = []

    @rule(data=st.data(), name=st.sampled_from(NAMES))
    def node_joins_or_changes(self, data: st.DataObject, name: str) -> None:
        self._put(data.draw(nodes(name)))
        self.placed = [(a, c) for a, c in self.placed if c.node != name]

    @rule(name=st.sampled_from(NAMES))
    def node_leaves(self, name: str) -> None:
        self.snapshot.pop(name, None)
        self.fast.drop(name)
        self.placed = [(a, c) for a, c in self.placed if c.node != name]

    @rule(name=st.sampled_from(NAMES), cordoned=st.booleans(), ready=st.booleans(), silent=st.booleans())
    def facts_change(self, name: str, cordoned: bool, ready: bool, silent: bool) -> None:
        if name in self.snapshot:
            self._put(replace(self.snapshot[name], cordoned=cordoned, ready=ready, silent=silent))

    @rule(name=st.sampled_from(NAMES), state=st.sampled_from(("pending", "success")))
    def cards_are_sliced_anew(self, name: str, state: str) -> None:
        if name in self.snapshot:
            before = self.snapshot[name]
            self._put(replace(before, labels={**before.labels, STATE_LABEL: state}))

    @rule(ask=asks(), refused=REFUSED, liked=LIKED)
    def decide(self, ask: SchedulingRequest, refused: Mapping[str, Reason], liked: Mapping[str, int] | None) -> None:
        policy, tables, prefer = self.policy, self.fast.tables, preference(liked)
        want = reference.decide(
            self.snapshot, ask, limits=LIMITS, policy=policy, tables=tables, refused=refused, prefer=prefer
        )
        assert self.fast.decide(ask, refused, prefer) == want
        assert self.fast.could_ever(ask) == reference.could_ever(self.snapshot, ask, limits=LIMITS)
        if isinstance(want, Placement):
            self.placed.append((ask, want))
            self._book(want.node)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.placed:
            _, chosen = self.placed.pop(data.draw(st.integers(0, len(self.placed) - 1)))
            self._book(chosen.node)

    @rule(data=st.data())
    def starts(self, data: st.DataObject) -> None:
        """A pod that starts alone is ready."""
        starting = [number for number, (ask, _) in enumerate(self.placed) if ask.request.alone]
        if starting:
            number = data.draw(st.sampled_from(starting))
            ask, chosen = self.placed[number]
            containers = tuple(replace(each, alone=False) for each in ask.request.containers)
            self.placed[number] = replace(ask, request=replace(ask.request, containers=containers)), chosen
            self._book(chosen.node)

    def _book(self, name: str) -> None:
        here = [(ask, chosen) for ask, chosen in self.placed if chosen.node == name]
        usage, counted, most = [], sum((_counted(ask, chosen) for ask, chosen in here), NO_OVERCOUNT), NO_OVERCOUNT
        for gpu in self.snapshot[name].gpus:
            taken = Usage()
            for ask, chosen in here:
                demand = per_gpu(ask.request, shares_of(chosen.containers)).get(gpu.uuid)
                taken = demand.added_to(taken) if demand else taken
                taken = replace(taken, starting=taken.starting + bool(demand and ask.request.alone))
            assert taken.starting <= 1, "two pods that start alone are starting on one GPU"
            assert taken.memory <= LIMITS.capacity(gpu)
            assert taken.memory + taken.burst <= LIMITS.in_all(gpu)
            assert taken.cores <= 100
            assert taken.sharers <= LIMITS.sharers(gpu)
            assert not taken.exclusive or taken.sharers == 1
            usage.append(taken)
            promised = NO_OVERCOUNT if gpu.withheld == "NotShared" else Overcount(gpu.sharing.promised(gpu.usable), 100)
            most += Overcount(max(taken.memory, promised.memory), max(taken.cores, promised.cores))
        assert not counted - most, "Kubernetes counts no more than the node's capacity"
        held = Overcount(sum(each.memory for each in usage), sum(each.cores for each in usage))
        cpu = sum(ask.needs.compute.cpu for ask, _ in here)
        requested = Compute(cpu=cpu, pods=len(here))
        more = counted - held
        self._put(replace(self.snapshot[name], usage=tuple(usage), requested=requested, overcount=more))

    def _put(self, state: NodeState) -> None:
        self.snapshot[state.name] = state
        self.fast.put(state)


class TwoEnginesThatLearn(TwoEngines):
    """Demand is forgotten quickly here, so that it changes within one sequence."""

    policy = Policy("value")

    def __init__(self) -> None:
        super().__init__()
        self.learner = Learner(half_life=4)
        self.steps: Iterator[None] = iter(())

    @rule(ask=asks(), times=st.integers(1, 5))
    def somebody_asks(self, ask: SchedulingRequest, times: int) -> None:
        for _ in range(times):
            self.learner.see(ask.request, ask.needs.compute.cpu)

    def _lesson(self) -> Tables | None:
        return estimator.make("value", self.learner.target(), supply_of(self.snapshot, LIMITS))

    @rule()
    def tables_are_swapped(self) -> None:
        self.fast.adopt(self._lesson())

    @rule()
    def tables_begin_to_be_swapped(self) -> None:
        made = self._lesson()
        self.steps = self.fast.adopting(made) if made is not None else iter(())

    @rule(cards=st.sets(st.integers(1, 5), max_size=2))
    def some_wait(self, cards: set[int]) -> None:
        self.fast.spare(cards)

    @rule()
    def the_swap_goes_on(self) -> None:
        next(self.steps, None)


TestTwoEngines = TwoEngines.TestCase
TestTwoEngines.settings = settings(max_examples=examples(80), stateful_step_count=40, deadline=None)
TestTwoEnginesThatLearn = TwoEnginesThatLearn.TestCase
TestTwoEnginesThatLearn.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
