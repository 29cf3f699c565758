"""The texts in annotations and labels: requests, allocations, what is held in addition, lists, durations."""

from __future__ import annotations

import json

from allocator.selectors import holds, problem
from contract.dialects import DIALECTS
from contract.encoding import codec, moments, quantity, reading, selectors
from contract.encoding.quantity import BadQuantity
from contract.encoding.reading import Malformed
from contract.encoding.selectors import SelectorRefused
from contract.model import (
    Allocation,
    ContainerAllocation,
    FractionRequest,
    GpuShare,
    PodRequest,
    Wishes,
)
from contract.nodes import capacity
from contract.nodes.capacity import Amounts, Beyond
from contract.scheduling import consent, fairness, protection
from contract.scheduling.selecting import CardSeen
from nodeagent.gpus import simulated
from nodeagent.gpus.simulated import BadSimulation
from nodeagent.isolation import delivery
from nodeagent.isolation.delivery import BadOverride
from runtime import settings
from tests.fuzzing.judge import Finding, Target, bounded, presentable, same

GIB = 1 << 30
A100 = CardSeen("NVIDIA A100-SXM4-40GB", 40 * GIB, 0, "8.0", False, "")
REQUESTS = (
    PodRequest("native", (FractionRequest("main", memory=8 * GIB, cores=30, count=2, limit=9 * GIB),), same_gpus=False),
    PodRequest(
        "hami",
        (
            FractionRequest("a", percent=50, wishes=Wishes(("A100",), ("T4",), ("GPU-1",), ("GPU-2",), GIB, True)),
            FractionRequest("b", percent=100, cores=100, exclusive=True, init=True, one_numa=True),
        ),
        node_policy="binpack",
        gpu_policy="spread",
        unit=GIB,
        priority=1,
    ),
    PodRequest("claims", (FractionRequest("main"),), claim="notebook"),
    PodRequest("aliyun", (FractionRequest("a", memory=GIB), FractionRequest("b", memory=GIB)), same_gpus=True),
)
ALLOCATIONS = (
    Allocation("id", "n1", (ContainerAllocation("main", (GpuShare("GPU-1", 0, GIB, 30, 16 * GIB, burst=GIB),)),)),
    Allocation(
        "id",
        "n1",
        (
            ContainerAllocation("a", (GpuShare("GPU-1", 0, GIB, 0, 16 * GIB, cdi="v/c", nri=True, cores_free=True),)),
            ContainerAllocation("b", (GpuShare("GPU-2", 1, GIB, 100, 16 * GIB, dra=True, as_whole=True),)),
        ),
        claim="notebook",
    ),
)


def _text(data: bytes) -> str:
    """An annotation's text: the API server stores UTF-8."""
    return data.decode(errors="replace")


def _request(data: bytes) -> None:
    text = _text(data)
    found = codec.request_from_text(text)
    written = codec.request_to_text(found)
    same(codec.request_from_text(written), found, "reading a request that was written")
    same(codec.request_from_text(text, bounded=False), found, "reading a request without bounds")
    bounded(len(written), len(text), "the request")


def _allocation(data: bytes) -> None:
    text = _text(data)
    found = codec.allocation_from_text(text)
    written = codec.allocation_to_text(found)
    same(codec.allocation_from_text(written), found, "reading an allocation that was written")
    bounded(len(written), len(text), "the allocation")
    bounded(len(json.dumps(codec.container_annotations(found))), len(text), "what containers read", times=16)


def _beyond(data: bytes) -> None:
    found = capacity.from_text(_text(data))
    if found is not None:
        same(capacity.from_text(capacity.to_text(found)), found, "reading what is held beyond, written")


def _quantity(data: bytes) -> None:
    text = _text(data)
    for read in (quantity.parse, quantity.integer, quantity.milli, quantity.rounded_up):
        try:
            read(text)
        except BadQuantity as error:
            presentable(str(error), "the message about a quantity", most=300)
    quantity.is_zero(text)
    presentable(quantity.written(text), "a quantity in a message", most=300)
    whole = quantity.integer_or(text, -1)
    if 0 <= whole < 1 << 100:
        same(quantity.integer(quantity.format_bytes(whole)), whole, "reading an amount that was written")


def _selector(data: bytes) -> None:
    text = _text(data)
    try:
        found = selectors.read(text)
    except SelectorRefused as refused:
        presentable(str(refused), "why an expression is refused")
        if holds(text, A100):
            raise Finding("an expression that is refused accepts a GPU", "refused and held") from refused
        return
    bounded(sum(map(len, found.uuids)), len(text), "the UUIDs that an expression names")
    presentable(problem(text), "what is wrong with an expression")
    for uuid in ("", *sorted(found.uuids)[:1]):
        holds(text, A100._replace(uuid=uuid))
    # An expression treats GPUs that it does not name as one GPU.
    same(holds(text, A100._replace(uuid="GPU-x")), holds(text, A100), "what an expression says of an unnamed GPU")


