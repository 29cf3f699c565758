from __future__ import annotations

import pytest

from playground.api.kinds.values import JSON
from playground.machinery.controllers.jobplan import BACKOFF, COMPLETE, DEADLINE, Tally, Verdict, verdict, wanted

WANTED: dict[str, tuple[JSON, Tally, int]] = {
    "one pod": ({"completions": 1, "parallelism": 1}, Tally(), 1),
    "as many at a time as allowed": ({"completions": 10, "parallelism": 3}, Tally(succeeded=2), 3),
    "no more than are missing": ({"completions": 10, "parallelism": 3}, Tally(succeeded=9), 1),
    "none when all are done": ({"completions": 2, "parallelism": 2}, Tally(succeeded=2), 0),
    "a queue of work": ({"parallelism": 3}, Tally(active=1), 3),
    "a queue of work that one found empty": ({"parallelism": 3}, Tally(active=2, succeeded=1), 2),
    "suspended": ({"completions": 1, "parallelism": 1, "suspend": True}, Tally(active=1), 0),
}


@pytest.mark.parametrize(("spec", "counted", "want"), WANTED.values(), ids=WANTED.keys())
def test_wanted(spec: JSON, counted: Tally, want: int) -> None:
    assert wanted(spec, counted) == want


VERDICTS: dict[str, tuple[JSON, Tally, float, Verdict | None]] = {
    "not yet": ({"completions": 2}, Tally(active=1, succeeded=1), 0, None),
    "complete": ({"completions": 2}, Tally(succeeded=2), 0, COMPLETE),
    "as many failures as allowed": ({"completions": 1, "backoffLimit": 2}, Tally(failed=2), 0, None),
    "one failure too many": ({"completions": 1, "backoffLimit": 2}, Tally(failed=3), 0, BACKOFF),
    "restarts in place count too": ({"completions": 1, "backoffLimit": 2}, Tally(active=1, restarts=2), 0, BACKOFF),
    "no failure allowed, none happened": ({"completions": 1, "backoffLimit": 0}, Tally(active=1), 0, None),
    "too late": ({"completions": 1, "activeDeadlineSeconds": 10}, Tally(active=1), 10, DEADLINE),
    "a queue of work is done when nobody works on it": ({}, Tally(succeeded=1), 0, COMPLETE),
    "a queue of work goes on": ({}, Tally(active=1, succeeded=1), 0, None),
}


@pytest.mark.parametrize(("spec", "counted", "seconds", "want"), VERDICTS.values(), ids=VERDICTS.keys())
def test_verdict(spec: JSON, counted: Tally, seconds: float, want: Verdict | None) -> None:
    assert verdict(spec, counted, seconds) == want
