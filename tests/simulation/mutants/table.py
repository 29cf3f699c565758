"""
Defects that the simulation must notice. Each is one change of the programs' text that breaks one promise.

Some are common in distributed programs, others are defects that this project once had. A mutant whose programs cannot
even start proves nothing, so the table has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tests.simulation.kernel.loader import Mutation
from tests.simulation.mutants import plans
from tests.simulation.plan import Plan

Kind = Literal[
    "precondition dropped",
    "relist skipped",
    "fence removed",
    "order swapped",
    "bound off",
    "deletion missed",
    "released early",
    "kept too long",
    "event not handled",
    "wake-up dropped",
    "read-back skipped",
    "stale answer trusted",
    "term not compared",
    "grace too short",
    "count stale",
]


@dataclass(frozen=True, slots=True)
class Mutant:
    """
    One defect. promise: the sentence that it breaks, which is true without it.

    plan: one that reveals the defect, if drawn plans seldom do.
    """

    name: str
    kind: Kind
    promise: str
    mutation: Mutation
    plan: Plan | None = None


_LEASE = "runtime.kubernetes.lease"
_LEADERSHIP = "allocator.scheduler.leadership"
_ADMISSION = "allocator.scheduler.admission"
_HANDLERS = "allocator.scheduler.handlers"
_HOUSEKEEPING = "allocator.scheduler.housekeeping"
_CYCLE = "allocator.scheduler.cycle"
_CACHE = "allocator.cache.cache"
_LEDGER = "allocator.cache.ledger"
_INFORMERS = "allocator.workers.informers"
_BINDER = "allocator.workers.binder"
_RECORDS = "allocator.queue.records"
_OF_CLAIMS = "allocator.features.elasticgpuclaims"

_ELECTION = (
    Mutant(
        "missing-lease-is-taken",
        "grace too short",
        "Whoever creates a missing Lease waits as if another one still led.",
        Mutation(
            _LEASE,
            """    if action.verb == "create":
        return _seen(written or action.body, observed, clock(), wall())
""",
            "",
        ),
        plans.A_LEASE_IS_DELETED,
    ),
    Mutant(
        "emptied-lease-is-a-release",
        "stale answer trusted",
        "A Lease without a holder is a release only where the leader wrote it directly after its own record.",
        Mutation(
            _LEASE,
            """isinstance(since, str) and observed.refuted != observed.version:
        return observed, TakeReleased(since, take)""",
            """observed.spec is not None:
        return observed, LeaseWrite("replace", take)""",
        ),
        plans.A_LEASE_IS_EMPTIED,
    ),
    Mutant(
        "lease-is-taken-early",
        "grace too short",
        "Nobody takes a Lease before its holder has stopped by its own clock.",
        Mutation(_LEASE, "return max(timing.lease_duration, observed.stated)", "return timing.renew_deadline / 2"),
        plans.A_LEADER_IS_PAUSED,
    ),
    Mutant(
        "term-counts-from-the-answer",
        "grace too short",
        "A leader counts its time from before it asked, so a late answer does not prolong it.",
        Mutation(_LEASE, "leads_until=sent_at + timing.renew_deadline", "leads_until=clock() + timing.renew_deadline"),
        plans.A_RENEWAL_THAT_IS_ANSWERED_LATE,
    ),
    Mutant(
        "lease-is-not-released",
        "kept too long",
        "A leader that stops in good order hands over within seconds.",
        Mutation(
            _LEASE,
            """                self._give_back(held)
                return""",
            "                return",
        ),
        plans.A_LEADER_THAT_STOPS_HANDS_OVER,
    ),
    Mutant(
        "no-list-at-take-over",
        "relist skipped",
        "A new leader sees all that is booked before it decides.",
        Mutation(_LEADERSHIP, "return terms.pop() if len(terms) == 1 else None", "return self.number()"),
        plans.A_FOLLOWER_BEHIND,
    ),
    Mutant(
        "barrier-passes-when-written",
        "stale answer trusted",
        "A new leader's own write counts once its watch shows it, not once it is answered.",
        Mutation(
            "allocator.scheduler.succession",
            "if not any(word is not None and self._shown.get(uid) == word for uid, word in self.tried.items()):",
            "if not any(word is not None for uid, word in self.tried.items()):",
        ),
        plans.A_FOLLOWER_BEHIND_KNOWS_ONE,
    ),
    Mutant(
        "decides-before-the-barrier",
        "term not compared",
        "A new leader decides nothing before it has seen all that is booked, in its term.",
        Mutation(
            _LEADERSHIP,
            "if self._term is not None and self._term() != self._trusted:",
            "if self._term is not None and self._term() is None:",
        ),
        plans.A_FOLLOWER_BEHIND,
    ),
    Mutant(
        "follower-gives-shares",
        "term not compared",
        "Only the leader reserves a share at admission.",
        Mutation(
            _ADMISSION,
            """        if not decides:
            return messages.wait_for_leader(ask.request, smallest)
