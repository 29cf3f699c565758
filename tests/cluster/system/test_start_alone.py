"""Simulated engines start one at a time on a card. One that never becomes ready does not block others forever."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from contract import names, pods
from contract.reasons.nodes import Code
from contract.reasons.pods import PodEventReason
from playground import scenarios
from playground.cluster import Cluster
from playground.machinery.kubelet.podrun import START_SECONDS
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import PodBuilder, pod
from tests.cluster.system import invariants
from tests.clusters import control_planes

pytestmark = [pytest.mark.system, pytest.mark.long]
JSON = dict[str, Any]
TEAM, OTHER = "team", "other"
SLOW, NEVER = 12, 600


@pytest.fixture(scope="module", params=control_planes())
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {"allocator": ("--starts-within", "30s")}
    directory = tmp_path_factory.mktemp("starts")
    with Cluster(directory=directory, settings=settings, control_plane=request.param) as made:
        labels = {names.INJECT_LABEL: names.INJECT_ENABLED}
        for team in (TEAM, OTHER):
            made.kube.create(paths.namespaces(), {"metadata": {"name": team, "labels": labels}})
        yield made


def engine(name: str, seconds: int, namespace: str = TEAM) -> PodBuilder:
    """An engine on the node t4, which has two cards. It is ready after this many seconds."""
    made = pod(name, namespace).asks("gpufraction.io/gpu-memory", "2Gi").annotated(names.START, names.ALONE)
    made = made.annotated(START_SECONDS, str(seconds))
    return made.spec(nodeSelector={"gpushare": "true"}, terminationGracePeriodSeconds=0)


def create(cluster: Cluster, builder: PodBuilder) -> None:
    manifest = builder.manifest()
    cluster.kube.create(paths.pods(manifest["metadata"]["namespace"]), manifest)


def there(cluster: Cluster) -> dict[str, JSON]:
    return {each["metadata"]["name"]: each for team in (TEAM, OTHER) for each in scenarios.all_pods(cluster.kube, team)}


def said(cluster: Cluster) -> dict[str, str]:
    return {name: scenarios.waits(each) for name, each in there(cluster).items()}


def running(cluster: Cluster) -> set[str]:
    return {name for name, each in there(cluster).items() if scenarios.is_running(each)}


def cards(cluster: Cluster) -> dict[str, str]:
    """The card of each pod that has a share."""
    found = {name: pods.carried_allocation(each) for name, each in there(cluster).items()}
    return {name: share.containers[0].shares[0].uuid for name, share in found.items() if share is not None}


def clear(cluster: Cluster) -> None:
    for name, each in there(cluster).items():
        cluster.kube.delete(paths.pods(each["metadata"]["namespace"], name))
    wait_for(lambda: not there(cluster), lambda: f"{there(cluster).keys()} are still there")


def test_the_third_waits_until_one_of_two_cards_is_open(cluster: Cluster) -> None:
    create(cluster, engine("a", SLOW))
    create(cluster, engine("b", SLOW))
    wait_for(lambda: len(set(cards(cluster).values())) == 2, lambda: f"{cards(cluster)} {said(cluster)}")
    create(cluster, engine("c", 0, OTHER))
    wait_for(lambda: said(cluster)["c"] == Code.NEIGHBOUR_STARTING.word, lambda: f"{said(cluster)}")
    message = scenarios.condition(there(cluster)["c"])["message"]
    assert Code.NEIGHBOUR_STARTING.row.text in message
    assert TEAM not in message
    assert "c" not in cards(cluster)
    wait_for(lambda: running(cluster) == {"a", "b", "c"}, lambda: f"{said(cluster)}", 90)
    invariants.check(cluster, labelled=(TEAM, OTHER))
    clear(cluster)


def test_after_the_bound_an_event_says_so_and_the_next_starts(cluster: Cluster) -> None:
    create(cluster, engine("never", NEVER))
    create(cluster, engine("nor", NEVER))
    wait_for(lambda: len(set(cards(cluster).values())) == 2, lambda: f"{cards(cluster)} {said(cluster)}")
    create(cluster, engine("next", 0))
    wait_for(lambda: said(cluster)["next"] == Code.NEIGHBOUR_STARTING.word, lambda: f"{said(cluster)}")
    wait_for(lambda: running(cluster) == {"next"}, lambda: f"{said(cluster)}", 90)

    def told() -> set[str]:
        events = cluster.kube.list(paths.events(TEAM)).items
        return {each["involvedObject"]["name"] for each in events if each["reason"] == PodEventReason.START_OVERDUE}

    wait_for(lambda: told() <= {"never", "nor"} and bool(told()), lambda: f"{told()}", 60)
    clear(cluster)
