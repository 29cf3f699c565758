"""
The allocator's answers as text with figures: the reason of a refusal, and what a waiting pod can expect.

Pure functions of decisions. The sentences over nodes are made in `contract.reasons`; here they become
what the webhook and a pod get.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from allocator.cache import refusals
from allocator.cache.podinfo import PodInfo, UnboundPod
from allocator.engine.reference import Unschedulable
from contract.dialects import DIALECTS
from contract.dialects.table import Dialects
from contract.encoding import moments, quantity
from contract.encoding.plain import plain
from contract.encoding.protocol import Never, Question, Wait
from contract.encoding.quantity import mib
from contract.model import Allocation, PodRequest
from contract.reasons import nodes as reasons
from contract.reasons.base import ReasonName
from contract.reasons.nodes import Code
from contract.reasons.pods import AnswerReason, PodReason
from contract.scheduling.cards import Smallest, floor
from contract.scheduling.demand import Demand, demands, of_claim

_ONLY_NEW = "no node of this cluster can serve it"
_LONGEST = 300
_LISTED = 8
"""GPUs or models that are named in one message."""


def code(decision: Unschedulable) -> ReasonName:
    """The code for why a pod was not placed."""
    return reasons.leading(decision.reasons).word


def why(decision: Unschedulable, request: PodRequest, pool: str = "", dialects: Dialects = DIALECTS) -> str:
    """
    Why the pod was not placed: our sentence, and after it the message of the system whose format it uses.

    `pool`: no existing node would ever serve the pod, but a node of this pool would.
    """
    return f"{_ONLY_NEW}; a node of pool {pool} would" if pool else _why(decision, request, dialects)


def base(decision: Unschedulable, request: PodRequest, pool: str = "", dialects: Dialects = DIALECTS) -> str:
    """The same with an addition other than the pool."""
    return _ONLY_NEW if pool else _why(decision, request, dialects)


def _why(decision: Unschedulable, request: PodRequest, dialects: Dialects) -> str:
    text = reasons.summary(decision.reasons)
    dialect = dialects.named(request.dialect)
    if dialect is None or not dialect.short_of_memory or all(t.code is not Code.MEMORY for t in decision.reasons):
        return text
    return f"{text}: {dialect.short_of_memory}"


def wait(
    decision: Unschedulable, request: PodRequest, smallest: Smallest, pool: str = "", dialects: Dialects = DIALECTS
) -> Wait:
    """No room now; `pool` as in `why`."""
    return Wait(code(decision), why(decision, request, pool, dialects), floor(request, smallest))


def wait_in_line(request: PodRequest, smallest: Smallest) -> Wait:
    """A share was just released, and the waiting pods have not been tried yet."""
    return Wait(AnswerReason.QUEUED, "the pods ahead in the queue are placed first", floor(request, smallest))


def wait_for_gang(gang: str, request: PodRequest, smallest: Smallest) -> Wait:
    """The pod starts together with others, which must also exist."""
    return Wait(AnswerReason.GANG, f"{gang}: placed together with the other pods of the gang", floor(request, smallest))


def wait_for_leader(request: PodRequest, smallest: Smallest) -> Wait:
    """The pod fits, according to a replica that must not reserve."""
    return Wait(AnswerReason.NOT_LEADING, "the leading allocator places the pod shortly", floor(request, smallest))


def parked(size: int, budget: int) -> str:
    """For a pod of which only the name is kept, because its namespace's budget is used up. Sizes in bytes."""
    return (
        f"waiting: parked, since the waiting pods of this namespace use all the memory that gpufraction allows them "
        f"({mib(budget)} MiB); this pod takes {max(size >> 10, 1)} KiB of it and is read again when its turn comes. "
        f"Shorter selectors, affinity and tolerations let more pods wait at once; an administrator can raise "
        f"queue.memory"
    )


def share_taken(gate: str) -> str:
    """The Event of a pod whose share went back because another system's gate holds it."""
    return (
        f"the scheduling gate {gate} was added after the pod had its share, so the share was released. The pod sees "
        f"no GPU: delete it and create it again. Make the webhook that adds the gate run before "
        "zz-gpufraction-webhook (webhooks run in the order of their configurations' names)"
    )


def wait_until_stored(why: str, request: PodRequest, smallest: Smallest) -> Wait:
    """The pod fits, and is given its share once it is stored."""
    detail = f"the pod is placed when it is stored: {why}"
    return Wait(AnswerReason.STORED_FIRST, detail, floor(request, smallest))


def wait_for_gate(gate: str, request: PodRequest, smallest: Smallest) -> Wait:
    """Another system's scheduling gate holds the pod, so it must not take a share yet."""
    return Wait(
        PodReason.FOREIGN_GATE, f"the pod is held by the scheduling gate {gate} first", floor(request, smallest)
    )


