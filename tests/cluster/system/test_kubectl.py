"""A tenant's and an administrator's own kubectl with the cluster: what they type, and what they see."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from playground import scenarios
from playground.cluster import Cluster
from playground.waiting import wait_for

pytestmark = [pytest.mark.system, pytest.mark.kubectl]
SAMPLES = scenarios.SAMPLES
OLDEST = (1, 30)
Kubectl = Callable[..., str]


def _version() -> tuple[int, int] | None:
    found = shutil.which("kubectl")
    if found is None:
        return None
    output = subprocess.run([found, "version", "--client"], capture_output=True, text=True, timeout=30, check=False)
    match = re.search(r"v(\d+)\.(\d+)", output.stdout)
    return (int(match[1]), int(match[2])) if match else None


@pytest.fixture
def kubectl(cluster: Cluster, tmp_path: Path) -> Kubectl:
    """Runs kubectl as a user would, with the cluster's kubeconfig; its output and warnings together."""
    version = _version()
    if version is None or version < OLDEST:
        pytest.skip(f"needs kubectl {OLDEST[0]}.{OLDEST[1]} or newer on PATH, found {version}")
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "KUBECONFIG": str(cluster.kubeconfig)}

    def run(*arguments: str, ok: bool = True, stdin: str | None = None) -> str:
        done = subprocess.run(
            ["kubectl", *arguments],
            env=environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode == 0) == ok, f"kubectl {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    return run


def test_the_4paradigm_account_by_hand(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", str(SAMPLES / "4paradigm-vgpu.yaml"))
    kubectl("wait", "deployment/vgpu-test", "--for=jsonpath={.status.readyReplicas}=6", "--timeout=30s")
    rows = kubectl("get", "pods", "-o", "wide").splitlines()
    assert len(rows) == 11
    assert sum(" Running " in row and " v100 " in row for row in rows) == 6
    assert sum(" SchedulingGated " in row for row in rows) == 4
    kubectl("scale", "deployment/vgpu-test", "--replicas=3")
    kubectl("wait", "deployment/vgpu-test", "--for=jsonpath={.status.replicas}=3", "--timeout=30s")
    assert "deployment.apps/vgpu-test unchanged" not in kubectl("apply", "-f", str(SAMPLES / "4paradigm-vgpu.yaml"))
    kubectl("delete", "-f", str(SAMPLES / "4paradigm-vgpu.yaml"), "--wait=true", "--timeout=30s")


def test_describe_says_why_a_pod_waits(kubectl: Kubectl, cluster: Cluster) -> None:
    kubectl("apply", "-f", str(SAMPLES / "4paradigm-vgpu.yaml"))
    waiting = next(p for p in scenarios.settled(cluster.kube, 10) if scenarios.waits(p))["metadata"]["name"]
    reason = "1 short of memory (largest free 2768 MiB, wanted 10000)"
    wait_for(
        lambda: re.search(rf"GPUWaiting .*{re.escape(reason)}", kubectl("describe", "pod", waiting)) is not None,
        "no Event that says why",
    )
    assert reason in kubectl("get", "pod", waiting, "-o", "jsonpath={.status.conditions}")


def test_a_pod_that_must_wait_gets_a_warning_at_once(kubectl: Kubectl) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "late"},
        "spec": {
            "nodeSelector": {"gpushare": "true"},
            "containers": [{"name": "c", "image": "x", "resources": {"limits": {"nvidia.com/gpu": 2}}}],
        },
    }
    kubectl("apply", "-f", "-", stdin=json.dumps({**pod, "metadata": {"name": "first"}}))
    output = kubectl("apply", "-f", "-", stdin=json.dumps(pod))
    assert "Warning: waiting: 0 of 3 GPU nodes fit" in output
    assert "pod/late created" in output


def test_a_wrong_manifest_says_what_would_work(kubectl: Kubectl) -> None:
    wrong = (SAMPLES / "superedge-nano-gpu.yaml").read_text().replace('"20"', '"120"')
    output = kubectl("apply", "-f", "-", stdin=wrong, ok=False)
    assert "give a whole number from 1 to 100, which is one whole card" in output


def test_a_server_side_dry_run_changes_nothing(kubectl: Kubectl, cluster: Cluster) -> None:
    output = kubectl("apply", "--dry-run=server", "-o", "yaml", "-f", str(SAMPLES / "superedge-nano-gpu.yaml"))
    assert "nodeName: t4" in output
    assert scenarios.all_pods(cluster.kube) == []


def test_an_administrator_sees_the_gpus(kubectl: Kubectl) -> None:
    assert re.search(r"^t4 +2 .*Tesla T4", kubectl("get", "gpunodes"), re.MULTILINE)
    described = kubectl("describe", "node", "t4")
    assert re.search(r"gpufraction.io/gpu-cores: +200", described)


def test_logs_show_what_the_container_sees(kubectl: Kubectl, cluster: Cluster) -> None:
    kubectl("apply", "-f", str(SAMPLES / "superedge-nano-gpu.yaml"))
    scenarios.settled(cluster.kube, 1)
    assert "GPU 0: Tesla T4 (UUID: GPU-" in kubectl("logs", "gpu-pod")


def test_a_waiting_pod_is_watched_until_it_runs(kubectl: Kubectl, cluster: Cluster) -> None:
    kubectl("apply", "-f", str(SAMPLES / "4paradigm-vgpu.yaml"))
    waiting = next(p for p in scenarios.settled(cluster.kube, 10) if scenarios.waits(p))["metadata"]["name"]
    kubectl("scale", "deployment/vgpu-test", "--replicas=0")
    kubectl("wait", f"pod/{waiting}", "--for=delete", "--timeout=30s")


def test_claims_are_shown_by_their_short_names(kubectl: Kubectl, cluster: Cluster) -> None:
    kubectl("apply", "-f", str(SAMPLES / "oke-claims.yaml"), "-f", str(SAMPLES / "oke-claims-pods.yaml"))
    scenarios.settled(cluster.kube, 2, running=2)
    claims = kubectl("get", "egpuc")
    assert re.search(r"^NAME +STATUS +ELASTICGPU +CLASS +MEMORY +CORE +AGE$", claims, re.MULTILINE)
    assert re.search(r"^gpushare-egpuc-1 +Bound +egpu-\S+ +gpushare-egpuclass +2 +1 +\S+$", claims, re.MULTILINE)
    assert re.search(r"^egpu-\S+ +Bound +default +gpushare-egpuc-1 +a10-0\d ", kubectl("get", "egpu"), re.MULTILINE)
    assert re.search(r"^a10-00 +a10 +0 +NVIDIA A10 +Healthy ", kubectl("get", "gpus.elasticgpu.io"), re.MULTILINE)
    kubectl("delete", "-f", str(SAMPLES / "oke-claims-pods.yaml"), "-f", str(SAMPLES / "oke-claims.yaml"))
    assert kubectl("get", "egpu").strip() == "No resources found"
