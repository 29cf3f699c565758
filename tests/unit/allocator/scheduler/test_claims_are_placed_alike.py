"""
A pod that requests by ResourceClaims is placed like a pod with the same request in another dialect, from the same
state.

The pods are those of the samples, those of the dialects' own tests, and pods like those of the trace openb. Each is
written as one template of claims for each container, and read from that as the allocator reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from contract import names, pods
from contract.dialects import DIALECTS, resourceclaims
from contract.dialects.base import PodReader
from contract.encoding import quantity
from contract.encoding.protocol import Answer, Question, Wait
from contract.encoding.quantity import MIB
from contract.model import WHOLE, FractionRequest, PodRequest
from contract.options import DEFAULTS
from tests.builders import NodeBuilder, PodBuilder, node, pod
from tests.examples import examples
from tests.unit.allocator.harness import SchedulerHarness
from tests.unit.contract.dialects.aliyun import ALIYUN
from tests.unit.contract.dialects.elastic import ELASTIC
from tests.unit.contract.dialects.hami import HAMI
from tests.unit.contract.dialects.kai import KAI
from tests.unit.contract.dialects.nano import NANO
from tests.unit.contract.dialects.native import NATIVE

JSON = dict[str, Any]
ROOT = Path(__file__).parents[4]
CARD = 16_000
"""MiB of the cards in a cluster of equal cards; hundredths of it are whole MiB."""


# -- from any dialect to claims -----------------------------------------------------------------------------------


def as_claims(made: JSON, request: PodRequest, card: int) -> tuple[JSON, resourceclaims.Readings] | None:
    """
    The pod with templates, and what the templates request; None for requests that claims cannot express.

    `card`: MiB of each card of the cluster, which converts a percentage to an amount of memory; 0 if the cards differ.
    """
    specs = {each.container: _claim(each, card) for each in request.containers}
    alike = len({(each.wishes, each.one_numa) for each in request.containers}) == 1
    if None in specs.values() or not alike or request.same_gpus or request.claim or request.priority:
        return None
    annotations = _wishes(request)
    if annotations is None:
        return None
    written = {key: value for key, value in pods.annotations_of(made).items() if key.startswith(f"{names.GROUP}/")}
    metadata = {**made["metadata"], "annotations": {**annotations, **written}}
    spec = {**made["spec"], "resourceClaims": []}
    for kind in ("initContainers", "containers"):
        if made["spec"].get(kind):
            spec[kind] = [_using(each, each["name"] in specs) for each in made["spec"][kind]]
    readings = {}
    for at, (container, claim) in enumerate(specs.items()):
        spec["resourceClaims"].append({"name": container, "resourceClaimTemplateName": f"t{at}"})
        reading = resourceclaims.read_claim(claim)
        assert isinstance(reading, tuple)
        readings[container] = reading
    return {**made, "metadata": metadata, "spec": spec}, readings


def _claim(fraction: FractionRequest, card: int) -> JSON | None:
    asked: JSON = {"deviceClassName": names.SHARE_CLASS, "count": fraction.count}
    memory = fraction.memory or (0 if fraction.exclusive else card * MIB * fraction.percent // WHOLE)
    limit = fraction.limit if fraction.memory else card * MIB * fraction.limit // WHOLE
    if fraction.exclusive != (not memory):
        return None  # an exclusive card of which only a part is counted; or a percentage of cards that differ
    if memory:
        amounts = {"memory": quantity.format_bytes(memory)}
        asked["capacity"] = {"requests": {**amounts, **({"cores": str(fraction.cores)} if fraction.cores else {})}}
    devices: JSON = {"requests": [{"name": "gpu", "exactly": asked}]}
    if limit:
        about = {"apiVersion": resourceclaims.API_VERSION, "kind": resourceclaims.KIND, "memoryLimit": str(limit)}
        devices["config"] = [{"opaque": {"driver": names.GROUP, "parameters": about}}]
    return {"devices": devices}


def _wishes(request: PodRequest) -> JSON | None:
    wished = request.containers[0].wishes
    if len(wished.use_models) > 1 and not wished.ordered:
        return None  # our own annotation is an ordered list
    found = {
        names.USE_MODELS: ",".join(wished.use_models),
        names.AVOID_MODELS: ",".join(wished.avoid_models),
        names.USE_UUIDS: ",".join(wished.use_uuids),
        names.AVOID_UUIDS: ",".join(wished.avoid_uuids),
        names.LEAST_MEMORY: str(wished.least_memory or ""),
        names.NODE_POLICY: request.node_policy,
        names.GPU_POLICY: request.gpu_policy,
        names.NUMA_BIND: "true" if request.containers[0].one_numa else "",
    }
    return {str(key): value for key, value in found.items() if value}


def _using(container: JSON, uses: bool) -> JSON:
    """The container without its request in its dialect."""
    resources: JSON = {
        kind: {name: amount for name, amount in amounts.items() if name not in DIALECTS.resources}
        for kind, amounts in (container.get("resources") or {}).items()
    }
    if uses:
        resources["claims"] = [{"name": container["name"]}]
    return {**container, "resources": resources}


# -- the pods -----------------------------------------------------------------------------------------------------


def _sampled() -> Iterator[JSON]:
    """The pods of the samples, with defaults as the API server sets them."""
    for path in sorted((ROOT / "samples").rglob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            found = document or {}
            made = found if found.get("kind") == "Pod" else ((found.get("spec") or {}).get("template") or {})
            if isinstance((made.get("spec") or {}).get("containers"), list):
                listed = {
                    kind: [{"resources": {}, **each} for each in made["spec"].get(kind) or ()]
                    for kind in ("initContainers", "containers")
                }
                spec = {**made["spec"], **listed}
                yield PodBuilder(
                    {"metadata": {"namespace": "default", **made.get("metadata", {})}, "spec": spec}
                ).json()


def _of_the_dialects() -> Iterator[JSON]:
    for table in (NATIVE, ALIYUN, HAMI, NANO, ELASTIC, KAI):
        for builder, _ in table.values():
            yield builder.json()


def _asking(listed: Iterator[JSON]) -> list[tuple[JSON, PodRequest]]:
    read = ((each, DIALECTS.read(each)) for each in listed)
    return [(each, request) for each, request in read if isinstance(request, PodRequest)]


SAMPLES, TABLES = _asking(_sampled()), _asking(_of_the_dialects())
KNOWN = [each for each in SAMPLES + TABLES if as_claims(*each, card=CARD) is not None]


@st.composite
def traced(draw: st.DrawFn) -> tuple[JSON, PodRequest]:
    """A pod like those of openb: parts of one card or whole cards, CPU and memory, and often some models."""
    made = pod("p").needs(cpu=f"{draw(st.sampled_from((1000, 4000, 8000, 11_900)))}m", memory="4Gi")
    cards = draw(st.sampled_from((1, 1, 1, 1, 2, 4, 8)))
    percent = draw(st.sampled_from((5, 10, 20, 25, 46, 50, 81, 100))) if cards == 1 else 100
    made = made.asks(names.GPU_COUNT, cards)
    if percent < 100:
        made = made.asks(names.GPU_PERCENT, percent)
    models = draw(st.sampled_from(("", "", "", "T4", "V100,T4", "G3")))
    found = (made.annotated(names.USE_MODELS, models) if models else made).json()
    request = DIALECTS.read(found)
    assert isinstance(request, PodRequest)
    return found, request


@st.composite
def clusters(draw: st.DrawFn, *, equal: bool) -> list[NodeBuilder]:
    """Some nodes; `equal`: all cards have the same memory."""
    kinds = ("Tesla T4", "V100", "G3")
    sizes = (CARD,) if equal else (CARD, 15109, 32768)
    return [
        node(f"n{at}").gpus(
            draw(st.sampled_from((1, 2, 4, 8))), draw(st.sampled_from(kinds)), mib=draw(st.sampled_from(sizes))
        )
        for at in range(draw(st.integers(1, 4)))
    ]


# -- the property -------------------------------------------------------------------------------------------------


def answers(nodes: Sequence[NodeBuilder], asked: Sequence[tuple[JSON, PodRequest]]) -> list[Answer]:
    """
    What the allocator answers to one pod after another, each with its own name.

    This excludes what a quota counts for a waiting pod: that is not known yet for a percentage, but it is for an
    amount.
    """
    harness, found = SchedulerHarness(nodes), list[Answer]()
    for at, (made, request) in enumerate(asked):
        named = pods.trim({**made, "metadata": {**made["metadata"], "name": f"p{at}"}})
        answer = harness.controller.reserve(Question(f"review-{at}", "default", request, named, dry_run=False))
        found.append(replace(answer, floor={}) if isinstance(answer, Wait) else answer)
    harness.controller.check_invariants()
    return found


def by_claims(asked: Sequence[tuple[JSON, PodRequest]], card: int) -> Iterator[tuple[JSON, PodRequest]]:
    for made, request in asked:
        written = as_claims(made, request, card)
        assert written is not None
        read = resourceclaims.read_pod(PodReader(written[0], DEFAULTS), written[1])
        assert isinstance(read, PodRequest), read
        assert read.own_claims
        # The webhook asks about the pod without our claims, because they are allocated once the pod is stored.
        yield {**written[0], "spec": {**written[0]["spec"], "resourceClaims": []}}, read


@settings(max_examples=examples(25))
@given(st.data())
def test_pods_by_claims_get_the_placements_of_the_same_pods_without(data: st.DataObject) -> None:
    equal = data.draw(st.booleans())
    card = CARD if equal else 0
    nodes = data.draw(clusters(equal=equal))
    one: st.SearchStrategy[tuple[JSON, PodRequest]] = st.sampled_from(KNOWN) | traced()

    def sayable(each: tuple[JSON, PodRequest]) -> bool:
        return as_claims(each[0], each[1], card) is not None

    asked = data.draw(st.lists(one.filter(sayable), min_size=1, max_size=8))
    assert answers(nodes, list(by_claims(asked, card))) == answers(nodes, asked)


def test_most_of_what_the_other_dialects_say_can_be_said_by_claims() -> None:
    """This shows that the property tests something."""
    unsaid = [each for each in SAMPLES + TABLES if as_claims(*each, card=CARD) is None]
    assert len(SAMPLES) >= 20
    assert len(KNOWN) > 3 * len(unsaid)
    assert {request.dialect for _, request in KNOWN} == {"native", "aliyun", "hami", "nano", "elastic", "kai"}
