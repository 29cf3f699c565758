"""
The CDI description of the cards themselves, for nodes where no other tool describes them.

A container gets the card's device file and those that all cards share, and the folder with the driver's libraries and
programs, read-only, where images made for CUDA look for it. It is what the device plugin of Google's image brings.

A slice of a card (MIG) has its card's device file, and two files of its own by which the driver lets a program use it:
the capabilities of its GPU instance and of its compute instance (NVIDIA's MIG User Guide, "Device Nodes and
Capabilities"). A container gets those of its own slices only. A card in MIG mode itself is not described.

`description`, `capabilities_of` and `files_of` are pure; `Cards` reads the host and writes the description.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contract.model import Inventory
from nodeagent.files import read_text, write_atomically
from nodeagent.gpus.library import Card
from nodeagent.gpus.observation import Observation

log = logging.getLogger(__name__)
KIND = "gpufraction.io/card"
FILE = "gpufraction.io-card.json"
IN_CONTAINER = "/usr/local/nvidia"
"""The folder in which images for CUDA look for the driver's libraries and programs."""
SHARED = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
"""Device files that all cards share, of which a machine may lack some."""
MINORS, MAJORS = "driver/nvidia-caps/mig-minors", "devices"
"""Below /proc: the numbers of all capabilities of slices, and the kernel's list of drivers."""
_CAPABILITIES = "nvidia-caps"
"""The driver's name in that list, and the folder of its files in /dev."""
_VERSION = "0.5.0"
_SLICE = "MIG-"
"""How the UUIDs of slices begin."""
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
"""The form of a device's name in a CDI description; a runtime refuses a whole description with another name."""
_LINE = re.compile(r"(gpu[0-9]{1,4}/gi[0-9]{1,4}/(?:ci[0-9]{1,4}/)?access) ([0-9]{1,8})")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """
    The driver's report on the files by which slices are used. `minors`: their minor numbers, by the capability's
    name. `major`: of all of them; -1 where the kernel has no such driver.
    """

    minors: Mapping[str, int] = field(default_factory=dict)
    major: int = -1


@dataclass(frozen=True, slots=True)
class Undescribed:
    """Why a card or a slice cannot be described."""

    reason: str


def capabilities_of(minors: str, majors: str) -> Capabilities:
    """Read the contents of `MINORS` and `MAJORS`. Lines of another form are left out, such as the administrator's."""
    found = {m[1]: int(m[2]) for m in map(_LINE.fullmatch, map(str.strip, minors.splitlines())) if m}
    characters = majors.partition("Block devices:")[0]
    drivers = {words[1]: words[0] for words in map(str.split, characters.splitlines()) if len(words) == 2}
    major = drivers.get(_CAPABILITIES, "")
    return Capabilities(found, int(major) if major.isascii() and major.isdecimal() else -1)


def files_of(
    card: Card | None, capabilities: Capabilities, numbers: Callable[[str], tuple[int, int] | None]
) -> tuple[str, ...] | Undescribed:
    """
    The device files below /dev of a card or a slice, without those that all share.

    `card`: as the driver shows it; None where it does not. `numbers`: major and minor number of a device file below
    /dev, None where there is none. The capabilities count by the number of their card's device file, as the driver's
    list does.
    """
    if card is None or card.minor < 0:
        return Undescribed("the driver does not report the GPUs' device files")
    own = f"nvidia{card.minor}"
    if not _NAME.fullmatch(card.uuid):
        return Undescribed(
            f"{card.uuid}, the driver's name of the GPU, cannot be used in a description; drivers since 470 have "
            f"other names"
        )
    if not card.parent:
        return (own,)
    if card.instances is None:
        return Undescribed("the driver does not report the slice's GPU instance and compute instance")
    gpu_instance, compute_instance = card.instances
    top = f"gpu{card.minor}/gi{gpu_instance}"
    files = [own]
    for name in (f"{top}/access", f"{top}/ci{compute_instance}/access"):
        minor = capabilities.minors.get(name)
        if minor is None:
            return Undescribed(f"/proc/{MINORS} does not list {name}")
        file = f"{_CAPABILITIES}/nvidia-cap{minor}"
        there = numbers(file)
        if there is None:
            return Undescribed(f"the device file /dev/{file} ({name}) is missing")
        if there != (capabilities.major, minor):
            return Undescribed(f"the device file /dev/{file} ({name}) does not belong to the driver")
        files.append(file)
    return tuple(files)


