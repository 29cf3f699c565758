"""
The CDI description of the cards themselves, for nodes where nobody else's tools describe them.

A container gets the card's device file and those that all cards share, and the folder with the driver's libraries and
programs, read-only, where images made for CUDA look for it. It is what the device plugin of Google's image brings.
Slices of cards (MIG) are not described: they have device files of their own.

`description` is pure; `Cards` writes it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from contract.model import Inventory
from nodeagent.files import read_text, write_atomically
from nodeagent.gpus.observation import Observation

log = logging.getLogger(__name__)
KIND = "gpufraction.io/card"
FILE = "gpufraction.io-card.json"
IN_CONTAINER = "/usr/local/nvidia"
"""Where images made for CUDA have their search paths for the driver's libraries and programs."""
SHARED = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
"""Device files that all cards share, of which a machine may lack some."""
_VERSION = "0.5.0"


def description(minors: Mapping[str, int], driver: str, shared: Iterable[str]) -> str:
    """
    The file's content. `minors`: the minor number of each card by UUID. `driver`: the driver's folder on the host.
    `shared`: those of `SHARED` that there are.
    """
    devices = [
        {"name": uuid, "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{minor}"}]}}
        for uuid, minor in sorted(minors.items())
    ]
    options = ["ro", "nosuid", "nodev", "bind"]
    edits: dict[str, Any] = {
        "deviceNodes": [{"path": f"/dev/{name}"} for name in shared],
        "mounts": [{"hostPath": driver, "containerPath": IN_CONTAINER, "options": options}],
    }
    whole = {"cdiVersion": _VERSION, "kind": KIND, "devices": devices, "containerEdits": edits}
    return json.dumps(whole, indent=1) + "\n"


class Cards:
    """
    Keeps the description in `folder`. `look` gives the latest look at the cards, `devices` is the host's /dev as it is
    seen here. One thread uses it.
    """

    def __init__(self, look: Callable[[], Observation | None], *, folder: Path, driver: str, devices: Path) -> None:
        self._look, self._file, self._driver, self._devices = look, folder / FILE, driver, devices
        self.trouble = ""
        """Why there is no description; empty if there is one."""

    def describe(self, inventory: Inventory) -> str | None:
        """Describe the cards that are about to be published. Their CDI kind; None if some could not be described."""
        if not inventory.gpus and self._file.exists():
            return KIND  # no card can be seen: keep the last description
        minors = self._minors({gpu.uuid for gpu in inventory.gpus})
        if any(gpu.parent for gpu in inventory.gpus):
            self.trouble = "slices of cards are not described"
        elif any(minor < 0 for minor in minors.values()) or not minors:
            self.trouble = "the driver does not tell the cards' device files"
        else:
            self.trouble = self._write(description(minors, self._driver, self._shared()))
        return None if self.trouble else KIND

    def _minors(self, wanted: Collection[str]) -> dict[str, int]:
        observation = self._look()
        known = {card.uuid: card.minor for card in observation.cards} if observation is not None else {}
        return {uuid: known.get(uuid, -1) for uuid in wanted}

    def _shared(self) -> list[str]:
        return [name for name in SHARED if (self._devices / name).exists()]

    def _write(self, text: str) -> str:
        if read_text(self._file) == text:
            return ""
        try:
            write_atomically(self._file, text)
        except OSError as error:
            log.warning("file not written", extra={"file": str(self._file), "reason": str(error)})
            return f"{self._file.name} cannot be written: {error.strerror}"
        return ""
