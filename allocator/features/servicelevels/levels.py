"""
Measures how long each pod waited for its share, and whether it got the share in time.

A pod is counted once: as in time when it gets its share within the time, or as late when that time is over, even if it
never gets a share. So a full cluster shows immediately, not only when a pod ends. The time begins when no other
scheduling gate holds the pod. Pure: times are passed in. Not thread-safe: one owner calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

MOST_NAMESPACES = 100
"""The most namespaces with their own series; each has 4 bands of priority with a dozen series."""
OTHERS = "(others)"
"""The name under which the rest are counted; no namespace has it."""
_SYSTEM = 2_000_000_000
"""The least priority of Kubernetes' own classes."""


class ObservedWait(NamedTuple):
    """A pod in the queue. created: seconds since 1970, 0 if missing. held: by another system's gate."""

    uid: str
    namespace: str
    priority: int
    created: float
    held: bool


class ServedPod(NamedTuple):
    """A pod that got its share."""

    uid: str
    namespace: str
    priority: int


@dataclass(frozen=True, slots=True)
class Started:
    """A pod got its share, after so many seconds."""

    namespace: str
    band: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ServiceJudgement:
    """A pod got its share in time, or the time is over."""

    late: bool


@dataclass(slots=True)
class _Wait:
    since: float | None
    """None while another system's gate holds the pod."""
    late: bool = False


def band(priority: int) -> str:
    """The band of a priority. There are always four, so their number does not depend on the cluster's classes."""
    if priority >= _SYSTEM:
        return "system"
    return "high" if priority > 0 else "normal" if priority == 0 else "low"


class Levels:
    """The waiting pods, and since when they wait. `within`: seconds in which a pod should get its share."""

    def __init__(self, within: float) -> None:
        self._within = within
        self._waits: dict[str, _Wait] = {}
        self._holders: set[str] | None = None
        """None before the first check of this term: an earlier leader counted the pods that hold a share by then."""

    def reset(self) -> None:
        """Another replica counts from now on."""
        self._waits.clear()
        self._holders = None

    def look(
        self,
        waiting: Iterable[ObservedWait],
        holders: Collection[str],
        came: Iterable[ServedPod],
        now: float,
        parked: Callable[[str], bool] = lambda uid: False,
    ) -> Iterator[Started | ServiceJudgement]:
        """
        The events of pods since the last check. holders: the uids of all pods with a share. came: those of them that
        the last call did not see (`new`). now: seconds since 1970. parked: whether a pod waits that is not in
        `waiting`.
        """
        first = self._holders is None
        self._holders = set(holders)
        if not first:
            for pod in came:
                yield from self._started(pod, now)
        there = set[str]()
        for each in waiting:
            there.add(each.uid)
            yield from self._waiting(each, now, first)
        for uid in self._waits.keys() - there:
            if not parked(uid):
                del self._waits[uid]  # deleted, or placed and counted above

    def new(self, holders: Collection[str]) -> list[str]:
        """The uids that the last check did not see."""
        known = self._holders
        return [] if known is None else [uid for uid in holders if uid not in known]

    def _started(self, pod: ServedPod, now: float) -> Iterator[Started | ServiceJudgement]:
        wait = self._waits.pop(pod.uid, None)
        # A pod that never waited got its share at admission.
        waited = 0.0 if wait is None or wait.since is None else max(0.0, now - wait.since)
        yield Started(pod.namespace, band(pod.priority), waited)
        if wait is None or not wait.late:
            yield ServiceJudgement(waited > self._within)

    def _waiting(self, pod: ObservedWait, now: float, first: bool) -> Iterator[ServiceJudgement]:
        wait = self._waits.get(pod.uid)
        if pod.held:
            self._waits[pod.uid] = _Wait(None, wait is not None and wait.late)
            return
        if wait is None:
            since = min(pod.created or now, now)
            # The former leader counted pods that were late before this term.
            wait = self._waits[pod.uid] = _Wait(since, first and now - since > self._within)
        if wait.since is None:
            wait.since = now
        if not wait.late and now - wait.since > self._within:
            wait.late = True
            yield ServiceJudgement(late=True)


class Names:
    """The names under which namespaces are counted: the first so many have their own, until the process ends."""

    def __init__(self, most: int = MOST_NAMESPACES) -> None:
        self._most = most
        self._known: set[str] = set()

    def shown(self, namespace: str) -> str:
        """The value of the label."""
        if namespace not in self._known:
            if len(self._known) >= self._most:
                return OTHERS
            self._known.add(namespace)
        return namespace
