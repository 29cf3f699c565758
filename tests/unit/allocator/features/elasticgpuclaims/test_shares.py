"""How a claim and its class are read, in every spelling, and the message of a claim that cannot be served."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.features.elasticgpuclaims import objects, shares
from allocator.features.elasticgpuclaims.shares import ClaimTerms, Problem
from contract.encoding.quantity import GIB, MIB
from contract.model import FractionRequest, PodRequest
from contract.reasons.claims import ClaimReason

P = objects.PROVISIONER


def claim(requests: Any = None, **spec: Any) -> objects.Claim:
    return objects.claim(
        {
            "metadata": {"name": "c", "namespace": "team", "uid": "1", "resourceVersion": "7"},
            "spec": {"resources": {"requests": requests or {}}, **spec},
        }
    )


def a_class(**about: Any) -> objects.GpuClass:
    return objects.gpu_class({"metadata": {"name": "gold"}, "provisioner": P, **about})


def share(**about: Any) -> FractionRequest:
    return FractionRequest(shares.CONTAINER, **about)


WHOLE = {"percent": 100, "cores": 100, "exclusive": True}
AMOUNTS = {
    "cores and GiB": ({f"{P}/gpu-core": 1, f"{P}/gpu-memory": 2}, share(memory=2 * GIB, cores=1)),
    "as text": ({f"{P}/gpu-core": "10", f"{P}/gpu-memory": "4"}, share(memory=4 * GIB, cores=10)),
    "memory alone": ({f"{P}/gpu-memory": 2}, share(memory=2 * GIB)),
    "a binary suffix means what it says": ({f"{P}/gpu-memory": "512Mi"}, share(memory=512 * MIB)),
    "cores alone take memory in proportion": ({f"{P}/gpu-core": 25}, share(percent=25, cores=25)),
    "a whole card": ({f"{P}/gpu-core": 100}, share(**WHOLE)),
    "two and a half are two": ({f"{P}/gpu-core": 250, f"{P}/gpu-memory": 2}, share(count=2, **WHOLE)),
    "the names of pods' resources": ({"elasticgpu.io/gpu-memory": 2}, share(memory=2 * GIB)),
}


@pytest.mark.parametrize(("amounts", "want"), AMOUNTS.values(), ids=AMOUNTS.keys())
def test_amounts(amounts: dict[str, Any], want: FractionRequest) -> None:
    assert shares.wanted(claim(amounts), None) == ClaimTerms(PodRequest("claims", (want,)))
    by_limits = objects.claim({"metadata": {}, "spec": {"resources": {"limits": amounts}}})
    assert shares.wanted(by_limits, None) == ClaimTerms(PodRequest("claims", (want,)))


ONE = {f"{P}/gpu-memory": 1}
CLASSES = {
    "nothing said": (a_class(), share(memory=GIB), "Immediate", "Delete"),
    "MiB": (a_class(parameters={"memoryUnit": "MiB"}), share(memory=MIB), "Immediate", "Delete"),
    "the README's words": (
        a_class(reclaimPolicy="Retain", egpuBindingMode="WaitForFirstConsumer"),
        share(memory=GIB),
        "WaitForFirstConsumer",
        "Retain",
    ),
}


@pytest.mark.parametrize(("found", "want", "binding", "reclaim"), CLASSES.values(), ids=CLASSES.keys())
@pytest.mark.parametrize("field", ["elasticGPUClassName", "egpuClassName"])
def test_the_class_decides(
    found: objects.GpuClass, want: FractionRequest, binding: str, reclaim: str, field: str
) -> None:
    made = claim(ONE, **{field: "gold"})
    assert made.class_name == "gold"
    assert shares.wanted(made, found) == ClaimTerms(PodRequest("claims", (want,)), binding, reclaim)


NAMED = "spec.resources.requests"
PROBLEMS = {
    "nothing": ({}, None, f"{NAMED}: found neither memory nor cores; name {P}/gpu-memory, {P}/gpu-core or both"),
    "other resources": (
        {"nvidia.com/gpu": 1},
        None,
        f"{NAMED}: found neither memory nor cores; name {P}/gpu-memory, {P}/gpu-core or both",
    ),
    "a fraction": (
        {f"{P}/gpu-core": "0.5"},
        None,
        f"{NAMED}[{P}/gpu-core]: found '0.5'; give a whole number from 1 to 6400",
    ),
    "negative": (
        {f"{P}/gpu-memory": -1},
        None,
        f"{NAMED}[{P}/gpu-memory]: found -1; give a whole number from 1 to 65536",
    ),
    "less than 1 MiB": ({f"{P}/gpu-memory": "1Ki"}, None, f"{NAMED}[{P}/gpu-memory]: found '1Ki'; give at least 1Mi"),
    "twice": (
        {f"{P}/gpu-core": 1, "elasticgpu.io/gpu-core": 1},
        None,
        f"{NAMED}[{P}/gpu-core]: found together with elasticgpu.io/gpu-core; the two mean the same, keep one",
    ),
    "somebody else's class": (
        ONE,
        a_class(provisioner="qgpu"),
        f"ElasticGPUClass gold: provisioner: found 'qgpu'; use {P}",
    ),
    "an unknown unit": (
        ONE,
        a_class(parameters={"memoryUnit": "GB"}),
        "ElasticGPUClass gold: parameters.memoryUnit: found 'GB'; use GiB or MiB",
    ),
}


@pytest.mark.parametrize(("amounts", "found", "message"), PROBLEMS.values(), ids=PROBLEMS.keys())
def test_what_cannot_be_served(amounts: dict[str, Any], found: objects.GpuClass | None, message: str) -> None:
    assert shares.wanted(claim(amounts), found) == Problem(ClaimReason.INVALID, message)


def test_a_class_that_is_not_there_and_a_share_that_the_user_names() -> None:
    missing = "ElasticGPUClass gold does not exist; create it"
    assert shares.wanted(claim(ONE, egpuClassName="gold"), None) == Problem(ClaimReason.CLASS_MISSING, missing)
    wrong = "spec.elasticGPUClassName: found '�[2J'; give the name of an ElasticGPUClass"
    assert shares.wanted(claim(ONE, egpuClassName="\x1b[2J"), None) == Problem(ClaimReason.INVALID, wrong)
    named = "spec.elasticGPUName: found 'mine'; leave it empty, it is filled in when bound"
    assert shares.wanted(claim(ONE, egpuName="mine"), None) == Problem(ClaimReason.NAMES_ELASTIC_GPU, named)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
KEYS = st.sampled_from(
    ("metadata", "spec", "status", "resources", "requests", f"{P}/gpu-memory", "claimRef", "finalizers")
)
DOCUMENTS = st.dictionaries(KEYS, st.dictionaries(KEYS, JSON_VALUES | st.dictionaries(KEYS, JSON_VALUES)))


@given(st.text(max_size=400) | st.sampled_from(("a" * 200_000, "\x1b[2J", "a\nb", "\u202e", "\ud800")), st.data())
def test_whatever_a_claim_says_the_message_is_short_and_plain(text: str, data: st.DataObject) -> None:
    """The message is in the claim's status, in an Event and on every pod that names the claim."""
    field = data.draw(st.sampled_from(("elasticGPUClassName", "egpuClassName", "elasticGPUName", "egpuName", "amount")))
    made = claim({f"{P}/gpu-memory": text}) if field == "amount" else claim(ONE, **{field: text})
    found = shares.wanted(made, None)
    assert isinstance(found, ClaimTerms) or (found.message.isprintable() and len(found.message) < 400)


@given(DOCUMENTS)
def test_no_object_is_unreadable(document: dict[str, Any]) -> None:
    found = objects.claim(document)
    assert isinstance(shares.wanted(found, objects.gpu_class(document)), ClaimTerms | Problem)
    assert objects.share(document).allocation is None
