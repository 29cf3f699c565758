"""
Observations of nodes and pods in, records out. Every event gives the lines that it adds to the recording.

    begin -> nodes, pods (as listed) -> listed -> node, pod, ... -> snapshot (a new file) -> node, pod, ...

Bounded for any number of pods: only so many are followed at once, and so many new ones of a namespace in an hour; only
the number of further ones is recorded. Pods without a GPU are followed only on nodes with cards. Pure: time is passed
in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from contract import pods
from contract.encoding import moments
from contract.encoding.plain import NAME, plain
from contract.encoding.reading import is_uid
from contract.nodes import attributes
from shadow.recording import trimming
from shadow.recording.records import (
    DELETED,
    DONE,
    Begin,
    LeftOut,
    Listed,
    NodeGone,
    NodeSeen,
    PodEnded,
    PodOn,
    PodSeen,
    Record,
    TemplateSeen,
)
from shadow.systems import cards_of, held_by, reserves
from shadow.systems.base import Cards, Parts
from shadow.systems.gpufraction import SYSTEM as OURS

JSON = dict[str, Any]
MOST_PODS = 50_000
"""Pods that are followed at once. One takes about 1 KiB of memory."""
OF_ONE = 4
"""One namespace has at most one in this many of them, so that it cannot fill the recording of all others."""
MOST_NEW = 5_000
"""Pods of one namespace that are recorded within an hour. One takes about 400 bytes of a file."""
MOST_NODES = 10_000
MOST_TEMPLATES = 16 << 20
"""Bytes of all templates in one file, of which one namespace has a part; pods of further ones are left out until the
next file begins."""
MOST_MOVES = 32
"""Recorded changes of one pod's holdings: anyone who may edit a pod may change its annotations all day."""
MOST_CHANGES = 60
"""Changes of one node that are recorded within an hour; the next one after it has the node as it is then."""
_LARGEST_LABELS = 32 << 10
"""Bytes of a node's labels; of a node with more, none is recorded."""
_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class _Followed:
    """A pod that has not ended."""

    namespace: str
    name: str
    created: float
    template: int
    node: str = ""
    on: float = 0.0
    held: Parts = ()
    moves: int = 0


@dataclass(slots=True)
class _SeenNode:
    """A node, and the cards that its GPUNode lists, where it has one."""

    facts: JSON | None = None
    system: str = ""
    cards: Cards = ()
    listed: Cards = ()
    written: tuple[Any, ...] | None = None
    """Its last record; None if it has none."""
    changes: int = 0
    """Its changes in this hour."""


