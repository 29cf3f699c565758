"""
The status that a kubelet reports of a pod: phase, conditions, one entry for each container.

Pure: the result of each container goes in, the `.status` comes out. Source: "Pod Lifecycle" in the Kubernetes
documentation; init containers have always run to their end here, and sidecars run alongside the others.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from contract.scheduling.needs import is_sidecar
from playground.api.kinds.values import JSON
from playground.machinery.objects import conditions

OWN_CONDITIONS = frozenset(("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"))
"""The types of conditions that a kubelet writes; it leaves all others unchanged."""
RESTARTING = "CrashLoopBackOff"
"""The reason of a waiting container that ran before."""


@dataclass(frozen=True, slots=True)
class Running:
    """The container runs since this time; RFC 3339."""

    since: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why the container does not run."""

    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """A container that ended by itself."""

    exit_code: int
    since: str
    at: str


State = Running | Waiting | Ended


@dataclass(frozen=True, slots=True)
class Placed:
    """Where the pod runs."""

    pod_ip: str
    host_ip: str
    started: str


def status_of(
    pod: JSON, states: Mapping[str, State], placed: Placed, now: str, *, restarts: Mapping[str, int] | None = None
) -> JSON:
    """The pod's whole status, from the states of all its containers by name."""
    spec, old, counts, uid = pod["spec"], pod.get("status") or {}, restarts or {}, pod["metadata"].get("uid", "")
    inits, apps = spec.get("initContainers") or [], spec["containers"]
    phase = phase_of(states[container["name"]] for container in apps)
    lasting = [c["name"] for c in (*(c for c in inits if is_sidecar(c)), *apps)]
    unready = [name for name in lasting if not isinstance(states[name], Running)]
    initialized = not any(isinstance(states[container["name"]], Waiting) for container in inits)
    ready = not unready
    ended = phase in ("Succeeded", "Failed")
    not_ready = "PodCompleted" if phase == "Succeeded" else "PodFailed" if ended else "ContainersNotReady"
    why = "" if ready or ended else f"containers with unready status: [{' '.join(unready)}]"
    wanted = [
        conditions.condition("PodReadyToStartContainers", not ended),
        conditions.condition(
            "Initialized",
            initialized,
            "PodCompleted" if phase == "Succeeded" else "" if initialized else "ContainersNotInitialized",
        ),
        conditions.condition("Ready", ready, "" if ready else not_ready, why),
        conditions.condition("ContainersReady", ready, "" if ready else not_ready, why),
        conditions.condition("PodScheduled", True),
    ]
    return {
        **{key: value for key, value in old.items() if key not in ("reason", "message")},
        "phase": phase,
        "conditions": conditions.merged(old.get("conditions"), wanted, now),
        "hostIP": placed.host_ip,
        "hostIPs": [{"ip": placed.host_ip}],
        "podIP": placed.pod_ip,
        "podIPs": [{"ip": placed.pod_ip}],
        "startTime": placed.started,
        **({"initContainerStatuses": [_init(c, states[c["name"]], counts, uid) for c in inits]} if inits else {}),
        "containerStatuses": [_container(c, states[c["name"]], counts, uid) for c in apps],
    }


def phase_of(states: Iterable[State]) -> str:
    """Pending until every container has started once; Succeeded or Failed when all have ended."""
    seen = [Running("") if isinstance(state, Waiting) and state.reason == RESTARTING else state for state in states]
    if all(isinstance(state, Ended) for state in seen):
        return "Failed" if any(isinstance(s, Ended) and s.exit_code for s in seen) else "Succeeded"
    if any(isinstance(state, Waiting) for state in seen):
        return "Pending"
    return "Running"


def past_deadline() -> JSON:
    """The status of a pod that was active for longer than `activeDeadlineSeconds`."""
    message = "Pod was active on the node longer than the specified deadline"
    return {"phase": "Failed", "reason": "DeadlineExceeded", "message": message}


def rejected(pod: JSON, reason: str, message: str, now: str) -> JSON:
    """The status of a pod that its node rejected."""
    old = pod.get("status") or {}
    return {**old, "phase": "Failed", "reason": reason, "message": message, "startTime": now}


def own(status: JSON) -> JSON:
    """The part of a status that a kubelet writes: with the conditions of its own types only."""
    found = [one for one in status.get("conditions") or [] if one.get("type") in OWN_CONDITIONS]
    rest = {key: value for key, value in status.items() if key != "conditions"}
    return {**rest, "conditions": found} if found else rest


def _init(container: JSON, state: State, restarts: Mapping[str, int], uid: str) -> JSON:
    return {**_container(container, state, restarts, uid), "ready": not isinstance(state, Waiting)}


def _container(container: JSON, state: State, restarts: Mapping[str, int], uid: str) -> JSON:
    name = container["name"]
    running = isinstance(state, Running)
    image = container.get("image", "")
    status: JSON = {
        "name": name,
        "image": image,
        "imageID": "" if isinstance(state, Waiting) else f"playground://{image}",
        **_id(uid, name, state, restarts.get(name, 0)),
        "ready": running,
        "started": running,
        "restartCount": restarts.get(name, 0),
        "state": _state(state),
        "lastState": {},
    }
    return status


def _id(uid: str, name: str, state: State, restarts: int) -> dict[str, str]:
    """A container that has been started has an id, 64 hexadecimal digits; each start has another."""
    started = not isinstance(state, Waiting) or restarts
    digest = hashlib.sha256(f"{uid}/{name}/{restarts}".encode()).hexdigest()
    return {"containerID": f"playground://{digest}"} if started else {}


def _state(state: State) -> dict[str, Any]:
    match state:
        case Running(since):
            return {"running": {"startedAt": since}}
        case Waiting(reason, message):
            return {"waiting": {"reason": reason, **({"message": message} if message else {})}}
        case Ended(exit_code, since, at):
            reason = "Error" if exit_code else "Completed"
            return {"terminated": {"exitCode": exit_code, "reason": reason, "startedAt": since, "finishedAt": at}}
