"""Hundreds of pods of one namespace wait, and 5 of another come later: the 5 are served as cards become free."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import pytest

from contract import names, pods
from playground import scenarios
from playground.cluster import Cluster
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import pod
from tests.cluster.system import invariants
from tests.clusters import control_planes

pytestmark = [pytest.mark.system, pytest.mark.long]
JSON = dict[str, Any]
TEAMS = ("team-a", "team-b")
FEW = 5
SELDOM = 0.25
"""Seconds between two looks at hundreds of pods."""


@pytest.fixture(scope="module", params=control_planes())
def fair_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose queue is fair, with two served namespaces."""
    settings = {"allocator": ("--queue-order", "fair")}
    directory = tmp_path_factory.mktemp("fair")
    with Cluster(directory=directory, settings=settings, control_plane=request.param) as cluster:
        for team in TEAMS:
            labels = {names.INJECT_LABEL: names.INJECT_ENABLED}
            cluster.kube.create(paths.namespaces(), {"metadata": {"name": team, "labels": labels}})
        yield cluster


def create(cluster: Cluster, team: str, number: int, kind: str) -> None:
    """Pods that each take a card of the node t4, which has two."""

    def one(index: int) -> None:
        made = pod(f"{kind}-{index:03}", team).asks("gpufraction.io/gpu-memory", "10000Mi")
        made = made.spec(nodeSelector={"gpushare": "true"}, terminationGracePeriodSeconds=0)
        cluster.kube.create(paths.pods(team), made.manifest())

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(one, range(number)))


def holders(cluster: Cluster) -> dict[str, str]:
    """The pods that hold a card, by `namespace/name`, each with its namespace."""
    found = (each for team in TEAMS for each in scenarios.all_pods(cluster.kube, team))
    return {pods.key(each): each["metadata"]["namespace"] for each in found if names.GATE not in pods.gates(each)}


def messages(cluster: Cluster, team: str) -> list[str]:
    found = [scenarios.condition(each) for each in scenarios.all_pods(cluster.kube, team) if scenarios.waits(each)]
    return [str(each.get("message", "")) for each in found]


@pytest.mark.parametrize("many", [50, pytest.param(500, marks=pytest.mark.storm)])
def test_a_small_backlog_is_served_before_a_large_older_one(fair_cluster: Cluster, many: int) -> None:
    cluster = fair_cluster
    first, second = TEAMS
    create(cluster, first, 2, "holds")
    wait_for(lambda: Counter(holders(cluster).values()) == {first: 2}, lambda: f"{holders(cluster)} hold the two cards")
    create(cluster, first, many, "many")
    last = max(each["metadata"]["creationTimestamp"] for each in scenarios.all_pods(cluster.kube, first))
    wait_for(lambda: time.time() >= datetime.fromisoformat(last).timestamp() + 1, "the clock stands")
    create(cluster, second, FEW, "few")
    wait_for(
        lambda: len(messages(cluster, second)) == FEW,
        lambda: f"{len(messages(cluster, second))} pods know why they wait",
        every=SELDOM,
    )
    assert [text for text in messages(cluster, first) if second in text] == [], (
        "a tenant reads no other namespace's name"
    )
    assert [text for text in messages(cluster, second) if "behind" in text] == [], "nobody holds less"
    holding, served = sorted(holders(cluster)), []
    for _ in range(2 * FEW - 1):  # the card that was held the longest becomes free
        oldest = holding.pop(0)
        cluster.kube.delete(paths.pods(*oldest.split("/")))
        wait_for(
            lambda oldest=oldest: oldest not in holders(cluster) and len(holders(cluster)) == 2,  # type: ignore[misc]
            lambda: f"{holders(cluster)} hold cards",
            every=SELDOM,
        )
        holding += holders(cluster).keys() - set(holding)
        served.append(holding[-1].split("/")[0])
    assert served == [second, first] * (FEW - 1) + [second], "one card each while both wait"
    invariants.check(cluster, labelled=TEAMS, looking=False)
    for team in TEAMS:
        scenarios.clear(cluster.kube, team)
    invariants.check(cluster, labelled=TEAMS)
