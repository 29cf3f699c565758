"""
The lines of a recording, JSON in text: observations of nodes and pods, with their times.

| line | meaning |
|---|---|
| `begin` | a recorder begins, or a file does; the next objects are listed again |
| `node`, `nodegone` | a node with cards is new or changed, or it is gone |
| `template` | a pod without the fields that differ from its siblings; the pods after it name its number |
| `pod` | a pod was created |
| `on` | it has a node, and holds these parts of cards |
| `end` | it is finished (`done`), was deleted (`deleted`), or was gone when the recorder came back (`lost`) |
| `listed` | all has been listed: an object from before `begin` that was not named since is gone |
| `left` | pods that were not recorded, since their namespace makes more than are |

Times are seconds since 1970. Reading never raises for a line that cannot be read: it is counted and left out, such as
the last line of a recorder that was killed. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from contract.encoding.plain import NAME, plain
from contract.encoding.reading import is_gpu
from contract.model import MOST_MEMORY, MOST_ON_NODE, WHOLE
from shadow.systems.base import MOST_PARTS, Cards, HeldPart, Parts, SeenCard

JSON = dict[str, Any]
FORM = 1
"""The version of this form. A reader leaves the lines of another one out."""
DONE, DELETED, LOST = "done", "deleted", "lost"
_LATEST = 1 << 40
LONGEST_LINE = 256 << 10
"""Characters of a line that is read."""


@dataclass(frozen=True, slots=True)
class Begin:
    """`at`: when. `first`: a recorder begins; else only a file does, and nothing was missed."""

    at: float
    first: bool


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node with cards. `node`: the fields of the Node that decisions read."""

    at: float
    name: str
    system: str
    cards: Cards
    node: JSON


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A node has no cards any more, or there is no such node."""

    at: float
    name: str


@dataclass(frozen=True, slots=True)
class TemplateSeen:
    """A pod without its identity. `number`: its own in this file."""

    number: int
    pod: JSON


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod was created at this time."""

    at: float
    uid: str
    namespace: str
    name: str
    template: int


@dataclass(frozen=True, slots=True)
class PodOn:
    """Since this time the pod has a node and holds these parts of its cards."""

    at: float
    uid: str
    node: str
    held: Parts


@dataclass(frozen=True, slots=True)
class PodEnded:
    """The pod ended; `how`: `DONE`, `DELETED` or `LOST`."""

    at: float
    uid: str
    how: str


@dataclass(frozen=True, slots=True)
class Listed:
    """All has been listed since `Begin`."""

    at: float


@dataclass(frozen=True, slots=True)
class LeftOut:
    """This many pods of the namespace were not recorded."""

    at: float
    namespace: str
    pods: int


Record = Begin | NodeSeen | NodeGone | TemplateSeen | PodSeen | PodOn | PodEnded | Listed | LeftOut


def encode(record: Record) -> str:
    """The record as a line with its end."""
    kind, fields = _WRITERS[type(record)](record)
    return json.dumps({"k": kind, **fields}, separators=(",", ":"), ensure_ascii=True) + "\n"


_WRITERS: Mapping[type, Callable[[Any], tuple[str, JSON]]] = {
    Begin: lambda r: ("begin", {"at": r.at, "first": r.first, "form": FORM}),
    NodeSeen: lambda r: (
        "node",
        {"at": r.at, "name": r.name, "system": r.system, "cards": [_card(each) for each in r.cards], "node": r.node},
    ),
    NodeGone: lambda r: ("nodegone", {"at": r.at, "name": r.name}),
    TemplateSeen: lambda r: ("template", {"id": r.number, "pod": r.pod}),
    PodSeen: lambda r: ("pod", {"at": r.at, "uid": r.uid, "ns": r.namespace, "name": r.name, "of": r.template}),
    PodOn: lambda r: ("on", {"at": r.at, "uid": r.uid, "node": r.node, "held": [_part(each) for each in r.held]}),
    PodEnded: lambda r: ("end", {"at": r.at, "uid": r.uid, "how": r.how}),
    Listed: lambda r: ("listed", {"at": r.at}),
    LeftOut: lambda r: ("left", {"at": r.at, "ns": r.namespace, "pods": r.pods}),
}


def _card(card: SeenCard) -> list[Any]:
    return [card.uuid, card.index, card.model, card.memory, card.healthy, card.replicas, card.physical]


def _part(part: HeldPart) -> list[Any]:
    return [part.uuid, part.memory, part.percent, part.cores]


def decode(line: str) -> Record | None:
    """The record of a line; None if it cannot be read."""
    if len(line) > LONGEST_LINE:
        return None
    try:
        found = json.loads(line)
        return _READERS[found["k"]](found)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _begin(found: JSON) -> Begin:
    if found["form"] != FORM:
        raise ValueError("another form")
    return Begin(_at(found), found["first"] is True)


def _node(found: JSON) -> NodeSeen:
    node = found["node"]
    if not isinstance(node, dict):
        raise ValueError("node")
    cards = tuple(map(_read_card, _listed(found["cards"], MOST_ON_NODE)))
    return NodeSeen(_at(found), _text(found["name"]), _text(found["system"]), cards, node)


def _read_card(row: Any) -> SeenCard:
    uuid, index, model, memory, healthy, replicas, physical = row
    if not is_gpu(_text(uuid)):
        raise ValueError("uuid")
    return SeenCard(
        uuid,
        _number(index, 1 << 16),
        _text(model),
        _number(memory, MOST_MEMORY),
        healthy is True,
        max(1, _number(replicas, 1 << 16)),
        _number(physical, MOST_MEMORY),
    )


def _template(found: JSON) -> TemplateSeen:
    if not isinstance(found["pod"], dict):
        raise ValueError("pod")
    return TemplateSeen(_number(found["id"], _LATEST), found["pod"])


def _pod(found: JSON) -> PodSeen:
    return PodSeen(
        _at(found), _text(found["uid"]), _text(found["ns"]), _text(found["name"]), _number(found["of"], _LATEST)
    )


def _on(found: JSON) -> PodOn:
    held = tuple(map(_read_part, _listed(found["held"], MOST_PARTS)))
    return PodOn(_at(found), _text(found["uid"]), _text(found["node"]), held)


def _read_part(row: Any) -> HeldPart:
    uuid, memory, percent, cores = row
    return HeldPart(_text(uuid), _number(memory, MOST_MEMORY), _number(percent, WHOLE), _number(cores, WHOLE))


def _ended(found: JSON) -> PodEnded:
    how = _text(found["how"])
    if how not in (DONE, DELETED, LOST):
        raise ValueError("how")
    return PodEnded(_at(found), _text(found["uid"]), how)


def _left(found: JSON) -> LeftOut:
    return LeftOut(_at(found), _text(found["ns"]), _number(found["pods"], _LATEST))


_READERS: Mapping[str, Callable[[JSON], Record]] = {
    "begin": _begin,
    "node": _node,
    "nodegone": lambda found: NodeGone(_at(found), _text(found["name"])),
    "template": _template,
    "pod": _pod,
    "on": _on,
    "end": _ended,
    "listed": lambda found: Listed(_at(found)),
    "left": _left,
}


def _at(found: JSON) -> float:
    at = found["at"]
    if isinstance(at, bool) or not isinstance(at, int | float) or not 0 <= at < _LATEST:
        raise ValueError("at")
    return float(at)


def _number(value: Any, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError("number")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("text")
    return plain(value, NAME)


def _listed(value: Any, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise ValueError("list")
    return value
