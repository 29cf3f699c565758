"""What every command has in common: its output formats, the style of its fields, its exit status, and --watch."""

from __future__ import annotations

import io
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from contract import names
from contract.nodes import pool_status
from contract.nodes.pool_status import PoolsStatus, PoolStatus
from kubectl_gpufraction.__main__ import COMMANDS, main
from kubectl_gpufraction.commands import version
from kubectl_gpufraction.output.forms import FORMS, CommandOutput, Form
from kubectl_gpufraction.output.wording import bar
from tests.builders import pod
from tests.unit.kubectl_gpufraction.answering import answering, kubeconfig
from tests.unit.kubectl_gpufraction.objects import admitted, gpunode, node
from tests.unit.kubectl_gpufraction.test_tenants import collection
from tests.wires import status_body

JSON = dict[str, Any]
FULL = "0 of 1 GPU nodes fit: 1 short of memory"
RUNS = admitted("runs", "gpufraction.io/gpu-memory", "10Gi", on="n1")
WAITS = admitted("waits", "gpufraction.io/gpu-memory", "6Gi", waits=FULL)
ALSO = admitted("also", "gpufraction.io/gpu-memory", "6Gi", waits=FULL, created="2026-01-05T08:00:01Z")
NEW = admitted("new", "nvidia.com/gpu", 1, created="2026-01-05T08:00:02Z")
RUNS["metadata"]["ownerReferences"] = [{"uid": "set", "kind": "ReplicaSet", "controller": True}]
WAITS["metadata"]["ownerReferences"] = [{"uid": "set", "kind": "ReplicaSet", "controller": True}]
POOLS = PoolsStatus(1_767_600_000.0, (PoolStatus("t4", 10, 1, ready=2),))
GPUNODES = "/apis/gpufraction.io/v1alpha1/gpunodes"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/gpufraction-system/leases/gpufraction-allocator"
DEFAULT = "/api/v1/namespaces/default/pods"
CLUSTER: dict[str, tuple[int, Any]] = {
    "/version": (200, {"major": "1", "minor": "36"}),
    "/api/v1/nodes": collection(node("n1")),
    "/api/v1/nodes/n1": (200, node("n1")),
    "/api/v1/pods": collection(RUNS, WAITS, ALSO, NEW),
    DEFAULT: collection(RUNS, WAITS, ALSO, NEW),
    GPUNODES: collection(gpunode("n1", 15109)),
    f"{GPUNODES}/n1": (200, gpunode("n1", 15109)),
    "/api/v1/namespaces": collection(),
    LEASE: (200, {"spec": {"holderIdentity": "replica-1_7", "renewTime": "2126-01-05T09:00:00.000000Z"}}),
    "/apis/policy/v1/poddisruptionbudgets": collection(),
    "/apis/apps/v1/namespaces/default/deployments/web": (200, {"metadata": {"name": "web", "uid": "deployment"}}),
    "/apis/apps/v1/namespaces/default/replicasets": collection(
        {"metadata": {"uid": "set", "ownerReferences": [{"uid": "deployment", "controller": True}]}}
    ),
    f"/api/v1/namespaces/gpufraction-system/configmaps/{names.POOLS}": (
        200,
        {"data": {pool_status.FILE: pool_status.document(POOLS)}},
    ),
}
MANIFEST = pod("tried").asks("gpufraction.io/gpu-memory", "2Gi").json() | {"kind": "Pod"}
KEYS = {"kueue-config": {"resources"}, "fleet": {"items", "drift"}}
"""Fields of a command's document in addition to its items."""
CALLS: dict[str, tuple[str, ...]] = {
    "nodes": (),
    "pods": (),
    "waiting": (),
    "idle": (),
    "pools": (),
    "explain": ("deployment/web",),
    "advise": (),
    "dry-run": ("-f", "MANIFEST"),
    "cordon": ("n1", "0"),
    "uncordon": ("n1",),
    "check": (),
    "conformance": ("--clean",),
    "kueue-config": (),
    "version": (),
    "fleet": ("--contexts", "here"),
    "inspect": (),
    "completion": ("bash",),
}
"""A call of each command except `ui`, which prints an address and serves, and those that run kubectl."""


