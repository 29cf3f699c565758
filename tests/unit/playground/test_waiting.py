"""Waiting for a condition: the result if it came, and the message if it did not come in time."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from playground.waiting import NotInTime, wait_for


def test_the_first_true_answer_is_given_back() -> None:
    answers = iter(["", "", "there", "later"])
    assert wait_for(lambda: next(answers), "nothing came", every=0.0) == "there"


def test_an_answer_that_is_there_needs_no_time() -> None:
    assert wait_for(lambda: 1, "nothing came", 0.0) == 1


@pytest.mark.parametrize("missing", ["pod a is not there", lambda: "pod a is not there"], ids=["text", "function"])
def test_what_is_missing_is_reported(missing: str | Callable[[], str]) -> None:
    with pytest.raises(NotInTime, match=r"pod a is not there \(after 0 s\)"):
        wait_for(lambda: False, missing, 0.0, every=0.0)


def test_what_is_missing_is_looked_up_at_the_end() -> None:
    asked = count()
    with pytest.raises(NotInTime, match="asked"):
        wait_for(lambda: next(asked) < 0, lambda: f"asked {next(asked)} times", 0.01, every=0.001)


def test_what_goes_wrong_is_not_waited_for() -> None:
    with pytest.raises(ZeroDivisionError):
        wait_for(lambda: 1 / 0, "nothing came")
