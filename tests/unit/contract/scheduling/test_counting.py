"""Whether Kubernetes has room on a node for what it counts for a pod, if that is more than the pod holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from contract.encoding.quantity import GIB
from contract.model import (
    NO_OVERCOUNT,
    Allocation,
    ContainerAllocation,
    FractionRequest,
    GpuShare,
    NodeState,
    Overcount,
    PodRequest,
    PoolSharing,
    Usage,
)
from contract.reasons.nodes import Code, Reason
from contract.scheduling import counting, fit, nodeinfo
from contract.scheduling.demand import demands, overcount
from contract.scheduling.filters import DEFAULT_LIMITS
from contract.scheduling.fit import Fit
from contract.scheduling.needs import PodNeeds, SchedulingRequest
from tests.builders import node

MEMORY = "GPU memory in MiB, as Kubernetes counts it, which is more than pods hold"
CORES = "GPU cores in percent, as Kubernetes counts them, which is more than pods hold"


def share(name: str, gib: int = 0, *, init: bool = False, percent: int = 0, cores: int = 0) -> FractionRequest:
    return FractionRequest(name, 1, gib * GIB, percent, cores, init=init)


def ask(*fractions: FractionRequest) -> SchedulingRequest:
    return SchedulingRequest(PodRequest("native", fractions), PodNeeds())


LARGE_FIRST = ask(share("first", 15, init=True), share("a", 5), share("b", 5))
"""Kubernetes counts 20 GiB for it, but on one card it holds 15."""
PERCENT = ask(share("first", percent=60, init=True), share("a", percent=20), share("b", percent=20))
STORED_EARLIER = ask(share("main", percent=50))
STORED_EARLIER = replace(STORED_EARLIER, request=replace(STORED_EARLIER.request, counted=16 * GIB))
"""It was counted when all cards had 32 GiB, and holds 8 of a card of 16."""
BUSY = ask(share("first", 1, init=True, cores=60), share("a", 1, cores=20), share("b", 1, cores=20))
ONE = ask(share("main", 12))


def cards(*used: int) -> NodeState:
    """A node with one card of 16 GiB for each number, of which this many GiB are used."""
    made = node("a")
    for gib in used:
        made = made.gpu("Tesla T4", mib=16 * 1024, used_mib=gib * 1024)
    return made.state()


def placed(ask: SchedulingRequest, *cards: int) -> Allocation:
    """Each container on the card with this number."""
    return Allocation(
        "id",
        "a",
        tuple(
            ContainerAllocation(
                each.container, (GpuShare(f"GPU-{at}", at, each.memory_on(16 * GIB), each.cores, 16 * GIB),)
            )
            for each, at in zip(ask.request.containers, cards, strict=True)
        ),
    )


OVERCOUNTS = {
    "on one card": (LARGE_FIRST, (0, 0, 0), Overcount(5 * GIB)),
    "beside the last one": (LARGE_FIRST, (0, 0, 1), NO_OVERCOUNT),
    "by percent": (PERCENT, (0, 0, 0), Overcount(16 * GIB * 20 // 100 + 1)),
    "of cores": (BUSY, (0, 0, 0), Overcount(0, 20)),
    "no init container": (ask(share("a", 5), share("b", 5)), (0, 0), NO_OVERCOUNT),
    "a share in percent that was stored before smaller cards came": (STORED_EARLIER, (0,), Overcount(8 * GIB)),
    "an init container in the share of the main one": (
        ask(share("i", 4, init=True), share("a", 8)),
        (0, 0),
        NO_OVERCOUNT,
    ),
}


@pytest.mark.parametrize(("ask_", "on", "want"), OVERCOUNTS.values(), ids=OVERCOUNTS.keys())
def test_what_is_counted_beyond_what_is_held(ask_: SchedulingRequest, on: tuple[int, ...], want: Overcount) -> None:
    allocation = placed(ask_, *on)
    found = overcount(ask_.request, allocation, demands(ask_.request, allocation).values())
    assert abs(found.memory - want.memory) <= 1, "percentages are rounded down, container by container"
    assert found.cores == want.cores


def test_a_claims_share_is_not_counted_by_kubernetes() -> None:
    allocation = replace(placed(LARGE_FIRST, 0, 0, 0), claim="egpu-1")
    assert overcount(LARGE_FIRST.request, allocation, ()) is NO_OVERCOUNT


def counting_more(state: NodeState, memory: int = 0, cores: int = 0) -> NodeState:
    return replace(state, overcount=Overcount(memory * GIB, cores))


def withheld(state: NodeState, why: str) -> NodeState:
    first, *others = state.gpus
    return replace(state, gpus=(replace(first, healthy=False, withheld=why), *others))


def shared(state: NodeState, options: PoolSharing) -> NodeState:
    return replace(state, gpus=tuple(replace(gpu, sharing=options) for gpu in state.gpus))


SHORTAGES: dict[str, tuple[NodeState, SchedulingRequest, Reason | None]] = {
    "a usual pod is never asked": (cards(16), ONE, None),
    "as much is left as is counted": (cards(0, 12), LARGE_FIRST, None),
    "a card that can hold it, and no room for Kubernetes": (
        cards(0, 13),
        LARGE_FIRST,
        Reason(Code.RESOURCE, 20 * 1024, 19 * 1024, MEMORY),
    ),
    "a node of one card": (cards(0), LARGE_FIRST, Reason(Code.RESOURCE, 20 * 1024, 16 * 1024, MEMORY)),
    "a usual pod beside such a pod": (counting_more(cards(15, 0), 5), ONE, None),
    "and a larger one": (
        counting_more(cards(15, 0), 5),
        ask(share("main", 13)),
        Reason(Code.RESOURCE, 13 * 1024, 12 * 1024, MEMORY),
    ),
    "cores": (counting_more(cards(1), 0, 50), ask(share("a", 1, cores=60)), Reason(Code.RESOURCE, 60, 50, CORES)),
    "a card that is withheld promises its memory": (withheld(cards(0, 12), "Cordoned"), LARGE_FIRST, None),
    "a card of the vendor's plugin promises nothing": (
        withheld(cards(0, 12), "NotShared"),
        LARGE_FIRST,
        Reason(Code.RESOURCE, 20 * 1024, 4 * 1024, MEMORY),
    ),
    "a pool that promises more than there is": (shared(cards(8), PoolSharing(0, 2.0)), LARGE_FIRST, None),
    "a card with more held than it promises takes nothing from others": (cards(20, 0, 12), LARGE_FIRST, None),
    "where claims have taken what is left": (
        counting_more(cards(16), 4),
        ask(share("a", 1)),
        Reason(Code.RESOURCE, 1024, 0, MEMORY),
    ),
    "a claim needs none": (
        counting_more(cards(16), 4),
        SchedulingRequest(PodRequest("claims", (share("a"),), claim="c"), PodNeeds()),
        None,
    ),
    "percent": (cards(0, 13), PERCENT, None),
    "a share in percent that was stored before smaller cards came, on two cards": (cards(0, 16), STORED_EARLIER, None),
    "on one that has room for it, and none for Kubernetes": (
        cards(1),
        STORED_EARLIER,
        Reason(Code.RESOURCE, 16 * 1024, 15 * 1024, MEMORY),
    ),
    "percent, and no room": (
        cards(0, 16),
        ask(share("first", percent=90, init=True), share("a", percent=20), share("b", percent=20)),
        Reason(Code.RESOURCE, 18023, 16 * 1024, MEMORY),
    ),
}


@pytest.mark.parametrize(("state", "ask_", "want"), SHORTAGES.values(), ids=SHORTAGES.keys())
def test_kubernetes_is_short_of_room(state: NodeState, ask_: SchedulingRequest, want: Reason | None) -> None:
    assert counting.shortage(state, ask_) == want


def test_the_pods_own_request_is_counted_whatever_form_of_it_is_placed() -> None:
    """With all containers on one card nothing more would be counted."""
    joined = fit.joined(LARGE_FIRST.request)
    assert joined is not None
    state = cards(0)
    form = replace(LARGE_FIRST, request=joined, stored=LARGE_FIRST.as_stored)
    assert counting.shortage(state, form) == counting.shortage(state, LARGE_FIRST) is not None


def test_a_node_with_a_pod_more_or_less_has_its_overcount() -> None:
    state = cards(0, 0)
    found = fit.fit(state, LARGE_FIRST.request, DEFAULT_LIMITS, fit.least_free)
    assert isinstance(found, Fit)
    containers = fit.allocate(state, LARGE_FIRST.request, found.chosen)
    after = nodeinfo.booked(state, LARGE_FIRST, containers)
    assert after.overcount == Overcount(5 * GIB)
    held = demands(LARGE_FIRST.request, Allocation("", "a", containers))
    there = nodeinfo.AllocatedPod("u", "ns/u", "a", 0, 0, held, LARGE_FIRST.needs.compute, overcount=after.overcount)
    without = nodeinfo.unbooked(after, [there], [there])
    assert (without.overcount, without.usage) == (NO_OVERCOUNT, (Usage(), Usage()))
