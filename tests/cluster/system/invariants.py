"""
The promises that hold whenever a cluster is quiet, checked with the API server and the allocator's own metrics.

1. On no GPU do memory, cores or sharers add up to more than it has; a whole-GPU holder is alone. Memory limits add up
   to no more than the option allows, and are above a request only on whole cards that can hold them.
2. The ledger of every replica holds what the pods and the ElasticGPUs say, no more and no less.
3. A container sees exactly the GPUs of its allocation, and gets a fraction within its share; without one it sees none.
4. Every pod that asked is placed, or waits with a reason; or its share was taken back, it sees no GPU, and says so.
5. What each pod's condition says is so: `True` of one that runs with a share, and of one that waits the reason for
   which the allocator would not place it now.
6. None of our errors was isolated and no worker was restarted: these measures must not hide an error.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

from allocator.cache.ledger import OWN, Ledger, Reservation, ReservationState
from allocator.features.elasticgpuclaims import objects
from allocator.features.elasticgpuclaims.rendering import CLAIMED
from allocator.server.http import WAITING_PATH
from contract import names, pods
from contract.model import Allocation, Compute, Inventory, PodRequest
from contract.nodes.inventories import inventory_from_object
from contract.reasons.nodes import Code
from contract.scheduling.filters import DEFAULT_LIMITS
from playground import scenarios
from playground.cluster import Cluster
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeNotFound
from runtime.unixhttp import SocketError, UnixClient

JSON = dict[str, Any]


FAULTS = ("gpufraction_faults_total", "gpufraction_worker_restarts_total", "gpufraction_quarantined_pods")


def check(cluster: Cluster, *, labelled: tuple[str, ...] = ("default",), looking: bool = True) -> None:
    """Wait until the watch is quiet, then assert everything; without `looking`, not what containers see."""
    assert faults(cluster) == {}

    def agree() -> bool:
        wanted = {"assumed": 0, "confirmed": _held(cluster)}
        return all(found == wanted for found in _reservations(cluster))

    wait_for(
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
    """Errors that were isolated in the allocators of all replicas, by metric and labels; empty if there are none."""
    found = (figures(cluster, replica.number).items() for replica in cluster.replicas)
    return {name: value for each in found for name, value in each if name.startswith(FAULTS) and value}


def _explained(cluster: Cluster, labelled: tuple[str, ...]) -> list[JSON]:
    """
    The pods once all their conditions are true. A condition is written after the pod, and pods still arrive. Changed
    figures are reported within a minute.
    """
    found: list[JSON] = []
    wrong: list[str] = []

    def done() -> bool:
        found[:] = _unfinished(cluster)
        ours = [pod for pod in found if pod["metadata"]["namespace"] in labelled]
        line = _line(cluster) if any(map(scenarios.waits, ours)) else {}
        wrong[:] = [f"{pods.key(pod)}: {reported}" for pod in ours if (reported := _untrue(pod, line))]
        return not wrong

    wait_for(done, lambda: f"conditions that are not so: {'; '.join(wrong)}")
    return found


_CODES = frozenset(code.word for code in Code)


def _untrue(pod: JSON, line: dict[str, str]) -> str:
    """What is untrue in the pod's condition `Allocated`; empty if all of it is true."""
    reported, request = scenarios.condition(pod), pods.admitted(pod)
    if names.GATE in pods.gates(pod):
        if reported.get("status") != "False" or not reported.get("reason"):
            return f"waits, and says {reported}"
        code = line.get(pods.key(pod))
        by_claim = request is not None and request.claim
        # Reasons outside `Code` are not about nodes: another system's gate, a claim, or a preemption in progress.
        if code in _CODES and reported["reason"] in _CODES and reported["reason"] != code and not by_claim:
            return f"waits for {code}, and says {reported}"
        return ""
    if names.WITHDRAWN in pods.annotations_of(pod):
        wanted = ("False", "BoundWithoutShare" if pod["spec"].get("nodeName") else "ShareWithdrawn")
        return (
            ""
            if (reported.get("status"), reported.get("reason")) == wanted
            else f"holds nothing any more, and says {reported}"
        )
    placed = scenarios.is_running(pod) and _allocation(pod) is not None
    return f"runs with a share, and says {reported}" if placed and reported.get("status", "True") != "True" else ""


def _line(cluster: Cluster) -> dict[str, str]:
    """Why each pod of the queue waits, by `namespace/name`, as the leader's allocator would decide now."""
    for replica in cluster.replicas:
        if figures(cluster, replica.number).get("gpufraction_leader") or len(cluster.replicas) == 1:
            try:
                answer = UnixClient(replica.socket, max_answer=1 << 28).get(WAITING_PATH, timeout=10)
            except (SocketError, OSError):
                return {}
            return {each["pod"]: each["code"] for each in answer.json()}
    return {}


def _unfinished(cluster: Cluster) -> list[JSON]:
    return [pod for pod in cluster.kube.list(paths.pods()).items if not pods.finished(pod)]


