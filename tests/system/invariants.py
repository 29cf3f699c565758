"""
The promises that hold whenever a cluster is quiet, checked from the API server and the allocator's own metrics.

1. On no GPU do memory, cores or sharers add up to more than it has; a whole-GPU holder is alone.
2. The ledger of every replica holds what the pods and the ElasticGPUs say, no more and no less.
3. A container sees exactly the GPUs of its allocation; without one it sees none.
4. Every pod that asked is placed, or waits with a reason.
5. No error of ours was isolated and no worker was started again: what once ended a process may not hide behind that.
"""

from __future__ import annotations

import re
import urllib.request
from typing import Any

from allocator.claims import objects
from allocator.claims.binding import CLAIMED
from allocator.ledger import OWN, Holding, Ledger, State
from contract import names, pods
from contract.inventories import inventory_from_object
from contract.model import Allocation, Compute, PodRequest
from playground import scenarios
from playground.cluster import Cluster
from runtime import kubepaths
from runtime.kube import KubeNotFound

JSON = dict[str, Any]


FAULTS = ("gpufraction_faults_total", "gpufraction_worker_restarts_total", "gpufraction_quarantined_pods")


def check(cluster: Cluster, *, labelled: tuple[str, ...] = ("default",), looking: bool = True) -> None:
    """Wait until the watch is quiet, then assert all of it; not what containers see, where not `looking`."""
    assert faults(cluster) == {}

    def agree() -> bool:
        wanted = {"assumed": 0, "confirmed": _held(cluster)}
        return all(found == wanted for found in _reservations(cluster))

    scenarios.wait_for(
        agree, lambda: f"{_held(cluster)} pods and ElasticGPUs hold shares, the ledgers say {_reservations(cluster)}"
    )
    found = _explained(cluster, labelled)
    _nothing_overbooked(cluster, found)
    for pod in found:
        if pod["metadata"]["namespace"] in labelled:
            _placed_or_waiting(pod)
            if looking and scenarios.is_running(pod):
                _sees_its_gpus_only(cluster, pod)


def faults(cluster: Cluster) -> dict[str, float]:
    """Errors that were isolated in the allocators of all replicas, by metric and labels; none where all is well."""
    found = (figures(cluster, replica.number).items() for replica in cluster.replicas)
    return {name: value for each in found for name, value in each if name.startswith(FAULTS) and value}


def _explained(cluster: Cluster, labelled: tuple[str, ...]) -> list[JSON]:
    """The pods once everybody who waits was told why: the condition is written after the pod, and pods still come."""
    found: list[JSON] = []

    def unexplained() -> list[str]:
        gated = [p for p in found if names.GATE in pods.gates(p) and p["metadata"]["namespace"] in labelled]
        return [pods.key(pod) for pod in gated if not scenarios.waits(pod)]

    def done() -> bool:
        found[:] = _unfinished(cluster)
        return not unexplained()

    scenarios.wait_for(done, lambda: f"waiting without a reason: {unexplained()}")
    return found


def _unfinished(cluster: Cluster) -> list[JSON]:
    return [pod for pod in cluster.kube.list(kubepaths.pods()).items if not pods.finished(pod)]


def _holders(cluster: Cluster) -> list[JSON]:
    return [pod for pod in _unfinished(cluster) if _allocation(pod) is not None]


def _booked(cluster: Cluster) -> list[objects.Share]:
    """The ElasticGPUs that carry a share."""
    found = cluster.kube.list(kubepaths.path(scenarios.ELASTIC, "elasticgpus")).items
    return [share for share in map(objects.share, found) if share.allocation is not None]


def _held(cluster: Cluster) -> int:
    return len(_holders(cluster)) + len(_booked(cluster))


def _allocation(pod: JSON) -> Any:
    request = pods.admitted(pod)
    if request is None or names.GATE in pods.gates(pod):
        return None
    return pods.allocation_of(pod, request)


def _nothing_overbooked(cluster: Cluster, found: list[JSON]) -> None:
    ledger = Ledger()
    for pod in found:
        allocation, request = _allocation(pod), pods.admitted(pod)
        if allocation is not None and request is not None:
            ledger.confirm(_holding(pods.uid(pod), request, allocation))
    for share in _booked(cluster):
        assert share.allocation is not None
        ledger.confirm(_holding(f"{OWN}{share.name}", CLAIMED, share.allocation))
    path = kubepaths.path(names.GPUNODE_GROUP_VERSION, names.GPUNODE_PLURAL)
    known = {i.node: i for i in map(inventory_from_object, cluster.kube.list(path).items)}
    assert {holding.allocation.node for holding in ledger} <= known.keys()
    assert [uuid for i in known.values() for uuid in ledger.overfull(i.node, i.gpus)] == []


def _holding(key: str, request: PodRequest, allocation: Allocation) -> Holding:
    return Holding(key, key, request, allocation, Compute(), State.CONFIRMED, 0.0)


def _reservations(cluster: Cluster) -> list[dict[str, int]]:
    """What each replica's ledger says."""
    found = (figures(cluster, replica.number) for replica in cluster.replicas)
    return [
        {state: int(each.get(f'gpufraction_reservations{{state="{state}"}}', -1)) for state in ("assumed", "confirmed")}
        for each in found
    ]


def figures(cluster: Cluster, replica: int = 0) -> dict[str, float]:
    """An allocator's metrics by name and labels; none while it does not answer."""
    try:
        with urllib.request.urlopen(f"{cluster.allocator_url(replica)}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    except OSError:
        return {}
    lines = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


def _placed_or_waiting(pod: JSON) -> None:
    if names.REQUEST not in pods.annotations_of(pod):
        return
    gated = names.GATE in pods.gates(pod)
    assert gated or _allocation(pod) is not None, f"{pods.key(pod)} asked and is neither placed nor waiting"
    if gated:
        assert scenarios.waits(pod), f"{pods.key(pod)} waits without a reason"


def _sees_its_gpus_only(cluster: Cluster, pod: JSON) -> None:
    allocation = _allocation(pod)
    held = {c.container: {s.uuid for s in c.shares} for c in allocation.containers} if allocation else {}
    for container in pod["spec"]["containers"]:
        text = scenarios.printed(cluster.kube, pod, container["name"])
        seen = set(re.findall(r"^GPU \d+: .*\(UUID: (\S+)\)", text, re.MULTILINE))
        if allocation is not None:
            name = container["name"]
            right = seen == held.get(name, set())
            # What a controller removes while we look has no containers to read any more.
            assert right or _gone(cluster, pod), f"{pods.key(pod)}/{name} holds {held.get(name)} and sees {seen}"


def _gone(cluster: Cluster, pod: JSON) -> bool:
    metadata = pod["metadata"]
    try:
        now = cluster.kube.get(kubepaths.pods(metadata["namespace"], metadata["name"]))["metadata"]
    except KubeNotFound:
        return True
    return now["uid"] != metadata["uid"] or "deletionTimestamp" in now
