"""
A GPU library without GPUs, for the demo, tests of the whole system, and trials.

A short text (`2 x Tesla T4 15109MiB, 1 x NVIDIA A10 23028MiB`) or a file describes its GPUs. The file, YAML or JSON, is
read again at every look, so that cards can become unhealthy, vanish or change while the agent runs:

    driver: 550.54.15                  # optional, as all but gpus
    cuda: "12.4"
    gpus: 2 x Tesla T4 15109MiB
    failure: DriverGone                # no card answers; the name of an error of nodeagent.gpus.library
    cards:                             # by index, what differs from the rule
      1: {healthy: false, reason: "XID 79", uuid: GPU-..., vanished: true, used: 5GiB, utilisation: 40}
      0: {computing: {4f1c...: 40}}    # percent by container id; without it nobody knows who computes
      2: {holding: {4f1c...: 5GiB}}    # memory by container id

UUIDs follow from the node's name and the index alone, so that a restarted agent has the same cards.

Must not: guess. A description that it cannot read is `BadSimulation`.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from contract.encoding.reading import shown, words
from nodeagent.gpus import library
from nodeagent.gpus.library import Card, LibraryBroken

_DRIVER, _CUDA = "550.54.15", "12.4"
_UNITS = {"Mi": 1 << 20, "Gi": 1 << 30}
_GROUP = re.compile(r"(?P<count>[0-9]{1,3}) *x +(?P<model>\S.*?) +(?P<memory>[0-9]{1,9}(?:Mi|Gi)B?)")
_MEMORY = re.compile(r"(?P<number>[0-9]{1,9})(?P<unit>Mi|Gi)B?")
_UUID_SPACE = uuid.UUID("6ad1c5b4-9b0e-4f0a-8a53-5c0f2f1f7c11")
_EXAMPLE = "such as '2 x Tesla T4 15109MiB'"
_FAILURES: dict[str, type[library.GpuLibraryError]] = {
    kind.__name__: kind
    for kind in (
        library.LibraryMissing,
        library.LibraryOutdated,
        library.DriverGone,
        library.NoPermission,
        library.LibraryBroken,
    )
}
_FIELDS = frozenset({"driver", "cuda", "gpus", "failure", "cards"})
_CARD_FIELDS = frozenset(
    {"healthy", "reason", "uuid", "vanished", "used", "utilisation", "computing", "holding", "capability"}
)
_FIRST_PID = 1 << 22
"""Above every process id of Linux."""


class BadSimulation(ValueError):
    """The text or file does not describe GPUs. The message names the part and what would work."""


@dataclass(frozen=True, slots=True)
class SimulatedMachine:
    """What the simulated machine shows at one moment."""

    driver: str = _DRIVER
    cuda: str = _CUDA
    cards: tuple[Card, ...] = ()
    failure: type[library.GpuLibraryError] | None = field(default=None)
    computing: Mapping[int, str] = field(default_factory=dict)
    """The container of each process, by process id."""


class Simulated:
    """
    `GpuLibrary` from a text, or from a file where the text is `@` and a path.

    Raises `BadSimulation` at once if the description is wrong. A file that is wrong or missing later is
    `LibraryBroken`, like a driver that fails.
    """

    def __init__(self, spec: str, *, node: str) -> None:
        self._spec = spec
        self._node = node
        self._computing = self._scene().computing
        self._exclusive: set[str] = set()

    def __repr__(self) -> str:
        return f"Simulated({self._spec!r})"

    def driver_version(self) -> str:
        """See `GpuLibrary`."""
        return self._look().driver

    def cuda_version(self) -> str:
        """See `GpuLibrary`."""
        return self._look().cuda

    def gpus(self) -> tuple[Card, ...]:
        """See `GpuLibrary`."""
        return self._look().cards

    def exclusive(self, uuid: str) -> bool | None:
        """Whether the card's compute mode is EXCLUSIVE_PROCESS, as this object was set; of no other process."""
        return uuid in self._exclusive

    def set_exclusive(self, uuid: str, exclusive: bool) -> str:
        """Remember the mode. Never fails."""
        (self._exclusive.add if exclusive else self._exclusive.discard)(uuid)
        return ""

    def cgroup_of(self, pid: int) -> str:
        """The text of `/proc/<pid>/cgroup` of a process that the last look at the cards showed; empty for another."""
        container = self._computing.get(pid)
        return f"0::/kubepods.slice/cri-containerd-{container}.scope\n" if container else ""

    def _look(self) -> SimulatedMachine:
        try:
            scene = self._scene()
        except BadSimulation as error:
            raise LibraryBroken(f"simulated GPUs: {error}") from error
        if scene.failure is not None:
            raise scene.failure("simulated: the description says so")
        self._computing = scene.computing
        return scene

    def _scene(self) -> SimulatedMachine:
        if self._spec.startswith("@"):
            return scene_from_file(Path(self._spec[1:]), node=self._node)
        return SimulatedMachine(cards=cards_from_text(self._spec, node=self._node))


def simulated_uuid(node: str, index: int) -> str:
    """A UUID in NVIDIA's form, always the same for the same node and index."""
    return f"GPU-{uuid.uuid5(_UUID_SPACE, f'{node}/{index}')}"


