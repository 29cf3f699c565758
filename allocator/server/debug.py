"""
The input of decisions as a value that can be written to a file, and the repetition of these decisions from it.

`GET /debug/snapshot` gives a `SchedulerView` as JSON, `python -m allocator replay` reads it. The person on call can
thus ask why a pod is placed there or waits, of exactly the state that decided, on another machine, without the cluster.
It holds node names, labels and taints, GPUs and what is taken of them, and the pods in the queue with what they ask
for; where rules between pods or volumes decide, also the labels that these rules ask about, and claims and volumes. No
environment, no annotation, no secret. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from allocator import selectors
from allocator.cache import reserved
from allocator.cache.cache import FrozenCluster
from allocator.cache.reserved import HeldNode, Requester
from allocator.cache.trial import Trial
from allocator.engine import reference
from allocator.engine.reference import Decision, Placement, Unschedulable, policy_of
from allocator.scheduler import messages
from allocator.scheduler.view import QueuedPodView, SchedulerView
from contract.encoding.reading import Malformed
from contract.encoding.wire import Schema, typed
from contract.reasons import nodes as reasons
from contract.reasons.nodes import Reason
from contract.reasons.pods import PodReason
from contract.scheduling.clusterfilters.objects import NO_RULES, PodRules
from contract.scheduling.needs import SchedulingRequest

JSON = dict[str, Any]
VERSION = 2
_RENAMED = {"line": "queue", "kept": "reserved"}
"""Fields of files that older programs wrote, and their names today."""
_VIEW: Schema[SchedulerView] = typed(SchedulerView)


def to_json(view: SchedulerView) -> JSON:
    """The file's content."""
    return {"v": VERSION, **_VIEW.to_json(view)}


def from_json(document: Any) -> SchedulerView:
    """Read a file's content. Raises `Malformed`."""
    if not isinstance(document, dict) or document.get("v") != VERSION:
        raise Malformed(f"this is no snapshot of version {VERSION}")
    document = {_RENAMED.get(name, name): value for name, value in document.items()}
    view = _VIEW.from_json(document, "snapshot")
    for node in view.nodes:
        if len(node.usage) != len(node.gpus):
            raise Malformed(f"snapshot: node {node.name} has {len(node.gpus)} GPUs and {len(node.usage)} usages")
    return replace(view, limits=replace(view.limits, selects=selectors.holds))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for one pod in the queue: a decision, or why there was none (a foreign gate, a write in progress)."""

    position: int
    """From 1."""
    pod: QueuedPodView
    decision: Decision | None
    code: str
    reason: str


_Shape = tuple[SchedulingRequest, tuple[HeldNode, ...], PodRules, int]


def trial(view: SchedulerView) -> Trial:
    """The cluster as it was, for pods to be placed on."""
    made = Trial(view.limits, view.policy)
    made.begin(FrozenCluster(view.nodes, view.reserved, view.tables(), neighbours=view.neighbours))
    return made


def one_cycle(view: SchedulerView) -> Iterator[Outcome]:
    """One scheduling cycle: each pod that fits is placed, and what it takes is not available for the pods behind it."""
    cluster = trial(view)
    failed: dict[_Shape, Decision] = {}
    for position, pod in enumerate(view.queue, 1):
        if pod.busy:
            yield Outcome(position, pod, None, pod.busy.capitalize(), f"passed over: {pod.busy}")
        elif pod.foreign:
            text = f"held by the scheduling gate {pod.foreign[0]} first"
            yield Outcome(position, pod, None, PodReason.FOREIGN_GATE, text)
        else:
            who = Requester(pod.uid, pod.priority, pod.key.split("/", 1)[0], pod.rules)
            shape = _shape(cluster, pod.ask, who)
            decision = failed.get(shape) or cluster.place(pod.ask, who)
            if isinstance(decision, Unschedulable):
                failed[shape] = decision  # the controller does not ask again within a pass either
            yield _outcome(position, pod, decision)


def _shape(cluster: Trial, ask: SchedulingRequest, who: Requester) -> _Shape:
    """
    What is equal for pods that get the same refusal: room only shrinks within a pass, and a pod that was placed may
    help only one that wants to be alongside others, or spread.
    """
    rules = who.rules if cluster.concerns(who.rules) else NO_RULES
    helped = cluster.changes if rules.affinity or rules.spread else 0
    return ask, reserved.entitled(cluster.reservations, who), rules, helped


def _outcome(position: int, pod: QueuedPodView, decision: Decision) -> Outcome:
    if isinstance(decision, Placement):
        gpus = ", ".join(f"{c.container}: {', '.join(s.uuid for s in c.shares)}" for c in decision.containers)
        return Outcome(position, pod, decision, "Placed", f"placed on node {decision.node} ({gpus})")
    return Outcome(
        position, pod, decision, messages.code(decision), f"waiting: {messages.why(decision, pod.ask.request)}"
    )


def explain(view: SchedulerView, ask: SchedulingRequest, rules: PodRules = NO_RULES) -> Iterator[tuple[str, str]]:
    """Every node, the preferred first, with its score or why it does not take the pod."""
    policy, tables = policy_of(ask, view.policy), view.tables()
    refused = trial(view).refused(rules, ask.needs)
    refusing: list[tuple[str, str]] = []
    left = list(view.nodes)
    for form in reference.forms_of(ask, policy, tables):
        taking, refusing = [], []
        for node in left:
            verdict = reference.evaluate(node, form, view.limits, policy, tables, refused=refused.get(node.name))
            if isinstance(verdict, Reason):
                refusing.append((node.name, reasons.of_one(verdict)))
            else:
                taking.append((verdict[0], node.name))
        for score, name in sorted(taking):
            yield name, f"fits, score {score}"
        removed = {name for _, name in taking}
        left = [node for node in left if node.name not in removed]
    yield from sorted(refusing)
