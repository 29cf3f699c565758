"""
The allocator's answers in words and figures: what a "no" is called, and what a pod that waits has to reckon with.

Pure functions of decisions and node states. The sentences over nodes are made in `allocator.reasons`; here they become
what the webhook is answered and a pod is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from allocator import reasons
from allocator.engine import Unplaced
from allocator.filters import kind_accepted
from allocator.reasons import Code
from allocator.unbound import Stuck
from contract.model import Allocation, NodeState, PodRequest
from contract.protocol import Never, Question, Wait

FOREIGN_GATE = "ForeignGate"
NOT_SCHEDULED = "NotScheduled"
_SAID = 300


def name_of(code: Code) -> str:
    """`MEMORY_OF_NODE` as `MemoryOfNode`, the form of reasons in conditions and Events."""
    return "".join(word.capitalize() for word in code.name.split("_"))


def code(decision: Unplaced) -> str:
    """The one word for why a pod was not placed."""
    return name_of(reasons.leading(decision.reasons))


def wait(decision: Unplaced, request: PodRequest, nodes: Iterable[NodeState]) -> Wait:
    """No room now."""
    return Wait(code(decision), reasons.summary(decision.reasons), floor(request, nodes))


def wait_in_line(request: PodRequest, nodes: Iterable[NodeState]) -> Wait:
    """A share came back a moment ago, and those who wait have not been asked yet."""
    return Wait("InLine", "pods that came earlier are served first; it is placed in its turn", floor(request, nodes))


def wait_for_gate(gate: str, request: PodRequest, nodes: Iterable[NodeState]) -> Wait:
    """Somebody else's scheduling gate holds the pod, so that it must not take a share yet."""
    return Wait(FOREIGN_GATE, f"the pod is held by the scheduling gate {gate} first", floor(request, nodes))


def never(found: Unplaced) -> Never:
    """No GPU of the cluster could ever serve it; the figures are then the largest that there are, not what is free."""
    text = reasons.summary(found.reasons).replace("largest free", "largest").replace("most free", "most")
    return Never(code(found), f"no GPU of this cluster could ever serve it, even when free: {text}")


def allocated(allocation: Allocation) -> str:
    """What a pod is told that has its share."""
    count = sum(len(container.shares) for container in allocation.containers)
    return f"{count} GPU share{'s' if count > 1 else ''} on node {allocation.node}"


def not_bound(stuck: Stuck, minutes: float) -> str:
    """What is said of a pod that holds a share and cannot be bound; kube-scheduler's words may be long."""
    said = stuck.said if len(stuck.said) <= _SAID else stuck.said[: _SAID - 1] + "…"
    return (
        f"holds its GPU share on node {stuck.node} unused: kube-scheduler has not bound the pod there for "
        f"{minutes:.0f} min ({said}). Cure what it says, or delete the pod to give the share back"
    )


def floor(request: PodRequest, nodes: Iterable[NodeState]) -> Mapping[str, int]:
    """
    The least memory, in bytes by container, that a waiting pod will have.

    A waiting pod's resources are fixed before it is placed, so a share by percent counts as that of the smallest GPU
    that it accepts. Shares by bytes are exact.
    """
    if all(fraction.memory for fraction in request.containers):
        return {fraction.container: fraction.count * fraction.memory for fraction in request.containers}
    # A large cluster has few kinds of card.
    kinds = {(gpu.model, gpu.memory, gpu.usable) for node in nodes for gpu in node.gpus}
    least = {}
    for fraction in request.containers:
        sizes = (usable for model, memory, usable in kinds if kind_accepted(model, memory, fraction))
        least[fraction.container] = fraction.count * fraction.memory_on(min(sizes, default=0))
    return least


def key_of(question: Question) -> str:
    """`namespace/name` of a pod that may have neither yet: a generated name is shown by its prefix."""
    metadata = question.pod.get("metadata") or {}
    return f"{question.namespace}/{metadata.get('name') or metadata.get('generateName', '')}"
