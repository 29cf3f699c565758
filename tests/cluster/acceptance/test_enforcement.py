"""docs/isolation.md without a card: pods that request a level of isolation wait if nothing enforces it."""

from __future__ import annotations

import re

import pytest

from contract.reasons.nodes import Code
from nodeagent.isolation import mps, preload, reach
from playground import scenarios
from playground.cluster import Cluster
from playground.programs import installing
from playground.waiting import wait_for
from tests.cluster.acceptance.guides import ROOT

PAGE = (ROOT / "docs" / "isolation.md").read_text(encoding="utf-8")
SAMPLE = ROOT / "samples" / "enforcement" / "needs-2000.yaml"


@pytest.mark.system
@pytest.mark.parametrize("level", ["preload", "mps"])
def test_the_pods_wait_where_nothing_enforces(cluster: Cluster, level: str) -> None:
    objects = list(installing.documents(SAMPLE))
    try:
        for each in objects:
            each["metadata"]["namespace"] = "default"
            if each["kind"] == "Pod":
                each["metadata"]["annotations"]["gpufraction.io/isolation"] = level
            cluster.kube.create(installing.path_of(each), each)
        wait_for(
            lambda: [scenarios.waits(pod) for pod in scenarios.all_pods(cluster.kube)] == ["Isolation"] * 2,
            lambda: scenarios.shown(scenarios.all_pods(cluster.kube)),
        )
        messages = {scenarios.condition(pod)["message"] for pod in scenarios.all_pods(cluster.kube)}
        assert [m for m in messages if "that do not enforce the requested isolation" not in m] == []
    finally:
        [configmap] = [each for each in objects if each["kind"] == "ConfigMap"]
        cluster.kube.delete(installing.path_of(configmap, named=True))


def test_the_page_names_the_conditions_and_the_reason_as_they_are() -> None:
    named = set(re.findall(r'@\.type=="(\w+)"', PAGE))
    assert named == {preload.LIBRARY, reach.MOUNTS, mps.DAEMONS, mps.PARTITIONS}
    assert Code.ISOLATION.name.title() == "Isolation"


def test_the_page_names_files_that_exist() -> None:
    for name in re.findall(r"`((?:tests|samples)/[^`:]+)`", PAGE):
        assert (ROOT / name).is_file(), name
