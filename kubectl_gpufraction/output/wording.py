"""Requests and lists in the words of every command. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from contract.encoding.quantity import format_bytes
from contract.model import FractionRequest
from kubectl_gpufraction.cluster.state import Pod

_MOST_SHOWN = 5


def few(texts: Sequence[str]) -> str:
    """The first few of them, and how many more there are."""
    more = len(texts) - _MOST_SHOWN
    return ", ".join(texts[:_MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")


def asked(pod: Pod) -> str:
    """A pod's request in short: `2x8Gi+30%` for each container, or `claim NAME`."""
    if pod.request.claim:
        return f"claim {pod.request.claim}"
    return " ".join(_asked(fraction) for fraction in pod.request.containers)


def _asked(fraction: FractionRequest) -> str:
    memory = format_bytes(fraction.memory) if fraction.memory else f"{fraction.percent}%mem"
    if fraction.exclusive:
        memory = "whole"
    cores = f"+{fraction.cores}%" if fraction.cores and not fraction.exclusive else ""
    return f"{fraction.count}x{memory}{cores}"
