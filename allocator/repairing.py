"""
The allocator's part of repair: what it knows, for comparing, and what is said of GPUs and pods that are wrong.

What a fresh list brings is compared with the state in short pieces, so that a large cluster's list does not keep the
webhook waiting. Each fault is said once for as long as it lasts. Under the one lock, in memory, like all that works on
the state; `allocator.repair` does the reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from allocator import auditing
from allocator.auditing import Listed, Overfull
from allocator.claims.claiming import Claiming
from allocator.cluster import Cluster
from allocator.known import NOBODY
from allocator.line import Evict, Noted
from allocator.mandate import Mandate
from allocator.options import Options
from contract import names
from contract.model import PodRequest

_PIECE = 1_000
"""Pods that are compared before the lock is let go."""


class Repairing(Claiming):
    """Compares and reports."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        mandate: Mandate,
        options: Options,
        clock: Callable[[], float],
        new_id: Callable[[], str],
        wake: Callable[[], None],
        forgotten: Callable[[str], None],
        asked: Callable[[PodRequest, int], None],
    ) -> None:
        super().__init__(
            cluster=cluster,
            mandate=mandate,
            options=options,
            clock=clock,
            new_id=new_id,
            wake=wake,
            forgotten=forgotten,
            asked=asked,
        )
        self._reported: set[tuple[str, str]] = set()
        self._uncounted: frozenset[str] = frozenset()
        self._relist = False

    def decides(self) -> bool:
        """Whether this replica may decide, and so must look after the state."""
        with self._lock:
            return self._mandate.holds()

    def uids(self) -> frozenset[str]:
        """Every pod of which something is known. Whoever is known now and not listed later is gone."""
        with self._lock:
            return self._cluster.pod_uids()

    def known(self, uid: str) -> bool:
        """Whether something is known of the pod."""
        with self._lock:
            return self._cluster.known(uid) != NOBODY

    def differing(self, listed: Sequence[Listed]) -> list[Listed]:
        """The pods of which the list says something else than the watches did."""
        found: list[Listed] = []
        for start in range(0, len(listed), _PIECE):
            with self._lock:
                piece = listed[start : start + _PIECE]
                found += [pod for pod in piece if self._cluster.known(pod.uid) != pod.known]
        return found

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

    def report_overfull(self) -> int:
        """Say which GPUs are promised beyond what they have, and have the youngest go where that is wanted."""
        with self._lock:
            found = auditing.overfull(self._cluster, self._sharers)
            said = self._reported
            self._reported = {key for one in found for key in _keys(one)}
            for one in found:
                self._say_overfull(one, self._reported - said)
            self._wake()
            return len(found)

    def _say_overfull(self, one: Overfull, new: set[tuple[str, str]]) -> None:
        if (one.uuid, "") in new:
            self._line.note(Noted("Node", one.node, one.node, "GPUOverfull", one.what))
        youngest = one.youngest
        if youngest is None:
            return
        evicts = self._options.repair == "evict"
        then = "it is evicted" if evicts else "delete it, so that it is placed anew"
        text = f"{one.what}. This pod is the youngest that holds a share of it: {then}"
        if (one.uuid, youngest.uid) in new:
            self._line.note(Noted("Pod", youngest.key, youngest.uid, "GPUOverfull", text))
        if evicts:
            self._evictions.append(Evict(youngest.key, youngest.uid, None, "repair", text))

    def report_uncounted(self, listed: Iterable[Listed], served: Iterable[str]) -> int:
        """Say which pods of served namespaces ask for a share and have none that anybody counts."""
        namespaces = set(served) - names.UNSERVED_NAMESPACES
        found = {pod.uid: pod for pod in listed if pod.uncounted and pod.key.split("/", 1)[0] in namespaces}
        with self._lock:
            for uid in found.keys() - self._uncounted:
                self._line.note(Noted("Pod", found[uid].key, uid, "GPUShareUncounted", _UNCOUNTED))
            self._uncounted = frozenset(found)
            self._wake()
        return len(found)


_UNCOUNTED = (
    "asks for a GPU share and has none that is counted: the admission webhook of gpufraction.io did not see it, or its "
    "annotations were changed. Delete it and create it again; if this comes back, is the MutatingWebhookConfiguration "
    "gpufraction-webhook in place?"
)


def _keys(one: Overfull) -> list[tuple[str, str]]:
    return [(one.uuid, ""), *([(one.uuid, one.youngest.uid)] if one.youngest is not None else [])]
