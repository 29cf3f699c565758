"""The samples for Kyverno and Gatekeeper with their own programs: they exempt the node agents, and no other pod."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from playground.engines import engine, gatekeeper
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError
from tests.cluster.engines.programs import folder_of
from tests.unit.manifests.kube import ROOT, below, with_components
from tests.unit.manifests.realcluster import REAL, running

JSON = dict[str, Any]
pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]
SAMPLES = ROOT / "samples" / "gitops" / "exemptions"
NODES = "gpufraction-nodes"
WITH_ACCESS = ("node-access", "mps", "preload", "delivery-dra")
PROGRAMS = ("Deployment", "DaemonSet")

# -- Kyverno: its own evaluation of its policies, without a cluster ----------------------------------------------------

KYVERNO = "kyverno"
CLUSTER_POLICIES, VALIDATING_POLICIES = "kyverno-cluster-policies.yaml", "kyverno-validating-policies.yaml"
"""Kyverno's policies for the level Restricted in both of their forms."""


def programs(*components: str) -> list[JSON]:
    """The Deployments and DaemonSets, and a pod of each as its controller creates it."""
    made = []
    for item in with_components(*components):
        if item["kind"] in PROGRAMS:
            metadata = {**item["metadata"], "name": f"{item['metadata']['name']}-x2x4z"}
            made += [
                item,
                {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": item["spec"]["template"]["spec"]},
            ]
    return made


def refused(policies: str, items: list[JSON], directory: Path, exceptions: Path | None = None) -> set[tuple[str, str]]:
    """What Kyverno refuses: the namespace and the name of each object, with the policies that refuse it."""
    folder = folder_of(engine.assets(KYVERNO, policies))
    given = directory / "items.yaml"
    given.write_text(yaml.safe_dump_all(items))
    command = [folder / KYVERNO, "apply", folder / policies, "--resource", given, "--policy-report"]
    command += ["--output-format", "json", "--remove-color"]
    command += ["--exception", exceptions] if exceptions else []
    done = subprocess.run([str(each) for each in command], capture_output=True, text=True, timeout=120, check=False)
    report = json.loads(done.stdout[done.stdout.index("{") :])
    results = report["results"]
    assert {each["result"] for each in results} <= {"pass", "fail", "skip"}, done.stdout
    assert any(each["result"] == "pass" for each in results), done.stdout
    return {
        (f"{which.get('namespace')}/{which['name']}", each["policy"])
        for each in results
        if each["result"] == "fail"
        for which in each["resources"]
    }


@pytest.mark.parametrize("policies", [CLUSTER_POLICIES, VALIDATING_POLICIES])
def test_without_access_to_nodes_no_program_needs_an_exception(policies: str, tmp_path: Path) -> None:
    left_out = (*WITH_ACCESS, "host-network", "multitenant", "cert-manager", "external-certificates")
    others = [name for name in below("components") if name not in left_out]
    assert refused(policies, programs(*others), tmp_path) == set()


@pytest.mark.parametrize("policies", [CLUSTER_POLICIES, VALIDATING_POLICIES])
def test_the_sample_lets_the_agents_pass_and_they_would_not_pass_without(policies: str, tmp_path: Path) -> None:
    items = programs(*WITH_ACCESS)
    without = refused(policies, items, tmp_path)
    assert {name.split("/")[0] for name, _ in without} == {NODES}
    kinds = {each["kind"]: each for each in yaml.safe_load_all((SAMPLES / "kyverno.yaml").read_text())}
    assert kinds
    assert refused(policies, items, tmp_path, SAMPLES / "kyverno.yaml") == set()


@pytest.mark.parametrize("policies", [CLUSTER_POLICIES, VALIDATING_POLICIES])
def test_a_pod_of_a_tenant_is_refused_as_before(policies: str, tmp_path: Path) -> None:
    [agent, *_] = [each for each in programs(*WITH_ACCESS) if each["kind"] == "Pod" and "nodeagent" in str(each)]
    tenants = {**agent, "metadata": {"name": agent["metadata"]["name"], "namespace": "team-a"}}
    before = refused(policies, [tenants], tmp_path)
    assert before
    assert refused(policies, [tenants], tmp_path, SAMPLES / "kyverno.yaml") == before


# -- Gatekeeper: its webhook on a real API server ----------------------------------------------------------------------

TEMPLATE = """
apiVersion: templates.gatekeeper.sh/v1
kind: ConstraintTemplate
metadata: {name: nohostfolders}
spec:
  crd: {spec: {names: {kind: NoHostFolders}}}
  targets:
    - target: admission.k8s.gatekeeper.sh
      rego: |
        package nohostfolders
        violation[{"msg": msg}] {
          input.review.object.spec.volumes[_].hostPath
          msg := "folders of the host are not allowed"
        }
"""
CONSTRAINT = {
    "apiVersion": "constraints.gatekeeper.sh/v1beta1",
    "kind": "NoHostFolders",
    "metadata": {"name": "none"},
    "spec": {"match": {"kinds": [{"apiGroups": [""], "kinds": ["Pod"]}]}},
}
CONFIGS = paths.path("config.gatekeeper.sh/v1alpha1", "configs", gatekeeper.NAMESPACE)


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kube]:
    """An API server whose pods Gatekeeper judges by a constraint on folders of the host."""
    folder = folder_of(gatekeeper.assets())
    with running() as found:
        kube = Kube.connect(kubeconfig=str(found.kubeconfig))
        for name in (NODES, "team-a"):
            kube.create("/api/v1/namespaces", {"metadata": {"name": name}})
        directory = tmp_path_factory.mktemp("gatekeeper") / "run"
        with gatekeeper.running(kube, found.kubeconfig, folder, directory) as program:
            templates = paths.path("templates.gatekeeper.sh/v1", "constrainttemplates")
            wait_for(lambda: created(kube, templates, yaml.safe_load(TEMPLATE)), program.tail)
            constraints = paths.path("constraints.gatekeeper.sh/v1beta1", "nohostfolders")
            wait_for(lambda: created(kube, constraints, CONSTRAINT), program.tail)
            yield kube


def created(kube: Kube, path: str, document: JSON) -> bool:
    """Whether the API server accepts it, once the kind is served and the webhook answers."""
    try:
        kube.create(path, document)
    except KubeError:
        return False
    return True


def answer(kube: Kube, namespace: str) -> str:
    """The answer to a dry run of an agent's pod in that namespace; empty if the pod is accepted."""
    [agent, *_] = [each for each in programs("node-access") if each["kind"] == "Pod" and "nodeagent" in str(each)]
    pod = {**agent, "metadata": {"name": "judged", "namespace": namespace}}
    try:
        kube.create(paths.pods(namespace), pod, {"dryRun": "All"})
    except KubeError as refused:
        return str(refused)
    return ""


@REAL
def test_gatekeeper_lets_the_agents_pass_with_the_sample_and_nobody_else(judged: Kube) -> None:
    for namespace in (NODES, "team-a"):
        wait_for(lambda namespace=namespace: "folders of the host" in answer(judged, namespace), "it refuses nobody")  # type: ignore[misc]
    judged.create(CONFIGS, yaml.safe_load((SAMPLES / "gatekeeper.yaml").read_text()))
    wait_for(lambda: answer(judged, NODES) == "", lambda: answer(judged, NODES))
    assert "folders of the host" in answer(judged, "team-a")
