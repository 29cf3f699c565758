"""
The results of checks, and the reasons for them: the one table of these codes.

A report has codes and figures but no sentences, so that nothing from a cluster can get into it. The sentences for
people are here. Pure.
"""

from __future__ import annotations

from enum import StrEnum

PASSED, FAILED, NOT_TRIED = "passed", "failed", "not tried"
RESULTS = (PASSED, FAILED, NOT_TRIED)


class ReportReason(StrEnum):
    """Why a check failed, or was not tried. Members are codes; `text` and `cure` are for people."""

    result: str
    text: str
    cure: str

    def __new__(cls, code: str, result: str, text: str, cure: str = "") -> ReportReason:
        """One row."""
        member = str.__new__(cls, code)
        member._value_ = code
        member.result = result
        member.text = text
        member.cure = cure
        return member

    # -- failed ---------------------------------------------------------------------------------------------------
    OTHER_GPUS = (
        "SeesOtherGPUs",
        FAILED,
        "the container sees GPUs that are not its own",
        "read docs/isolation.md, How GPUs reach containers",
    )
    NO_GPUS = (
        "SeesNoGPU",
        FAILED,
        "the container does not see the GPU that its pod got",
        "check status.delivery of the GPUNode, and the node's container toolkit",
    )
    SEES_GPUS = (
        "SeesGPUs",
        FAILED,
        "a pod without a share sees GPUs",
        "add the components hide-gpus and guard-gpus, and close the toolkit to unprivileged containers",
    )
    NOT_HELD = (
        "LimitNotHeld",
        FAILED,
        "the program got more than its share, although the node publishes the level",
        "remove the level from the node until you know why: docs/isolation.md",
    )
    PROGRAM_FAILED = (
        "ProgramFailed",
        FAILED,
        "the program cannot use the GPU that it got",
        "check the driver's log on the node",
    )
    NOT_STARTED = (
        "PodNotStarted",
        FAILED,
        "the pod got a node but did not start in time",
        "check the Events of such a pod, and the node's kubelet and container runtime",
    )
    REJECTED = (
        "PodRejected",
        FAILED,
        "the node refused the pod, or the API server refused to create it",
        "run kubectl gpufraction check",
    )
    LOST = (
        "PodLost",
        FAILED,
        "a pod that ran before a restart did not run, or saw other GPUs, after it",
        "check the Events of the node",
    )
    NOT_BACK = (
        "NotBackInTime",
        FAILED,
        "the program did not come back in time",
        "check the pods of the namespace gpufraction-system",
    )
    # -- not tried ------------------------------------------------------------------------------------------------
    OTHER_WAY = "NotThisNodesWay", NOT_TRIED, "GPUs do not reach containers of this node in that way"
    NOT_PUBLISHED = "LevelNotPublished", NOT_TRIED, "the node does not publish the level"
    NO_CORES = "LimitsNoCores", NOT_TRIED, "this level limits no cores"
    NO_SLICES = "NoSlices", NOT_TRIED, "no GPU of the node is a MIG slice"
    NO_IDLE_GPU = (
        "NoIdleGPU",
        NOT_TRIED,
        "every healthy GPU of the node has shares, and the check must not disturb tenants",
        "wait until a GPU of the node is idle, or choose another node",
    )
    AGENT_AWAY = (
        "AgentAway",
        NOT_TRIED,
        "the node's agent has never reported, or not for too long",
        "check the agent's pod on the node",
    )
    NO_PROGRAM = (
        "ProgramMissing",
        NOT_TRIED,
        "the probe's image lacks what the check needs",
        "give an image with Python 3.8 or later and glibc by --image",
    )
    NO_IMAGE = (
        "ImageNotPulled",
        NOT_TRIED,
        "the node cannot pull the probe's image",
        "give an image that the node can pull by --image and --cuda-image",
    )
    NO_ROOM = (
        "NoRoom",
        NOT_TRIED,
        "the pod waited for its share until the time was over",
        "run kubectl gpufraction nodes",
    )
    NOT_ASKED = "NotAsked", NOT_TRIED, "it was not asked for", "omit --check; a restart has its own flag"
    NOT_DONE = (
        "NotDone",
        NOT_TRIED,
        "an administrator must act on the node, and this did not happen in time",
        "do what the command asks while it waits",
    )
    NO_BASELINE = "NothingToCompare", NOT_TRIED, "the check with which it is compared gave no figures"
    NO_RIGHT = "NoRight", NOT_TRIED, "you lack a right that it takes", "run it as an administrator"
    NO_ANSWER = (
        "NoAnswer",
        NOT_TRIED,
        "the API server did not answer, or refused what the check needs",
        "check the API server and your rights",
    )
    INTERRUPTED = "Interrupted", NOT_TRIED, "the run ended before"
    OUT_OF_TIME = "OutOfTime", NOT_TRIED, "the time of the run was over", "give more by --timeout"
    UNREADABLE = (
        "AnswerUnreadable",
        NOT_TRIED,
        "the pod's log has no answer of the probe",
        "check what the probe's image prints",
    )


BY_CODE = {str(reason): reason for reason in ReportReason}