""",
            "",
        ),
        plans.BOTH_REPLICAS_ARE_ASKED,
    ),
    Mutant(
        "stops-before-the-admitted-are-stored",
        "released early",
        "A leader that stops leads until the pods that it admitted are stored, where the next one finds them.",
        Mutation(
            "allocator.app",
            """        self._see_the_admitted()
        self.leader.stop()""",
            "        self.leader.stop()",
        ),
        plans.ADMITTED_AS_THE_LEADER_STOPS,
    ),
    Mutant(
        "old-watches-go-on",
        "stale answer trusted",
        "After a new list nothing comes from the watch before it.",
        Mutation(
            _INFORMERS,
            """        self._retired.set()
        for informer in self.informers:
            informer.stop()
""",
            "",
        ),
        plans.TWO_STREAMS,
    ),
)

_BOOKKEEPING = (
    Mutant(
        "reservation-stays-beside-its-pod",
        "count stale",
        "A pod's share takes the place of its reservation, so it counts once.",
        Mutation(
            _LEDGER,
            "for old in {h.key: h for h in (known, assumed) if h is not None}.values():",
            "for old in {h.key: h for h in (known,) if h is not None}.values():",
        ),
    ),
    Mutant(
        "total-is-old-after-booking",
        "count stale",
        "What a card's pods add up to is counted anew after each booking.",
        Mutation(
            _LEDGER,
            """        gpus = self._usage.setdefault(node, {})
        self._forget_totals(node, taken)
""",
            "        gpus = self._usage.setdefault(node, {})\n",
        ),
    ),
    Mutant(
        "total-is-old-after-release",
        "count stale",
        "What a card's pods add up to is counted anew after each release.",
        Mutation(
            _LEDGER,
            """        gpus = self._usage[node]
        self._forget_totals(node, taken)