def _holders(cluster: Cluster) -> list[JSON]:
    return [pod for pod in _unfinished(cluster) if _allocation(pod) is not None]


def _booked(cluster: Cluster) -> list[objects.ElasticShare]:
    """The ElasticGPUs that have a share."""
    found = cluster.kube.list(paths.path(scenarios.ELASTIC, "elasticgpus")).items
    return [share for share in map(objects.share, found) if share.allocation is not None]


def _held(cluster: Cluster) -> int:
    return len(_holders(cluster)) + len(_booked(cluster))


def _allocation(pod: JSON) -> Any:
    request = pods.admitted(pod)
    if request is None or names.GATE in pods.gates(pod):
        return None
    return pods.allocation_of(pod, request)


def overbooked(cluster: Cluster) -> list[str]:
    """The UUIDs of the cards on which pods and ElasticGPUs currently hold more than the card has."""
    ledger, known = _ledger(cluster, _unfinished(cluster))
    return [uuid for i in known.values() for uuid in ledger.overcommitted(i.node, i.gpus)]


def _ledger(cluster: Cluster, found: list[JSON]) -> tuple[Ledger, dict[str, Inventory]]:
    """What the pods and the ElasticGPUs hold, and the cards by node."""
    ledger = Ledger()
    for pod in found:
        allocation, request = _allocation(pod), pods.admitted(pod)
        if allocation is not None and request is not None:
            ledger.confirm(_holding(pods.uid(pod), request, allocation))
    for share in _booked(cluster):
        assert share.allocation is not None
        ledger.confirm(_holding(f"{OWN}{share.name}", CLAIMED, share.allocation))
    path = paths.path(names.GPUNODE_GROUP_VERSION, names.GPUNODE_PLURAL)
    return ledger, {i.node: i for i in map(inventory_from_object, cluster.kube.list(path).items)}


def _nothing_overbooked(cluster: Cluster, found: list[JSON]) -> None:
    ledger, known = _ledger(cluster, found)
    assert {holding.allocation.node for holding in ledger} <= known.keys()
    assert [uuid for i in known.values() for uuid in ledger.overcommitted(i.node, i.gpus)] == []
    used = [(gpu, ledger.usage(i.node, gpu.uuid)) for i in known.values() for gpu in i.gpus]
    assert [gpu.uuid for gpu, usage in used if usage.memory + usage.burst > DEFAULT_LIMITS.in_all(gpu)] == []
    assert [gpu.uuid for gpu, usage in used if usage.burst and gpu.parent] == []


def _holding(key: str, request: PodRequest, allocation: Allocation) -> Reservation:
    return Reservation(key, key, request, allocation, Compute(), ReservationState.CONFIRMED, 0.0)


def _reservations(cluster: Cluster) -> list[dict[str, int]]:
    """What each replica's ledger contains."""
    found = (figures(cluster, replica.number) for replica in cluster.replicas)
    return [
        {state: int(each.get(f'gpufraction_reservations{{state="{state}"}}', -1)) for state in ("assumed", "confirmed")}
        for each in found
    ]


def figures(cluster: Cluster, replica: int = 0) -> dict[str, float]:
    """An allocator's metrics by name and labels; empty if it does not answer."""
    try:
        text = cluster.metrics(replica)
    except OSError:
        return {}
    lines = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


def _placed_or_waiting(pod: JSON) -> None:
    if names.REQUEST not in pods.annotations_of(pod):
        return
    gated = names.GATE in pods.gates(pod)
    if names.WITHDRAWN in pods.annotations_of(pod):
        assert _allocation(pod) is None
        assert not any(key.startswith(names.CONTAINER_PREFIXES) for key in pods.annotations_of(pod))
        return
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
            # A pod that a controller removes during the check has no containers to read any more.
            assert right or _is_deleted(cluster, pod), f"{pods.key(pod)}/{name} holds {held.get(name)} and sees {seen}"
            if text and name in held:
                _knows_its_part(cluster, pod, name, text)


def _knows_its_part(cluster: Cluster, pod: JSON, name: str, text: str) -> None:
    """
    A program that takes the part of each card that its container is told takes no more than the container's share.
    """
    parts = re.findall(rf"^{names.MEMORY_FRACTION}=(.*)$", text, re.MULTILINE)
    allocation = _allocation(pod)
    assert allocation is not None
    (shares,) = (c.shares for c in allocation.containers if c.container == name)
    right = len(parts) == 1 and all(
        0 < Fraction(parts[0]) * (s.limit if s.as_whole else s.gpu_memory) <= s.memory for s in shares
    )
    assert right or _is_deleted(cluster, pod), f"{pods.key(pod)}/{name} has {shares} and is told {parts}"


def _is_deleted(cluster: Cluster, pod: JSON) -> bool:
    metadata = pod["metadata"]
    try:
        now = cluster.kube.get(paths.pods(metadata["namespace"], metadata["name"]))["metadata"]
    except KubeNotFound:
        return True
    return now["uid"] != metadata["uid"] or "deletionTimestamp" in now
