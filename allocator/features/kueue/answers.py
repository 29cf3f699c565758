"""
The answer to a verdict, in Kueue's states and with our message, and its write.

The message is that of a waiting pod, so it names no other tenant. A write names the version that was judged, so at most
one of two writes takes effect, and none on a Workload that has changed since.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from allocator.features.kueue import workloads
from allocator.features.kueue.judge import FallsShort, Fits, NeverFits, NotAdmitted, Verdict
from allocator.features.kueue.workloads import CHECKS, FIELD_MANAGER, GROUP, READY, REJECTED, RETRY, WORKLOADS, Workload
from allocator.scheduler import messages
from contract.dialects import DIALECTS
from contract.dialects.table import Dialects
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError

JSON = dict[str, Any]
log = logging.getLogger(__name__)
_QUERY: dict[str, str | int | bool] = {"fieldManager": FIELD_MANAGER}
AnswerOutcome = Literal["succeeded", "failed", "unknown"]


@dataclass(frozen=True, slots=True)
class CheckAnswer:
    """The state of the check. `again_after`: whole seconds until Kueue may try again."""

    state: str
    message: str
    again_after: int | None = None


def answer_to(verdict: Verdict, *, rejects: bool, retry_after: int, dialects: Dialects = DIALECTS) -> CheckAnswer:
    """The answer. `rejects`: whether a Workload that no GPU could ever serve is rejected instead of retried later."""
    match verdict:
        case Fits(0):
            return CheckAnswer(READY, "no pod of the Workload requests a GPU share")
        case Fits(number, opened):
            found = f"all {number} pods fit" if number > 1 else "the pod fits"
            coming = ", ".join(f"{count} new node{'s' if count > 1 else ''} of pool {pool}" for pool, count in opened)
            return CheckAnswer(READY, f"{found}, with {coming}" if coming else found)
        case FallsShort(part, placed, number, decision):
            why = messages.why(decision, part.ask.request, dialects=dialects)
            found = f"{placed} of {number} pods fit; the next one of pod set {part.name} does not: {why}"
            return CheckAnswer(RETRY, found, retry_after)
        case NeverFits(part, decision):
            found = f"pod set {part.name}: {messages.never(decision).reason}"
            return CheckAnswer(REJECTED, found) if rejects else CheckAnswer(RETRY, found, retry_after)
        case NotAdmitted(pod_set, message, curable):
            found = f"pods of pod set {pod_set} would be refused: {message}"
            return CheckAnswer(RETRY, found, retry_after) if curable else CheckAnswer(REJECTED, found)


def write(
    kube: Kube,
    version: str,
    workload: Workload,
    ours: Collection[str],
    answer: CheckAnswer,
    *,
    now: str,
    timeout: float,
) -> AnswerOutcome:
    """
    Write the answer to all our checks of a Workload. `version`: Kueue's API. `now`: RFC 3339.

    Without a proper answer the outcome is unknown: the watch will show it, and a second write of the same version
    fails if the first one took effect.
    """
    where = paths.path(f"{GROUP}/{version}", WORKLOADS, workload.namespace, workload.name, "status")
    operations = workloads.answering(
        workload, ours, answer.state, answer.message, now=now, again_after=answer.again_after
    )
    fields = {"workload": workload.key, "state": answer.state}
    try:
        kube.patch_json(where, operations, _QUERY, timeout=timeout)
    except KubeError as error:
        log.info("check not answered", extra={**fields, "reason": str(error)})
        return "unknown" if error.outcome_unknown else "failed"
    log.info("check answered", extra={**fields, "message_": answer.message})
    return "succeeded"


def activate(kube: Kube, version: str, check: JSON, *, now: str, timeout: float) -> bool:
    """Write on an AdmissionCheck that we answer it. False if the write failed; the watch brings the check again."""
    name = str((check.get("metadata") or {}).get("name", ""))
    where = paths.path(f"{GROUP}/{version}", CHECKS, None, name, "status")
    try:
        kube.patch_json(where, workloads.activating(check, now=now), _QUERY, timeout=timeout)
    except KubeError as error:
        log.info("admission check not activated", extra={"check": name, "reason": str(error)})
        return False
    return True
