"""`kubectl gpufraction idle`: the pods whose shares compute nothing, and whether they give way."""

from __future__ import annotations

from contract import kinds, names
from kubectl_gpufraction.idle.shares import gives_way, rows, totals
from kubectl_gpufraction.output.forms import CommandOutput
from kubectl_gpufraction.output.tables import Column
from kubectl_gpufraction.output.wording import age
from kubectl_gpufraction.session import OF_PODS, Command, Session
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeForbidden

COLUMNS = (
    Column("namespace", "NAMESPACE"),
    Column("name", "NAME"),
    Column("since", "IDLE", of=age("since")),
    Column("node", "NODE"),
    Column("gpus", "GPUS"),
    Column("memoryMiB", "MEMORY-MiB"),
    Column("cores", "CORES%"),
    Column("givesWayAfter", "GIVES-WAY", of=lambda row, _: gives_way(row)),
    Column("consent", "CONSENT", wide=True),
    Column("priority", "PRIORITY", wide=True),
    Column("uuids", "UUIDS", wide=True),
)


def run(session: Session) -> CommandOutput:
    """The idle pods of one namespace, or of all."""
    found = rows(session.gpunodes(), session.pods(session.shown_namespace()), _labels(session))
    return CommandOutput(
        COLUMNS,
        found,
        empty=session.nothing("share is known to be idle") if not found else "",
        notes=[totals(found), *_whether_evicted(session)],
        names=[f"pod/{row['name']}" for row in found],
    )


def _labels(session: Session) -> dict[str, str] | None:
    """The consent of namespaces; None if the user may not see it."""
    try:
        listed = session.kube.list(paths.namespaces(), {"labelSelector": names.IDLE_AFTER}, of=kinds.NAMESPACES).items
    except KubeForbidden:
        return None
    metadata = [each.get("metadata") or {} for each in listed]
    return {str(each["name"]): str((each.get("labels") or {}).get(names.IDLE_AFTER, "")) for each in metadata}


def _whether_evicted(session: Session) -> list[str]:
    """The sentence for an administrator of a cluster in which idle pods are not evicted."""
    settings = session.allocator_settings()
    if settings is None or settings.get("idle-evict") == "true":
        return []
    return ["No pod is evicted for this: the allocator's setting idle.evict is off."]


COMMAND = Command(
    "idle",
    "list the pods whose shares are idle, for how long, and whether they consented to eviction",
    run,
    flags=OF_PODS,
    example="""\
# The idle pods of all namespaces, and who consented to their eviction
kubectl gpufraction idle -A -o wide""",
)
