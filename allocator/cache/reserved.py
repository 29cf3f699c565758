"""
A node kept for one pod that has waited too long, so that smaller ones do not starve it.

So is a node on which room is made by evictions (`allocator.preemption.tracker`), for each pod for which some go there.

Filling gaps with whatever fits keeps GPUs busy, and would let a large pod wait for ever: each share that comes back is
taken by somebody smaller. So after a bound the first in the queue has one node kept for it, the one that has the least
still to give back. Nobody else is placed there, except pods of higher priority, until the pod is placed or gone, or the
time for which its namespace may have a node kept is over (`allocator.queue.queue.reservation`).

What pods of its own namespace hold does not count as given back: their author can see to that, and could else close a
node to others for ever. Where no node would serve it otherwise, one is kept against its own namespace only.

Pure. For having waited too long at most one node is kept at a time. The choice only ever moves to a node that lacks
less, and on a kept node what is lacking only shrinks, so it comes to rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from allocator.engine import reference
from allocator.engine.engine import Engine
from allocator.engine.reference import Decision, Placement, Unschedulable
from contract.model import Compute, NodeState, Usage
from contract.scheduling.needs import SchedulingRequest
from contract.scheduling.reasons import Code, Reason, ReasonCount

_NOTHING = Compute()


@dataclass(frozen=True, slots=True)
class NodeReservation:
    """A node that is kept, and for which pod; it may be kept for others too."""

    node: str
    uid: str
    priority: int = 0
    others: tuple[tuple[str, Usage], ...] = ()
    """By GPU UUID what will be taken once the others for whom it is kept have what is made free for them."""
    compute: Compute = _NOTHING
    """What will be taken of the node besides by then."""
    against: str = ""
    """The namespace against whose pods alone it is kept; empty: against all."""
    namespace: str = ""
    """The pod's own, where the node is kept since it has waited too long."""


@dataclass(frozen=True, slots=True)
class Requester:
    """The pod that a decision is for, as reserved nodes see it: an empty `uid` is that of a pod at admission."""

    uid: str = ""
    priority: int = 0
    namespace: str = ""


def closed(node: NodeState) -> NodeState:
    """The node as everybody else's decisions see it: no GPU takes anybody."""
    return replace(node, usage=tuple(replace(usage, exclusive=True) for usage in node.usage))


def entitled(kept: Sequence[NodeReservation], who: Requester) -> tuple[NodeReservation, ...]:
    """
    The kept nodes to which the pod may go, one entry for each. Pods of one shape that differ in this differ in their
    answers.

    The pod for which one is kept goes to that only; another to those for whose pods it has a higher priority, or that
    are kept against another namespace.
    """
    own = [one for one in kept if one.uid == who.uid]
    if own:
        return tuple(own)
    closed_to_it = {
        one.node for one in kept if one.priority >= who.priority and (not one.against or one.against == who.namespace)
    }
    return tuple(NodeReservation(node, "") for node in sorted({one.node for one in kept} - closed_to_it))


def decide(
    chooser: Engine,
    nodes: Mapping[str, NodeState],
    kept: Sequence[NodeReservation],
    ask: SchedulingRequest,
    who: Requester,
) -> Decision:
    """
    Where the pod goes. `chooser` knows the kept nodes as `closed`, `nodes` has what they really are.

    The pod for which one is kept goes there as soon as it fits; one of higher priority only where nothing else is free.
    """
    there = [one for one in kept if one.node in nodes]
    return reference.by_preference(lambda form: _decide(chooser, nodes, there, form, who), ask)


def _decide(
    chooser: Engine,
    nodes: Mapping[str, NodeState],
    kept: Sequence[NodeReservation],
    ask: SchedulingRequest,
    who: Requester,
) -> Decision:
    if not kept:
        return chooser.decide(ask)
    theirs = entitled(kept, who)
    open_to_it = {one.node: _left(nodes[one.node], one) for one in theirs}
    if any(one.uid == who.uid for one in theirs):
        own = _there(chooser, open_to_it, ask)
        if isinstance(own, Placement):
            return own
    decision = chooser.decide(ask)
    if isinstance(decision, Placement):
        return decision
    told = decision
    for name in sorted({one.node for one in kept}):
        reasons: tuple[ReasonCount, ...] = (ReasonCount(Code.RESERVED, 1),)
        if name in open_to_it:
            found = _there(chooser, {name: open_to_it[name]}, ask)
            if isinstance(found, Placement):
                return found
            reasons = found.reasons
        told = _told_of(chooser, nodes[name], ask, told, reasons)
    return told


def _left(node: NodeState, kept: NodeReservation) -> NodeState:
    """The node as the pod for which it is kept sees it: what others there wait for is not its to take."""
    if not kept.others:
        return node
    later = dict(kept.others)
    usage = tuple(_most(taken, later.get(gpu.uuid, taken)) for gpu, taken in zip(node.gpus, node.usage, strict=True))
    now, then = node.requested, kept.compute
    requested = Compute(
        max(now.cpu, then.cpu), max(now.memory, then.memory), max(now.storage, then.storage), max(now.pods, then.pods)
    )
    return replace(node, usage=usage, requested=requested)


def _most(one: Usage, other: Usage) -> Usage:
    return Usage(
        max(one.memory, other.memory),
        max(one.cores, other.cores),
        max(one.sharers, other.sharers),
        one.exclusive or other.exclusive,
    )


def _there(chooser: Engine, nodes: Mapping[str, NodeState], ask: SchedulingRequest) -> Decision:
    return reference.decide(nodes, ask, limits=chooser.limits, policy=chooser.policy, tables=chooser.tables)


def _told_of(
    chooser: Engine, node: NodeState, ask: SchedulingRequest, refused: Unschedulable, instead: tuple[ReasonCount, ...]
) -> Unschedulable:
    """The refusal with what is true of a kept node, where being closed is all that `chooser` knows of it."""
    verdict = reference.evaluate(closed(node), ask, chooser.limits, reference.DEFAULT_POLICY)
    if not isinstance(verdict, Reason) or verdict.code is not Code.EXCLUSIVE:
        return refused
    found = {tally.code: tally for tally in refused.reasons}
    closed_ones = found.pop(Code.EXCLUSIVE)
    if closed_ones.nodes > 1:
        found[Code.EXCLUSIVE] = replace(closed_ones, nodes=closed_ones.nodes - 1)
    for more in instead:
        found[more.code] = _added(found[more.code], more) if more.code in found else more
    return Unschedulable(tuple(found[code] for code in sorted(found)))


def _added(one: ReasonCount, other: ReasonCount) -> ReasonCount:
    return ReasonCount(
        one.code,
        one.nodes + other.nodes,
        max(one.wanted, other.wanted),
        max(one.most, other.most),
        min(one.what, other.what),
    )
