"""
Calls of NVML's bindings, and the meaning of their codes (nvml.h, `nvmlReturn_t`; their numbers are part of the ABI).

Must not: raise an exception of the bindings, or load them before the first call.
"""

from __future__ import annotations

import ctypes
from typing import Any

from nodeagent.gpus.library import DriverGone, GpuLibraryError, LibraryMissing, LibraryOutdated, NoPermission

UNINITIALIZED, NOT_SUPPORTED, NO_PERMISSION = 1, 3, 4
_DRIVER_NOT_LOADED, _LIBRARY_NOT_FOUND, _FUNCTION_NOT_FOUND = 9, 12, 13
_GPU_IS_LOST, _RESET_REQUIRED, _VERSION_MISMATCH, _GPU_NOT_FOUND = 15, 16, 18, 28

FATAL: dict[int, tuple[type[GpuLibraryError], str]] = {
    UNINITIALIZED: (DriverGone, "NVML was shut down under the agent"),
    NO_PERMISSION: (NoPermission, "the agent may not use the driver; it needs /dev/nvidiactl and the cards' files"),
    _DRIVER_NOT_LOADED: (DriverGone, "the NVIDIA kernel driver is not loaded"),
    _LIBRARY_NOT_FOUND: (
        LibraryMissing,
        "libnvidia-ml.so.1 was not found: there is no driver on the node, or it is not visible in this container",
    ),
    _VERSION_MISMATCH: (
        LibraryOutdated,
        "the kernel driver and the loaded libnvidia-ml.so.1 are of different versions; reload the driver or reboot "
        "the node. If that was done, restart the agent's pod",
    ),
}
"""Codes about the whole machine, whichever call returns them."""

SICK: dict[int, str] = {
    _GPU_IS_LOST: "the GPU has fallen off the bus",
    _RESET_REQUIRED: "the GPU needs a reset",
    _GPU_NOT_FOUND: "the driver no longer has a GPU at this index",
}

_ABSENT = frozenset({NOT_SUPPORTED, _FUNCTION_NOT_FOUND})
"""The card or the driver does not have this figure, which is no fault."""


class NvmlFailure(Exception):
    """The code of a failed call, with the driver's words; never leaves `nodeagent.gpus.nvml`."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(f"{words} (NVML code {code})")
        self.code = code


def bindings() -> Any:
    import pynvml

    return pynvml


def preload(path: str) -> None:
    """
    Load the library by path, so that the bindings, which load it by name, get this one.

    dlopen(3) returns an object that is already loaded if its DT_SONAME is the requested name.
    """
    try:
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise LibraryMissing(f"{path} cannot be loaded: {error}") from error


def is_fatal(failure: NvmlFailure) -> bool:
    """Whether it concerns the whole machine. A refusal does not: vGPUs and MIG refuse some calls always."""
    return failure.code in FATAL and failure.code != NO_PERMISSION


def sickness(failure: NvmlFailure) -> str:
    """What is wrong with the card whose call failed, as a sentence."""
    return f"{SICK.get(failure.code, 'the GPU does not answer')}: {failure}"


def call(nvml: Any, name: str, *arguments: Any) -> Any:
    """One call of the bindings. Raises `NvmlFailure` and nothing else."""
    try:
        return getattr(nvml, name)(*arguments)
    except nvml.NVMLError as error:
        raise NvmlFailure(int(error.value), str(error)) from error
    except UnicodeDecodeError as error:
        raise NvmlFailure(0, f"{name} returned text that is not UTF-8") from error


def optional(nvml: Any, name: str, *arguments: Any) -> Any:
    """As `call`, with None if the driver or the card does not have it."""
    try:
        return call(nvml, name, *arguments)
    except NvmlFailure as failure:
        if failure.code in _ABSENT:
            return None
        raise


def text(value: Any) -> str:
    """Old bindings give bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def maybe(nvml: Any, name: str, *arguments: Any) -> Any:
    """As `call`, with None for every failure that concerns this call only."""
    try:
        return call(nvml, name, *arguments)
    except NvmlFailure as failure:
        if is_fatal(failure):
            raise
        return None