class Recorder:
    """Follows nodes and pods. Not thread-safe; one owner."""

    def __init__(self, *, most_pods: int = MOST_PODS, most_new: int = MOST_NEW) -> None:
        self._most_pods = most_pods
        self._most_new = most_new
        self._pods: dict[str, _Followed] = {}
        self._nodes: dict[str, _SeenNode] = {}
        self._templates: dict[str, int] = {}
        """By text; their numbers are those of the file that is written."""
        self._sizes: dict[str, int] = {}
        """Bytes of the templates that each namespace brought into it."""
        self._texts: dict[int, JSON] = {}
        self._new: dict[str, int] = {}
        self._of: dict[str, int] = {}
        """Pods that are followed, by namespace."""
        self._left: dict[str, int] = {}
        self._hour = 0.0
        self._seen: set[str] = set()
        """The pods of the list that is being read."""
        self._awaited = {"nodes", "pods"}
        """The kinds that have not been listed yet."""

    @property
    def followed(self) -> int:
        """How many pods are followed."""
        return len(self._pods)

    @property
    def synced(self) -> bool:
        """Whether nodes and pods have been listed."""
        return not self._awaited

    def begin(self, now: float) -> list[Record]:
        """The recorder begins."""
        return [Begin(now, True)]

    # -- nodes --------------------------------------------------------------------------------------------------------

    def nodes_listed(self, nodes: Iterable[Mapping[str, Any]], now: float) -> list[Record]:
        """All Nodes that there are."""
        found = list(nodes)[:MOST_NODES]
        there = {str((each.get("metadata") or {}).get("name", "")) for each in found}
        made: list[Record] = []
        for name in [name for name in self._nodes if name not in there]:
            made += self.node_deleted(name, now)
        for each in found:
            made += self.node_changed(each, now)
        return [*made, *self._first("nodes", now)]

    def node_changed(self, node: Mapping[str, Any], now: float) -> list[Record]:
        """A Node is new or changed."""
        name = str((node.get("metadata") or {}).get("name", ""))
        if name not in self._nodes and len(self._nodes) >= MOST_NODES:
            return []
        seen = self._nodes.setdefault(name, _SeenNode())
        try:
            seen.facts = _facts(node)
            seen.system, seen.cards = cards_of(node)
        except Exception:  # a node that cannot be read has no cards, and the others are recorded
            seen.facts, seen.system, seen.cards = {}, "", ()
        return self._changed(name, seen, now)

    def node_deleted(self, name: str, now: float) -> list[Record]:
        """A Node was deleted."""
        seen = self._nodes.pop(name, None)
        return [NodeGone(now, plain(name, NAME))] if seen is not None and seen.written is not None else []

    def gpunodes_listed(self, gpunodes: Iterable[Mapping[str, Any]], now: float) -> list[Record]:
        """All GPUNodes that there are."""
        found = list(gpunodes)
        there = {str((each.get("metadata") or {}).get("name", "")) for each in found}
        made: list[Record] = []
        for name, seen in self._nodes.items():
            if seen.listed and name not in there:
                seen.listed = ()
                made += self._changed(name, seen, now)
        for each in found:
            made += self.gpunode_changed(each, now)
        return made

    def gpunode_changed(self, gpunode: Mapping[str, Any], now: float, *, deleted: bool = False) -> list[Record]:
        """A GPUNode of ours is new or changed, or was deleted."""
        name = str((gpunode.get("metadata") or {}).get("name", ""))
        if name not in self._nodes and (deleted or len(self._nodes) >= MOST_NODES):
            return []
        seen = self._nodes.setdefault(name, _SeenNode())
        seen.listed = () if deleted else cards_of({**gpunode, "kind": "GPUNode"})[1]
        return self._changed(name, seen, now)

    def _changed(self, name: str, seen: _SeenNode, now: float) -> list[Record]:
        return [*self._each_hour(now), *self._node_changed(name, seen, now)]

    def _node_changed(self, name: str, seen: _SeenNode, now: float) -> list[Record]:
        if seen.facts is None:
            return []
        record = _node_record(name, seen, now)
        if not record.cards:
            gone, seen.written = seen.written is not None, None
            return [NodeGone(now, record.name)] if gone else []
        content = (record.system, record.cards, record.node)
        if content == seen.written or (seen.changes >= MOST_CHANGES and seen.written is not None):
            return []
        seen.written, seen.changes = content, seen.changes + 1
        return [record]

    def has_cards(self, node: str) -> bool:
        """Whether a node has cards."""
        seen = self._nodes.get(node)
        return seen is not None and bool(seen.cards or seen.listed)

    # -- pods ---------------------------------------------------------------------------------------------------------

    def pods_listed(
        self, found: Iterable[Mapping[str, Any]], now: float, *, first: bool = True, last: bool = True
    ) -> list[Record]:
        """The list of pods, or a part of it. A pod that no part has was deleted."""
        if first:
            self._seen = set()
        made: list[Record] = []
        for pod in found:
            self._seen.add(pods.uid(pod))
            made += self.pod_changed(pod, now)
        if last:
            for uid in [uid for uid in self._pods if uid not in self._seen]:
                made += self._end(uid, now, DELETED)
            self._seen = set()
            made += self._first("pods", now)
        return made

    def pod_changed(self, pod: Mapping[str, Any], now: float) -> list[Record]:
        """A pod is new or changed. A pod that causes an internal error is left out, and the others are recorded."""
        try:
            return self._pod_changed(pod, now)
        except Exception:
            namespace = plain(str((pod.get("metadata") or {}).get("namespace", "")), NAME)
            self._left[namespace] = self._left.get(namespace, 0) + 1
            return []

    def _pod_changed(self, pod: Mapping[str, Any], now: float) -> list[Record]:
        uid = pods.uid(pod)
        if pods.finished(pod):
            return self._end(uid, trimming.ended_at(pod, now), DONE)
        node = str((pod.get("spec") or {}).get("nodeName") or "")
        made: list[Record] = []
        if uid not in self._pods:
            made += self._follow(uid, pod, node, now)
        known = self._pods.get(uid)
        if known is None or not node:
            return made
        held = held_by(pod)
        if (node, held) == (known.node, known.held) or known.moves >= MOST_MOVES:
            return made
        at = trimming.bound_at(pod, max(now, known.created)) if not known.node else now
        self._pods[uid] = replace(known, node=node, held=held, on=at, moves=known.moves + 1)
        return [*made, PodOn(at, uid, plain(node, NAME), held)]

    def pod_deleted(self, uid: str, now: float) -> list[Record]:
        """A pod was deleted."""
        return self._end(uid, now, DELETED)

    def _follow(self, uid: str, pod: Mapping[str, Any], node: str, now: float) -> Iterator[Record]:
        asks = trimming.asks(pod)
        if not (asks or self.has_cards(node)) or not is_uid(uid) or reserves(pod):
            return
        metadata = pod.get("metadata") or {}
        namespace, name = plain(str(metadata.get("namespace", "")), NAME), plain(str(metadata.get("name", "")), NAME)
        yield from self._each_hour(now)
        number = self._new.get(namespace, 0)
        mine = self._of.get(namespace, 0)
        full = len(self._pods) >= self._most_pods or mine * OF_ONE >= self._most_pods
        if full or (number >= self._most_new and self.synced):
            self._left[namespace] = self._left.get(namespace, 0) + 1
            return
        template = trimming.template_of(pod) if asks else trimming.besides(pod)
        text = json.dumps(template, separators=(",", ":"), sort_keys=True) if template is not None else ""
        if not text or (text not in self._templates and not self._has_room(namespace, len(text))):
            self._left[namespace] = self._left.get(namespace, 0) + 1
            return
        self._new[namespace], self._of[namespace] = number + 1, mine + 1
        if text not in self._templates:
            self._templates[text] = len(self._templates)
            self._texts[self._templates[text]] = template or {}
            yield TemplateSeen(self._templates[text], template or {})
        created = moments.created(pod) or now
        self._pods[uid] = _Followed(namespace, name, created, self._templates[text])
        yield PodSeen(created, uid, namespace, name, self._templates[text])

    def _has_room(self, namespace: str, size: int) -> bool:
        """Whether a further template of the namespace is taken into this file; it is counted then."""
        mine = self._sizes.get(namespace, 0) + size
        if mine * OF_ONE > MOST_TEMPLATES or sum(self._sizes.values()) + size > MOST_TEMPLATES:
            return False
        self._sizes[namespace] = mine
        return True

    def _end(self, uid: str, at: float, how: str) -> list[Record]:
        known = self._pods.pop(uid, None)
        if known is None:
            return []
        self._of[known.namespace] -= 1
        if not self._of[known.namespace]:
            del self._of[known.namespace]
        return [PodEnded(max(at, known.created), uid, how)]

    # -- files and hours ----------------------------------------------------------------------------------------------

    def _first(self, what: str, now: float) -> Iterator[Record]:
        if what in self._awaited:
            self._awaited.discard(what)
            if not self._awaited:
                yield Listed(now)

    def _each_hour(self, now: float) -> Iterator[Record]:
        """Restart the counts each hour, and return what was left out in the last one."""
        if now < self._hour:
            return
        yield from self.left_out(now)
        self._hour, self._new = now + _HOUR, {}
        for seen in self._nodes.values():
            seen.changes = 0

    def left_out(self, now: float) -> list[Record]:
        """The pods that were left out since the last call."""
        found, self._left = self._left, {}
        return [LeftOut(now, namespace, number) for namespace, number in sorted(found.items())]

    def snapshot(self, now: float) -> Iterator[Record]:
        """Everything that is followed, for the beginning of a file, so that it can be read without earlier files."""
        yield Begin(now, False)
        for name, seen in self._nodes.items():
            if seen.written is not None:
                yield _node_record(name, seen, now)
        used: dict[int, int] = {}
        for followed in self._pods.values():
            used.setdefault(followed.template, len(used))
        texts = {used[number]: self._texts[number] for number in used}
        self._texts, self._sizes = texts, {}
        self._templates = {
            json.dumps(each, separators=(",", ":"), sort_keys=True): number for number, each in texts.items()
        }
        for number, each in texts.items():
            yield TemplateSeen(number, each)
        for uid, followed in self._pods.items():
            self._pods[uid] = followed = replace(followed, template=used[followed.template])
            yield PodSeen(followed.created, uid, followed.namespace, followed.name, followed.template)
            if followed.node:
                yield PodOn(followed.on, uid, plain(followed.node, NAME), followed.held)
        yield Listed(now)


def _facts(node: Mapping[str, Any]) -> JSON:
    """The fields of a Node that decisions read, without those that change with each heartbeat."""
    slim = attributes.trim(node)
    metadata = {key: slim["metadata"][key] for key in ("name", "labels") if key in slim["metadata"]}
    if len(json.dumps(metadata)) > _LARGEST_LABELS:
        metadata.pop("labels", None)
    status = slim["status"]
    conditions = [{"type": each.get("type"), "status": each.get("status")} for each in status["conditions"]]
    return {"metadata": metadata, "spec": slim["spec"], "status": {**status, "conditions": conditions}}


def _node_record(name: str, seen: _SeenNode, now: float) -> NodeSeen:
    ours = bool(seen.listed)
    cards, system = (seen.listed, OURS.name) if ours else (seen.cards, seen.system)
    return NodeSeen(now, plain(name, NAME), system, cards, seen.facts or {})