def called(tmp_path: Path, *arguments: str, given: dict[str, tuple[int, Any]] | None = None) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    manifest = tmp_path / "manifest.yaml"
    manifest.write_text(json.dumps(MANIFEST))
    words = [str(manifest) if word == "MANIFEST" else word for word in arguments]
    answers = CLUSTER | {f"POST {DEFAULT}": (201, RUNS)} | (given or {})
    with answering(answers) as port:
        status = main([*words, "--kubeconfig", str(kubeconfig(tmp_path, port))], out=out, err=err, environment={})
    return status, out.getvalue(), err.getvalue()


def keys(found: Any) -> Iterator[str]:
    if isinstance(found, dict):
        yield from found
    for each in found.values() if isinstance(found, dict) else found if isinstance(found, list) else ():
        yield from keys(each)


def test_every_command_is_called_here() -> None:
    assert {command.name for command in COMMANDS} - CALLS.keys() == {"ui", "shadow", "what-if"}


@pytest.mark.parametrize("command", CALLS)
def test_every_command_has_every_form(command: str, tmp_path: Path) -> None:
    printed = {form: called(tmp_path, command, *CALLS[command], "-o", form) for form in FORMS}
    assert {(status, err) for status, _, err in printed.values()} == {(1 if command == "check" else 0, "")}
    documents = json.loads(printed["json"][1]), yaml.safe_load(printed["yaml"][1])
    if command != "check":  # which has times that change
        assert documents[0] == documents[1]
    assert documents[0].keys() == KEYS.get(command, {"items"})
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*/\S+|\S+\.\S+/\S+", line) for line in printed["name"][1].splitlines())
    assert printed["table"][1]


OTHERS = {str(names.GPU_MEMORY), str(names.GPU_CORES)}
"""Names of Kubernetes resources, which are keys in Kueue's own configuration."""


@pytest.mark.parametrize("command", CALLS)
def test_every_field_is_camel_case(command: str, tmp_path: Path) -> None:
    document = json.loads(called(tmp_path, command, *CALLS[command], "-o", "json")[1])
    found = set(keys(document)) - OTHERS
    assert not {key for key in found if not re.fullmatch(r"[a-z]+[a-zA-Z0-9]*", key)}
    assert not {key for key in found if re.search(r"(MIB|GPU|UUID)", key)}, "MiB, gpu and uuid, as in every command"


@pytest.mark.parametrize("command", ["nodes", "pods", "waiting", "pools"])
def test_without_headings_there_are_rows_alone(command: str, tmp_path: Path) -> None:
    _, out, _ = called(tmp_path, command, "--no-headers")
    items = json.loads(called(tmp_path, command, "-o", "json")[1])["items"]
    assert len(out.splitlines()) == len(items)


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"kubectl gpufraction {version.own()}\n"


WAITING = """\
PLACE   NAMESPACE   NAME    ASKS      WAITS   WHY
1       default     waits   1x6Gi     1h      Memory [1]
2       default     also    1x6Gi     1h      Memory [1]
3       default     new     1xwhole   1h      not decided yet
3 pods wait: 2 Memory, 1 not decided yet
[1] 2 pods: 0 of 1 GPU nodes fit: 1 short of memory
"""


def test_a_reason_of_many_pods_is_printed_once(tmp_path: Path) -> None:
    printed = called(tmp_path, "waiting")[1]
    assert re.sub(r" \d+[smhd] +", " AGE ", printed) == re.sub(r" \d+[smhd] +", " AGE ", WAITING)
    assert called(tmp_path, "waiting", "-o", "name")[1] == "pod/waits\npod/also\npod/new\n"


NODES = """\
NODE   GPU   MODEL      SHARES   USED         FREE-MiB   OF-MiB   STATE
n1     0     Tesla T4   1        #######...   4869       15109    Healthy
1 node, 1 GPU, 1 healthy: #######... 10240 of 15109 MiB, 67 %
"""


def test_nodes_have_bars_and_totals(tmp_path: Path) -> None:
    assert called(tmp_path, "nodes") == (0, NODES, "")


def test_a_gpu_that_promises_more_than_it_has_is_marked(tmp_path: Path) -> None:
    scaled = gpunode("n1", 10_000)
    scaled["status"]["options"] = [{"name": "deviceMemoryScaling", "value": "1.5"}]
    _, out, _ = called(tmp_path, "nodes", given={GPUNODES: collection(scaled)})
    assert out.splitlines()[1].split()[6:9] == ["4760", "15000", "(1.5x)"]
    assert out.splitlines()[3] == "Oversubscribed by the options (deviceMemoryScaling): GPU 0 of n1"
    [row] = json.loads(called(tmp_path, "nodes", "-o", "json", given={GPUNODES: collection(scaled)})[1])["items"]
    assert (row["oversubscribed"], row["totalMiB"], row["promisedMiB"]) == (True, 10_000, 15_000)


