"""
Watch events into the controller: the informers, and the reading of what they bring.

Ten lines a kind and no decision. An object that cannot be read is logged and counts as absent, since a damaged GPUNode
must cost its own node's GPUs and nobody else's. A list of cards to be kept out that cannot be read keeps out all cards
of its node.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from allocator.cache import podinfo
from allocator.faults import Faulted, surfaced
from allocator.scheduler.core import Controller
from allocator.scheduler.events import (
    AgentsHeard,
    ExcludedGpusChanged,
    ExcludedGpusListed,
    HeldBeyondChanged,
    IdleSharesReported,
    InventoriesListed,
    InventoryChanged,
    InventoryDeleted,
    NamespacesLabelled,
    NodeChanged,
    NodeDeleted,
    NodesListed,
    PodDeleted,
    PodsReported,
    Relist,
    pods_listed,
)
from allocator.scheduler.leadership import KEPT_OUT, PODS
from contract import kinds, names, pods
from contract.encoding.reading import Malformed
from contract.kinds import ObjectKind
from contract.nodes import attributes, excluded
from contract.nodes.excluded import KeptOut
from contract.nodes.heartbeat import UNHEARD, heartbeat_of
from contract.nodes.idle import idle_from_object
from contract.nodes.inventories import inventory_from_object
from contract.nodes.reports import reports_from_object
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube
from runtime.kubernetes.watch import Deleted, Event, Informer, Part, Put, Replaced
from runtime.supervision import Workers

JSON = dict[str, Any]
T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FollowedCollection:
    """
    A kind that a feature follows, and that a cluster may lack: then nothing waits for it to be listed.

    `handle` is called with each event, and with the leadership for which the list was requested. `booked`: by its
    objects shares are taken, so they are listed again for each leadership.
    """

    name: str
    path: str
    of: ObjectKind
    handle: Callable[[Event, int | None], None]
    booked: bool = False


class Informers:
    """
    The informers. `seen` gets every pod that is new or changed.

    `kept_out`: whether lists of cards that an administrator keeps out are read, which needs a right of its own;
    without, they count as listed and empty. `follows`: what features follow.
    """

    def __init__(
        self,
        kube: Kube,
        controller: Controller,
        *,
        on_restart: Callable[[str, str], None],
        seen: Callable[[JSON], None] = lambda pod: None,
        workers: Workers | None = None,
        faulted: Faulted = surfaced,
        kept_out: bool = True,
        follows: Sequence[FollowedCollection] = (),
    ) -> None:
        self._workers = workers
        self._faulted = faulted
        self._kube = kube
        self._controller = controller
        self._kept_out = kept_out
        self._follows = follows
        self._on_restart = on_restart
        self._seen = seen
        gpunodes = paths.path(names.GPUNODE_GROUP_VERSION, names.GPUNODE_PLURAL)
        self._others: tuple[Informer, ...] = (
            self._informer("gpunodes", gpunodes, lambda event: _gpunode(controller, event, faulted), kinds.GPUNODES),
            self._informer(
                "nodes", paths.path("v1", "nodes"), lambda event: _node(controller, event, faulted), kinds.NODES
            ),
        )
        namespaces = _NamespaceLabels(controller)
        labels = self._informer("namespaces", paths.namespaces(), namespaces.handle, kinds.NAMESPACE_LABELS)
        self._others = (*self._others, labels)
        if kept_out:
            path = paths.configmaps(excluded.NAMESPACE)
            lists = self._informer(KEPT_OUT, path, lambda event: _kept_out(controller, event, faulted), kinds.KEPT_OUT)
            self._others = (*self._others, lists)
        self._others = (*self._others, *(self._of(each, None) for each in follows if not each.booked))
        self._pods, self._bookings = _Replaceable(self._follow_pods), _Replaceable(self._follow_bookings)

    @property
    def informers(self) -> tuple[Informer, ...]:
        """Those that feed the controller now."""
        return (*self._others, *self._pods.informers, *self._bookings.informers)

    def start(self) -> None:
        """Start them; at most once."""
        if not self._kept_out:
            self._controller.handle(ExcludedGpusListed(()))
        for informer in self.informers:
            informer.start()

    def stop(self) -> None:
        """Stop them."""
        for informer in self.informers:
            informer.stop()

    def relist(self, order: Relist) -> None:
        """Read again what is booked: what features book by and, if that is ordered, pods."""
        for each in (self._pods, self._bookings) if order.pods else (self._bookings,):
            each.replace(order.term)

    def _follow_pods(self, term: int | None, retired: threading.Event) -> tuple[Informer, ...]:
        def handle(event: Event) -> None:
            if not retired.is_set():
                _pod(self._controller, event, self._see, term)

        return (self._informer(PODS, paths.pods(), handle, kinds.PODS, parts=True),)

    def _follow_bookings(self, term: int | None, retired: threading.Event) -> tuple[Informer, ...]:
        return tuple(self._of(each, term, retired) for each in self._follows if each.booked)

    def _of(self, one: FollowedCollection, term: int | None, retired: threading.Event | None = None) -> Informer:
        def handle(event: Event) -> None:
            if retired is None or not retired.is_set():
                one.handle(event, term)

        return self._informer(one.name, one.path, handle, one.of, optional=True)

    def _see(self, pod: JSON) -> None:
        try:
            self._seen(pod)
        except Exception:
            self._faulted("upkeep", podinfo.named(pod)[1])

    def _restarted(self, name: str) -> Callable[[str], None]:
        return lambda why: self._on_restart(name, why)

    def _informer(
        self,
        name: str,
        path: str,
        handler: Callable[[Event], None],
        of: ObjectKind,
        *,
        parts: bool = False,
        optional: bool = False,
    ) -> Informer:
        return Informer(
            self._kube,
            path,
            handler,
            name=name,
            of=of,
            on_restart=self._restarted(name),
            parts=parts,
            optional=optional,
            workers=self._workers,
        )


class _Replaceable:
    """
    Informers that are replaced by new ones, which list again, for a leadership that has begun before.

    Lists alongside the old ones would not do: only within one stream are a list and the events after it in order.
    `make` gets the term of leadership, None if none has begun or there is no election, and an event: an informer that
    could not be stopped in time must not speak any more once it is set.
    """

    def __init__(self, make: Callable[[int | None, threading.Event], tuple[Informer, ...]]) -> None:
        self._make = make
        self._retired = threading.Event()
        self.informers = make(None, self._retired)

    def replace(self, term: int | None) -> None:
        """Stop them, and start new ones."""
        self._retired.set()
        for informer in self.informers:
            informer.stop()
        self._retired = threading.Event()
        self.informers = self._make(term, self._retired)
        for informer in self.informers:
            informer.start()


def _pod(controller: Controller, event: Event, seen: Callable[[JSON], None], term: int | None) -> None:
    match event:
        case Part(items, first, last):
            controller.handle(pods_listed(items, first=first, last=last, term=term))
            for pod in items:
                seen(pod)
        case Put(pod):
            controller.handle(podinfo.pod_event(pod))
            seen(pod)
        case Deleted(pod):
            controller.handle(PodDeleted(podinfo.named(pod)[0]))


class _NamespaceLabels:
    """The labels of all namespaces, sent to the controller as a whole with each change: they seldom change."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._labels: dict[str, Mapping[str, str]] = {}

    def handle(self, event: Event) -> None:
        """One event."""
        match event:
            case Replaced(items):
                self._labels = dict(map(_labels_of, items))
            case Put(namespace):
                name, labels = _labels_of(namespace)
                if self._labels.get(name) == labels:
                    return
                self._labels = {**self._labels, name: labels}
            case Deleted(namespace):
                self._labels = {name: found for name, found in self._labels.items() if name != _name(namespace)}
        self._controller.handle(NamespacesLabelled(self._labels))


