"""Requests, ages, bars and lists in the words of every command. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from contract.encoding import moments
from contract.encoding.plain import NAME
from contract.encoding.quantity import format_bytes
from contract.model import FractionRequest
from contract.scheduling.fairness import BEHIND
from kubectl_gpufraction.cluster.state import ClusterView, NamespaceShare, Pod

_MOST_SHOWN = 5
_BAR = 10
"""Characters of a bar."""


def age(key: str) -> Callable[[Mapping[str, Any], float], str]:
    """A cell that shows the time under this key of its row as kubectl shows ages: `61m`; empty where there is none."""

    def shown(row: Mapping[str, Any], now: float) -> str:
        then = moments.seconds(row[key])
        return "" if then is None else moments.duration(now - then).replace(" min", "m").replace(" ", "")

    return shown


def bar(part: int, whole: int) -> str:
    """`####......` for 4 of 10. Something is never shown as nothing; `!` at the end means more than the whole."""
    if part > whole:
        return "#" * (_BAR - 1) + "!"
    full = -(-part * _BAR // whole) if whole else 0
    full = _BAR - 1 if full == _BAR and part < whole else full
    return "#" * full + "." * (_BAR - full)


def many(number: int, one: str, several: str = "") -> str:
    """`1 pod`, `2 pods`."""
    return f"{number} {one if number == 1 else several or one + 's'}"


def suggestion(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'pods'?` where one of the known words is close to this one; else empty."""
    found = difflib.get_close_matches(word[:NAME], [each for each in known if each != word], 1, 0.6)
    return f"; did you mean {found[0]!r}?" if found else ""


def few(texts: Sequence[str]) -> str:
    """The first few of them, and how many more there are."""
    more = len(texts) - _MOST_SHOWN
    return ", ".join(texts[:_MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")


def request_text(pod: Pod) -> str:
    """A pod's request in short: `2x8Gi+30%` for each container, `1x8Gi..24Gi` with a limit, or `claim NAME`."""
    if pod.request.claim:
        return f"claim {pod.request.claim}"
    return " ".join(_fraction_text(fraction) for fraction in pod.request.containers)


def _fraction_text(fraction: FractionRequest) -> str:
    memory = format_bytes(fraction.memory) if fraction.memory else f"{fraction.percent}%mem"
    if fraction.limit:
        memory += f"..{format_bytes(fraction.limit)}" if fraction.memory else f"..{fraction.limit}%"
    if fraction.exclusive:
        memory = "whole"
    cores = f"+{fraction.cores}%" if fraction.cores and not fraction.exclusive else ""
    return f"{fraction.count}x{memory}{cores}"


def reason(state: ClusterView, pod: Pod) -> str:
    """
    Why the pod waits, by its condition. A user who sees the whole cluster reads which namespace holds less;
    tenants read only that there is one.
    """
    if not state.whole or not pod.reason:
        return pod.reason
    known, ahead = pod.reason.replace(f"; {BEHIND}", ""), state.ahead(pod)
    return known if ahead is None else f"{known}; behind {ahead[0].namespace}, which has a smaller share"


def plain_reason(state: ClusterView, pod: Pod) -> str:
    """The same without that namespace, for messages that name it in another sentence (`behind`)."""
    return pod.reason.replace(f"; {BEHIND}", "") if state.ahead(pod) is not None else pod.reason


def behind(state: ClusterView, pod: Pod) -> list[str]:
    """The sentences about the namespace that is before the pod's own in the fair order, if there is one."""
    ahead = state.ahead(pod)
    if ahead is None:
        return []
    first, own = ahead
    lines = [f"Behind {first.namespace}, which has a smaller share: {_held(first)}; {own.namespace}: {_held(own)}"]
    return lines + [f"Note: {each.misread}" for each in ahead if each.misread]


def _held(share: NamespaceShare) -> str:
    weight = f", weight {share.weight}" if share.weight != 1 else ""
    return f"{share.percent:.3g} % of the cluster{weight}"
