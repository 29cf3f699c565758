"""
Where a pod is placed, in sentences: the plain engine is the specification, and the fast one must give the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from allocator.engine import reference
from allocator.engine.engine import Engine
from allocator.engine.reference import Decision, Placement, Policy, Unschedulable
from contract.encoding.quantity import GIB, MIB
from contract.model import ContainerAllocation, Delivery, FractionRequest, GpuShare, PodRequest, PoolSharing, Wishes
from contract.reasons.nodes import Code, ReasonCount
from contract.scheduling import filters
from contract.scheduling import needs as scheduling
from contract.scheduling.filters import DEFAULT_LIMITS, Limits
from contract.scheduling.needs import PodNeeds, SchedulingRequest, Toleration
from tests.builders import NodeBuilder, node


def one(**share: object) -> FractionRequest:
    return FractionRequest(container="main", **share)  # type: ignore[arg-type]


def ask(*containers: FractionRequest, needs: PodNeeds = PodNeeds(), **request: object) -> SchedulingRequest:  # noqa: B008  (frozen)
    return SchedulingRequest(PodRequest("native", containers, **request), needs)  # type: ignore[arg-type]


def shares(*gpus: tuple[str, int, int, int, int], container: str = "main") -> ContainerAllocation:
    """(uuid, index, MiB, cores, MiB of the GPU) of each share."""
    return ContainerAllocation(
        container,
        tuple(GpuShare(uuid, index, mib * MIB, cores, whole * MIB) for uuid, index, mib, cores, whole in gpus),
    )


def placed(on: str, *containers: ContainerAllocation) -> Placement:
    return Placement(on, containers)


def refused(*tallies: ReasonCount) -> Unschedulable:
    return Unschedulable(tallies)


@dataclass(frozen=True)
class Case:
    nodes: tuple[NodeBuilder, ...]
    ask: SchedulingRequest
    want: Decision
    policy: Policy = field(default_factory=Policy)
    limits: Limits = DEFAULT_LIMITS


T4 = {"model": "Tesla T4", "mib": 15109}
CASES = {
    "the GPU with the least room that suffices is taken, so that large requests find room elsewhere": Case(
        nodes=(node("a").gpu(mib=16384).gpu(mib=16384, used_mib=8192).gpu(mib=16384, used_mib=14000),),
        ask=ask(one(memory=4 * GIB)),
        want=placed("a", shares(("GPU-a-1", 1, 4096, 0, 16384))),
    ),
    "spread over GPUs takes the emptiest": Case(
        nodes=(node("a").gpu(mib=16384, used_mib=1024).gpu(mib=16384),),
        ask=ask(one(memory=4 * GIB), gpu_policy="spread"),
        want=placed("a", shares(("GPU-a-1", 1, 4096, 0, 16384))),
    ),
    "binpack over nodes takes the one that becomes the fullest": Case(
        nodes=(node("a").gpu(mib=16384), node("b").gpu(mib=16384, used_mib=4096)),
        ask=ask(one(memory=4 * GIB)),
        want=placed("b", shares(("GPU-b-0", 0, 4096, 0, 16384))),
    ),
    "spread over nodes takes the emptiest, and the tenant's word beats the administrator's": Case(
        nodes=(node("a").gpu(mib=16384, used_mib=4096), node("b").gpu(mib=16384)),
        ask=ask(one(memory=4 * GIB), node_policy="spread"),
        want=placed("b", shares(("GPU-b-0", 0, 4096, 0, 16384))),
        policy=Policy(node="binpack"),
    ),
    "a tie goes to the lesser name and the lower index": Case(
        nodes=(node("b").gpus(2), node("a").gpus(2)),
        ask=ask(one(memory=GIB)),
        want=placed("a", shares(("GPU-a-0", 0, 1024, 0, 15109))),
    ),
    "percent is of each card's own memory": Case(
        nodes=(node("a").gpu(mib=15109),),
        ask=ask(one(percent=20, cores=20)),
        want=Placement(
            "a",
            (ContainerAllocation("main", (GpuShare("GPU-a-0", 0, 15109 * MIB // 5, 20, 15109 * MIB),)),),
        ),
    ),
    "a container's GPUs are distinct cards": Case(
        nodes=(node("a").gpu(mib=16384), node("b").gpus(2, mib=16384)),
        ask=ask(one(count=2, memory=GIB)),
        want=placed("b", shares(("GPU-b-0", 0, 1024, 0, 16384), ("GPU-b-1", 1, 1024, 0, 16384))),
    ),
    "two containers that do not fit on one card get two": Case(
        nodes=(node("a").gpus(2, mib=10240),),
        ask=ask(
            FractionRequest("x", memory=6 * GIB),
            FractionRequest("y", memory=6 * GIB),
        ),
        want=placed(
            "a",
            shares(("GPU-a-0", 0, 6144, 0, 10240), container="x"),
            shares(("GPU-a-1", 1, 6144, 0, 10240), container="y"),
        ),
    ),
    "a first choice that would shut the second container out is taken back": Case(
        nodes=(node("a").gpu("A10", mib=24576).gpu("Tesla T4", mib=16384),),
        ask=ask(
            FractionRequest("any", memory=16 * GIB),
            FractionRequest("t4", memory=16 * GIB, wishes=Wishes(use_models=("T4",))),
        ),
        want=placed(
            "a",
            shares(("GPU-a-0", 0, 16384, 0, 24576), container="any"),
            shares(("GPU-a-1", 1, 16384, 0, 16384), container="t4"),
        ),
    ),
    "an init container costs nothing on the card that its pod uses anyway": Case(
        nodes=(node("a").gpu(mib=10240, used_mib=4096),),
        ask=ask(
            FractionRequest("prepare", memory=6 * GIB, init=True),
            FractionRequest("serve", memory=6 * GIB),
        ),
        want=placed(
            "a",
            shares(("GPU-a-0", 0, 6144, 0, 10240), container="prepare"),
            shares(("GPU-a-0", 0, 6144, 0, 10240), container="serve"),
        ),
    ),
    "containers on the same GPU add up there": Case(
        nodes=(node("a").gpu(mib=10240), node("b").gpu(mib=16384)),
        ask=ask(
            FractionRequest("x", memory=6 * GIB),
            FractionRequest("y", memory=6 * GIB),
            same_gpus=True,
        ),
        want=placed(
            "b",
            shares(("GPU-b-0", 0, 6144, 0, 16384), container="x"),
            shares(("GPU-b-0", 0, 6144, 0, 16384), container="y"),
        ),
    ),
    "a whole GPU is never one that somebody shares": Case(
        nodes=(node("a").gpu(mib=16384, used_mib=1).gpu(mib=16384),),
        ask=ask(one(percent=100, cores=100, exclusive=True)),
        want=placed("a", shares(("GPU-a-1", 1, 16384, 100, 16384))),
    ),
    "a GPU held whole takes nobody, though memory is oversubscribed": Case(
        nodes=(node("a").gpu(mib=16384, used_mib=16384, cores=0, exclusive=True),),
        ask=ask(one(memory=GIB)),
        want=refused(ReasonCount(Code.EXCLUSIVE, 1)),
        limits=Limits(memory_factor=3.0),
    ),
    "oversubscription promises more memory than there is": Case(
        nodes=(node("a").gpu(mib=16384, used_mib=16384),),
        ask=ask(one(memory=16 * GIB)),
        want=placed("a", shares(("GPU-a-0", 0, 16384, 0, 16384))),
        limits=Limits(memory_factor=2.0),
    ),
    "cores run out before memory": Case(
        nodes=(node("a").gpu("V100", mib=32768, used_mib=15000, cores=90, sharers=3),),
        ask=ask(one(memory=5000 * MIB, cores=30)),
        want=refused(ReasonCount(Code.CORES, 1, wanted=30, most=10)),
    ),
    "a pod without cores stays off a card whose cores are all promised": Case(
        nodes=(node("a").gpu(mib=16384, used_mib=1024, cores=100),),
        ask=ask(one(memory=GIB)),
        want=refused(ReasonCount(Code.CORES, 1, wanted=1, most=0)),
    ),
    "so many pods and no more share a card": Case(
        nodes=(node("a").gpu(mib=16384, used_mib=2, sharers=2),),
        ask=ask(one(memory=GIB)),
        want=refused(ReasonCount(Code.SHARERS, 1, wanted=2)),
        limits=Limits(max_sharers=2),
    ),
    "the options of a node's pool go before the allocator's own": Case(
        nodes=(
            node("a").gpu(mib=16384, used_mib=16384, sharing=PoolSharing(max_sharers=1, memory_factor=3.0)),
            node("b").gpu(mib=16384, used_mib=16384, sharing=PoolSharing(max_sharers=2, memory_factor=1.5)),
        ),
        ask=ask(one(memory=8 * GIB)),
        want=placed("b", shares(("GPU-b-0", 0, 8192, 0, 16384))),
    ),
    "fewer sharers than there are already take nobody more": Case(
        nodes=(node("a").gpu(mib=16384, used_mib=300, sharers=3, sharing=PoolSharing(max_sharers=2)),),
        ask=ask(one(memory=GIB)),
        want=refused(ReasonCount(Code.SHARERS, 1, wanted=2)),
    ),
    "less oversubscription than is booked takes nobody more": Case(
        nodes=(node("a").gpu(mib=16384, used_mib=40000, sharing=PoolSharing(memory_factor=2.0)),),
        ask=ask(one(memory=GIB)),
        want=refused(ReasonCount(Code.MEMORY, 1, wanted=GIB, most=0)),
    ),
    "cores that nothing enforces are told on the share": Case(
        nodes=(node("a").gpu(mib=16384, sharing=PoolSharing(cores_free=True)),),
        ask=ask(one(memory=GIB, cores=30)),
        want=placed("a", ContainerAllocation("main", (GpuShare("GPU-a-0", 0, GIB, 30, 16 * GIB, cores_free=True),))),
    ),
    "two GPUs of one NUMA node, though others have less room": Case(
        nodes=(
            node("a")
            .gpu(mib=16384, used_mib=8000, numa=0)
            .gpu(mib=16384, numa=1)
            .gpu(mib=16384, numa=0)
            .gpu(mib=16384, used_mib=9000, numa=1),
        ),
        ask=ask(one(memory=GIB, count=2, one_numa=True)),
        want=placed("a", shares(("GPU-a-1", 1, 1024, 0, 16384), ("GPU-a-3", 3, 1024, 0, 16384))),
    ),
    "a machine with too few on each NUMA node is left": Case(
        nodes=(
            node("a").gpu(mib=16384, used_mib=100, numa=0).gpu(mib=16384, used_mib=100, numa=1),
            node("b").gpu(mib=16384).gpu(mib=16384),
        ),
        ask=ask(one(memory=GIB, count=2, one_numa=True)),
        want=placed("b", shares(("GPU-b-0", 0, 1024, 0, 16384), ("GPU-b-1", 1, 1024, 0, 16384))),
    ),
    "no NUMA node has enough": Case(
        nodes=(node("a").gpu(mib=16384, numa=0).gpu(mib=16384, numa=1).gpu(mib=16384, sick="XID 79", numa=1),),
        ask=ask(one(memory=GIB, count=2, one_numa=True)),
        want=refused(ReasonCount(Code.NUMA, 1, wanted=2, most=1)),
    ),
    "free memory on two cards does not make one card": Case(
        nodes=(node("a").gpu(mib=16384, used_mib=10240).gpu(mib=16384, used_mib=12288),),
        ask=ask(one(memory=10 * GIB)),
        want=refused(ReasonCount(Code.MEMORY, 1, wanted=10 * GIB, most=6 * GIB)),
    ),
    "an unhealthy card takes nobody": Case(
        nodes=(node("a").gpu(mib=16384, sick="XID 79"),),
        ask=ask(one(memory=GIB)),
        want=refused(ReasonCount(Code.UNHEALTHY, 1)),
    ),
    "a cordoned card takes nobody, and is not told to be sick": Case(
        nodes=(node("a").gpu(mib=16384, sick="XID 79").gpu(mib=16384, withheld="Cordoned"),),
        ask=ask(one(memory=GIB)),
        want=refused(ReasonCount(Code.GPU_CORDONED, 1)),
    ),
    "a card that a vendor's device plugin may give away takes nobody": Case(
        nodes=(node("a").gpu(mib=16384, withheld="NotShared").gpu(mib=16384, sick="XID 79"),),
        ask=ask(one(memory=GIB)),
        want=refused(ReasonCount(Code.NOT_SHARED, 1)),
    ),
    "models are wished for by words, whatever their case": Case(
        nodes=(node("a").gpu("Tesla T4"), node("b").gpu("NVIDIA A100-SXM4-80GB", mib=81920)),
        ask=ask(one(memory=GIB, wishes=Wishes(use_models=("a100", "h100")))),
        want=placed("b", shares(("GPU-b-0", 0, 1024, 0, 81920))),
    ),
    "a whole card of a least size is wished for": Case(
        nodes=(node("a").gpu("Tesla T4"), node("b").gpu("NVIDIA A100-SXM4-80GB", mib=81920)),
        ask=ask(one(memory=GIB, wishes=Wishes(least_memory=40 * GIB))),
        want=placed("b", shares(("GPU-b-0", 0, 1024, 0, 81920))),
    ),
    "models are avoided": Case(
        nodes=(node("a").gpu("Tesla T4"),),
        ask=ask(one(memory=GIB, wishes=Wishes(avoid_models=("t4",)))),
        want=refused(ReasonCount(Code.MODEL, 1)),
    ),
    "one GPU is wished for by its UUID": Case(
        nodes=(node("a").gpus(3),),
        ask=ask(one(memory=GIB, wishes=Wishes(use_uuids=("GPU-a-2",)))),
        want=placed("a", shares(("GPU-a-2", 2, 1024, 0, 15109))),
    ),
    "a UUID that is nowhere is told": Case(
        nodes=(node("a").gpus(1),),
        ask=ask(one(memory=GIB, wishes=Wishes(use_uuids=("GPU-x",)))),
        want=refused(ReasonCount(Code.UUID, 1)),
    ),
    "more GPUs than any node has": Case(
        nodes=(node("a").gpus(2), node("b").gpus(4)),
        ask=ask(one(count=8, memory=GIB)),
        want=refused(ReasonCount(Code.TOO_FEW_GPUS, 2, wanted=8, most=4)),
    ),
    "every kind of no is counted with its figures": Case(
        nodes=(
            node("a").gpu(mib=16384, used_mib=11264),
            node("b").gpu(mib=8192, used_mib=7168),
            node("c").gpus(1).cordoned(),
            node("d").gpus(1).not_ready(),
            node("e").gpus(1).tainted("nvidia.com/gpu", "present"),
            node("f"),
            node("g").gpus(1).requested(cpu=31_500),
            node("h").gpus(1).requested(pods=110),
        ),
        ask=ask(one(memory=8 * GIB), needs=PodNeeds(compute=PodNeeds().compute.__class__(cpu=1000, pods=1))),
        want=refused(
            ReasonCount(Code.NO_GPUS, 1),
            ReasonCount(Code.CORDONED, 1),
            ReasonCount(Code.NOT_READY, 1),
            ReasonCount(Code.TAINT, 1, what="nvidia.com/gpu=present:NoSchedule"),
            ReasonCount(Code.CPU, 1, wanted=1000, most=500),
            ReasonCount(Code.PODS, 1, wanted=1),
            ReasonCount(Code.MEMORY, 2, wanted=8 * GIB, most=5 * GIB),
        ),
    ),
    "selectors, tolerations and a named node are honoured": Case(
        nodes=(
            node("a").gpus(1).labelled("pool", "x"),
            node("b").gpus(1).labelled("pool", "gpu").tainted("nvidia.com/gpu"),
            node("c").gpus(1).labelled("pool", "gpu"),
        ),
        ask=ask(
            one(memory=GIB),
            needs=PodNeeds(
                node_name="b", node_selector=(("pool", "gpu"),), tolerations=(Toleration("nvidia.com/gpu", "Exists"),)
            ),
        ),
        want=placed("b", shares(("GPU-b-0", 0, 1024, 0, 15109))),
    ),
    "a host port in use keeps the pod off": Case(
        nodes=(node("a").gpus(1).port_taken(8080), node("b").gpu(used_mib=0).port_taken(9090)),
        ask=ask(one(memory=GIB), needs=PodNeeds(host_ports=frozenset({("", "TCP", 8080)}))),
        want=placed("b", shares(("GPU-b-0", 0, 1024, 0, 15109))),
    ),
    "no node at all": Case(nodes=(), ask=ask(one(memory=GIB)), want=refused()),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_plain_engine(case: Case) -> None:
    snapshot = {builder.name: builder.state() for builder in case.nodes}
    assert reference.decide(snapshot, case.ask, limits=case.limits, policy=case.policy) == case.want


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_fast_engine_says_the_same(case: Case) -> None:
    fast = Engine(limits=case.limits, policy=case.policy)
    for builder in case.nodes:
        fast.put(builder.state())
    assert fast.decide(case.ask) == case.want


def test_what_could_never_fit_is_known_though_the_cluster_is_full_or_ill() -> None:
    nodes = [node("a").gpu(mib=16384, used_mib=16384), node("b").gpu(mib=8192, sick="XID 79").cordoned()]
    fast = Engine()
    for builder in nodes:
        fast.put(builder.state())
    assert fast.could_ever(ask(one(memory=16 * GIB))) is None
    want = refused(ReasonCount(Code.MEMORY, 2, wanted=17 * GIB, most=16 * GIB))
    assert fast.could_ever(ask(one(memory=17 * GIB))) == want


def test_a_cluster_without_gpus_is_one_whose_nodes_are_still_to_come() -> None:
    assert reference.could_ever({"cpu": node("cpu").state()}, ask(one(memory=GIB))) is None


def test_several_gpus_for_one_container_go_where_one_container_can_use_several() -> None:
    one, many = Delivery(("",), single=True), Delivery(("",))
    needs = [scheduling.needs_of({}, several=several) for several in (False, True)]
    states = [replace(node("n").state(), delivery=delivery) for delivery in (None, one, many)]
    found = [[filters.delivers(state, need) for state in states] for need in needs]
    assert found == [[True, True, True], [True, False, True]]


def test_cards_that_were_replaced_by_as_many_others_are_evaluated_again() -> None:
    """The fast engine evaluates one node for all with the same kinds of GPUs, and a node may get other GPUs."""
    wanted = ask(one(memory=30 * GIB))
    states = {name: node(name).gpu(mib=16384).state() for name in ("a", "b")}
    fast = Engine()
    for state in states.values():
        fast.put(state)
    for mib in (40960, 16384):
        states["b"] = node("b").gpu(mib=mib).state()
        fast.put(states["b"])
        assert fast.could_ever(wanted) == reference.could_ever(states, wanted)