def _labels_of(namespace: JSON) -> tuple[str, Mapping[str, str]]:
    return _name(namespace), (namespace.get("metadata") or {}).get("labels") or {}


def _each(items: Iterable[JSON], read: Callable[[JSON], T], what: str, faulted: Faulted) -> Iterator[T]:
    """The results of `read` for each; none for one that causes an error."""
    for item in items:
        try:
            yield read(item)
        except Malformed as error:
            log.warning(f"{what} unreadable", extra={"node": _name(item), "reason": str(error)})
        except Exception:
            faulted(what, _name(item))


def _node(controller: Controller, event: Event, faulted: Faulted) -> None:
    match event:
        case Replaced(items):
            controller.handle(NodesListed(tuple(_each(items, attributes.facts, "node", faulted))))
        case Put(node):
            for facts in _each([node], attributes.facts, "node", faulted):
                controller.handle(NodeChanged(facts))
                return
            controller.handle(NodeDeleted(_name(node)))
        case Deleted(node):
            controller.handle(NodeDeleted(_name(node)))


def _gpunode(controller: Controller, event: Event, faulted: Faulted) -> None:
    match event:
        case Replaced(items):
            found = tuple(_each(items, inventory_from_object, "gpunode", faulted))
            controller.handle(InventoriesListed(found))
            for item in items:
                controller.handle(HeldBeyondChanged(_name(item), *_annotated(item)))
                controller.handle(IdleSharesReported(_name(item), idle_from_object(item), listed=True))
            reported = {_name(item): reports_from_object(item) for item in items}
            controller.handle(PodsReported(reported, listed=True))
            controller.handle(AgentsHeard({_name(item): heartbeat_of(item) for item in items}, listed=True))
        case Put(gpunode):
            controller.handle(HeldBeyondChanged(_name(gpunode), *_annotated(gpunode)))
            controller.handle(IdleSharesReported(_name(gpunode), idle_from_object(gpunode)))
            controller.handle(PodsReported({_name(gpunode): reports_from_object(gpunode)}))
            controller.handle(AgentsHeard({_name(gpunode): heartbeat_of(gpunode)}))
            found = tuple(_each([gpunode], inventory_from_object, "gpunode", faulted))
            if found:
                controller.handle(InventoryChanged(found[0]))
            else:
                controller.handle(InventoryDeleted(_name(gpunode)))
        case Deleted(gpunode):
            controller.handle(PodsReported({_name(gpunode): ()}))
            controller.handle(AgentsHeard({_name(gpunode): UNHEARD}))
            controller.handle(InventoryDeleted(_name(gpunode)))


