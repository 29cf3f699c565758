"""
The messages for the pods of a gang.
"""

from __future__ import annotations

from allocator.cache.arrangement import FellShort
from allocator.queue.queue import QueuedPodInfo
from allocator.scheduler import messages
from contract.dialects.table import Dialects
from contract.gangs import Membership

_ORDINALS = (
    "first",
    "second",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
    "eleventh",
    "twelfth",
)


def ordinal(number: int) -> str:
    """The number as an ordinal: `eighth`, `23rd`."""
    if number <= len(_ORDINALS):
        return _ORDINALS[number - 1]
    ending = "th" if number // 10 % 10 == 1 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def falls_short(gang: Membership, pod: QueuedPodInfo, minimum: int, found: FellShort, dialects: Dialects) -> str:
    """The message for a gang that does not fit; `pod` is the one without room."""
    why = messages.why(found.decision, pod.ask.request, "", dialects)
    name = pod.key.split("/", 1)[1]
    return f"{gang.shown}: {found.placed} of {minimum} members fit; the {ordinal(found.placed + 1)} ({name}): {why}"


def incomplete(gang: Membership, ready: int, minimum: int, *, foreign: int, parked: int, busy: int) -> str:
    """The message for a gang with too few pods that can be placed, with the reasons of the others."""
    kept = [
        text
        for number, text in (
            (foreign, f"{foreign} held by another system's scheduling gate"),
            (parked, f"{parked} parked or unreadable"),
            (busy, f"{busy} pausing after a failed write"),
        )
        if number
    ]
    missing = minimum - ready - foreign - parked - busy
    if missing > 0:
        kept.append(f"{missing} not created yet")
    return f"{gang.shown}: {ready} of {minimum} members are ready to start together; {', '.join(kept)}"


def lost(gang: Membership | None) -> str:
    """The message for a pod whose share was released although its gang has begun."""
    shown = gang.shown if gang is not None else "its gang"
    return (
        f"{shown} has begun, but the API server does not store the placement of this pod. Its share was released; the "
        f"pod is placed on its own as soon as it fits and can be written"
    )
