"""The component canary in a cluster: no level without a proof, a broken limiter is noticed, and tenants come first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from contract import names
from playground import scenarios
from playground.cluster import Cluster
from playground.shapes import DEMO
from playground.tenants import limiter
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import pod as builder
from tests.cluster.kit.cluster import NODE
from tests.cluster.kit.played import PlayedPrograms
from tests.cluster.system import invariants
from tests.clusters import control_planes

pytestmark = [pytest.mark.system, pytest.mark.long, pytest.mark.timeout(240)]
JSON = dict[str, Any]
WITHIN = "40s"


@dataclass
class Proven:
    """The cluster, and the programs of its canaries."""

    cluster: Cluster
    programs: PlayedPrograms

    def shown(self) -> tuple[str, bool, str]:
        """The proof's state, whether the level `preload` is published, and the condition's reason."""
        status = self.cluster.kube.get(paths.gpunodes(NODE)).get("status") or {}
        found = [each for each in status.get("conditions") or () if each["type"] == "IsolationProven"]
        reason = found[0]["reason"] if found else ""
        return status.get("isolationProof", ""), "preload" in (status.get("isolation") or ()), reason

    def becomes(self, wanted: tuple[str, bool, str], seconds: float = 60.0) -> None:
        """Wait until the node shows this."""
        wait_for(lambda: self.shown() == wanted, lambda: f"{self.shown()}, not {wanted}", seconds)

    def canaries(self) -> list[JSON]:
        """The existing canaries."""
        return self.cluster.kube.list(paths.pods(names.CANARY_NAMESPACE)).items

    def try_again(self) -> None:
        """Make the allocator forget its next attempt, like one that has just taken over."""
        allocator = self.cluster.programs["allocator"]
        allocator.terminate()
        allocator.wait()
        allocator.start()


@pytest.fixture(scope="module", params=control_planes())
def proven(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proven]:
    """A node with a limiter whose canaries cannot start yet."""
    directory = tmp_path_factory.mktemp("canary")
    limiter.install(directory / "library")
    settings = {"nodeagent": (*limiter.agents(directory / "library"), "--proven-within", WITHIN)}
    with Cluster(
        nodes=DEMO[:1],
        directory=directory,
        settings=settings,
        control_plane=request.param,
        components=("canary",),
    ) as cluster:
        programs = PlayedPrograms(directory / "programs", (names.CANARY_NAMESPACE,))
        programs.holds = frozenset()
        cluster.control_plane.use_programs(programs)
        yield Proven(cluster, programs)


HELD = ("held", True, "Proven")
FAILED = ("failed", False, "ProofFailed")


def test_a_limiter_that_holds_nobody_is_never_published_and_one_that_holds_is(proven: Proven) -> None:
    """Covers one cluster over time: broken from the beginning, repaired, broken again, and repaired."""
    proven.becomes(FAILED)
    proven.programs.holds = frozenset(("memory",))
    proven.try_again()
    proven.becomes(HELD)
    proven.programs.holds = frozenset()
    proven.becomes(FAILED, 90.0)
    proven.programs.holds = frozenset(("memory",))
    proven.try_again()
    proven.becomes(HELD)
    wait_for(lambda: not proven.canaries(), "a canary stays")
    invariants.check(proven.cluster)


def test_a_pod_that_requests_the_level_waits_for_the_proof(proven: Proven) -> None:
    """While every card of the node has a share, no canary runs. So the proof ends, and the level with it."""
    kube = proven.cluster.kube
    proven.becomes(HELD)
    cards = len(kube.get(paths.gpunodes(NODE))["status"]["gpus"])
    busy = [builder(f"busy-{n}").asks("gpufraction.io/gpu-percent", "60").manifest() for n in range(cards)]
    try:
        for pod in busy:
            kube.create(paths.pods("default"), pod)
        proven.becomes(("missing", False, "Unproven"), 90.0)
        wants = builder("wants").asks("gpufraction.io/gpu-memory", "1Gi").manifest()
        wants["metadata"]["annotations"] = {str(names.ISOLATION): "preload"}
        kube.create(paths.pods("default"), wants)
        wait_for(lambda: scenarios.waits(kube.get(paths.pods("default", "wants"))) == "Isolation", "it does not wait")
        assert proven.canaries() == []
        kube.delete(paths.pods("default", "busy-0"), {"gracePeriodSeconds": 0})
        proven.becomes(HELD, 120.0)
        wait_for(
            lambda: kube.get(paths.pods("default", "wants"))["status"].get("phase") == "Running", "it is not placed"
        )
    finally:
        scenarios.clear(kube)
    invariants.check(proven.cluster)


def test_a_canary_gives_way_to_a_pod_that_would_fit_without_it(proven: Proven) -> None:
    kube = proven.cluster.kube
    gpus = len(kube.get(paths.gpunodes(NODE))["status"]["gpus"])
    proven.programs.slow = 60.0
    try:
        kube.patch_merge(paths.gpunodes(NODE), {"metadata": {"annotations": {str(names.PROOF): None}}})
        proven.try_again()
        wait_for(lambda: [pod for pod in proven.canaries() if scenarios.is_running(pod)], "no canary runs", 90.0)
        whole = builder("whole").asks("gpufraction.io/gpu-percent", "100").asks("gpufraction.io/gpu-count", gpus)
        kube.create(paths.pods("default"), whole.manifest())
        wait_for(lambda: scenarios.is_running(kube.get(paths.pods("default", "whole"))), "the tenant waits", 30.0)
        wait_for(lambda: not proven.canaries(), "the canary stays", 10.0)
    finally:
        proven.programs.slow = 0.0
        scenarios.clear(kube)
    invariants.check(proven.cluster)
