"""
Going back to a version before the webhook configuration was renamed, with the commands of docs/operations.md.

The older manifests come from the repository's own history.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from playground import scenarios
from playground.api.kinds.values import ADMIN
from playground.cluster import Cluster
from playground.embedded import ControlPlane
from playground.programs import installing
from playground.programs.process import Program
from playground.shapes import gpu_node
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError
from tests.builders import pod
from tests.clusters import control_planes

pytestmark = [pytest.mark.system, pytest.mark.kubectl]
JSON = dict[str, Any]
ROOT = Path(__file__).resolve().parents[3]
OLDER = "1e2dd89705f8ec98437bcfe0ee416efb2d25f426"
"""The last commit whose configuration is `gpufraction-webhook`."""
NEWER_COMPONENTS = ("ui", "unhealthy-lists", "node-placeholders")
"""Components with objects in other namespaces, NetworkPolicies and policies. The older version lacks some of them."""


def checked_out(commit: str, folder: Path, *parts: str) -> None:
    """Those parts of a commit. Skips the test if the history is missing."""
    git = shutil.which("git")
    if git is None:
        pytest.skip("needs git on PATH, for the manifests of an older version")
    done = subprocess.run([git, "archive", commit, *parts], cwd=ROOT, capture_output=True, timeout=60, check=False)
    if done.returncode != 0:
        pytest.skip(f"needs the repository with its history, for the manifests of commit {commit}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")


def commands() -> str:
    """The commands that the page gives an administrator for going back."""
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"^### To go back\n(.*?)^##", page, re.MULTILINE | re.DOTALL)
    (block,) = re.findall(r"^```\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return str(block)


def built(folder: Path) -> list[JSON]:
    done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, timeout=60, check=True)
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def named(documents: Sequence[JSON]) -> set[tuple[str, str, str]]:
    """Kind, namespace and name of each."""
    return {(d["kind"], d["metadata"].get("namespace", ""), d["metadata"]["name"]) for d in documents}


class Shell:
    """An administrator's shell in a folder with both versions."""

    def __init__(self, directory: Path, kubeconfig: str) -> None:
        self.directory, self.config = directory, directory / "kubeconfig"
        self.config.write_text(kubeconfig)
        self.kube = Kube.connect(kubeconfig=str(self.config), user_agent="going-back")

    def run(self, text: str, *, ok: bool = True) -> str:
        """What it prints. A command that fails ends it."""
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.directory), "KUBECONFIG": str(self.config)}
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode == 0) == ok, f"{text}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def works(self, text: str) -> bool:
        try:
            self.run(text)
        except AssertionError:
            return False
        return True

    def there(self, document: JSON) -> bool:
        """Whether such an object exists."""
        metadata = document["metadata"]
        where = ["-n", metadata["namespace"]] if "namespace" in metadata else []
        group, _, version = document["apiVersion"].rpartition("/")
        kind = f"{document['kind']}.{version}.{group}" if group else document["kind"]
        return bool(self.run(f"kubectl {' '.join(where)} get {kind} {metadata['name']} --ignore-not-found -o name"))

    def configurations(self) -> list[str]:
        """Every webhook configuration."""
        found = self.kube.list(paths.mutatingwebhookconfigurations()).items
        return sorted(each["metadata"]["name"] for each in found if each.get("webhooks"))


@pytest.fixture(params=control_planes(long=True))
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shell]:
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl on PATH")
    checked_out(OLDER, tmp_path / "old", "manifests")
    shutil.copytree(ROOT / "manifests", tmp_path / "new" / "manifests")
    plane: ControlPlane = request.param(lambda node: ())
    try:
        plane.start()
        yield Shell(tmp_path, plane.kubeconfig(ADMIN))
    finally:
        plane.stop()


def upgrade(shell: Shell) -> None:
    """Apply the newer version as docs/operations.md says: with the component that ends the former webhook."""
    folder = shell.directory / "new/manifests/upgrade"
    folder.mkdir(exist_ok=True)
    whole = {"resources": ["../base"], "components": ["../components/former-webhook"]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(whole))
    install(shell, "new", "upgrade")


def install(shell: Shell, version: str, folder: str = "base") -> None:
    """Apply it. New definitions and namespaces are not served at once."""
    apply = f"kubectl apply -k {version}/manifests/{folder}"
    wait_for(lambda: shell.works(apply), lambda: shell.run(apply))


def running_pod(shell: Shell) -> str:
    """The version of a user's pod that runs during the change."""
    path = paths.pods("default", "runs")
    try:
        return str(shell.kube.get(path)["metadata"]["resourceVersion"])
    except KubeError:
        spec = {"containers": [{"name": "main", "image": "x"}], "schedulingGates": [{"name": "example.com/hold"}]}
        return str(shell.kube.create(paths.pods("default"), {"metadata": {"name": "runs"}, "spec": spec})["metadata"])


def rolled_back(shell: Shell) -> None:
    """Nothing of the newer version is left, and everything is as the older one has it."""
    older, newer = built(shell.directory / "old/manifests/base"), built(shell.directory / "new/manifests/base")
    kept = ("CustomResourceDefinition", "Namespace")
    extra = [d for d in newer if not named([d]) & named(older) and d["kind"] not in kept]
    assert extra, "the two versions have the same objects, so this shows nothing"
    assert [d["metadata"]["name"] for d in extra if shell.there(d)] == []
    assert [d["metadata"]["name"] for d in older if not shell.there(d)] == []
    assert shell.configurations() == ["gpufraction-webhook"]
    shell.run("kubectl diff -k old/manifests/base")  # fails if anything differs


