"""
The allocator's part of repair: what it knows, for comparing, and what is said of GPUs and pods that are wrong.

What a fresh list brings is compared with the state pod by pod, so that a large cluster's list does not keep the webhook
waiting. Each fault is said once for as long as it lasts. Under the one lock, in memory, like all that works on the
state; `allocator.workers.resync` does the reading.
"""

from __future__ import annotations

from collections.abc import Mapping

from allocator.queue.reporting import EventRecord, Eviction
from allocator.scheduler import consistency
from allocator.scheduler.claiming import Claiming
from allocator.scheduler.consistency import ListedPod, OvercommittedGpu
from allocator.scheduler.context import SchedulerContext

_LASTS, _AGAIN = 3.0, 60.0
"""Seconds for which a GPU must be promised too much before it is said, and until an eviction is asked for again."""


class Repairing(Claiming):
    """Compares and reports."""

    def __init__(self, context: SchedulerContext) -> None:
        super().__init__(context)
        self._overfull: dict[tuple[str, str], float] = {}
        """By GPU and youngest pod, when it is next acted upon."""
        self._said: set[tuple[str, str]] = set()
        """GPUs that are told of, and with which youngest pod."""
        self._uncounted: frozenset[str] = frozenset()

    def decides(self) -> bool:
        """Whether this replica may decide, and so must look after the state."""
        with self._lock:
            return self._mandate.holds()

    def uids(self) -> frozenset[str]:
        """Every pod of which something is known. Whoever is known now and not listed later is gone."""
        with self._lock:
            return self._uids()

    def known(self, uid: str) -> bool:
        """Whether something is known of the pod."""
        with self._lock:
            return self._tracks(uid)

    def differs(self, listed: ListedPod) -> bool:
        """Whether the list says something else of the pod than the watches did."""
        with self._lock:
            if listed.uid in self._line.quarantine.uids():
                return False  # reading it anew would end in the same error
            return self._tracked(listed.uid) != listed.known

    def mistrust(self) -> None:
        """The state is not what the API server says: have the pods listed anew."""
        with self._lock:
            self._relist = True
            self._wake()

    def take_relist(self) -> bool:
        """Whether the pods are to be listed anew; said once."""
        with self._lock:
            wanted, self._relist = self._relist, False
            return wanted

    def tenure(self) -> int | None:
        """The leadership that we are in; None where there is no election, or another leads."""
        with self._lock:
            return self._mandate.number()

    # -- what is wrong --------------------------------------------------------------------------------------------

    def report_overfull(self) -> None:
        """
        Say which GPUs are promised beyond what they have, and have the youngest go where that is wanted.

        To be called about once a second. Only what lasts is said: a list that is read anew brings a pod before it takes
        away the one in whose place it came.
        """
        with self._lock:
            now, found = self._clock(), {_key(one): one for one in consistency.overfull(self._cluster, self._sharers)}
            self._overfull = {key: self._overfull.get(key, now + _LASTS) for key in found}
            for key, one in found.items():
                if self._overfull[key] <= now:
                    self._say_overfull(one)
                    self._overfull[key] = now + _AGAIN
            self._said &= {said for key in found for said in ((key[0], ""), key)}

    def _say_overfull(self, one: OvercommittedGpu) -> None:
        evicts, youngest = self._options.repair == "evict", one.youngest
        then = "it is evicted" if evicts else "delete it, so that it is placed again"
        text = f"{one.what}. This pod is the youngest that holds a share of it: {then}"
        if (one.uuid, "") not in self._said:
            self._line.note(EventRecord("Node", one.node, one.node, "GPUOvercommitted", one.what))
        if youngest is not None and _key(one) not in self._said:
            self._line.note(EventRecord("Pod", youngest.key, youngest.uid, "GPUOvercommitted", text))
        self._said |= {(one.uuid, ""), _key(one)}
        self._wake()
        if evicts and youngest is not None:
            self._evictions.append(Eviction(youngest.key, youngest.uid, None, "repair", text))

    def report_uncounted(self, found: Mapping[str, str]) -> None:
        """Say which pods ask for a share and have none that anybody counts: `namespace/name` by uid."""
        with self._lock:
            for uid in found.keys() - self._uncounted:
                self._line.note(EventRecord("Pod", found[uid], uid, "GPUShareUncounted", _UNCOUNTED))
            self._uncounted = frozenset(found)
            self._wake()


_UNCOUNTED = (
    "requests a GPU share and has no valid allocation: the admission webhook of gpufraction.io did not see it, or its "
    "annotations were changed. Delete it and create it again; if this happens again, check that the "
    "MutatingWebhookConfiguration gpufraction-webhook exists"
)


def _key(one: OvercommittedGpu) -> tuple[str, str]:
    return one.uuid, one.youngest.uid if one.youngest is not None else ""
