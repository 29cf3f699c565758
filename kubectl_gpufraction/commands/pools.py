"""
`kubectl gpufraction pools`: the declared pools in rows, and in sentences where an administrator should act.

It shows what the leading allocator publishes (`contract.nodes.pool_status`) and acts on, and needs only the right to
read one ConfigMap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from contract import names
from contract.encoding import moments
from contract.encoding.reading import Malformed
from contract.nodes import pool_status
from contract.nodes.pool_status import FRESHENED, PoolsStatus, PoolStatus, State
from kubectl_gpufraction.output.forms import CommandOutput
from kubectl_gpufraction.output.tables import Column
from kubectl_gpufraction.session import Command, Failed, Session
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeNotFound

JSON = dict[str, Any]
COLUMNS = (
    Column("pool", "POOL"),
    Column("ready", "READY"),
    Column("coming", "COMING"),
    Column("asked", "ASKED"),
    Column("max", "MAX"),
    Column("spare", "SPARE"),
    Column("state", "STATE"),
)
NONE = f"No pool of the options declares `node`: see ConfigMap {names.NAMESPACE}/{names.OPTIONS}."
NOT_INSTALLED = f"no ConfigMap {names.NAMESPACE}/{names.POOLS}: apply manifests/components/node-provisioning"
_LEADS = f"kubectl -n {names.NAMESPACE} get pods,leases"
NOT_WRITTEN = f"no allocator has written ConfigMap {names.NAMESPACE}/{names.POOLS} yet; is there a leader? {_LEADS}"
_SILENT = 4 * FRESHENED


def read(configmap: JSON) -> PoolsStatus | None:
    """The published status; None if nothing was published yet. Raises `Malformed`."""
    text = (configmap.get("data") or {}).get(pool_status.FILE)
    return None if text is None else pool_status.read(text)


def rows(status: PoolsStatus) -> list[Mapping[str, Any]]:
    """One row for each pool, in the order of the options."""
    return [
        {
            "pool": pool.name,
            "ready": pool.ready,
            "coming": pool.coming,
            "asked": pool.asked,
            "max": pool.most,
            "spare": pool.spare,
            "state": STATES[pool.state](pool),
        }
        for pool in status.pools
    ]


def sentences(status: PoolsStatus, now: float) -> list[str]:
    """The faults and their cures."""
    found = [f"No nodes can be requested: {status.trouble}."] if status.trouble else []
    if now - status.at > _SILENT:
        found.insert(0, f"This was written {moments.at(status.at)}; does an allocator lead? {_LEADS}")
    explained = (pool for pool in status.pools if not (status.trouble and status.trouble == pool.why))
    return [*found, *(f"{pool.name}: {cure}" for pool in explained if (cure := _cure(pool)))]


def _times(pool: PoolStatus) -> str:
    return "once" if pool.failures == 1 else f"{pool.failures} times"


STATES: Mapping[State, Callable[[PoolStatus], str]] = {
    "": lambda pool: "ready" if pool.ready else "no node",
    "asked": lambda pool: f"requested {pool.asked} {moments.at(pool.since)}",
    "coming": lambda pool: "not all nodes are ready",
    "not-asked": lambda pool: "could not be asked",
    "paused": lambda pool: f"failed {_times(pool)}; requested again {moments.at(pool.until)}",
    "full": lambda pool: "at max, and pods wait",
    "idle-node": lambda pool: "an idle node cannot serve the waiting pods",
    "unknown": lambda pool: "too little is known",
}
"""The state of a pool in a few words."""
_OUTCOMES: Mapping[str, str] = {
    "too-late": "its nodes did not join in time. See the autoscaler's log, the cloud's quota, and the setting "
    "provisioning.patience",
    "without-gpus": "nodes joined, but their GPUs were not published in time. kubectl get events -A --field-selector "
    "reason=NodeWithoutGPUs names them",
    "refused": "the autoscaler could not add its nodes",
}


def _cure(pool: PoolStatus) -> str:
    match pool.state:
        case "not-asked":
            return f"{pool.why}."
        case "paused":
            why = f" ({pool.why})" if pool.why else ""
            return f"{_OUTCOMES.get(pool.outcome, 'no node came')}{why}."
        case "full":
            return f"raise node.max, which is {pool.most}, or wait until other pods end."
        case "idle-node":
            return (
                "pods fit on an empty node as declared, but not on the existing one. Compare the pool's node in the "
                "options with kubectl gpufraction nodes; no further node is requested."
            )
        case "unknown":
            return "declare gpus, gpuMemory, cpu and memory under node, or let one node of the pool come."
        case _:
            return ""


def run(session: Session) -> CommandOutput:
    """The pools as the leading allocator published them."""
    path = paths.configmaps(names.NAMESPACE, names.POOLS)
    try:
        status = read(session.kube.get(path))
    except KubeNotFound:
        raise Failed(NOT_INSTALLED) from None
    except Malformed as error:
        raise Failed(f"ConfigMap {names.NAMESPACE}/{names.POOLS}: {error}") from None
    if status is None:
        raise Failed(NOT_WRITTEN)
    shown = [{**row, "state": session.spoken(row["state"])} for row in rows(status)]
    notes = [session.spoken(each) for each in sentences(status, session.now())]
    return CommandOutput(COLUMNS, shown, empty=NONE, notes=notes, names=[f"pool/{row['pool']}" for row in shown])


COMMAND = Command(
    "pools",
    "list the pools that can add nodes: what is requested, and why nothing is",
    run,
    example="""\
# Which nodes are requested, and why a pool adds none
kubectl gpufraction pools""",
)
