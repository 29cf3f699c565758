"""
Pods that use one ResourceClaim at the same time: they have one share together, on the node of the first of them.

A claim can be used this way if it has no template, has one request, and is the only one of ours that its pods name. The
ledger says which pods use it now, by the claim's uid on their allocations: the pods, and not the claim, are the source
of truth. The first pod is placed as any other. The next ones go to the cards of the first, or wait.

Pure; the shell holds the lock.
"""

from __future__ import annotations

from dataclasses import replace

from allocator.cache.cache import Cache
from allocator.cache.ledger import Reservation, gpus_of
from allocator.engine import reference
from allocator.engine.reference import Decision, Placement, Unschedulable
from allocator.queue.queue import QueuedPodInfo, namespace_of
from contract.model import MOST_CONSUMERS, NO_OVERCOUNT, Allocation, NodeState
from contract.nodes.capacity import Amounts
from contract.reasons.nodes import Code, Reason, ReasonCount, tally
from contract.scheduling import counting
from contract.scheduling.clusterfilters.objects import DeviceClaim, DeviceObjects

TAKEN = Reason(Code.RESOURCE_CLAIM, what=f"that {MOST_CONSUMERS} pods use")


def claim_of(entry: QueuedPodInfo, devices: DeviceObjects) -> DeviceClaim | None:
    """
    The claim that the pod may use at the same time as others; None if it has none.

    The pods of a gang are placed by a plan for all of them, in which each has a share of its own.
    """
    if not entry.ask.request.own_claims or entry.gang is not None:
        return None
    namespace = namespace_of(entry)
    named = [(each, devices.claims.get((namespace, each.name))) for each in entry.rules.claims]
    ours = [(each, claim) for each, claim in named if claim is None or claim.shares]
    if len(ours) != 1 or ours[0][0].template:
        return None
    claim = ours[0][1]
    return claim if claim is not None and claim.single and not claim.deleting else None


def users(cache: Cache, claim: DeviceClaim) -> tuple[Reservation, ...]:
    """The pods that have the claim's share now, including those that are about to."""
    return cache.ledger.users(Allocation("", "", (), shared=claim.uid).group)


def join(cache: Cache, entry: QueuedPodInfo, claim: DeviceClaim, holders: tuple[Reservation, ...]) -> Decision:
    """
    The claim's cards for another pod that names it; or why it waits. `holders`: the result of `users`, at least one.

    The claim's node is checked as for a new share, but with only the claim's cards, and with the room that the claim
    has on them.
    """
    first = holders[0]
    node, others = first.allocation.node, len(cache.snapshot) - 1
    elsewhere = (ReasonCount(Code.DEVICES_ELSEWHERE, others),) if others > 0 else ()
    state = cache.snapshot.get(node)
    if state is None or max(len(holders), claim.consumers) >= MOST_CONSUMERS:
        reason = TAKEN if state is not None else Reason(Code.DEVICES_ELSEWHERE)
        return Unschedulable((replace(tally([reason])[0], nodes=others + 1),))
    rules = replace(entry.rules, claims=tuple(each for each in entry.rules.claims if each.name != claim.name))
    refused = cache.refused_by_others(entry.ask, replace(entry.requester, rules=rules), (state,))
    engine = cache.engine
    decision = reference.decide(
        {node: _of_claim(cache, state, first)}, entry.ask, limits=engine.limits, policy=engine.policy, refused=refused
    )
    if not isinstance(decision, Placement):
        return Unschedulable((*decision.reasons, *elsewhere))
    counted = Amounts(*counting.counted_on(state, entry.ask))
    left = cache.room_to_join(entry.uid, node, counted)
    short = counting.short(counted.memory, counted.cores, left.memory, left.cores) if left is not None else None
    return decision if short is None else Unschedulable((*tally([short]), *elsewhere))


def _of_claim(cache: Cache, state: NodeState, holder: Reservation) -> NodeState:
    """The node with only the claim's cards, as they are without its share."""
    cards, group = gpus_of(holder), holder.allocation.group
    pairs = [(gpu, usage) for gpu, usage in zip(state.gpus, state.usage, strict=True) if gpu.uuid in cards]
    usage = tuple(
        replace(cache.ledger.usage_without(state.name, gpu.uuid, group), starting=taken.starting)
        for gpu, taken in pairs
    )
    return replace(state, gpus=tuple(gpu for gpu, _ in pairs), usage=usage, overcount=NO_OVERCOUNT)
