"""The reasons of a pod's condition, of what admission answers, and of Events about pods."""

from __future__ import annotations

from contract import names
from contract.reasons.base import NEVER, Cure, ReasonKind, ReasonName, Reasons, Row, SpelledReason, either

_ROOM = either(Cure.NODE, Cure.GPUS, Cure.SHARE, Cure.ROOM)


def _waits(text: str, cure: str, cured_by: frozenset[Cure] = NEVER, page: str = "") -> Row:
    return Row(ReasonKind.WAITS, text, cure, cured_by, page)


class PodReason(Reasons):
    """Reasons of the condition `gpufraction.io/Allocated`, besides those of nodes and of claims."""

    ALLOCATED = "Allocated", Row(ReasonKind.PLACED, "How much of which GPUs the pod has, and on which node.", "")
    NOT_SCHEDULED = (
        "NotScheduled",
        Row(
            ReasonKind.PLACED,
            "The pod has its share, but kube-scheduler does not bind the pod.",
            "Resolve the cause that kube-scheduler's message names, or delete the pod to release the share.",
            either(Cure.OWN),
            "operations-reference.md#pods-that-are-not-bound",
        ),
    )
    WITHDRAWN = (
        "ShareWithdrawn",
        _waits(
            "its GPU share on node ... was released, since kube-scheduler did not bind the pod there in time",
            "Delete the pod; its controller creates another, or create it again.",
            page="operations-reference.md#pods-that-are-not-bound",
        ),
    )
    BOUND_WITHOUT_SHARE = (
        "BoundWithoutShare",
        _waits(
            "runs on node ... without a GPU: the pod was bound after its share had been released",
            "Delete the pod; its controller creates another, or create it again.",
            page="operations-reference.md#pods-that-are-not-bound",
        ),
    )
    FOREIGN_GATE = (
        "ForeignGate",
        _waits(
            "held by the scheduling gate ... first",
            "The gate belongs to another system, which must remove it.",
            either(Cure.OWN),
        ),
    )
    UNREADABLE = (
        "Unreadable",
        _waits(
            "The pod's request annotation contradicts its resources.",
            "Delete the pod and create it again.",
            either(Cure.OWN),
        ),
    )
    GANG_INCOMPLETE = (
        "GangIncomplete",
        _waits(
            "gang ...: ... of ... pods that start together can be placed",
            "Wait until all pods of the gang exist. If a program creates the next pod only when the first is ready, "
            "this never happens: lower the annotation gpufraction.io/gang-minimum, or set gpufraction.io/gang to none.",
            either(Cure.OWN),
            "gangs.md",
        ),
    )
    GANG_DOES_NOT_FIT = (
        "GangDoesNotFit",
        _waits(
            "gang ...: ... of ... pods that start together fit; the next one does not: ...",
            "Wait until shares are released, or let fewer pods start together (gpufraction.io/gang-minimum). The gang "
            "holds nothing while it waits.",
            _ROOM,
            "gangs.md",
        ),
    )
    PARKED = (
        "Parked",
        _waits(
            "parked, since the waiting pods of this namespace use all the memory that gpufraction allows them ...",
            "The pod keeps its place in the queue and is read again when its turn comes. Shorten the node selectors, "
            "affinity and tolerations of the namespace's waiting pods, or delete some pods. An administrator can "
            "raise `queue.memory`.",
            either(Cure.TIME),
            "operations-reference.md#memory-of-waiting-pods",
        ),
    )
    REFUSED = (
        "PlacementRefused",
        _waits(
            "node ... has room, but the API server rejects the placement; or the API server refuses what gpufraction "
            "writes to this pod: ...",
            "Change the policy, webhook or size limit that the API server's message names. The write is retried, less "
            "and less often, down to once a minute.",
            either(Cure.TIME, Cure.OWN),
        ),
    )
    SHARE_UNREAD = (
        "ShareUnread",
        Row(
            ReasonKind.PLACED,
            "The pod has its share in a form that the allocator cannot read, such as that of a later version. Its "
            "GPUs accept no other pods.",
            "Run the version of gpufraction that placed the pod, or a later one. Otherwise, delete the pod.",
            either(Cure.OWN),
            "compatibility.md#shares-that-cannot-be-read",
        ),
    )
    INTERNAL_ERROR = (
        "InternalError",
        _waits(
            "internal error of gpufraction (fault ...)",
            "A bug in gpufraction, which affects only this pod: report it with the traceback from the allocator's log "
            "(`FAULT`). The pod is tried again when its spec or annotations change, or after 10 min.",
            either(Cure.TIME, Cure.OWN),
            "troubleshooting.md#what-to-send",
        ),
    )
    NODE_REQUESTED = (
        "NodeRequested",
        _waits(
            "a node of pool ... was requested at ...; or node ... of pool ... has joined and is not ready yet",
            "Wait; `kubectl gpufraction explain` shows the time as an age.",
            either(Cure.NODE, Cure.READY),
            "autoscaling.md",
        ),
    )
    NODE_NOT_BROUGHT = (
        "NodeNotBrought",
        _waits(
            "no node of pool ... joined in time, the autoscaler could not add one, or one joined and reported no GPUs",
            "Have an administrator run `kubectl gpufraction pools`, which says why. A node is requested again at the "
            "time in the message.",
            _ROOM,
            "autoscaling.md",
        ),
    )
    POOL_FULL = (
        "PoolFull",
        _waits(
            "pool ... already has its maximum number of nodes",
            "Wait until other pods end. An administrator can raise `node.max` of the pool.",
            _ROOM,
            "autoscaling.md",
        ),
    )
    PREEMPTING = (
        "Preempting",
        _waits(
            "waits until pods on node ... end",
            "Wait: pods of lower priority are being evicted for this pod.",
            _ROOM,
            "operations-reference.md#preemption",
        ),
    )
    BLOCKED = (
        "PreemptionBlocked",
        _waits(
            "evicting pods would make room, but disruption budgets do not allow it now",
            "Wait, or have the owners of these pods change their PodDisruptionBudgets.",
            _ROOM | {Cure.TIME},
            "operations-reference.md#preemption",
        ),
    )
    PREEMPTION_FAILED = (
        "PreemptionFailed",
        _waits(
            "evicting pods would make room, but the evictions failed",
            "Have an administrator read the allocator's log, which says why.",
            _ROOM | {Cure.TIME},
            "operations-reference.md#preemption",
        ),
    )
    IDLE_GIVES_WAY = (
        "IdleGivesWay",
        _waits(
            "idle pods have been warned that they will be evicted",
            "Wait: the idle pods are evicted when their warning ends, unless they use their GPU again.",
            _ROOM | {Cure.TIME},
            "operations-reference.md#preemption",
        ),
    )
    SHARE_TAKEN = (
        "GPUShareTaken",
        _waits(
            "The pod was stored after its reservation had expired, and its share had gone to others: the pod fails.",
            "Its controller creates the pod again; if there is none, create it again.",
        ),
    )


