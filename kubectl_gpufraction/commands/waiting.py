"""`kubectl gpufraction waiting`: the queue."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from contract.encoding import moments
from kubectl_gpufraction.cluster.leadership import NOTHING_KNOWN
from kubectl_gpufraction.cluster.state import TERMINATING, ClusterView
from kubectl_gpufraction.commands import select, timelimits
from kubectl_gpufraction.output.forms import CommandOutput
from kubectl_gpufraction.output.tables import Column
from kubectl_gpufraction.output.wording import age, few, many, reason, request_text
from kubectl_gpufraction.session import LABELLED, OF_PODS, Command, Session

Row = Mapping[str, Any]
_MOST_RESERVED = 10
"""Reserved nodes that are named."""
COLUMNS = (
    Column("place", "PLACE"),
    Column("namespace", "NAMESPACE"),
    Column("name", "NAME"),
    Column("asks", "ASKS"),
    Column("since", "WAITS", of=age("since")),
    Column("code", "WHY", of=lambda row, _: _why(row)),
    Column("priority", "PRIORITY", wide=True),
    Column("dialect", "DIALECT", wide=True),
    Column("behind", "BEHIND", wide=True),
    Column("reason", "REASON", wide=True),
)


def rows(state: ClusterView, namespace: str | None) -> list[Row]:
    """
    The queue. A pod's place is that among the pods of all namespaces, `2-4` if several share it.

    Pods that were deleted while they waited and that a finalizer keeps come last; they have no place.
    """
    places = state.places()
    return [
        {
            "place": places[pod.key].shown if state.whole and pod.waits else None,
            "namespace": pod.namespace,
            "name": pod.name,
            "asks": request_text(pod),
            "since": pod.since or moments.shown(pod.created),
            "code": pod.code,
            "reason": reason(state, pod),
            "behind": ahead[0].namespace if (ahead := state.ahead(pod)) else "",
            "priority": pod.priority,
            "dialect": pod.request.dialect,
        }
        for pod in (*state.waiting(), *(pod for pod in state.pods if pod.deleted))
        if namespace in (None, pod.namespace)
    ]


def folded(found: Sequence[Row]) -> tuple[list[Row], list[str]]:
    """The rows with the number of their reason, and each reason once, with its number and how many pods have it."""
    numbers: dict[str, int] = {}
    for row in found:
        if row["reason"]:
            numbers.setdefault(row["reason"], len(numbers) + 1)
    counts = Counter(row["reason"] for row in found)
    numbered: list[Row] = [{**row, _NUMBER: numbers.get(row["reason"], 0)} for row in found]
    return numbered, [f"[{number}] {many(counts[reason], 'pod')}: {reason}" for reason, number in numbers.items()]


_NUMBER = "number"


def _why(row: Row) -> str:
    if not row[_NUMBER]:
        return "not decided yet"
    return f"{row['code']} [{row[_NUMBER]}]".lstrip()


def totals(found: Sequence[Row]) -> str:
    """How many pods wait, and how many have each code."""
    waiting = [row for row in found if row["code"] != TERMINATING]
    codes = Counter((row["reason"] and row["code"]) or "not decided yet" for row in waiting).most_common()
    text = many(len(waiting), "pod waits", "pods wait")
    text += f": {', '.join(f'{count} {code}' for code, count in codes)}" if codes else ""
    deleted = len(found) - len(waiting)
    return f"{text}; {many(deleted, 'pod is', 'pods are')} being deleted" if deleted else text


def together(found: Sequence[Row]) -> list[str]:
    """The meaning of a place such as `1-6`, where there is one."""
    shared = next((row["place"] for row in found if isinstance(row["place"], str)), None)
    if shared is None:
        return []
    return [f"Place {shared}: pods created in the same second, in an order that only the allocator knows"]


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="POD", help="these pods only")


def run(session: Session) -> CommandOutput:
    """The waiting pods of one namespace, or of all. A reason that many pods have is printed once, below the table."""
    state = session.seen()
    found = select.pods(session, state, rows(state, session.shown_namespace()), "does not wait: it has its share")
    spoken = [{**row, "reason": session.spoken(row["reason"])} for row in found]
    numbered, reasons = folded(spoken)
    missed = [] if select.is_narrowed(session) else session.unserved(state)
    leadership = session.leadership() if found else NOTHING_KNOWN
    reserved = [
        f"Node {node} is reserved for {few([pod.key for pod in pods])}"
        for node, pods in sorted(state.held_for(leadership.reserved).items() if state.whole else ())
    ]
    shown = {(row["namespace"], row["name"]) for row in found}
    queue = [pod for pod in state.waiting() if (pod.namespace, pod.name) in shown]
    return CommandOutput(
        COLUMNS,
        spoken,
        in_table=numbered,
        empty="\n".join([session.nothing("pod waits for a GPU share"), *missed]) if not found else "",
        notes=[
            totals(spoken),
            *([f"Nothing is placed now, since {leadership.missing}"] if leadership.missing else ()),
            *reasons,
            *map(session.spoken, timelimits.soon(session, queue)),
            *reserved[:_MOST_RESERVED],
            *together(spoken),
            *missed,
        ],
        names=[f"pod/{row['name']}" for row in found],
    )


COMMAND = Command(
    "waiting",
    "list the queue: which pods wait, for what, and why",
    run,
    _arguments,
    flags=OF_PODS | LABELLED,
    example="""\
# The whole queue, with each pod's reason
kubectl gpufraction waiting -A -o wide
# The pods of one application
kubectl gpufraction waiting -l app=web""",
)