def _kept_out(controller: Controller, event: Event, faulted: Faulted) -> None:
    def read(configmap: JSON) -> KeptOut | None:
        try:
            return excluded.read(configmap)
        except Exception:
            fault, name = faulted("kept-out", _name(configmap)), _name(configmap)
            wrong = f"internal error of gpufraction while reading it (fault {fault})"
            ours = name.startswith(excluded.PREFIX)
            return KeptOut(name.removeprefix(excluded.PREFIX), wrong=wrong) if ours else None

    match event:
        case Replaced(items):
            controller.handle(ExcludedGpusListed(tuple(found for found in map(read, items) if found is not None)))
        case Put(configmap):
            found = read(configmap)
            if found is not None:
                controller.handle(ExcludedGpusChanged(found.node, found))
        case Deleted(configmap):
            found = read(configmap)
            if found is not None:
                controller.handle(ExcludedGpusChanged(found.node, None))


def _name(item: JSON) -> str:
    return str((item.get("metadata") or {}).get("name", ""))


def _annotated(gpunode: JSON) -> tuple[str, str]:
    """The content of our own annotations of a GPUNode."""
    annotations = pods.annotations_of(gpunode)
    return str(annotations.get(names.BEYOND, "")), str(annotations.get(names.REPEATED, ""))
