"""
The result of a check: figures in, a result out. Pure.
"""

from __future__ import annotations

from kubectl_gpufraction.conformance import checks
from kubectl_gpufraction.conformance.codes import ReportReason
from kubectl_gpufraction.conformance.pods import OUT_OF_MEMORY, Look, ProbeAnswer
from kubectl_gpufraction.conformance.report import Result, because, passed

QUARTER = 25
"""Percent of a GPU's cores that the slower of two programs asks for."""
_SLOWER = 2
"""A program with a quarter of the cores is at least this many times slower; caps are coarse."""


def sees(look: Look, given: tuple[str, ...], check: str, variant: str = "", parents: tuple[str, ...] = ()) -> Result:
    """
    Whether a container sees the GPUs that its pod was given, and no other. If it cannot name them, it counts them.

    `parents`: the cards of which slices were given; tools list the card of a slice too.
    """
    figures = {"seen": look.seen, "given": len(given)}
    named = set(look.uuids)
    if named - set(given) - set(parents) or (not named and len(look.devices) > len(given)):
        return because(ReportReason.OTHER_GPUS, check, variant, **figures)
    if (named and not set(given) <= named) or look.seen < len(given) or not given:
        return because(ReportReason.NO_GPUS, check, variant, **figures)
    return passed(check, variant, **figures)


def counts(look: Look, number: int, check: str, variant: str) -> Result:
    """Whether a container sees as many GPUs as a device plugin gave it."""
    figures = {"seen": look.seen, "given": number}
    if look.seen == number:
        return passed(check, variant, **figures)
    return because(ReportReason.OTHER_GPUS if look.seen > number else ReportReason.NO_GPUS, check, variant, **figures)


def hidden(look: Look, variant: str) -> Result:
    """Whether a pod without a share sees no GPU."""
    if look.seen:
        return because(ReportReason.SEES_GPUS, checks.HIDDEN, variant, seen=look.seen)
    return passed(checks.HIDDEN, variant, seen=0)


def memory(answer: ProbeAnswer, level: str, share: int) -> Result:
    """Whether the program was refused more than its share of this many MiB."""
    code = answer.figures.get("code", 0)
    if answer.full:
        return because(ReportReason.NO_IDLE_GPU, checks.MEMORY, level)
    if answer.failed or "tookMiB" not in answer.figures or code not in (0, OUT_OF_MEMORY):
        return because(ReportReason.PROGRAM_FAILED, checks.MEMORY, level, cudaError=code)
    took = answer.figures["tookMiB"]
    figures = {"shareMiB": share, "tookMiB": took, "shownMiB": answer.figures.get("shownMiB", 0)}
    if took > share or not code:
        return because(ReportReason.NOT_HELD, checks.MEMORY, level, **figures)
    return passed(checks.MEMORY, level, **figures)


def cores(full: ProbeAnswer, quarter: ProbeAnswer, level: str) -> Result:
    """Whether the program with a quarter of the cores was slower than the one with all."""
    for each in (full, quarter):
        if each.failed or not each.figures.get("perSecond"):
            return because(ReportReason.PROGRAM_FAILED, checks.CORES, level, cudaError=each.figures.get("code", 0))
    figures = {"fullPerSecond": full.figures["perSecond"], "quarterPerSecond": quarter.figures["perSecond"]}
    if figures["quarterPerSecond"] * _SLOWER > figures["fullPerSecond"]:
        return because(ReportReason.NOT_HELD, checks.CORES, level, **figures)
    return passed(checks.CORES, level, **figures)


def neighbour(alone: ProbeAnswer, beside: ProbeAnswer) -> Result:
    """How long a kernel takes alone, and alongside a greedy neighbour. It has no bound: the figure is the result."""
    for each in (alone, beside):
        if each.failed or not each.figures.get("kernels"):
            return because(ReportReason.PROGRAM_FAILED, checks.NEIGHBOUR, cudaError=each.figures.get("code", 0))
    return passed(
        checks.NEIGHBOUR,
        aloneP50Microseconds=alone.figures.get("p50Microseconds", 0),
        aloneP99Microseconds=alone.figures.get("p99Microseconds", 0),
        besideP50Microseconds=beside.figures.get("p50Microseconds", 0),
        besideP99Microseconds=beside.figures.get("p99Microseconds", 0),
    )


def kept(before: Look, after: Look | None, check: str, seconds: int) -> Result:
    """Whether a container sees after a restart what it saw before it."""
    if after is None or (after.uuids, after.devices) != (before.uuids, before.devices) or not after.seen:
        return because(ReportReason.LOST, check, seen=after.seen if after is not None else 0, given=before.seen)
    return passed(check, seen=after.seen, given=before.seen, seconds=seconds)
