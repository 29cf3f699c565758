"""
What to do about a container that uses more than it may or is on an unhealthy GPU: warn and, if so set, evict.

    within ──over for `patience`──▶ warned ──over for `evict_after` more, where that is set──▶ evicted
       ▲                              │
       └──────────── within again ────┘

A short excess is no offence, since programs allocate and free. Each offence has one warning; the eviction is repeated
until it succeeds.

A container may use its memory limit. Where that is above what it has booked, it may use only what it has booked while
its GPU is full and another container there has less than it booked: MPS and the preloaded library give nothing back.

Pure but for what it remembers; times are passed in. Must not: write anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from contract.encoding.quantity import mib
from nodeagent.gpus.library import Card
from nodeagent.sharing.residents import Resident
from nodeagent.sharing.usage import NodeUsage, Use

OVERUSE, PRESSURE, UNHEALTHY = "GpuMemoryOveruse", "GpuMemoryPressure", "GpuUnhealthy"


@dataclass(frozen=True, slots=True)
class Rules:
    """
    Seconds and bytes. `slack`: what a container may use beyond its share, since every CUDA context needs some memory
    that its program did not request. `evict_after`, `evict_unhealthy_after`: 0 for never.
    """

    slack: int = 512 << 20
    patience: float = 30.0
    evict_after: float = 0.0
    evict_unhealthy_after: float = 0.0


@dataclass(frozen=True, slots=True)
class OveruseStep:
    """One thing to do: an Event on the pod, with its eviction where `evict`."""

    resident: Resident
    reason: str
    message: str
    evict: bool = False


@dataclass(frozen=True, slots=True)
class _Offence:
    since: float
    reason: str = OVERUSE
    warned: bool = False


_Key = tuple[str, str, str]


class OveruseMonitor:
    """Remembers since when containers use more than they may. One thread uses it."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._offences: dict[_Key, _Offence] = {}
        self._sick: dict[str, float] = {}
        self.violations: dict[_Key, int] = {}
        """Warnings of overuse so far by pod uid, container and GPU, of containers that are here."""

    def judge(self, usage: NodeUsage, cards: Iterable[Card], now: float) -> tuple[OveruseStep, ...]:
        """The steps due at `now`. A warning that it has returned counts as given."""
        steps = []
        over: dict[_Key, _Offence] = {}
        together, cards = _by_claim(usage.uses), tuple(cards)
        pressed = self._pressed(usage, cards)
        for use in usage.uses:
            others = together.get((_claim(use), use.gpu), use.used) - use.used
            reason = self._reason(use, others, pressed)
            if not reason:
                continue
            key = (use.resident.uid, use.container, use.gpu)
            offence = self._offences.get(key, _Offence(now, reason))
            offence = offence if offence.reason == reason else _Offence(now, reason)
            step, over[key] = self._offended(use, others, offence, now)
            if step is not None:
                steps.append(step)
            if over[key].warned and not offence.warned and reason == OVERUSE:
                self.violations[key] = self.violations.get(key, 0) + 1
        self._offences = over
        here = {(use.resident.uid, use.container, use.gpu) for use in usage.uses}
        self.violations = {key: count for key, count in self.violations.items() if key in here}
        return (*steps, *self._leaving(usage, cards, now))

    def _pressed(self, usage: NodeUsage, cards: Iterable[Card]) -> frozenset[str]:
        """GPUs that are full while a container there has less than it booked. A GPU without figures is not."""
        slack = self._rules.slack
        full = {c.uuid for c in cards if c.used_bytes is not None and c.memory_bytes - c.used_bytes <= slack}
        return frozenset(use.gpu for use in usage.uses if use.gpu in full and use.used + slack < use.share)

    def _reason(self, use: Use, others: int, pressed: frozenset[str]) -> str:
        """Why the container uses more than it may; empty if it does not."""
        if not use.used:
            return ""
        excess = use.used + others - self._rules.slack
        if excess > use.limit:
            return OVERUSE
        return PRESSURE if use.gpu in pressed and use.burst and excess > use.share else ""

    def _offended(self, use: Use, others: int, offence: _Offence, now: float) -> tuple[OveruseStep | None, _Offence]:
        rules, since = self._rules, now - offence.since
        message = _message(use, others, offence.reason)
        if rules.evict_after and since >= rules.patience + rules.evict_after:
            step = OveruseStep(use.resident, offence.reason, f"{message}; the pod is evicted", evict=True)
            return step, replace(offence, warned=True)
        if offence.warned or since < rules.patience:
            return None, offence
        threat = f"; the pod is evicted if it goes on for {rules.evict_after:g} s" if rules.evict_after else ""
        return OveruseStep(use.resident, offence.reason, message + threat), replace(offence, warned=True)

    def _leaving(self, usage: NodeUsage, cards: Iterable[Card], now: float) -> tuple[OveruseStep, ...]:
        """Evictions from GPUs that have been unhealthy for too long. A withheld GPU is not unhealthy."""
        ill = {card.uuid: card.reason for card in cards if card.uuid and not card.healthy and not card.sliced}
        self._sick = {uuid: self._sick.get(uuid, now) for uuid in ill}
        after = self._rules.evict_unhealthy_after
        if not after:
            return ()
        due = {uuid for uuid, since in self._sick.items() if now - since >= after}
        found = {use.resident.uid: (use.resident, use.gpu) for use in usage.uses if use.gpu in due}
        return tuple(
            OveruseStep(resident, UNHEALTHY, f"GPU {gpu} is unhealthy: {ill[gpu]}; the pod is evicted", evict=True)
            for resident, gpu in found.values()
        )


def _message(use: Use, others: int, reason: str) -> str:
    beside = f" and the others of its claim {mib(others)} MiB" if others else ""
    uses = f"container {use.container} uses {mib(use.used)} MiB of GPU {use.gpu}{beside}, "
    if reason == PRESSURE:
        return (
            f"{uses}{mib(use.used + others - use.share)} MiB more than the {mib(use.share)} MiB that it has booked, "
            "and the GPU is full while others there have less than they booked"
        )
    bound = "memory limit" if use.burst else "share"
    return f"{uses}{mib(use.used + others - use.limit)} MiB more than its {bound} of {mib(use.limit)} MiB"


def _claim(use: Use) -> str:
    """The claim of the container's share; empty if the share is its pod's own."""
    return use.resident.allocation.claim if use.resident.allocation is not None else ""


def _by_claim(uses: Iterable[Use]) -> dict[tuple[str, str], int]:
    """Used bytes by claim and GPU: all users of a claim have one share together."""
    found: dict[tuple[str, str], int] = {}
    for use in uses:
        if _claim(use):
            key = (_claim(use), use.gpu)
            found[key] = found.get(key, 0) + use.used
    return found
