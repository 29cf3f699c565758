"""How long pods ran, by owner: names without their generated parts, limits, and no estimate if nothing is known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.features.estimates.history import FAMILIES, NAMESPACES, SAMPLES, DurationHistory, family_of


@pytest.mark.parametrize(
    ("name", "family"),
    {
        "train": "train",
        "train-7d9f8c6b5d-x2v9z": "train",
        "nightly-28912345-k4wtc": "nightly",
        "worker-12": "worker",
        "model.v2": "model.v2",
        "llama-train": "llama-train",
        "0": "0",
        "-12": "-12",
    }.items(),
)
def test_the_family_of_a_name(name: str, family: str) -> None:
    assert family_of(f"team/{name}") == ("team", family)


def test_a_pod_may_go_on_for_as_long_as_those_before_it() -> None:
    history = DurationHistory()
    for seconds in (100, 200, 300, 400):
        history.ended("team/train-1", seconds)
    assert history.left("team/train-2") == (100, 200, 300, 400)
    assert history.left("team/train-2", 150) == (50, 150, 250)


@pytest.mark.parametrize("ran", [400, 1e9])
def test_of_a_pod_that_outlasts_all_before_it_nothing_is_said(ran: float) -> None:
    history = DurationHistory()
    for seconds in (100, 200, 300, 400):
        history.ended("team/train-1", seconds)
    assert history.left("team/train-2", ran) == ()


def test_a_namespaces_other_pods_count_once_there_are_enough() -> None:
    history = DurationHistory()
    for number in range(7):
        history.ended(f"team/job{number}", 60)
    assert history.left("team/other") == ()
    history.ended("team/more", 60)
    assert history.left("team/other") == (60,) * 8
    assert history.left("another/other") == ()


@given(st.lists(st.tuples(st.text(max_size=6), st.text(max_size=6), st.floats(allow_nan=False)), max_size=50))
def test_no_name_and_no_time_of_a_pod_breaks_it(pods: list[tuple[str, str, float]]) -> None:
    history = DurationHistory()
    for namespace, name, seconds in pods:
        history.ended(f"{namespace}/{name}", seconds)
        left = history.left(f"{namespace}/{name}")
        assert list(left) == sorted(left)
        assert len(left) <= SAMPLES
    assert history.size() <= NAMESPACES * FAMILIES * SAMPLES


def test_made_up_names_cost_their_own_namespace_its_history() -> None:
    history = DurationHistory()
    for _ in range(3):
        history.ended("good/train", 60)
    for number in range(10 * FAMILIES):
        for _ in range(2 * SAMPLES):
            history.ended(f"bad/{'x' * (number + 1)}", 1)
    assert history.left("good/train") == (60,) * 3
    assert history.size() == 3 + FAMILIES * SAMPLES


def test_the_namespace_that_is_longest_unused_is_forgotten() -> None:
    history = DurationHistory()
    for number in range(NAMESPACES + 1):
        for _ in range(3):
            history.ended(f"n{number}/train", 60)
    assert history.left("n0/train") == ()
    assert history.left("n1/train") == (60,) * 3
