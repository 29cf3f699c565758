"""What is free, lacking and overcommitted on a GPU: the amounts say what `gpu_reason` says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.model import FREE, FractionRequest, Gpu, PoolSharing, Usage
from contract.scheduling.demand import Demand, demand_of
from contract.scheduling.filters import Limits, free, gpu_reason, overcommitment, shortage
from contract.scheduling.reasons import Code, Reason

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
    limit = memory + burst if burst and memory + burst <= 100 else 0
    fraction = FractionRequest("main", 1, memory=memory, cores=cores, exclusive=exclusive, limit=limit)
    lacks = shortage(gpu, usage, Demand(memory, cores, exclusive, burst if limit else 0), LIMITS)
    assert demand_of(fraction, gpu.usable) == Demand(memory, cores, exclusive, burst if limit else 0)
    full_of_one = exclusive and usage.sharers + 1 > LIMITS.max_sharers
    enough = all(lack <= 0 for lack in lacks) and not usage.exclusive and not full_of_one
    assert enough == (gpu_reason(gpu, usage, fraction, LIMITS) is None)


WITH_LIMIT = {
    "as large as the GPU": (GPU, FREE, 100, None),
    "larger than the GPU": (GPU, FREE, 101, Reason(Code.LIMIT_TOO_LARGE, 101, 100)),
    "on a slice, where no limiter works": (
        replace(GPU, parent="GPU-whole"),
        FREE,
        100,
        Reason(Code.LIMIT_TOO_LARGE, 100, 0),
    ),
    "beside any sum of limits, without an option": (GPU, Usage(30, 0, 1, burst=70), 100, None),
    "within what limits may add up to": (BOUNDED, Usage(30, 0, 1, burst=70), 100, None),
    "beyond it": (BOUNDED, Usage(30, 0, 1, burst=71), 100, Reason(Code.LIMITS_IN_ALL, 100, 99)),
    "of a full GPU": (GPU, Usage(141, 0, 1), 100, Reason(Code.MEMORY, 10, 9)),
}


@pytest.mark.parametrize(("gpu", "usage", "limit", "want"), WITH_LIMIT.values(), ids=WITH_LIMIT.keys())
def test_a_limit_above_the_request_is(gpu: Gpu, usage: Usage, limit: int, want: Reason | None) -> None:
    assert gpu_reason(gpu, usage, FractionRequest("main", memory=10, limit=limit), LIMITS) == want


def test_a_ratio_below_the_oversubscription_refuses_no_share_without_a_limit() -> None:
    gpu = replace(GPU, sharing=PoolSharing(limit_ratio=1.0))
    assert gpu_reason(gpu, Usage(140, 0, 1), FractionRequest("main", memory=10), LIMITS) is None
    assert gpu_reason(gpu, Usage(140, 0, 1), FractionRequest("main", memory=9, limit=11), LIMITS) == Reason(
        Code.LIMITS_IN_ALL, 11, 10
    )


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
