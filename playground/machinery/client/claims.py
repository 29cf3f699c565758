"""
The devices that the ResourceClaims of a pod give its containers, as a kubelet determines them when the pod starts.

Every claim that the pod names must exist, be allocated and be reserved for the pod. The drivers of its devices return
the CDI devices. The rules are those of kubelet's DRA manager in release 1.36. Pure, except for the plugins.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from contract.scheduling import needs
from playground.api.kinds.values import JSON
from playground.machinery.client.client import Refused

Devices = Mapping[str, tuple[str, ...]]
"""Names of CDI devices, by the request of the claim or by container."""


class Plugins(Protocol):
    """The plugins that kubelets call."""

    def prepare(self, node: str, namespace: str, uid: str, name: str) -> Devices | str:
        """The devices of a claim by request; or, as text, why there are none."""
        ...

    def unprepare(self, node: str, namespace: str, uid: str, name: str) -> str:
        """Why a claim could not be unprepared; empty if it was."""
        ...


class NoPlugins:
    """No plugin is registered."""

    def prepare(self, node: str, namespace: str, uid: str, name: str) -> Devices | str:
        return "no DRA driver is registered"

    def unprepare(self, node: str, namespace: str, uid: str, name: str) -> str:
        return ""


def named_by(pod: JSON) -> dict[str, str]:
    """The claims that the pod names and those created for it from templates, by the pod's own names for them."""
    entries = pod["spec"].get("resourceClaims") or ()
    made = {
        each["name"]: each["resourceClaimName"]
        for each in (pod.get("status") or {}).get("resourceClaimStatuses") or ()
        if each.get("resourceClaimName")
    }
    return {
        entry["name"]: entry.get("resourceClaimName") or made[entry["name"]]
        for entry in entries
        if entry.get("resourceClaimName") or entry["name"] in made
    }


def devices_of(
    pod: JSON, node: str, read: Callable[[str], JSON | Refused], plugins: Plugins
) -> tuple[Devices, list[JSON]] | str:
    """
    The devices by container, and the claims that were prepared; or, as text, why the pod cannot start.

    `read` gives a claim of the pod's namespace.
    """
    namespace, uid = pod["metadata"]["namespace"], pod["metadata"]["uid"]
    missing = not_made(pod)
    if missing:
        return f"ResourceClaim for {missing} is not created yet"
    given: dict[tuple[str, str], tuple[str, ...]] = {}
    prepared = []
    for own, name in named_by(pod).items():
        claim = read(name)
        if isinstance(claim, Refused):
            return f"fetch ResourceClaim {name}: {claim.message}"
        status, claim_uid = claim.get("status") or {}, claim["metadata"]["uid"]
        if uid not in [each.get("uid") for each in status.get("reservedFor") or ()]:
            return f"pod {pod['metadata']['name']} ({uid}) is not allowed to use ResourceClaim {name} ({claim_uid})"
        results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
        if results:
            found = plugins.prepare(node, namespace, claim_uid, name)
            if isinstance(found, str):
                return found
            given.update({(own, request): devices for request, devices in found.items()})
            prepared.append(claim)
    return {container["name"]: _of(container, given) for container, _ in needs.containers(pod["spec"])}, prepared


def _of(container: JSON, given: Mapping[tuple[str, str], tuple[str, ...]]) -> tuple[str, ...]:
    found: list[str] = []
    for entry in (container.get("resources") or {}).get("claims") or ():
        for (own, request), devices in given.items():
            if own == entry["name"] and entry.get("request", request) == request:
                found += devices
    return tuple(found)


def not_made(pod: JSON) -> str:
    """The pod's own name for a claim that must still be created from a template; empty if there is none."""
    made = {each["name"] for each in (pod.get("status") or {}).get("resourceClaimStatuses") or ()}
    listed = pod["spec"].get("resourceClaims") or ()
    return next(
        (each["name"] for each in listed if each.get("resourceClaimTemplateName") and each["name"] not in made), ""
    )


def unallocated(pod: JSON, read: Callable[[str], JSON | Refused]) -> str:
    """Why kube-scheduler cannot place the pod yet: a claim does not exist or is not allocated. Empty if it can."""
    missing = not_made(pod)
    if missing:
        return f'waiting for resourceclaim "{missing}" to be created'
    for name in named_by(pod).values():
        claim = read(name)
        if isinstance(claim, Refused):
            return f'waiting for resourceclaim "{name}" to be created'
        if claim["metadata"].get("deletionTimestamp"):
            return f'resourceclaim "{name}" is being deleted'
        if not (claim.get("status") or {}).get("allocation"):
            return f"resource claim {name} is not allocated"
    return ""
