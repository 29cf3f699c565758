"""
The protocol between the agent and a GPU driver.

`nodeagent.gpus.nvml` implements it for real cards, `nodeagent.gpus.simulated` for described ones. Implementations raise
only the errors below, so that no other module has to know NVML's codes.

    GpuLibraryError          this machine's GPUs cannot be read
      LibraryMissing         there is no libnvidia-ml here: no driver installed, or not mounted into the container
      LibraryOutdated        the driver was replaced under the loaded library; only a new process can load the new one
      DriverGone             the kernel driver is not loaded, or being replaced
      NoPermission           the device files are there, but not for us
      LibraryBroken          anything else: the message carries the driver's words and code

A fault of one card is no error: the card is reported as unhealthy, with the reason.

Must not: know Kubernetes, keep threads, or decide what is published.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from contract.reasons.gpunodes import GPUNodeReason

ACTIVE_SECONDS = 20.0
"""The time over which a look shows whether a process used a card at all: two of the agent's intervals, to miss no
use."""


class GpuLibraryError(Exception):
    """The GPUs cannot be read now. `reason` is the condition's."""

    reason = GPUNodeReason.LIBRARY_BROKEN


class LibraryMissing(GpuLibraryError):
    """No NVML library can be loaded."""

    reason = GPUNodeReason.LIBRARY_MISSING


class LibraryOutdated(GpuLibraryError):
    """Library and kernel driver are of different versions."""

    reason = GPUNodeReason.LIBRARY_OUTDATED


class DriverGone(GpuLibraryError):
    """The library is present, the driver is not."""

    reason = GPUNodeReason.DRIVER_GONE


class NoPermission(GpuLibraryError):
    """The driver refuses to talk to this process."""

    reason = GPUNodeReason.NO_PERMISSION


class LibraryBroken(GpuLibraryError):
    """Any other failure."""


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """
    A control group's limits by the driver on one GPU, in bytes. `hard`: no allocation beyond it succeeds. `soft`: what
    it keeps for the group when others need memory; 0: nothing.
    """

    hard: int
    soft: int = 0


class DriverLimits(Protocol):
    """Sets limits of memory. Some drivers can."""

    def limit_memory(self, uuid: str, group: str, limit: MemoryLimit | None) -> str:
        """Set a control group's limit on one GPU, None for none, and read it back. The error, or empty."""
        ...


@dataclass(frozen=True, slots=True)
class Card:
    """
    One GPU as the driver reports it now.

    `index` is the driver's (NVML's) index, which is what `nvidia-smi` shows. It is not the minor number of
    `/dev/nvidia<N>`: the two differ on machines with several cards.
    """

    index: int
    uuid: str
    """Empty if the card does not report it; then no pod can get the card."""
    model: str
    memory_bytes: int
    """All of the card's memory, as `nvidia-smi` shows it; 0 if unknown."""
    reserved_bytes: int = 0
    """The part that driver and firmware use; 0 also if an old driver does not report it."""
    healthy: bool = True
    reason: str = ""
    """Why it is unhealthy, as a sentence; empty if it is healthy."""
    used_bytes: int | None = None
    """What processes have allocated, without the driver's reserve if that is known; None: unknown."""
    utilisation: int | None = None
    """Percent of the last sampling period in which a kernel ran; None: unknown."""
    pci: str = ""
    capability: str = ""
    numa: int = -1
    nvlinks: int = 0
    links: tuple[tuple[str, str], ...] = ()
    """These five as in `contract.model.Gpu`."""
    parent: str = ""
    """UUID of the card that this is a MIG slice of; empty for a card."""
    instances: tuple[int, int] | None = None
    """A slice's GPU instance and compute instance, as the driver counts them on its card; None: unknown, or a card."""
    minor: int = -1
    """The number of its device file, `/dev/nvidia<minor>`; -1: unknown."""
    sliced: bool = False
    """In MIG mode: its memory belongs to its slices, so the card itself takes no pods."""
    xids: tuple[int, ...] = ()
    """The driver's error numbers ("XIDs") since the last look, in their order."""
    processes: tuple[tuple[int, int], ...] | None = None
    """Processes that compute on it: (the host's process id, bytes); None: unknown."""
    busy: tuple[tuple[int, int], ...] | None = None
    """Processes: (the host's process id, percent of the multiprocessors at the last samples); None: unknown."""
    active: tuple[int, ...] | None = None
    """
    The host's ids of the processes that have used it at all in the last seconds: its multiprocessors, its memory or its
    video engines. None: unknown.
    """
    ecc: int | None = None
    """Memory errors that could not be corrected, since the driver was loaded; None: unknown."""


class GpuLibrary(Protocol):
    """
    A driver's library. Every call may block for as long as the driver does, so callers use a thread of its own.

    One thread at a time uses it. After an error, the next call initialises it again.
    """

    def driver_version(self) -> str:
        """The driver's version, such as `550.54.15`. Raises `GpuLibraryError`."""
        ...

    def cuda_version(self) -> str:
        """The newest CUDA that the driver runs, such as `12.4`; empty if unknown."""
        ...

    def gpus(self) -> tuple[Card, ...]:
        """
        Every card in the order of its index, also unhealthy ones, each followed by its MIG slices.

        Only the first call after an event reports it (`Card.xids`). Raises `GpuLibraryError`.
        """
        ...
