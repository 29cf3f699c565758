"""Every kustomization on a page is built, and it changes what its lines say."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache, reduce
from pathlib import Path
from typing import Any

import pytest
import yaml

from contract import names
from contract.options import pool_options
from playground.waiting import wait_for
from release.chart.settings import PROGRAMS
from runtime.settings import Leaf, every_setting, load
from tests.unit.manifests.install import wrong
from tests.unit.manifests.kube import JSON, MANIFESTS, ROOT, of, parsed
from tests.unit.manifests.kube import built as base
from tests.unit.manifests.realcluster import REAL, running

PAGES = [p for p in sorted((ROOT / "docs").rglob("*.md")) if "decisions" not in p.parts and "zh" not in p.parts]
NEEDED = {
    "nodeagent": {"GPUFRACTION_NODE": "n", "GPUFRACTION_HOST_ROOT": "/host", "GPUFRACTION_LIMITERS_CDI": "/var/run/cdi"}
}
"""What the manifests set by variables, including the components that some settings need."""
BY_COMPONENTS = {
    "claims",
    "proven_within",
    "unhealthy_lists",
    "pods",
    "limiters.mps",
    "limiters.preload",
    "limiters.cdi",
    "kubelet",
    "node",
    "options",
}
"""Settings that the page on settings leaves to components and manifests."""


@dataclasses.dataclass(frozen=True)
class Block:
    """A kustomization from a page."""

    page: str
    text: str

    @property
    def written(self) -> JSON:
        """The kustomization as a document."""
        return dict(yaml.safe_load(self.text))

    def __str__(self) -> str:
        return f"{self.page}: {self.text[:40]}"


_ALONE = """apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
  - manifests/base
"""
"""The part that a page leaves out if it shows only the patches."""


def blocks() -> Iterator[Block]:
    """The kustomizations of all pages, in order."""
    for page in PAGES:
        for text in re.findall(r"^```yaml\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            if text.startswith("patches:"):
                text = f"{_ALONE}{text}"
            if "\nkind: Kustomization\n" in text:
                yield Block(str(page.relative_to(ROOT)), text)


BLOCKS = list(blocks())
each = pytest.mark.parametrize("block", BLOCKS, ids=[f"{b.page} {i}" for i, b in enumerate(BLOCKS)])


@cache
def built(text: str) -> list[JSON]:
    """What kustomize builds from a block in a folder next to `manifests`."""
    with tempfile.TemporaryDirectory() as folder:
        # kustomize takes relative paths only.
        above = os.path.relpath(MANIFESTS, Path(folder).resolve())
        (Path(folder) / "kustomization.yaml").write_text(re.sub(r"(?<=- )manifests/", f"{above}/", text))
        return parsed(Path(folder).resolve())


@each
def test_the_block_changes_something(block: Block) -> None:
    assert built(block.text) != base()


def containers(items: list[JSON]) -> dict[str, JSON]:
    """Every container of Deployments and DaemonSets, by name."""
    pods = [item["spec"]["template"]["spec"] for item in items if item["kind"] in ("Deployment", "DaemonSet")]
    return {c["name"]: c for pod in pods for c in [*pod.get("initContainers", []), *pod["containers"]]}


def variables(block: Block) -> list[tuple[str, str, str]]:
    """The settings in a block: the program, the variable and its value."""
    found = []
    of_program = {names.SETTINGS.format(program=program): program for program in PROGRAMS}
    for patch in block.written.get("patches", []):
        document = yaml.safe_load(patch["patch"])
        program = of_program.get(document["metadata"]["name"]) if isinstance(document, dict) else None
        if program is not None:
            found += [(program, key, value) for key, value in document["data"].items()]
        else:
            assert "/args/" not in patch["patch"], "a page gives settings by a ConfigMap"
    return found


def in_effect(program: str, arguments: list[str], given: dict[str, str]) -> dict[str, Any]:
    """The program's settings from its command line and its ConfigMap, by variable. A wrong one fails the test."""
    cls = PROGRAMS[program]
    settings = load(cls, file=None, env={**NEEDED.get(program, {}), **given}, argv=arguments)
    return {each.env: reduce(getattr, each.attributes, settings) for each in every_setting(cls)}


@each
def test_the_block_builds_valid_kubernetes(block: Block) -> None:
    ours = [item for item in built(block.text) if "cert-manager.io" not in item["apiVersion"]]
    assert wrong([item for item in ours if "monitoring.coreos.com" not in item["apiVersion"]]) == {}


