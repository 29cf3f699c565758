"""
The guides of the older systems as docs/migrating.md tells users to follow them, row by row. The tests type each command
of a row that says `demo cluster`, and check what the row promises.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from contract import names
from playground import scenarios
from playground.cluster import Cluster
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.cluster.acceptance.guides import APPLIED, BUILT, RUN, Reader, steps
from tests.cluster.acceptance.looking import uuids

pytestmark = [pytest.mark.system, pytest.mark.kubectl]


@pytest.fixture
def tidied(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster. Afterwards its nodes and options are as they were."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not on PATH")
    before = {each["metadata"]["name"]: each["metadata"]["labels"] for each in cluster.kube.list(paths.nodes()).items}
    yield cluster
    scenarios.clear(cluster.kube)
    for name, labels in before.items():
        now = cluster.kube.get(paths.nodes(name))["metadata"]["labels"]
        added = {key: None for key in now if key not in labels}
        cluster.kube.patch_merge(paths.nodes(name), {"metadata": {"labels": added | labels}})
    options = paths.configmaps(names.NAMESPACE, names.OPTIONS)
    cluster.kube.patch_merge(options, {"data": {names.OPTIONS_FILE: ""}})
    wait_for(lambda: not any(published(cluster, node) for node in before), "options are still published")


def published(cluster: Cluster, node: str) -> dict[str, str]:
    """The options that the node's agent applies."""
    known = {each["metadata"]["name"]: each for each in cluster.kube.list(paths.gpunodes()).items}
    status = known.get(node, {}).get("status") or {}
    return {each["name"]: each["value"] for each in status.get("options") or ()}


def follow(letter: str, reader: Reader, looks: dict[str, Callable[[str], None]]) -> None:
    """Type the rows of one guide in order, and check what each promises. `looks` receives the last output."""
    rows = [step for step in steps(letter) if step.tried.startswith(RUN)]
    assert [step.number for step in rows] == list(looks), "each row that is run has its look, in the page's order"
    for step in rows:
        looks[step.number](reader.follows(step))


def labelled(cluster: Cluster, node: str, key: str, value: str) -> Callable[[str], None]:
    """A check: the node has the label."""

    def look(_: str) -> None:
        assert cluster.kube.get(paths.nodes(node))["metadata"]["labels"][key] == value

    return look


def served(cluster: Cluster) -> Callable[[str], None]:
    """A check: the default namespace is labelled."""

    def look(_: str) -> None:
        namespace = cluster.kube.get(paths.path("v1", "namespaces", name="default"))
        assert namespace["metadata"]["labels"][names.INJECT_LABEL] == "enabled"

    return look


def says(*patterns: str) -> Callable[[str], None]:
    """A check: the last command printed lines like these."""

    def look(printed: str) -> None:
        assert [each for each in patterns if re.search(each, printed, re.MULTILINE) is None] == [], printed

    return look


def come_to(cluster: Cluster, running: int, waiting: int = 0, code: str = "") -> Callable[[str], None]:
    """A check: this many pods run and wait, the waiting ones for that reason."""

    def now() -> scenarios.Outcome:
        return scenarios.outcome(scenarios.settled(cluster.kube, running + waiting, running=running))

    def look(_: str) -> None:
        wanted = (running, waiting, (code,) if code else ())
        # While earlier pods of the guide end, waiting pods may wait for another reason.
        wait_for(lambda: (now().running, now().waiting, now().waits) == wanted, lambda: f"it came to {now()}")

    return look


def limited(cluster: Cluster, text: str) -> Callable[[str], None]:
    """A check: the only pod's container has this memory limit."""

    def look(_: str) -> None:
        [found] = scenarios.settled(cluster.kube, 1, running=1)
        limits = [
            v for k, v in found["metadata"]["annotations"].items() if k.startswith("gpufraction.io/memory-limit.")
        ]
        assert limits == [text]

    return look


def no_conflict(cluster: Cluster, node: str) -> Callable[[str], None]:
    """A check: the node is owned, and no conflict with a device plugin is reported."""

    def look(_: str) -> None:
        labelled(cluster, node, names.OWNERSHIP, "dedicated")("")
        conditions = cluster.kube.get(paths.gpunodes(node))["status"]["conditions"]
        assert [c for c in conditions if c["type"] == "PluginConflict" and c["status"] == "True"] == []

    return look


