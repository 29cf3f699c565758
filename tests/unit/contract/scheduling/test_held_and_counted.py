"""What a pod with init containers holds while it lives, and what Kubernetes counts for it, which a quota sees."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract import pods
from contract.encoding import quantity
from contract.encoding.quantity import GIB
from contract.model import ANY_GPU, FractionRequest, PodRequest, Wishes
from contract.scheduling import fit
from contract.scheduling.demand import ALL_COUNTED, Uncounted, held_at_most, uncounted
from contract.scheduling.filters import DEFAULT_LIMITS
from contract.scheduling.fit import Fit
from tests.builders import node
from tests.examples import examples


def share(
    name: str,
    gib: int,
    *,
    init: bool = False,
    count: int = 1,
    cores: int = 0,
    only: str = "",
    apart: bool = False,
) -> FractionRequest:
    wishes = Wishes(use_models=(only,)) if only else ANY_GPU
    return FractionRequest(name, count, gib * GIB, cores=cores, init=init, wishes=wishes, apart=apart)


def of(*fractions: FractionRequest) -> PodRequest:
    return PodRequest("native", fractions)


def totals(request: PodRequest) -> dict[str, int]:
    return {each.container: each.count * each.memory for each in request.containers}


def counted(request: PodRequest) -> tuple[int, int]:
    """What Kubernetes counts for the pod by its accounting resources (the rule of sidecars included)."""
    besides = uncounted(request, totals(request))
    running, peak = (0, 0), (0, 0)
    for each in request.containers:
        found = pods.accounting(each, totals(request)[each.container], besides)
        own = tuple(quantity.integer(found.get(f"gpufraction.io/gpu-{what}", 0)) for what in ("memory", "cores"))
        here = running[0] + own[0], running[1] + own[1]
        peak = max(peak[0], here[0]), max(peak[1], here[1])
        running = running if each.init else here
    return peak


CASES: dict[str, tuple[PodRequest, Uncounted]] = {
    "on the same card nothing is held besides": (
        of(share("init", 4, init=True), share("main", 8)),
        ALL_COUNTED,
    ),
    "a larger init container holds its card for the pod's life": (
        of(share("init", 8, init=True), share("main", 4)),
        ALL_COUNTED,
    ),
    "a large one before two smaller ones": (
        of(share("init", 8, init=True), share("a", 4), share("b", 4)),
        Uncounted("b", 4 * GIB, 0),
    ),
    "a sidecar beside it, and room in the main container's share": (
        PodRequest("native", (share("side", 4), share("init", 4, init=True), share("main", 8))),
        ALL_COUNTED,
    ),
    "cards that the two cannot share": (
        of(share("init", 4, init=True, only="A100"), share("main", 8, only="T4")),
        Uncounted("main", 4 * GIB, 0),
    ),
    "containers on different cards": (
        of(share("init", 4, init=True, apart=True), share("main", 8, apart=True)),
        Uncounted("main", 4 * GIB, 0),
    ),
    "an init container that may be on any card": (
        of(share("init", 4, init=True), share("main", 8, apart=True), share("other", 8, apart=True)),
        ALL_COUNTED,
    ),
    "init containers alone": (
        of(share("one", 8, init=True), share("two", 5, init=True, count=2)),
        Uncounted("two", 3 * GIB, 0),
    ),
    "cores": (of(share("init", 1, init=True, cores=60), share("main", 2, cores=30)), ALL_COUNTED),
    "no init container": (of(share("a", 4), share("b", 4)), ALL_COUNTED),
}


@pytest.mark.parametrize(("request_", "want"), CASES.values(), ids=CASES.keys())
def test_what_is_counted_besides(request_: PodRequest, want: Uncounted) -> None:
    found = uncounted(request_, totals(request_))
    assert (found if found.memory or found.cores else ALL_COUNTED) == want


REQUESTS = st.lists(
    st.builds(
        share,
        st.just("c"),
        st.sampled_from((1, 2, 5, 9)),
        init=st.booleans(),
        count=st.sampled_from((1, 1, 2)),
        cores=st.sampled_from((0, 10, 40)),
        only=st.sampled_from(("", "", "T4")),
        apart=st.booleans(),
    ),
    min_size=1,
    max_size=4,
).map(lambda found: of(*(replace(each, container=f"c{at}") for at, each in enumerate(found))))


@given(REQUESTS)
def test_kubernetes_counts_what_may_be_held(request_: PodRequest) -> None:
    assert counted(request_) == held_at_most(request_, lambda fraction: fraction.memory)


@given(REQUESTS, st.lists(st.sampled_from((0, 4, 8)), min_size=2, max_size=4))
@settings(max_examples=examples(60), deadline=None)
def test_no_placement_holds_more_than_is_counted(request_: PodRequest, used: list[int]) -> None:
    made = node("a")
    for gib in used:
        made = made.gpu("Tesla T4", mib=10240, used_mib=gib * 1024)
    state = made.state()
    for joined in (request_, fit.joined(request_)):
        found = fit.fit(state, joined, DEFAULT_LIMITS, fit.least_free) if joined is not None else None
        if isinstance(found, Fit):
            demands = fit.demands_of(state, request_, found.chosen)
            held = sum(each.memory for each in demands.values()), sum(each.cores for each in demands.values())
            assert held[0] <= counted(request_)[0]
            assert held[1] <= counted(request_)[1]


@given(REQUESTS)
@settings(max_examples=examples(60), deadline=None)
def test_on_enough_free_cards_every_pod_fits(request_: PodRequest) -> None:
    state = node("a").gpus(8, "Tesla T4", mib=20 * 1024).state()
    assert isinstance(fit.fit(state, request_, DEFAULT_LIMITS, fit.least_free), Fit)


def test_the_init_container_goes_where_the_main_one_fits_too() -> None:
    """The card that is preferred for the small container alone has no room for the other."""
    state = node("a").gpu(mib=15_000, used_mib=9_000).gpu(mib=15_000).state()
    found = fit.fit(state, of(share("init", 4, init=True), share("main", 8)), DEFAULT_LIMITS, fit.least_free)
    assert isinstance(found, Fit)
    assert (found.chosen, found.memory) == (((1,), (1,)), 8 * GIB)


def test_where_no_card_has_room_for_both_the_pod_waits() -> None:
    """On separate cards they would fit, and hold 12 GiB of which 8 are counted."""
    state = node("a").gpu(mib=15_000, used_mib=9_000).gpu(mib=15_000, used_mib=8_000).state()
    apart = of(share("init", 6, init=True), share("main", 5))
    assert isinstance(fit.fit(state, apart, DEFAULT_LIMITS, fit.least_free), Fit)
    full = node("a").gpu("A10", mib=15_000, used_mib=9_000).gpu("T4", mib=15_000, used_mib=6_800).state()
    wishing = of(share("init", 4, init=True, only="A10"), share("main", 8))
    assert not isinstance(fit.fit(full, wishing, DEFAULT_LIMITS, fit.least_free), Fit)
