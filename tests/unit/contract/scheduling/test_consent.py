"""After how long an idle pod gives way, by its own setting and by its namespace's."""

from __future__ import annotations

import pytest

from contract.scheduling.consent import agreed, idle_after, misread, seconds_of

GOOD = {"0": 0, "2h": 7200, "90m": 5400, "1h30m": 5400, "1d": 86_400, "45s": 45, "0h": 0, "365d": 365 * 86_400}
BAD = ("", "2", "2 h", "-2h", "h", "1.5h", "2H", "30m1h", "366d", "9999999h", "٢h", "forever")


@pytest.mark.parametrize(("text", "seconds"), GOOD.items())
def test_a_duration(text: str, seconds: int) -> None:
    assert (idle_after(text), seconds_of(text)) == (seconds, seconds)


@pytest.mark.parametrize("text", BAD)
def test_anything_else_is_no_consent(text: str) -> None:
    assert (idle_after(text), seconds_of(text)) == (0, None)


def test_no_annotation_is_no_consent() -> None:
    assert idle_after(None) is None


def test_a_label_that_cannot_be_read_is_reported_with_its_value_and_a_cure() -> None:
    assert misread("team-a", "soon") == (
        "namespace team-a: the label gpufraction.io/idle-after=soon counts as no consent; it must be a duration such "
        "as 90m or 2h (at most 365d), or 0 for no consent"
    )


WORDS = {
    "nobody says anything": (None, None, 0),
    "the namespace agrees": (None, 60, 60),
    "the pod agrees": (60, None, 60),
    "the pod's word counts": (60, 30, 60),
    "the pod does not agree": (0, 30, 0),
}


@pytest.mark.parametrize(("pod", "namespace", "want"), WORDS.values(), ids=WORDS.keys())
def test_the_pod_counts_before_its_namespace(pod: int | None, namespace: int | None, want: int) -> None:
    assert agreed(pod, namespace) == want