def test_aliyun_gpushare(tidied: Cluster, tmp_path: Path) -> None:
    def on_one_card(printed: str) -> None:
        found = scenarios.settled(tidied.kube, 2, running=2)
        assert len({uuid for each in found for uuid in uuids(each)}) == 1
        says(r"^t4 .* 10/14 ")(printed)

    follow(
        "A",
        Reader(tidied.kubeconfig, tmp_path, "t4"),
        {
            "A2": labelled(tidied, "t4", "gpushare", "true"),
            "A4": served(tidied),
            "A5": says(r"^t4 +2 .*Tesla T4"),
            "A6": says("binpack-1 created"),
            "A7": says("successfully rolled out"),
            "A8": says("^ALIYUN_COM_GPU_MEM_DEV=14$", "^ALIYUN_COM_GPU_MEM_CONTAINER=5$"),
            "A11": says(r"^t4 .* 5/14 "),
            "A12": on_one_card,
        },
    )


def test_elastic_gpu_on_oracle_oke(tidied: Cluster, tmp_path: Path) -> None:
    def together(_: str) -> None:
        found = scenarios.settled(tidied.kube, 2, running=2)
        assert len({uuid for each in found for uuid in uuids(each)}) == 1

    reader = Reader(tidied.kubeconfig, tmp_path, "a10")

    def zero_there(printed: str) -> None:
        says(r"^ +gpufraction.io/gpu-memory +0 +0$")(reader.types("kubectl describe node NODE"))
        says(r"3072")(printed)

    def nothing_left(_: str) -> None:
        wait_for(lambda: not scenarios.all_claims(tidied.kube), "claims are still there")
        assert scenarios.all_pods(tidied.kube) == []

    follow(
        "E",
        reader,
        {
            "E7": no_conflict(tidied, "a10"),
            "E8": says(r"gpufraction.io/gpu-cores: +400"),
            "E9": says("gpushare-egpuc-1 condition met", "gpushare-egpuc-2 condition met"),
            "E10": says("pod/test-cuda-1 created", "pod/test-cuda-2 created"),
            "E11": together,
            "E12": zero_there,
            "E15": nothing_left,
        },
    )


def test_aliyun_gpushare_on_openshift(tidied: Cluster, tmp_path: Path) -> None:
    def on_the_node(printed: str) -> None:
        [found] = scenarios.settled(tidied.kube, 1, running=1)
        assert found["spec"]["nodeName"] == "a10"

    follow("O", Reader(tidied.kubeconfig, tmp_path, "a10"), {"O4": no_conflict(tidied, "a10"), "O6": on_the_node})


def test_nano_gpu_on_superedge(tidied: Cluster, tmp_path: Path) -> None:
    follow(
        "S",
        Reader(tidied.kubeconfig, tmp_path, "t4"),
        {
            "S3": says("gpu-pod-whole condition met"),
            "S6": labelled(tidied, "t4", "nvidia-device-enable", "enable"),
            "S7": says("^GPU 0: Tesla T4 ", "0MiB / 3021MiB"),
        },
    )


def test_4paradigms_vgpu_scheduler(tidied: Cluster, tmp_path: Path) -> None:
    def scaled(_: str) -> None:
        wait_for(
            lambda: published(tidied, "v100") == {"deviceMemoryScaling": "3.0"},
            lambda: f"v100 says {published(tidied, 'v100')}",
        )

    def on_two_cards(_: str) -> None:
        found = scenarios.settled(tidied.kube, 10, running=6)
        assert len({uuid for each in found if scenarios.is_running(each) for uuid in uuids(each)}) == 2

    follow(
        "V",
        Reader(tidied.kubeconfig, tmp_path, "v100"),
        {
            "V2": labelled(tidied, "v100", "gpu", "on"),
            "V4": says("name: gpufraction-options"),
            "V5": come_to(tidied, 6, 4, "Memory"),
            "V6": on_two_cards,
            "V7": come_to(tidied, 6, 4, "Cores"),
            "V9": limited(tidied, "1000m"),
            "V11": limited(tidied, "3000m"),
            "V12": scaled,
            "V13": come_to(tidied, 10),
            "V15": come_to(tidied, 5),
        },
    )


def test_each_row_is_run_or_says_why_not() -> None:
    reasons = (RUN, APPLIED, BUILT, "untested: ", "-", "[", "`tests/")
    assert {step.number for step in steps() if not step.tried.startswith(reasons)} == set()
    assert {step.number for step in steps() if step.tried.startswith((RUN, APPLIED)) and not step.commands} == set()
