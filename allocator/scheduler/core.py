"""
The allocator's decisions: answers the webhook, and places the pods that wait.

With what the watches bring (`allocator.scheduler.handlers`), what time brings (`allocator.scheduler.housekeeping`), the
claims (`allocator.claims`) and what a fresh look at the API server says (`allocator.scheduler.comparing`) it is the one
owner of the allocator's state. Every public method takes the one lock, works on memory only and returns at once;
writing to the API server is the caller's part, with what is returned here. So a decision and its reservation are one
step, and no two can take the same share. Time, ids and leadership are injected.

A waiting pod is tried again only when something happened that could help it: a share came back, a node or its GPUs
changed, a pod joined. Where only what it was told may have become untrue, the line is gone down some seconds later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from allocator.cache import reserved, unconfirmed
from allocator.cache.cache import Cache
from allocator.cache.ledger import Reservation, ReservationState
from allocator.cache.reserved import NodeReservation, Requester
from allocator.claims.manager import BINDING
from allocator.claims.objects import Status
from allocator.engine import basis, pinning
from allocator.engine.basis import Judged
from allocator.engine.reference import Placement, Unschedulable
from allocator.faults import Faulted, surfaced
from allocator.queue.queue import QueuedPodInfo
from allocator.queue.reporting import Binding, Report, StatusUpdate
from allocator.queue.rounds import namespace_of
from allocator.scheduler import messages, view
from allocator.scheduler.comparing import Repairing
from allocator.scheduler.context import SchedulerContext
from allocator.scheduler.handlers import stands
from allocator.scheduler.leadership import Leadership
from allocator.scheduler.options import SchedulerOptions
from allocator.scheduler.view import SchedulerFigures, SchedulerView
from allocator.scoring.tables import Tables
from contract import pods
from contract.encoding.protocol import Answer, Never, Placed, Question, Wait
from contract.model import Allocation, NodeState, PodRequest
from contract.scheduling import needs
from contract.scheduling.request import SchedulingRequest

JSON = dict[str, Any]
_Failed = dict[tuple[SchedulingRequest, tuple[NodeReservation, ...]], Unschedulable]
"""What is known not to fit, by shape and by the kept nodes to which it may go."""
_TOLD_AFTER = 3
"""Failures in a row to store a placement after which the pod is told, where nobody refused it in so many words."""
_TELL_AFTER = 2.0
"""Seconds that the binding of a claim may take before its pod is told."""
_TURN, _DECIDED = 1_000, 100
"""Pods of the line that are looked at in one turn, and as how many a decision counts: some ten milliseconds at 5,000
nodes."""


class NotReady(Exception):
    """This replica can say nothing yet: it has not seen the cluster."""


class Controller(Repairing):
    """Decides on the state that its lower parts keep up."""

    def __init__(
        self,
        *,
        cluster: Cache,
        options: SchedulerOptions,
        clock: Callable[[], float],
        new_id: Callable[[], str],
        leading: Callable[[], bool],
        wake: Callable[[], None],
        tenure: Callable[[], int | None] | None = None,
        forgotten: Callable[[str], None] = lambda reason: None,
        asked: Callable[[PodRequest, int], None] = lambda request, cpu: None,
        faulted: Faulted = surfaced,
        give_way: Callable[[], None] = lambda: None,
    ) -> None:
        """
        `give_way` is called between two turns of what takes long, without the lock. It must let other threads run: a
        lock that is taken again at once is not had by who waits for it.
        """
        context = SchedulerContext(
            cluster=cluster,
            mandate=Leadership(leading, tenure),
            options=options,
            clock=clock,
            new_id=new_id,
            wake=wake,
            forgotten=forgotten,
            asked=asked,
            faulted=faulted,
        )
        super().__init__(context)
        self._new_id, self._give_way = new_id, give_way
        self._trying = False
        """A pass down the line is under way."""
        self._to_write: list[Binding] = []
        """What is to be written, until it is handed out; a pass that ends in an error takes none of it along."""
        self._failed: _Failed = {}
        """Of this round."""

    # -- the webhook's question -----------------------------------------------------------------------------------

    def reserve(self, question: Question) -> Answer:
        """
        Place a pod at admission, or say why not. Raises `NotReady` where this replica has not seen the cluster.

        A replica that may not decide reserves nothing, and says what it sees: a refusal is the same as the leader's,
        and a pod that fits waits for the leader with the memory counted that it will have at least.

        Admission may pass a pod through us twice. The place that it has from the first time stands only while
        everything that it was judged by is unchanged. Otherwise the reservation is forgotten and the pod decided again.
        """
        ask = SchedulingRequest(question.request, needs.needs_of(question.pod, several=question.request.several))
        seen = basis.judged(question.pod, ask, self._options.placement)
        with self._lock:
            unready = self._mandate.unready()
            if unready:
                raise NotReady(unready)
            decides = self._mandate.holds()
            if question.request.claim:
                # Only a pod that is there can be tied to a claim: its finalizer looks at pods.
                told = self._desk.waits(question.namespace, question.request.claim)
                return Wait(told.reason, told.message)
            return self._decided(question, seen, decides, self._held(question) if decides else None)

    def _decided(self, question: Question, seen: Judged, decides: bool, held: Reservation | None) -> Answer:
        if held is not None and not question.refused and _stands_still(held, seen):
            return Placed(held.allocation, held.pin)
        if held is not None and not question.dry_run:
            self._take_back(held, "denied" if question.refused else "changed")
        if question.refused:
            return Never("Refused", "the webhook refused the pod")
        ask, smallest = seen.ask, self._cluster.engine.smallest_accepted
        if seen.foreign_gates:
            return messages.wait_for_gate(min(seen.foreign_gates), ask.request, smallest)
        decision = self._cluster.decide(ask, Requester("", seen.priority, question.namespace))
        if not isinstance(decision, Placement):
            return self._refuse(ask, decision)
        if not decides:
            return messages.wait_for_leader(ask.request, smallest)
        if not ask.needs.node_name and self._somebody_is_before(seen.priority, question.namespace):
            return messages.wait_in_line(ask.request, smallest)
        allocation = Allocation(self._new_id(), decision.node, decision.containers)
        pin, key = self._pin(seen, decision.node), messages.key_of(question)
        later = self._why_stored_first(question, ask, allocation)
        if later:
            return messages.wait_until_stored(later, ask.request, smallest)
        if not question.dry_run:
            self._cluster.assume(replace(self._holding(ask, allocation, key), judged=seen, pin=pin))
        return Placed(allocation, pin)

    def _why_stored_first(self, question: Question, ask: SchedulingRequest, allocation: Allocation) -> str:
        """Why the pod gets its share only once it is stored; empty where it gets it now."""
        if self._options.when == "stored":
            return "the setting placement.when is stored"
        if question.dry_run:
            return ""
        sharers = self._cluster.engine.limits.max_sharers
        held = unconfirmed.of_admissions(self._cluster.ledger.assumed())
        wanted = unconfirmed.Wanted(question.namespace, unconfirmed.weight(ask.request, allocation, sharers))
        return self._unconfirmed.why_stored_first(wanted, held, self._cluster.gpus, sharers, self._clock())

    def _take_back(self, held: Reservation, why: str) -> None:
        """Others changed or refused the pod after its reservation was made. Queued pods may take that room now."""
        if self._cluster.forget(held.key):
            self._forgotten(why)
            self._rouse()

    def offered(self, node: str) -> frozenset[str]:
        """
        The resources by which NVIDIA's own plugin hands out GPUs on a node; none where there is no such node.

        Raises `NotReady` where this replica has not seen the cluster.
        """
        with self._lock:
            unready = self._mandate.unready()
            if unready:
                raise NotReady(unready)
            return self._cluster.offered(node)

    def untrusted(self) -> int | None:
        """The leadership for which the pods must be listed before anything is decided in it; None where all is well."""
        with self._lock:
            return self._mandate.untrusted()

    def may_write(self, commit: Binding) -> bool:
        """Whether the leadership in which it was decided still holds; to be asked right before the write."""
        return self._mandate.covers(commit.tenure)

    def _somebody_is_before(self, priority: int, namespace: str) -> bool:
        """
        Whether a pod waits that what has just come free is for, rather than for one that comes only now.

        Who is left for a later cycle because of its namespace's budget is before those of the same namespace only.
        """
        anybody, left = self._untried or self._trying, self._rounds.unfinished
        if not anybody and not left:
            return False
        now = self._clock()
        return any(
            entry.priority >= priority
            and not entry.foreign
            and self._line.may_try(entry.uid, now)
            and (anybody or (namespace_of(entry) == namespace and not self._rounds.has_tried(entry.uid)))
            for entry in self._queue.in_any_order()
        )

    def _held(self, question: Question) -> Reservation | None:
        """
        The live reservation that the pod carries already, since admission passed it through us a second time; or that
        an earlier creation of its name was given: the API server stores one of the two at most.
        """
        key, named = messages.key_of(question), bool((question.pod.get("metadata") or {}).get("name"))
        oldest = self._clock() - unconfirmed.OVERDUE
        for holding in unconfirmed.of_admissions(self._cluster.ledger.assumed()):
            again = named and not question.held and not question.dry_run and holding.since >= oldest
            if holding.pod == key and (again or holding.key == question.held):
                return holding
        return None

    def _refuse(self, ask: SchedulingRequest, decision: Unschedulable) -> Answer:
        if self._options.unsatisfiable == "deny":
            never = self._cluster.engine.could_ever(ask)
            if never is not None:
                return messages.never(never)
        return messages.wait(decision, ask.request, self._cluster.engine.smallest_accepted)

    def _pin(self, seen: Judged, node: str) -> str:
        state = self._cluster.snapshot.get(node)
        if state is None:
            return "affinity"
        pending = self._cluster.pending.total(self._clock())
        return pinning.choose(seen.pin, seen.left_to_scheduler, seen.ask.needs, state, pending)

    def _holding(self, ask: SchedulingRequest, allocation: Allocation, pod: str) -> Reservation:
        return Reservation(
            key=allocation.id,
            pod=pod,
            request=ask.request,
            allocation=allocation,
            compute=ask.needs.compute,
            state=ReservationState.ASSUMED,
            since=self._clock(),
            host_ports=ask.needs.host_ports,
        )

    # -- the line -------------------------------------------------------------------------------------------------

    def place_waiting(self) -> tuple[list[Binding], list[Report]]:
        """
        One scheduling cycle: reserve for each pod that fits, and report what changed for pods since the last cycle.

        As much of the line as `allocator.queue.rounds` allows; where some is left, another cycle is asked for at once.
        In turns, since even that takes a while at thousands of nodes, and the webhook waits for less.
        """
        self._in_turns(self._down_the_line(self._to_write))
        with self._lock:
            commits, self._to_write = self._to_write, []
            return commits, self._line.take_news() if self._mandate.holds() else []

    def _in_turns(self, steps: Iterator[None]) -> None:
        """Each step under the lock, which is let go in between."""
        while True:
            with self._lock:
                if next(steps, self) is self:
                    return
            self._give_way()

    def _down_the_line(self, commits: list[Binding]) -> Iterator[None]:
        """
        One cycle, a turn at a time. While nothing is given back room only shrinks, so a shape that did not fit is not
        tried again in the round; where something was given back between two turns, another round follows.
        """
        if not self._mandate.holds():
            return
        now = self._clock()
        if self._untried or not self._rounds.unfinished:
            self._rounds.begin()
            self._failed.clear()
            self._desk.begin_pass()
            self._changed, self._passed = False, now
        self._untried, self._trying = False, True
        try:
            yield from self._in_order(now, commits)
        finally:
            self._changed |= self._line.take_owing()
            self._trying = False
            if self._rounds.unfinished:
                self._wake()

    def _in_order(self, now: float, commits: list[Binding]) -> Iterator[None]:
        looked, failed = 0, self._failed
        for uid in self._rounds.choose(self._queue.in_order(), lambda entry: self._costs_nothing(entry, now)):
            if looked >= _TURN:
                looked = 0
                yield
                if not self._mandate.holds():
                    break
            entry = self._queue.pod(uid)
            if entry is not None:
                self._rounds.tried(uid)
                looked += _DECIDED if self._try_alone(entry, now, failed, commits) else 1
        else:
            if not self._rounds.unfinished:
                self._desk.bind_the_rest()

    def _costs_nothing(self, entry: QueuedPodInfo, now: float) -> bool:
        """Whether it takes no decision to say what becomes of the pod."""
        if entry.foreign or not self._line.may_try(entry.uid, now):
            return True
        return not entry.ask.request.claim and self._shape(entry) in self._failed

    def _shape(self, entry: QueuedPodInfo) -> tuple[SchedulingRequest, tuple[NodeReservation, ...]]:
        return entry.ask, reserved.entitled(self._cluster.kept, entry.asking)

    def _try_alone(self, entry: QueuedPodInfo, now: float, failed: _Failed, commits: list[Binding]) -> bool:
        """`_try`, of which no error reaches another pod. True if that took a decision."""
        if self._line.quarantine.holds(entry.uid, now):
            return False
        try:
            tried = self._try(entry, now, failed, commits)
        except Exception:
            self._leave_alone("decision", entry)
            return True
        self._line.quarantine.tried(entry.uid)
        return tried

    def _try(self, entry: QueuedPodInfo, now: float, failed: _Failed, commits: list[Binding]) -> bool:
        """Place one pod of the line, or say why not. True if that took a decision."""
        self._line.waits(entry.uid, now)
        if not self._line.may_try(entry.uid, now):
            return False
        if entry.foreign:
            self._tell(entry, messages.FOREIGN_GATE, f"held by the scheduling gate {entry.foreign[0]} first", now)
            return False
        if entry.ask.request.claim:
            commits.extend(self._by_claim(entry, now))
            return True
        shape = self._shape(entry)
        known = failed.get(shape)
        decision = known or self._cluster.decide(entry.ask, entry.asking)
        if isinstance(decision, Placement):
            allocation = Allocation(self._new_id(), decision.node, decision.containers)
            commits.append(self._reserve_waiting(entry, allocation))
        else:
            failed[shape] = decision
            self._say_why(entry, decision, now)
        return known is None

    def _by_claim(self, entry: QueuedPodInfo, now: float) -> Iterable[Binding]:
        """A pod that names a claim: its commit, if it can go to the claim's share."""
        found = self._desk.place(entry)
        if not isinstance(found, Status):
            return (self._reserve_waiting(entry, found),)
        # What is over in a moment is not worth a write to the pod, which would be in the way of its commit.
        if found.reason != BINDING or now - self._line.waits(entry.uid, now) > _TELL_AFTER:
            self._tell(entry, found.reason, f"waiting: {found.message}", now)
        return ()

    def _reserve_waiting(self, entry: QueuedPodInfo, allocation: Allocation) -> Binding:
        self._cluster.assume(self._holding(entry.ask, allocation, entry.key))
        commit = Binding(entry, allocation, self._mandate.number())
        self._line.begin(commit)
        return commit

    def _say_why(self, entry: QueuedPodInfo, decision: Unschedulable, now: float) -> None:
        code, reason = messages.code(decision), f"waiting: {messages.why(decision, entry.ask.request)}"
        more = self._preemption.says(entry.uid)
        if more is not None:
            code, reason = more[0], f"{reason}; {more[1]}"
        self._tell(entry, code, reason, now)

    def _tell(self, entry: QueuedPodInfo, code: str, reason: str, now: float) -> None:
        self._line.tell(StatusUpdate(entry.key, entry.uid, False, code, reason), now, stands(entry.pod))

    def committed(self, commit: Binding, pod: JSON) -> None:
        """
        The write took effect; `pod`, trimmed, is what the API server answered.

        Where the pod is in line no more, the watch has overtaken the answer: it may have finished or be gone.
        """
        with self._lock:
            uid = commit.pod.uid
            if self._queue.pod(uid) is None:
                self._line.done(uid)
                self._waken(self._cluster.forget(commit.allocation.id))
            else:
                self._take_in(pod, self._clock())
                self._line.done(uid, pods.version(pod))

    def not_committed(self, commit: Binding, pod: JSON | None, why: str = "", *, refused: bool = False) -> None:
        """
        The write did not take effect. `pod`, trimmed, is the pod as it is now; None if it is gone.

        It is tried again after a pause that doubles with each failure in a row. The pod is told `why` where the API
        server refused it, or fails at it again and again though nobody has changed the pod.
        """
        with self._lock:
            uid, now = commit.pod.uid, self._clock()
            if self._cluster.forget(commit.allocation.id):
                self._forgotten(_why_not(commit, pod))
            if pod is None or not self._tracks(uid):  # the watch may have said so already
                self._line.done(uid)
                self._take_out(uid)
            else:
                failures = self._line.failed(uid, now)
                if self._queue.pod(uid) is not None:
                    self._take_in(pod, now)
                if refused or (failures >= _TOLD_AFTER and _why_not(commit, pod) == "refused"):
                    self._tell_refused(commit.pod, messages.refused(commit.allocation.node, why), now)
            self._rouse()

    def _tell_refused(self, entry: QueuedPodInfo, text: str, now: float) -> None:
        if self._queue.pod(entry.uid) is not None and self._mandate.leads():
            news = StatusUpdate(entry.key, entry.uid, False, messages.REFUSED, text, warning=messages.REFUSED)
            self._line.tell(news, now, stands(entry.pod))

    def untouchable(self, entry: QueuedPodInfo, words: str) -> None:
        """The API server refuses for good what would bar the leader before; the pod is passed over, and told so."""
        with self._lock:
            self._tell_refused(entry, messages.untouchable(words), self._clock())
        self.barred(entry.uid, None)

    def commit_unknown(self, commit: Binding) -> None:
        """
        Nobody knows whether the write took effect, or still may.

        Its share stays reserved, however long it takes, until the same commit written once more (`doubtful`) tells, or
        where this replica may not write, a look at the pod (`unresolved`).
        """
        with self._lock:
            self._line.doubt(commit)

    def commit_faulted(self, commit: Binding, *, sent: bool = True) -> None:
        """
        To be called as an error of ours is handled that came of the write.

        What became of the write is in doubt, unless nothing was `sent`.
        """
        with self._lock:
            entry = commit.pod
            self._leave_alone("write", entry)
            if sent:
                self._line.doubt(commit)
                return
            self._line.done(entry.uid)
            if self._cluster.forget(commit.allocation.id):
                self._forgotten("failed")
            self._rouse()

    def doubtful(self) -> list[Binding]:
        """The commits in doubt, each once. Writing one again is safe: it names the version that it changes."""
        with self._lock:
            return self._line.take_doubtful() if self._mandate.holds() else []

    def unresolved(self) -> list[Binding]:
        """
        The commits in doubt, each once, where this replica may not write them once more: it leads no more, or not yet.

        Read the pod back (`writer.read_back`): the present leader changes it, and then the outcome is known.
        """
        with self._lock:
            return [] if self._mandate.holds() else self._line.take_doubtful()

    def abandon(self, commit: Binding) -> None:
        """The commit was not written, since the leadership in which it was decided is over."""
        with self._lock:
            self._line.done(commit.pod.uid)
            if self._cluster.forget(commit.allocation.id):
                self._forgotten("fenced")
            self._rouse()

    def adopt(self, tables: Tables) -> None:
        """Decide by what was learnt from now on. In turns, so that decisions go on."""
        self._in_turns(self._cluster.engine.adopting(tables))

    # -- looking in -----------------------------------------------------------------------------------------------

    def ready(self) -> str:
        """Empty if this replica has seen the whole cluster, else what it is still waiting for."""
        with self._lock:
            return self._mandate.unready()

    def look(self) -> SchedulerFigures:
        """Figures for metrics."""
        with self._lock:
            unbound, set_aside = self._unbound.late(self._clock()), len(self._line.quarantine)
            return view.figures(self._cluster, self._queue, unbound=unbound, quarantined=set_aside)

    def nodes(self) -> tuple[NodeState, ...]:
        """Every node with GPUs, as a decision sees it."""
        with self._lock:
            return tuple(self._cluster.snapshot.values())

    def view(self) -> SchedulerView:
        """Exactly what the next decision will see."""
        with self._lock:
            return view.view(self._cluster, self._queue, self._line, self._clock())

    def check_invariants(self) -> None:
        """Raise if the state contradicts itself."""
        with self._lock:
            self._cluster.check_invariants()
            noted = self._line.noted() - self._line.quarantine.uids()
            strangers = {uid for uid in noted if not self._tracks(uid)}
            if strangers:
                raise AssertionError(f"notes are kept of {len(strangers)} pods of which nothing is known")


def _stands_still(held: Reservation, seen: Judged) -> bool:
    """Whether a place that was given before is right for the pod as it is now."""
    return held.judged is not None and basis.stands(held.judged, seen, held.allocation.node)


def _why_not(commit: Binding, pod: JSON | None) -> str:
    """Why a commit did not take effect: the pod is gone, somebody else wrote it first, or the API server said no."""
    if pod is None:
        return "deleted"
    before, after = (p.get("metadata", {}).get("resourceVersion") for p in (commit.pod.pod, pod))
    return "refused" if before == after else "conflict"
