"""Annotations that look like ours: what nothing reads is told, with the name that was meant."""

from __future__ import annotations

import pytest

from contract import dialects, names
from contract.dialects.spelling import strange
from contract.model import PodRequest
from tests.builders import pod

CASES: dict[str, tuple[str, str]] = {
    "a letter too few": ("gpufraction.io/gpu-model", "did you mean gpufraction.io/gpu-models?"),
    "a letter too many": ("gpufraction.io/node-policyy", "did you mean gpufraction.io/node-policy?"),
    "nothing near": ("gpufraction.io/x", "remove it"),
    "a resource": ("gpufraction.io/gpu-memory", "an amount goes under resources.limits of a container"),
}
READ = (
    "gpufraction.io/gpu-models",
    "gpufraction.io/gpu-models.main",
    "gpufraction.io/placement",
    "gpufraction.io/allocation",
    "gpufraction.io/devices.main",
    "example.com/gpu-model",
    "gpufraction.io.example.com/x",
)


@pytest.mark.parametrize(("annotation", "cure"), CASES.values(), ids=CASES.keys())
def test_what_nothing_reads_is_told(annotation: str, cure: str) -> None:
    assert list(strange([annotation])) == [f"metadata.annotations[{annotation}]: nothing reads it; {cure}"]


def test_what_is_read_or_not_ours_is_not_told() -> None:
    assert list(strange(READ)) == []


@pytest.mark.parametrize(
    ("resource", "amount"),
    [("gpufraction.io/gpu-memory", "8Gi"), ("aliyun.com/gpu-mem", 8), ("nano-gpu/gpu-percent", 8)],
)
def test_it_is_told_in_every_dialect(resource: str, amount: str | int) -> None:
    request = dialects.read(pod("p").asks(resource, amount).annotated("gpufraction.io/gpu-model", "V100").json())
    assert isinstance(request, PodRequest)
    assert request.warnings == tuple(strange(["gpufraction.io/gpu-model"]))


def test_a_name_of_megabytes_is_not_repeated() -> None:
    (told,) = strange([f"{names.GROUP}/{'x' * 2_000_000}"])
    assert len(told) < 200
