"""What `explain` says if there is room, if no allocator leads, and if a running pod's card is unhealthy."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from contract import names
from contract.reasons.pods import PodReason
from kubectl_gpufraction.cluster.leadership import LeaderStatus, leader
from kubectl_gpufraction.cluster.state import ClusterView
from kubectl_gpufraction.commands import explain
from kubectl_gpufraction.commands.explain import PodContext
from tests.unit.kubectl_gpufraction.objects import admitted, gpunode, node
from tests.unit.kubectl_gpufraction.test_manners import DEFAULT, FULL, GPUNODES, LEASE, RUNS, WAITS, called
from tests.unit.kubectl_gpufraction.test_tenants import NO, collection

JSON = dict[str, Any]
ENDS = "The end of any one of these pods would make room on a GPU: default/runs on GPU 0 of n1"
ROOM = "There is room on GPU 0 of n2 now, so its turn comes without the end of another pod."
LAST = {
    "a node that is full": ((gpunode("n1", 15109),), PodContext(), ENDS),
    "a node that has room": ((gpunode("n1", 15109), gpunode("n2", 15109)), PodContext(), ROOM),
    "room on a node that does not take it": (
        (gpunode("n1", 15109), gpunode("n2", 15109)),
        PodContext(closed=frozenset({"n2"})),
        ENDS,
    ),
    "no leader": (
        (gpunode("n1", 15109),),
        PodContext(leadership=LeaderStatus("no allocator leads: pods wait")),
        "    kubectl -n gpufraction-system get pods,leases",
    ),
}


@pytest.mark.parametrize(("inventories", "known", "last"), LAST.values(), ids=LAST.keys())
def test_what_would_help_a_pod_that_waits(inventories: tuple[JSON, ...], known: PodContext, last: str) -> None:
    state = ClusterView.of(inventories, [node("n1"), node("n2")], [RUNS, WAITS])
    (waits,) = state.waiting()
    lines = explain.explanation(state, waits, known)
    assert (lines[-1], len(lines)) == (last, 4 if known.leadership.missing else 3)
    helps = explain.row(state, waits, lines, known)["roomAfter"]
    assert helps == ([] if last == ROOM else [{"pod": "default/runs", "node": "n1", "gpu": 0}])


def test_a_taint_keeps_the_ends_of_a_nodes_pods_out(tmp_path: Path) -> None:
    tainted = node("n1")
    tainted["spec"]["taints"] = [{"key": "team", "value": "x", "effect": "NoSchedule"}]
    shown = called(tmp_path, "explain", "waits", given={"/api/v1/nodes": collection(tainted)})[1]
    assert shown.splitlines()[-1] == "No single pod's end would make room on a GPU that it accepts."


def test_what_selectors_accept_is_left_to_the_allocator(tmp_path: Path) -> None:
    """The plugin evaluates no CEL: it neither promises room nor names pods whose end would help."""
    waits = copy.deepcopy(WAITS)
    request = json.loads(waits["metadata"]["annotations"][names.REQUEST])
    request["containers"][0]["selectors"] = ["device.driver == 'gpufraction.io'"]
    waits["metadata"]["annotations"][str(names.REQUEST)] = json.dumps({**request, "v": 2})
    given = {"/api/v1/pods": collection(RUNS, waits), "/api/v1/namespaces/default/pods": collection(RUNS, waits)}
    last = called(tmp_path, "explain", "waits", given=given)[1].splitlines()[-1]
    assert last == f"{explain.SELECTING}; the reason above counts the GPUs that they accept."
    status, _, error = called(tmp_path, "advise", "waits", given=given)[:3]
    assert (status, "default/waits: its ResourceClaims have selectors" in error) == (1, True)


@pytest.mark.parametrize("code", [PodReason.GANG_INCOMPLETE, PodReason.GANG_DOES_NOT_FIT])
def test_room_for_one_member_is_not_promised_to_a_gang(tmp_path: Path, code: PodReason) -> None:
    waits = copy.deepcopy(WAITS)
    (allocated,) = (each for each in waits["status"]["conditions"] if each["type"] == names.ALLOCATED_CONDITION)
    allocated["reason"] = str(code)
    given = {"/api/v1/pods": collection(RUNS, waits), "/api/v1/namespaces/default/pods": collection(RUNS, waits)}
    last = called(tmp_path, "explain", "waits", given=given)[1].splitlines()[-1]
    assert last == "It starts together with its gang, so room for this pod alone does not start it."
    (row,) = json.loads(called(tmp_path, "explain", "waits", "-o", "json", given=given)[1])["items"]
    assert row["roomAfter"] == []


OLD = "no allocator leads: replica-1 last renewed its Lease"
LEASES: dict[str, tuple[JSON | None, tuple[str, str]]] = {
    "renewed lately": (
        {"spec": {"holderIdentity": "replica-1_7", "renewTime": "2026-01-05T09:00:00Z"}},
        ("replica-1", ""),
    ),
    "renewed long ago": (
        {"spec": {"holderIdentity": "replica-1_7", "renewTime": "2026-01-05T08:50:00Z"}},
        ("", f"{OLD} 600 s ago"),
    ),
    "released": ({"spec": {"renewTime": "2026-01-05T09:00:00Z"}}, ("", "no allocator leads: pods wait")),
    "no Lease": (None, ("", "no allocator leads: pods wait")),
    "no time": (
        {"spec": {"holderIdentity": "replica-1_7"}},
        ("", "the Lease gpufraction-allocator has no time of renewal"),
    ),
}


@pytest.mark.parametrize(("lease", "want"), LEASES.values(), ids=LEASES.keys())
def test_who_leads(lease: JSON | None, want: tuple[str, str]) -> None:
    assert leader(lease, 1_767_603_600.0) == want


def reserving(**reserved: list[str]) -> dict[str, tuple[int, Any]]:
    found = {"spec": {"holderIdentity": "replica-1_7", "renewTime": "2126-01-05T09:00:00Z"}}
    return {LEASE: (200, found | {"metadata": {"annotations": {str(names.RESERVED_NODES): json.dumps(reserved)}}})}


NO_END = "No single pod's end would make room on a GPU that it accepts."
FOR_IT = "Node n1 is reserved for it: it starts there as soon as enough of the other pods there end."
RESERVED: dict[str, tuple[list[str], str, str]] = {
    "for another pod": (["also"], "Node n1 is reserved for default/also", NO_END),
    "for the pod itself": (["waits"], FOR_IT, ENDS),
    "for a pod that is not there": (["gone"], "", ENDS),
}


@pytest.mark.parametrize(("uids", "line", "last"), RESERVED.values(), ids=RESERVED.keys())
def test_the_pod_that_a_node_is_reserved_for_is_named(uids: list[str], line: str, last: str, tmp_path: Path) -> None:
    given = reserving(n1=uids)
    lines = called(tmp_path, "explain", "waits", given=given)[1].splitlines()
    assert lines[2:] == [*([line] if line else []), last]
    note = f"Node n1 is reserved for default/{uids[0]}"
    assert (note in called(tmp_path, "waiting", given=given)[1]) == bool(line)
    [item] = json.loads(called(tmp_path, "explain", "waits", "-o", "json", given=given)[1])["items"]
    assert item["reservedNodes"] == ([{"node": "n1", "pods": [f"default/{uids[0]}"]}] if line else [])


def test_a_tenant_who_may_not_read_the_lease_learns_no_name(tmp_path: Path) -> None:
    given = {"/api/v1/nodes": NO, "/api/v1/pods": NO, GPUNODES: NO, LEASE: NO}
    shown = called(tmp_path, "waiting", given=given)[1] + called(tmp_path, "explain", "waits", given=given)[1]
    assert "reserved for" not in shown
    assert "Nothing is placed" not in shown


def test_without_a_leader_pods_are_told_that_nothing_is_placed(tmp_path: Path) -> None:
    lease = {"spec": {"holderIdentity": "replica-1_7", "renewTime": "2026-01-05T09:00:00Z"}}
    given = {LEASE: (200, lease)}
    lines = called(tmp_path, "explain", "waits", given=given)[1].splitlines()
    assert lines[2].startswith(f"Nothing is placed now, since {OLD}")
    assert lines[3:] == ["    kubectl -n gpufraction-system get pods,leases"]
    assert called(tmp_path, "waiting", given=given)[1].splitlines()[5].startswith(f"Nothing is placed now, since {OLD}")


GONE = gpunode("n1", 15109)
GONE["status"]["gpus"][0]["uuid"] = "GPU-new"
TROUBLE: dict[str, tuple[JSON, str, str]] = {
    "a healthy card": (gpunode("n1", 15109), "Running", ""),
    "an unhealthy card": (
        gpunode("n1", 15109, unhealthy=0),
        "Running,GPUUnhealthy",
        "GPU 0 of n1 is unhealthy (XID 79)",
    ),
    "a card that is gone": (GONE, "Running,GPUGone", "GPU 0 of n1 is gone (GPU-n1-0)"),
}


@pytest.mark.parametrize(("inventory", "status", "why"), TROUBLE.values(), ids=TROUBLE.keys())
def test_a_running_pod_whose_card_is_not_well_says_so(inventory: JSON, status: str, why: str, tmp_path: Path) -> None:
    given = {GPUNODES: collection(inventory)}
    table = called(tmp_path, "pods", "runs", given=given)[1].splitlines()
    restart = "the pod keeps running without it; delete the pod to have it placed again"
    assert table[1].split()[1] == status
    assert table[3:] == ([f"default/runs: {why}; {restart}"] if why else [])
    lines = called(tmp_path, "explain", "runs", given=given)[1].splitlines()
    delete = ["To have the pod placed again, delete it:", "    kubectl -n default delete pod runs"]
    assert lines[3:] == ([f"{why}: the pod keeps running without it", *delete] if why else [])
    [item] = json.loads(called(tmp_path, "pods", "runs", "-o", "json", given=given)[1])["items"]
    assert [each["code"] for each in item["gpuTrouble"]] == status.split(",")[1:]


def test_an_unhealthy_card_has_its_reason_below_the_table_of_nodes(tmp_path: Path) -> None:
    given = {GPUNODES: collection(gpunode("n1", 15109, unhealthy=0))}
    assert called(tmp_path, "nodes", given=given)[1].splitlines()[-1] == "GPU 0 of n1: XID 79"


def test_pods_of_a_workload_that_wait_for_one_reason_are_explained_once(tmp_path: Path) -> None:
    pods = [admitted(f"w{number}", "gpufraction.io/gpu-memory", "6Gi", waits=FULL) for number in range(3)]
    for each in pods:
        each["metadata"]["ownerReferences"] = [{"uid": "set", "kind": "ReplicaSet", "controller": True}]
    given = {"/api/v1/pods": collection(RUNS, *pods), DEFAULT: collection(RUNS, *pods)}
    lines = called(tmp_path, "explain", "deployment/web", given=given)[1].splitlines()
    assert lines[:7] == [
        "deployment/web: 4 pods, 1 with a share, 3 waiting",
        "",
        "default/w0 requests 1x6Gi (native)",
        f"It waits, 1-3 of 3 in the queue: {FULL}",
        "Created in the same second, in an order that only the allocator knows: default/w1, default/w2",
        ENDS,
        "2 more pods with the same request and reason: w1, w2",
    ]
    assert "\n".join(lines).count(FULL) == 1
    items = json.loads(called(tmp_path, "explain", "deployment/web", "-o", "json", given=given)[1])["items"]
    assert [item["name"] for item in items] == ["w0", "w1", "w2", "runs"]
