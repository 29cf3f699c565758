"""
Where claims are decided: which share a claim gets, whether a pod may use it, and what is to be written.

It keeps the claims, classes and ElasticGPUs that the watch brings, books every ElasticGPU's share in the ledger, and
hands out what must be written. Not thread-safe: the controller calls it under its lock, and it decides only when the
controller may.

A claim is bound in two ways. A pod in the queue that names it binds it where that pod can go. With binding mode
Immediate a claim that no pod waits for is bound anywhere. A bound claim that no pod uses moves, where a pod comes that
cannot go to it: a share holds nothing that would be lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from allocator.cache.cache import Cache
from allocator.cache.ledger import OWN, Reservation, ReservationState
from allocator.cache.podinfo import may_hold
from allocator.claims import events, lifecycle, objects, quota, shares
from allocator.claims.inflight import InFlight
from allocator.claims.lifecycle import Refused, Step
from allocator.claims.objects import IMMEDIATE, LOST, PENDING, Claim, ElasticShare, GpuClass, Status
from allocator.claims.rendering import CLAIMED, ClaimBinding
from allocator.claims.shares import ClaimTerms, Problem
from allocator.engine.reference import Decision, Placement
from allocator.faults import Faulted, surfaced
from allocator.queue.queue import QueuedPodInfo
from allocator.queue.records import EventRecord
from contract.encoding import resourceclaims
from contract.model import Allocation, Compute, ContainerAllocation, NodeState, PodRequest
from contract.reasons import nodes as reasons
from contract.reasons.claims import ClaimReason, PodOfClaim
from contract.reasons.nodes import Reason, of_withheld
from contract.reasons.pods import of_claim
from contract.scheduling import fit
from contract.scheduling.filters import node_reason
from contract.scheduling.needs import PodNeeds, SchedulingRequest, Toleration

JSON = dict[str, Any]
_PAUSE = 2.0
"""Seconds until a step that failed is tried again."""
_PAUSE_REFUSED = 15.0
"""The same, where the API server refused it."""
_SET_ASIDE = 600.0
"""Seconds for which a claim is left alone of which an error of ours came."""
_ERROR = "internal error of gpufraction; the allocator's log has it"
"""The reason of a pod whose claim is bound in a moment."""
_OFF = (
    "ElasticGPUClaims are switched off in this cluster; ask in the resources of a container, or have the administrator "
    "add the component claims"
)
_OF_THE_SYSTEM = "node.kubernetes.io/"


class ClaimManager:
    """
    Claims and what becomes of them. `most_memory`: bytes for the claims of one namespace together, 0 for any.
    `follows`: false where the administrator has claims switched off, and there are none. `by_claims`: pods name
    ResourceClaims, so that a share may be on a node that delivers by them before any pod names its ElasticGPUClaim.
    """

    def __init__(
        self,
        cache: Cache,
        *,
        new_id: Callable[[], str],
        clock: Callable[[], float],
        most_memory: int = 0,
        faulted: Faulted = surfaced,
        follows: bool = True,
        by_claims: bool = False,
    ) -> None:
        self._cache, self._new_id, self._clock = cache, new_id, clock
        self._faulted = faulted
        self._most_memory, self._follows, self._by_claims = most_memory, follows, by_claims
        self.claims: dict[str, Claim] = {}
        """The claims that the watch brought, by `namespace/name`."""
        self._classes: dict[str, GpuClass] = {}
        self._shares: dict[str, ElasticShare] = {}
        self._going = InFlight(cache)
        self._paused: dict[str, float] = {}  # by an object's uid
        self._told: dict[str, Status] = {}  # why a claim is not bound, by its uid
        self._not_bound: dict[str, float] = {}  # claims whose binding is not tried until then, by uid
        self._refused: dict[str, str] = {}  # for what words of the API server a claim was told of, by its uid
        self._tried: set[str] = set()  # claims for which a pod in the queue was tried in this pass

    # -- what the watch brings ------------------------------------------------------------------------------------

    def replace(self, plural: str, items: Iterable[Mapping[str, Any]]) -> None:
        """The whole list of one kind."""
        documents = list(items)
        listed = {_key(plural, document) for document in documents}
        known = set(self._kept(plural))
        if plural == objects.SHARES:
            known |= {who.removeprefix(OWN) for who in self._cache.suspects() if who.startswith(OWN)}
        for gone in known - listed:
            self._drop(plural, gone)
        for document in documents:
            self.take_in(plural, document)

    def take_in(self, plural: str, document: Mapping[str, Any]) -> bool:
        """`put`, whatever the object is made of. A share that cannot be booked closes its node to new pods."""
        key = OWN + _key(plural, document)
        try:
            helped = self.put(plural, document)
        except Exception:
            self._faulted(plural, key)
            self._kept(plural).pop(_key(plural, document), None)  # so that it is read again when it comes again
            if plural == objects.SHARES:
                self._cache.close(key, may_hold(document))
            return False
        return self._cache.open(key) or helped

    def put(self, plural: str, document: Mapping[str, Any], *, known_only: bool = False) -> bool:
        """
        An object is new or changed. True if that may help a pod or a claim.

        `known_only`: it is the answer to a write, so it is news only of an object that is still there.
        """
        key = _key(plural, document)
        if plural == objects.CLASSES:
            found = objects.gpu_class(document)
            changed = self._classes.get(key) != found
            self._classes[key] = found
            return changed
        if known_only and key not in self._kept(plural):
            return False
        return self._put_claim(key, document) if plural == objects.CLAIMS else self._put_share(key, document)

    def _put_claim(self, key: str, document: Mapping[str, Any]) -> bool:
        claim, known = objects.claim(document), self.claims.get(key)
        if known is not None and known.version >= claim.version:
            return False
        self.claims[key] = claim
        return True

    def _put_share(self, key: str, document: Mapping[str, Any]) -> bool:
        share, known = objects.share(document), self._shares.get(key)
        if known is not None and known.version >= share.version:
            return False
        self._shares[key] = share
        if share.allocation is None:
            self._cache.unbook(OWN + key)
        else:
            self._cache.book(
                _holding(OWN + key, share.key, share.allocation, ReservationState.CONFIRMED, self._clock())
            )
            self._going.seen(share.claim_uid, share.allocation.id)
        return True

    def drop(self, plural: str, document: Mapping[str, Any]) -> bool:
        """An object is gone. True if that may help."""
        return self._drop(plural, _key(plural, document))

    def _drop(self, plural: str, key: str) -> bool:
        gone = self._kept(plural).pop(key, None)
        if plural == objects.SHARES:
            self._cache.unbook(OWN + key)
            self._cache.open(OWN + key)
        for notes in (self._told, self._paused, self._not_bound, self._refused):
            notes.pop(getattr(gone, "uid", ""), None)
        return gone is not None

    def _kept(self, plural: str) -> dict[str, Any]:
        kept: dict[str, dict[str, Any]] = {
            objects.CLAIMS: self.claims,
            objects.CLASSES: self._classes,
            objects.SHARES: self._shares,
        }
        return kept[plural]

    # -- pods in the queue ---------------------------------------------------------------------------------------------

    def begin_pass(self) -> None:
        """The line is about to be tried."""
        self._tried.clear()

    def place(self, entry: QueuedPodInfo) -> Allocation | Status:
        """
        The share of the claim that a pod in the queue names; or why it waits, and where that helps the claim is bound.
        """
        namespace, name = entry.key.split("/", 1)[0], entry.ask.request.claim
        claim = self.claims.get(f"{namespace}/{name}")
        waits = self.waits(namespace, name)
        if claim is None or claim.deleting or claim.uid in self._going:
            return waits
        self._tried.add(claim.uid)
        share = self._shares.get(claim.own_share)
        if share is None and not claim.bound:
            return self._bind(claim, entry)
        if waits.phase != objects.BOUND or share is None or share.allocation is None:
            return waits
        return self._use(claim, share, share.allocation, entry)

    def waits(self, namespace: str, name: str) -> Status:
        """Where a claim stands, as a pod that names it is told."""
        claim = self.claims.get(f"{namespace}/{name}")
        if not self._follows:
            return Status(PENDING, PodOfClaim.OFF, _OFF)
        if claim is None:
            return Status(PENDING, PodOfClaim.MISSING, f"ElasticGPUClaim {name} is not in the namespace; create it")
        if claim.deleting:
            return Status(PENDING, PodOfClaim.DELETED, f"ElasticGPUClaim {name} is being deleted; create it again")
        share = self._shares.get(claim.own_share)
        if share is None and claim.bound:
            return Status(LOST, PodOfClaim.LOST, f"ElasticGPUClaim {name} is lost; delete it and create it again")
        if share is None:
            told = self._told.get(claim.uid)
            if told is None:
                return Status(PENDING, PodOfClaim.BINDING, f"ElasticGPUClaim {name} is being bound")
            return Status(PENDING, of_claim(told.reason), f"ElasticGPUClaim {name}: {told.message}")
        if not self._has_card(share):
            return Status(LOST, PodOfClaim.LOST, f"the GPU of ElasticGPUClaim {name} no longer exists")
        ready = claim.status.phase == share.status.phase == objects.BOUND and claim.kept and claim.bound
        if share.deleting or share.claim_uid != claim.uid or not ready or claim.uid in self._going:
            return Status(PENDING, PodOfClaim.BINDING, f"ElasticGPUClaim {name} is being bound")
        text = f"ElasticGPUClaim {name} is bound; the pod is placed in a moment"
        return Status(objects.BOUND, PodOfClaim.BOUND, text)

    def _use(self, claim: Claim, share: ElasticShare, held: Allocation, entry: QueuedPodInfo) -> Allocation | Status:
        state, shares_held = self._cache.snapshot[held.node], held.containers[0].shares
        reason = _unwell(state, held) or node_reason(state, _needs(entry.ask, len(shares_held)))
        if reason is None:
            given = fit.shown_now(state, shares_held)
            containers = tuple(ContainerAllocation(f.container, given) for f in entry.ask.request.containers)
            return Allocation(self._new_id(), held.node, containers, share.name)
        if not self._in_use(share.name):
            moved = self._bind(claim, entry, share)
            if moved.reason == PodOfClaim.BINDING:
                return moved
        text = f"ElasticGPUClaim {claim.name} has its share on node {held.node}: {reasons.of_one(reason)}"
        return Status(objects.BOUND, reason.code.word, text)

    # -- binding --------------------------------------------------------------------------------------------------

    def bind_the_rest(self) -> None:
        """Bind the claims with binding mode Immediate that no pod in the queue was tried for, the oldest first."""
        failed: dict[PodRequest, Status] = {}
        for claim in sorted(self.claims.values(), key=lambda c: (c.created, c.key)):
            if not self._unbound(claim) or claim.uid in self._tried:
                continue
            try:
                self._bind_anywhere(claim, failed)
            except Exception:
                self._set_aside(claim)

    def _bind_anywhere(self, claim: Claim, failed: dict[PodRequest, Status]) -> None:
        wanted = self._wanted(claim)
        if isinstance(wanted, Problem):
            return
        if wanted.binding != IMMEDIATE:
            text = "bound when the first pod names it"
            self._told[claim.uid] = Status(PENDING, ClaimReason.FIRST_CONSUMER, text)
            return
        if wanted.request in failed:
            self._told[claim.uid] = failed[wanted.request]
            return
        told = self._decided(claim, wanted, self._anywhere(wanted.request))
        if told is not None:
            failed[wanted.request] = told

    def _set_aside(self, claim: Claim) -> None:
        """To be called as an error of ours is handled that came of the claim: it is left alone for a while."""
        fault = self._faulted("claim", claim.key)
        self._told[claim.uid] = Status(PENDING, ClaimReason.INTERNAL_ERROR, f"{_ERROR} (fault {fault})")
        self._paused[claim.uid] = self._clock() + _SET_ASIDE

    def _unbound(self, claim: Claim) -> bool:
        nothing = claim.own_share not in self._shares and not claim.bound
        return nothing and not claim.deleting and claim.uid not in self._going and self._may_bind(claim)

    def _may_bind(self, claim: Claim) -> bool:
        return claim.uid not in self._paused and claim.uid not in self._not_bound

    def _wanted(self, claim: Claim) -> ClaimTerms | Problem:
        found = shares.wanted(claim, self._classes.get(claim.class_name))
        if isinstance(found, Problem):
            self._told[claim.uid] = Status(PENDING, found.code, found.message)
        return found

    def _bind(self, claim: Claim, entry: QueuedPodInfo, share: ElasticShare | None = None) -> Status:
        """Bind, or move, a claim for a pod in the queue; where it stands then."""
        wanted = self._wanted(claim)
        if isinstance(wanted, ClaimTerms) and self._may_bind(claim):
            ask = SchedulingRequest(wanted.request, _needs(entry.ask, wanted.request.containers[0].count))
            self._decided(claim, wanted, self._cache.decide(ask, entry.asking), share)
        return self.waits(claim.namespace, claim.name)

    def _anywhere(self, request: PodRequest) -> Decision:
        """
        A place for a share that no pod waits for. Its pods will tolerate the taints there, and name the class.

        They will also name a ResourceClaim, where pods do: the webhook gives one to each. The share moves for one that
        was created before that.
        """
        nodes = self._cache.snapshot.values()
        keys = {taint.key for node in nodes for taint in node.taints if not taint.key.startswith(_OF_THE_SYSTEM)}
        tolerations = tuple(Toleration(key, "Exists") for key in sorted(keys))
        classes = {name for node in nodes if node.delivery is not None for name in node.delivery.classes}
        decision, claim = None, self._by_claims and resourceclaims.fits_claim(request)
        for name in ("", *sorted(classes - {""})):
            needs = PodNeeds(
                compute=Compute(),
                tolerations=tolerations,
                runtime_class=name,
                several=request.several,
                claim=claim,
            )
            decision = self._cache.decide(SchedulingRequest(request, needs))
            if isinstance(decision, Placement):
                break
        assert decision is not None
        return decision

    def _decided(
        self, claim: Claim, wanted: ClaimTerms, decision: Decision, share: ElasticShare | None = None
    ) -> Status | None:
        """Reserve what was decided and note it to be written; or why there is no place, which the claim is told."""
        if not isinstance(decision, Placement):
            told = Status(PENDING, reasons.leading(decision.reasons).word, reasons.summary(decision.reasons))
            self._told[claim.uid] = told
            return told
        if self._most_memory:
            taken = self._shares.values(), self._going.binds()
            beyond = quota.beyond(claim, decision.containers, *taken, most=self._most_memory)
            if beyond:
                self._told[claim.uid] = Status(PENDING, ClaimReason.NAMESPACE_LIMIT, beyond)
                return None  # another namespace's claim of the same kind may well have it
        self._told.pop(claim.uid, None)
        allocation = Allocation(OWN + self._new_id(), decision.node, decision.containers, claim.own_share)
        now = self._clock()
        self._cache.assume(_holding(allocation.id, claim.key, allocation, ReservationState.ASSUMED, now))
        self._going.start(ClaimBinding(claim, wanted.reclaim, allocation, share), now)
        return None

    def take_bindings(self) -> list[ClaimBinding]:
        """What is to be written now, each until its outcome is told. One that was not seen in time is written again."""
        return self._going.take(self._clock())

    def abandon(self) -> None:
        """Another leads: what is not being written now will not be, and what was is for the next leader to find."""
        self._going.abandon()

    def written(self, bind: ClaimBinding) -> None:
        """The ElasticGPU is there as it was to be; the watch will bring it."""
        self._refused.pop(bind.claim.uid, None)
        self._going.written(bind, self._clock())

    def unresolved(self, bind: ClaimBinding) -> None:
        """Nobody knows whether it was written. Writing it again tells, since there can be one of its name only."""
        self._going.unresolved(bind, self._clock())

    def not_written(self, bind: ClaimBinding) -> None:
        """It was not written, and will not be."""
        if self._going.failed(bind):
            self._paused[bind.claim.uid] = self._clock() + _PAUSE

    def binding_refused(self, bind: ClaimBinding, refused: Refused) -> EventRecord | None:
        """
        The API server refuses the claim's ElasticGPU. The Event that says so; None where it was said in these words.

        The claim's status says it too, and so do the pods that name the claim. To be called after `not_written`.
        """
        uid = bind.claim.uid
        if self._paused.pop(uid, None) is not None:
            self._not_bound[uid] = self._clock() + _PAUSE_REFUSED
            self._told[uid] = Status(PENDING, ClaimReason.WRITE_REFUSED, events.refused_text(refused.words))
        return self._note_refused(bind.claim, refused)

    # -- steps ----------------------------------------------------------------------------------------------------

    def take_steps(self) -> list[Step]:
        """What is to be written next, at most one step for each claim. Tell what came of it: `stepped` or `failed`."""
        steps = list[Step | None]()
        for claim in self.claims.values():
            try:
                steps.append(self._step_of_claim(claim))
            except Exception:
                self._set_aside(claim)
        for share in self._shares.values():
            try:
                steps.append(self._step_of_share(share))
            except Exception:
                self._faulted("share", share.key)
                self._paused[share.uid] = self._clock() + _SET_ASIDE
        return [step for step in steps if step is not None]

    def _step_of_claim(self, claim: Claim) -> Step | None:
        if claim.uid in self._going or claim.uid in self._paused:
            return None
        share = self._shares.get(claim.own_share)
        if share is not None and (share.claim_uid != claim.uid or share.uid in self._paused):
            return None
        return lifecycle.of_claim(
            claim,
            share,
            in_use=self._in_use(claim.own_share),
            card=share is not None and self._has_card(share),
            pending=self._told.get(claim.uid),
        )

    def _step_of_share(self, share: ElasticShare) -> Step | None:
        """Only for those that no claim's own step takes care of."""
        claim = self.claims.get(share.key)
        if share.allocation is None or share.uid in self._paused or share.claim_uid in self._going:
            return None
        if claim is not None and claim.uid == share.claim_uid:
            return None
        return lifecycle.of_orphan(share, in_use=self._in_use(share.name))

    def stepped(self, step: Step, answer: Mapping[str, Any]) -> bool:
        """A step was taken; `answer` is the object as it is now. True if that may help."""
        claim = self._claim_of(step)
        if claim is not None:
            self._refused.pop(claim.uid, None)
        if isinstance(step, lifecycle.Delete):
            if "deletionTimestamp" not in (answer.get("metadata") or {}):
                self.failed(step.uid)  # it is gone; until the watch says so, there is nothing to be done again
            return self.put(objects.SHARES, answer, known_only=True)
        return self.put(step.plural, answer, known_only=True)

    def failed(self, uid: str) -> None:
        """A step for this object was not taken; it is looked at again a little later."""
        self._paused[uid] = self._clock() + _PAUSE

    def step_refused(self, step: Step, refused: Refused) -> EventRecord | None:
        """The API server refuses a step. The Event on its claim; None without a claim, or where it was said before."""
        self._paused[self.uid_of(step)] = self._clock() + _PAUSE_REFUSED
        claim = self._claim_of(step)
        return self._note_refused(claim, refused) if claim is not None else None

    def _claim_of(self, step: Step) -> Claim | None:
        """The claim that a step is taken for."""
        if isinstance(step, lifecycle.Patch) and step.plural == objects.CLAIMS:
            return self.claims.get(f"{step.namespace}/{step.name}")
        share = self._shares.get(step.name)
        return self.claims.get(share.key) if share is not None else None

    def _note_refused(self, claim: Claim, refused: Refused) -> EventRecord | None:
        if self._refused.get(claim.uid) == refused.words:
            return None
        self._refused[claim.uid] = refused.words
        return events.refused(claim, refused.words)

    def uid_of(self, step: Step) -> str:
        """The object that a step is about."""
        if isinstance(step, lifecycle.Delete):
            return step.uid
        key = f"{step.namespace}/{step.name}" if step.namespace else step.name
        found = self._kept(step.plural).get(key)
        return found.uid if found is not None else ""

    def tick(self) -> bool:
        """End the pauses that are over. True if there was one."""
        now = self._clock()
        over = False
        for pauses in (self._paused, self._not_bound):
            for uid in [uid for uid, until in pauses.items() if until <= now]:
                del pauses[uid]
                over = True
        return over

    # -- looking --------------------------------------------------------------------------------------------------

    def counts(self) -> tuple[Counter[tuple[str, str]], Counter[str]]:
        """Claims by phase and reason, and ElasticGPUs that we made by phase, as their status says."""
        stands = [claim.status for claim in self.claims.values()]
        claims = Counter((status.phase or PENDING, status.reason) for status in stands)
        shares = [share.status for share in self._shares.values() if share.allocation is not None]
        return claims, Counter(status.phase or PENDING for status in shares)

    def _in_use(self, share: str) -> bool:
        return any(not holding.key.startswith(OWN) for holding in self._cache.ledger.users(share))

    def _has_card(self, share: ElasticShare) -> bool:
        if share.allocation is None:
            return False
        state = self._cache.snapshot.get(share.allocation.node)
        there = {gpu.uuid for gpu in state.gpus} if state is not None else set()
        return all(each.uuid in there for container in share.allocation.containers for each in container.shares)


def _unwell(state: NodeState, held: Allocation) -> Reason | None:
    uuids = {share.uuid for share in held.containers[0].shares}
    unwell = [of_withheld(gpu) for gpu in state.gpus if gpu.uuid in uuids and not gpu.healthy]
    return Reason(max(unwell)) if unwell else None


def _needs(ask: SchedulingRequest, count: int) -> PodNeeds:
    """
    What a pod that names a claim needs of the claim's node. `count`: the GPUs of the claim, which each container gets.

    Its ResourceClaim does not help it where that cannot hold them all.
    """
    claim = ask.needs.claim and resourceclaims.fits_claim(ask.request, count)
    return replace(ask.needs, several=count > 1, claim=claim)


def _holding(key: str, claim: str, allocation: Allocation, state: ReservationState, since: float) -> Reservation:
    return Reservation(key, claim, CLAIMED, allocation, Compute(), state, since)


def _key(plural: str, document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata") or {}
    name = str(metadata.get("name", ""))
    return f"{metadata.get('namespace', '')}/{name}" if plural == objects.CLAIMS else name