def test_a_gpu_of_which_more_is_held_than_there_is_is_marked(tmp_path: Path) -> None:
    _, out, _ = called(tmp_path, "nodes", given={GPUNODES: collection(gpunode("n1", 10_000))})
    assert "#########!" in out
    assert out.splitlines()[3] == "Overcommitted, pods hold more than the GPU has: GPU 0 of n1 (by 240 MiB)"


BURSTS = admitted("bursts", "gpufraction.io/gpu-memory", "6Gi", on="n1", limit="12Gi")


def test_a_gpu_whose_limits_add_up_to_more_than_it_has_is_marked(tmp_path: Path) -> None:
    more: dict[str, tuple[int, Any]] = {
        "/api/v1/pods": collection(admitted("plain", "gpufraction.io/gpu-memory", "8Gi", on="n1"), BURSTS)
    }
    _, out, _ = called(tmp_path, "nodes", "-o", "wide", given=more)
    assert "20480 (1.36x)" in out.splitlines()[1]
    assert out.splitlines()[3] == "Memory limits add up to more than the memory: GPU 0 of n1 (1.36x)"
    [row] = json.loads(called(tmp_path, "nodes", "-o", "json", given=more)[1])["items"]
    assert (row["memoryMiB"], row["limitsMiB"], row["oversubscribed"]) == (14336, 20480, False)


def test_a_pod_that_may_burst_is_shown_with_its_limit(tmp_path: Path) -> None:
    there: dict[str, tuple[int, Any]] = {"/api/v1/pods": collection(BURSTS), DEFAULT: collection(BURSTS)}
    _, out, _ = called(tmp_path, "pods", "-o", "wide", given=there)
    assert out.splitlines()[1].split()[2] == "1x6Gi..12Gi"
    [row] = json.loads(called(tmp_path, "pods", "-o", "json", given=there)[1])["items"]
    assert (row["memoryMiB"], row["limitMiB"]) == (6144, 12288)
    _, out, _ = called(tmp_path, "explain", "bursts", given=there | {f"{DEFAULT}/bursts": (200, BURSTS)})
    assert "6144 MiB, up to 12288 MiB while nobody else needs it" in out


BARS = {
    (0, 10): "..........",
    (1, 1000): "#.........",
    (5, 10): "#####.....",
    (999, 1000): "#########.",
    (10, 10): "##########",
    (11, 10): "#########!",
    (0, 0): "..........",
}


@pytest.mark.parametrize(("amounts", "want"), BARS.items(), ids=map(str, BARS))
def test_bars(amounts: tuple[int, int], want: str) -> None:
    assert bar(*amounts) == want


def test_a_workload_is_explained_pod_by_pod_those_that_wait_first(tmp_path: Path) -> None:
    assert called(tmp_path, "explain", "deployment/web")[1].splitlines() == [
        "deployment/web: 2 pods, 1 with a share, 1 waiting",
        "",
        "default/waits requests 1x6Gi (native)",
        f"It waits, 1 of 3 in the queue: {FULL}",
        "The end of any one of these pods would make room on a GPU: default/runs on GPU 0 of n1",
        "",
        "default/runs requests 1x10Gi (native)",
        "It is Running on node n1:",
        "  main: GPU 0 (Tesla T4, GPU-n1-0), 10240 MiB",
    ]
    items = json.loads(called(tmp_path, "explain", "deployment/web", "-o", "json")[1])["items"]
    assert [(item["name"], item["status"], item["roomAfter"]) for item in items] == [
        ("waits", "Waiting", [{"pod": "default/runs", "node": "n1", "gpu": 0}]),
        ("runs", "Running", []),
    ]


