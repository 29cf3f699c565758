"""The driver of a simulated node."""

from __future__ import annotations

from pathlib import Path

from nodeagent.gpus.simulated import Simulated, SimulatedMachine


class Driver(Simulated):
    """`Simulated` of a file that is decoded again only where it has changed: agents look at it each second or so."""

    def __init__(self, file: Path, *, node: str) -> None:
        self._file = file
        self._decoded: tuple[bytes, SimulatedMachine] | None = None
        super().__init__(f"@{file}", node=node)

    def _scene(self) -> SimulatedMachine:
        try:
            text = self._file.read_bytes()
        except OSError:
            return super()._scene()  # which tells what is wrong
        if self._decoded is None or self._decoded[0] != text:
            self._decoded = text, super()._scene()
        return self._decoded[1]
