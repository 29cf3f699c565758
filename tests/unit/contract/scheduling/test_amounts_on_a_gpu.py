"""What is free, missing and overcommitted on a GPU: the amounts agree with `gpu_reason`."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.model import FREE, FractionRequest, Gpu, PoolSharing, Usage
from contract.reasons.nodes import Code, Reason
from contract.scheduling.demand import Demand, demand_of
from contract.scheduling.filters import Limits, allowed_limit, free, gpu_reason, overcommitment, shortage

GPU = Gpu("GPU-0", 0, "T4", 100, 100)
BOUNDED = Gpu("GPU-0", 0, "T4", 100, 100, sharing=PoolSharing(limit_ratio=2.0))
LIMITS = Limits(max_sharers=3, memory_factor=1.5)
usages = st.builds(
    Usage, st.integers(0, 200), st.integers(0, 130), st.integers(0, 5), st.booleans(), st.integers(0, 120)
)


@given(
    st.sampled_from((GPU, BOUNDED)), usages, st.integers(1, 160), st.integers(0, 99), st.integers(0, 100), st.booleans()
)
def test_a_gpu_without_shortage_takes_the_share_and_no_other_does(
    gpu: Gpu, usage: Usage, memory: int, burst: int, cores: int, exclusive: bool
) -> None:
    allowed = burst and memory + burst <= allowed_limit(gpu, FractionRequest("main", memory=memory))
    limit = memory + burst if allowed else 0
    fraction = FractionRequest("main", 1, memory=memory, cores=cores, exclusive=exclusive, limit=limit)
    lacks = shortage(gpu, usage, Demand(memory, cores, exclusive, burst if limit else 0), LIMITS)
    assert demand_of(fraction, gpu.usable) == Demand(memory, cores, exclusive, burst if limit else 0)
    full_of_one = exclusive and usage.sharers + 1 > LIMITS.max_sharers
    enough = all(lack <= 0 for lack in lacks) and not usage.exclusive and not full_of_one
    assert enough == (gpu_reason(gpu, usage, fraction, LIMITS) is None)


WITH_LIMIT = {
    "without an option": (GPU, FREE, 21, Reason(Code.LIMIT_TOO_LARGE, 21, 20)),
    "as much as the option allows": (BOUNDED, FREE, 40, None),
    "more than the option allows": (BOUNDED, FREE, 41, Reason(Code.LIMIT_TOO_LARGE, 41, 40)),
    "on a slice, where no limiter works": (
        replace(BOUNDED, parent="GPU-whole"),
        FREE,
        40,
        Reason(Code.LIMIT_TOO_LARGE, 40, 0),
    ),
    "within what limits may add up to": (BOUNDED, Usage(90, 0, 1, burst=70), 40, None),
    "beyond it": (BOUNDED, Usage(90, 0, 1, burst=71), 40, Reason(Code.LIMITS_IN_ALL, 40, 39)),
    "of a full GPU": (BOUNDED, Usage(131, 0, 1), 40, Reason(Code.MEMORY, 20, 19)),
}


@pytest.mark.parametrize(("gpu", "usage", "limit", "want"), WITH_LIMIT.values(), ids=WITH_LIMIT.keys())
def test_a_limit_above_the_request_is(gpu: Gpu, usage: Usage, limit: int, want: Reason | None) -> None:
    assert gpu_reason(gpu, usage, FractionRequest("main", memory=20, limit=limit), LIMITS) == want


def test_a_limit_is_at_most_the_card_and_the_factor_of_a_percentage() -> None:
    large = replace(BOUNDED, sharing=PoolSharing(limit_ratio=10.0))
    assert allowed_limit(large, FractionRequest("main", memory=60, limit=99)) == 100
    assert allowed_limit(BOUNDED, FractionRequest("main", percent=25, limit=99)) == 50
    assert allowed_limit(GPU, FractionRequest("main", percent=25, limit=99)) == 25


@given(st.integers(0, 120), st.integers(0, 200), st.integers(1, 60), st.sampled_from((0.0, 1.0, 1.25, 2.0, 10.0)))
def test_limits_of_others_never_refuse_a_pod_that_has_none(used: int, burst: int, memory: int, ratio: float) -> None:
    usage = Usage(used, 50, 2, burst=burst)
    gpu = replace(GPU, sharing=PoolSharing(limit_ratio=ratio))
    fraction = FractionRequest("main", memory=memory)
    assert gpu_reason(gpu, usage, fraction, LIMITS) == gpu_reason(gpu, replace(usage, burst=0), fraction, LIMITS)


@given(
    st.lists(st.tuples(st.integers(1, 100), st.integers(1, 10**9)), max_size=20),
    st.sampled_from((0.0, 1.0, 1.25, 1.7, 3.0, 10.0)),
)
def test_any_requested_limits_add_up_to_the_ratio(requested: list[tuple[int, int]], ratio: float) -> None:
    """
    However little a pod requests, its limit is at most that multiple of it, and the GPU's promise bounds all limits.
    """
    gpu, usage, pods = replace(GPU, sharing=PoolSharing(limit_ratio=ratio)), FREE, Limits(max_sharers=100)
    for memory, limit in requested:
        fraction = FractionRequest("main", memory=memory, limit=limit if limit > memory else 0)
        if gpu_reason(gpu, usage, fraction, pods) is None:
            usage = demand_of(fraction, gpu.usable).added_to(usage)
    assert usage.memory + usage.burst <= max(ratio, 1.0) * usage.memory
    assert usage.memory + usage.burst <= max(ratio, 1.0) * gpu.usable


@given(usages, st.booleans())
def test_what_is_free_is_what_the_largest_share_may_have(usage: Usage, healthy: bool) -> None:
    gpu = Gpu("GPU-0", 0, "T4", 100, 100, healthy=healthy)
    memory, cores = free(gpu, usage, LIMITS)
    if usage.sharers < LIMITS.max_sharers and memory and cores:
        assert gpu_reason(gpu, usage, FractionRequest("main", 1, memory=memory, cores=cores), LIMITS) is None
    more = FractionRequest("main", 1, memory=memory + 1, cores=cores)
    assert gpu_reason(gpu, usage, more, LIMITS) is not None


@pytest.mark.parametrize(
    ("usage", "want"),
    [
        (FREE, ()),
        (Usage(150, 100, 3, False), ()),
        (Usage(100, 100, 1, True), ()),
        (Usage(151, 0, 1, False), (Reason(Code.MEMORY, 151, 150),)),
        (Usage(0, 101, 1, False), (Reason(Code.CORES, 101, 100),)),
        (Usage(0, 0, 4, False), (Reason(Code.SHARERS, 4, 3),)),
        (Usage(0, 0, 2, True), (Reason(Code.EXCLUSIVE, 2, 1),)),
        (
            Usage(151, 101, 4, True),
            (
                Reason(Code.MEMORY, 151, 150),
                Reason(Code.CORES, 101, 100),
                Reason(Code.SHARERS, 4, 3),
                Reason(Code.EXCLUSIVE, 4, 1),
            ),
        ),
    ],
)
def test_what_is_overcommitted(usage: Usage, want: tuple[Reason, ...]) -> None:
    assert overcommitment(GPU, usage, LIMITS) == want
