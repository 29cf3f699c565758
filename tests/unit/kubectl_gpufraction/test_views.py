"""What the commands show of a cluster, as rows and as sentences."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from contract.nodes.excluded import KeptOut
from kubectl_gpufraction.advice import hosts
from kubectl_gpufraction.cluster.state import ClusterView, Pod
from kubectl_gpufraction.commands import explain, nodes, pods, waiting
from kubectl_gpufraction.output.forms import CommandOutput, Form
from kubectl_gpufraction.output.tables import Column
from tests.builders import pod
from tests.unit.kubectl_gpufraction.objects import admitted, by_claim, gpunode, node, share_of_claim

FULL = "0 of 1 GPU nodes fit: 1 short of memory"
ENDS = "The end of any one of these pods would make room on a GPU"
OBJECTS: list[dict[str, Any]] = [
    admitted("small", "gpufraction.io/gpu-memory", "2Gi", on="n1", gpu=0),
    admitted("big", "gpufraction.io/gpu-memory", "12Gi", on="n1", gpu=0),
    admitted("half", "gpufraction.io/gpu-percent", 50, on="n1", gpu=1),
    admitted("first", "gpufraction.io/gpu-memory", "10Gi", created="2026-01-05T08:01:00Z", waits=FULL),
    admitted("urgent", "nvidia.com/gpu", 1, priority=5, created="2026-01-05T08:02:00Z", waits=FULL),
    pod("other").container("main").json(),
    admitted("done", "gpufraction.io/gpu-memory", "2Gi", on="n1") | {"status": {"phase": "Succeeded"}},
]
STATE = ClusterView.of([gpunode("n1", 15109, 15109, 15109, unhealthy=2), {"metadata": {}}], [node("n1")], OBJECTS)


NOW = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)


def columns(rows: list[Any], *keys: str) -> list[tuple[Any, ...]]:
    return [tuple(row[key] for key in keys) for row in rows]


def named(name: str) -> Pod:
    return next(found for found in STATE.pods if found.name == name)


def test_every_gpu_with_what_is_taken_and_free() -> None:
    found = columns(nodes.rows(STATE, NOW), "node", "gpu", "shares", "memoryMiB", "freeMiB", "cores", "health", "pods")
    assert found == [
        ("n1", 0, 2, 14336, 773, 0, "Healthy", ["default/big", "default/small"]),
        ("n1", 1, 1, 7554, 7554, 50, "Healthy", ["default/half"]),
        ("n1", 2, 0, 0, 0, 0, "Unhealthy", []),
    ]


def test_a_gpu_that_no_agent_reports_is_listed_while_a_pod_has_a_share_of_it() -> None:
    lost = admitted("lost", "gpufraction.io/gpu-memory", "2Gi", on="n2", gpu=3)
    objects = [admitted("small", "gpufraction.io/gpu-memory", "2Gi", on="n1", gpu=1), lost]
    state = ClusterView.of([gpunode("n1", 15109)], [node("n1"), node("n2")], objects)
    found = nodes.rows(state, NOW)
    assert columns(found, "node", "gpu", "health", "nodeState", "memoryMiB", "freeMiB", "pods") == [
        ("n1", 0, "Healthy", "Ready", 0, 15109, []),
        ("n1", 1, "Missing", "Ready", 2048, 0, ["default/small"]),
        ("n2", 3, "Missing", "NoGPUNode", 2048, 0, ["default/lost"]),
    ]
    assert nodes.totals(found) == [
        "1 node, 1 GPU, 1 healthy: .......... 0 of 15109 MiB, 0 %",
        "Missing, pods have shares of GPUs that no agent reports any more: GPU 1 of n1, GPU 3 of n2",
    ]
    assert nodes.rows(ClusterView.of((), (), objects, whole=False), NOW) == []


KEPT_OUT = "named in the ConfigMap kube-system/unhealthy-gpu-n1"


@pytest.mark.parametrize(
    ("card", "health", "reasons"),
    [
        (KeptOut("n1", frozenset({"1"})), ["Healthy", "Cordoned", "Unhealthy"], ["", KEPT_OUT, "XID 79"]),
        (KeptOut("n1", wrong="no list"), ["Cordoned", "Cordoned", "Unhealthy"], [KEPT_OUT, KEPT_OUT, "XID 79"]),
    ],
    ids=["a card of the list", "a list that cannot be read"],
)
def test_cards_that_an_administrator_keeps_out_are_seen_to_be(
    card: KeptOut, health: list[str], reasons: list[str]
) -> None:
    inventories = [gpunode("n1", 15109, 15109, 15109, unhealthy=2)]
    rows = nodes.rows(ClusterView.of(inventories, [node("n1")], OBJECTS, (), {"n1": card}), NOW)
    assert columns(rows, "health", "reason") == list(zip(health, reasons, strict=True))
    assert [row["freeMiB"] for row in rows if row["health"] != "Healthy"] == [0] * (3 - health.count("Healthy"))
    seen = hosts.advice_input(inventories, [node("n1")], [], [], (), {"n1": card})
    assert [gpu.healthy for gpu in seen.hosts[0].state.gpus] == [word == "Healthy" for word in health]


USERS = [by_claim("p", "used", on="n1"), by_claim("q", "used", on="n1"), by_claim("w", "missing")]
SHARES = [share_of_claim("used", "n1"), share_of_claim("idle", "n1", 1)]


@pytest.mark.parametrize(
    ("shares", "want"),
    [
        (SHARES, [(1, 2048, 13061, 10, ["claim/default/used"]), (1, 2048, 13061, 10, ["claim/default/idle"])]),
        ([], [(1, 2048, 13061, 10, ["default/p"]), (0, 0, 15109, 0, [])]),
    ],
    ids=["as an administrator sees it", "where ElasticGPUs are not to be seen"],
)
def test_a_claims_share_counts_once_with_pods_or_without(shares: list[Any], want: list[Any]) -> None:
    state = ClusterView.of([gpunode("n1", 15109, 15109)], [node("n1")], USERS, shares)
    assert columns(nodes.rows(state, NOW), "shares", "memoryMiB", "freeMiB", "cores", "pods") == want
    assert columns(pods.rows(state, None), "name", "claim", "gpus", "memoryMiB") == [
        ("p", "used", [0], 2048),
        ("q", "used", [0], 2048),
        ("w", "missing", [], None),
    ]
    assert columns(waiting.rows(state, None), "name", "asks") == [("w", "claim missing")]
    waits = next(found for found in state.pods if found.name == "w")
    assert explain.explanation(state, waits)[-1] == "kubectl describe egpuc missing shows the state of its claim."


def test_advice_takes_claims_as_they_are() -> None:
    found = hosts.advice_input([gpunode("n1", 15109, 15109)], [node("n1")], USERS, [], SHARES)
    [host] = found.hosts
    assert [usage.memory >> 20 for usage in host.state.usage] == [2048, 2048]
    assert (host.holders, found.queue) == ((), ())


def test_pods_are_sorted_and_finished_ones_are_absent() -> None:
    assert columns(pods.rows(STATE, None), "name", "status", "node", "gpus", "memoryMiB") == [
        ("big", "Running", "n1", [0], 12288),
        ("first", "Waiting", "", [], None),
        ("half", "Running", "n1", [1], 7554),
        ("small", "Running", "n1", [0], 2048),
        ("urgent", "Waiting", "", [], None),
    ]
    assert pods.rows(STATE, "elsewhere") == []


def test_the_line_is_the_allocators() -> None:
    assert columns(waiting.rows(STATE, None), "place", "name", "asks", "reason") == [
        (1, "urgent", "1xwhole", FULL),
        (2, "first", "1x10Gi", FULL),
    ]


@pytest.mark.parametrize(
    ("seen", "every", "want"),
    [
        (NOW - timedelta(minutes=5), 120, "Ready"),
        (NOW - timedelta(minutes=6), 120, "Ready,AgentSilent"),
        (NOW - timedelta(minutes=15), 600, "Ready"),
        (NOW - timedelta(minutes=15), None, "Ready"),
        (NOW - timedelta(minutes=16), None, "Ready,AgentSilent"),
        (NOW + timedelta(hours=1), 120, "Ready"),
    ],
)
def test_an_agent_that_is_silent_is_seen_to_be(seen: datetime, every: int | None, want: str) -> None:
    inventory = gpunode("n1", 15109)
    inventory["status"]["heartbeatSeconds"] = every
    inventory["status"]["observedAt"] = seen.isoformat().replace("+00:00", "Z")
    (row,) = nodes.rows(ClusterView.of([inventory], [node("n1")], []), NOW)
    assert row["nodeState"] == want


def test_a_node_where_the_options_are_refused_is_seen_to_be() -> None:
    inventory = gpunode("n1", 15109)
    why = "the options are refused, and the previous ones stay in use: pools: found 3; give a list"
    inventory["status"]["conditions"] = [{"type": "OptionsRefused", "status": "True", "message": why}]
    state = ClusterView.of([inventory], [node("n1")], [])
    (row,) = nodes.rows(state, NOW)
    assert (row["nodeState"], state.nodes[0].refused) == ("Ready,OptionsRefused", why)


def test_a_pod_that_kube_scheduler_does_not_bind_says_why() -> None:
    made = admitted("stuck", "gpufraction.io/gpu-memory", "2Gi", on="n1")
    why = "0/1 nodes are available: 1 Insufficient example.com/nic."
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}
    made["status"] = {"phase": "Pending", "conditions": [refused]}
    state = ClusterView.of([gpunode("n1", 15109)], [node("n1")], [made])
    assert explain.explanation(state, state.pods[0])[-1] == (f"kube-scheduler has not bound it: {why}")


def test_nobodys_end_is_a_cure_for_a_taint() -> None:
    made = admitted("tainted", "gpufraction.io/gpu-memory", "10Gi", waits="0 of 1 GPU nodes fit: 1 with a taint")
    made["status"]["conditions"][0]["reason"] = "Taint"
    state = ClusterView.of([gpunode("n1", 15109)], [node("n1")], [*OBJECTS[:2], made])
    (found,) = state.waiting()
    assert explain.explanation(state, found)[1:] == [
        "It waits, 1 of 1 in the queue: 0 of 1 GPU nodes fit: 1 with a taint"
    ]


FULL_POOL = "; pool t4 already has its maximum number of nodes (3)"
NO_NODE_COMES = {
    "a share's end would help": (FULL, "10Gi", True),
    "only a new node would": ("no node of this cluster can serve it", "20Gi", False),
}


@pytest.mark.parametrize(("why", "size", "cured"), NO_NODE_COMES.values(), ids=NO_NODE_COMES.keys())
def test_where_no_node_comes_the_end_of_others_is_still_a_cure(why: str, size: str, cured: bool) -> None:
    made = admitted("waits", "gpufraction.io/gpu-memory", size, waits=f"{why}{FULL_POOL}")
    made["status"]["conditions"][0]["reason"] = "PoolFull"
    state = ClusterView.of([gpunode("n1", 15109)], [node("n1")], [*OBJECTS[:2], made])
    (found,) = state.waiting()
    assert explain.explanation(state, found)[2:] == ([f"{ENDS}: default/big on GPU 0 of n1"] if cured else [])


def test_of_a_pod_that_nobody_looked_at_it_says_where_to_look() -> None:
    made = admitted("new", "gpufraction.io/gpu-memory", "10Gi")
    made["status"] = {"phase": "Pending"}
    state = ClusterView.of([gpunode("n1", 15109)], [node("n1")], [made])
    assert explain.explanation(state, state.pods[0])[1] == (
        "It waits, 1 of 1 in the queue: not decided yet; if this lasts, no allocator leads: "
        "kubectl -n gpufraction-system get pods,leases"
    )


EXPLAINED = {
    "a pod that runs": (
        "half",
        [
            "default/half requests 1x50%mem+50% (native)",
            "It is Running on node n1:",
            "  main: GPU 1 (Tesla T4, GPU-n1-1), 7554 MiB, 50 % of the cores",
        ],
    ),
    "a pod that waits": (
        "first",
        [
            "default/first requests 1x10Gi (native)",
            f"It waits, 2 of 2 in the queue: {FULL}",
            "Before it: default/urgent (1xwhole)",
            f"{ENDS}: default/big on GPU 0 of n1, default/half on GPU 1 of n1",
        ],
    ),
    "a pod that wants a card alone": (
        "urgent",
        [
            "default/urgent requests 1xwhole (hami)",
            f"It waits, 1 of 2 in the queue: {FULL}",
            f"{ENDS}: default/half on GPU 1 of n1",
        ],
    ),
}


@pytest.mark.parametrize(("name", "lines"), EXPLAINED.values(), ids=EXPLAINED.keys())
def test_explanation(name: str, lines: list[str]) -> None:
    assert explain.explanation(STATE, named(name)) == lines


COLUMNS = (Column("name", "NAME"), Column("status", "STATUS"), Column("gpus", "GPUS", wide=True))
ROWS: list[dict[str, Any]] = [
    {"name": "a", "status": "Waiting", "gpus": [0, 1]},
    {"name": "longer", "status": "Running", "gpus": []},
]
FORMS = {
    "table": ("table", False, "NAME     STATUS\na        Waiting\nlonger   Running\n"),
    "wide": ("wide", False, "NAME     STATUS    GPUS\na        Waiting   0,1\nlonger   Running   -\n"),
    "colour": ("table", True, "NAME     STATUS\na        \x1b[33mWaiting\x1b[0m\nlonger   \x1b[32mRunning\x1b[0m\n"),
    "yaml": (
        "yaml",
        False,
        "items:\n- name: a\n  status: Waiting\n  gpus:\n  - 0\n  - 1\n- name: longer\n  status: Running\n  gpus: []\n",
    ),
}


@pytest.mark.parametrize(("form", "colour", "text"), FORMS.values(), ids=FORMS.keys())
def test_forms(form: str, colour: bool, text: str) -> None:
    assert CommandOutput(COLUMNS, ROWS, empty="none").text(Form(form, colour)) == text


def test_json_and_nothing() -> None:
    assert json.loads(CommandOutput(COLUMNS, ROWS, empty="none").text(Form("json"))) == {"items": ROWS}
    assert CommandOutput(COLUMNS, empty="No pods.").text(Form()) == "No pods.\n"
    assert json.loads(CommandOutput(COLUMNS, empty="none").text(Form("json"))) == {"items": []}


def test_a_pod_deleted_while_it_waited_is_shown_outside_the_queue() -> None:
    deleted_pod = admitted("gone", "nvidia.com/gpu", 1, priority=9, created="2026-01-05T08:00:00Z", waits=FULL)
    deleted_pod["metadata"] |= {
        "deletionTimestamp": "2026-01-05T08:30:00Z",
        "finalizers": ["batch.kubernetes.io/job-tracking"],
    }
    state = ClusterView.of([gpunode("n1", 15109)], [node("n1")], [*OBJECTS, deleted_pod])
    why = "it was deleted while it waited, so it gets no share; a finalizer keeps it: batch.kubernetes.io/job-tracking"
    found = waiting.rows(state, None)
    assert columns(found, "place", "name", "code") == [
        (1, "urgent", "Memory"), (2, "first", "Memory"), (None, "gone", "Terminating"),
    ]  # fmt: skip
    assert (found[-1]["since"], found[-1]["reason"]) == ("2026-01-05T08:30:00Z", why)
    assert waiting.totals(found) == "2 pods wait: 2 Memory; 1 pod is being deleted"
    [deleted] = [each for each in state.pods if each.deleted]
    lines = explain.explanation(state, deleted)
    assert lines == ["default/gone requests 1xwhole (hami)", f"It is being deleted: {why}"]
    explained = explain.row(state, deleted, lines)
    assert (explained["status"], explained["place"], explained["waiting"], explained["roomAfter"]) == (
        "Terminating",
        None,
        None,
        [],
    )
    assert ("gone", "Terminating") in columns(pods.rows(state, None), "name", "status")
    assert [line for line in explain.explanation(state, named("first")) if "gone" in line] == []
