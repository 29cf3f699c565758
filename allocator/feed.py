"""
Watch events into the controller: the informers, and the reading of what they bring.

Ten lines a kind and no decision. An object that cannot be read is logged and counts as absent, since a damaged GPUNode
must cost its own node's GPUs and nobody else's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from allocator import nodes
from allocator.claims import feed as claims
from allocator.claims import objects
from allocator.controller import Controller
from allocator.mandate import KEPT_OUT
from contract import keptout, names, pods
from contract.inventories import inventory_from_object
from contract.model import Inventory
from contract.reading import Malformed
from runtime import kubepaths
from runtime.kube import Kube
from runtime.watch import Event, Gone, Informer, Part, Put, Replaced

JSON = dict[str, Any]
log = logging.getLogger(__name__)


class Feed:
    """The informers. `seen` is told of every pod that is new or changed."""

    def __init__(
        self,
        kube: Kube,
        controller: Controller,
        *,
        on_restart: Callable[[str, str], None],
        seen: Callable[[JSON], None] = lambda pod: None,
    ) -> None:
        self._kube, self._controller = kube, controller
        self._on_restart, self._seen = on_restart, seen
        gpunodes = kubepaths.path(names.GPUNODE_GROUP_VERSION, names.GPUNODE_PLURAL)
        self._others = (
            self._informer("gpunodes", gpunodes, lambda event: _gpunode(controller, event), None),
            self._informer("nodes", kubepaths.path("v1", "nodes"), lambda event: _node(controller, event), nodes.trim),
            self._informer(
                KEPT_OUT,
                kubepaths.configmaps(keptout.NAMESPACE),
                lambda event: _kept_out(controller, event),
                keptout.trim,
            ),
        )
        self._claims = tuple(self._claims_informer(plural) for plural in claims.KINDS)
        self._booked = self._booked_informers(None)

    @property
    def informers(self) -> tuple[Informer, ...]:
        """Those that feed the controller now."""
        return (*self._others, *self._claims, *self._booked)

    def start(self) -> None:
        """Start them; at most once."""
        for informer in self.informers:
            informer.start()

    def stop(self) -> None:
        """Stop them."""
        for informer in self.informers:
            informer.stop()

    def relist(self, tenure: int | None) -> None:
        """
        Read anew what is booked, pods and ElasticGPUs, for a leadership that has begun before this call; None where
        there is no election.

        By new informers in place of the old ones, not by lists beside them: only within one stream are a list and the
        events after it in order.
        """
        self._retired.set()
        for informer in self._booked:
            informer.stop()
        self._booked = self._booked_informers(tenure)
        for informer in self._booked:
            informer.start()

    def _booked_informers(self, tenure: int | None) -> tuple[Informer, ...]:
        retired = self._retired = threading.Event()

        def pods_event(event: Event) -> None:
            if not retired.is_set():  # one that could not be stopped in time must not speak any more
                _pod(self._controller, event, self._seen, tenure)

        def shares_event(event: Event) -> None:
            if not retired.is_set():
                claims.handle(self._controller, objects.SHARES, event, tenure)

        return (
            self._informer("pods", kubepaths.pods(), pods_event, pods.trim, parts=True),
            claims.informer(self._kube, objects.SHARES, shares_event, self._restarted(objects.SHARES)),
        )

    def _claims_informer(self, plural: str) -> Informer:
        def handle(event: Event) -> None:
            claims.handle(self._controller, plural, event)

        return claims.informer(self._kube, plural, handle, self._restarted(plural))

    def _restarted(self, name: str) -> Callable[[str], None]:
        return lambda why: self._on_restart(name, why)

    def _informer(
        self,
        name: str,
        path: str,
        handler: Callable[[Event], None],
        trim: Callable[[JSON], JSON] | None,
        *,
        parts: bool = False,
    ) -> Informer:
        restarted = self._restarted(name)
        return Informer(self._kube, path, handler, name=name, trim=trim, on_restart=restarted, parts=parts)


def _pod(controller: Controller, event: Event, seen: Callable[[JSON], None], tenure: int | None) -> None:
    match event:
        case Part(items, first, last):
            controller.replace_pods(items, first=first, last=last, tenure=tenure)
            for pod in items:
                seen(pod)
        case Put(pod):
            controller.put_pod(pod)
            seen(pod)
        case Gone(pod):
            controller.drop_pod(pods.uid(pod))


def _node(controller: Controller, event: Event) -> None:
    match event:
        case Replaced(items):
            controller.replace_nodes(nodes.facts(item) for item in items)
        case Put(node):
            controller.put_node(nodes.facts(node))
        case Gone(node):
            controller.drop_node(nodes.facts(node).name)


def _gpunode(controller: Controller, event: Event) -> None:
    match event:
        case Replaced(items):
            controller.replace_inventories(_readable(items))
        case Put(gpunode):
            found = tuple(_readable([gpunode]))
            if found:
                controller.put_inventory(found[0])
            else:
                controller.drop_inventory(_name(gpunode))
        case Gone(gpunode):
            controller.drop_inventory(_name(gpunode))


def _kept_out(controller: Controller, event: Event) -> None:
    match event:
        case Replaced(items):
            controller.replace_kept_out(found for found in map(keptout.read, items) if found is not None)
        case Put(configmap):
            found = keptout.read(configmap)
            if found is not None:
                controller.put_kept_out(found.node, found)
        case Gone(configmap):
            found = keptout.read(configmap)
            if found is not None:
                controller.put_kept_out(found.node, None)


def _readable(items: Iterable[JSON]) -> Iterator[Inventory]:
    for item in items:
        try:
            yield inventory_from_object(item)
        except Malformed as error:
            log.warning("gpunode unreadable", extra={"node": _name(item), "reason": str(error)})


def _name(gpunode: JSON) -> str:
    return str((gpunode.get("metadata") or {}).get("name", ""))