@pytest.mark.long
def test_going_back_leaves_what_the_older_version_has_and_no_more(shell: Shell) -> None:
    install(shell, "old")
    wait_for(lambda: shell.works("kubectl -n default get serviceaccount default"), "no pods can be created")
    running_pod(shell)
    before = running_pod(shell)
    upgrade(shell)
    assert shell.configurations() == ["zz-gpufraction-webhook"]
    printed = shell.run(commands())
    assert 'mutatingwebhookconfiguration.admissionregistration.k8s.io "zz-gpufraction-webhook" deleted' in printed
    rolled_back(shell)
    assert running_pod(shell) == before
    # Once more, as an unsure administrator does; and forward again.
    shell.run(commands())
    rolled_back(shell)
    upgrade(shell)
    assert shell.configurations() == ["zz-gpufraction-webhook"]


def test_going_back_deletes_what_newer_components_have(shell: Shell) -> None:
    """Here the administrator has a kustomization in each folder, and the newer one has more components."""
    for version, components in (("old", ("unhealthy-lists",)), ("new", NEWER_COMPONENTS)):
        folder = shell.directory / version / "manifests" / "base"
        mine = shell.directory / version / "manifests" / "mine"
        folder.rename(mine)
        folder.mkdir()
        listed = [f"../components/{name}" for name in components]
        whole = {"resources": ["../mine"], "components": listed}
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(whole))
    install(shell, "new")
    printed = shell.run(commands())
    for kind, name in (("NetworkPolicy", "gpufraction-ui"), ("Role", "gpufraction-allocator-placeholders")):
        assert re.search(rf"^{kind} {name} gpufraction-system$", printed, re.MULTILINE)
    rolled_back(shell)
    kept = shell.run("kubectl -n kube-system get role gpufraction-kept-out -o name")
    assert kept == "role.rbac.authorization.k8s.io/gpufraction-kept-out\n"


# -- with the older programs ---------------------------------------------------------------------------------------


WITHOUT_WORKLOADS = [
    {"target": {"kind": kind}, "patch": f"$patch: delete\napiVersion: apps/v1\nkind: {kind}\nmetadata: {{name: any}}\n"}
    for kind in ("Deployment", "DaemonSet")
]
"""The playground runs the programs as processes."""


@pytest.fixture(params=control_planes(long=True))
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl on PATH")
    checked_out(OLDER, tmp_path / "old")
    nodes = (gpu_node("t4", "2 x Tesla T4 15109MiB"),)
    with Cluster(nodes=nodes, directory=tmp_path, components=(), control_plane=request.param) as cluster:
        yield cluster


def replaced(cluster: Cluster, older: Path) -> dict[str, Program]:
    """Run the older version's programs instead of the newer ones, with the flags that the older version has."""
    for program in cluster.programs.values():
        program.terminate()
    found = {}
    for name, program in cluster.programs.items():
        program.wait()
        flags = ["gpufraction-webhook" if flag == "zz-gpufraction-webhook" else flag for flag in program.arguments]
        if name == "allocator":  # it had no options then
            at = flags.index("--options")
            del flags[at : at + 2]
            flags += ["--election-renew", "2s", "--election-retry", "300ms"]  # and did not derive these
        log = cluster.directory / f"older-{name}.log"
        python = ("env", "-C", str(older), sys.executable, "-m")
        found[name] = Program(name, flags, log=log, environment=program.environment, command=python)
    return found


@pytest.mark.long
def test_older_programs_serve_again_and_running_pods_stay(cluster: Cluster, tmp_path: Path) -> None:
    cluster.kube.create(paths.pods("default"), pod("before").asks("gpufraction.io/gpu-memory", "2Gi").manifest())
    (before,) = scenarios.settled(cluster.kube, 1, running=1)
    shutil.copytree(ROOT / "manifests", tmp_path / "new" / "manifests")
    for version in ("old", "new"):
        folder = tmp_path / version / "manifests"
        (folder / "base").rename(folder / "mine")
        (folder / "base").mkdir()
        whole = {"resources": ["../mine"], "patches": WITHOUT_WORKLOADS}
        (folder / "base" / "kustomization.yaml").write_text(yaml.safe_dump(whole))
    shell = Shell(tmp_path, cluster.kubeconfig.read_text())
    printed = shell.run(commands())
    assert "MutatingWebhookConfiguration zz-gpufraction-webhook" in printed
    path = paths.mutatingwebhookconfigurations("gpufraction-webhook")
    reached, beside = cluster.reached(cluster.kube.get(path))
    for each in beside:
        installing.apply(cluster.kube, each)
    cluster.kube.patch_merge(path, {"webhooks": reached["webhooks"]})
    programs = replaced(cluster, tmp_path / "old")
    try:
        programs.pop("certs").run()
        for program in programs.values():
            program.start()
        after = pod("after").asks("gpufraction.io/gpu-memory", "2Gi").manifest()
        wait_for(lambda: created(cluster, after), lambda: f"it is still refused: {refusal(cluster, after)}")
        scenarios.settled(cluster.kube, 2, running=2)
    finally:
        for program in programs.values():
            program.terminate()
            program.wait()
    assert shell.configurations() == ["gpufraction-webhook"]
    found = cluster.kube.get(paths.pods("default", "before"))
    assert (scenarios.held(found), found["status"]["phase"]) == (scenarios.held(before), "Running")


def refusal(cluster: Cluster, body: JSON) -> str:
    """Why the pod cannot be created; empty if it was."""
    try:
        cluster.kube.create(paths.pods("default"), body)
    except KubeError as error:
        return str(error)
    return ""


def created(cluster: Cluster, body: JSON) -> bool:
    return not refusal(cluster, body)
