"""
Whatever happens to a node's GPUs, its kubelet accepts every pod that was placed there.

The tests run the agent's part, the allocator's part and the kubelet's arithmetic together, over any history. GPUs come,
go, are replaced and offer more or less, pods come and end, programs restart, and writes fail halfway.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from allocator.cache.cache import Cache
from allocator.cache.capacities import AGAIN, Capacities, HeldBeyond, Stranded
from allocator.cache.ledger import Reservation, ReservationState
from allocator.engine.engine import Engine
from contract.model import (
    Allocation,
    Compute,
    ContainerAllocation,
    FractionRequest,
    Gpu,
    GpuShare,
    Inventory,
    PodRequest,
)
from contract.nodes import capacity
from contract.nodes.capacity import NOTHING, Amounts, Beyond
from contract.nodes.inventories import inventory_to_status, sharing_of
from contract.reasons.gpunodes import GPUNodeReason
from contract.reasons.pods import PodEventReason
from nodeagent.conditions import Condition
from nodeagent.publishing.beyond import ExcessCapacity
from nodeagent.publishing.changes import published_gpus
from nodeagent.publishing.reconcile import NodeView, ObjectView, Published
from nodeagent.publishing.status import Desired
from tests.examples import examples

NODE = "n"
READY = Condition(True, GPUNodeReason.ALL_HEALTHY, "")


def gpu(uuid: str, usable: int = 100, *, index: int = 0, withheld: str = "") -> Gpu:
    return Gpu(uuid, index, "T", usable, usable, healthy=not withheld, withheld=withheld)


def held(
    key: str,
    uuid: str,
    memory: int,
    cores: int = 0,
    *,
    index: int = 0,
    state: ReservationState = ReservationState.CONFIRMED,
) -> Reservation:
    request = PodRequest("native", (FractionRequest("main", memory=memory, cores=cores),))
    share = GpuShare(uuid, index, memory, cores, 100)
    allocation = Allocation(key, NODE, (ContainerAllocation("main", (share,)),))
    return Reservation(key, f"team/{key}", request, allocation, Compute(), state, 0.0)


def cluster_of(*gpus: Gpu, holdings: tuple[Reservation, ...] = (), problem: str = "") -> Cache:
    cluster = Cache(engine=Engine())
    cluster.put_inventory(Inventory(NODE, gpus, problem=problem))
    for holding in holdings:
        cluster.book(holding)
    return cluster


# -- amounts held beyond the promise ------------------------------------------------------------------------------


def test_each_gpu_counts_for_itself() -> None:
    gpus = (gpu("a"), gpu("b", 50, index=1), gpu("c", 100, index=2, withheld="NotShared"))
    promised = capacity.promises(gpus)
    assert promised == {"a": Amounts(100, 100), "b": Amounts(50, 100), "c": NOTHING}
    holdings = (held("p", "a", 70), held("q", "b", 80, 20), held("r", "c", 5), held("s", "gone", 40, 30))
    used = cluster_of(*gpus, holdings=holdings).ledger.used(NODE)
    assert capacity.beyond(promised, used) == Beyond(capacity.digest(promised), Amounts(30 + 5 + 40, 30))


def test_what_is_written_is_read_back_and_anything_else_is_nothing() -> None:
    reported = Beyond("abc", Amounts(5, 6))
    assert capacity.from_text(capacity.to_text(reported)) == reported
    wrong = ("", "{}", "[]", "[" * 5000, '{"of":1,"memory":1,"cores":1}', '{"of":"a","memory":-1,"cores":0}', None, 7)
    assert [capacity.from_text(text) for text in wrong] == [None] * len(wrong)


# -- when it is written and reported ---------------------------------------------------------------------------------


def test_a_word_is_written_once_and_again_where_the_watch_does_not_show_it() -> None:
    capacities, cluster = Capacities(), cluster_of(gpu("a"), holdings=(held("p", "gone", 40),))
    assert capacities.look(cluster, 0.0) == [], "the GPUNode was not seen yet"
    capacities.see(NODE, "")
    (word,) = capacities.look(cluster, 1.0)
    assert word == HeldBeyond(NODE, capacity.to_text(Beyond(capacity.digest({"a": Amounts(100, 100)}), Amounts(40))))
    assert capacities.look(cluster, 1.0 + AGAIN - 1) == []
    assert capacities.look(cluster, 1.0 + AGAIN) == [word]
    capacities.see(NODE, word.text)
    assert capacities.look(cluster, 500.0) == []
    capacities.see(NODE, "somebody else's")
    assert capacities.look(cluster, 501.0) == [word]
    capacities.drop(NODE)
    assert capacities.look(cluster, 900.0) == []


def test_a_pod_whose_gpu_stays_removed_is_reported_once() -> None:
    capacities = Capacities()
    capacities.see(NODE, "")
    holdings = (held("p", "gone", 40, index=1), held("q", "old", 1), held("r", "new", 1))
    cluster = cluster_of(gpu("new"), holdings=holdings)

    def stranded(now: float) -> list[Stranded]:
        capacities.look(cluster, now)
        return capacities.stranded(cluster, now)

    assert stranded(0.0) == []
    end = "; the pod keeps running without it. To have the pod placed again, delete it"
    about = "of node n, of which this pod has a share,"
    assert stranded(3.0) == [
        Stranded("team/p", "p", PodEventReason.GPU_GONE, f"GPU 1 {about} no longer exists (gone){end}"),
        Stranded("team/q", "q", PodEventReason.GPU_REPLACED, f"GPU 0 {about} was replaced by another GPU (old){end}"),
    ]
    assert stranded(60.0) == []
    cluster.put_inventory(Inventory(NODE, problem="the driver is away"))
    assert stranded(61.0) == [], "a driver that is away has not taken its GPUs along"
    cluster.put_inventory(Inventory(NODE, (gpu("new"),)))
    assert stranded(62.0) == []
    assert [each.uid for each in stranded(65.0)] == ["p", "q"]
    cluster.unbook("p")
    cluster.unbook("q")
    assert stranded(70.0) == []


def test_a_pod_whose_gpu_stays_unhealthy_is_told_once() -> None:
    capacities = Capacities()
    capacities.see(NODE, "")
    cluster = cluster_of(gpu("a"), gpu("b", index=1), holdings=(held("p", "a", 40), held("q", "b", 1, index=1)))

    def told(now: float, *gpus: Gpu) -> list[Stranded]:
        cluster.put_inventory(Inventory(NODE, gpus))
        capacities.look(cluster, now)
        return capacities.stranded(cluster, now)

    well, withheld = gpu("a"), gpu("b", index=1, withheld="Cordoned")
    ill = replace(well, healthy=False, reason="XID 79")
    assert told(0.0, ill, withheld) == [], "agents publish while a machine starts"
    why = (
        "GPU 0 of node n, of which this pod has a share, is unhealthy (XID 79); the pod keeps running. To have the "
        "pod placed on another GPU, delete it"
    )
    assert told(3.0, ill, withheld) == [Stranded("team/p", "p", PodEventReason.UNHEALTHY, why)]
    assert told(60.0, ill, withheld) == []
    assert [told(now, gpu_, withheld) for now, gpu_ in ((61.0, well), (62.0, ill), (66.0, ill))] == [[], [], []]
    assert told(67.0, well, withheld) == []
    assert told(700.0, ill, withheld) == []
    assert [each.uid for each in told(704.0, ill, withheld)] == ["p"], "after a rest it is news again"
    cluster.unbook("p")
    assert told(705.0, ill, withheld) == []
    cluster.book(held("p", "a", 40))
    assert told(706.0, ill, withheld) == []
    assert [each.uid for each in told(709.0, ill, withheld)] == ["p"], "of a pod that has gone nothing is remembered"
    capacities.drop(NODE)
    assert capacities.stranded(cluster, 9_000.0) == []


def test_a_pod_that_is_assumed_only_is_not_reported() -> None:
    capacities, cluster = Capacities(), cluster_of(gpu("new"))
    capacities.see(NODE, "")
    cluster.assume(held("p", "gone", 40, state=ReservationState.ASSUMED))
    capacities.look(cluster, 0.0)
    assert capacities.stranded(cluster, 9.0) == []


# -- any history --------------------------------------------------------------------------------------------------

UUIDS = ("a", "b", "c", "d")
MACHINES = st.lists(
    st.builds(
        gpu,
        st.sampled_from(UUIDS),
        st.sampled_from((50, 100)),
        withheld=st.sampled_from(("", "", "Cordoned", "NotShared")),
    ),
    max_size=3,
    unique_by=lambda made: made.uuid,
)


class History(RuleBasedStateMachine):
    """One node: its machine, its agent, its kubelet, and the allocator."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = Inventory(NODE, (gpu("a"),))
        self.node = NOTHING
        """The Node's allocatable."""
        self.object: ObjectView | None = None
        self.spared, self.remembers = ExcessCapacity(), True
        self.capacities, self.cluster = Capacities(), Cache(engine=Engine())
        self.seen: tuple[Gpu, ...] = ()
        """The GPUs as the allocator sees them."""
        self.coming: dict[str, tuple[str, int]] = {}
        self.taken: dict[str, int] = {}
        """The kubelet's pods."""
        self.count, self.now = 0, 0.0

    @rule(gpus=MACHINES, factor=st.sampled_from(("1.0", "1.0", "2.0")))
    def the_machine_changes(self, gpus: list[Gpu], factor: str) -> None:
        """The machine or its options change."""
        options = (("deviceMemoryScaling", factor),)
        sharing = sharing_of(dict(options))
        self.machine = Inventory(NODE, tuple(replace(each, sharing=sharing) for each in gpus), options=options)

    @rule(fails=st.booleans())
    def the_agent_steps(self, fails: bool) -> None:
        """`fails`: after the first write."""
        published = Published(NodeView("u", self.node, self.node), self.object)
        self.remembers = True
        wanted = Desired(self.machine, READY)
        wanted = replace(wanted, beyond=self.spared.beyond(wanted, published))
        status = inventory_to_status(self.machine)
        shown = ObjectView("u", {}, status, self.object.beyond if self.object is not None else "")
        grows = self.node.above(wanted.amounts) == NOTHING
        if grows:
            self.node = wanted.amounts
        else:
            self.object = shown
        if fails:
            return
        self.node, self.object = wanted.amounts, shown

    @rule()
    def the_agent_restarts(self) -> None:
        self.spared, self.remembers = ExcessCapacity(), False

    def was_written(self) -> bool:
        if self.object is None:
            return True
        reported = capacity.from_text(self.object.beyond)
        published = capacity.promises(published_gpus(self.object.status))
        return reported is not None and reported.of == capacity.digest(published)

    @precondition(lambda self: self.remembers or self.was_written())
    @rule()
    def the_kubelet_wipes_the_capacity(self) -> None:
        """
        As when a machine starts. The amount held beyond the promise is lost only if the agent restarts at the same
        time, before the allocator has written it. Then it is missing until the allocator has written it.
        """
        self.node = NOTHING
        self.the_agent_steps(fails=False)

    @precondition(lambda self: self.object is not None)
    @rule()
    def the_allocator_sees(self) -> None:
        assert self.object is not None
        self.seen = published_gpus(self.object.status)
        self.cluster.put_inventory(Inventory(NODE, self.seen))
        self.capacities.see(NODE, self.object.beyond)

    @rule()
    def the_allocator_writes(self) -> None:
        self.now += AGAIN
        for word in self.capacities.look(self.cluster, self.now):
            if self.object is not None:
                self.object = replace(self.object, beyond=word.text)

    @rule(uuid=st.sampled_from(UUIDS), memory=st.sampled_from((10, 50, 100, 200)))
    def a_pod_is_placed(self, uuid: str, memory: int) -> None:
        promised = capacity.promises(self.seen).get(uuid, NOTHING)
        if memory <= promised.memory - self.cluster.ledger.usage(NODE, uuid).memory:
            key = f"p{self.count}"
            self.count += 1
            self.cluster.assume(held(key, uuid, memory, state=ReservationState.ASSUMED))
            self.coming[key] = uuid, memory

    @precondition(lambda self: self.coming)
    @rule(data=st.data())
    def its_kubelet_takes_it_in(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.coming)))
        uuid, memory = self.coming.pop(key)
        self.cluster.book(held(key, uuid, memory))
        assert sum(self.taken.values()) + memory <= self.node.memory, f"{key} fails with OutOf memory"
        self.taken[key] = memory

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def a_pod_ends(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.taken)))
        del self.taken[key]
        self.cluster.unbook(key)

    @invariant()
    def what_was_taken_in_still_fits(self) -> None:
        """A restarted kubelet admits its pods again, by the same arithmetic."""
        assert sum(self.taken.values()) <= self.node.memory

    def teardown(self) -> None:
        """In the end the capacity is what the GPUs promise plus what is held beyond that, to the byte."""
        for _ in range(2):
            self.the_agent_steps(fails=False)
            self.the_allocator_sees()
            self.the_allocator_writes()
        self.the_agent_steps(fails=False)
        promised = capacity.promises(self.machine.gpus)
        beyond = capacity.beyond(promised, self.cluster.ledger.used(NODE)).amounts
        assert self.node == capacity.total(promised.values()) + beyond


def test_any_history_of_gpus_and_pods() -> None:
    run_state_machine_as_test(
        History, settings=settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
    )
