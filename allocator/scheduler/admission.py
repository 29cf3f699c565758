"""
The answers at admission: a reservation, or why a pod waits or is refused. Pure; the shell holds the lock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from allocator.cache import ledger, refusals, unconfirmed
from allocator.cache.ledger import Reservation
from allocator.cache.podinfo import controller_of
from allocator.cache.reserved import Requester
from allocator.engine import pinning
from allocator.engine.pinning import Judged
from allocator.engine.reference import Placement, Unschedulable
from allocator.queue.queue import namespace_of
from allocator.scheduler import messages
from allocator.scheduler.events import PoolsDeclared
from allocator.scheduler.leadership import SchedulerState
from allocator.scheduler.parts import NO_GANGS, ClaimedShares, Gangs
from allocator.settings import Settings
from contract.encoding.protocol import Answer, Never, Placed, Question, Wait
from contract.gangs import gang_of
from contract.model import Allocation, FractionRequest, GpuKind
from contract.reasons.pods import AnswerReason
from contract.scheduling import needs
from contract.scheduling.clusterfilters.objects import PodRules, read_rules
from contract.scheduling.fairness import BEHIND
from contract.scheduling.gates import Gates
from contract.scheduling.needs import SchedulingRequest

_SAME_NAME = "a pod of this name was admitted a moment ago"


class NotReady(Exception):
    """This replica has not seen the whole cluster yet, so it cannot answer."""


class Admission:
    """Answers the webhook, and reserves what it answers. `gates`: kube-scheduler's feature gates that are on."""

    def __init__(
        self,
        state: SchedulerState,
        *,
        claims: ClaimedShares,
        gangs: Gangs,
        settings: Settings,
        gates: Gates,
        clock: Callable[[], float],
        new_id: Callable[[], str],
        forgotten: Callable[[str], None],
    ) -> None:
        self._cache = state.cache
        self._queue = state.queue
        self._records = state.records
        self._rounds = state.rounds
        self._trigger = state.trigger
        self._leadership = state.leadership
        self._claims = claims
        self._gangs = gangs
        self._order = state.order
        self._pools = state.pools
        self._unconfirmed = state.unconfirmed
        self._settings = settings
        self._gates = gates
        self._dialects = state.dialects
        self._protects = settings.placement.scale_down == "block"
        self._clock = clock
        self._new_id = new_id
        self._forgotten = forgotten

    def judged(self, question: Question) -> Judged:
        """The parts of the pod on which its decision depends. They are read before the lock is taken."""
        request, gates = question.request, self._gates
        found = needs.needs_for(question.pod, request, gates)
        ask = SchedulingRequest(request, self._dialects.others_only(found))
        named = {**question.pod, "metadata": {**(question.pod.get("metadata") or {}), "namespace": question.namespace}}
        return pinning.judged(question.pod, ask, self._settings.placement.pin, read_rules(named, gates))

    def answer(self, question: Question, seen: Judged) -> Answer:
        """
        Place a pod at admission, or return why not. Raises `NotReady` if this replica has not seen the cluster.

        A replica that may not decide reserves nothing, and answers from its own view: a refusal is the same as the
        leader's, and a pod that fits waits for the leader, counted with the least memory that it will have.

        Admission may pass a pod through us twice. The placement from the first time is valid only while everything that
        it was based on is unchanged. Otherwise the reservation is forgotten and the pod decided again.
        """
        self.require_ready()
        decides = self._leadership.holds()
        if question.request.claim:
            # Only a pod that exists can be tied to a claim: its finalizer looks at pods.
            status = self._claims.waits(question.namespace, question.request.claim)
            return Wait(status.code, status.text)
        return self._decided(question, seen, decides, self._held(question) if decides else None)

    def require_ready(self) -> None:
        """Raise `NotReady` where this replica has not seen the cluster."""
        unready = self._leadership.unready()
        if unready:
            raise NotReady(unready)

    def cards(self) -> set[GpuKind]:
        """The kinds of GPUs by which waiting shares count. Raises `NotReady` as `answer` does."""
        self.require_ready()
        return self._pools.cards(self._cache.engine)

    def pools_declared(self, event: PoolsDeclared, now: float) -> None:
        """Other nodes may now be added. The messages of waiting pods may be outdated."""
        if self._pools.put(event.nodes, event.learned):
            self._trigger.retell()

    def _smallest(self, fraction: FractionRequest) -> int:
        return self._pools.smallest_accepted(fraction, self._cache.engine)

    def _decided(self, question: Question, seen: Judged, decides: bool, held: Reservation | None) -> Answer:
        if held is not None and not question.refused and self._stands_still(held, seen):
            return Placed(held.allocation, held.pin, self._protects)
        if held is not None and held.key == question.held and not question.dry_run:
            self._take_back(held, "denied" if question.refused else "changed")
        if question.refused:
            return Never(AnswerReason.REFUSED, "the webhook refused the pod")
        ask, smallest = seen.ask, self._smallest
        if held is not None and held.key != question.held:
            # The earlier creation may be stored but not seen yet, and then the share belongs to that pod.
            return messages.wait_until_stored(_SAME_NAME, ask.request, smallest)
        if seen.foreign_gates:
            return messages.wait_for_gate(min(seen.foreign_gates), ask.request, smallest)
        metadata = question.pod.get("metadata") or {}
        family = refusals.family_of(
            f"{question.namespace}/{metadata.get('name') or ''}", controller_of(metadata), seen.rules
        )
        decision = self._cache.decide(ask, Requester("", seen.priority, question.namespace, seen.rules, family))
        if not isinstance(decision, Placement):
            return self._refuse(seen, decision, question.namespace)
        gang = None if self._gangs is NO_GANGS else gang_of(question.pod)
        if gang is not None:
            return messages.wait_for_gang(gang.shown, ask.request, smallest)
        if not decides:
            return messages.wait_for_leader(ask.request, smallest)
        if self._somebody_is_before(seen.priority, question.namespace):
            return messages.wait_in_line(ask.request, smallest)
        allocation = Allocation(self._new_id(), decision.node, decision.containers)
        pin, key = self._pin(seen, decision.node), messages.key_of(question)
        later = self._why_stored_first(question, ask, allocation)
        if later:
            return messages.wait_until_stored(later, ask.request, smallest)
        if not question.dry_run:
            holding = ledger.assumed(ask, allocation, key, self._clock(), seen.rules)
            self._cache.assume(replace(holding, judged=seen, pin=pin))
        return Placed(allocation, pin, self._protects)

    def _why_stored_first(self, question: Question, ask: SchedulingRequest, allocation: Allocation) -> str:
        """Why the pod gets its share only once it is stored; empty if it gets it now."""
        if self._settings.placement.when == "stored":
            return "the setting placement.when is stored"
        if allocation.by_claim:
            return "its node delivers GPUs by a ResourceClaim, which is made for a stored pod only"
        if question.dry_run:
            return ""
        sharers = self._cache.engine.limits.max_sharers
        held = unconfirmed.of_admissions(self._cache.ledger.assumed())
        wanted = unconfirmed.Wanted(question.namespace, unconfirmed.weight(ask.request, allocation, sharers))
        return self._unconfirmed.why_stored_first(wanted, held, self._cache.gpus, sharers, self._clock())

    def _take_back(self, held: Reservation, why: str) -> None:
        """Others changed or refused the pod after its reservation. Queued pods may take that room now."""
        if self._cache.forget(held.key):
            self._forgotten(why)
            self._trigger.requeue_helped()

    def _somebody_is_before(self, priority: int, namespace: str) -> bool:
        """
        Whether a waiting pod has precedence over a new one for what was just released.

        A pod that is left for a later cycle or parked because of its namespace's budget precedes only those of the same
        namespace.
        """
        anybody, left = self._trigger.requeued or self._trigger.running, self._rounds.unfinished
        if self._queue.parking.is_before(namespace, priority) or self._gangs.is_completing():
            return True
        if not anybody and not left:
            return False
        now = self._clock()
        return any(
            entry.priority >= priority
            and not entry.foreign
            and self._records.is_schedulable(entry.uid, now)
            and (anybody or (namespace_of(entry) == namespace and not self._rounds.has_tried(entry.uid)))
            for entry in self._queue.in_any_order()
        )

    def _held(self, question: Question) -> Reservation | None:
        """
        The live reservation that the pod already carries because admission passed it through us a second time, or that
        of an earlier creation of its name: the API server stores at most one of the two, and may already have stored
        the earlier one.
        """
        key, named = messages.key_of(question), bool((question.pod.get("metadata") or {}).get("name"))
        oldest = self._clock() - unconfirmed.OVERDUE
        for holding in unconfirmed.of_admissions(self._cache.ledger.assumed()):
            again = named and not question.held and not question.dry_run and holding.since >= oldest
            if holding.pod == key and (again or holding.key == question.held):
                return holding
        return None

    def _refuse(self, seen: Judged, decision: Unschedulable, namespace: str) -> Answer:
        ask = seen.ask
        if self._settings.placement.unsatisfiable == "deny":
            never = self._cache.engine.could_ever(ask)
            if never is not None and not self._pools.could_ever(ask):
                nodes = self._cache.snapshot.values()
                return messages.never(never, (gpu.model for node in nodes for gpu in node.gpus))
        closed = self._cache.closed_pools(ask, seen.rules, self._pools.nodes)
        pool = self._pools.only(ask, decision, self._cache.engine, closed)
        answer = messages.wait(decision, ask.request, self._smallest, pool, self._dialects)
        if self._order.will_be_behind(seen.priority, namespace):
            answer = replace(answer, reason=f"{answer.reason}; {BEHIND}")
        return answer

    def _pin(self, seen: Judged, node: str) -> str:
        state = self._cache.snapshot.get(node)
        if state is None:
            return "affinity"
        pending = self._cache.pending.total(self._clock())
        left = self._cache.neighbours.left_open(seen.rules, seen.ask.needs, state)
        return pinning.choose(seen.pin, seen.left_to_scheduler, seen.ask.needs, state, pending, left)

    def _stands_still(self, held: Reservation, seen: Judged) -> bool:
        """
        Whether an earlier placement is right for the pod as it is now. Its labels count only where some pod's rules
        read them: other webhooks add labels to most pods.
        """
        before = held.judged
        if before is None:
            return False
        if not self._cache.neighbours.concerns(before.rules) and not seen.rules.constrained:
            # Its preferences are its own, and do not depend on its labels.
            before, seen = (replace(each, rules=PodRules(prefers=each.rules.prefers)) for each in (before, seen))
        return pinning.stands(before, seen, held.allocation.node)
