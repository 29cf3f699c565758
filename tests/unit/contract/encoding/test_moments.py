"""Times in sentences: written once as a moment, and shown as an age."""

from __future__ import annotations

import pytest

from contract.encoding import moments

NOW = 1_767_600_000.0
"""2026-01-05T08:00:00Z."""


def test_a_time_is_written_as_kubernetes_writes_it() -> None:
    assert moments.at(NOW + 0.9) == "at 2026-01-05T08:00:00Z"


TIMES: dict[str, tuple[object, float | None]] = {
    "as Kubernetes writes it": ("2026-01-05T08:00:00Z", NOW),
    "with parts of a second": ("2026-01-05T08:00:00.250000Z", NOW + 0.25),
    "of another zone": ("2026-01-05T09:00:00+01:00", NOW),
    "without a zone": ("2026-01-05T08:00:00", None),
    "before all times": ("0001-01-01T00:00:00Z", None),
    "beyond what can be written": ("9999-12-31T23:59:59-12:00", None),
    "words": ("soon", None),
    "nothing": (None, None),
    "a number": (5, None),
}


@pytest.mark.parametrize(("text", "want"), TIMES.values(), ids=TIMES.keys())
def test_a_time_is_read_as_seconds_or_as_none(text: object, want: float | None) -> None:
    assert (moments.seconds(text), moments.created({"metadata": {"creationTimestamp": text}})) == (want, want or 0.0)


SPOKEN = {
    "a moment": (0, "asked for 0 s ago; next"),
    "some seconds": (40, "asked for 40 s ago; next"),
    "under two minutes": (119, "asked for 119 s ago; next"),
    "some minutes": (125, "asked for 2 min ago; next"),
    "some hours": (7_300, "asked for 2 h ago; next"),
    "some days": (400_000, "asked for 4 d ago; next"),
    "a time to come": (-300, "asked for in 5 min; next"),
}


@pytest.mark.parametrize(("age", "want"), SPOKEN.values(), ids=SPOKEN.keys())
def test_a_time_is_shown_as_an_age(age: float, want: str) -> None:
    assert moments.spoken(f"asked for {moments.at(NOW - age)}; next", NOW) == want


OTHERS = ("look at 5 nodes", "created 2026-01-05T08:00:00Z", "at 2026-13-45T99:00:00Z")


@pytest.mark.parametrize("text", OTHERS)
def test_other_words_stay(text: str) -> None:
    assert moments.spoken(text, NOW) == text
