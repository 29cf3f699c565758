"""What an empty node of a pool looks like: as declared before one was seen, as learnt afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.cache.templates import empty_node, empty_nodes
from contract.encoding.quantity import GIB, MIB
from contract.model import FREE, Compute, Delivery, Gpu, NodeState, PoolSharing, Taint
from contract.options import PoolOptions, pool_options
from tests.builders import NodeBuilder, node

DECLARED = {
    "gpus": 2,
    "model": "Tesla T4",
    "gpuMemory": "15Gi",
    "cpu": 16,
    "memory": "60Gi",
    "storage": "100Gi",
    "taints": [{"key": "gpu", "effect": "NoSchedule"}],
    "max": 10,
}
SHARERS = 7


def options(cluster: dict[str, Any] | None = None, declared: dict[str, Any] | None = None, **pool: Any) -> PoolOptions:
    """A document with the pool `t4`, whose nodes have the label `pool=t4`."""
    template = DECLARED if declared is None else declared
    pools = [{"name": "t4", "nodeSelector": {"matchLabels": {"pool": "t4"}}, "node": template, **pool}]
    return pool_options({**(cluster or {}), "pools": pools})


def of(document: PoolOptions, seen: Sequence[NodeBuilder | NodeState] = ()) -> NodeState:
    states = [each if isinstance(each, NodeState) else each.state() for each in seen]
    found = empty_node(document.pools[0], document.cluster, states, SHARERS)
    assert found is not None
    return found


def t4(name: str, gpus: int = 2, mib: int = 15_000) -> NodeBuilder:
    """A node of the pool."""
    return node(name).labelled("pool", "t4").gpus(gpus, "Tesla T4", mib=mib).allocatable(cpu=14_000, pods=110)


def test_a_declared_node_is_what_the_document_says() -> None:
    gpus = tuple(Gpu(f"t4-gpu-{i}", i, "Tesla T4", 15 * GIB, 15 * GIB, sharing=PoolSharing(SHARERS)) for i in range(2))
    assert of(options()) == NodeState(
        name="t4",
        gpus=gpus,
        usage=(FREE, FREE),
        labels={"pool": "t4"},
        taints=(Taint("gpu", "", "NoSchedule"),),
        allocatable=Compute(16_000, 60 * GIB, 100 * GIB, 110, scalars=None),
    )


OPTIONS: dict[str, tuple[PoolOptions, tuple[int, PoolSharing]]] = {
    "the reserve in bytes": (options({"reserveMem": 1024}), (14 * GIB, PoolSharing(SHARERS))),
    "the reserve in percent, which is more": (
        options({"reserveMem": 10, "reserveMemPercentage": 20}),
        (12 * GIB, PoolSharing(SHARERS)),
    ),
    "the pool's own options": (
        options({"deviceSplitCount": 3}, deviceSplitCount=5, deviceMemoryScaling=2, disablecorelimit=True),
        (15 * GIB, PoolSharing(5, 2.0, True)),
    ),
}


@pytest.mark.parametrize(("document", "want"), OPTIONS.values(), ids=OPTIONS.keys())
def test_a_declared_gpu_is_shared_by_the_options(document: PoolOptions, want: tuple[int, PoolSharing]) -> None:
    assert {(gpu.usable, gpu.sharing) for gpu in of(document).gpus} == {want}


def test_nothing_is_made_of_a_pool_of_which_too_little_is_known() -> None:
    unknown, undeclared = (
        options(declared={"max": 1}),
        pool_options({"pools": [{"name": "t4", "nodeSelector": {"matchLabels": {"pool": "t4"}}}]}),
    )
    for document in (unknown, undeclared):
        assert empty_node(document.pools[0], document.cluster, (), SHARERS) is None
    without_gpus = node("n1").labelled("pool", "t4").state()
    assert empty_node(unknown.pools[0], unknown.cluster, [without_gpus], SHARERS) is None
    assert empty_node(undeclared.pools[0], undeclared.cluster, [t4("n1").state()], SHARERS) is None


def test_what_was_seen_goes_before_what_was_declared() -> None:
    seen = replace(
        t4("n1", gpus=4).tainted("other").requested(cpu=500, pods=3).state(),
        delivery=Delivery(("nvidia",)),
        isolation=("driver", "watch"),
        cordoned=True,
        ready=False,
    )
    found = of(options(), [seen])
    assert [(gpu.uuid, gpu.usable) for gpu in found.gpus] == [(f"t4-gpu-{i}", 15_000 * MIB) for i in range(4)]
    assert found.taints == (Taint("other", "", "NoSchedule"),)
    assert (found.allocatable.cpu, found.allocatable.pods, found.requested) == (13_500, 107, Compute())
    assert (found.delivery, found.isolation) == (Delivery(("nvidia",)), ("driver", "watch"))
    assert (found.cordoned, found.ready, found.usage) == (False, True, (FREE,) * 4)


def test_a_pool_of_which_nothing_is_declared_is_learned() -> None:
    assert len(of(options(declared={"max": 1}), [t4("n1")]).gpus) == 2


def test_a_node_before_its_kubelet_reports_shows_nothing_of_the_pool() -> None:
    starting = t4("n1", gpus=4).allocatable(cpu=0, memory=0, storage=0, pods=0)
    assert of(options(), [starting]) == of(options())
    assert of(options(), [starting, t4("n2")]).allocatable.cpu == 14_000


def test_the_nodes_of_an_earlier_pool_say_nothing_of_a_later_one() -> None:
    template, both = {"max": 1}, {"gpu": "yes"}
    document = pool_options(
        {
            "pools": [
                {"name": "a", "nodeSelector": {"matchLabels": {"pool": "t4"}}, "node": template},
                {"name": "b", "nodeSelector": {"matchLabels": both}, "node": template},
            ]
        }
    )
    in_both, in_b = t4("n1").labelled("gpu", "yes"), node("n2").labelled("gpu", "yes").gpu("A100", mib=80_000)
    found = empty_nodes(document, [in_both.state(), in_b.state(), node("n3").gpu("L4").state()], SHARERS)
    assert [(each.name, each.gpus[0].model) for each in found] == [("a", "Tesla T4"), ("b", "A100")]
    assert [each.name for each in empty_nodes(document, [in_both.state()], SHARERS)] == ["a"]


LABELS: dict[str, tuple[list[NodeBuilder], dict[str, str]]] = {
    "the name of the one node is not a new node's": (
        [t4("n1").labelled("kubernetes.io/hostname", "n1.local").labelled("machine", "n1").labelled("zone", "a")],
        {"pool": "t4", "zone": "a"},
    ),
    "a zone that all have": (
        [t4("n1").labelled("zone", "a"), t4("n2").labelled("zone", "a")],
        {"pool": "t4", "zone": "a"},
    ),
    "a zone that they do not share": ([t4("n1").labelled("zone", "a"), t4("n2").labelled("zone", "b")], {"pool": "t4"}),
}


@pytest.mark.parametrize(("seen", "want"), LABELS.values(), ids=LABELS.keys())
def test_the_labels_of_a_learned_node(seen: list[NodeBuilder], want: dict[str, str]) -> None:
    assert of(options(), seen).labels == want


PASSING = (
    "startup-taint.cluster-autoscaler.kubernetes.io/gpufraction",
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unschedulable",
    "node.cloudprovider.kubernetes.io/uninitialized",
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupted",
)


@pytest.mark.parametrize("key", PASSING)
def test_a_taint_of_the_moment_is_not_a_new_nodes(key: str) -> None:
    assert of(options(), [t4("n1").tainted(key).tainted("gpu")]).taints == (Taint("gpu", "", "NoSchedule"),)
    declared = {**DECLARED, "taints": [{"key": key, "effect": "NoSchedule"}]}
    assert of(options(declared=declared)).taints == ()


def test_a_taint_of_one_node_is_not_the_pools() -> None:
    seen = [t4("n1").tainted("gpu").tainted("repair"), t4("n2").tainted("gpu")]
    assert of(options(), seen).taints == (Taint("gpu", "", "NoSchedule"),)


def test_one_node_with_a_broken_gpu_does_not_speak_for_the_pool() -> None:
    seen = [t4("n1", gpus=1), t4("n2"), t4("n3")]
    assert len(of(options(), seen).gpus) == 2
    assert len(of(options(), seen[:2]).gpus) == 2, "of two, the one that is nearer to what is declared"
    assert len(of(options(declared={"max": 1}), seen[:2]).gpus) == 2, "or the one that has more"
    ill = t4("n1").state()
    cordoned = replace(ill.gpus[0], healthy=False, reason="cordoned", withheld="Cordoned")
    well = of(options(), [replace(ill, gpus=(cordoned, replace(ill.gpus[1], healthy=False, reason="XID 79")))])
    assert [gpu.healthy for gpu in well.gpus] == [True, True]


def test_a_gpu_of_the_vendors_plugin_stays_with_it() -> None:
    found = t4("n1").state()
    theirs = replace(found.gpus[0], healthy=False, reason="the plugin's", withheld="NotShared")
    assert [gpu.healthy for gpu in of(options(), [replace(found, gpus=(theirs, found.gpus[1]))]).gpus] == [False, True]


def test_a_node_that_shares_no_gpu_does_not_speak_for_the_pool() -> None:
    found = t4("n1").state()
    theirs = tuple(replace(gpu, healthy=False, reason="the plugin's", withheld="NotShared") for gpu in found.gpus)
    assert of(options(), [replace(found, gpus=theirs)]) == of(options())


def test_slices_and_links_name_the_gpus_of_the_new_node() -> None:
    found = t4("n1").state()
    one, two = found.gpus
    linked = (replace(one, links=((two.uuid, "NVLink"),), pci="0000:3B:00.0"), replace(two, parent=one.uuid))
    made = of(options(), [replace(found, gpus=linked)]).gpus
    assert (made[0].links, made[0].pci, made[1].parent) == ((("t4-gpu-1", "NVLink"),), "", "t4-gpu-0")


def test_pods_get_the_least_that_a_node_of_the_pool_leaves() -> None:
    seen = [t4("n1").requested(cpu=500), t4("n2").allocatable(cpu=13_000).requested(cpu=100)]
    assert of(options(), seen).allocatable.cpu == 12_900


# -- one node with false reports ----------------------------------------------------------------------------------

LIES: dict[str, NodeState] = {
    "almost no CPU": t4("n0").allocatable(cpu=10).state(),
    "almost no memory": t4("n0").allocatable(memory=1).state(),
    "one pod": t4("n0").allocatable(pods=1).state(),
    "everything taken": t4("n0").requested(cpu=14_000, memory=64 * GIB, pods=110).state(),
    "one small card": t4("n0", gpus=1, mib=100).state(),
    "no way of delivery": replace(t4("n0").state(), delivery=Delivery(())),
    "no label": replace(t4("n0").state(), labels={"pool": "t4"}),
    "a taint of its own": t4("n0").tainted("mine").state(),
    "ports that are taken": replace(t4("n0").state(), host_ports=frozenset({("TCP", "0.0.0.0", 80)})),
}


def honest(number: int) -> list[NodeState]:
    made = (t4(f"n{i}").labelled("zone", "a").isolating("driver").state() for i in range(1, number + 1))
    return [replace(each, delivery=Delivery(("nvidia",))) for each in made]


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
@pytest.mark.parametrize("number", [2, 3, 5])
@pytest.mark.parametrize("declared", [DECLARED, {"max": 10}], ids=["declared", "not declared"])
def test_a_pool_of_several_nodes_ignores_one_that_lies(lie: NodeState, number: int, declared: dict[str, Any]) -> None:
    document = options(declared=declared)
    assert of(document, [lie, *honest(number)]) == of(document, honest(number))


@pytest.mark.parametrize("lie", [LIES[name] for name in ("almost no CPU", "almost no memory", "one small card")])
def test_a_lone_node_with_next_to_nothing_leaves_what_is_declared(lie: NodeState) -> None:
    found, declared = of(options(), [lie]), of(options())
    assert found.allocatable.cpu * 2 >= declared.allocatable.cpu
    assert found.allocatable.memory * 2 >= declared.allocatable.memory
    assert sum(gpu.usable for gpu in found.gpus) * 2 >= sum(gpu.usable for gpu in declared.gpus)


AMOUNTS = st.integers(0, 20_000)


@given(st.lists(AMOUNTS, min_size=3, max_size=7), AMOUNTS)
def test_what_one_node_says_changes_the_room_by_little(others: list[int], lie: int) -> None:
    """The other nodes limit it: at least the least of them minus an eighth, at most the most of them."""
    rooms = [t4(f"n{i}").allocatable(cpu=cpu).state() for i, cpu in enumerate(others)]
    found = of(options(declared={"max": 10}), [*rooms, t4("liar").allocatable(cpu=lie).state()]).allocatable.cpu
    middle = sorted(others)[(len(others) - 1) // 2]
    assert min(middle, max(others)) - middle // 8 - 1 <= found <= max(others)