def never(found: Unschedulable, models: Iterable[str] = ()) -> Never:
    """
    No GPU of the cluster could ever serve it; the figures are then the largest existing ones, not the free ones.

    `models`: those of the cluster, which are named to a pod that wishes another one.
    """
    text = reasons.summary(found.reasons, free=False)
    there = sorted(set(filter(None, models))) if any(each.code is Code.MODEL for each in found.reasons) else []
    named = f"; the models of this cluster: {_and(there, ', ')}" if there else ""
    return Never(code(found), f"no GPU of this cluster can ever serve it, even when free: {text}{named}")


def allocated(request: PodRequest, allocation: Allocation, models: Mapping[str, str]) -> str:
    """
    The message of a pod that has its share: `5 GiB of GPU 0 (Tesla T4) on t4`. `models`: by UUID, as far as known.

    GPUs of which it has the same amounts are named together, the first few of them.
    """
    taken = of_claim(allocation) if allocation.claim else demands(request, allocation)
    index_of = {share.uuid: share.index for each in allocation.containers for share in each.shares}
    alike: dict[tuple[Demand, str], list[int]] = {}
    for uuid, demand in sorted(taken.items(), key=lambda each: index_of.get(each[0], 0)):
        alike.setdefault((demand, models.get(uuid, "")), []).append(index_of.get(uuid, 0))
    parts = [_amounts(demand, model, indexes) for (demand, model), indexes in alike.items()]
    return f"{_and(parts, '; ')} on {allocation.node}"


def _amounts(demand: Demand, model: str, indexes: Sequence[int]) -> str:
    cores = f" and {demand.cores} % of the cores" if demand.cores else ""
    amount = "all" if demand.exclusive else f"{quantity.spoken(demand.memory)}{cores}"
    each = "each of GPUs" if len(indexes) > 1 else "GPU"
    return f"{amount} of {each} {_and([str(index) for index in indexes], ', ')}{f' ({model})' if model else ''}"


def _and(parts: Sequence[str], between: str) -> str:
    """The first few parts, and how many more there are."""
    more = f" and {len(parts) - _LISTED} more" if len(parts) > _LISTED else ""
    return f"{between.join(parts[:_LISTED])}{more}"


def refused(node: str, words: str) -> str:
    """The message of a pod whose placement the API server does not store; `words` is the API server's message."""
    return (
        f"waiting: node {node} has room, but the API server rejects the placement: {_short(words)}. It is retried "
        "with backoff"
    )


def fence_refused(words: str) -> str:
    """The message of a pod that our programs may not write."""
    return f"waiting: the API server refuses what gpufraction writes to this pod: {_short(words)}"


def _short(words: str) -> str:
    """Other programs' text on one line, and bounded."""
    return plain(" ".join(words.split()), _LONGEST)


def not_bound(stuck: UnboundPod, after: float | None) -> str:
    """
    The message of a pod that holds a share and cannot be bound; its scheduler's message may be long. `after`: seconds
    from the first refusal until the share goes back; None if the pod keeps it.
    """
    cure = (
        "delete the pod to release the share"
        if after is None
        else f"delete the pod: after {moments.duration(after)} the share is released"
    )
    return (
        f"holds its GPU share on node {stuck.node} unused: {_scheduler(stuck.scheduler)} does not bind the pod there "
        f"({_short(stuck.message)}). Resolve the cause, or {cure}"
    )


def withdrawn(pod: PodInfo, *, evicts: bool) -> tuple[ReasonName, str]:
    """The code and the sentence for a pod whose share was taken back; `evicts`: it is evicted now."""
    who = _scheduler(pod.scheduler)
    avoids = f"which is not placed on node {pod.withdrawn} for {moments.duration(refusals.LASTS)}"
    if pod.bound:
        again = "its controller creates another" if pod.owner else "create it again"
        return PodReason.BOUND_WITHOUT_SHARE, (
            f"runs on node {pod.node} without a GPU: the pod was bound after its share had been released. To get a "
            f"share, delete the pod; {again}"
        )
    detail = f" ({_short(pod.unschedulable)})" if pod.unschedulable else ""
    if evicts:
        then = f"The pod is evicted, and its controller creates another, {avoids}"
    elif pod.owner:
        then = f"Delete the pod, and its controller creates another, {avoids}"
    else:
        then = f"Delete the pod and create it again: a pod of its name {avoids.removeprefix('which ')}"
    return PodReason.WITHDRAWN, (
        f"its GPU share on node {pod.withdrawn} was released, since {who} did not bind the pod there in time{detail}. "
        f"The pod cannot be placed on another node, and runs without a GPU if it is bound. {then}"
    )


def unread(why: str) -> str:
    """For a pod with a share whose size this version cannot read."""
    return (
        f"its GPU share cannot be counted, so its GPUs accept no other pods: {why}. Run the version of gpufraction "
        f"that placed the pod, or a later one. Otherwise, delete the pod"
    )


def _scheduler(name: str) -> str:
    return f"the scheduler {name}" if name else "kube-scheduler"


def key_of(question: Question) -> str:
    """`namespace/name` of a pod that may have neither yet: a generated name is shown by its prefix."""
    metadata = question.pod.get("metadata") or {}
    return f"{question.namespace}/{metadata.get('name') or metadata.get('generateName', '')}"
