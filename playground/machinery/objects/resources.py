"""
Amounts of any resource, as kube-scheduler and kubelet count them: CPU in thousandths, everything else in units.

One vocabulary for the core and the extended resources, so that an unknown resource is counted like any other. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from contract.model import NodeState, Taint
from contract.scheduling import needs as scheduling
from contract.scheduling.nodefilters import resources
from playground.api.kinds.values import JSON

Amounts: TypeAlias = dict[str, int]
HostPort: TypeAlias = tuple[str, str, int]

PODS = "pods"
CORE = (scheduling.CPU, scheduling.MEMORY, scheduling.STORAGE)
NOT_READY = Taint("node.kubernetes.io/not-ready", "", "NoSchedule")
UNSCHEDULABLE = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")


def is_extended(name: str) -> bool:
    """Whether a resource is outside the `kubernetes.io` domain, as those of device plugins and agents are."""
    return "/" in name and "kubernetes.io/" not in name


def amount(name: str, value: object) -> int:
    """One quantity in the unit of its resource. Raises `quantity.BadQuantity`."""
    return resources.amount(name, value)


def amounts(quantities: Mapping[str, Any] | None) -> Amounts:
    """A map of quantities, such as a node's allocatable, as amounts."""
    return {name: amount(name, value) for name, value in (quantities or {}).items()}


def requests_of(pod: Mapping[str, Any]) -> Amounts:
    """A pod's effective requests of every resource that it names, and one of `pods`."""
    return {PODS: 1, **resources.requested(pod.get("spec") or {}, resources.is_any)}


def shortages(wanted: Amounts, free: Amounts) -> list[str]:
    """The resources that do not suffice, in kube-scheduler's order: pods, CPU, memory, storage, then by name."""
    order = [PODS, *CORE, *sorted(set(wanted) - {PODS, *CORE})]
    return [name for name in order if wanted.get(name, 0) > 0 and wanted[name] > free.get(name, 0)]


@dataclass(frozen=True, slots=True)
class Holding:
    """The amounts that one pod uses on its node."""

    requests: Amounts
    ports: frozenset[HostPort] = frozenset()


@dataclass(slots=True)
class Account:
    """The amounts in use on one node, by pod. Booking a pod twice, or releasing an absent one, has no effect."""

    used: Amounts = field(default_factory=dict)
    held: dict[str, Holding] = field(default_factory=dict)
    _ports: dict[HostPort, int] = field(default_factory=dict)

    def book(self, uid: str, holding: Holding) -> None:
        if uid in self.held:
            return
        self.held[uid] = holding
        for name, much in holding.requests.items():
            self.used[name] = self.used.get(name, 0) + much
        for port in holding.ports:
            self._ports[port] = self._ports.get(port, 0) + 1

    def release(self, uid: str) -> bool:
        """Whether the pod held anything."""
        holding = self.held.pop(uid, None)
        if holding is None:
            return False
        for name, much in holding.requests.items():
            self.used[name] -= much
        for port in holding.ports:
            self._ports[port] -= 1
            if not self._ports[port]:
                del self._ports[port]
        return True

    @property
    def ports(self) -> frozenset[HostPort]:
        return frozenset(self._ports)

    def free(self, allocatable: Amounts) -> Amounts:
        """The free amounts of `allocatable`; negative where more is booked than the node has."""
        return {name: much - self.used.get(name, 0) for name, much in allocatable.items()}


def holding_of(pod: Mapping[str, Any], needs: scheduling.PodNeeds) -> Holding:
    return Holding(requests_of(pod), needs.host_ports)


def is_ready(node: Mapping[str, Any]) -> bool:
    """Whether the node's kubelet recently reported that it is ready."""
    conditions = (node.get("status") or {}).get("conditions") or []
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def node_state(node: Mapping[str, Any], ports: Iterable[HostPort] = ()) -> NodeState:
    """The part of a node that decides about selectors, taints and host ports."""
    metadata, spec = node["metadata"], node.get("spec") or {}
    return NodeState(
        name=metadata["name"],
        labels=dict(metadata.get("labels") or {}),
        taints=tuple(
            Taint(taint.get("key", ""), taint.get("value") or "", taint.get("effect", ""))
            for taint in spec.get("taints") or []
        ),
        cordoned=bool(spec.get("unschedulable")),
        ready=is_ready(node),
        host_ports=frozenset(ports),
    )


def allocatable_of(node: Mapping[str, Any]) -> Amounts:
    return amounts((node.get("status") or {}).get("allocatable"))


def with_extended(node: JSON) -> dict[str, str | None]:
    """
    The changes that make the extended resources in the node's allocatable equal to those in its capacity.

    Kubelet does this at every status update; a name whose value is None is to be removed.
    """
    status = node.get("status") or {}
    capacity, allocatable = status.get("capacity") or {}, status.get("allocatable") or {}
    changes: dict[str, str | None] = {
        name: value for name, value in capacity.items() if is_extended(name) and allocatable.get(name) != value
    }
    changes.update({name: None for name in allocatable if is_extended(name) and name not in capacity})
    return changes
