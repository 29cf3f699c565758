"""
Reads the machine's files and the cluster's RuntimeClasses periodically, to conclude how GPUs reach containers.

Both may change while the agent runs (an upgrade of the toolkit, an operator that removes its classes), without an
event.

Must not: conclude anything itself (`nodeagent.isolation.delivery` does).
"""

from __future__ import annotations

from pathlib import Path

from contract import kinds
from contract.model import Delivery
from nodeagent.isolation import delivery
from nodeagent.isolation.host import read_files
from nodeagent.isolation.mechanism import Delivered, DeliveryWay
from runtime.kubernetes.client import Kube, KubeError
from runtime.kubernetes.paths import runtimeclasses


class Prober:
    """
    The delivery of this node. `root`: where the host's root, or the needed part of it, is mounted; None: nowhere, and
    the delivery is unknown. `override` counts instead. `handlers`: names of NVIDIA's runtime. `every`: seconds between
    two readings. One thread uses it.
    """

    def __init__(
        self,
        kube: Kube,
        *,
        root: Path | None,
        override: Delivery | None = None,
        handlers: tuple[str, ...] = delivery.HANDLERS,
        every: float = 300.0,
    ) -> None:
        self._handlers = handlers
        self._kube = kube
        self._root = root
        self._override = override
        self._every = every
        self._known: Delivery | None = None
        self._kind: str | None = None
        self._read_at: float | None = None

    def delivery(self, now: float) -> Delivery | None:
        """The last conclusion, which stays while the API server is unavailable. `now`: seconds of any clock."""
        if self._override is not None or self._root is None:
            return self._override
        if self._read_at is None or not 0 <= now - self._read_at < self._every:
            try:
                found = self._kube.list(runtimeclasses(), of=kinds.RUNTIMECLASSES).items
            except KubeError:
                return self._known
            classes = {item["metadata"]["name"]: str(item.get("handler", "")) for item in found}
            folders = (delivery.CONTAINERD, delivery.CRIO, *delivery.HOOKS, *delivery.CDI)
            files = read_files(self._root, delivery.TOOLKIT, folders)
            self._known = delivery.conclude(files, classes, self._handlers)
            self._kind = delivery.described_kind(files)
            self._read_at = now
        return self._known

    @property
    def kind(self) -> str | None:
        """The CDI kind of the cards that any runtime can use, by the last reading; None where there is none."""
        return self._override.kind if self._override is not None and self._override.dra else self._kind


def by_runtime(prober: Prober) -> DeliveryWay:
    """Delivery by the container runtime, as it is set up."""
    return DeliveryWay(lambda found, inventory, now, labels: Delivered(prober.delivery(now), kind=prober.kind))
