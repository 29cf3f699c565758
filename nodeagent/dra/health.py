"""
The health of the devices that kubelet watches: a stream of whole lists, for `status.containerStatuses` of the pods.

    look at the cards ──▶ device_health ──▶ updates: a list at once, at each change, and every `REPEAT` seconds

Each list is made when it is about to be sent. So a kubelet that reads slowly, or not at all, gets fewer lists; nothing
waits for it and nothing is kept for it.

Must not: judge the cards, or know gRPC.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator

from contract.encoding import resourceclaims
from contract.encoding.resourceclaims import PreparedDevice
from nodeagent.dra.wire import DeviceHealth, HealthStatus
from nodeagent.gpus.observation import Observation

REPEAT = 10.0
"""Seconds after which a list is sent again although nothing changed."""
TIMEOUT = 30
"""Seconds after which kubelet treats a health that is not repeated as unknown; also kubelet's own default."""
_NOT_SHOWN = "the driver does not show this GPU any more"


def device_health(
    observation: Observation, prepared: Iterable[PreparedDevice], *, node: str
) -> tuple[DeviceHealth, ...]:
    """
    The health of every device of the node's pool: the cards of the look, and those that claims were given.

    A given card that does not exist is unhealthy. If the driver does not answer, its health is unknown.
    """
    found = {
        resourceclaims.device_name(card.uuid): (
            HealthStatus.HEALTHY if card.healthy else HealthStatus.UNHEALTHY,
            card.reason,
        )
        for card in observation.cards
        if card.uuid
    }
    missing = (
        (HealthStatus.UNKNOWN, observation.problem) if observation.problem else (HealthStatus.UNHEALTHY, _NOT_SHOWN)
    )
    given = {(device.pool, device.device): missing for device in prepared}
    known = {**given, **{(node, device): health for device, health in found.items()}}
    return tuple(DeviceHealth(*where, *health) for where, health in sorted(known.items()))


class HealthWatch:
    """
    Reports the health of one node's devices to watchers. `look` returns the latest look at the cards, None before the
    """

    def __init__(
        self,
        look: Callable[[], Observation | None],
        *,
        node: str,
        repeat: float = REPEAT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look = look
        self._node = node
        self._repeat = repeat
        self._clock = clock
        self._turn = 0
        self._turned = threading.Condition()

    def wake(self) -> None:
        """The cards were looked at, or a stream must end: every stream checks for itself. Never blocks."""
        with self._turned:
            self._turn += 1
            self._turned.notify_all()

    def updates(
        self, prepared: Callable[[], Iterable[PreparedDevice]], ended: Callable[[], bool]
    ) -> Iterator[tuple[DeviceHealth, ...]]:
        """The lists for one watcher, until `ended`. `prepared`: the devices that claims were given."""
        reported: tuple[DeviceHealth, ...] | None = None
        due, turn = self._clock(), self._turn
        while not ended():
            devices = self._now(prepared)
            if devices is not None and (devices != reported or self._clock() >= due):
                reported, due = devices, self._clock() + self._repeat
                yield devices
            turn = self._next(turn, max(due - self._clock(), 0.0) if devices is not None else self._repeat)

    def _now(self, prepared: Callable[[], Iterable[PreparedDevice]]) -> tuple[DeviceHealth, ...] | None:
        observation = self._look()
        if observation is None:
            return None  # the same as no answer: kubelet reports unknown by itself
        return device_health(observation, prepared(), node=self._node)

    def _next(self, turn: int, most: float) -> int:
        """Wait for the turn after this one, at most this many seconds. Returns the turn then."""
        with self._turned:
            self._turned.wait_for(lambda: self._turn != turn, most)
            return self._turn
