"""
The columns that `kubectl get` shows for each kind. As in a real API server, the server computes them.

A column is a name, a type, a priority (1: only with `-o wide`) and a function of the object and the time. Pods, with
their own rules, are in `podcolumns`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from playground.api.kinds.values import JSON, dig, seconds_of

Cell = Callable[[JSON, float], Any]
UNKNOWN, NONE = "<unknown>", "<none>"


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    cell: Cell
    type: str = "string"
    priority: int = 0
    format: str = ""

    def definition(self) -> JSON:
        return {
            "name": self.name,
            "type": self.type,
            "format": self.format,
            "description": self.name,
            "priority": self.priority,
        }


def duration(seconds: float) -> str:
    """An age as kubectl writes it: two units at most, coarser as it grows."""
    s = int(seconds)
    if s < 0:
        return "0s"
    if s < 120:
        return f"{s}s"
    minutes, hours, days = s // 60, s // 3600, s // 86400
    if minutes < 10:
        return f"{minutes}m{s % 60}s" if s % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if hours < 192:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    return f"{days}d" if days < 730 else f"{days // 365}y"


def since(text: str | None, now: float) -> str:
    then = seconds_of(text)
    return UNKNOWN if then is None else duration(now - then)


def at(*path: str, otherwise: Any = NONE) -> Cell:
    def cell(value: JSON, _: float) -> Any:
        found = dig(value, *path)
        return otherwise if found in (None, "") else found

    return cell


def count(*path: str) -> Cell:
    return lambda value, _: len(dig(value, *path) or ())


def number(*path: str) -> Cell:
    return at(*path, otherwise=0)


def age(value: JSON, now: float) -> str:
    return since(dig(value, "metadata", "creationTimestamp"), now)


def ratio(have: Cell, want: Cell) -> Cell:
    return lambda value, now: f"{have(value, now)}/{want(value, now)}"


NAME = Column("Name", at("metadata", "name"), format="name")
AGE = Column("Age", age)


def _containers(field: str) -> Cell:
    def cell(value: JSON, _: float) -> str:
        spec = dig(value, "spec", "template", "spec", "containers") or ()
        return ",".join(str(container.get(field, "")) for container in spec)

    return cell


def _selector(value: JSON, _: float) -> str:
    selector = dig(value, "spec", "selector") or {}
    labels = selector.get("matchLabels", selector if "matchExpressions" not in selector else {})
    return ",".join(f"{key}={labels[key]}" for key in sorted(labels)) or NONE


_WORKLOAD = (
    Column("Containers", _containers("name"), priority=1),
    Column("Images", _containers("image"), priority=1),
    Column("Selector", _selector, priority=1),
)


def _node_status(value: JSON, _: float) -> str:
    ready = [c for c in dig(value, "status", "conditions") or () if c.get("type") == "Ready"]
    state = "Unknown" if not ready else "Ready" if ready[0].get("status") == "True" else "NotReady"
    return state + (",SchedulingDisabled" if dig(value, "spec", "unschedulable") else "")


_ROLE = "node-role.kubernetes.io/"


def _node_roles(value: JSON, _: float) -> str:
    labels = dig(value, "metadata", "labels") or {}
    return ",".join(sorted(key.removeprefix(_ROLE) for key in labels if key.startswith(_ROLE))) or NONE


def _node_address(kind: str) -> Cell:
    def cell(value: JSON, _: float) -> str:
        found = [a.get("address", "") for a in dig(value, "status", "addresses") or () if a.get("type") == kind]
        return found[0] if found else NONE

    return cell


def _node_info(field: str) -> Cell:
    return at("status", "nodeInfo", field, otherwise=UNKNOWN)


def _job_status(value: JSON, _: float) -> str:
    conditions = {c.get("type"): c.get("status") for c in dig(value, "status", "conditions") or ()}
    for name, shown in (("Complete", "Complete"), ("Failed", "Failed"), ("Suspended", "Suspended")):
        if conditions.get(name) == "True":
            return shown
    return "Terminating" if dig(value, "metadata", "deletionTimestamp") else "Running"


def _job_duration(value: JSON, now: float) -> str:
    start, end = (seconds_of(dig(value, "status", field)) for field in ("startTime", "completionTime"))
    return "" if start is None else duration((now if end is None else end) - start)


def _event_seen(value: JSON, now: float) -> str:
    last = value.get("lastTimestamp") or value.get("eventTime") or value.get("firstTimestamp")
    return since(last, now)


def _event_object(value: JSON, _: float) -> str:
    about = value.get("involvedObject") or {}
    return f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"


def _service_ports(value: JSON, _: float) -> str:
    ports = dig(value, "spec", "ports") or ()
    return ",".join(f"{port.get('port')}/{port.get('protocol', 'TCP')}" for port in ports) or NONE


def _endpoints(value: JSON, _: float) -> str:
    found = [
        f"{address.get('ip')}:{port.get('port')}"
        for subset in value.get("subsets") or ()
        for address in subset.get("addresses") or ()
        for port in subset.get("ports") or ()
    ]
    return ",".join(found) or NONE


def _quota(field: str) -> Cell:
    """`used/hard` of every resource that is, or is not, a limit."""

    def cell(value: JSON, _: float) -> str:
        hard, used = dig(value, "status", "hard") or {}, dig(value, "status", "used") or {}
        chosen = [name for name in sorted(hard) if name.startswith("limits.") is (field == "limits")]
        return ", ".join(f"{name}: {used.get(name, 0)}/{hard[name]}" for name in chosen)

    return cell


def _crd_created(value: JSON, _: float) -> str:
    return str(dig(value, "metadata", "creationTimestamp"))


def _status_phase(value: JSON, _: float) -> str:
    return str(dig(value, "status", "phase") or "")


COLUMNS: Mapping[str, tuple[Column, ...]] = {
    "nodes": (
        NAME,
        Column("Status", _node_status),
        Column("Roles", _node_roles),
        AGE,
        Column("Version", at("status", "nodeInfo", "kubeletVersion", otherwise="")),
        Column("Internal-IP", _node_address("InternalIP"), priority=1),
        Column("External-IP", _node_address("ExternalIP"), priority=1),
        Column("OS-Image", _node_info("osImage"), priority=1),
        Column("Kernel-Version", _node_info("kernelVersion"), priority=1),
        Column("Container-Runtime", _node_info("containerRuntimeVersion"), priority=1),
    ),
    "namespaces": (NAME, Column("Status", _status_phase), AGE),
    "deployments.apps": (
        NAME,
        Column("Ready", ratio(number("status", "readyReplicas"), number("spec", "replicas"))),
        Column("Up-to-date", number("status", "updatedReplicas"), "integer"),
        Column("Available", number("status", "availableReplicas"), "integer"),
        AGE,
        *_WORKLOAD,
    ),
    "replicasets.apps": (
        NAME,
        Column("Desired", number("spec", "replicas"), "integer"),
        Column("Current", number("status", "replicas"), "integer"),
        Column("Ready", number("status", "readyReplicas"), "integer"),
        AGE,
        *_WORKLOAD,
    ),
    "statefulsets.apps": (
        NAME,
        Column("Ready", ratio(number("status", "readyReplicas"), number("spec", "replicas"))),
        AGE,
        *_WORKLOAD[:2],
    ),
    "daemonsets.apps": (
        NAME,
        Column("Desired", number("status", "desiredNumberScheduled"), "integer"),
        Column("Current", number("status", "currentNumberScheduled"), "integer"),
        Column("Ready", number("status", "numberReady"), "integer"),
        Column("Up-to-date", number("status", "updatedNumberScheduled"), "integer"),
        Column("Available", number("status", "numberAvailable"), "integer"),
        AGE,
        *_WORKLOAD,
    ),
    "jobs.batch": (
        NAME,
        Column("Status", _job_status),
        Column("Completions", ratio(number("status", "succeeded"), at("spec", "completions", otherwise=1))),
        Column("Duration", _job_duration),
        AGE,
        *_WORKLOAD,
    ),
    "events": (
        Column("Last Seen", _event_seen),
        Column("Type", at("type", otherwise="")),
        Column("Reason", at("reason", otherwise="")),
        Column("Object", _event_object),
        Column("Message", lambda value, _: str(value.get("message", "")).strip()),
        Column("Count", at("count", otherwise=1), "integer", 1),
        Column("Name", at("metadata", "name"), priority=1, format="name"),
    ),
    "services": (
        NAME,
        Column("Type", at("spec", "type")),
        Column("Cluster-IP", at("spec", "clusterIP")),
        Column("External-IP", lambda *_: NONE),
        Column("Port(s)", _service_ports),
        AGE,
        Column("Selector", _selector, priority=1),
    ),
    "endpoints": (NAME, Column("Endpoints", _endpoints), AGE),
    "configmaps": (NAME, Column("Data", count("data")), AGE),
    "secrets": (NAME, Column("Type", at("type")), Column("Data", count("data")), AGE),
    "serviceaccounts": (NAME, AGE),
    "resourcequotas": (NAME, Column("Request", _quota("requests")), Column("Limit", _quota("limits")), AGE),
    "leases.coordination.k8s.io": (NAME, Column("Holder", at("spec", "holderIdentity", otherwise="")), AGE),
    "priorityclasses.scheduling.k8s.io": (
        NAME,
        Column("Value", number("value"), "integer"),
        Column("Global-Default", lambda value, _: bool(value.get("globalDefault")), "boolean"),
        AGE,
        Column("PreemptionPolicy", at("preemptionPolicy", otherwise="PreemptLowerPriority")),
    ),
    "poddisruptionbudgets.policy": (
        NAME,
        Column("Min Available", at("spec", "minAvailable", otherwise="N/A")),
        Column("Max Unavailable", at("spec", "maxUnavailable", otherwise="N/A")),
        Column("Allowed Disruptions", number("status", "disruptionsAllowed"), "integer"),
        AGE,
    ),
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": (NAME, Column("Webhooks", count("webhooks")), AGE),
    "validatingwebhookconfigurations.admissionregistration.k8s.io": (NAME, Column("Webhooks", count("webhooks")), AGE),
    "validatingadmissionpolicies.admissionregistration.k8s.io": (
        NAME,
        Column("Validations", count("spec", "validations")),
        Column("ParamKind", at("spec", "paramKind", "kind", otherwise="<unset>")),
        AGE,
    ),
    "validatingadmissionpolicybindings.admissionregistration.k8s.io": (
        NAME,
        Column("PolicyName", at("spec", "policyName")),
        Column("ParamRef", at("spec", "paramRef", "name", otherwise="<unset>")),
        AGE,
    ),
    "customresourcedefinitions.apiextensions.k8s.io": (NAME, Column("Created At", _crd_created)),
    "roles.rbac.authorization.k8s.io": (NAME, Column("Created At", _crd_created)),
    "clusterroles.rbac.authorization.k8s.io": (NAME, Column("Created At", _crd_created)),
}
GENERIC = (NAME, AGE)
