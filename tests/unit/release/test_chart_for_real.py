"""
The chart on a real API server, with the commands of the pages: install, upgrade, uninstall, and move from kustomize.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from playground.waiting import wait_for
from release.chart.render import NAMESPACE
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube
from tests.unit.manifests import foreign
from tests.unit.manifests.kube import MANIFESTS, ROOT, built
from tests.unit.manifests.realcluster import REAL, running
from tests.unit.release import helm

pytestmark = [pytest.mark.realcluster, pytest.mark.helm, REAL]

HOOK = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SECRET = paths.secrets(NAMESPACE, "gpufraction-webhook-certs")
OWN_VALUES = """\
image: {name: registry.example/gpufraction, pullSecrets: [{name: registry}]}
components: {hide-gpus: true}
"""


class Cluster:
    """An API server without gpufraction, and the two programs for it."""

    def __init__(self, config: Path, folder: Path) -> None:
        self.config, self.folder, self.kube = config, folder, Kube.connect(kubeconfig=str(config))
        (folder / "build").mkdir()
        helm.package(folder).rename(folder / "build/gpufraction-0.1.0.tgz")
        (folder / "values.yaml").write_text(OWN_VALUES, encoding="utf-8")
        (folder / "manifests").symlink_to(MANIFESTS)

    def types(self, line: str) -> subprocess.CompletedProcess[str]:
        """Type one command of a page, which must succeed."""
        program, *arguments = shlex.split(line.replace("REGISTRY", "registry.example"))
        file = arguments[arguments.index(">") + 1] if ">" in arguments else ""
        arguments = arguments[: arguments.index(">")] if file else arguments
        if program == "helm":
            known = [flag for flag in arguments if flag != "--force-conflicts" or not helm.is_third()]
            command = [helm.program(), *known, "--kubeconfig", str(self.config)]
        else:
            command = ["kubectl", "--kubeconfig", str(self.config), *arguments]
        environment = {"PATH": "/usr/bin:/bin:/usr/local/bin", "HOME": str(self.folder)}
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == 0 or (arguments[0] == "diff" and done.returncode == 1), (
            f"{line}\n{done.stdout}\n{done.stderr}"
        )
        if file:
            (self.folder / file).write_text(done.stdout, encoding="utf-8")
        return done

    def hooks(self) -> dict[str, list[str]]:
        items = self.kube.get(HOOK)["items"]
        return {item["metadata"]["name"]: [hook["name"] for hook in item.get("webhooks", ())] for item in items}

    def labels(self) -> dict[str, str]:
        labels: dict[str, str] = self.kube.get(f"/api/v1/namespaces/{NAMESPACE}")["metadata"]["labels"]
        return labels


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    helm.program()  # skips without Helm
    built()  # skips without kubectl
    with running() as server:
        yield Cluster(server.kubeconfig, tmp_path)


SECTIONS = (
    ("installing.md", "Helm"),
    ("helm.md", "Upgrade"),
    ("helm.md", "Uninstall"),
    ("helm.md", "From kustomize to Helm"),
)
"""The sections whose commands the tests type."""


def commands(page: str, heading: str) -> list[str]:
    """The lines of a section's blocks that begin with a program's name, with their continuation lines."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    section = re.split(r"^#{2,3} ", text.partition(f"# {heading}\n")[2], flags=re.MULTILINE)[0]
    blocks = "".join(re.findall(r"^```\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)).replace("\\\n", "")
    found = [line for line in blocks.splitlines() if line.startswith(("helm ", "kubectl "))]
    assert found, f"{page}: {heading}"
    return found


def test_the_pages_commands_install_upgrade_and_uninstall(cluster: Cluster) -> None:
    for line in commands(*SECTIONS[0]):
        done = cluster.types(line)
        if line.startswith("helm install"):
            [label] = re.findall(r"kubectl label --overwrite namespace .*", done.stdout)
            cluster.types(label)
    assert cluster.labels()["pod-security.kubernetes.io/enforce"] == "restricted"
    assert cluster.hooks() == {"zz-gpufraction-webhook": ["pods.gpufraction.io"]}
    written = {"tls.crt": "eA==", "tls.key": "eQ=="}
    trusted = {"webhooks": [{"name": "pods.gpufraction.io", "clientConfig": {"caBundle": "eA=="}}]}
    cluster.kube.patch_merge(SECRET, {"data": written})
    cluster.kube.patch_strategic(f"{HOOK}/zz-gpufraction-webhook", trusted)
    for line in commands(*SECTIONS[1]):
        cluster.types(line)
    *_, ours = cluster.kube.get(f"{HOOK}/zz-gpufraction-webhook")["webhooks"]
    assert (ours["name"], ours["clientConfig"]["caBundle"]) == ("pods.gpufraction.io", "eA==")
    assert cluster.kube.get(SECRET)["data"] == written
    uninstall = commands(*SECTIONS[2])
    kept = next(i for i, line in enumerate(uninstall) if line.startswith("helm uninstall"))
    for line in uninstall[: kept + 1]:
        cluster.types(line)
    assert cluster.hooks() == {}
    names = {item["metadata"]["name"] for item in cluster.kube.get(DEFINITIONS)["items"]}
    assert "gpunodes.gpufraction.io" in names
    for line in uninstall[kept + 1 :]:
        cluster.types(line)
    wait_for(lambda: not cluster.kube.get(DEFINITIONS)["items"], "the definitions are still there")


def test_from_kustomize_to_helm(cluster: Cluster) -> None:
    # The namespace and the definitions come first and are not served at once.
    wait_for(lambda: _applied(cluster), "the base is not applied")
    before = cluster.labels()
    uid = cluster.kube.get(SECRET)["metadata"]["uid"]
    for line in commands(*SECTIONS[3]):
        cluster.types(line)
    assert cluster.labels() == before
    assert cluster.kube.get(SECRET)["metadata"]["uid"] == uid
    assert cluster.hooks()["zz-gpufraction-webhook"][-1] == "pods.gpufraction.io"


def _applied(cluster: Cluster) -> bool:
    try:
        cluster.types("kubectl apply -k manifests/base")
    except AssertionError:
        return False
    return True


def test_every_component_is_taken(cluster: Cluster) -> None:
    text = yaml.safe_dump_all(foreign.definitions())
    (cluster.folder / "foreign.yaml").write_text(text, encoding="utf-8")
    cluster.types("kubectl apply -f foreign.yaml")
    cluster.types("kubectl wait --for=condition=Established --timeout=30s crd --all")
    on = sorted(path.parent.name for path in MANIFESTS.glob("components/*/kustomization.yaml"))
    components = {name: name not in ("host-network", "cert-manager") for name in on}
    (cluster.folder / "all.yaml").write_text(yaml.safe_dump({"components": components}), encoding="utf-8")
    cluster.types(
        "helm install gpufraction build/gpufraction-0.1.0.tgz --namespace gpufraction-system --create-namespace "
        "--values all.yaml"
    )
    assert cluster.hooks()["zz-gpufraction-webhook"][-1] == "pods.gpufraction.io"
