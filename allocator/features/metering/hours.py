"""
The counters of card hours, read at each scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from allocator.features.metering.meter import Counted
from contract.metrics import allocator as specs
from runtime.metrics import Metrics


class CardHours:
    """
    The counters of card hours. `counted` returns the counts; `new`: seconds for which a new series reads 0.

    Prometheus ignores the first value of a series. Without the pause, the bill would lack a short job and the time
    between two leaders, which the new leader already has counted when it begins.
    """

    def __init__(
        self, metrics: Metrics, counted: Callable[[], Counted], *, new: float, clock: Callable[[], float]
    ) -> None:
        self._new = new
        self._clock = clock
        self._seen: dict[str, dict[tuple[str, ...], float]] = {}
        """When each series was first shown, by metric and labels."""
        metrics.rows(specs.SHARE_HELD_SECONDS, lambda: self._settled("held", counted().held.items()))
        metrics.rows(specs.SHARE_IDLE_SECONDS, lambda: self._settled("idle", counted().idle.items()))
        metrics.rows(specs.GPU_FREE_SECONDS, lambda: self._settled("free", _of_free(counted())))

    def _settled(self, what: str, rows: Iterable[tuple[tuple[str, ...], float]]) -> list[tuple[tuple[str, ...], float]]:
        now, before, found = self._clock(), self._seen.get(what, {}), list(rows)
        seen = self._seen[what] = {labels: before.get(labels, now) for labels, _ in found}
        return [(labels, seconds if now - seen[labels] >= self._new else 0.0) for labels, seconds in found]


def _of_free(counted: Counted) -> Iterator[tuple[tuple[str, ...], float]]:
    for account, seconds in counted.free.items():
        yield (account.model, "open" if account.takes_pods else "closed"), seconds
