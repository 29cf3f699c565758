"""
What if: the changes of a cluster that a replay can be run with, each read from the text of a flag.

    --cards A100=10                 10 more cards like those of this model, on nodes like those that have them
    --cards 'L40S:48Gi=8'           8 cards of a model that was not there, with 48 GiB each, on nodes of 8
    --mig A100=3g.40gb,2g.20gb*2    every card of this model in these slices
    --allocator queue.order=fair    a setting of the allocator, such as the placement's policy
    --quota team-a=80Gi,400         what a namespace's pods may count for: memory, and percent of cores
    --replica 20                    pods that had a replica of a time-sliced card ask for 20 percent
    --whole 40                      pods that had whole cards ask for 40 percent of each

Pure. A text that cannot be read raises `BadChange`, whose message says what would work.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from allocator.settings import Settings
from contract import names
from contract.encoding import quantity
from contract.encoding.reading import is_label, shown
from contract.model import LONGEST_WORD, MOST_MEMORY, WHOLE
from contract.nodes.capacity import VENDOR_GPU
from contract.options import NO_OPTIONS, PoolOptions
from runtime.settings import SettingsError, load
from shadow.recording.records import NodeSeen
from shadow.replay import cards
from shadow.replay.cluster import ClusterChoices, Quota
from shadow.replay.demand import DemandWindow, PodDemand
from shadow.systems.base import SeenCard
from shadow.systems.nvidia import SHARED

JSON = dict[str, Any]
MOST_CARDS = 10_000
_MOST_SLICES, _SEVENTHS = 7, 7
_MODEL = re.compile(rf"(?P<model>[^:=]{{1,{LONGEST_WORD}}})(:(?P<memory>[^:=]+))?=(?P<count>[0-9]{{1,5}})")
_SLICE = re.compile(r"(?P<parts>[1-7])g\.(?P<gib>[0-9]{1,3})gb(\*(?P<times>[1-7]))?")
_NEW_NODE: JSON = {
    "spec": {},
    "status": {
        "allocatable": {"cpu": "128", "memory": "1Ti", "ephemeral-storage": "1Ti", "pods": "250"},
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}
"""The other resources of a node whose cards are of a model that was not recorded."""
_PER_NODE = 8


class BadChange(ValueError):
    """A change that cannot be read, or does not fit the recording."""


@dataclass(frozen=True, slots=True)
class MoreCards:
    """Further cards. `memory`: bytes of each, 0 where the recording has the model."""

    model: str
    count: int
    memory: int = 0


@dataclass(frozen=True, slots=True)
class MigLayout:
    """Every card of a model in slices; each has so many bytes."""

    model: str
    slices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """All changes of one replay."""

    cards: tuple[MoreCards, ...] = ()
    mig: tuple[MigLayout, ...] = ()
    allocator: tuple[str, ...] = ()
    quotas: Mapping[str, Quota] = field(default_factory=dict)
    replica: int = 0
    whole: int = 0
    options: PoolOptions = NO_OPTIONS

    @property
    def some(self) -> bool:
        """Whether anything is changed."""
        return self != ChangeSet()


def more_cards(text: str) -> MoreCards:
    """Read `MODEL=NUMBER` or `MODEL:MEMORY=NUMBER`."""
    found = _MODEL.fullmatch(text)
    count = int(found["count"]) if found else 0
    if found is None or not 0 < count <= MOST_CARDS:
        raise BadChange(f"--cards {shown(text)}: give a model and 1 to {MOST_CARDS} cards, such as A100=10")
    memory = _bytes("--cards", found["memory"]) if found["memory"] else 0
    return MoreCards(found["model"], count, memory)


def mig_layout(text: str) -> MigLayout:
    """Read `MODEL=PROFILE[,PROFILE...]`, each profile with `*TIMES` or without."""
    model, _, listed = text.partition("=")
    found = [_SLICE.fullmatch(word.strip()) for word in listed.split(",")]
    if not 0 < len(model) <= LONGEST_WORD or not all(found):
        raise BadChange(f"--mig {shown(text)}: give a model and profiles, such as A100=3g.40gb,2g.20gb*2")
    slices = [each for each in found if each is not None for _ in range(int(each["times"] or 1))]
    parts = sum(int(each["parts"]) for each in slices)
    if len(slices) > _MOST_SLICES or parts > _SEVENTHS:
        raise BadChange(f"--mig {shown(text)}: these slices take {parts} sevenths of a card; give at most {_SEVENTHS}")
    return MigLayout(model, tuple(int(each["gib"]) << 30 for each in slices))


def quota(text: str) -> tuple[str, Quota]:
    """Read `NAMESPACE=MEMORY[,CORES]`."""
    namespace, _, amounts = text.partition("=")
    memory, _, cores = amounts.partition(",")
    try:
        read = Quota(
            quantity.integer(memory) if memory else None,
            quantity.integer(cores) if cores else None,
        )
    except quantity.BadQuantity:
        read = Quota()
    if not is_label(namespace) or read == Quota() or min(read.memory or 0, read.cores or 0) < 0:
        raise BadChange(f"--quota {shown(text)}: give a namespace and its memory and cores, such as team-a=80Gi,400")
    return namespace, read


def percent(flag: str, text: str) -> int:
    """Read a percentage from 1 to 100."""
    found = quantity.integer_or(text, 0)
    if not 0 < found <= WHOLE:
        raise BadChange(f"{flag} {shown(text)}: give a whole percentage from 1 to 100")
    return found


def _bytes(flag: str, text: str) -> int:
    found = quantity.integer_or(text, 0)
    if not quantity.GIB <= found <= MOST_MEMORY:
        raise BadChange(f"{flag} {shown(text)}: give a card's memory with its unit, such as 48Gi")
    return found


def settings_of(words: Sequence[str]) -> Settings:
    """The allocator's settings with these, each `NAME=VALUE`, the name as docs/settings.md has it."""
    flags = []
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise BadChange(f"--allocator {shown(word)}: give a setting and its value, such as queue.order=fair")
        flags.append(f"--{name.replace('.', '-').replace('_', '-')}={value}")
    try:
        return load(Settings, file=None, env={}, argv=flags)
    except SettingsError as error:
        raise BadChange("; ".join(error.errors)) from error


