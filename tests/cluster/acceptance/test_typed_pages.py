"""
The commands of pages without output, typed from top to bottom on a cluster as those pages suppose it: each succeeds.

`test_tutorial.py`, `test_older_guides.py` and others type further pages, and
`tests/unit/manifests/test_commands_of_pages.py` reads the commands of every page.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract import names
from playground import scenarios
from playground.cluster import Cluster
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.unit.manifests.commands import Shown, in_blocks
from tests.unit.manifests.kube import ROOT

pytestmark = [pytest.mark.system, pytest.mark.kubectl, pytest.mark.long]
PAGES = (
    *("operations", "operations-reference", "troubleshooting", "kubectl", "claims", "tenants", "runbooks", "isolation"),
    *("settings", "monitoring", "multitenant", "dra"),
)
"""Those that change what nodes and namespaces are come last."""
GIVEN = {"NODE": "t4", "n1": "t4", "NAMESPACE": "team-a", "NAME": "web", "POD": "trainer", "POOL": "gpu=on"}
"""What the reader writes in place of a word in capitals."""
CANNOT = {
    r" exec ": "nothing runs in a playground's pod but sleep",
    r"^kubectl logs gets-": "the pods wait, because no level is enforced",
    r" get podmonitors| get prometheusrules": "no Prometheus operator",
    r"create namespace team-a$": "it is there",
    r"^kubectl gpufraction conformance": "tests/cluster/kit has its cluster",
    r"^kubectl gpufraction pools": "test_pools_shown.py has pools",
    r"^kubectl gpufraction advise trainer": "for a pod that waits; tests/unit/kubectl_gpufraction/test_advice.py",
    r"^kubectl gpufraction completion": "tests/unit/kubectl_gpufraction has shells",
    r" --as mia": "only a user who may impersonate",
    r" apply -k \.| apply -k YOUR| rollout status ": "tests/unit/manifests applies the kustomizations of pages",
    r" diff -k |(?:apply|delete) -k manifests| delete mutatingwebhook": "test_pages.py, on a real API server",
    r" delete (?:daemonset|serviceaccount|configmap)": "test_pod_security_for_real.py goes on from an older version",
    r" set env daemonset| rollout restart ": "programs of the playground are processes, without a pod to restart",
    r"\begpuc? |\$namespace": "it removes what an uninstallation leaves; test_installation_lifecycle.py",
    r" patch node NODE ": "test_installing_for_real.py",
    r"gpufraction.io/inject-": "later commands need the label",
    r"trainer.yaml|web.yaml": "the reader's own file",
    r" patch configmap ": "a setting takes effect with a restart",
    r"quota gpus ": "the pods that are there were not counted; test_fair_queue.py has quotas",
}
"""What is not typed here, and why or where it is."""
NAMESPACES = ("default", "team", "team-a", "team-b", "monitoring")


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a reader whose cluster has the namespaces and pods that the pages name."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not on PATH")
    directory = tmp_path_factory.mktemp("typed")
    with Cluster(directory=directory, namespaces=NAMESPACES) as cluster:
        for namespace, name in (("team-a", "trainer"), ("default", "trainer"), ("team", "train-0")):
            cluster.kube.create(paths.pods(namespace), pod(name))
        for namespace in ("default", "team-a"):
            cluster.kube.create(paths.path("apps/v1", "deployments", namespace), deployment("web"))
        for namespace, count in (("default", 2), ("team-a", 2), ("team", 1)):
            scenarios.settled(cluster.kube, count, namespace, running=count)
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        yield {"PATH": programs, "HOME": str(directory), "KUBECONFIG": str(cluster.kubeconfig)}


def pod(name: str) -> dict[str, object]:
    containers = [{"name": "c", "image": "i", "resources": {"limits": {names.GPU_MEMORY: "1Gi"}}}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": containers}}


def deployment(name: str) -> dict[str, object]:
    template = {"metadata": {"labels": {"app": name}}, "spec": pod(name)["spec"]}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def reason(line: str) -> str:
    """Why the line is not typed; empty where it is."""
    return next((why for pattern, why in CANNOT.items() if re.search(pattern, line)), "")


def typed(page: str) -> list[Shown]:
    """What a test can type of a page."""
    return [each for each in in_blocks() if each.page == f"docs/{page}.md" and each.words[0] in ("kubectl", "sed")]


def types(line: str, environment: dict[str, str]) -> None:
    """One command as a reader types it, until it succeeds: a page's pods are placed, and come and go, in moments."""
    for word, instead in GIVEN.items():
        line = re.sub(rf"(?<![\w-]){word}(?![\w-])", instead, line)
    printed: list[str] = []

    def works() -> bool:
        done = subprocess.run(
            ["bash", "-c", line], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=90, check=False
        )
        printed[:] = [done.stdout + done.stderr]
        return done.returncode == 0

    wait_for(works, lambda: f"`{line}` fails: {printed[0]}", timeout=30)


@pytest.mark.parametrize("page", PAGES)
def test_each_command_of_the_page_succeeds(page: str, reader: dict[str, str]) -> None:
    lines = [each.line for each in typed(page) if not reason(each.line)]
    assert lines
    for line in lines:
        types(line, reader)


def test_what_is_not_typed_is_on_a_page() -> None:
    lines = [each.line for page in PAGES for each in typed(page)]
    unused = [pattern for pattern in CANNOT if not any(re.search(pattern, line) for line in lines)]
    assert unused == []
