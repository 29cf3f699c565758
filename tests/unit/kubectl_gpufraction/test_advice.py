"""The smallest set of evictions, compared with every set tried one by one, and what keeps a pod in its place."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from contract.encoding.quantity import GIB
from contract.model import FREE, Allocation, Compute, FractionRequest, Gpu, NodeState, PodRequest
from contract.scheduling import fit, protection
from contract.scheduling.needs import PodNeeds, Requirement, unpinned
from kubectl_gpufraction.advice import hosts, search
from kubectl_gpufraction.advice.hosts import AdviceInput
from kubectl_gpufraction.advice.search import Advice, AdvisedEviction, Nothing, advise
from kubectl_gpufraction.cluster import room
from kubectl_gpufraction.cluster.room import NodeWithPods, RoomRequest, ShareHolder
from kubectl_gpufraction.cluster.state import Pod
from kubectl_gpufraction.commands import advise as advised
from runtime.kubernetes.client import Kube
from tests.builders import pod
from tests.examples import examples
from tests.unit.kubectl_gpufraction.objects import admitted, gpunode, node
from tests.wires import Answer, Script, status_body

ALLOWED = {"ns/none": 0, "ns/one": 1}


def request(*, gib: int, count: int = 1, cores: int = 0, exclusive: bool = False) -> PodRequest:
    if exclusive:
        return PodRequest("native", (FractionRequest("main", count, percent=100, cores=100, exclusive=True),))
    return PodRequest("native", (FractionRequest("main", count, memory=gib * GIB, cores=cores),))


def requests(least: int, most: int) -> st.SearchStrategy[PodRequest]:
    return st.builds(
        request,
        gib=st.integers(least, most),
        count=st.sampled_from((1, 1, 1, 2)),
        cores=st.sampled_from((0, 0, 0, 30)),
        exclusive=st.sampled_from((False, False, False, True)),
    )


cpus = st.sampled_from((0, 1000, 3000)).map(lambda cpu: PodNeeds(Compute(cpu=cpu, pods=1)))


@st.composite
def clusters(draw: st.DrawFn) -> list[NodeWithPods]:
    """Up to three nodes of up to two GPUs, with each pod placed where the rules allow it."""
    made = []
    for name in "abc"[: draw(st.integers(1, 3))]:
        gpus = tuple(Gpu(f"{name}{at}", at, "T4", 10 * GIB, 10 * GIB) for at in range(draw(st.integers(1, 2))))
        cpu = draw(st.sampled_from((4000, 100_000)))
        state = NodeState(name, gpus, (FREE,) * len(gpus), allocatable=Compute(cpu, 1 << 40, 1 << 40, 10))
        holders: list[ShareHolder] = []
        for number in range(draw(st.integers(2, 6))):
            ask, needs = draw(requests(2, 5)), draw(cpus)
            chosen = room.takes(NodeWithPods(state, tuple(holders)).without(()), RoomRequest(ask, needs))
            if chosen is not None:
                holding = Pod(
                    "ns",
                    f"{name}{number}",
                    name,
                    "Running",
                    0.0,
                    draw(st.integers(0, 2)),
                    ask,
                    Allocation("", name, ()),
                )
                holders.append(
                    ShareHolder(
                        holding,
                        holding.name,
                        needs,
                        {state.gpus[at].uuid: one for at, one in fit.demands_of(state, ask, chosen).items()},
                        frozenset(draw(st.sampled_from(((), (), ("ns/one",), ("ns/none",))))),
                        draw(st.sampled_from(("", "", "", "it stays"))),
                    )
                )
        made.append(NodeWithPods(state, tuple(holders)))
    return made


def fits(host: NodeWithPods, evicted: Sequence[ShareHolder], wanted: RoomRequest) -> bool:
    return room.takes(host.without({each.uid for each in evicted}), wanted) is not None


def keeps_their_places(
    cluster: Sequence[NodeWithPods],
    host: NodeWithPods,
    evicted: Sequence[ShareHolder],
    wanted: RoomRequest,
    priority: int | None,
) -> bool:
    """Whether all pods that must move find another place, each in turn on the first node with room."""

    def booked(state: NodeState, what: RoomRequest) -> NodeState:
        chosen = room.takes(state, what)
        assert chosen is not None
        return room.booked(state, what, chosen)

    states = {each.name: each.without(()) for each in cluster}
    states[host.name] = booked(host.without({each.uid for each in evicted}), wanted)
    for each in sorted(evicted, key=lambda one: (-one.pod.priority, -one.memory, one.pod.key)):
        order = [other for other in cluster if room.takes(other.without(()), each.wanted) is not None] + [host]
        to = next((other for other in order if room.takes(states[other.name], each.wanted) is not None), None)
        if to is not None:
            states[to.name] = booked(states[to.name], each.wanted)
        elif priority is None or each.pod.priority >= priority:
            return False
    return True


def smallest(
    cluster: Sequence[NodeWithPods], wanted: RoomRequest, priority: int | None
) -> tuple[str, list[str]] | None:
    """Every set of pods of one node, the smallest first."""
    if any(fits(host, (), wanted) for host in cluster):
        return next(host.name for host in cluster if fits(host, (), wanted)), []
    found = []
    for host in cluster:
        able = [each for each in host.holders if not each.stays and (priority is None or each.pod.priority <= priority)]
        for size in range(1, len(able) + 1):
            for evicted in combinations(able, size):
                budgets = [budget for each in evicted for budget in each.budgets]
                if (
                    fits(host, evicted, wanted)
                    and not any(fits(host, fewer, wanted) for fewer in combinations(evicted, size - 1))
                    and all(budgets.count(budget) <= ALLOWED[budget] for budget in budgets)
                    and keeps_their_places(cluster, host, evicted, wanted, priority)
                ):
                    returning = sum(fits(host, (), each.wanted) for each in evicted)
                    priorities = sorted((each.pod.priority for each in evicted), reverse=True)
                    memory = sum(each.memory for each in evicted)
                    names = sorted(each.pod.key for each in evicted)
                    found.append((size, returning, priorities, memory, host.name, names))
    return (min(found)[4], min(found)[5]) if found else None


@given(clusters(), requests(6, 10), cpus, st.sampled_from((None, 0, 1, 2, 2)))
@settings(max_examples=examples(60), deadline=None)
def test_no_smaller_set_would_do(
    cluster: list[NodeWithPods], ask: PodRequest, needs: PodNeeds, priority: int | None
) -> None:
    wanted = RoomRequest(ask, needs)
    found = advise(cluster, wanted, ALLOWED, priority=priority)
    expected = smallest(cluster, wanted, priority)
    event("none" if expected is None else f"{len(expected[1])} evictions")
    if isinstance(found, Nothing):
        assert (expected, found.exhausted) == (None, False)
    else:
        assert (found.node, sorted(each.holder.pod.key for each in found.evictions)) == expected


def test_a_search_that_is_cut_short_says_so() -> None:
    held = [owned(admitted(f"p{at}", "gpufraction.io/gpu-memory", "1Gi", on="n1")) for at in range(12)]
    seen = look([gpunode("n1", 15109)], [node("n1", ROOMY)], held)
    assert advise(seen.hosts, search.whole_gpus(1), {}, steps=5) == Nothing(exhausted=False), "12 are too many at once"
    waiting = RoomRequest(request(gib=6), PodNeeds())
    assert advise(seen.hosts, waiting, {}, steps=5) == Nothing(exhausted=True)


# -- the objects --------------------------------------------------------------------------------------------------

ROOMY = {"cpu": "32", "memory": "128Gi", "ephemeral-storage": "200Gi", "pods": "110"}


def owned(made: dict[str, Any], kind: str = "ReplicaSet", **metadata: Any) -> dict[str, Any]:
    """The pod as a controller creates it."""
    owner = {"apiVersion": "apps/v1", "kind": kind, "name": "its", "uid": "u", "controller": True}
    annotations = {**made["metadata"]["annotations"], **metadata.pop("annotations", {})}
    changed = {**made["metadata"], "ownerReferences": [owner], **metadata, "annotations": annotations}
    return {**made, "metadata": changed}


def look(gpunodes: list[Any], nodes: list[Any], pods: list[Any], budgets: Sequence[Any] = ()) -> AdviceInput:
    return hosts.advice_input(gpunodes, nodes, pods, budgets)


def budget(allowed: int, **selector: Any) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "default", "name": "guard"},
        "spec": {"selector": selector},
        "status": {"disruptionsAllowed": allowed},
    }


HELD = admitted("held", "gpufraction.io/gpu-memory", "12Gi", on="n1")
STAYS = {
    "a pod without a controller": (HELD, (), "no controller would create it again"),
    "a pod of a DaemonSet": (owned(HELD, "DaemonSet"), (), "it belongs to its node"),
    "a pod that a controller makes again": (owned(HELD), (), ""),
    "a pod that asks to be left alone": (
        owned(HELD, annotations={"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}),
        (),
        "its annotation cluster-autoscaler.kubernetes.io/safe-to-evict is false",
    ),
    "a pod that our setting keeps autoscalers from": (owned(HELD, annotations=protection.added({})), (), ""),
    "a budget that allows none": (
        owned(HELD, labels={"app": "x"}),
        (budget(0, matchLabels={"app": "x"}),),
        "PodDisruptionBudget guard allows no eviction now",
    ),
    "a budget that allows one": (owned(HELD, labels={"app": "x"}), (budget(1, matchLabels={"app": "x"}),), ""),
    "another pod's budget": (owned(HELD, labels={"app": "y"}), (budget(0, matchLabels={"app": "x"}),), ""),
    "a budget for all": (owned(HELD), (budget(0),), "PodDisruptionBudget guard allows no eviction now"),
    "a budget by expressions": (
        owned(HELD, labels={"app": "y"}),
        (budget(0, matchExpressions=[{"key": "app", "operator": "NotIn", "values": ["x"]}]),),
        "PodDisruptionBudget guard allows no eviction now",
    ),
}


@pytest.mark.parametrize("case", STAYS.values(), ids=STAYS.keys())
def test_who_must_stay(case: tuple[dict[str, Any], Sequence[Any], str]) -> None:
    held, budgets, stays = case
    (host,) = look([gpunode("n1", 15109)], [node("n1", ROOMY)], [held], budgets).hosts
    assert [each.stays for each in host.holders] == [stays]


def test_the_pod_that_is_made_again_is_free_to_go_elsewhere() -> None:
    pinned = Requirement("metadata.name", "In", ("n1",), field=True)
    zone = Requirement("zone", "In", ("a",))
    assert unpinned(PodNeeds(node_name="n1", affinity=((pinned,),))) == PodNeeds()
    assert unpinned(PodNeeds(affinity=((zone, pinned),))) == PodNeeds(affinity=((zone,),))


WAITING = admitted("train", "nvidia.com/gpu", 1, priority=1, waits="full")
NODES = [gpunode("n1", 15109), gpunode("n2", 15109)], [node("n1", ROOMY), node("n2", ROOMY)]
ON_N2 = owned(admitted("other", "gpufraction.io/gpu-memory", "2Gi", on="n2"))


def sentences(pods: list[Any], *, gpus: int = 0) -> list[str]:
    seen = look(*NODES, pods)
    called = advised.report_for(seen, None if gpus else seen.queue[0], gpus)
    return advised.sentences(called, {}, evicting=False)


def test_the_pod_that_finds_another_place_is_moved() -> None:
    moved = owned(admitted("small", "gpufraction.io/gpu-memory", "3Gi", on="n1"))
    assert sentences([WAITING, moved, ON_N2]) == [
        "1 eviction would make room for default/train (requests 1xwhole) on node n2, GPU 0:",
        "  default/other (2048 MiB, priority 0): then there is room for it on node n1",
        advised._RETURNS,
        "Nothing was changed; --evict requests these evictions from the API server.",
    ]


def test_one_of_lower_priority_may_have_to_wait() -> None:
    assert sentences([WAITING, owned(HELD), ON_N2 | {"metadata": {**ON_N2["metadata"], "ownerReferences": []}}])[1] == (
        "  default/held (12288 MiB, priority 0): then there is room for it on node n2"
    )
    full = owned(admitted("full", "gpufraction.io/gpu-memory", "14Gi", on="n2"))
    assert sentences([WAITING, owned(HELD), full])[1] == (
        "  default/held (12288 MiB, priority 0): then it waits, since its priority is lower"
    )


def test_nobody_is_moved_to_free_gpus_who_would_lose_the_share() -> None:
    full = owned(admitted("full", "gpufraction.io/gpu-memory", "14Gi", on="n2"))
    assert sentences([owned(HELD), full], gpus=1) == [
        "No evictions (up to 6, of one node) would make room for 1 whole GPU of one node.",
        "Pods of the same or a higher priority are evicted only if there is room for them elsewhere.",
    ]
    assert sentences([owned(HELD)], gpus=1) == [
        "No eviction is needed: 1 whole GPU of one node is free on node n2, GPU 0."
    ]


def test_the_first_in_line_is_one_that_nothing_else_holds_back() -> None:
    held = admitted("held-back", "nvidia.com/gpu", 1, priority=9, waits="full")
    held["spec"]["schedulingGates"].append({"name": "example.com/quota"})
    seen = look(*NODES, [WAITING, held])
    found = [seen.waiter(), seen.waiter("default/held-back"), seen.waiter("default/nobody")]
    assert [each and (each.pod.name, each.foreign) for each in found] == [
        ("train", ()),
        ("held-back", ("example.com/quota",)),
        None,
    ]


def test_pods_that_are_being_deleted_count_as_deleted() -> None:
    leaving = owned(HELD, deletionTimestamp="2026-01-05T09:00:00Z")
    assert sentences([WAITING, leaving, ON_N2]) == [
        "No eviction is needed: default/train (requests 1xwhole) fits on node n1, GPU 0.",
        "(once these pods, which are being deleted, have ended: default/held)",
    ]


def test_pods_that_stay_are_listed() -> None:
    assert sentences([WAITING, HELD, ON_N2 | {"metadata": {**ON_N2["metadata"], "ownerReferences": []}}]) == [
        "No evictions (up to 6, of one node) would make room for default/train (requests 1xwhole).",
        "Cannot be evicted: default/held (no controller would create it again), "
        "default/other (no controller would create it again).",
        "Pods of the same or a higher priority are evicted only if there is room for them elsewhere.",
    ]


def test_what_other_pods_take_of_the_node_counts() -> None:
    small = {**ROOMY, "cpu": "2"}
    seen = look([gpunode("n1", 15109)], [node("n1", small)], [owned(HELD)])
    wanted = RoomRequest(request(gib=1), PodNeeds(Compute(cpu=2000, pods=1)))
    assert isinstance(advise(seen.hosts, wanted, {}), Advice)
    beside = pod("plain").on("n1").needs(cpu="1").json()
    assert advise(
        look([gpunode("n1", 15109)], [node("n1", small)], [owned(HELD), beside]).hosts, wanted, {}
    ) == Nothing(exhausted=False)


def test_the_first_refusal_ends_it() -> None:
    held = [owned(admitted(f"p{at}", "gpufraction.io/gpu-memory", "4Gi", on="n1")) for at in range(3)]
    (host,) = look([gpunode("n1", 15109)], [node("n1", ROOMY)], held).hosts
    over_budget = status_body(429, "TooManyRequests", "its budget forbids it")
    transport = Script(Answer(201, {"kind": "Status", "status": "Success"}), Answer(429, over_budget))
    done = advised.carried_out(Kube(transport), [AdvisedEviction(each, "") for each in host.holders])
    assert [sent.path for sent in transport.sent] == [
        f"/api/v1/namespaces/default/pods/p{at}/eviction" for at in range(2)
    ]
    assert (done["p0"], "its budget forbids it" in done["p1"]) == (advised.EVICTED, True)
