"""
The cards of a node and the pods on them, for any system that shares cards.

Every text here comes from annotations and labels, which anyone with the right to edit nodes or pods may have written.
So readers bound what they take, and leave out what they cannot read. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from contract.encoding import quantity
from contract.encoding.plain import NAME, plain
from contract.model import LONGEST_WORD, MOST_MEMORY, WHOLE

JSON = dict[str, Any]
MOST_PARTS = 256
"""Cards that one pod holds, at most; what exceeds them is left out."""


@dataclass(frozen=True, slots=True)
class SeenCard:
    """
    One card. `memory`: bytes that its system gives out; `physical`: those that the card has, where that is less.
    `replicas`: pods to which time slicing gives it.
    """

    uuid: str
    index: int
    model: str
    memory: int
    healthy: bool = True
    replicas: int = 1
    physical: int = 0

    @property
    def real(self) -> int:
        """The bytes that the card has, as far as they are known."""
        return self.physical or self.memory


@dataclass(frozen=True, slots=True)
class HeldPart:
    """
    A pod's part of one card. `uuid`: empty where its system does not report which card. `memory`: bytes; where they
    are 0, `percent` of the card's memory, and where both are, one replica of a card that is time-sliced.
    """

    uuid: str = ""
    memory: int = 0
    percent: int = 0
    cores: int = 0


Cards = tuple[SeenCard, ...]
Parts = tuple[HeldPart, ...]


@dataclass(frozen=True, slots=True)
class SharingSystem:
    """
    One system. `cards`: the cards that a node has by it, none where it does not serve the node. `held`: what a pod with
    a node holds by it, none where another system serves the pod. `passing`: annotations and labels that it writes on
    pods it has placed, by prefix; the pod's author did not write them. `reserving`: namespaces of its own pods that
    hold cards for others, and use nothing themselves.
    """

    name: str
    title: str
    cards: Callable[[Mapping[str, Any]], Cards]
    held: Callable[[Mapping[str, Any]], Parts]
    passing: tuple[str, ...] = ()
    reserving: frozenset[str] = frozenset()


def annotations_of(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """An object's annotations, never None."""
    return _texts(document, "annotations")


def labels_of(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """An object's labels, never None."""
    return _texts(document, "labels")


def _texts(document: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    found = (document.get("metadata") or {}).get(field)
    return found if isinstance(found, Mapping) else {}


def number(value: object, most: int, default: int = 0) -> int:
    """A whole number from 0 to `most` as text or as a number; else the default."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53:
        value = int(value)
    found = quantity.integer_or(value, -1)
    return found if 0 <= found <= most else default


def mebibytes(value: object) -> int:
    """Bytes of a number of MiB; 0 for anything that no card has."""
    return number(value, MOST_MEMORY >> 20) << 20


def percent(value: object) -> int:
    """A number from 0 to 100, a larger one as 100."""
    return min(WHOLE, number(value, 1 << 31))


def model_of(text: object) -> str:
    """The model's name; GPU feature discovery writes dashes in place of spaces, and they stay."""
    return plain(text, LONGEST_WORD) if isinstance(text, str) else ""


def name_of(document: Mapping[str, Any]) -> str:
    """The object's name, fit to be shown."""
    return plain(str((document.get("metadata") or {}).get("name", "")), NAME)
