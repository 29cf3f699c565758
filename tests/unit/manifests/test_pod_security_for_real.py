"""Pod Security on a real API server that enforces it, and an upgrade from agents in the programs' namespace."""

from __future__ import annotations

import copy
import os
import re
import subprocess
from collections.abc import Iterator

import pytest
import yaml

from contract import names
from kubectl_gpufraction.check import install, reader
from kubectl_gpufraction.check.findings import FAIL
from playground.realapi.components import assets_of
from playground.realapi.server import RealServer
from playground.waiting import wait_for
from runtime.kubernetes.client import Kube
from runtime.kubernetes.transport import connect_transport
from runtime.kubernetes.warnings import WarningTransport
from tests.unit.manifests.kube import JSON, ROOT, of, with_components
from tests.unit.manifests.realcluster import MASTER, REAL, RealCluster

pytestmark = [pytest.mark.realcluster, REAL]
SYSTEM, NODES = names.NAMESPACE, names.NODES_NAMESPACE
WORKLOADS = ("Deployment", "DaemonSet")
APPLIED = ("Namespace", "ServiceAccount", "ConfigMap", *WORKLOADS)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealCluster]:
    with_components()  # skips without kubectl
    assets = assets_of(os.environ)
    assert not isinstance(assets, str), assets
    # No controllers run, so nothing creates accounts or counts for quotas.
    with RealServer(assets, enabled=(), disabled=("ServiceAccount", "ResourceQuota")) as server:
        yield RealCluster(server)


def kubectl(cluster: RealCluster, *words: str, given: str = "") -> str:
    command = ["kubectl", "--kubeconfig", str(cluster.kubeconfig), *words]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def applied(cluster: RealCluster, items: list[JSON]) -> None:
    text = yaml.safe_dump_all([item for item in items if item["kind"] in APPLIED])
    wait_for(lambda: "Warning" not in kubectl(cluster, "apply", "-f", "-", given=text), "a warning of Pod Security")


def admitted(cluster: RealCluster, workload: JSON, namespace: str) -> str:
    """The API server's answer to a dry run of the workload's pod in a namespace; empty if it accepts the pod."""
    template = workload["spec"]["template"]
    metadata = {"name": workload["metadata"]["name"], "labels": template["metadata"]["labels"]}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
    answer = cluster.call(MASTER, "POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", body)
    return answer.message


def workloads(items: list[JSON]) -> dict[str, JSON]:
    return {item["metadata"]["name"]: item for kind in WORKLOADS for item in of(items, kind)}


def test_the_profiles_pods_are_admitted_at_the_levels_of_their_namespaces(cluster: RealCluster) -> None:
    items = with_components("multitenant", "mps", "ui", resource="base")
    applied(cluster, items)
    found = workloads(items)
    places = {name: item["metadata"]["namespace"] for name, item in found.items()}
    assert places == {
        **dict.fromkeys(("gpufraction", "gpufraction-certs", "gpufraction-ui"), SYSTEM),
        **dict.fromkeys(("gpufraction-nodeagent", "gpufraction-mps"), NODES),
    }
    assert {name: admitted(cluster, found[name], places[name]) for name in found} == dict.fromkeys(found, "")
    for name in ("gpufraction-nodeagent", "gpufraction-mps"):
        refused = admitted(cluster, found[name], SYSTEM)
        assert 'violates PodSecurity "restricted' in refused, "the namespace of webhook and allocator takes such a pod"
    for level in ("baseline", "restricted"):
        label = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": level}}}
        form = "application/merge-patch+json"
        cluster.call(MASTER, "PATCH", f"/api/v1/namespaces/{NODES}", label, form=form)
        wait_for(lambda: "violates PodSecurity" in admitted(cluster, found["gpufraction-mps"], NODES), "not enforced")


def test_a_default_installation_is_admitted_at_restricted(cluster: RealCluster) -> None:
    items = with_components()
    applied(cluster, items)
    found = workloads(items)
    assert {name: admitted(cluster, item, SYSTEM) for name, item in found.items()} == dict.fromkeys(found, "")


def former(items: list[JSON]) -> list[JSON]:
    """
    What an earlier version installed with node-access: everything in the programs' namespace, which was Privileged.
    """
    made = []
    for item in copy.deepcopy(items):
        if item["metadata"].get("namespace") == NODES:
            item["metadata"]["namespace"] = SYSTEM
        if item["kind"] == "Namespace" and item["metadata"]["name"] == SYSTEM:
            item["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] = "privileged"
        if item["kind"] != "Namespace" or item["metadata"]["name"] != NODES:
            made.append(item)
    return made


def agents(cluster: RealCluster) -> set[str]:
    listed = cluster.must("GET", "/apis/apps/v1/daemonsets")["items"]
    return {each["metadata"]["namespace"] for each in listed if each["metadata"]["name"] == "gpufraction-nodeagent"}


def left(cluster: RealCluster) -> list[tuple[str, str]]:
    """What `check` says about agents that are left behind: level and cure."""
    listening = WarningTransport(connect_transport(kubeconfig=str(cluster.kubeconfig), context=None, user_agent="test"))
    facts = reader.read(Kube(listening), listening, 0.0)
    return [(each.level, each.cure) for each in install.findings(facts) if each.check == "left-behind"]


def former_agent() -> tuple[str, str]:
    """The commands of docs/operations.md that remove a former agent, before the upgrade and after it."""
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    [section] = re.findall(r"\*\*A version whose agent ran in (?:.+\n)+\n((?:    .*\n)+)", page)
    commands = [line.strip() for line in section.splitlines()]
    return commands[0], commands[-1]


def test_an_upgrade_leaves_no_agent_in_the_former_namespace(cluster: RealCluster) -> None:
    """Uses the commands of docs/operations.md; `check` reports that the first one was forgotten."""
    kubectl(cluster, "delete", "daemonset", "--all", "--all-namespaces")
    items = with_components("node-access")
    text = yaml.safe_dump_all([item for item in former(items) if item["kind"] in APPLIED])
    assert "would violate PodSecurity" in kubectl(cluster, "apply", "-f", "-", given=text)
    assert agents(cluster) == {SYSTEM}
    applied(cluster, items)
    assert agents(cluster) == {SYSTEM, NODES}
    assert left(cluster) == [(FAIL, f"kubectl -n {SYSTEM} delete daemonset gpufraction-nodeagent")]
    first, cleanup = former_agent()
    assert first == f"kubectl -n {SYSTEM} delete daemonset gpufraction-nodeagent --ignore-not-found"
    for command in (first, cleanup):
        kubectl(cluster, *command.split()[1:])
    assert (agents(cluster), left(cluster)) == ({NODES}, [])
    for plural in ("serviceaccounts", "configmaps"):
        listed = cluster.must("GET", f"/api/v1/namespaces/{SYSTEM}/{plural}")["items"]
        assert not [each for each in listed if each["metadata"]["name"].startswith("gpufraction-nodeagent")]
