"""The systems that share cards, in one table: a new one is a module and an entry here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shadow.systems import gpufraction, hami, nvidia
from shadow.systems.base import Cards, Parts, SharingSystem

SYSTEMS: tuple[SharingSystem, ...] = (gpufraction.SYSTEM, hami.SYSTEM, nvidia.SYSTEM)
"""The first that finds cards on a node, or parts of a pod, is the one that counts."""


def cards_of(node: Mapping[str, Any]) -> tuple[str, Cards]:
    """The system that serves a node, and the node's cards; empty where none does."""
    return next(((each.name, found) for each in SYSTEMS if (found := each.cards(node))), ("", ()))


def reserves(pod: Mapping[str, Any]) -> bool:
    """Whether a pod is one by which a system holds cards for others."""
    namespace = (pod.get("metadata") or {}).get("namespace")
    return any(namespace in each.reserving for each in SYSTEMS)


def held_by(pod: Mapping[str, Any]) -> Parts:
    """A pod's parts of cards; none where it holds nothing, or has no node."""
    return next((found for each in SYSTEMS if (found := each.held(pod))), ())
