"""
The thread that answers Kueue's check `gpufraction.io/fits`.

It watches Kueue's objects in every replica and answers in the leading one. Each turn takes the current cluster, counts
Workloads that were recently answered Ready, and judges the waiting Workloads one after another. Judging takes no lock
of the scheduler, so pods are placed meanwhile; their shares count from the next turn on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from allocator.cache.cache import FrozenCluster
from allocator.cache.reserved import Requester
from allocator.engine.reference import Policy
from allocator.faults import Faulted, surfaced
from allocator.features.kueue import answers
from allocator.features.kueue.checks import FitChecks
from allocator.features.kueue.claims import TemplateClaimReader
from allocator.features.kueue.informers import KueueInformers
from allocator.features.kueue.judge import (
    ClaimsOf,
    Fits,
    Gang,
    GangTrial,
    NotAdmitted,
    NotSeen,
    TemplateReading,
    Verdict,
    gang_of,
    may_open,
)
from allocator.features.kueue.settings import FitsSettings
from allocator.features.kueue.workloads import UnreadableObject, Workload, key_of
from allocator.scheduler.core import Controller
from contract import kinds, names
from contract.encoding import moments
from contract.scheduling.filters import Limits
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError
from runtime.supervision import Workers

JSON = dict[str, Any]
log = logging.getLogger(__name__)
_AT_LEAST_EVERY = 1.0
_PATIENCE = 2.0
"""Seconds for which pods of the queue have precedence; then Workloads are judged anyway."""
_FRESH = 2.0
"""Seconds for which Workloads are judged by one snapshot of the cluster."""
_NAMESPACES_EVERY = 10.0
"""Seconds between two requests for the served namespaces."""
_UNSEEN = 10.0
"""Seconds to wait for unseen pods and flavors of a Workload; then it is judged without them, if possible."""


class FitsWorker:
    """Call `run` on a thread of its own, and `pod_seen` with every pod that is new or changed."""

    def __init__(
        self,
        *,
        kube: Kube,
        controller: Controller,
        limits: Limits,
        policy: Policy,
        settings: FitsSettings,
        rejects: bool,
        nodes_within: float | None,
        reading: Callable[[], TemplateReading],
        timeout: float,
        claims: TemplateClaimReader | None = None,
        clock: Callable[[], float] = time.monotonic,
        today: Callable[[], datetime] = lambda: datetime.now(UTC),
        counted: Callable[[str], None] = lambda state: None,
        on_restart: Callable[[str, str], None] = lambda name, why: None,
        workers: Workers | None = None,
        faulted: Faulted = surfaced,
    ) -> None:
        """
        `rejects`: whether Workloads that no GPU of the cluster could ever serve are rejected. `nodes_within`: seconds
        that a new node of a declared pool may take; None: no autoscaler adds nodes. `counted` is called with the state
        of each written answer. `timeout`: seconds for one write. `claims` reads ResourceClaims; None if pods request no
        shares by them.
        """
        self._kube = kube
        self._controller = controller
        self._reading = reading
        self._settings = settings
        self._rejects = rejects
        self._nodes_within = nodes_within
        self._timeout = timeout
        self._claims = claims
        self._clock = clock
        self._today = today
        self._counted = counted
        self._faulted = faulted
        self._trial = GangTrial(limits, policy, give_way=lambda: time.sleep(0))
        self._lock = threading.Lock()  # guards the checks
        self._checks = FitChecks(hold=settings.hold, age_of=self._age_of)
        self._woken = threading.Event()
        self._informers = KueueInformers(
            kube,
            self._checks,
            self._lock,
            faulted=faulted,
            changed=self._woken.set,
            on_restart=on_restart,
            workers=workers,
            clock=clock,
        )
        self._unsettled_since: float | None = None
        self._unseen: dict[str, float] = {}
        self._served: frozenset[str] = frozenset()
        self._by_claims: frozenset[str] = frozenset()
        """The served namespaces whose pods may request shares by ResourceClaims."""
        self._ask_namespaces_at = float("-inf")
        self._activated: dict[str, str] = {}
        """The versions of our AdmissionChecks at which they were written."""

    def pod_seen(self, pod: Mapping[str, Any]) -> None:
        """The pod is new or changed."""
        with self._lock:
            self._checks.pod_seen(pod)

    def run(self, stop: threading.Event) -> None:
        """Run until stopped."""
        try:
            while not stop.is_set():
                self.once()
                self._woken.wait(_AT_LEAST_EVERY)
                self._woken.clear()
        finally:
            self.stop()

    def stop(self) -> None:
        """Stop watching."""
        self._informers.stop()

    def once(self) -> None:
        """One turn: update the watches, and answer the waiting Workloads."""
        self._informers.refresh()
        decides, term = self._controller.deciding()
        if not decides or not self._informers.synced():
            return
        self._activate(term)
        with self._lock:
            due = self._checks.due(self._clock())
            self._unseen = {key: at for key, at in self._unseen.items() if key in {each.key for each in due}}
        if self._claims is not None:
            self._claims.forget()
        if due and self._knows_namespaces() and self._begin():
            try:
                self._answer_due(due, term)
            finally:
                self._trial.rest()

    def _answer_due(self, due: Iterable[Workload], term: int | None) -> None:
        """Judge and answer the waiting Workloads, by one snapshot of the cluster."""
        until = self._clock() + _FRESH
        for workload in due:
            if not self._controller.may_write_in(term):
                return
            if self._clock() >= until:
                self._woken.set()  # the others are judged by a later snapshot
                return
            self._answer_alone(workload, term)

    def _activate(self, term: int | None) -> None:
        with self._lock:
            inactive = self._checks.inactive()
        for check in inactive:
            name, seen = key_of(check), str((check.get("metadata") or {}).get("resourceVersion"))
            if self._activated.get(name) != seen and self._controller.may_write_in(term):
                version = self._informers.version
                if answers.activate(self._kube, version, check, now=self._stamp(), timeout=self._timeout):
                    self._activated[name] = seen

    def _knows_namespaces(self) -> bool:
        """Whether the served namespaces are known; requests them from time to time."""
        now = self._clock()
        if now < self._ask_namespaces_at:
            return True
        selector = f"{names.INJECT_LABEL}={names.INJECT_ENABLED}"
        try:
            listed = self._kube.list(
                paths.namespaces(), {"labelSelector": selector}, of=kinds.NAMESPACES, timeout=self._timeout
            )
        except KubeError as error:
            log.info("served namespaces not known", extra={"reason": str(error)})
            return False
        self._served = frozenset(map(key_of, listed.items)) - names.UNSERVED_NAMESPACES
        self._by_claims = self._served & frozenset(key_of(each) for each in listed.items if _by_claims(each))
        self._ask_namespaces_at = now + _NAMESPACES_EVERY
        return True

    def _begin(self) -> bool:
        """Begin a trial with the current cluster; False if pods of the queue come first."""
        cluster, settled = self._controller.frozen()
        now = self._clock()
        if not settled:
            self._unsettled_since = now if self._unsettled_since is None else self._unsettled_since
            if now - self._unsettled_since < _PATIENCE:
                return False
        self._unsettled_since = None
        self._trial.begin(cluster, self._may_open(cluster))
        with self._lock:
            unread = [held.workload for held in self._checks.assumed(now) if held.gang is None]
        claims = {each.key: self._claims_alone(each) for each in unread}  # it sends requests: without the lock
        with self._lock:
            for held in self._checks.assumed(now):
                found = claims.get(held.workload.key)
                if held.gang is None and found is not None:
                    gang = self._gang_alone(held.workload, found)
                    held.gang = gang if isinstance(gang, Gang) else None
            left = [held.left() for held in self._checks.assumed(now)]
        for gang in left:
            if gang is not None:
                self._trial.assume(gang)
        return True

    def _may_open(self, cluster: FrozenCluster) -> dict[str, int]:
        return {} if self._nodes_within is None else may_open(self._reading().pools, cluster.nodes)

    def _claims_of(self, workload: Workload) -> ClaimsOf:
        """The ResourceClaims of its pods. Raises `NotSeen` if they cannot be read now."""
        if self._claims is None or workload.namespace not in self._by_claims:
            return {}
        return self._claims.read(workload)

    def _claims_alone(self, workload: Workload) -> ClaimsOf | None:
        """The ResourceClaims of an assumed Workload; None if they cannot be read now."""
        try:
            return self._claims_of(workload)
        except NotSeen:
            return None
        except Exception:
            self._faulted("kueue", workload.key)
            return None

    def _gang_alone(self, workload: Workload, claims: ClaimsOf) -> Gang | NotAdmitted | None:
        """The request of an assumed Workload; None if it cannot be read."""
        try:
            return self._gang(workload, claims)
        except (NotSeen, UnreadableObject):
            return None
        except Exception:
            self._faulted("kueue", workload.key)
            return None

    def _gang(self, workload: Workload, claims: ClaimsOf) -> Gang | NotAdmitted:
        if workload.namespace not in self._served:  # other systems give its pods their GPUs
            return Gang((), Requester("", workload.priority, workload.namespace))
        waiting = self._controller.asks(workload.pods) if workload.pods else {}
        late = self._is_late(workload)
        return gang_of(workload, self._checks.flavors, waiting, self._reading(), claims, by_copy=late)

    def _is_late(self, workload: Workload) -> bool:
        """Whether something on which the Workload depends has been unseen for too long."""
        now = self._clock()
        return now - self._unseen.get(workload.key, now) >= _UNSEEN

    def _answer_alone(self, workload: Workload, term: int | None) -> None:
        """Judge and answer one Workload; an error does not affect other Workloads."""
        try:
            self._answer(workload, term)
        except NotSeen as unseen:
            self._unseen.setdefault(workload.key, self._clock())
            if self._is_late(workload):
                log.info("workload not judged yet", extra={"workload": workload.key, "reason": f"{unseen} is not seen"})
                self._set_aside(workload)
        except UnreadableObject as error:
            log.warning("workload not judged", extra={"workload": workload.key, "reason": str(error)})
            self._set_aside(workload)
        except Exception:
            self._faulted("kueue", workload.key)
            self._set_aside(workload)

    def _set_aside(self, workload: Workload) -> None:
        with self._lock:
            self._checks.set_aside(workload, self._clock())

    def _answer(self, workload: Workload, term: int | None) -> None:
        claims = self._claims_of(workload)
        with self._lock:
            gang = self._gang(workload, claims)
            counted = self._checks.is_assumed(workload)
            ours = self._checks.ours()
        verdict: Verdict
        if isinstance(gang, Gang) and gang.has_volumes:
            self._controller.follow_volumes()
        if isinstance(gang, Gang) and gang.has_devices:
            self._controller.follow_devices()
        if isinstance(gang, NotAdmitted):
            verdict = gang
        elif counted:  # it was answered Ready, and the outcome of that write is unknown
            verdict = Fits(gang.pods)
        else:
            verdict = self._trial.judge(gang)
        answer = answers.answer_to(
            verdict,
            rejects=self._rejects and not self._is_late(workload),
            dialects=self._reading().dialects,
            retry_after=max(round(self._settings.retry_after), 1),
        )
        if not self._controller.may_write_in(term):
            return
        fits = gang if isinstance(verdict, Fits) else None
        extra = (self._nodes_within or 0.0) if isinstance(verdict, Fits) and verdict.opened else 0.0
        with self._lock:
            self._checks.answered(workload, fits, self._clock(), extra=extra)
        outcome = answers.write(
            self._kube,
            self._informers.version,
            workload,
            ours,
            answer,
            now=self._stamp(),
            timeout=self._timeout,
        )
        if outcome == "succeeded":
            self._counted(answer.state)
            return
        with self._lock:
            self._checks.not_answered(workload, self._clock(), unknown=outcome == "unknown")

    def _stamp(self) -> str:
        return moments.stamp(self._today().timestamp())

    def _age_of(self, stamp: str) -> float:
        """Seconds since then; 0 for an invalid time."""
        then = moments.seconds(stamp)
        return 0.0 if then is None else self._today().timestamp() - then


def _by_claims(namespace: Mapping[str, Any]) -> bool:
    """Whether pods of the namespace may request shares by ResourceClaims."""
    labels = (namespace.get("metadata") or {}).get("labels") or {}
    return bool(labels.get(names.RESOURCE_CLAIMS_LABEL) == names.INJECT_ENABLED)
