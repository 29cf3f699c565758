"""The driver of a simulated node."""

from __future__ import annotations

from collections.abc import Callable

import yaml

from nodeagent.gpus.simulated import BadSimulation, Simulated, SimulatedMachine, scene_from_document


class Driver(Simulated):
    """
    `Simulated` with a YAML document that `shows` returns at each look. It is decoded again only if it has changed.

    The document is not a file, so that a fork of the process shows its own cards.
    """

    def __init__(self, shows: Callable[[], str], *, node: str) -> None:
        self._shows = shows
        self._decoded: tuple[str, SimulatedMachine] | None = None
        super().__init__("", node=node)

    def _scene(self) -> SimulatedMachine:
        text = self._shows()
        if self._decoded is None or self._decoded[0] != text:
            try:
                document = yaml.safe_load(text)
            except yaml.YAMLError as error:
                raise BadSimulation("it is neither YAML nor JSON") from error
            self._decoded = text, scene_from_document(document, node=self._node)
        return self._decoded[1]
