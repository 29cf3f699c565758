"""
The table of the ways in which GPUs reach containers, each built from the agent's settings.

Must not: conclude anything itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.dra.delivery import ClaimDelivery
from nodeagent.dra.health import HealthWatch
from nodeagent.dra.plugin import ClaimPlugin, UnreadableClaim
from nodeagent.gpus.observation import Observation
from nodeagent.isolation import delivery
from nodeagent.isolation.cards import Cards
from nodeagent.isolation.mechanism import DeliveryWay
from nodeagent.isolation.probing import Prober, by_runtime
from nodeagent.settings import AgentSettings
from runtime.kubernetes.client import JSON, Kube, KubeError
from runtime.kubernetes.paths import resourceclaims
from runtime.settings import SettingsError

if TYPE_CHECKING:
    from nodeagent.dra.server import PluginServer

_CLAIM_TIMEOUT = 5.0
"""Seconds. Kubelet gives a plugin 45 s and retries; a pod's start must not wait for an unavailable server."""


@dataclass(frozen=True, slots=True)
class Site:
    """The inputs for building a way. `latest`: the last look at the GPUs. `changed`: wakes the publisher."""

    kube: Kube
    settings: AgentSettings
    latest: Callable[[], Observation | None]
    changed: Callable[[], None]


def by_toolkit(site: Site) -> DeliveryWay:
    """The vendor's container runtime, by its configuration files, or by the setting."""
    settings = site.settings
    prober = Prober(
        site.kube,
        root=Path(settings.host_root) if settings.host_root else None,
        override=delivery.parse(settings.delivery) if settings.delivery else None,
        handlers=settings.runtime_handlers,
        every=settings.pace.heartbeat,
    )
    return by_runtime(prober)


def by_claims(site: Site) -> DeliveryWay:
    """ResourceClaims. Raises `SettingsError` if gRPC is not installed and the agent must be a kubelet plugin."""
    cards = _cards(site) if site.settings.driver_folder else None
    if not site.settings.kubelet:
        return DeliveryWay(ClaimDelivery(None, cards).conclude)
    health = HealthWatch(site.latest, node=site.settings.node)
    plugin = kubelet_plugin(site, health)
    return DeliveryWay(ClaimDelivery(plugin, cards).conclude, health.wake, {"kubelet-plugin": plugin.run})


BuildWay = Callable[[Site], DeliveryWay]
DELIVERY: tuple[BuildWay, ...] = (by_toolkit, by_claims)
"""All ways, in the order in which they conclude."""


def kubelet_plugin(site: Site, health: HealthWatch) -> PluginServer:
    """The agent as a kubelet plugin. Raises `SettingsError` where gRPC is not installed."""
    try:
        from nodeagent.dra.server import PluginPaths, PluginServer
    except ImportError as error:
        raise SettingsError(["kubelet: gRPC is not installed; install the package's extra `dra`"]) from error

    def read(namespace: str, name: str) -> JSON:
        try:
            return site.kube.get(resourceclaims(namespace, name), timeout=_CLAIM_TIMEOUT)
        except KubeError as error:
            raise UnreadableClaim(str(error)) from error

    files = PluginPaths(Path(site.settings.kubelet))
    claims = ClaimPlugin(read, node=site.settings.node, checkpoint=files.checkpoint)
    return PluginServer(claims, files, health, changed=site.changed)


def _cards(site: Site) -> Cards:
    settings = site.settings
    return Cards(
        site.latest,
        folder=Path(settings.limiters.cdi),
        driver=settings.driver_folder,
        devices=Path(settings.host_root) / "dev",
        proc=Path(settings.host_root) / "proc",
    )
