"""`kubectl gpufraction` on a cluster where pods run and one waits: every command, as a user types it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubectl_gpufraction.__main__ import main
from playground import scenarios
from playground.cluster import Cluster
from playground.scenarios import SAMPLES
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import PodBuilder, pod
from tests.cluster.acceptance.looking import create, gpu_mem, plugin

JSON = dict[str, Any]
ROOT = SAMPLES.parent
pytestmark = pytest.mark.system


def test_every_command(cluster: Cluster, tmp_path: Path) -> None:
    create(cluster, gpu_mem("a", 10), gpu_mem("b", 10))
    scenarios.settled(cluster.kube, 2, running=2)
    create(cluster, gpu_mem("late", 9))
    scenarios.settled(cluster.kube, 3)

    nodes = json.loads(plugin(cluster, "nodes", "-o", "json"))["items"]
    assert [(row["node"], row["gpu"], row["shares"]) for row in nodes if row["node"] == "t4"] == [
        ("t4", 0, 1),
        ("t4", 1, 1),
    ]
    pods = yaml.safe_load(plugin(cluster, "pods", "-o", "yaml"))["items"]
    assert [(row["name"], row["status"], row["memoryMiB"]) for row in pods] == [
        ("a", "Running", 10240),
        ("b", "Running", 10240),
        ("late", "Waiting", None),
    ]
    waiting = plugin(cluster, "waiting", "-A").splitlines()
    assert (waiting[0].split(), waiting[1].split()[:4]) == (
        ["PLACE", "NAMESPACE", "NAME", "ASKS", "WAITS", "WHY"],
        ["1", "default", "late", "1x9Gi"],
    )
    assert waiting[2:3] == ["1 pod waits: 1 Memory"]
    assert waiting[3].startswith("[1] 1 pod: 0 of 3 GPU nodes fit: ")
    assert (
        plugin(cluster, "waiting", "-n", "elsewhere")
        == "No pod waits for a GPU share in namespace elsewhere, which does not exist.\n"
    )
    explained = plugin(cluster, "explain", "pod/late").splitlines()
    assert explained[1].startswith("It waits, 1 of 1 in the queue: 0 of 3 GPU nodes fit: ")
    assert "default/a on GPU" in explained[-1]
    assert plugin(cluster, "explain", "nobody").startswith("pod 'nobody' in namespace 'default': not found")
    assert plugin(cluster, "advise").splitlines()[1].startswith("Cannot be evicted: default/a (no controller")
    assert json.loads(plugin(cluster, "advise", "-o", "json")) == {"items": []}
    refused = plugin(cluster, "inspect", "no-such-node")
    assert refused.startswith("Failed due to GET /api/v1/nodes/no-such-node: 404")
    assert refused.endswith("\n")
    assert plugin(cluster, "version").splitlines()[3] == "3 nodes reported GPUs"

    manifest = tmp_path / "wrong.yaml"
    manifest.write_text((SAMPLES / "superedge-nano-gpu.yaml").read_text().replace('"20"', '"120"'))
    tried = {
        "fits": plugin(cluster, "dry-run", "-f", str(SAMPLES / "4paradigm-vgpu.yaml"), "-o", "json"),
        "full": plugin(cluster, "dry-run", "-f", _full(tmp_path), "-o", "json"),
        "wrong": plugin(cluster, "dry-run", "-f", str(manifest), "-o", "json"),
    }
    found = {key: json.loads(text)["items"][0] for key, text in tried.items()}
    fits = found["fits"]
    assert (fits["verdict"], fits["placed"], fits["replicas"]) == ("Partly", 6, 10), "as the sample says"
    assert {each["node"] for each in fits["placements"]} == {"v100"}
    assert fits["reason"].startswith("0 of 3 GPU nodes fit: 1 short of memory (largest free 2768 MiB, wanted 10000), ")
    assert found["full"]["verdict"] == "Waiting"
    assert "0 of 3 GPU nodes fit" in found["full"]["reason"]
    assert found["wrong"]["verdict"] == "Denied"
    assert "give a whole number from 1 to 100" in found["wrong"]["reason"]
    assert len(scenarios.all_pods(cluster.kube)) == 3


def _full(folder: Path) -> str:
    file = folder / "full.yaml"
    file.write_text(json.dumps(gpu_mem("full", 12).manifest()))
    return str(file)


def test_the_single_file_says_the_same(cluster: Cluster) -> None:
    file = ROOT / "build" / "kubectl-gpufraction"
    if not file.is_file() or not _of_these_sources(file):
        pytest.skip("build/kubectl-gpufraction is not there, or of other sources; `make plugin` makes it")
    create(cluster, gpu_mem("a", 10))
    scenarios.settled(cluster.kube, 1, running=1)
    for arguments in (["version"], ["nodes", "-o", "json"], ["dry-run", "-f", str(SAMPLES / "native.yaml")]):
        command = [sys.executable, "-I", str(file), *arguments, "--kubeconfig", str(cluster.kubeconfig)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, plugin(cluster, *arguments), "")


def _of_these_sources(file: Path) -> bool:
    with zipfile.ZipFile(file) as single:
        packed = {name: single.read(name) for name in single.namelist() if name.endswith(".py")}
    folders = ("contract", "runtime", "kubectl_gpufraction")
    sources = {
        str(each.relative_to(ROOT)): each.read_bytes() for name in folders for each in (ROOT / name).rglob("*.py")
    }
    return {name: text for name, text in packed.items() if name.partition("/")[0] in folders} == sources


def test_a_watch_prints_again_what_has_changed(cluster: Cluster) -> None:
    out, stop = io.StringIO(), threading.Event()
    arguments = ["pods", "--watch", "--kubeconfig", str(cluster.kubeconfig)]
    watching = threading.Thread(
        target=lambda: main(arguments, out=out, environment={}, stop=stop), name="watching", daemon=True
    )
    watching.start()
    try:
        wait_for(lambda: "No pod requests" in out.getvalue(), "nothing printed")
        create(cluster, gpu_mem("seen", 1))
        wait_for(lambda: "seen" in out.getvalue(), lambda: f"not printed: {out.getvalue()}")
    finally:
        stop.set()
        watching.join(10)
    assert not watching.is_alive()
    assert out.getvalue().startswith("No pod requests a GPU share in namespace default; -A looks in all.\n\nNAME ")


def _deployment(made: PodBuilder) -> JSON:
    pod = made.manifest()
    labels = {"app": pod["metadata"]["name"]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": pod["metadata"]["name"], "namespace": "default"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod["spec"]},
        },
    }


def test_advice_that_is_followed_lets_the_first_in_line_start(cluster: Cluster) -> None:
    cluster.kube.create(paths.deployments("default"), _deployment(pod("moves").asks("aliyun.com/gpu-mem", 8)))
    (moves,) = scenarios.settled(cluster.kube, 1, running=1)
    assert moves["spec"]["nodeName"] == "t4", "the smallest card that it fits"
    create(cluster, gpu_mem("stays", 13))
    scenarios.settled(cluster.kube, 2, running=2)
    assert plugin(cluster, "advise", "--evict", "--watch") == "--evict runs once; omit --watch\n"
    create(cluster, gpu_mem("late", 14))
    scenarios.settled(cluster.kube, 3)

    name = moves["metadata"]["name"]
    budgets = paths.poddisruptionbudgets
    guard: JSON = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "guard", "namespace": "default"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "moves"}}},
    }
    cluster.kube.create(budgets("default"), guard)
    assert f"default/{name} (PodDisruptionBudget guard allows no eviction now)" in plugin(cluster, "advise")
    cluster.kube.delete(budgets("default", "guard"))
    advised = plugin(cluster, "advise").splitlines()
    assert advised[0] == "1 eviction would make room for default/late (requests 1x14Gi) on node t4, GPU 0:"
    assert advised[1].startswith(f"  default/{name} (8192 MiB, priority 0): then there is room for it on node ")
    assert plugin(cluster, "advise", "--gpus", "9").startswith("No evictions (up to 6, of one node)")
    assert plugin(cluster, "advise", "stays") == ("pod 'stays' in namespace 'default' does not wait for a GPU share\n")

    assert plugin(cluster, "advise", "late", "--evict").splitlines()[1].endswith("[evicted]")
    found = {each["metadata"]["name"]: each for each in scenarios.settled(cluster.kube, 3, running=3)}
    assert found.pop("late")["spec"]["nodeName"] == "t4"
    assert found.pop("stays")["spec"]["nodeName"] == "t4"
    (again,) = found.values()
    assert (again["metadata"]["name"] != name, again["spec"]["nodeName"]) == (True, "v100")
    assert plugin(cluster, "advise") == "No pod waits for a GPU share.\n"
