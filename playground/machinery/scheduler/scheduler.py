"""
The embedded cluster's kube-scheduler: one thread that owns its state and binds one pod after another.

`placement.choose` makes the choice. This module has the rest: which pods are its own (its `schedulerName`, no gate, no
node yet), what is booked on each node, which pods wait, and when to retry. A pod that found no node is parked until a
change could help it (a node appears or changes, a pod leaves); parked pods are never polled. There is no
preemption, no volume, no inter-pod rule and no topology spread: a pod that uses those is placed without them.
"""

import logging
import queue
import threading
from collections.abc import Callable
from typing import TypeAlias

from contract.encoding.quantity import BadQuantity
from contract.scheduling import needs
from playground.api.kinds.values import JSON, timestamp
from playground.machinery.client import claims
from playground.machinery.client.client import PODS, RESOURCE_CLAIMS, Client, Refused
from playground.machinery.client.informer import Cache
from playground.machinery.client.recording import NORMAL, WARNING, Recorder
from playground.machinery.objects import conditions, resources
from playground.machinery.objects.resources import Account
from playground.machinery.scheduler import placement
from playground.machinery.scheduler.placement import Candidate, Unschedulable, Wish

log = logging.getLogger(__name__)

_Change: TypeAlias = tuple[Cache, JSON | None, JSON | None]

DEFAULT_SCHEDULER = "default-scheduler"
_ENDED = ("Succeeded", "Failed")
RETRY_SECONDS = 1.0


