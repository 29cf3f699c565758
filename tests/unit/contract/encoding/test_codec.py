"""What is written into annotations is read back unchanged, and damaged text raises `Malformed` and nothing else."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.encoding.codec import (
    allocation_from_text,
    allocation_to_text,
    container_annotations,
    request_from_text,
    request_to_text,
)
from contract.encoding.quantity import MIB
from contract.encoding.reading import Malformed
from contract.model import (
    Allocation,
    ContainerAllocation,
    Delivery,
    FractionRequest,
    GpuShare,
    Inventory,
    PodRequest,
    Wishes,
)
from contract.nodes.inventories import inventory_from_object, inventory_to_status
from tests.builders import node
from tests.unit.contract.strategies import ALLOCATIONS, JSON, REQUESTS, inventories

REQUEST = PodRequest(
    dialect="hami",
    containers=(
        FractionRequest("fetch", memory=1 << 30, init=True),
        FractionRequest("train", count=2, percent=50, cores=100, exclusive=True, wishes=Wishes(("A100",), ("T4",))),
    ),
    node_policy="spread",
    unit=1 << 30,
)
ALLOCATION = Allocation("a1", "n1", (ContainerAllocation("main", (GpuShare("GPU-1", 0, 5 << 30, 30, 16 << 30),)),))

# -- what is written ----------------------------------------------------------------------------------------------


def test_a_request_is_written_without_its_defaults() -> None:
    assert json.loads(request_to_text(REQUEST)) == {
        "v": 1,
        "dialect": "hami",
        "nodePolicy": "spread",
        "unit": 1 << 30,
        "containers": [
            {"name": "fetch", "count": 1, "memory": 1 << 30, "init": True},
            {
                "name": "train",
                "count": 2,
                "percent": 50,
                "cores": 100,
                "exclusive": True,
                "useModels": ["A100"],
                "avoidModels": ["T4"],
            },
        ],
    }


def test_an_allocation_is_written_with_its_amounts() -> None:
    gpu = {"uuid": "GPU-1", "index": 0, "memory": 5 << 30, "cores": 30, "of": 16 << 30}
    assert json.loads(allocation_to_text(ALLOCATION)) == {
        "v": 1,
        "id": "a1",
        "node": "n1",
        "containers": [{"name": "main", "gpus": [gpu]}],
    }


@given(REQUESTS)
def test_requests_come_back(request_: PodRequest) -> None:
    assert request_from_text(request_to_text(request_)) == request_


@given(ALLOCATIONS)
def test_allocations_come_back(allocation: Allocation) -> None:
    assert allocation_from_text(allocation_to_text(allocation)) == allocation


@given(inventories())
def test_inventories_come_back(inventory: Inventory) -> None:
    written = {"metadata": {"name": inventory.node}, "status": json.loads(json.dumps(inventory_to_status(inventory)))}
    assert inventory_from_object(written) == inventory


# -- what is damaged ----------------------------------------------------------------------------------------------

READERS: list[Callable[[Any], object]] = [request_from_text, allocation_from_text]
DAMAGED = {
    "nothing at all": None,
    "no text": 5,
    "empty": "",
    "not JSON": "{",
    "a list": "[]",
    "another version": '{"v":2}',
    "a version nobody could print": '{"v":' + "[" * 900 + "]" * 900 + "}",
    "no version": "{}",
    "nested deeper than Python goes": "[" * 100_000,
    "more digits than Python reads": '{"v":' + "1" * 5000 + "}",
    "no containers": '{"v":1,"dialect":"x","id":"x","node":"x"}',
    "containers of the wrong kind": '{"v":1,"dialect":"x","id":"x","node":"x","containers":{"a":1}}',
    "a container of the wrong kind": '{"v":1,"dialect":"x","id":"x","node":"x","containers":[5]}',
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED.keys())
@pytest.mark.parametrize("read", READERS)
def test_damaged_text_is_malformed_in_few_words(read: Callable[[object], object], text: object) -> None:
    with pytest.raises(Malformed) as caught:
        read(text)
    assert len(str(caught.value)) < 250


@given(st.text() | JSON.map(json.dumps) | JSON)
def test_any_text_is_malformed(text: object) -> None:
    for read in READERS:
        with pytest.raises(Malformed):
            read(text)


PATHS = st.lists(st.integers(0, 6), min_size=1, max_size=5)


def damage(document: Any, path: list[int], value: Any) -> Any:
    """The document with one part replaced."""
    document = copy.deepcopy(document)
    at = document
    for depth, step in enumerate(path, 1):
        keys: list[Any] = sorted(at) if isinstance(at, dict) else list(range(len(at)))
        key = keys[step % len(keys)]
        if depth == len(path) or not isinstance(at[key], dict | list) or not at[key]:
            at[key] = value
            break
        at = at[key]
    return document


def attempt(read: Callable[[Any], object], value: Any) -> object:
    """The result of reading, or the message of `Malformed`."""
    try:
        return read(value)
    except Malformed as error:
        return str(error)


@given(st.sampled_from([request_to_text(REQUEST), allocation_to_text(ALLOCATION)]), PATHS, JSON)
def test_one_damaged_part_is_read_or_malformed(text: str, path: list[int], value: Any) -> None:
    damaged = json.dumps(damage(json.loads(text), path, value))
    for read, wanted in ((request_from_text, PodRequest), (allocation_from_text, Allocation)):
        assert isinstance(attempt(read, damaged), wanted | str)


@given(PATHS, JSON)
def test_a_damaged_gpunode_is_read_or_malformed(path: list[int], value: Any) -> None:
    damaged = damage(node("n1").gpus(2).gpunode(), path, value)
    assert isinstance(attempt(inventory_from_object, damaged), Inventory | str)


def texts_of(value: Any) -> Iterator[str]:
    """Every text inside a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from texts_of(each)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from texts_of(getattr(value, field.name))


