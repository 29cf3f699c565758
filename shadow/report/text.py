"""
Reports as text for a terminal or a file, and as JSON. Other people's text is made fit to be shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from contract.encoding import moments, quantity
from contract.encoding.plain import CELL, LINE, plain
from shadow.replay.outcome import CardUse, Fates
from shadow.report.figures import ShadowReport, WaitFigures, waits
from shadow.systems import SYSTEMS

JSON = dict[str, Any]
_GAP = "   "
_MOST_ROWS = 20
_TITLES = {each.name: each.title for each in SYSTEMS} | {"time-slicing": "time slicing"}


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The rows in aligned columns under their headings; numbers and names alike to the left."""
    cells = [[*headings], *([plain(str(cell), CELL) for cell in row] for row in rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(headings))]
    return [_GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def report(found: ShadowReport) -> str:
    """The report for people."""
    lines = [*_head(found), "", *_summary(found), ""]
    lines += _over(found)
    lines += _by_namespace(found)
    lines += _waiting(found)
    lines += _refused(found)
    lines += _limits(found)
    return "\n".join(plain(line, LINE) for line in lines) + "\n"


def _head(found: ShadowReport) -> list[str]:
    window = found.window
    served = ", ".join(
        f"{_TITLES.get(name, name)}: {_number(nodes, 'node')}, {_number(cards, 'card')}"
        for name, nodes, cards in found.systems
    )
    lines = [
        f"Recorded for {moments.duration(window.length)}, from {moments.stamp(window.begin)} to "
        f"{moments.stamp(window.end)}: {len(window.asking)} pods that request GPUs.",
        f"{served or 'No node with cards was seen'}.",
    ]
    if window.paused > 1:
        lines.append(f"No recorder ran for {moments.duration(window.paused)} of this time.")
    return lines


def _summary(found: ShadowReport) -> list[str]:
    rows = [*_use_rows(found.before, found.after), *_wait_rows(*found.waits)]
    mean, most = found.saved
    if mean > 0.05 or most > 0:
        part = 100 * mean / found.before.mean if found.before.mean else 0.0
        busiest = f", {most:.0f} at the busiest time" if most > 0 else ""
        words = f"gpufraction would have saved {mean:.1f} cards on average ({part:.0f} %){busiest}."
    else:
        words = "gpufraction would have saved no cards with these requests."
        if any(name == "nvidia" for name, _, _ in found.systems):
            words += (
                " Pods with whole cards stay on whole cards; --whole 40 assumes that they request 40 percent of each."
            )
    return [*table(("", "as it is", "with gpufraction"), rows), "", words]


def _use_rows(before: CardUse, after: CardUse) -> list[tuple[str, str, str]]:
    return [
        ("cards there, mean", f"{before.cards:.1f}", f"{after.cards:.1f}"),
        ("cards in use, mean", f"{before.mean:.1f}", f"{after.mean:.1f}"),
        ("cards in use, 95 % of the time at most", f"{before.high:.0f}", f"{after.high:.0f}"),
        ("cards in use, most", f"{before.most}", f"{after.most}"),
    ]


def _wait_rows(before: WaitFigures, after: WaitFigures) -> list[tuple[str, str, str]]:
    return [
        ("pods created", f"{before.pods}", f"{after.pods}"),
        ("pods that waited", f"{before.waited}", f"{after.waited}"),
        ("waiting time, mean", _seconds(before.mean), _seconds(after.mean)),
        ("waiting time, 95 % of pods at most", _seconds(before.high), _seconds(after.high)),
        ("waiting time, longest", _seconds(before.longest), _seconds(after.longest)),
        ("pods that never started", f"{before.never}", f"{after.never}"),
        ("pods that are refused", "-", f"{after.refused}"),
    ]


def _seconds(length: float) -> str:
    return moments.duration(length)


def _over(found: ShadowReport) -> list[str]:
    cards = found.overcommitted
    if not cards:
        return ["No overcommitted card was seen.", ""]
    rows = [
        (
            each.node,
            each.uuid,
            moments.stamp(each.since),
            moments.duration(each.seconds),
            f"{quantity.mib(each.memory)} of {quantity.mib(each.of)} MiB{' (scaled)' if each.scaled else ''}",
            f"{each.cores} %",
            ", ".join(each.pods),
        )
        for each in cards[:_MOST_ROWS]
    ]
    return [
        f"{_number(len(cards), 'overcommitted card')} seen:",
        *table(("NODE", "CARD", "SINCE", "FOR", "MEMORY HELD", "CORES", "PODS"), rows),
        *_more(len(cards)),
        "",
    ]


def _by_namespace(found: ShadowReport) -> list[str]:
    if not found.namespaces:
        return []
    rows = [
        (
            each.namespace,
            f"{each.after.pods}",
            f"{each.before.waited}",
            _seconds(each.before.longest),
            f"{each.after.waited}",
            _seconds(each.after.longest),
            f"{each.after.refused}",
        )
        for each in sorted(found.namespaces, key=lambda each: -each.after.pods)[: _MOST_ROWS * 5]
    ]
    return [
        "By namespace:",
        *table(("NAMESPACE", "PODS", "WAITED", "LONGEST", "WOULD WAIT", "LONGEST", "REFUSED"), rows),
        *_more(len(found.namespaces), _MOST_ROWS * 5),
        "",
    ]


def _waiting(found: ShadowReport) -> list[str]:
    if not found.longer:
        return ["No pod would have waited longer than it did.", ""]
    rows = [
        (
            f"{each.namespace}/{each.name}",
            _seconds(each.before),
            _seconds(each.after) if each.placed else f"never started, {_seconds(each.after)}",
            each.why,
        )
        for each in found.longer
    ]
    return [
        "Pods that would have waited longer than they did, longest first:",
        *table(("POD", "WAITED", "WOULD WAIT", "WHY"), rows),
        "",
    ]


def _refused(found: ShadowReport) -> list[str]:
    if not found.refused:
        return []
    rows = [(namespace, workload, f"{pods}", words) for namespace, workload, words, pods in found.refused[:_MOST_ROWS]]
    return [
        "Workloads whose pods admission refuses, until their manifests are changed:",
        *table(("NAMESPACE", "WORKLOAD", "PODS", "WHY"), rows),
        *_more(len(found.refused)),
        "",
    ]


def _limits(found: ShadowReport) -> list[str]:
    """Notes for the reader about the origin of the figures."""
    lines = [
        "Pods that existed when the recording began are placed again, and do not count as created. Volumes, labels of "
        "namespaces and pods on nodes without cards are not recorded; no pod is evicted.",
    ]
    if found.crowded:
        lines.append(
            f"{_number(found.crowded, 'pod')} that existed when the recording began find no room at first, for "
            f"example because cards are overcommitted. Their waiting time is not counted above."
        )
    if found.unknown:
        lines.append(
            f"{_number(found.unknown, 'pod')} hold cards that the API server does not name. Their cards are counted as "
            "if the pods were packed, so the saving is not overstated."
        )
    if found.stray:
        lines.append(f"{_number(found.stray, 'pod')} claim cards that no node reports; they are counted on their node.")
    if found.window.left_out:
        number = sum(pods for _, pods in found.window.left_out)
        names = ", ".join(namespace for namespace, _ in found.window.left_out[:5])
        lines.append(f"{_number(number, 'pod')} were not recorded: their namespaces created too many ({names}).")
    if found.window.unread:
        lines.append(f"{_number(found.window.unread, 'line')} of the recording cannot be read.")
    if found.faults:
        lines.append(
            f"{_number(found.faults, 'pod')} could not be replayed because of a bug in gpufraction; please report it."
        )
    return lines


def _number(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _more(number: int, most: int = _MOST_ROWS) -> list[str]:
    return [f"and {number - most} more; -o json has all"] if number > most else []


def compared(before: Fates, after: Fates) -> str:
    """The table of a replay without a change and with it."""
    first, second = waits(before.fresh), waits(after.fresh)
    rows = [
        *_use_rows(before.use, after.use),
        ("memory allocated, mean", f"{before.use.allocated:.1f} %", f"{after.use.allocated:.1f} %"),
        *_wait_rows(first, second)[:-1],
        ("pods that are refused", f"{first.refused}", f"{second.refused}"),
    ]
    return "\n".join(table(("", "without the change", "with it"), rows)) + "\n"


def report_json(found: ShadowReport) -> JSON:
    """The report for programs."""
    window = found.window
    return {
        "begin": moments.stamp(window.begin),
        "end": moments.stamp(window.end),
        "pausedSeconds": round(window.paused),
        "pods": len(window.asking),
        "systems": [{"name": name, "nodes": nodes, "cards": cards} for name, nodes, cards in found.systems],
        "before": _side(found.before, found.waits[0]),
        "after": _side(found.after, found.waits[1]),
        "saved": {"mean": round(found.saved[0], 3), "most": round(found.saved[1])},
        "overcommitted": [
            {
                "node": each.node,
                "uuid": each.uuid,
                "since": moments.stamp(each.since),
                "seconds": round(each.seconds),
                "memoryBytes": each.memory,
                "ofBytes": each.of,
                "cores": each.cores,
                "scaled": each.scaled,
                "pods": list(each.pods),
            }
            for each in found.overcommitted
        ],
        "namespaces": [
            {"name": each.namespace, "before": _waits(each.before), "after": _waits(each.after)}
            for each in found.namespaces
        ],
        "longer": [
            {
                "pod": f"{each.namespace}/{each.name}",
                "before": round(each.before),
                "after": round(each.after),
                "placed": each.placed,
                "why": each.why,
            }
            for each in found.longer
        ],
        "refused": [
            {"namespace": namespace, "workload": workload, "why": words, "pods": pods}
            for namespace, workload, words, pods in found.refused
        ],
        "leftOut": dict(window.left_out),
        "unreadLines": window.unread,
        "crowdedAtBegin": found.crowded,
        "cardNotNamed": found.unknown,
        "cardNotReported": found.stray,
        "faults": found.faults,
    }


def compared_json(before: Fates, after: Fates) -> JSON:
    """The comparison for programs."""
    return {
        "without": {**_side(before.use, waits(before.fresh)), "faults": before.faults},
        "with": {**_side(after.use, waits(after.fresh)), "faults": after.faults},
    }


def _side(use: CardUse, waited: WaitFigures) -> JSON:
    return {
        "cards": round(use.cards, 3),
        "inUseMean": round(use.mean, 3),
        "inUse95": round(use.high),
        "inUseMost": use.most,
        "memoryAllocatedPercent": round(use.allocated, 2),
        **_waits(waited),
    }


def _waits(found: WaitFigures) -> JSON:
    return {
        "pods": found.pods,
        "waited": found.waited,
        "waitMean": round(found.mean, 1),
        "wait95": round(found.high, 1),
        "waitLongest": round(found.longest, 1),
        "neverStarted": found.never,
        "refused": found.refused,
    }
