"""A pod's rules about other pods are compared with all of them, so there is a limit, and a message that names it."""

from __future__ import annotations

from typing import Any

import pytest

from contract import bounds, pods
from tests.builders import PodBuilder, pod

JSON = dict[str, Any]
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def terms(number: int, text: str = "web") -> list[JSON]:
    """This many terms."""
    return [{"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": text}}}] * number


def with_terms(kind: str, found: list[JSON]) -> PodBuilder:
    return pod("web").container("main").spec(affinity={kind: {REQUIRED: found}})


TOO_MANY = {
    "affinity": (with_terms("podAffinity", terms(33)), f"spec.affinity.podAffinity.{REQUIRED}"),
    "anti-affinity": (with_terms("podAntiAffinity", terms(33)), f"spec.affinity.podAntiAffinity.{REQUIRED}"),
    "long text": (with_terms("podAntiAffinity", terms(1, "x" * 20_000)), f"spec.affinity.podAntiAffinity.{REQUIRED}"),
    "spread": (
        pod("web").container("main").spec(topologySpreadConstraints=terms(33)),
        "spec.topologySpreadConstraints",
    ),
}


@pytest.mark.parametrize(("builder", "field"), TOO_MANY.values(), ids=TOO_MANY)
def test_more_than_is_read_is_refused_by_its_field(builder: PodBuilder, field: str) -> None:
    found = bounds.problem(builder.json())
    assert found is not None
    assert found.field == field


def test_what_people_write_is_within_the_bounds() -> None:
    builder = with_terms("podAntiAffinity", terms(4)).spec(topologySpreadConstraints=terms(3)).labelled("app", "web")
    assert bounds.problem(builder.json()) is None


def test_too_many_labels_are_refused_by_their_number() -> None:
    builder = pod("web").container("main")
    for number in range(257):
        builder = builder.labelled(f"label-{number}", "x")
    found = bounds.problem(builder.json())
    assert found is not None
    assert (found.field, found.found) == ("metadata.labels", "257 labels")


PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


@pytest.mark.parametrize(("number", "read"), [(32, True), (33, False)])
@pytest.mark.parametrize("kind", ["podAffinity", "podAntiAffinity", "nodeAffinity"])
def test_more_preferred_terms_than_are_read_are_left_out(kind: str, number: int, read: bool) -> None:
    builder = pod("web").container("main").spec(affinity={kind: {PREFERRED: terms(number)}})
    assert bounds.problem(builder.json()) is None, "a pod is not refused for what it can be without"
    assert (PREFERRED in pods.trim(builder.json())["spec"]["affinity"][kind]) == read


def test_of_a_pod_of_others_more_terms_than_are_read_are_left_out() -> None:
    read = pods.trim(with_terms("podAntiAffinity", terms(33)).on("n0").json())
    assert read["spec"]["affinity"] == {"podAntiAffinity": {"some": True}}
