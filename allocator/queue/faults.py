"""
Errors of ours that come of one pod: the pod is left alone and told so, and no other pod is held up. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from allocator.cache.cache import Cache
from allocator.faults import Faulted
from allocator.queue import quarantine
from allocator.queue.quarantine import INTERNAL_ERROR
from allocator.queue.queue import QueuedPodInfo
from allocator.queue.reporting import EventRecord, PodRecords, StatusUpdate


class PodFaults:
    """Sets pods aside."""

    def __init__(
        self,
        *,
        cache: Cache,
        records: PodRecords,
        leads: Callable[[], bool],
        clock: Callable[[], float],
        wake: Callable[[], None],
        faulted: Faulted,
    ) -> None:
        """`leads`: whether it is on this replica to tell pods; `faulted` is told of each error once."""
        self._cache, self._records, self._leads = cache, records, leads
        self._clock, self._wake, self.surfaced = clock, wake, faulted

    def leave_alone(self, place: str, entry: QueuedPodInfo) -> None:
        """To be called where an error of ours came of what is done for a pod in the queue, as it is handled."""
        self.set_aside(place, entry.uid, entry.key, entry.pod, quarantine.tried_as(entry))

    def set_aside(self, place: str, uid: str, key: str, pod: Mapping[str, Any], made_of: object) -> None:
        """
        To be called where an error of ours came of a pod, as it is handled: the pod is left alone, and told so.

        A pod that may hold a share is told by an Event only: its condition says that it has one, and so it is.
        `made_of`: a pod of which this changes may be tried again.
        """
        now = self._clock()
        fault = self._records.quarantine.known(uid, place, made_of, now)
        if fault is None:
            found = self.surfaced(place, key)
            if not uid:
                return
            fault = self._records.quarantine.put(uid, key, made_of, place, found, now)
        if not self._leads():
            return
        text = quarantine.said(fault)
        if self._cache.ledger.holding(uid) is None and not quarantine.may_hold(pod):
            self._records.tell(StatusUpdate(key, uid, False, INTERNAL_ERROR, text, warning=INTERNAL_ERROR), now)
        elif fault.since == now:
            self._records.note(EventRecord("Pod", key, uid, INTERNAL_ERROR, text))
        self._wake()
