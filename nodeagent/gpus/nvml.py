"""
The real GPU library: NVIDIA's NVML through its own Python bindings (`pynvml`, of the package nvidia-ml-py).

It hides NVML: every code becomes one of `nodeagent.gpus.library`'s errors or an unhealthy card, every text is `str`,
and if an old driver lacks a call, only its figure is missing. The bindings load the shared library on the first
call, so this module can be imported without a driver.

Each look reads the driver's queue of events without waiting: a thread that waits in the driver could not be stopped.

Must not: keep figures between calls, except which card was at which index, which is all that remains of a lost one, and
what cannot change while a card has its UUID (`Fixed`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from nodeagent.gpus.library import Card, GpuLibraryError, LibraryBroken, MemoryLimit
from nodeagent.gpus.nvml_calls import (
    FATAL,
    NvmlFailure,
    bindings,
    call,
    is_fatal,
    maybe,
    optional,
    preload,
    sickness,
    text,
)
from nodeagent.gpus.nvml_cards import Fixed, fixed_of, read_card, register, slices, xids_of

_T = TypeVar("_T")
_NO_LIMIT = (1 << 64) - 1


class Nvml:
    """
    `GpuLibrary` over NVML.

    `path`: a libnvidia-ml.so.1 that the dynamic linker would not find, such as one below a driver container's root;
    empty for the linker's choice. NVML stays initialised between calls and is initialised again after a failure.
    """

    def __init__(self, *, path: str = "") -> None:
        self._path = path
        self._ready = False
        self._known: dict[int, Card] = {}
        self._slices: dict[str, list[Card]] = {}
        self._fixed: dict[tuple[str, ...], dict[str, Fixed]] = {}
        self._events: Any = None

    def __repr__(self) -> str:
        return f"Nvml({self._path or 'libnvidia-ml.so.1'})"

    def driver_version(self) -> str:
        """See `GpuLibrary`."""
        return self._whole(lambda nvml: text(call(nvml, "nvmlSystemGetDriverVersion")))

    def cuda_version(self) -> str:
        """See `GpuLibrary`. NVML gives 12040 for 12.4."""

        def read(nvml: Any) -> str:
            # The _v2 call would fail, because the agent's container has no libcuda.
            number = optional(nvml, "nvmlSystemGetCudaDriverVersion")
            return f"{number // 1000}.{number % 1000 // 10}" if number else ""

        return self._whole(read)

    def gpus(self) -> tuple[Card, ...]:
        """See `GpuLibrary`."""

        def read(nvml: Any) -> tuple[Card, ...]:
            cards = self._cards(nvml)
            fixed = self._fixed_of(nvml, cards)
            xids = xids_of(nvml, self._events)
            found: list[Card] = []
            for card in cards:
                known = fixed.get(card.uuid)
                about = {name: getattr(known, name) for name in Fixed.__slots__} if known else {}
                found.append(replace(card, xids=xids.get(card.uuid, ()) + xids.get("", ()), **about))
                if card.sliced and card.uuid:
                    found += self._slices_of(nvml, found[-1], self._answered(card))
            return tuple(found)

        return self._whole(read)

    def _fixed_of(self, nvml: Any, cards: list[Card]) -> dict[str, Fixed]:
        """Read once for a set of cards: 8 cards have 56 paths between them."""
        found = ((card.uuid, maybe(nvml, "nvmlDeviceGetHandleByIndex", card.index)) for card in cards if card.uuid)
        handles = {uuid: handle for uuid, handle in found if handle is not None}
        present = tuple(handles)
        if present not in self._fixed:
            self._fixed = {present: {uuid: fixed_of(nvml, uuid, handles) for uuid in present}}
        return self._fixed[present]

    def limit_memory(self, uuid: str, group: str, limit: MemoryLimit | None) -> str:
        """
        See `nodeagent.gpus.library.DriverLimits`. nvml.h of driver 615: `nvmlDeviceSetMemoryLimits_v1`, in bytes;
        all bits set mean no limit. Only the hard limit is read back: without the soft one a group is still held.
        """
        hard, soft = (_NO_LIMIT, 0) if limit is None else (limit.hard, limit.soft)

        def change(nvml: Any) -> str:
            handle = call(nvml, "nvmlDeviceGetHandleByUUID", uuid)
            name = group.encode()
            wanted = nvml.c_nvmlSetMemoryLimits_v1_t(nameSpace=name, softLimit=soft, hardLimit=hard)
            call(nvml, "nvmlDeviceSetMemoryLimits_v1", handle, wanted)
            limits = nvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=name)
            call(nvml, "nvmlDeviceGetMemoryLimits_v1", handle, limits)
            found = int(limits.hardLimit)
            return (
                "" if found == hard else (f"the driver accepted {hard} bytes for {group} on {uuid} but reports {found}")
            )

        return self._changed(f"the driver did not limit {group} on {uuid}", change)

    def exclusive(self, uuid: str) -> bool | None:
        """See `nodeagent.mps.supervisor.Modes`."""

        def read(nvml: Any) -> bool | None:
            handle = maybe(nvml, "nvmlDeviceGetHandleByUUID", uuid)
            mode = None if handle is None else maybe(nvml, "nvmlDeviceGetComputeMode", handle)
            return None if mode is None else int(mode) == nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS

        try:
            return self._whole(read)
        except GpuLibraryError:
            return None

    def set_exclusive(self, uuid: str, exclusive: bool) -> str:
        """See `nodeagent.mps.supervisor.Modes`. Takes root; a card's mode outlasts the process that set it."""

        def change(nvml: Any) -> str:
            mode = nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS if exclusive else nvml.NVML_COMPUTEMODE_DEFAULT
            call(nvml, "nvmlDeviceSetComputeMode", call(nvml, "nvmlDeviceGetHandleByUUID", uuid), mode)
            return ""

        return self._changed(f"the driver did not change the compute mode of {uuid}", change)

    def close(self) -> None:
        """End the session with the driver. Idempotent; a later call initialises it again."""
        if self._ready:
            self._ready = False
            self._events = None
            # A failed call may be the reason for closing.
            with contextlib.suppress(NvmlFailure):
                call(bindings(), "nvmlShutdown")

    def _whole(self, read: Callable[[Any], _T]) -> _T:
        """Run `read` with NVML initialised; its failure ends the session with the driver."""
        try:
            return read(self._initialised())
        except NvmlFailure as failure:
            self.close()
            kind, sentence = FATAL.get(failure.code, (LibraryBroken, "the driver failed"))
            raise kind(f"{sentence}: {failure}") from failure

    def _changed(self, failed: str, change: Callable[[Any], str]) -> str:
        """The error that `change` returns, or `failed` followed by the driver's message; empty without an error."""

        def attempt(nvml: Any) -> str:
            try:
                return change(nvml)
            except NvmlFailure as failure:
                if is_fatal(failure):
                    raise
                return f"{failed}: {failure}"

        try:
            return self._whole(attempt)
        except GpuLibraryError as error:
            return str(error)

    def _initialised(self) -> Any:
        nvml = bindings()
        if not self._ready:
            if self._path:
                preload(self._path)
            call(nvml, "nvmlInit")
            self._ready = True
            # Register before the first figures are read, so that no event is lost in between.
            self._events = register(nvml)
        return nvml

    def _cards(self, nvml: Any) -> list[Card]:
        cards = [self._card(nvml, index) for index in range(call(nvml, "nvmlDeviceGetCount"))]
        # Indices shift when the driver starts without a card, so a remembered UUID may be at another index now.
        there = {card.uuid for card in cards if self._answered(card)}
        return [card if self._answered(card) or card.uuid not in there else replace(card, uuid="") for card in cards]

    def _answered(self, card: Card) -> bool:
        """Whether the card was read in this look, rather than remembered."""
        return card is self._known.get(card.index)

    def _slices_of(self, nvml: Any, card: Card, answered: bool) -> list[Card]:
        """The slices of a card. If it does not answer, the slices that it had last are lost."""
        before, reason = self._slices.get(card.uuid, []), card.reason
        if answered:
            try:
                self._slices[card.uuid] = slices(nvml, card)
                return self._slices[card.uuid]
            except NvmlFailure as failure:
                if failure.code in FATAL:
                    raise
                reason = sickness(failure)
        return [_lost(part, reason) for part in before]

    def _card(self, nvml: Any, index: int) -> Card:
        try:
            card = read_card(nvml, index)
        except NvmlFailure as failure:
            if failure.code in FATAL:
                raise
            blank = Card(index=index, uuid="", model="", memory_bytes=0)
            return _lost(self._known.get(index, blank), sickness(failure))
        self._known[index] = card
        return card


def _lost(card: Card, reason: str) -> Card:
    """A card or slice that does not answer: unhealthy, and without the figures of the moment."""
    nothing: dict[str, Any] = dict.fromkeys(("used_bytes", "utilisation", "processes", "busy", "active", "ecc"))
    return replace(card, healthy=False, reason=reason, **nothing)