def _expressions() -> tuple[bytes, ...]:
    ours = "device.attributes['gpufraction.io']"
    return (
        f"{ours}.productName.lowerAscii().matches('^.*a100.*$') && {ours}.numa == 0".encode(),
        f"{ours}.uuid in ['GPU-1', 'GPU-2'] || !has({ours}.uuid) ? true : false".encode(),
        b"device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('40Gi')) >= 0",
        f"['A100', 'H100'].exists(m, {ours}.productName.contains(m))".encode(),
        f"{ours}.cudaComputeCapability.isGreaterThan(semver('7.5.0'))".encode(),
    )


def _words(data: bytes) -> None:
    text = _text(data)
    found = reading.words(text)
    same(reading.words(",".join(found)), found, "reading words that were joined")
    presentable(reading.shown(text), "a text in a message", most=200)
    codec_names = (reading.is_label, reading.is_subdomain, reading.is_beginning, reading.is_uid)
    for check in codec_names:
        if check(text):
            presentable(text, f"what {check.__name__} accepts", most=253)
    consent.idle_after(text)
    fairness.weight_of(text)
    protection.written({key: text for key in (protection.SAFE_TO_EVICT, "gpufraction.io/protected")})
    if text.isprintable():
        presentable(moments.spoken(text, 1e9), "a sentence with times", most=2 * len(text) + 200)
    moments.seconds(text)


def _setting(data: bytes) -> None:
    text = _text(data)
    readers = (
        settings.parse_duration,
        lambda value: settings.parse_address(value, "metrics.address", "[::]:9090"),
        delivery.parse,
        lambda value: simulated.cards_from_text(value[:2000], node="n"),
        simulated.memory_from_text,
    )
    for read in readers:
        try:
            read(text)
        except (BadOverride, BadSimulation, ValueError) as error:
            presentable(str(error), "the message about a setting", most=LONGEST_SETTING)


LONGEST_SETTING = 4 * (32 << 10)
"""The user who starts a program sees the text that they gave it."""


def _seeds_of_words() -> tuple[bytes, ...]:
    listed = ["0,2", "GPU-1, GPU-2", "30m", "2h30m", "1d", "team-a", "at 2026-01-05T08:00:00Z", "5", "0.5", "true"]
    examples = {value for dialect in DIALECTS for each in dialect.examples for value in each.annotations.values()}
    return tuple(sorted({text.encode() for text in (*listed, *map(str, examples))}))


TARGETS = (
    Target(
        "annotation-request",
        _request,
        (
            "contract.encoding.codec:request_from_text",
            "contract.encoding.codec:request_from_json",
            "contract.encoding.wire:load",
        ),
        lambda: tuple(codec.request_to_text(each).encode() for each in REQUESTS),
        (Malformed,),
        modules=("contract.encoding.wire", "contract.encoding.reading"),
    ),
    Target(
        "annotation-allocation",
        _allocation,
        ("contract.encoding.codec:allocation_from_text", "contract.encoding.codec:allocation_from_json"),
        lambda: tuple(codec.allocation_to_text(each).encode() for each in ALLOCATIONS),
        (Malformed,),
        modules=("contract.encoding.wire", "contract.encoding.reading"),
    ),
    Target(
        "annotation-beyond",
        _beyond,
        ("contract.nodes.capacity:from_text",),
        lambda: (capacity.to_text(Beyond("0123456789abcdef", Amounts(GIB, 100))).encode(),),
    ),
    Target(
        "quantities",
        _quantity,
        ("contract.encoding.quantity:parse", "contract.encoding.quantity:integer"),
        lambda: (b"5", b"500m", b"8Gi", b"1e3", b"0.1", b"-1", b".5Ki", b"8k", b"1E-3"),
        form="text",
    ),
    Target(
        "selector",
        _selector,
        ("contract.encoding.selectors:read",),
        _expressions,
        form="text",
    ),
    Target(
        "words-and-labels",
        _words,
        (
            "contract.encoding.reading:words",
            "contract.scheduling.consent:idle_after",
            "contract.scheduling.fairness:weight_of",
            "contract.scheduling.protection:written",
            "contract.encoding.moments:seconds",
        ),
        _seeds_of_words,
        form="text",
    ),
    Target(
        "settings-texts",
        _setting,
        (
            "runtime.settings:parse_duration",
            "runtime.settings:parse_address",
            "nodeagent.isolation.delivery:parse",
            "nodeagent.gpus.simulated:cards_from_text",
            "nodeagent.gpus.simulated:memory_from_text",
        ),
        lambda: (b"1m30s", b"500ms", b"[::1]:9090", b"env-class-cdi:nvidia=a/b", b"2 x Tesla T4 15109MiB", b"16GiB"),
        (BadOverride, BadSimulation),
        form="text",
    ),
)
