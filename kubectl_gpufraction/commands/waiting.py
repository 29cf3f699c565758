"""`kubectl gpufraction waiting`: the queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kubectl_gpufraction.cluster.state import ClusterView
from kubectl_gpufraction.output.forms import CommandOutput
from kubectl_gpufraction.output.tables import Column
from kubectl_gpufraction.output.wording import asked
from kubectl_gpufraction.session import Command, Session

Row = Mapping[str, Any]
COLUMNS = (
    Column("place", "PLACE"),
    Column("namespace", "NAMESPACE"),
    Column("name", "NAME"),
    Column("asks", "ASKS"),
    Column("since", "SINCE"),
    Column("reason", "REASON"),
    Column("priority", "PRIORITY", wide=True),
    Column("dialect", "DIALECT", wide=True),
)


def rows(state: ClusterView, namespace: str | None) -> list[Row]:
    """The queue. A pod's place is that among the pods of all namespaces, `2-4` if several share it."""
    places = state.places()
    return [
        {
            "place": places[pod.key].shown if state.whole else None,
            "namespace": pod.namespace,
            "name": pod.name,
            "asks": asked(pod),
            "since": pod.since or pod.created,
            "reason": pod.reason,
            "priority": pod.priority,
            "dialect": pod.request.dialect,
        }
        for pod in state.waiting()
        if namespace in (None, pod.namespace)
    ]


def run(session: Session) -> CommandOutput:
    """The waiting pods of one namespace, or of all."""
    found = rows(session.seen(), session.shown_namespace())
    spoken = [{**row, "reason": session.spoken(row["reason"])} for row in found]
    return CommandOutput(COLUMNS, spoken, empty=session.nothing("pod waits for a GPU share"))


COMMAND = Command("waiting", "the queue: which pods wait, for what, and why", run)