class Scheduler:
    """The caches feed it; `run` is its thread."""

    def __init__(
        self,
        *,
        client: Client,
        recorder: Recorder,
        pods: Cache,
        nodes: Cache,
        clock: Callable[[], float],
        name: str = DEFAULT_SCHEDULER,
    ) -> None:
        self._client = client
        self._recorder = recorder
        self._clock = clock
        self._name = name
        self._pods = pods
        self._nodes = nodes
        self._inbox: queue.SimpleQueue[_Change | None] = queue.SimpleQueue()
        self._candidates: dict[str, Candidate] = {}
        self._accounts: dict[str, Account] = {}
        self._placed: dict[str, str] = {}  # pod uid -> node
        self._pending: dict[str, JSON] = {}  # pods to try, by uid, in the order of their arrival
        self._parked: dict[str, JSON] = {}  # pods that found no node
        self._wishes: dict[str, Wish] = {}  # of pending and parked pods: reading them would take most of a pass
        self._retry = False
        pods.on_change(lambda old, new: self._inbox.put((pods, old, new)))
        nodes.on_change(lambda old, new: self._inbox.put((nodes, old, new)))

    def run(self, stop: threading.Event) -> None:
        """Apply changes, then schedule the pods that can be placed; until `close`."""
        while not stop.is_set():
            try:
                changes = self._wait()
                if changes is None:
                    return
                for change in changes:
                    self._take_in(change)
                self._schedule_pending()
            except Exception:
                # One unexpected pod must not stop the scheduling of all others.
                log.exception("scheduling failed")
                self._retry = True

    def close(self) -> None:
        self._inbox.put(None)

    def _wait(self) -> list[_Change] | None:
        """Wait for a change or until a retry is due, and return all changes in the inbox; None to stop."""
        changes: list[_Change] = []
        try:
            first = self._inbox.get(timeout=RETRY_SECONDS if self._retry else None)
            if first is None:
                return None
            changes.append(first)
            while True:
                more = self._inbox.get_nowait()
                if more is None:
                    return None
                changes.append(more)
        except queue.Empty:
            return changes

    # -- what happened --------------------------------------------------------------------------------------------

    def _take_in(self, change: _Change) -> None:
        cache, old, new = change
        if cache is self._nodes:
            self._node_changed(old, new)
        elif new is None:
            assert old is not None
            self._pod_removed(old)
        else:
            self._pod_changed(new)

    def _node_changed(self, old: JSON | None, new: JSON | None) -> None:
        if new is None:
            assert old is not None
            self._candidates.pop(old["metadata"]["name"], None)
            return
        name = new["metadata"]["name"]
        candidate = Candidate(resources.node_state(new), resources.allocatable_of(new), self._account(name))
        if candidate != self._candidates.get(name):
            self._candidates[name] = candidate
            self._unpark()

    def _account(self, node: str) -> Account:
        return self._accounts.setdefault(node, Account())

    def _pod_removed(self, pod: JSON) -> None:
        uid = pod["metadata"]["uid"]
        self._drop(uid)
        self._release(uid)

    def _drop(self, uid: str) -> None:
        """Remove the pod from those that wait."""
        for waiting in (self._pending, self._parked, self._wishes):
            waiting.pop(uid, None)

    def _release(self, uid: str) -> None:
        node = self._placed.pop(uid, None)
        if node is not None and self._account(node).release(uid):
            self._unpark()

    def _pod_changed(self, pod: JSON) -> None:
        uid, spec = pod["metadata"]["uid"], pod["spec"]
        if (pod.get("status") or {}).get("phase") in _ENDED:
            self._pod_removed(pod)
        elif spec.get("nodeName"):
            self._drop(uid)
            self._book(pod, spec["nodeName"])
        elif self._is_mine(pod):
            self._consider(uid, pod)
        else:
            self._drop(uid)

    def _is_mine(self, pod: JSON) -> bool:
        spec = pod["spec"]
        return (
            spec.get("schedulerName", DEFAULT_SCHEDULER) == self._name
            and not spec.get("schedulingGates")
            and not pod["metadata"].get("deletionTimestamp")
        )

    def _consider(self, uid: str, pod: JSON) -> None:
        parked = self._parked.get(uid)
        # Our own condition on a parked pod comes back as a change, which helps no pod.
        if parked is not None and _wants(parked) == _wants(pod):
            self._parked[uid] = pod
            return
        self._drop(uid)
        self._pending[uid] = pod

    def _book(self, pod: JSON, node: str) -> None:
        uid = pod["metadata"]["uid"]
        if self._placed.get(uid) == node:
            return
        self._release(uid)
        self._placed[uid] = node
        self._account(node).book(uid, resources.holding_of(pod, needs.needs_of(pod)))

    def _unpark(self) -> None:
        self._pending.update(self._parked)
        self._parked.clear()

    # -- what to do -----------------------------------------------------------------------------------------------

    def _schedule_pending(self) -> None:
        self._retry = False
        pods = sorted(self._pending.values(), key=_turn)
        failed: dict[object, Unschedulable] = {}
        for pod in pods:
            uid = pod["metadata"]["uid"]
            unallocated = self._unallocated(pod)
            if unallocated:
                self._retry = True  # it stays pending: claims are not watched
                continue
            del self._pending[uid]
            try:
                wish = self._wish(uid, pod)
            except BadQuantity as error:
                self._park(pod, Unschedulable(f"pod has an unreadable quantity: {error}"))
                continue
            # Binding only uses up room, so pods that found no node a moment ago find none now.
            choice = failed.get(wish.key) or placement.choose(wish, self._candidates.values())
            if isinstance(choice, Unschedulable):
                failed[wish.key] = choice
                self._park(pod, choice)
            else:
                self._bind(pod, choice)

    def _unallocated(self, pod: JSON) -> str:
        """Why the pod waits for one of its ResourceClaims; empty where it does not."""
        namespace = pod["metadata"]["namespace"]
        return claims.unallocated(pod, lambda name: self._client.get(RESOURCE_CLAIMS, namespace, name))

    def _wish(self, uid: str, pod: JSON) -> Wish:
        """Raises `BadQuantity`."""
        wish = self._wishes.get(uid)
        if wish is None:
            wish = self._wishes[uid] = Wish(needs.needs_of(pod), resources.requests_of(pod))
        return wish

    def _bind(self, pod: JSON, node: str) -> None:
        """Book first: the next choice must take this one into account before its event comes back."""
        uid, metadata = pod["metadata"]["uid"], pod["metadata"]
        self._book(pod, node)
        refused = self._client.bind(pod, node)
        if refused is None:
            text = f"Successfully assigned {metadata['namespace']}/{metadata['name']} to {node}"
            self._recorder.event(pod, NORMAL, "Scheduled", text)
            return
        self._release(uid)
        self._retry = True
        if not refused.gone and not refused.outdated:
            self._recorder.event(pod, WARNING, "FailedScheduling", f"binding rejected: {refused.message}")
            self._pending[uid] = pod

    def _park(self, pod: JSON, why: Unschedulable) -> None:
        self._parked[pod["metadata"]["uid"]] = pod
        scheduled = conditions.find(pod, "PodScheduled")
        wanted = conditions.condition("PodScheduled", False, "Unschedulable", why.message)
        if scheduled is not None and all(scheduled.get(field) == value for field, value in wanted.items()):
            return
        now = timestamp(self._clock())
        entries = conditions.merged((pod.get("status") or {}).get("conditions"), [wanted], now)
        answer = self._client.patch(PODS, pod, {"status": {"conditions": entries}}, sub="status")
        if not isinstance(answer, Refused):
            self._recorder.event(pod, WARNING, "FailedScheduling", why.message)
            self._parked[pod["metadata"]["uid"]] = answer


def _turn(pod: JSON) -> tuple[int, str]:
    """Higher priority first, then the older pod."""
    return -int(pod["spec"].get("priority") or 0), pod["metadata"]["creationTimestamp"]


def _wants(pod: JSON) -> tuple[object, ...]:
    """The parts of a pod whose change could make a parked pod fit."""
    spec = pod["spec"]
    fields = ("nodeSelector", "affinity", "tolerations", "schedulingGates")
    return (*(spec.get(field) for field in fields), [c.get("resources") for c in spec["containers"]])
