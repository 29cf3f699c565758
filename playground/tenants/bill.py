"""
Two teams hold shares while the allocator is killed and restarts: the cost of each team, and the unused capacity.

The scene reads the allocator's metrics, as Prometheus would, because the API server does not have these numbers.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from playground.cluster import Cluster
from playground.tenants.scenes import Scene, Seen, create, running, team
from playground.waiting import wait_for

_TEAMS = {"team-a": 100, "team-b": 50}
"""The percent of a T4's cores that each pod requests."""
_CARDS = 8
_PRICE, _MONTH = 0.35, 730
"""The price of a T4 per hour, and the hours of a month."""
_LAG = 3.0
"""
Seconds. A reading is behind by up to a renewal of the lease, so two readings differ by less than this; an uncounted
time is at least the term of the killed one.
"""
_LINE = re.compile(
    r'^gpufraction_(?:share_held|gpu_free)_seconds_total\{(?:namespace="([^"]*)")?.*\} (\S+)$', re.MULTILINE
)
_FREE = "free"


@dataclass(frozen=True, slots=True)
class _Reading:
    """Card seconds by team and unused card seconds, read between two times of the monotonic clock."""

    seconds: dict[str, float]
    asked: float
    answered: float


def _show(cluster: Cluster) -> Seen:
    for name, cores in _TEAMS.items():
        team(cluster, name)
        limits = {"gpufraction.io/gpu-memory": "1Gi", "gpufraction.io/gpu-cores": str(cores)}
        create(cluster, name, "works", limits, spec={"nodeSelector": {"gpushare": "true"}})
    wait_for(lambda: all(running(cluster, name) for name in _TEAMS), "the pods do not run")
    wait_for(lambda: all(_counted(cluster)[name] for name in (*_TEAMS, _FREE)), "nothing is counted")
    first = _read(cluster)
    time.sleep(2.0)
    before, allocator = _read(cluster), cluster.programs["allocator"]
    allocator.kill()
    allocator.start()
    # Once it leads, the new process continues the counts of the previous one.
    _read(cluster)
    time.sleep(2.0)
    after = _read(cluster)
    seconds = {name: before.seconds[name] - first.seconds[name] + after.seconds[name] for name in after.seconds}
    counted = sum(seconds.values()) / _CARDS
    least, most = after.asked - first.answered, after.answered - first.asked
    cards = {name: round(2 * spent / counted) / 2 for name, spent in seconds.items()}
    bills = (f"{name} {round(share * _PRICE * _MONTH)}" for name, share in cards.items() if name in _TEAMS)
    return Seen(
        _text({"team-a": 1.0, "team-b": 0.5, _FREE: _CARDS - 1.5}, lost=False),
        _text(cards, lost=not least - _LAG <= counted <= most + _LAG),
        (f"a month of this at {_PRICE:.2f} an hour for a Tesla T4: {', '.join(sorted(bills))}",),
    )


def _read(cluster: Cluster) -> _Reading:
    """Read the counts from an allocator that responds and counts."""

    def read() -> _Reading | None:
        asked, found = time.monotonic(), _counted(cluster)
        return _Reading(found, asked, time.monotonic()) if any(found.values()) else None

    found = wait_for(read, "nothing is counted")
    assert found is not None
    return found


def _counted(cluster: Cluster) -> dict[str, float]:
    """Card seconds by team, and unused card seconds; all 0 if the allocator does not respond."""
    found = dict.fromkeys((*_TEAMS, _FREE), 0.0)
    try:
        text = cluster.metrics()
    except OSError:
        return found
    for name, seconds in _LINE.findall(text):
        found[name or _FREE] += float(seconds)
    return found


def _text(cards: dict[str, float], *, lost: bool) -> str:
    told = ", ".join(f"{name} {cards[name]}" for name in sorted(cards))
    return f"of {_CARDS} cards, to the half: {told}; the time of the restart is {'lost' if lost else 'counted'}"


BILL = Scene(
    "A bill per team: what each held, while the allocator is killed and starts again",
    _show,
    settings={
        "allocator": ("--election-lease=4s", "--card-hours-after=0s"),
    },
)
