"""
Decides which share a claim gets, and whether a pod may use it.

`store` keeps the watched objects, and `steps` the writes. Not thread-safe: the controller calls it under its lock, and
only in the leading replica.

A claim is bound in two ways. A pod in the queue that names it binds it where that pod can go. With binding mode
Immediate a claim that no pod waits for is bound anywhere. A bound claim that no pod uses moves if a new pod cannot go
to it: moving a share loses no data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from allocator.cache.cache import Cache
from allocator.cache.ledger import OWN
from allocator.engine.reference import Decision, Placement
from allocator.faults import Faulted, surfaced
from allocator.features.elasticgpuclaims import objects, quota, shares
from allocator.features.elasticgpuclaims.inflight import InFlight
from allocator.features.elasticgpuclaims.objects import IMMEDIATE, LOST, PENDING, ElasticShare, Status
from allocator.features.elasticgpuclaims.rendering import ClaimBinding
from allocator.features.elasticgpuclaims.shares import ClaimTerms, Problem
from allocator.features.elasticgpuclaims.steps import ClaimSteps
from allocator.features.elasticgpuclaims.store import ClaimRecord, ClaimStore
from allocator.queue.queue import QueuedPodInfo
from allocator.scheduler.parts import Explanation
from contract.encoding import resourceclaims
from contract.model import Allocation, Compute, ContainerAllocation, NodeState, PodRequest
from contract.reasons import nodes as reasons
from contract.reasons.claims import ClaimReason, PodOfClaim
from contract.reasons.nodes import Reason, of_withheld
from contract.reasons.pods import of_claim
from contract.scheduling import fit
from contract.scheduling.filters import node_reason
from contract.scheduling.needs import PodNeeds, SchedulingRequest, Toleration

_OF_THE_SYSTEM = "node.kubernetes.io/"


class ClaimManager:
    """
    Claims and their bindings. `most_memory`: bytes for the claims of one namespace together, 0 for any. `by_claims`:
    pods use ResourceClaims, so a share may be on a node that delivers by them before a pod names the ElasticGPUClaim.
    """

    def __init__(
        self,
        cache: Cache,
        *,
        new_id: Callable[[], str],
        clock: Callable[[], float],
        most_memory: int = 0,
        faulted: Faulted = surfaced,
        by_claims: bool = False,
    ) -> None:
        self._cache = cache
        self._new_id = new_id
        self._clock = clock
        self._most_memory = most_memory
        self._by_claims = by_claims
        self.bindings = InFlight(cache)
        """Those in progress."""
        self.store = ClaimStore(cache, self.bindings, clock=clock, faulted=faulted)
        """The watched objects."""
        self.steps = ClaimSteps(self.store, self.bindings, clock=clock)
        """The writes."""
        self._round = 1

    # -- pods in the queue ---------------------------------------------------------------------------------------------

    def exist(self) -> bool:
        """Whether there are claims."""
        return bool(self.store.claims)

    def begin_pass(self) -> None:
        """A scheduling cycle of the queue is about to begin."""
        self._round += 1

    def place(self, entry: QueuedPodInfo) -> Allocation | Explanation:
        """
        The share of the claim that a pod in the queue names, or why it waits. Binds the claim if that helps.
        """
        found = self._place(entry)
        return found if isinstance(found, Allocation) else Explanation(found.reason, found.message)

    def _place(self, entry: QueuedPodInfo) -> Allocation | Status:
        namespace, name = entry.key.split("/", 1)[0], entry.ask.request.claim
        record = self.store.claims.get(f"{namespace}/{name}")
        waits = self._status(namespace, name)
        if record is None or record.claim.deleting or record.claim.uid in self.bindings:
            return waits
        record.round = self._round
        share = self.store.share_of(record.claim)
        if share is None and not record.claim.bound:
            return self._bind(record, entry)
        if waits.phase != objects.BOUND or share is None or share.allocation is None:
            return waits
        return self._use(record, share, share.allocation, entry)

    def waits(self, namespace: str, name: str) -> Explanation:
        """The state of a claim, as a reason for a pod that names it."""
        status = self._status(namespace, name)
        return Explanation(status.reason, status.message)

    def _status(self, namespace: str, name: str) -> Status:
        record = self.store.claims.get(f"{namespace}/{name}")
        if record is None:
            return Status(PENDING, PodOfClaim.MISSING, f"ElasticGPUClaim {name} is not in the namespace; create it")
        claim, pending = record.claim, record.pending
        if claim.deleting:
            return Status(PENDING, PodOfClaim.DELETED, f"ElasticGPUClaim {name} is being deleted; create it again")
        share = self.store.share_of(claim)
        if share is None and claim.bound:
            return Status(LOST, PodOfClaim.LOST, f"ElasticGPUClaim {name} is lost; delete it and create it again")
        if share is None:
            if pending is None:
                return Status(PENDING, PodOfClaim.BINDING, f"ElasticGPUClaim {name} is being bound")
            return Status(PENDING, of_claim(pending.reason), f"ElasticGPUClaim {name}: {pending.message}")
        if not self.store.has_gpus(share):
            return Status(LOST, PodOfClaim.LOST, f"the GPU of ElasticGPUClaim {name} no longer exists")
        ready = claim.status.phase == share.status.phase == objects.BOUND and claim.kept and claim.bound
        if share.deleting or share.claim_uid != claim.uid or not ready or claim.uid in self.bindings:
            return Status(PENDING, PodOfClaim.BINDING, f"ElasticGPUClaim {name} is being bound")
        text = f"ElasticGPUClaim {name} is bound; the pod is placed shortly"
        return Status(objects.BOUND, PodOfClaim.BOUND, text)

    def _use(
        self, record: ClaimRecord, share: ElasticShare, held: Allocation, entry: QueuedPodInfo
    ) -> Allocation | Status:
        state, shares_held = self._cache.snapshot[held.node], held.containers[0].shares
        reason = _unwell(state, held) or self._refused(state, entry, len(shares_held))
        if reason is None:
            given = fit.shown_now(state, shares_held)
            containers = tuple(ContainerAllocation(f.container, given) for f in entry.ask.request.containers)
            return Allocation(self._new_id(), held.node, containers, share.name)
        if not self.store.is_used(share.name):
            moved = self._bind(record, entry, share)
            if moved.reason == PodOfClaim.BINDING:
                return moved
        text = f"ElasticGPUClaim {record.claim.name} has its share on node {held.node}: {reasons.of_one(reason)}"
        return Status(objects.BOUND, reason.code.word, text)

    def _refused(self, state: NodeState, entry: QueuedPodInfo, count: int) -> Reason | None:
        """Why the pod cannot run on the claim's node. The pin is final, so rules about other pods are checked first."""
        needs = _needs(entry.ask, count)
        others = self._cache.refused_by_others(replace(entry.ask, needs=needs), entry.requester, (state,))
        return node_reason(state, needs) or others.get(state.name)

    # -- binding --------------------------------------------------------------------------------------------------

    def bind_the_rest(self) -> None:
        """Bind the claims with binding mode Immediate that no pod in the queue was tried for, the oldest first."""
        failed: dict[PodRequest, Status] = {}
        for record in sorted(self.store.claims.values(), key=lambda r: (r.claim.created, r.claim.key)):
            if not self._is_unbound(record) or record.round == self._round:
                continue
            try:
                self._bind_anywhere(record, failed)
            except Exception:
                self.store.set_aside(record)

    def _bind_anywhere(self, record: ClaimRecord, failed: dict[PodRequest, Status]) -> None:
        wanted = self._wanted(record)
        if isinstance(wanted, Problem):
            return
        if wanted.binding != IMMEDIATE:
            text = "bound when the first pod names it"
            record.pending = Status(PENDING, ClaimReason.FIRST_CONSUMER, text)
        elif wanted.request in failed:
            record.pending = failed[wanted.request]
        else:
            no_room = self._decided(record, wanted, self._anywhere(wanted.request))
            if no_room is not None:
                failed[wanted.request] = no_room

    def _is_unbound(self, record: ClaimRecord) -> bool:
        claim = record.claim
        nothing = claim.own_share not in self.store.shares and not claim.bound
        return nothing and not claim.deleting and claim.uid not in self.bindings and record.may_bind

    def _wanted(self, record: ClaimRecord) -> ClaimTerms | Problem:
        found = shares.wanted(record.claim, self.store.classes.get(record.claim.class_name))
        if isinstance(found, Problem):
            record.pending = Status(PENDING, found.code, found.message)
        return found

    def _bind(self, record: ClaimRecord, entry: QueuedPodInfo, share: ElasticShare | None = None) -> Status:
        """Bind, or move, a claim for a pod in the queue. Returns its state afterwards."""
        wanted = self._wanted(record)
        if isinstance(wanted, ClaimTerms) and record.may_bind:
            request = SchedulingRequest(wanted.request, _needs(entry.ask, wanted.request.containers[0].count))
            self._decided(record, wanted, self._cache.decide(request, entry.requester), share)
        return self._status(record.claim.namespace, record.claim.name)

    def _anywhere(self, request: PodRequest) -> Decision:
        """
        Find a place for a share that no pod waits for. Its pods will tolerate the taints there, and name the class.

        With ResourceClaims in use the pods also name one, because the webhook adds it. The share moves for a pod that
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
        self, record: ClaimRecord, wanted: ClaimTerms, decision: Decision, share: ElasticShare | None = None
    ) -> Status | None:
        """Start the chosen binding, or return why no node has room and store the reason in the record."""
        claim = record.claim
        if not isinstance(decision, Placement):
            text = reasons.summary(decision.reasons)
            record.pending = Status(PENDING, reasons.leading(decision.reasons).word, text)
            return record.pending
        if self._most_memory:
            taken = (each.share for each in self.store.shares.values()), self.bindings.binds()
            beyond = quota.beyond(claim, decision.containers, *taken, most=self._most_memory)
            if beyond:
                record.pending = Status(PENDING, ClaimReason.NAMESPACE_LIMIT, beyond)
                return None  # a claim of another namespace may have this reason
        record.pending = None
        allocation = Allocation(OWN + self._new_id(), decision.node, decision.containers, claim.own_share)
        self.bindings.start(ClaimBinding(claim, wanted.reclaim, allocation, share), self._clock())
        return None


def _unwell(state: NodeState, held: Allocation) -> Reason | None:
    uuids = {share.uuid for share in held.containers[0].shares}
    unwell = [of_withheld(gpu) for gpu in state.gpus if gpu.uuid in uuids and not gpu.healthy]
    return Reason(max(unwell)) if unwell else None


def _needs(ask: SchedulingRequest, count: int) -> PodNeeds:
    """
    The needs of a pod with a claim on the claim's node. `count`: the claim's GPUs, all of which each container gets.

    A ResourceClaim that cannot hold all of them is not enough.
    """
    claim = ask.needs.claim and resourceclaims.fits_claim(ask.request, count)
    return replace(ask.needs, several=count > 1, claim=claim)
