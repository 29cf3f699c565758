"""Generated values of the model, and JSON of every kind, for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from contract.dialects import DIALECTS
from contract.isolation import ISOLATION
from contract.model import (
    MOST_GPUS,
    MOST_MEMORY,
    POLICIES,
    WHOLE,
    Allocation,
    ContainerAllocation,
    Delivery,
    FractionRequest,
    Gpu,
    GpuShare,
    Inventory,
    PodRequest,
    Wishes,
)
from contract.nodes.inventories import sharing_of
from contract.nodes.proofs import ProofState
from contract.options import VgpuOptions

BYTES = st.integers(1, MOST_MEMORY)
NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)
UUIDS = st.from_regex(r"GPU-[0-9a-f]{4}", fullmatch=True)
TEXT = st.text(st.characters(exclude_categories=("C", "Z")), max_size=8)
"""Text that can be shown: no control characters, and no white space except ordinary spaces."""
_HANDLES = st.from_regex(r"[!-~]{1,8}", fullmatch=True)
_KINDS = st.sampled_from(("", "nvidia.com/gpu", "nvidia.com/gpu,gpufraction.io/share"))
_WORDS = st.lists(TEXT, max_size=2).map(tuple)
WISHES = st.builds(Wishes, _WORDS, _WORDS, _WORDS, _WORDS, st.integers(0, 1 << 50), st.booleans())
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


@st.composite
def fractions(draw: st.DrawFn) -> FractionRequest:
    """A request of one container as a dialect could produce it."""
    cores = draw(st.integers(0, WHOLE))
    most = WHOLE if draw(st.booleans()) else MOST_MEMORY
    requested = draw(st.integers(1, most))
    limit = draw(st.integers(requested, most))
    return FractionRequest(
        container=draw(NAMES),
        count=draw(st.integers(1, MOST_GPUS)),
        memory=0 if most == WHOLE else requested,
        percent=requested if most == WHOLE else 0,
        cores=cores,
        exclusive=cores == WHOLE and draw(st.booleans()),
        init=draw(st.booleans()),
        wishes=draw(WISHES),
        one_numa=draw(st.booleans()),
        limit=limit if limit > requested and draw(st.booleans()) else 0,
    )


@st.composite
def requests(draw: st.DrawFn) -> PodRequest:
    """A request of a pod as a dialect could produce it."""
    made = draw(st.lists(fractions(), min_size=1, max_size=4, unique_by=lambda f: f.container))
    could_share = all(f.memory and not f.limit for f in made) and len({f.count for f in made}) == 1
    return PodRequest(
        dialect=draw(st.sampled_from([dialect.name for dialect in DIALECTS])),
        containers=tuple(made),
        same_gpus=could_share and draw(st.booleans()),
        node_policy=draw(st.sampled_from(("", *POLICIES))),
        gpu_policy=draw(st.sampled_from(("", *POLICIES))),
        unit=draw(st.sampled_from((0, 1 << 20, 1 << 30))),
        priority=draw(st.integers(0, 1)),
    )


REQUESTS = requests()

_SHARES = st.builds(
    GpuShare,
    uuid=UUIDS,
    index=st.integers(0, 64),
    memory=BYTES,
    cores=st.integers(0, WHOLE),
    gpu_memory=BYTES,
    cdi=_KINDS,
    nri=st.booleans(),
    as_whole=st.booleans(),
    burst=st.just(0) | BYTES,
)
_GIVEN = st.builds(
    ContainerAllocation,
    container=NAMES,
    shares=st.lists(_SHARES, min_size=1, max_size=4, unique_by=lambda s: s.uuid).map(tuple),
)
ALLOCATIONS = st.builds(
    Allocation,
    id=_HANDLES,
    node=NAMES,
    containers=st.lists(_GIVEN, min_size=1, max_size=3, unique_by=lambda c: c.container).map(tuple),
)


VGPU_OPTIONS = st.builds(
    VgpuOptions,
    device_split_count=st.none() | st.integers(1, 1024),
    device_memory_scaling=st.none() | st.floats(1, 10),
    memory_limit_ratio=st.none() | st.floats(1, 10),
    disable_core_limit=st.none() | st.booleans(),
    mig_strategy=st.none() | st.sampled_from(("none", "single", "mixed")),
    reserve=st.none() | st.integers(0, 99).map(lambda mib: mib << 20),
    reserve_percent=st.none() | st.integers(0, 50),
)
DELIVERIES = st.none() | st.builds(Delivery, classes=st.lists(TEXT, max_size=2).map(tuple), kind=_KINDS)


@st.composite
def inventories(draw: st.DrawFn) -> Inventory:
    """An inventory that a node's agent could publish."""
    uuids = draw(st.lists(UUIDS, max_size=4, unique=True))
    options = draw(VGPU_OPTIONS).of_nodes()
    gpus = tuple(
        Gpu(
            uuid=uuid,
            index=index,
            model=draw(TEXT),
            memory=(memory := draw(BYTES)),
            usable=draw(st.integers(0, memory)),
            healthy=draw(st.booleans()),
            reason=draw(TEXT),
            pci=draw(TEXT),
            capability=draw(TEXT),
            numa=draw(st.integers(-1, 8)),
            nvlinks=draw(st.integers(0, 18)),
            links=tuple(draw(st.lists(st.tuples(TEXT, TEXT), max_size=2))),
            parent=draw(TEXT),
            sharing=sharing_of(dict(options)),
        )
        for index, uuid in enumerate(uuids)
    )
    return Inventory(
        draw(NAMES),
        gpus,
        draw(TEXT),
        draw(TEXT),
        draw(TEXT),
        draw(TEXT),
        draw(TEXT),
        draw(DELIVERIES),
        tuple(level for level in ISOLATION if draw(st.booleans())),
        draw(TEXT),
        options,
        draw(st.sampled_from([None, *map(str, ProofState)])),
    )


def allocation_for(request: PodRequest, *, node: str = "n1", gpu_memory: int = MOST_MEMORY) -> Allocation:
    """An allocation of exactly the request, with each container on GPUs 0, 1, ... of the node."""
    return Allocation(
        id="made",
        node=node,
        containers=tuple(
            ContainerAllocation(
                f.container, tuple(_share(f, node, position, gpu_memory) for position in range(f.count))
            )
            for f in request.containers
        ),
    )


def _share(fraction: FractionRequest, node: str, position: int, gpu_memory: int) -> GpuShare:
    memory, burst = fraction.memory_on(gpu_memory), fraction.burst_on(gpu_memory)
    return GpuShare(f"GPU-{node}-{position}", position, memory, fraction.cores, gpu_memory, burst=burst)
