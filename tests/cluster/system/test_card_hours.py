"""Held and free time of cards, summed over the replicas' counters as Prometheus does, equals the cards' own time."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from contract import names
from playground import scenarios
from playground.cluster import Cluster
from playground.shapes import DEMO
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import PodBuilder, pod
from tests.cluster.system import invariants
from tests.clusters import control_planes

pytestmark = [pytest.mark.system, pytest.mark.long]
JSON = dict[str, Any]
HELD, FREE, LEADER = "gpufraction_share_held_seconds_total", "gpufraction_gpu_free_seconds_total", "gpufraction_leader"
TEAMS = ("team-a", "team-b")
CARDS = 8
"""The cards that the demo's nodes have."""
LEASE = 4.0
LATE = 2.5
"""
Seconds that may be missing or extra in total: what two killed leaders had counted and Prometheus had not read, and how
far the counters lag at the beginning and at the end. Every time without a leader is longer than this.
"""
_LABEL = re.compile(r'(\w+)="([^"]*)"')


class Prometheus:
    """What Prometheus computes from the counters: the increases of each series, whatever value it began at."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._last: dict[tuple[int, str], float] = {}
        self.counted: dict[str, float] = defaultdict(float)

    def scrape(self) -> None:
        """Read each replica that answers."""
        for replica in self._cluster.replicas:
            for name, value in invariants.figures(self._cluster, replica.number).items():
                if name.startswith((HELD, FREE)):
                    before = self._last.get((replica.number, name))
                    self.counted[name] += 0.0 if before is None else value - before if value >= before else value
                    self._last[replica.number, name] = value

    def held(self, namespace: str) -> float:
        """Card seconds of a namespace."""
        return sum(value for name, value in self.counted.items() if f'namespace="{namespace}"' in name)

    def all(self) -> float:
        """Held and free card seconds."""
        return sum(self.counted.values())

    def watch(self, seconds: float) -> None:
        """Scrape for this long."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.scrape()
            time.sleep(0.25)


@pytest.fixture(scope="module", params=control_planes())
def two_replicas(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with two replicas that take over from each other quickly."""
    settings = {"allocator": (f"--election-lease={LEASE:.0f}s", "--card-hours-after=1s")}
    directory = tmp_path_factory.mktemp("hours")
    with Cluster(directory=directory, settings=settings, control_plane=request.param, replicas=2) as cluster:
        for team in TEAMS:
            labels = {names.INJECT_LABEL: names.INJECT_ENABLED}
            cluster.kube.create(paths.namespaces(), {"metadata": {"name": team, "labels": labels}})
            cluster.await_account(team)
        yield cluster


def half(name: str, team: str) -> PodBuilder:
    """A pod that takes half the cores of a T4 and less than half of its memory."""
    made = pod(name, team).asks("gpufraction.io/gpu-memory", "4000Mi").asks("gpufraction.io/gpu-cores", 50)
    return made.spec(nodeSelector={"gpushare": "true"}, terminationGracePeriodSeconds=0)


def leader(cluster: Cluster) -> int | None:
    found = [each.number for each in cluster.replicas if invariants.figures(cluster, each.number).get(LEADER) == 1.0]
    return found[0] if len(found) == 1 else None


def create(cluster: Cluster, builder: PodBuilder, team: str) -> None:
    cluster.kube.create(paths.pods(team), builder.manifest())


def test_held_and_free_time_of_all_replicas_is_the_cards_time(two_replicas: Cluster) -> None:
    cluster = two_replicas
    assert sum(int(node.gpus.split(" ")[0]) for node in DEMO) == CARDS
    prometheus = Prometheus(cluster)
    wait_for(lambda: leader(cluster) is not None, "nobody leads")
    first = leader(cluster)
    assert first is not None
    create(cluster, half("stays", "team-a"), "team-a")
    create(cluster, half("goes", "team-b"), "team-b")
    for team in TEAMS:
        scenarios.settled(cluster.kube, 1, team, running=1)
    prometheus.watch(2.0)

    began, before, held = time.monotonic(), prometheus.all(), prometheus.held("team-a")
    prometheus.watch(1.0)
    cluster.programs[cluster.replicas[first].name("allocator")].kill()
    cluster.kube.delete(paths.pods("team-b", "goes"))
    other = 1 - first
    while leader(cluster) != other:
        prometheus.watch(0.5)
        assert time.monotonic() - began < 60, "nobody took over"
    between = time.monotonic() - began
    cluster.programs[cluster.replicas[first].name("allocator")].start()
    create(cluster, half("comes", "team-b"), "team-b")
    prometheus.watch(2.0)
    # Both end, so that only what pods and nodes report remains for the time until one leads again.
    for replica in cluster.replicas:
        cluster.programs[replica.name("allocator")].kill()
    killed = time.monotonic()
    for replica in cluster.replicas:
        cluster.programs[replica.name("allocator")].start()
    while leader(cluster) is None:
        prometheus.watch(0.5)
        assert time.monotonic() - killed < 60, "nobody leads"
    prometheus.watch(2.5)

    took = time.monotonic() - began
    assert between > LATE
    assert prometheus.all() - before == pytest.approx(CARDS * took, abs=CARDS * LATE)
    assert prometheus.held("team-a") - held == pytest.approx(0.5 * took, abs=0.5 * LATE)
    for team in TEAMS:
        scenarios.clear(cluster.kube, team)
    invariants.check(cluster, labelled=TEAMS)
