"""
The next step of a Job, as a function of its spec and the results of its pods.

Rules: "Jobs" in the Kubernetes documentation, non-indexed completion; a pod is replaced as soon as it terminates or
failed (`podReplacementPolicy: TerminatingOrFailed`, the API's default). Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from playground.api.kinds.values import JSON
from playground.machinery.controllers import replicas


@dataclass(frozen=True, slots=True)
class Tally:
    """A Job's pods: those that run or wait, and how many succeeded and failed so far. `restarts`: of running pods."""

    active: int = 0
    ready: int = 0
    succeeded: int = 0
    failed: int = 0
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The Job is over: the type, reason and message of its condition."""

    type: str
    reason: str = ""
    message: str = ""


COMPLETE = Verdict("Complete", "CompletionsReached", "Reached expected number of succeeded pods")
BACKOFF = Verdict("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
DEADLINE = Verdict("Failed", "DeadlineExceeded", "Job was active longer than specified deadline")


def tally(pods: Iterable[JSON], *, succeeded: int, failed: int) -> Tally:
    """Count the active pods. The caller has counted the ended ones, because it keeps their results after deletion."""
    active = [pod for pod in pods if replicas.is_active(pod)]
    return Tally(
        active=len(active),
        ready=sum(replicas.is_ready(pod) for pod in active),
        succeeded=succeeded,
        failed=failed,
        restarts=sum(_restarts(pod) for pod in active),
    )


def _restarts(pod: JSON) -> int:
    status = pod.get("status") or {}
    entries = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    return sum(int(entry.get("restartCount") or 0) for entry in entries)


def verdict(spec: Mapping[str, Any], counted: Tally, seconds: float) -> Verdict | None:
    """Whether the Job is over after this many seconds of being active, and how."""
    limit = int(spec.get("backoffLimit", 6))
    if counted.failed > limit or (counted.restarts and counted.restarts >= limit):
        return BACKOFF
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and seconds >= float(deadline):
        return DEADLINE
    completions = spec.get("completions")
    if completions is None:
        return COMPLETE if counted.succeeded and not counted.active else None
    return COMPLETE if counted.succeeded >= int(completions) else None


def wanted(spec: Mapping[str, Any], counted: Tally) -> int:
    """How many pods should be active now."""
    if spec.get("suspend"):
        return 0
    parallelism, completions = int(spec.get("parallelism", 1)), spec.get("completions")
    if completions is None:
        # A work queue: after one pod has found it empty, no new pod starts.
        return counted.active if counted.succeeded else parallelism
    return min(parallelism, max(int(completions) - counted.succeeded, 0))