def places_of_text(part: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all texts of a document."""
    inside = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for key, value in inside:
        yield from [(*here, key)] if isinstance(value, str) else places_of_text(value, (*here, key))


@given(
    st.text(max_size=20) | st.sampled_from(("a" * 100_000, "\x1b[2J\x1b[31m", "a\nb", "\u202eb", "\ud800")), st.data()
)
def test_whatever_a_node_says_of_its_gpus_it_is_short_and_can_be_printed(text: str, data: st.DataObject) -> None:
    """Its text appears in messages to every tenant, in metrics and in tables."""
    document = node("n1").gpus(2).gpunode()
    status = document["status"]
    *path, last = data.draw(st.sampled_from(list(places_of_text(status))))
    part = status
    for key in path:
        part = part[key]
    part[last] = text
    try:
        found = inventory_from_object(document)
    except Malformed:
        return
    assert [each[:99] for each in texts_of(found) if not each.isprintable() or len(each) > 512] == []


def with_container(**fields: Any) -> str:
    document = json.loads(request_to_text(REQUEST))
    document["containers"][0].update(fields)
    return json.dumps(document)


def with_gpu(**fields: Any) -> str:
    document = json.loads(allocation_to_text(ALLOCATION))
    document["containers"][0]["gpus"][0].update(fields)
    return json.dumps(document)


FORGED = {
    "both memory and percent": (request_from_text, with_container(percent=5)),
    "neither memory nor percent": (request_from_text, with_container(memory=0)),
    "no GPU": (request_from_text, with_container(count=0)),
    "more GPUs than a machine has": (request_from_text, with_container(count=65)),
    "negative memory": (request_from_text, with_container(memory=-1)),
    "memory as a decimal number": (request_from_text, with_container(memory=1.5)),
    "true for a number": (request_from_text, with_container(memory=True)),
    "more cores than a GPU has": (request_from_text, with_container(cores=101)),
    "a whole GPU kept from others for no cores": (request_from_text, with_container(exclusive=True)),
    "a whole GPU kept from others in words": (request_from_text, with_container(exclusive="yes")),
    "a model for a list of models": (request_from_text, with_container(useModels="A100")),
    "numbers for models": (request_from_text, with_container(useModels=[100])),
    "percentages added up on the same GPUs": (
        request_from_text,
        json.dumps(json.loads(with_container()) | {"sameGpus": True}),
    ),
    "different counts of the same GPUs": (
        request_from_text,
        request_to_text(
            PodRequest(
                "aliyun",
                (FractionRequest("a", memory=1), FractionRequest("b", count=2, memory=1)),
                same_gpus=True,
            )
        ),
    ),
    "one container twice": (request_from_text, with_container(name="train")),
    "an unknown policy": (request_from_text, request_to_text(REQUEST).replace('"spread"', '"random"')),
    "every GPU": (allocation_from_text, with_gpu(uuid="all")),
    "two GPUs in one name": (allocation_from_text, with_gpu(uuid="GPU-1,GPU-2")),
    "a GPU without a name": (allocation_from_text, with_gpu(uuid="")),
    "negative shares": (allocation_from_text, with_gpu(memory=-1)),
    "an infinite share": (allocation_from_text, with_gpu(memory=float("inf"))),
    "a share without an amount": (allocation_from_text, with_gpu(memory=None)),
}


@pytest.mark.parametrize(("read", "text"), FORGED.values(), ids=FORGED.keys())
def test_forged_values_are_malformed(read: Callable[[object], object], text: str) -> None:
    with pytest.raises(Malformed):
        read(text)


TWICE = {
    "an allocation names a container twice": (ALLOCATION.containers * 2, "names a container twice"),
    "an allocation gives a container one GPU twice": (
        (ContainerAllocation("main", ALLOCATION.containers[0].shares * 2),),
        "has no GPU, or a GPU twice",
    ),
    "an allocation gives a container nothing": ((ContainerAllocation("main", ()),), "has no GPU"),
    "an allocation is empty": ((), "lacks its id, its node or its containers"),
}


@pytest.mark.parametrize(("containers", "message"), TWICE.values(), ids=TWICE.keys())
def test_what_we_would_never_write_is_malformed(containers: tuple[ContainerAllocation, ...], message: str) -> None:
    with pytest.raises(Malformed, match=message):
        allocation_from_text(allocation_to_text(Allocation("a1", "n1", containers)))


# -- GPUNode ------------------------------------------------------------------------------------------------------


def test_a_gpunode_without_status_has_no_gpus() -> None:
    assert inventory_from_object({"metadata": {"name": "n1"}}) == Inventory("n1")


WRONG_GPUNODES: dict[str, tuple[Any, str]] = {
    "no object": ([], r"the document: found \[\]; give an object"),
    "no name": ({"metadata": {}}, "metadata.name is missing; give at most 253 of a-z, 0-9, - and ."),
    "a GPU twice": (
        {"metadata": {"name": "n1"}, "status": node("n1").gpu(uuid="GPU-1").gpu(uuid="GPU-1").gpunode()["status"]},
        "status.gpus names a GPU twice",
    ),
    "scaling beyond what a float holds": (
        {"metadata": {"name": "n1"}, "status": {"options": [{"name": "deviceMemoryScaling", "value": "1e999"}]}},
        "status.options asks for sharers, scaling or limits beyond what a GPU can bear",
    ),
    "limits below the memory": (
        {"metadata": {"name": "n1"}, "status": {"options": [{"name": "memoryLimitRatio", "value": "0.5"}]}},
        "status.options asks for sharers, scaling or limits beyond what a GPU can bear",
    ),
    "a GPU that is all GPUs": (
        {"metadata": {"name": "n1"}, "status": node("n1").gpu(uuid="all").gpunode()["status"]},
        r"status.gpus\[0\].uuid: found 'all'; give the UUID of a GPU",
    ),
}


@pytest.mark.parametrize(("document", "message"), WRONG_GPUNODES.values(), ids=WRONG_GPUNODES.keys())
def test_a_wrong_gpunode_is_malformed(document: Any, message: str) -> None:
    with pytest.raises(Malformed, match=message):
        inventory_from_object(document)


def test_gpus_are_in_the_order_of_their_index_and_never_more_usable_than_large() -> None:
    gpus = [
        {"uuid": "GPU-b", "index": 1, "memoryBytes": 10, "usableBytes": 20, "health": "Healthy"},
        {"uuid": "GPU-a", "index": 0, "memoryBytes": 10},
    ]
    found = inventory_from_object({"metadata": {"name": "n1"}, "status": {"gpus": gpus}}).gpus
    assert [(gpu.uuid, gpu.usable, gpu.healthy) for gpu in found] == [("GPU-a", 10, False), ("GPU-b", 10, True)]


# -- what containers read -----------------------------------------------------------------------------------------


def given_shares(*shares: tuple[int, int]) -> Allocation:
    """Container `main` with shares of (bytes, cores)."""
    made = tuple(GpuShare(f"GPU-{i}", i, memory, cores, 1 << 40) for i, (memory, cores) in enumerate(shares))
    return Allocation("a1", "n1", (ContainerAllocation("main", made),))


READ_BY_CONTAINERS = {
    "one GPU with cores": (
        given_shares((5 << 30, 30)),
        {"devices": "GPU-0", "memory-mib": "5120", "memory-limit": "5120m", "cores-limit": "30"}
        | {"mps-memory": "0=5120M", "mps-threads": "30", "memory-fraction": "0.004882"},
    ),
    "no cores asked means no limit": (
        given_shares((3000 * MIB, 0)),
        {"devices": "GPU-0", "memory-mib": "3000", "memory-limit": "3000m", "cores-limit": "0"}
        | {"mps-memory": "0=3000M", "mps-threads": "100", "memory-fraction": "0.002861"},
    ),
    "MPS has one key for each visible GPU": (
        given_shares(*[(2 << 30, 25)] * 3),
        {"devices": "GPU-0,GPU-1,GPU-2", "memory-mib": "2048", "memory-limit": "2048m", "cores-limit": "25"}
        | {"mps-memory": "0=2048M,1=2048M,2=2048M", "mps-threads": "25", "memory-fraction": "0.001953"},
    ),
    "unequal shares are all told the smallest": (
        given_shares((4 << 30, 50), (2 << 30, 50)),
        {"devices": "GPU-0,GPU-1", "memory-mib": "2048", "memory-limit": "2048m", "cores-limit": "50"}
        | {"mps-memory": "0=2048M,1=2048M", "mps-threads": "50", "memory-fraction": "0.001953"},
    ),
    "MiB round down": (
        given_shares((2 * MIB - 1, 100)),
        {"devices": "GPU-0", "memory-mib": "1", "memory-limit": "1m", "cores-limit": "100"}
        | {"mps-memory": "0=1M", "mps-threads": "100", "memory-fraction": "0.000001"},
    ),
    "less than a MiB is never told as 0, which is no limit": (
        given_shares((1000, 1)),
        {"devices": "GPU-0", "memory-mib": "1", "memory-limit": "1m", "cores-limit": "1"}
        | {"mps-memory": "0=1M", "mps-threads": "1", "memory-fraction": "0.000001"},
    ),
}


READ_BY_CONTAINERS["more than the card has, by oversubscription: the driver refuses such a limit"] = (
    Allocation("a1", "n1", (ContainerAllocation("main", (GpuShare("GPU-0", 0, 30 << 30, 0, 24 << 30),)),)),
    {"devices": "GPU-0", "memory-mib": "24576", "memory-limit": "30720m", "cores-limit": "0"}
    | {"mps-memory": "0=30720M", "mps-threads": "100", "memory-fraction": "1"},
)


@pytest.mark.parametrize(("allocation", "wanted"), READ_BY_CONTAINERS.values(), ids=READ_BY_CONTAINERS.keys())
def test_container_annotations(allocation: Allocation, wanted: dict[str, str]) -> None:
    assert container_annotations(allocation) == {f"gpufraction.io/{key}.main": text for key, text in wanted.items()}


def test_gpus_are_named_as_the_nodes_runtime_knows_them() -> None:
    shares = tuple(GpuShare(f"GPU-{n}", n, MIB, 0, MIB, cdi="nvidia.com/gpu") for n in range(2))
    found = container_annotations(Allocation("x", "n1", (ContainerAllocation("main", shares),)))
    assert found["gpufraction.io/devices.main"] == "nvidia.com/gpu=GPU-0,nvidia.com/gpu=GPU-1"


def test_a_container_gets_our_device_and_the_vendors_also_by_annotation() -> None:
    kinds = Delivery(("",), "nvidia.com/gpu", nri=True, mounts="cdi").kinds
    assert kinds == "nvidia.com/gpu,gpufraction.io/share"
    share = GpuShare("GPU-0", 0, MIB, 0, MIB, cdi=kinds, nri=True)
    both = (ContainerAllocation("main", (share,)), ContainerAllocation("m" * 60, (share,)))
    found = container_annotations(Allocation("x", "n1", both))
    wanted = "nvidia.com/gpu=GPU-0,gpufraction.io/share=GPU-0"
    assert found["gpufraction.io/devices.main"] == wanted
    # A name that is too long for the annotation leaves its container without a GPU.
    assert {key: text for key, text in found.items() if key.startswith("nvidia")} == {
        "nvidia.cdi.k8s.io/container.main": wanted
    }


@given(ALLOCATIONS)
def test_each_container_has_its_own_annotations(allocation: Allocation) -> None:
    found = container_annotations(allocation)
    ours = [key for key in found if key.startswith("gpufraction.io/")]
    bursting = sum(any(share.burst for share in container.shares) for container in allocation.containers)
    assert len(ours) == 7 * len(allocation.containers) + bursting
    for container in allocation.containers:
        alone = container_annotations(Allocation("x", "x", (container,)))
        assert {key: found[key] for key in alone} == alone


def fraction_of(*shares: GpuShare) -> str:
    found = container_annotations(Allocation("x", "n1", (ContainerAllocation("main", shares),)))
    return found["gpufraction.io/memory-fraction.main"]


GIB = 1 << 30


@pytest.mark.parametrize(
    ("shares", "wanted"),
    [
        ([GpuShare("GPU-0", 0, 8 * GIB, 0, 24 * GIB)], "0.333333"),
        ([GpuShare("GPU-0", 0, 24 * GIB, 0, 24 * GIB)], "1"),
        ([GpuShare("GPU-0", 0, 12 * GIB, 0, 24 * GIB), GpuShare("GPU-1", 1, 12 * GIB, 0, 80 * GIB)], "0.15"),
        # Half of unequal cards: every GPU is limited to the smaller half.
        ([GpuShare("GPU-0", 0, 12 * GIB, 0, 24 * GIB), GpuShare("GPU-1", 1, 40 * GIB, 0, 80 * GIB)], "0.15"),
        ([GpuShare("GPU-0", 0, 8 * GIB, 0, 24 * GIB, as_whole=True)], "1"),
        # The share is shown as the whole card, and the card has less.
        ([GpuShare("GPU-0", 0, 30 * GIB, 0, 24 * GIB, as_whole=True)], "0.8"),
        ([GpuShare("GPU-0", 0, 30 * GIB, 0, 24 * GIB)], "1"),
        ([GpuShare("GPU-0", 0, 8 * GIB, 0, 0)], "0.000001"),
        # A program takes what is allocated, however far it may burst.
        ([GpuShare("GPU-0", 0, 8 * GIB, 0, 24 * GIB, burst=4 * GIB)], "0.333333"),
        ([GpuShare("GPU-0", 0, 8 * GIB, 0, 24 * GIB, as_whole=True, burst=8 * GIB)], "0.5"),
    ],
)
def test_the_part_of_the_card(shares: list[GpuShare], wanted: str) -> None:
    assert fraction_of(*shares) == wanted


CARDS = st.integers(1 << 28, 1 << 40)


@given(st.lists(st.tuples(CARDS, st.floats(0.000001, 1.5)), min_size=1, max_size=8))
def test_a_program_that_takes_its_part_never_exceeds_its_share(cards: list[tuple[int, float]]) -> None:
    shares = [
        GpuShare(f"GPU-{n}", n, max(MIB, int(memory * part)), 0, memory) for n, (memory, part) in enumerate(cards)
    ]
    text = fraction_of(*shares)
    part = Fraction(text)
    assert 0 < part <= 1
    assert "e" not in text
    assert all(part * share.gpu_memory <= max(share.memory, 1_048_577) for share in shares)
    # Rounded down by less than a millionth of the card, and by less than one MiB, the unit of limits.
    exact = min(Fraction(min(share.memory, share.gpu_memory)) for share in shares)
    largest = max(share.gpu_memory for share in shares)
    assert part * largest > exact - MIB - Fraction(largest, 1_000_000)


BURSTING = Allocation(
    "a",
    "n1",
    (
        ContainerAllocation("main", (GpuShare("GPU-0", 0, 8 * GIB, 0, 80 * GIB, burst=16 * GIB),)),
        ContainerAllocation("side", (GpuShare("GPU-0", 0, 4 * GIB, 0, 80 * GIB),)),
    ),
)


def test_limiters_get_the_limit_and_the_rest_what_is_booked() -> None:
    found = container_annotations(BURSTING)
    assert {key: value for key, value in found.items() if key.endswith(".main")} == {
        "gpufraction.io/devices.main": "GPU-0",
        "gpufraction.io/memory-mib.main": "8192",
        "gpufraction.io/memory-limit-mib.main": "24576",
        "gpufraction.io/memory-limit.main": "24576m",
        "gpufraction.io/cores-limit.main": "0",
        "gpufraction.io/mps-memory.main": "0=24576M",
        "gpufraction.io/mps-threads.main": "100",
        "gpufraction.io/memory-fraction.main": "0.1",
    }
    assert "gpufraction.io/memory-limit-mib.side" not in found


def test_a_program_that_knows_no_limits_reads_what_is_booked() -> None:
    """The previous version ignores these fields. It then allocates the same, and gives the container no more."""
    request = PodRequest("native", (FractionRequest("main", memory=8 * GIB, limit=24 * GIB),))
    document = json.loads(request_to_text(request))
    assert document["containers"][0].pop("limit") == 24 * GIB
    assert request_from_text(json.dumps(document)) == PodRequest("native", (FractionRequest("main", memory=8 * GIB),))
    allocation = json.loads(allocation_to_text(BURSTING))
    assert allocation["containers"][0]["gpus"][0].pop("burst") == 16 * GIB
    earlier = allocation_from_text(json.dumps(allocation))
    assert [share.limit for container in earlier.containers for share in container.shares] == [8 * GIB, 4 * GIB]
