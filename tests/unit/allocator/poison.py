"""Pods and engines that raise: they represent an error of ours that has not been found yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from allocator.engine.engine import Engine
from allocator.engine.reference import NOWHERE, Decision, Prefer
from contract.model import FractionRequest
from contract.reasons.nodes import Reason
from contract.scheduling.needs import SchedulingRequest

JSON = dict[str, Any]


class Boom(Exception):
    """The error that is raised."""


class Bomb(dict[str, Any]):
    """A part of a pod that raises when it is read, if it is armed."""

    armed = True

    def get(self, key: str, default: Any = None) -> Any:
        if self.armed:
            raise Boom(key)
        return super().get(key, default)


class Fuse(list[JSON]):
    """A list that raises when it is iterated, if it is armed."""

    armed = False

    def __iter__(self) -> Iterator[JSON]:
        if self.armed:
            raise Boom("list")
        return super().__iter__()


def poisoned(pod: JSON) -> tuple[JSON, Bomb]:
    """The pod with a spec that raises, and that spec."""
    bomb = Bomb(pod["spec"])
    return {**pod, "spec": bomb}, bomb


class Picky(Engine):
    """An engine that raises for a share of this many bytes. `looked` counts how often such a share was requested."""

    def __init__(self, memory: int) -> None:
        super().__init__()
        self.memory, self.looked = memory, 0

    def decide(
        self, ask: SchedulingRequest, refused: Mapping[str, Reason] = NOWHERE, prefer: Prefer | None = None
    ) -> Decision:
        self._look(ask.request.containers[0])
        return super().decide(ask, refused, prefer)

    def _look(self, fraction: FractionRequest) -> None:
        if fraction.memory == self.memory:
            self.looked += 1
            raise Boom(fraction.container)
