"""
The commands of pages without output, typed from top to bottom on a cluster as those pages expect it: each succeeds.

`test_every_command.py` knows which tests type the other commands, and `tests/unit/manifests/test_commands_of_pages.py`
reads the commands of every page.
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
    *("settings", "monitoring", "multitenant", "dra", "installing", "migrating", "kueue", "autoscaling", "upstream"),
    *("compatibility", "why", "playground/README", "clouds/oke", "clouds/openshift", "clouds/eks", "clouds/aks"),
    "clouds/gke",
)
"""Pages that change nodes and namespaces come last; the page for GKE needs what the page for OKE creates."""
PROGRAMS = ("kubectl", "oc", "sed", "openssl")
GIVEN = {
    **{"NODE": "t4", "n1": "t4", "NAMESPACE": "team-a", "NAME": "web", "POD": "trainer", "POOL": "gpu=on"},
    **{f"{name}.yaml": "samples/check.yaml" for name in ("trainer", "web", "pod")},
    "team-a/trainer": "team-a/later",
}
"""What the reader writes instead of a word in capitals, of their own file, or of a waiting pod."""
CANNOT = {
    r" exec gets-": "nothing runs in a playground's pod but sleep",
    r"^kubectl logs gets-": "the pods wait, because no level is enforced",
    r" get podmonitors| get prometheusrules": "no Prometheus operator",
    r"create namespace team-a$": "it is there",
    r"^kubectl gpufraction conformance": "tests/cluster/kit has its cluster",
    r"^kubectl gpufraction pools": "test_pools_shown.py has pools",
    r"^kubectl gpufraction advise trainer": "for a pod that waits; tests/unit/kubectl_gpufraction/test_advice.py",
    r"^kubectl gpufraction completion": "tests/unit/kubectl_gpufraction has shells",
    r" --as mia": "only a user who may impersonate",
    r" (?:apply|delete) -k \.| apply -k YOUR| rollout status (?:deployment/gpu|daemonset/)": (
        "tests/unit/manifests applies the kustomizations of pages"
    ),
    r" diff -k |(?:apply|delete) -k manifests| delete mutatingwebhook": "test_pages.py, on a real API server",
    r" delete (?:daemonset|serviceaccount|configmap)": "test_pod_security_for_real.py goes on from an older version",
    r" set env daemonset| rollout restart ": "programs of the playground are processes, without a pod to restart",
    r"\begpuc? |\$namespace": "it removes what an uninstallation leaves; test_installation_lifecycle.py",
    r" patch node NODE ": "test_installing_for_real.py",
    r"gpufraction.io/inject-": "later commands need the label",
    r" -w$": "it goes on until Ctrl-C",
    r"AdmissionCheck|admissioncheck|clusterqueue|get workloads": "tests/cluster/engines/test_kueue_check.py has Kueue",
    r"-f cluster-autoscaler/": "a file of the autoscaler's repository",
    r" machinesets?|clusterpolicy|\$CSV| adm policy |gpufraction-webhook-tls": "OpenShift's own",
    r" patch configmap ": "a setting takes effect with a restart",
    r"quota gpus ": "the pods that are there were not counted; test_fair_queue.py has quotas",
}
"""Commands that are not typed here, with the reason or the place where they are typed."""
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
        cluster.kube.create(paths.pods("team-a"), pod("later", isolation="driver"))
        programs = (str(commands(directory, cluster)), str(Path(sys.executable).parent), os.environ["PATH"])
        checkout = directory / "checkout"
        checkout.mkdir()
        for each in ROOT.iterdir():
            (checkout / each.name).symlink_to(each)
        yield {"PATH": os.pathsep.join(programs), "HOME": str(checkout), "KUBECONFIG": str(cluster.kubeconfig)}


def commands(directory: Path, cluster: Cluster) -> Path:
    """
    A folder with kubectl and `oc`, which has all of kubectl's commands.

    The playground's programs do not run in pods, so this kubectl runs the command that a page executes in an
    allocator's container.
    """
    folder, kubectl = directory / "bin", shutil.which("kubectl")
    folder.mkdir()
    executed = f'"{sys.executable}" "$@" --socket "{cluster.replicas[0].socket}"'
    script = (
        "#!/bin/bash\n"
        'if [[ " $* " == *" exec deployment/gpufraction -c allocator -- python "* ]]; then\n'
        '  while [ "$1" != "--" ]; do shift; done; shift 2\n'
        f'  cd "{ROOT}" && exec {executed}\nfi\n'
        f'exec "{kubectl}" "$@"\n'
    )
    for name in ("kubectl", "oc"):
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    return folder


def pod(name: str, **annotations: str) -> dict[str, object]:
    containers = [{"name": "c", "image": "i", "resources": {"limits": {names.GPU_MEMORY: "1Gi"}}}]
    metadata = {"name": name, "annotations": {f"{names.GROUP}/{key}": value for key, value in annotations.items()}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}}


def deployment(name: str) -> dict[str, object]:
    template = {"metadata": {"labels": {"app": name}}, "spec": pod(name)["spec"]}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def reason(line: str) -> str:
    """Why the line is not typed; empty if it is typed."""
    return next((why for pattern, why in CANNOT.items() if re.search(pattern, line)), "")


def typed(page: str) -> list[Shown]:
    """The commands of a page that a test can type."""
    path = f"{page}.md" if page.startswith("playground/") else f"docs/{page}.md"
    programs = [each for each in in_blocks(PROGRAMS) if each.page == path]
    return [*programs, *(each for each in in_blocks(("python",)) if each.page == path and "allocator" in each.words)]


def types(line: str, environment: dict[str, str]) -> None:
    """
    Type one command as a reader does, until it succeeds: a page's pods need a moment to be placed, to come and to go.

    A command with the comment `Forbidden` must be refused.
    """
    refused = line.endswith("# Forbidden")
    for word, instead in GIVEN.items():
        line = re.sub(rf"(?<![\w-]){word}(?![\w-])", instead, line)
    printed: list[str] = []

    def works() -> bool:
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=environment["HOME"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        printed[:] = [done.stdout + done.stderr]
        return "forbidden" in done.stderr if refused else done.returncode == 0

    wait_for(works, lambda: f"`{line}` fails: {printed[0]}", timeout=30)


@pytest.fixture
def removed(reader: dict[str, str]) -> Iterator[None]:
    """After each page, remove what it creates, because another page creates it too."""
    yield
    for command in (
        f"kubectl delete secret/registry -n {names.NAMESPACE} --ignore-not-found",
        *(f"kubectl delete pod gpu-check -n {namespace} --ignore-not-found" for namespace in ("default", "team-a")),
        f"kubectl label node {GIVEN['NODE']} nvidia.com/gpu.deploy.device-plugin- {names.OWNERSHIP}-",
    ):
        subprocess.run(command.split(), env=reader, capture_output=True, timeout=60, check=True)


@pytest.mark.usefixtures("removed")
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
