"""What is free, lacking and overcommitted on a GPU: the amounts say what `gpu_reason` says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.model import FREE, FractionRequest, Gpu, Usage
from contract.scheduling.demand import Demand
from contract.scheduling.filters import Limits, free, gpu_reason, overcommitment, shortage
from contract.scheduling.reasons import Code, Reason

GPU = Gpu("GPU-0", 0, "T4", 100, 100)
LIMITS = Limits(max_sharers=3, memory_factor=1.5)
usages = st.builds(Usage, st.integers(0, 200), st.integers(0, 130), st.integers(0, 5), st.booleans())


@given(usages, st.integers(1, 160), st.integers(0, 100), st.booleans())
def test_a_gpu_without_shortage_takes_the_share_and_no_other_does(
    usage: Usage, memory: int, cores: int, exclusive: bool
) -> None:
    fraction = FractionRequest("main", 1, memory=memory, cores=cores, exclusive=exclusive)
    lacks = shortage(GPU, usage, Demand(memory, cores, exclusive), LIMITS)
    full_of_one = exclusive and usage.sharers + 1 > LIMITS.max_sharers
    enough = all(lack <= 0 for lack in lacks) and not usage.exclusive and not full_of_one
    assert enough == (gpu_reason(GPU, usage, fraction, LIMITS) is None)


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