def _answer(text: str, cure: str) -> Row:
    return Row(ReasonKind.ANSWER, text, cure, either(Cure.TIME))


UNANSWERED = "the allocator does not answer; the pod is placed as soon as it does"
"""The webhook's message with `AnswerReason.UNANSWERED`."""


class AnswerReason(Reasons):
    """Reasons in an answer at admission that are never in a condition."""

    NOT_LEADING = (
        "NotLeading",
        _answer(
            "The pod fits, but this replica is not the leader.", "Wait: the leading allocator places the pod soon."
        ),
    )
    STORED_FIRST = (
        "StoredFirst",
        _answer("The pod fits.", "Wait: the pod gets its share a moment after it is stored."),
    )
    GANG = (
        "GangMember",
        _answer(
            "The pod belongs to a gang.", "Wait: it is placed with the other pods of its gang when all of them exist."
        ),
    )
    QUEUED = (
        "Queued",
        _answer("The pod fits, but pods ahead of it in the queue are tried first.", "Wait a moment."),
    )
    TEMPLATE = (
        "Template",
        Row(ReasonKind.ANSWER, "A dry run of a template by an autoscaler; it is not placed.", ""),
    )
    UNANSWERED = (
        "Unanswered",
        _answer(
            "The allocator gave the webhook no answer in time.",
            "Wait: the pod is placed when an allocator leads. If this lasts, check whether one does.",
        ),
    )
    REFUSED = (
        "Refused",
        Row(ReasonKind.ANSWER, "The webhook refuses the pod.", "Change the field that the message names."),
    )


def _event(text: str, cure: str = "", page: str = "") -> Row:
    return Row(ReasonKind.POD_EVENT, text, cure, NEVER, page)