@each
def test_each_setting_of_the_block_has_its_effect(block: Block) -> None:
    wanted = variables(block)
    items = built(block.text) if wanted else []
    found, configmaps = containers(items), {item["metadata"]["name"]: item for item in of(items, "ConfigMap")}
    for program, key, value in wanted:
        [source] = found[program]["envFrom"]
        given = configmaps[source["configMapRef"]["name"]]["data"]
        assert given[key] == value
        arguments = found[program]["args"]
        without = in_effect(program, arguments, {k: v for k, v in given.items() if k != key})
        changed = {n for n, each in in_effect(program, arguments, given).items() if each != without[n]}
        assert changed == {key}


@each
def test_images_and_pull_secrets_of_the_block_reach_every_program(block: Block) -> None:
    images = {i["name"]: f"{i['newName']}:{i['newTag']}" for i in block.written.get("images", []) if "newTag" in i}
    used = {name: c["image"] for name, c in containers(built(block.text)).items()} if images else {}
    if "gpufraction" in images:
        ours = ("webhook", "allocator", "certs", "nodeagent")
        assert {used[name] for name in ours if name in used} == {images["gpufraction"]}
    if "imagePullSecrets" in block.text:
        items = [item for kind in ("Deployment", "DaemonSet") for item in of(built(block.text), kind)]
        pods = [item["spec"]["template"]["spec"] for item in items]
        assert [pod for pod in pods if not pod.get("imagePullSecrets")] == []


def test_the_options_of_the_page_are_read() -> None:
    found = [block for block in BLOCKS if "options.yaml: |" in block.text]
    documents = [item for block in found for item in built(block.text) if item["metadata"]["name"] == names.OPTIONS]
    sharing, profiles = (pool_options(yaml.safe_load(each["data"]["options.yaml"])) for each in documents)
    assert (sharing.cluster.device_split_count, [pool.name for pool in sharing.pools]) == (10, ["notebooks"])
    assert {name: profile.spreads for name, profile in profiles.profiles.items()} == {"default-scheduler": True}


def test_the_supervisor_of_mps_reads_its_variable() -> None:
    [block] = [block for block in BLOCKS if "GPUFRACTION_MULTIUSER" in block.text]
    [mps] = [item for item in of(built(block.text), "DaemonSet") if item["metadata"]["name"] == "gpufraction-mps"]
    variables = {v["name"]: v.get("value") for v in mps["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert variables["GPUFRACTION_MULTIUSER"] == "false"


def mentioned() -> Iterator[tuple[str, Leaf]]:
    """The settings that a page names in prose, each with its program."""
    made = {"settings.md", "names.md", "metrics.md", "dialects.md", "reasons.md"}
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES if page.name not in made)
    for program, cls in PROGRAMS.items():
        for each in every_setting(cls):
            last = each.path[-1]
            words = {each.name, last} if "_" in last else {each.name} if "." in each.name else set()
            written = rf"(?<![\w-])({each.flag}|{each.env})(?![\w-])"
            if re.search(written, text) or any(f"`{word}`" in text for word in words):
                yield program, each


def test_every_setting_that_a_page_names_has_its_line() -> None:
    lines = {(program, key) for block in BLOCKS for program, key, _ in variables(block)}
    missing = [(p, e.name) for p, e in mentioned() if (p, e.env) not in lines and e.name not in BY_COMPONENTS]
    assert missing == []


CLOUDS = [block for block in BLOCKS if "docs/clouds" in block.page or "isolation" in block.page]


@pytest.fixture(scope="module")
def kubeconfig() -> Iterator[Path]:
    """The kubeconfig of a real API server that has the base."""
    base()  # skips without kubectl
    with running() as cluster:
        apply(cluster.kubeconfig, base())
        yield cluster.kubeconfig


@pytest.mark.realcluster
@REAL
@pytest.mark.parametrize("block", CLOUDS, ids=[f"{b.page} {i}" for i, b in enumerate(CLOUDS)])
def test_an_api_server_accepts_the_kustomizations_of_clouds_and_isolation(kubeconfig: Path, block: Block) -> None:
    apply(kubeconfig, built(block.text), "--dry-run=server")


def apply(kubeconfig: Path, items: list[JSON], *arguments: str) -> None:
    """Apply as `kubectl apply -k` does, and repeat until new definitions are served."""
    command = ["kubectl", "--kubeconfig", str(kubeconfig), "apply", "--server-side", "--force-conflicts", "-f", "-"]
    text = yaml.safe_dump_all(items)
    lines: list[str] = []

    def done() -> bool:
        ran = subprocess.run(
            [*command, *arguments], input=text, capture_output=True, text=True, timeout=90, check=False
        )
        lines[:] = [ran.stderr]
        return ran.returncode == 0

    wait_for(done, lambda: lines[0])
