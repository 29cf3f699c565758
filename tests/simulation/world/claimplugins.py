"""
Agents as kubelet plugins, without gRPC: every kubelet has registered its agent and asks it for the devices of claims.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from contract.encoding import resourceclaims
from contract.encoding.reading import Malformed
from contract.model import Inventory
from nodeagent.delivering import BuildWay, Site, by_toolkit
from nodeagent.dra.delivery import ClaimDelivery
from nodeagent.isolation.mechanism import Delivered, DeliveryWay
from playground.api.kinds.values import JSON
from playground.machinery.client.claims import Devices

CLAIMS = "resourceclaims.resource.k8s.io"
_KIND = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class _Registered:
    """What kubelet reports about the plugin."""

    registered: bool = True
    why: str = ""


def _by_claims(site: Site) -> DeliveryWay:
    """Delivery by ResourceClaims if the Node's label says so; the vendor's tools have described the cards."""

    def conclude(found: Delivered, inventory: Inventory, now: float, labels: Mapping[str, str]) -> Delivered:
        return ClaimDelivery(_Registered()).conclude(replace(found, kind=_KIND), inventory, now, labels)

    return DeliveryWay(conclude)


WAYS: tuple[BuildWay, ...] = (by_toolkit, _by_claims)


class ClaimPlugins:
    """The `Plugins` of kubelets. claim: reads a claim by namespace and name. runs: whether the agent of a node runs."""

    def __init__(self, claim: Callable[[str, str], JSON | None], runs: Callable[[str], bool]) -> None:
        self._claim = claim
        self._runs = runs

    def prepare(self, node: str, namespace: str, uid: str, name: str) -> Devices | str:
        """See `Plugins`."""
        if not self._runs(node):
            return "no DRA driver is registered"
        try:
            found = resourceclaims.prepared(self._claim(namespace, name) or {}, uid=uid, node=node)
        except Malformed as error:
            return str(error)
        given: dict[str, tuple[str, ...]] = {}
        for each in found:
            given[each.request] = (*given.get(each.request, ()), *each.cdi)
        return given

    def unprepare(self, node: str, namespace: str, uid: str, name: str) -> str:
        """See `Plugins`."""
        return "" if self._runs(node) else "no DRA driver is registered"