def description(files: Mapping[str, Iterable[str]], driver: str, shared: Iterable[str]) -> str:
    """
    The content of the description. `files`: the device files below /dev of each card or slice by UUID. `driver`: the
    driver's folder on the host. `shared`: those of `SHARED` that there are.
    """
    devices = [{"name": uuid, "containerEdits": {"deviceNodes": _nodes(own)}} for uuid, own in sorted(files.items())]
    options = ["ro", "nosuid", "nodev", "bind"]
    edits: dict[str, Any] = {
        "deviceNodes": _nodes(shared),
        "mounts": [{"hostPath": driver, "containerPath": IN_CONTAINER, "options": options}],
    }
    whole = {"cdiVersion": _VERSION, "kind": KIND, "devices": devices, "containerEdits": edits}
    return json.dumps(whole, indent=1) + "\n"


def _nodes(files: Iterable[str]) -> list[dict[str, str]]:
    return [{"path": f"/dev/{file}"} for file in files]


def device_numbers(file: Path) -> tuple[int, int] | None:
    """Major and minor number of a character device's file; None where there is none."""
    try:
        found = file.stat()
    except OSError:
        return None
    return (os.major(found.st_rdev), os.minor(found.st_rdev)) if stat.S_ISCHR(found.st_mode) else None


class Cards:
    """
    Keeps the description in `folder`. `look` gives the latest look at the cards. `devices` and `proc` are the host's
    /dev and /proc as they are seen here; `numbers` reads a device file. One thread uses it.
    """

    def __init__(
        self,
        look: Callable[[], Observation | None],
        *,
        folder: Path,
        driver: str,
        devices: Path,
        proc: Path,
        numbers: Callable[[Path], tuple[int, int] | None] = device_numbers,
    ) -> None:
        self._look = look
        self._file = folder / FILE
        self._driver = driver
        self._devices = devices
        self._proc = proc
        self._numbers = numbers
        self.trouble = ""
        """Why there is no description; empty if there is one."""
        self.undescribed: Mapping[str, str] = {}
        """The cards and slices that are not in the description, each with the reason; none without a description."""

    def describe(self, inventory: Inventory) -> str | None:
        """Describe the cards that are about to be published. Their CDI kind; None if none could be described."""
        if not inventory.gpus and self._file.exists():
            return KIND  # no card can be seen: keep the last description
        found = self._found({gpu.uuid for gpu in inventory.gpus})
        files = {uuid: each for uuid, each in found.items() if not isinstance(each, Undescribed)}
        reasons = {uuid: each.reason for uuid, each in found.items() if isinstance(each, Undescribed)}
        self.undescribed = reasons if files else {}
        if files:
            self.trouble = self._write(description(files, self._driver, self._shared()))
        else:
            self.trouble = next(iter(reasons.values()), "the driver reports no device files that containers can get")
            self._forget_slices()
        return None if self.trouble else KIND

    def _found(self, wanted: Collection[str]) -> dict[str, tuple[str, ...] | Undescribed]:
        """The files that belong to each card and slice alone, without the cards that are cut into slices."""
        observation = self._look()
        known = {card.uuid: card for card in observation.cards} if observation is not None else {}
        cards = {uuid: known.get(uuid) for uuid in sorted(wanted)}
        some = any(card is not None and card.parent for card in cards.values())
        capabilities = self._capabilities() if some else Capabilities()
        return {
            uuid: files_of(card, capabilities, numbers=lambda file: self._numbers(self._devices / file))
            for uuid, card in cards.items()
            if card is None or not card.sliced
        }

    def _forget_slices(self) -> None:
        """Remove a description that names slices: a new slice may have the files of one that is no longer there."""
        if f'"name": "{_SLICE}' in read_text(self._file):
            with contextlib.suppress(OSError):
                self._file.unlink()

    def _capabilities(self) -> Capabilities:
        return capabilities_of(read_text(self._proc / MINORS), read_text(self._proc / MAJORS))

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
