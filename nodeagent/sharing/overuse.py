"""
Which pods of this node use more than they may, or are on an unhealthy GPU: what the agent reports to the allocator.

    within ──over for `overuse_grace`──▶ reported ──over for `evict_overuse` more, unless 0──▶ reported to be evicted
       ▲                                    │
       └────────────── within again ────────┘

A short excess is not reported, because programs allocate and free. A report lasts as long as the excess, with the
figures of its first moment, so that a status is written when something begins or ends and not at every look.

A container may use its memory limit. Where that is above what it has booked, it may use only what it has booked while
its GPU is full and another container there has less than it booked: MPS and the preloaded library give nothing back.

Pure except for what it remembers; times are passed in, in seconds since 1970. Must not: write anything. The allocator
does, since the agent has no right to (`contract.nodes.reports`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from contract.nodes.reports import OVERUSE, PRESSURE, UNHEALTHY, PodReport
from contract.reasons.pods import PodEventReason
from nodeagent.gpus.library import Card
from nodeagent.sharing.residents import Resident
from nodeagent.sharing.usage import NodeUsage, Use
from runtime.settings import setting


@dataclass(frozen=True)
class OveruseSettings:
    """The limits beyond which a pod is reported."""

    overuse_slack: int = setting(
        512 << 20,
        "GPU memory that a container may use beyond its share before this counts as overuse: every CUDA context needs "
        "some memory that its program did not request.",
        unit="bytes",
        minimum=0,
    )
    overuse_grace: float = setting(
        30.0,
        "Time for which a container may use more memory than its share before its pod gets a warning Event.",
        unit="duration",
        minimum=0,
        formerly="overuse_patience",
    )
    evict_overuse: float = setting(
        0.0,
        "Time after that warning until the agent has the allocator evict the pod if it still uses more; needs the "
        "component allocator-eviction. 0: never.",
        unit="duration",
        minimum=0,
    )
    evict_unhealthy: float = setting(
        0.0,
        "Time for which a GPU may be unhealthy before the agent has the allocator evict the pods on it; needs the "
        "component allocator-eviction. 0: never.",
        unit="duration",
        minimum=0,
    )


@dataclass(frozen=True, slots=True)
class _Offence:
    since: float
    reason: PodEventReason = OVERUSE
    report: PodReport | None = None
    """The report; None before the patience is over."""


_Key = tuple[str, str, str]


class OveruseMonitor:
    """Remembers since when containers use more than they may. One thread uses it."""

    def __init__(self, settings: OveruseSettings) -> None:
        self._settings = settings
        self._offences: dict[_Key, _Offence] = {}
        self._sick: dict[str, float] = {}
        self.violations: dict[_Key, int] = {}
        """Warnings of overuse so far by pod uid, container and GPU, of containers that are here."""

    def judge(self, usage: NodeUsage, cards: Iterable[Card], now: float) -> frozenset[PodReport]:
        """The reports at `now`. A warning that it has returned counts as given."""
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
            over[key] = self._offended(use, others, offence, now)
            if over[key].report is not None and offence.report is None and reason == OVERUSE:
                self.violations[key] = self.violations.get(key, 0) + 1
        self._offences = over
        here = {(use.resident.uid, use.container, use.gpu) for use in usage.uses}
        self.violations = {key: count for key, count in self.violations.items() if key in here}
        reports = (offence.report for offence in over.values() if offence.report is not None)
        return frozenset(reports) | self._leaving(usage, cards, now)

    def _pressed(self, usage: NodeUsage, cards: Iterable[Card]) -> frozenset[str]:
        """GPUs that are full while a container there has less than it booked. A GPU without figures is not."""
        slack = self._settings.overuse_slack
        full = {c.uuid for c in cards if c.used_bytes is not None and c.memory_bytes - c.used_bytes <= slack}
        return frozenset(use.gpu for use in usage.uses if use.gpu in full and use.used + slack < use.share)

    def _reason(self, use: Use, others: int, pressed: frozenset[str]) -> PodEventReason | None:
        """Why the container uses more than it may; None if it does not."""
        if not use.used:
            return None
        excess = use.used + others - self._settings.overuse_slack
        if excess > use.limit:
            return OVERUSE
        return PRESSURE if use.gpu in pressed and use.burst and excess > use.share else None

    def _offended(self, use: Use, others: int, offence: _Offence, now: float) -> _Offence:
        since, grace, evict_after = now - offence.since, self._settings.overuse_grace, self._settings.evict_overuse
        evicts = evict_after > 0 and since >= grace + evict_after
        reported = offence.report
        if since < grace or (reported is not None and (reported.evict or not evicts)):
            return offence
        report = _report(use.resident, use.container, use.gpu, offence.reason, offence.since)
        report = replace(report, used=use.used, others=others)
        if evicts:
            return replace(offence, report=replace(report, evict=True))
        return replace(offence, report=replace(report, evict_after=int(evict_after)))

    def _leaving(self, usage: NodeUsage, cards: Iterable[Card], now: float) -> frozenset[PodReport]:
        """Evictions from GPUs that have been unhealthy for too long. A withheld GPU is not unhealthy."""
        ill = {card.uuid for card in cards if card.uuid and not card.healthy and not card.sliced}
        self._sick = {uuid: self._sick.get(uuid, now) for uuid in ill}
        after = self._settings.evict_unhealthy
        if not after:
            return frozenset()
        due = {uuid for uuid, since in self._sick.items() if now - since >= after}
        found = {use.resident.uid: use for use in usage.uses if use.gpu in due}
        return frozenset(
            replace(_report(use.resident, use.container, use.gpu, UNHEALTHY, self._sick[use.gpu]), evict=True)
            for use in found.values()
        )


def _report(resident: Resident, container: str, gpu: str, code: PodEventReason, since: float) -> PodReport:
    """A report about a container of this pod, which has a share."""
    containers = resident.allocation.containers if resident.allocation is not None else ()
    place = next((place for place, each in enumerate(containers) if each.container == container), 0)
    return PodReport(int(since), resident.uid, code, place, gpu)


def _claim(use: Use) -> str:
    """The key of the share that the container has together with other pods; empty if it is its pod's own."""
    return use.resident.allocation.group if use.resident.allocation is not None else ""


def _by_claim(uses: Iterable[Use]) -> dict[tuple[str, str], int]:
    """Used bytes by claim and GPU: all users of a claim have one share together."""
    found: dict[tuple[str, str], int] = {}
    for use in uses:
        if _claim(use):
            key = (_claim(use), use.gpu)
            found[key] = found.get(key, 0) + use.used
    return found