class PodEventReason(Reasons):
    """Reasons of Events about pods. A condition's reason is also used for an Event if it is a warning."""

    ALLOCATED = (
        "GPUAllocated",
        _event(
            "How much of which GPUs the pod has, and on which node. A pod that is placed at once gets this Event only "
            "where `placement.condition` is `always`."
        ),
    )
    WAITING = "GPUWaiting", _event("Why the pod waits, as in its condition.", page="troubleshooting.md")

    SHARE_RETURNED = (
        "GPUShareReturned",
        _event(
            "Another system's scheduling gate was added after the pod had its share, or kube-scheduler did not bind "
            "the pod in time, so the share was released.",
            "Delete the pod and create it again. Have a webhook that adds gates run before `zz-gpufraction-webhook`.",
            "operations-reference.md#pods-that-are-not-bound",
        ),
    )
    SHARE_UNUSED = (
        "GPUShareUnused",
        _event(
            "The pod has its share, but kube-scheduler does not bind it.",
            "Resolve what kube-scheduler's message says, or delete the pod to release the share.",
            "operations-reference.md#pods-that-are-not-bound",
        ),
    )
    SHARE_UNCOUNTED = (
        "GPUShareUncounted",
        _event(
            "The pod runs with access to GPUs, but without a readable allocation.",
            "Create the pod again.",
            "operations.md#metrics-and-alerts",
        ),
    )
    GANG_MEMBER_LOST = (
        "GPUGangMemberLost",
        _event(
            "The pod's gang has begun, but the API server does not store the pod's placement. The pod is placed on "
            "its own as soon as it fits and can be written.",
            "Change the policy, webhook or size limit that the message names, or delete the pod.",
            "gangs.md",
        ),
    )
    START_OVERDUE = (
        "GPUStartOverdue",
        _event(
            "The pod starts alone and has not been ready for longer than `starts.within`: other pods that start alone "
            "may start on its GPU.",
            "See why the pod is not ready: `kubectl describe pod`. An administrator can raise `starts.within` if "
            "engines take longer to start.",
            "start-alone.md",
        ),
    )
    PREEMPTED = (
        "GPUSharePreempted",
        _event("The pod is evicted for a pod of higher priority.", page="operations-reference.md#preemption"),
    )
    IDLE = (
        "GPUShareIdle",
        _event(
            "The pod's share is idle while another pod waits. This is the warning before the eviction.",
            f"Compute again, or change the pod's annotation or its namespace's label {names.IDLE_AFTER}.",
            "operations-reference.md#preemption",
        ),
    )
    GAVE_WAY = (
        "GPUShareGaveWay",
        _event("The idle pod is evicted after its warning.", page="operations-reference.md#preemption"),
    )
    MOVED = (
        "GPUShareMoved",
        _event(
            "The pod is evicted to make room for a larger pod. It fits on another node.",
            page="operations-reference.md#evictions",
        ),
    )
    GPU_GONE = (
        "GPUGone",
        _event("The pod's GPU was removed; the pod no longer has a GPU.", "Restart the pod."),
    )
    GPU_REPLACED = (
        "GPUReplaced",
        _event("The pod's GPU was replaced; the pod no longer has a GPU.", "Restart the pod."),
    )
    OVERCOMMITTED = (
        "GPUOvercommitted",
        _event(
            "More is allocated on the pod's GPU than it has, and this pod is the youngest there.",
            "After a reduction of oversubscription, this ends by itself. Otherwise, delete the youngest pod.",
            "troubleshooting.md#more-is-allocated-than-there-is",
        ),
    )
    MEMORY_OVERUSE = (
        "GPUMemoryOveruse",
        _event(
            "A container uses more of a GPU's memory than its share.",
            "Use less memory, or ask for a larger share. Where `evict_overuse` is set, the pod is evicted if this "
            "continues.",
            "isolation.md",
        ),
    )
    MEMORY_PRESSURE = (
        "GPUMemoryPressure",
        _event(
            "A container uses more of a GPU's memory than it has booked, and the GPU is full.",
            "Use less memory, or request what is used. Where `evict_overuse` is set, the pod is evicted if this "
            "continues.",
            "isolation.md",
        ),
    )
    UNHEALTHY = (
        "GPUUnhealthy",
        _event(
            "The pod's GPU is unhealthy; the pod keeps running.",
            "Delete the pod, so that it is placed on another GPU. `kubectl gpufraction nodes` has the agent's reason.",
            "operations-reference.md#repair",
        ),
    )
    MPS_FAULT = (
        "MPSFault",
        _event(
            "A program on the GPU caused a fault in its MPS server: the CUDA calls of all programs there fail.",
            "Restart the pod.",
            "isolation.md",
        ),
    )


FORMER = {
    "GpuMemoryOveruse": PodEventReason.MEMORY_OVERUSE,
    "GpuMemoryPressure": PodEventReason.MEMORY_PRESSURE,
    "GpuUnhealthy": PodEventReason.UNHEALTHY,
    "MpsFault": PodEventReason.MPS_FAULT,
}
"""How node agents of former versions spell the codes of their reports."""

_OF_A_CLAIM = "Claim"


def of_claim(word: ReasonName) -> ReasonName:
    """The reason of a pod that waits because of its ElasticGPUClaim, from the claim's own reason."""
    return SpelledReason(_OF_A_CLAIM + word)