SETS = "/apis/apps/v1/namespaces/default/statefulsets"
REFUSED = {"type": "ReplicaFailure", "status": "True", "message": "the webhook refuses it"}
FAILURES: dict[str, tuple[tuple[str, ...], int, str]] = {
    "a workload that is not there": (
        ("explain", "job/x"),
        1,
        "job 'x' in namespace 'default': not found; -n names another namespace\n",
    ),
    "a workload without pods": (
        ("explain", "sts/bare"),
        1,
        "statefulset 'bare' in namespace 'default': it has no pods: the webhook refuses it\n",
    ),
    "a name that cannot be read": (
        ("explain", "a/b/c/d"),
        2,
        "'a/b/c/d': give POD, NAMESPACE/POD, KIND/NAME or NAMESPACE/KIND/NAME; KIND is one of pod, deployment, "
        "replicaset, statefulset, daemonset, job\n",
    ),
    "a pod of another namespace": (
        ("explain", "team/x"),
        1,
        "pod 'x' in namespace 'team': not found; -n names another namespace\n",
    ),
}


@pytest.mark.parametrize(("arguments", "status", "message"), FAILURES.values(), ids=FAILURES.keys())
def test_what_cannot_be_explained(arguments: tuple[str, ...], status: int, message: str, tmp_path: Path) -> None:
    bare = {"metadata": {"name": "bare", "uid": "b"}, "status": {"conditions": [REFUSED]}}
    empty = {"/api/v1/namespaces/team/pods": collection()}
    assert called(tmp_path, *arguments, given={f"{SETS}/bare": (200, bare)} | empty) == (status, "", message)


def test_the_models_that_there_are_follow_one_that_is_not(tmp_path: Path) -> None:
    wishes = admitted("wishes", "gpufraction.io/gpu-memory", "2Gi", waits="0 of 1 GPU nodes fit: 1 without the model")
    wishes["status"]["conditions"][0]["reason"] = "Model"
    given = {"/api/v1/pods": collection(wishes)}
    assert (
        called(tmp_path, "explain", "wishes", given=given)[1].splitlines()[-1] == "The models of this cluster: Tesla T4"
    )


DRY_RUNS: dict[str, tuple[tuple[int, Any], int, str]] = {
    "placed": ((201, RUNS), 0, "Placed"),
    "waits": ((201, WAITS), 4, "Waiting"),
    "denied": ((403, status_body(403, "Forbidden", "too much")), 3, "Denied"),
}


@pytest.mark.parametrize(("answer", "status", "verdict"), DRY_RUNS.values(), ids=DRY_RUNS.keys())
def test_the_exit_status_of_a_dry_run(answer: tuple[int, Any], status: int, verdict: str, tmp_path: Path) -> None:
    found = called(tmp_path, "dry-run", "-f", "MANIFEST", "-o", "json", given={f"POST {DEFAULT}": answer})
    assert (found[0], [row["verdict"] for row in json.loads(found[1])["items"]]) == (status, [verdict])


def test_what_a_dry_run_skips_is_named(tmp_path: Path) -> None:
    manifest = tmp_path / "other.yaml"
    manifest.write_text(yaml.safe_dump_all([{"kind": "Service", "metadata": {"name": "web"}}, MANIFEST]))
    status, out, _ = called(tmp_path, "dry-run", "-f", str(manifest))
    assert (status, out.splitlines()[2:]) == (
        0,
        ["1 of 1 pod placed", "Skipped, since they create no pods: Service/web"],
    )
    manifest.write_text(yaml.safe_dump({"kind": "Service", "metadata": {"name": "web"}}))
    assert called(tmp_path, "dry-run", "-f", str(manifest))[1].splitlines() == [
        "No pod and no pod template in the manifest.",
        "Skipped, since they create no pods: Service/web",
    ]


class Terminal(io.StringIO):
    """A terminal that signals when it was written to, and is closed after two texts."""

    def __init__(self, stop: threading.Event) -> None:
        super().__init__()
        self._stop = stop

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        self._stop.set()


def test_a_watch_draws_in_place_on_a_terminal(tmp_path: Path) -> None:
    stop = threading.Event()
    out = Terminal(stop)
    with answering(CLUSTER) as port:
        flags = ["--watch", "--kubeconfig", str(kubeconfig(tmp_path, port))]
        assert main(["nodes", *flags], out=out, environment={"NO_COLOR": "1"}, stop=stop) == 0
    assert out.getvalue() == f"\x1b[H\x1b[2J\x1b[3J{NODES}"


def test_names_are_printed_once() -> None:
    assert CommandOutput(names=["node/a", "node/a", "node/b"]).text(Form("name")) == "node/a\nnode/b\n"