def choices_of(changes: ChangeSet, window: DemandWindow) -> ClusterChoices:
    """The choices of a replay of this recording with the changes."""
    return ClusterChoices(
        settings=settings_of(changes.allocator),
        options=changes.options,
        quotas=changes.quotas,
        slices={each.model: _fitting(each, window) for each in changes.mig},
        translate=translation(window, replica=changes.replica, whole=changes.whole),
    )


def _fitting(layout: MigLayout, window: DemandWindow) -> tuple[int, ...]:
    known = [card for card in _cards_of(window) if layout.model.lower() in card.model.lower()]
    if not known:
        raise BadChange(f"--mig {layout.model}: {_no_such(layout.model, window)}")
    largest = max(card.real for card in known)
    # A profile's name rounds up: seven slices of 10gb are 70 of 80 GiB, and 1g.5gb of 40 GiB is less than 5 GiB.
    if sum(layout.slices) > largest + (_MOST_SLICES << 30):
        raise BadChange(
            f"--mig {layout.model}: these slices have {quantity.spoken(sum(layout.slices))}, and a card has "
            f"{quantity.spoken(largest)}"
        )
    return layout.slices


def enlarged(window: DemandWindow, further: Iterable[MoreCards]) -> DemandWindow:
    """The recording with further cards from its beginning. Raises `BadChange` for a model that it does not have."""
    made: list[NodeSeen] = []
    for change in further:
        made += _nodes_for(window, change, len(made))
    return replace(window, nodes=(*made, *window.nodes))


def _nodes_for(window: DemandWindow, change: MoreCards, number: int) -> list[NodeSeen]:
    nodes = [each for each in window.nodes if isinstance(each, NodeSeen)]
    alike = [each for each in nodes if any(change.model.lower() in card.model.lower() for card in each.cards)]
    if alike:
        first = max(alike, key=lambda each: len(each.cards))
        first = replace(first, cards=tuple(c for c in first.cards if change.model.lower() in c.model.lower()))
    elif change.memory:
        card = SeenCard("new", 0, change.model, change.memory)
        first = NodeSeen(window.begin, "new", "gpufraction", (card,) * _PER_NODE, _NEW_NODE)
    else:
        raise BadChange(f"--cards {change.model}: {_no_such(change.model, window)}; name its memory, as L40S:48Gi=8")
    left, made = change.count, list[NodeSeen]()
    while left > 0:
        own = replace(first, cards=first.cards[: min(left, len(first.cards))])
        made.append(cards.renamed(own, f"what-if-{number + len(made)}", window.begin))
        left -= len(own.cards)
    return made


def _no_such(model: str, window: DemandWindow) -> str:
    there = sorted({card.model for card in _cards_of(window) if card.model})
    return f"no card of this model was recorded; there are {', '.join(there[:5]) or 'none'}"


def _cards_of(window: DemandWindow) -> Iterable[SeenCard]:
    return (card for node in window.nodes if isinstance(node, NodeSeen) for card in node.cards)


# -- pods that ask in units of another system ------------------------------------------------------------------------


def translation(window: DemandWindow, *, replica: int = 0, whole: int = 0) -> Callable[[PodDemand], JSON]:
    """
    A pod's request after the switch. A pod that had a replica of a time-sliced card asks for as large a part of a
    card, and every other pod for what it asks for now. `replica`, `whole`: percent that pods with replicas, and with
    whole cards, ask for instead.
    """
    replicas = {
        node.name: max((card.replicas for card in node.cards), default=1)
        for node in window.nodes
        if isinstance(node, NodeSeen)
    }
    sliced = [number for number in replicas.values() if number > 1]
    usual = max(set(sliced), key=sliced.count) if sliced and len(sliced) * 2 > len(replicas) else 1

    def translate(pod: PodDemand) -> JSON:
        number = replicas.get(pod.node, 1) if pod.node else usual
        if number > 1:
            return _in_percent(pod.pod, replica or max(1, WHOLE // number), (VENDOR_GPU, SHARED))
        return _in_percent(pod.pod, whole, (VENDOR_GPU,)) if whole else dict(pod.pod)

    return translate


def _in_percent(pod: JSON, part: int, resources: tuple[str, ...]) -> JSON:
    """The pod with so many percent of as many cards, where its containers ask for whole ones and nothing else."""
    spec = dict(pod.get("spec") or {})
    containers = []
    for container in spec.get("containers") or ():
        amounts = container.get("resources") or {}
        limits = dict(amounts.get("limits") or {})
        theirs = [name for name in limits if name.startswith("nvidia.com/")]
        count = sum(quantity.integer_or(limits.pop(name, 0), 0) for name in resources)
        if count and all(name in resources for name in theirs):
            requests = {key: value for key, value in (amounts.get("requests") or {}).items() if key not in resources}
            limits[str(names.GPU_PERCENT)] = str(part)
            if count > 1:
                limits[str(names.GPU_COUNT)] = str(count)
            container = {**container, "resources": {**amounts, "limits": limits, "requests": requests}}
        containers.append(container)
    return {**pod, "spec": {**spec, "containers": containers}}