def cards_from_text(text: str, *, node: str) -> tuple[Card, ...]:
    """The cards that a text such as `2 x Tesla T4 15109MiB` describes; empty text is none. Raises `BadSimulation`."""
    cards: list[Card] = []
    for group in words(text):
        match = _GROUP.fullmatch(group)
        if match is None:
            raise BadSimulation(f"{shown(group)} is not a count, a model and a memory, {_EXAMPLE}")
        memory = memory_from_text(match["memory"])
        for _ in range(int(match["count"])):
            index = len(cards)
            uid = simulated_uuid(node, index)
            cards.append(Card(index, uid, match["model"], memory, used_bytes=0, utilisation=0))
    return tuple(cards)


def memory_from_text(text: object) -> int:
    """Bytes of `15109MiB`, `15109Mi`, `16GiB` or `16Gi`. Raises `BadSimulation`."""
    match = _MEMORY.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise BadSimulation(f"{shown(text)} is not an amount of memory such as 15109MiB or 16GiB")
    return int(match["number"]) * _UNITS[match["unit"]]


def scene_from_file(path: Path, *, node: str) -> SimulatedMachine:
    """Read a description. Raises `BadSimulation`, also if there is no such file."""
    import yaml

    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadSimulation(f"{path} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise BadSimulation(f"{path} is neither YAML nor JSON") from error
    return scene_from_document(document, node=node)


def scene_from_document(document: Any, *, node: str) -> SimulatedMachine:
    """A description as decoded YAML or JSON. Raises `BadSimulation`."""
    fields = _known("the description", document, _FIELDS)
    failure = fields.get("failure")
    if failure and (not isinstance(failure, str) or failure not in _FAILURES):
        raise BadSimulation(f"failure is {shown(failure)}; it is one of {', '.join(sorted(_FAILURES))}")
    gpus = fields.get("gpus") or ""
    if not isinstance(gpus, str):
        raise BadSimulation(f"gpus is {shown(gpus)}; it is text {_EXAMPLE}")
    changes = fields.get("cards") or {}
    if not isinstance(changes, Mapping):
        raise BadSimulation(f"cards is {shown(changes)}; it is a map from an index to what differs there")
    cards = cards_from_text(gpus, node=node)
    # JSON has no numbers as keys.
    by_index = {str(index): _known(_card(index), change, _CARD_FIELDS) for index, change in changes.items()}
    strangers = sorted(by_index.keys() - {str(card.index) for card in cards})
    if strangers:
        raise BadSimulation(f"{_card(strangers[0])} does not exist; gpus describes {len(cards)} cards, counted from 0")
    changed = [_changed(card, by_index.get(str(card.index), {})) for card in cards]
    computing = {
        container: None for change in by_index.values() for container in (*_computing(change), *_holding(change))
    }
    pids = {container: _FIRST_PID + number for number, container in enumerate(computing)}
    return SimulatedMachine(
        driver=str(fields.get("driver") or _DRIVER),
        cuda=str(fields.get("cuda") or _CUDA),
        cards=tuple(_used_by(card, by_index.get(str(card.index), {}), pids) for card in changed if card is not None),
        failure=_FAILURES[failure] if failure else None,
        computing={pid: container for container, pid in pids.items()},
    )


def _card(index: object) -> str:
    """The path of a card in a message."""
    text = str(index)
    return f"cards.{text}" if text.isalnum() and len(text) < 10 else f"cards[{shown(text)}]"


def _changed(card: Card, change: Mapping[str, Any]) -> Card | None:
    if change.get("vanished"):
        return None
    healthy = bool(change.get("healthy", True))
    utilisation = change.get("utilisation", card.utilisation)
    if not isinstance(utilisation, int):
        raise BadSimulation(f"cards.{card.index}.utilisation is {shown(utilisation)}; it is a percent such as 40")
    return replace(
        card,
        uuid=str(change.get("uuid") or card.uuid),
        healthy=healthy,
        reason="" if healthy else str(change.get("reason") or "simulated fault"),
        used_bytes=memory_from_text(change["used"]) if "used" in change else card.used_bytes,
        utilisation=utilisation,
        capability=str(change.get("capability") or card.capability),
    )


def _computing(change: Mapping[str, Any]) -> Mapping[str, int]:
    found = change.get("computing") or {}
    if not isinstance(found, Mapping) or not all(isinstance(percent, int) for percent in found.values()):
        raise BadSimulation(f"computing is {shown(found)}; it is a map from a container's id to a percent such as 40")
    return {str(container): percent for container, percent in found.items()}


def _holding(change: Mapping[str, Any]) -> Mapping[str, int]:
    found = change.get("holding") or {}
    if not isinstance(found, Mapping):
        raise BadSimulation(f"holding is {found!r}; it is a map from a container's id to an amount such as 5GiB")
    return {str(container): memory_from_text(amount) for container, amount in found.items()}


def _used_by(card: Card, change: Mapping[str, Any], pids: Mapping[str, int]) -> Card:
    """The card with its processes, if the description names those that compute or have memory there, perhaps none."""
    if "computing" not in change and "holding" not in change:
        return card
    held = _holding(change)
    here = sorted((pids[container], held.get(container, 0)) for container in {*_computing(change), *held})
    card = replace(card, processes=tuple(here))
    if "computing" not in change:
        return card
    busy = tuple(sorted((pids[container], percent) for container, percent in _computing(change).items()))
    return replace(card, busy=busy, active=tuple(pid for pid, percent in busy if percent))


def _known(what: str, value: Any, known: frozenset[str]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BadSimulation(f"{what} is {shown(value)}; it is a map with {', '.join(sorted(known))}")
    strangers = sorted(str(key) for key in value.keys() - known)
    if strangers:
        raise BadSimulation(f"{what} has {shown(strangers[0])}, which is none of {', '.join(sorted(known))}")
    return value