""",
            "        gpus = self._usage[node]\n",
        ),
    ),
    Mutant(
        "node-is-old-after-a-reservation-ends",
        "count stale",
        "A reservation that ends shows in its node's state.",
        Mutation(
            _CACHE,
            """        self.neighbours.settle_volumes(allocation_id)
        self._refresh(holding.allocation.node)
        return True""",
            """        self.neighbours.settle_volumes(allocation_id)
        return True""",
        ),
        plans.A_CREATION_THAT_IS_REFUSED,
    ),
    Mutant(
        "finished-pod-keeps-its-share",
        "deletion missed",
        "A pod that has ended holds nothing.",
        Mutation(_CACHE, "return self.drop_pod(uid) or came", "return came"),
        plans.ROOM_OF_A_FINISHED_POD,
    ),
    Mutant(
        "deleted-pod-keeps-its-share",
        "deletion missed",
        "A pod that was deleted holds nothing.",
        Mutation(
            _HANDLERS,
            """        self._trigger.event(self.take_out(event.uid))

    def take_in(""",
            """        self._trigger.event(False)

    def take_in(""",
        ),
        plans.DELETED_WITHOUT_GRACE,
    ),
    Mutant(
        "deletion-wakes-nobody",
        "wake-up dropped",
        "A pod that waits is tried as soon as another one is deleted.",
        Mutation(
            _HANDLERS,
            """        self._trigger.event(self.take_out(event.uid))

    def take_in(""",
            """        self.take_out(event.uid)

    def take_in(""",
        ),
        plans.DELETED_WITHOUT_GRACE,
    ),
    Mutant(
        "freed-share-cures-nothing",
        "wake-up dropped",
        "A share that comes free wakes the pods that lack memory.",
        Mutation(
            _CACHE,
            "any(_is_less(now, was) for now, was in zip(after.usage, before.usage, strict=False))",
            "False",
        ),
        plans.ROOM_IS_GIVEN_AT_ONCE,
    ),
    Mutant(
        "joining-wakes-nobody",
        "wake-up dropped",
        "A pod that was gated at its admission and fits is placed at once.",
        Mutation(
            _HANDLERS,
            """            self._trigger.join()
            return freed""",
            "            return freed",
        ),
        plans.EACH_POD_THAT_FITS_RUNS_AT_ONCE,
    ),
    Mutant(
        "reservations-last-for-ever",
        "kept too long",
        "A reservation ends whose pod is never stored.",
        Mutation(_HOUSEKEEPING, "return [CheckAssumed(overdue)] if overdue else []", "return []"),
        plans.A_CREATION_THAT_IS_REFUSED,
    ),
    Mutant(
        "failed-binding-keeps-its-share",
        "kept too long",
        "A binding that failed gives its share back.",
        Mutation(
            _CYCLE,
            """        if self._cache.forget(binding.allocation.id):
            self._forgotten(_why_not(binding, pod))
""",
            "",
        ),
        plans.DELETED_WHILE_ITS_BINDING_IS_WRITTEN,
    ),
)

_ROOM = (
    Mutant(
        "a-mebibyte-too-many",
        "bound off",
        "No card is given more memory than it has.",
        Mutation("allocator.engine.engine", "= columns.free >= wanted", "= columns.free + (1 << 20) >= wanted"),
        plans.A_CARD_IS_FILLED_TO_ITS_LAST_MEBIBYTE,
    ),
    Mutant(
        "a-sharer-too-many",
        "bound off",
        "No card has more pods than its bound.",
        Mutation(
            "allocator.table",
            "(sharers < most_sharers)",
            "(sharers <= most_sharers)",
        ),
        plans.A_CARD_HAS_SO_MANY_SHARERS,
    ),
    Mutant(
        "cores-do-not-count",
        "bound off",
        "No card is given more cores than it has.",
        Mutation("allocator.engine.engine", "bears &= columns.free_cores >= (fraction.cores or 1)", "pass"),
        plans.CORES_OF_A_CARD,
    ),
    Mutant(
        "reserved-processors-do-not-count",
        "count stale",
        "What an admitted pod takes of its node counts before the pod is seen.",
        Mutation(_CACHE, "*(h.compute for h in assumed)], facts", "], facts"),
        plans.ADMITTED_AT_ONE_MOMENT,
    ),
    Mutant(
        "no-headroom-for-others",
        "bound off",
        "A pod is bound at its admission only where nothing else that is pending fills the node.",
        Mutation(
            "allocator.engine.pinning",
            """        (taken.cpu + wanted.cpu + pending.cpu) * _HEADROOM <= has.cpu * (_HEADROOM - 1)
        and """,
            "        ",
        ),
        plans.BESIDE_PODS_WITHOUT_A_SHARE,
    ),
)

_WRITES = (
    Mutant(
        "binding-names-no-version",
        "precondition dropped",
        "A binding changes only the version of its pod that was decided about.",
        Mutation(
            _BINDER,
            '{"op": "test", "path": "/metadata/resourceVersion", "value": metadata.get("resourceVersion", "")}',
            '{"op": "test", "path": "/metadata/uid", "value": metadata.get("uid", "")}',
        ),
        plans.A_BINDING_ARRIVES_LATE,
    ),
    Mutant(
        "new-leader-does-not-fence",
        "fence removed",
        "A new leader gives pending pods a later version before it decides.",
        Mutation(
            _LEADERSHIP,
            "return term if term is not None and term == self._trusted and term != self._fenced_in else None",
            "return None",
        ),
        plans.A_BINDING_ARRIVES_LATE,
    ),
    Mutant(
        "fence-changes-nothing",
        "fence removed",
        "The write that fences a pod makes a later version of it.",
        Mutation(
            "allocator.workers.fence",
            '"annotations": {str(names.FENCE): word}',
            '"annotations": {}',
        ),
        plans.A_BINDING_ARRIVES_LATE,
    ),
    Mutant(
        "lost-binding-is-not-read-back",
        "read-back skipped",
        "Where no answer to a binding comes, the pod is read before its share is given to others.",
        Mutation(
            _BINDER,
            """    except KubeError as error:
        why = error
    if""",
            """    except KubeError as error:
        return BindFailed(binding, None, str(error))
    if""",
        ),
        plans.AN_ANSWER_IS_LOST,
    ),
    Mutant(
        "unchanged-means-undone",
        "stale answer trusted",
        "A binding without an answer may still be carried out while its pod is unchanged.",
        Mutation(
            _BINDER,
            """    if unchanged and after.outcome_unknown:
        return BindUnknown(binding, why)
""",
            "",
        ),
        plans.A_BINDING_SEEMS_LOST,
    ),
    Mutant(
        "timeout-means-undone",
        "stale answer trusted",
        "A request without an answer in time may have been carried out.",
        Mutation(
            "runtime.kubernetes.errors",
            "super().__init__(message, status=status, reason=reason, outcome_unknown=True)",
            "super().__init__(message, status=status, reason=reason, outcome_unknown=False)",
        ),
        plans.A_BINDING_SEEMS_LOST,
    ),
    Mutant(
        "doubtful-share-is-given-away",
        "released early",
        "The share of a binding stays reserved while nobody knows what became of it.",
        Mutation(
            _CYCLE,
            "        self._records.leave_unresolved(event.binding)\n",
            """        self._records.leave_unresolved(event.binding)
        self._cache.forget(event.binding.allocation.id)
        self._trigger.requeue_helped()
""",
        ),
        plans.NOTHING_IS_KNOWN_OF_A_BINDING,
    ),
    Mutant(
        "unseen-pod-loses-its-share",
        "released early",
        "A reservation that is overdue ends only where no pod has it.",
        Mutation(_HOUSEKEEPING, "if holding.key in event.exist:", "if holding.key in ():"),
        plans.A_PLACED_POD_IS_NOT_SEEN,
    ),
    Mutant(
        "list-takes-nobody-away",
        "deletion missed",
        "A pod that a new list lacks was deleted.",
        Mutation(_HANDLERS, "                helped |= self.take_out(deleted)\n", "                helped = True\n"),
        plans.PODS_GO_WHILE_NOBODY_LOOKS,
    ),
    Mutant(
        "condition-is-written-once",
        "event not handled",
        "A condition that does not show on the pod is written again.",
        Mutation(
            _RECORDS,
            "return [again for uid in late if (again := self._repeated(uid, now)) is not None]",
            "return []",
        ),
        plans.A_CONDITION_IS_REFUSED,
    ),
)

_NODES = (
    Mutant(
        "failed-card-takes-pods",
        "event not handled",
        "A card that its agent reports as failed takes no new pods.",
        Mutation("allocator.table", "self.healthy[:width, row] & ", ""),
        plans.A_CARD_FAILS,
    ),
    Mutant(
        "silence-is-never-noticed",
        "kept too long",
        "A node whose agent is silent takes no new pods.",
        Mutation("allocator.scheduler.silence", "if self._judges and not judged:", "if self._judges:"),
        plans.AN_AGENT_IS_SILENT,
    ),
    Mutant(
        "status-before-capacity",
        "order swapped",
        "An agent writes the Node's resources before it reports cards that have more.",
        Mutation(
            "nodeagent.publishing.reconcile",
            "grows = here.memory < amounts.memory or here.cores < amounts.cores",
            "grows = here.memory > amounts.memory or here.cores > amounts.cores",
        ),
        plans.CARDS_COME_BACK,
    ),
    Mutant(
        "agent-ignores-its-watch",
        "event not handled",
        "An agent publishes again at once what somebody deleted or changed.",
        Mutation(
            "nodeagent.agent",
            "if known is not None and any(getattr(known, what) != view for what, view in seen.items()):",
            "if known is None and seen:",
        ),
        plans.A_NODE_LOSES_ITS_INVENTORY,
    ),
    Mutant(
        "cores-are-not-added-up",
        "count stale",
        "The cores of a card are the sum of its pods'.",
        Mutation("contract.scheduling.demand", "usage.cores + self.cores,", "max(usage.cores, self.cores),"),
        plans.CORES_OF_A_CARD,
    ),
)

_CLAIMS = (
    Mutant(
        "claim-s-share-has-no-finalizer",
        "precondition dropped",
        "The share of a claim stays as long as a pod uses it, whoever deletes its ElasticGPU.",
        Mutation(f"{_OF_CLAIMS}.rendering", '"finalizers": [str(names.SHARE_FINALIZER)]', '"finalizers": []'),
        plans.A_CLAIM_IS_USED,
    ),
    Mutant(
        "used-claim-is-let-go",
        "released early",
        "A claim that is deleted keeps its share until its last pod has gone.",
        Mutation(
            f"{_OF_CLAIMS}.steps",
            "in_use=self._store.is_used(claim.own_share)",
            "in_use=False",
        ),
        plans.A_CLAIM_IS_USED,
    ),
    Mutant(
        "claim-s-finalizer-stays",
        "kept too long",
        "A claim that is deleted and used by nobody goes.",
        Mutation(
            f"{_OF_CLAIMS}.lifecycle",
            "    return step or _let_go(CLAIMS, claim.namespace",
            "    return step and _let_go(CLAIMS, claim.namespace",
        ),
        plans.A_CLAIM_IS_USED,
    ),
    Mutant(
        "claim-s-share-is-not-booked",
        "event not handled",
        "What a claim holds of a card is nobody else's.",
        Mutation(f"{_OF_CLAIMS}.store", "        self._book(OWN + key, share)\n", ""),
        plans.A_CLAIM_AND_PODS,
    ),
    Mutant(
        "unknown-claim-is-gone",
        "stale answer trusted",
        "The share of a claim that our watch has not shown is deleted only where the API server has no such claim.",
        Mutation(
            f"{_OF_CLAIMS}.writer",
            """    if order.claim and _is_there(kube, order, timeout):
        return None
""",
            "",
        ),
        plans.A_CLAIMS_WATCH_IS_BEHIND,
    ),
    Mutant(
        "late-share-is-given-away",
        "released early",
        "A claim's share stays reserved while its creation may still be carried out.",
        Mutation(
            f"{_OF_CLAIMS}.writer",
            'outcome: ClaimOutcome = "unknown" if open_end and order.share is None else failed',
            "outcome: ClaimOutcome = failed",
        ),
        plans.A_CLAIMS_SHARE_IS_CREATED_LATE,
    ),
)

_REST = (
    Mutant(
        "dry-run-reserves",
        "kept too long",
        "A dry run reserves nothing.",
        Mutation("webhook.admission.admit", "dry_run=submitted.dry_run, held=held", "dry_run=False, held=held"),
        plans.A_DRY_RUN_LEAVES_NOTHING,
    ),
    Mutant(
        "refused-pods-are-stored",
        "precondition dropped",
        "A pod that asks for a share is stored only as the webhook admitted it.",
        Mutation(
            "webhook.admission.admit",
            """            _release(submitted, pod, reserve)
            return _denied(submitted, message, code)""",
            "            return _untouched(submitted)",
        ),
    ),
    Mutant(
        "priority-does-not-count",
        "order swapped",
        "Of the pods that wait, those of higher priority come first.",
        Mutation(
            "allocator.queue.queue",
            "(*queue_order(self.priority, self.created), self.came, self.uid)",
            "(*queue_order(0, self.created), self.came, self.uid)",
        ),
        plans.THE_URGENT_COME_FIRST,
    ),
    Mutant(
        "records-outlive-their-pods",
        "kept too long",
        "Nothing is remembered of a pod that is gone.",
        Mutation(
            _HANDLERS,
            """        self.unbound.drop(uid)
        self._records.drop(uid)
""",
            "        self.unbound.drop(uid)\n",
        ),
        plans.PODS_THAT_WAIT_GO_UNSEEN,
    ),
    Mutant(
        "pending-outlives-its-pod",
        "kept too long",
        "What a pod without a node would take counts only while it is there.",
        Mutation(
            _CACHE,
            """        self.pending.drop(uid)
        self.neighbours.drop(uid)
""",
            "        self.neighbours.drop(uid)\n",
        ),
        plans.PODS_THAT_WAIT_GO_UNSEEN,
    ),
    Mutant(
        "untold-while-a-term-lapsed",
        "event not handled",
        "A leader whose term lapsed tells pods afterwards what it could not tell meanwhile (be57b688).",
        Mutation(_LEADERSHIP, "        self.untold.note(uid, key)\n        return False", "        return False"),
        plans.A_TERM_LAPSES,
    ),
    Mutant(
        "nobody-learns-of-its-share",
        "event not handled",
        "A pod that waited is told of its share.",
        Mutation(
            _HANDLERS,
            "if (bound or not shown) and uid",
            "if bound and uid",
        ),
        plans.A_POD_GETS_ITS_TURN,
    ),
    Mutant(
        "cordon-is-not-looked-at",
        "event not handled",
        "A cordoned node takes no new pods.",
        Mutation("allocator.table", "codes[self._cordoned] = Code.CORDONED", "pass"),
        plans.A_NODE_IS_CORDONED,
    ),
    Mutant(
        "changes-of-nodes-are-lost",
        "event not handled",
        "What becomes of a node is taken in.",
        Mutation(
            _HANDLERS,
            "self._trigger.event(self._cache.put_node(event.node))",
            "self._trigger.event(False)",
        ),
        plans.A_NODE_IS_CORDONED,
    ),
    Mutant(
        "changes-of-cards-are-lost",
        "event not handled",
        "What becomes of a node's cards is taken in.",
        Mutation(
            _HANDLERS,
            "        self._put_inventories(self._repeated.put(event.inventory, self.holds))\n",
            "",
        ),
        plans.A_CARD_FAILS,
    ),
    Mutant(
        "agent-does-not-read-back",
        "read-back skipped",
        "An agent reads what there is after a write without an answer.",
        Mutation(
            "nodeagent.agent",
            """        self._published = None
        hint = """,
            "        hint = ",
        ),
        plans.AN_INVENTORY_IS_CREATED_WITHOUT_AN_ANSWER,
    ),
    Mutant(
        "binding-pins-nothing",
        "precondition dropped",
        "A pod goes to the node where its share is.",
        Mutation(_BINDER, '*node_pin.pin_operations(pod.get("spec") or {}, allocation.node),', ""),
        plans.SHARES_ARE_WHERE_THEIR_PODS_ARE,
    ),
    Mutant(
        "containers-are-not-told",
        "event not handled",
        "A pod's containers read which cards they have.",
        Mutation(_BINDER, "        **codec.container_annotations(allocation),\n", ""),
        plans.SHARES_ARE_WHERE_THEIR_PODS_ARE,
    ),
)

MUTANTS: tuple[Mutant, ...] = (*_ELECTION, *_BOOKKEEPING, *_ROOM, *_WRITES, *_NODES, *_CLAIMS, *_REST)
