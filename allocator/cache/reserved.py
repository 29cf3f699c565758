"""
Decisions while nodes are reserved.

A node is reserved for one pod: a starving one (`allocator.queue.reservation`), or one for which evictions make room
there (`allocator.preemption.tracker`). The pod goes there as soon as it fits. The node is closed to all others, except
to pods of higher priority, and to those of other namespaces if it is reserved against one namespace only.

The engine treats reserved nodes as `closed`. The decision here runs the engine first, and then checks the reserved
nodes that the pod may use one by one. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from allocator.engine import reference
from allocator.engine.engine import Engine
from allocator.engine.reference import NOWHERE, Decision, Placement, Prefer, Unschedulable
from contract.model import Compute, NodeState, Usage
from contract.reasons.nodes import Code, Reason, ReasonCount
from contract.scheduling.clusterfilters.objects import NO_RULES, PodRules
from contract.scheduling.needs import SchedulingRequest
from contract.scheduling.nodefilters.resources import larger

_NOTHING = Compute()


@dataclass(frozen=True, slots=True)
class HeldNode:
    """A node is reserved for a pod; another reservation may name the same node."""

    node: str
    uid: str
    priority: int = 0
    others: tuple[tuple[str, Usage], ...] = ()
    """The usage of each GPU UUID once the other pods for which room is made there have their shares."""
    compute: Compute = _NOTHING
    """The usage of the node besides GPUs by then."""
    against: str = ""
    """The only namespace to whose pods the node is closed; empty: to all."""
    namespace: str = ""
    """The pod's own reservation, if it is starving."""
    gang: str = ""
    """The pods of this gang may all go there; `uid` is one of them. Empty: that pod alone."""


@dataclass(frozen=True, slots=True)
class Requester:
    """The pod of a decision, for reserved nodes: an empty `uid` is that of a pod at admission."""

    uid: str = ""
    priority: int = 0
    namespace: str = ""
    rules: PodRules = NO_RULES
    """The rules about other pods and volumes."""
    family: str = ""
    """As in `allocator.cache.refusals`."""
    gang: str = ""
    """The text of its gang's key; empty for a pod of none."""

    def owns(self, reservation: HeldNode) -> bool:
        """Whether the node is reserved for this pod, or for its gang."""
        return reservation.uid == self.uid or (self.gang != "" and reservation.gang == self.gang)


def closed(node: NodeState) -> NodeState:
    """The node as decisions for other pods see it: no GPU has room."""
    return replace(node, usage=tuple(replace(usage, exclusive=True) for usage in node.usage))


def entitled(reservations: Sequence[HeldNode], who: Requester) -> tuple[HeldNode, ...]:
    """
    The reserved nodes to which the pod may go, one entry for each. Pods of one shape that differ in this get different
    decisions.

    A pod with a reservation goes to that node only; another pod to the nodes reserved for pods of lower priority, or
    against another namespace.
    """
    own = [one for one in reservations if who.owns(one)]
    if own:
        return tuple(own)
    closed_to_it = {
        one.node
        for one in reservations
        if one.priority >= who.priority and (not one.against or one.against == who.namespace)
    }
    return tuple(HeldNode(node, "") for node in sorted({one.node for one in reservations} - closed_to_it))


def decide(
    engine: Engine,
    nodes: Mapping[str, NodeState],
    reservations: Sequence[HeldNode],
    ask: SchedulingRequest,
    who: Requester,
    refused: Mapping[str, Reason] = NOWHERE,
    prefer: Prefer | None = None,
) -> Decision:
    """
    Choose the pod's place. `engine` treats the reserved nodes as `closed`; `nodes` contains their real state. `refused`
    nodes are excluded, regardless of their reservation. `prefer` decides between nodes of the same score.

    A pod with a reservation goes there as soon as it fits; one of higher priority only if no other node has room.
    """
    there = [one for one in reservations if one.node in nodes]
    return reference.by_preference(lambda form: _decide(engine, nodes, there, form, who, refused, prefer), ask)


def _decide(
    engine: Engine,
    nodes: Mapping[str, NodeState],
    reservations: Sequence[HeldNode],
    ask: SchedulingRequest,
    who: Requester,
    refused: Mapping[str, Reason],
    prefer: Prefer | None,
) -> Decision:
    if not reservations:
        return engine.decide(ask, refused, prefer)
    theirs = entitled(reservations, who)
    open_to_it = {one.node: _left(nodes[one.node], one) for one in theirs}
    if any(who.owns(one) for one in theirs):
        own = _there(engine, open_to_it, ask, refused, prefer)
        if isinstance(own, Placement):
            return own
    decision = engine.decide(ask, refused, prefer)
    if isinstance(decision, Placement):
        return decision
    refusal = decision
    for name in sorted({one.node for one in reservations}):
        reasons: tuple[ReasonCount, ...] = (ReasonCount(Code.RESERVED, 1),)
        if name in open_to_it:
            found = _there(engine, {name: open_to_it[name]}, ask, refused)
            if isinstance(found, Placement):
                return found
            reasons = found.reasons
        if name not in refused:
            refusal = _with_own_reasons(engine, nodes[name], ask, refusal, reasons)
    return refusal


def _left(node: NodeState, reservation: HeldNode) -> NodeState:
    """The node as the pod with this reservation sees it: without the room that is made for others there."""
    if not reservation.others:
        return node
    later = dict(reservation.others)
    usage = tuple(_most(taken, later.get(gpu.uuid, taken)) for gpu, taken in zip(node.gpus, node.usage, strict=True))
    now, then = node.requested, reservation.compute
    requested = Compute(
        max(now.cpu, then.cpu),
        max(now.memory, then.memory),
        max(now.storage, then.storage),
        max(now.pods, then.pods),
        larger(now.scalars, then.scalars),
    )
    return replace(node, usage=usage, requested=requested)


def _most(one: Usage, other: Usage) -> Usage:
    return Usage(
        max(one.memory, other.memory),
        max(one.cores, other.cores),
        max(one.sharers, other.sharers),
        one.exclusive or other.exclusive,
        max(one.memory + one.burst, other.memory + other.burst) - max(one.memory, other.memory),
        max(one.starting, other.starting),
    )


def _there(
    engine: Engine,
    nodes: Mapping[str, NodeState],
    ask: SchedulingRequest,
    refused: Mapping[str, Reason],
    prefer: Prefer | None = None,
) -> Decision:
    limits, policy, tables = engine.limits, engine.policy, engine.tables
    return reference.decide(nodes, ask, limits=limits, policy=policy, tables=tables, refused=refused, prefer=prefer)


def _with_own_reasons(
    engine: Engine, node: NodeState, ask: SchedulingRequest, refused: Unschedulable, instead: tuple[ReasonCount, ...]
) -> Unschedulable:
    """The refusal with the reserved node's own reasons; `engine` reports only that it is closed."""
    verdict = reference.evaluate(closed(node), ask, engine.limits, reference.DEFAULT_POLICY)
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
