"""
The columns of `kubectl get pods`, such as STATUS, which is not a field of a pod.

The rules are those of the pod printer of a real API server: the phase, overridden by the reason, by what its containers
wait for or ended with, by a scheduling gate, and at last by deletion.
"""

from playground.api.kinds.values import JSON, dig
from playground.api.tables.columns import AGE, NAME, NONE, Column, at, since


def _init_status(pod: JSON) -> str | None:
    """`Init:...` while an init container has not finished or, for a sidecar, has not started."""
    spec = dig(pod, "spec", "initContainers") or []
    restartable = {c["name"] for c in spec if c.get("restartPolicy") == "Always"}
    for index, status in enumerate(dig(pod, "status", "initContainerStatuses") or []):
        ended, waiting = dig(status, "state", "terminated"), dig(status, "state", "waiting")
        if ended and ended.get("exitCode") == 0:
            continue
        if status.get("name") in restartable and status.get("started"):
            continue
        if ended:
            return f"Init:{ended.get('reason') or _exit(ended)}"
        if waiting and waiting.get("reason") not in (None, "", "PodInitializing"):
            return f"Init:{waiting['reason']}"
        return f"Init:{index}/{len(spec)}"
    return None


def _exit(ended: JSON) -> str:
    return f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended.get('exitCode')}"


def _container_status(pod: JSON, reason: str) -> str:
    running = False
    for status in reversed(dig(pod, "status", "containerStatuses") or []):
        waiting, ended = dig(status, "state", "waiting"), dig(status, "state", "terminated")
        if waiting and waiting.get("reason"):
            reason = waiting["reason"]
        elif ended:
            reason = ended.get("reason") or _exit(ended)
        elif status.get("ready") and "running" in (status.get("state") or {}):
            running = True
    if reason == "Completed" and running:
        return "Running" if _is_ready(pod) else "NotReady"
    return reason


def _is_ready(pod: JSON) -> bool:
    conditions = dig(pod, "status", "conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def status(pod: JSON, _: float = 0.0) -> str:
    """The STATUS column."""
    reason: str = dig(pod, "status", "reason") or dig(pod, "status", "phase") or ""
    for condition in dig(pod, "status", "conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "SchedulingGated":
            reason = "SchedulingGated"
    reason = _init_status(pod) or _container_status(pod, reason)
    if dig(pod, "metadata", "deletionTimestamp"):
        if dig(pod, "status", "reason") == "NodeLost":
            return "Unknown"
        if dig(pod, "status", "phase") not in ("Succeeded", "Failed"):
            return "Terminating"
    return reason


def _ready(pod: JSON, _: float) -> str:
    sidecars = {c["name"] for c in dig(pod, "spec", "initContainers") or () if c.get("restartPolicy") == "Always"}
    total = len(dig(pod, "spec", "containers") or ()) + len(sidecars)
    statuses = [s for s in dig(pod, "status", "initContainerStatuses") or () if s.get("name") in sidecars]
    statuses += dig(pod, "status", "containerStatuses") or []
    return f"{sum(1 for s in statuses if s.get('ready'))}/{total}"


def _restarts(pod: JSON, now: float) -> str:
    statuses = dig(pod, "status", "containerStatuses") or ()
    total = sum(int(s.get("restartCount", 0)) for s in statuses)
    ends = [t for s in statuses if (t := dig(s, "lastState", "terminated", "finishedAt"))]
    return f"{total} ({since(max(ends), now)} ago)" if total and ends else str(total)


def _gates(pod: JSON, _: float) -> str:
    gates = dig(pod, "spec", "readinessGates") or ()
    if not gates:
        return NONE
    true = {c.get("type") for c in dig(pod, "status", "conditions") or () if c.get("status") == "True"}
    return f"{sum(1 for gate in gates if gate.get('conditionType') in true)}/{len(gates)}"


COLUMNS = (
    NAME,
    Column("Ready", _ready),
    Column("Status", status),
    Column("Restarts", _restarts),
    AGE,
    Column("IP", at("status", "podIP"), priority=1),
    Column("Node", at("spec", "nodeName"), priority=1),
    Column("Nominated Node", at("status", "nominatedNodeName"), priority=1),
    Column("Readiness Gates", _gates, priority=1),
)
