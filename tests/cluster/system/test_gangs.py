"""
Pods that start together, on a whole cluster: with seven free cards none of eight pods starts, with eight all start.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from contract import names, pods
from contract.reasons.pods import PodReason
from playground import scenarios
from playground.cluster import Cluster
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import PodBuilder, pod
from tests.cluster.system import invariants
from tests.clusters import control_planes

pytestmark = [pytest.mark.system, pytest.mark.long]
JSON = dict[str, Any]
TEAM = "team"
LWS = "leaderworkerset.sigs.k8s.io"


@pytest.fixture(scope="module", params=control_planes())
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(directory=tmp_path_factory.mktemp("gangs"), control_plane=request.param) as made:
        labels = {names.INJECT_LABEL: names.INJECT_ENABLED}
        made.kube.create(paths.namespaces(), {"metadata": {"name": TEAM, "labels": labels}})
        yield made


def worker(name: str) -> PodBuilder:
    """A pod that takes a card of the node t4, which has two."""
    made = pod(name, TEAM).asks("gpufraction.io/gpu-memory", "10000Mi")
    return made.spec(nodeSelector={"gpushare": "true"}, terminationGracePeriodSeconds=0)


def create(cluster: Cluster, *builders: PodBuilder) -> None:
    for each in builders:
        cluster.kube.create(paths.pods(TEAM), each.manifest())


def there(cluster: Cluster) -> dict[str, JSON]:
    return {each["metadata"]["name"]: each for each in scenarios.all_pods(cluster.kube, TEAM)}


def reasons(cluster: Cluster) -> dict[str, str]:
    return {name: scenarios.waits(each) for name, each in there(cluster).items()}


def running(cluster: Cluster) -> set[str]:
    return {name for name, each in there(cluster).items() if (each.get("status") or {}).get("phase") == "Running"}


def clear(cluster: Cluster) -> None:
    for name in there(cluster):
        cluster.kube.delete(paths.pods(TEAM, name))
    wait_for(lambda: not there(cluster), lambda: f"{there(cluster).keys()} are still there")


def test_a_gang_holds_nothing_until_all_of_it_starts(cluster: Cluster) -> None:
    gang = [worker(f"w{i}").annotated(names.GANG, "train").annotated(names.GANG_MINIMUM, "2") for i in range(2)]
    create(cluster, worker("first"))
    wait_for(lambda: running(cluster) == {"first"}, lambda: f"{reasons(cluster)}")
    create(cluster, gang[0])
    wait_for(lambda: reasons(cluster)["w0"] == PodReason.GANG_INCOMPLETE, lambda: f"{reasons(cluster)}")
    create(cluster, gang[1])
    both = {"first": "", "w0": PodReason.GANG_DOES_NOT_FIT, "w1": PodReason.GANG_DOES_NOT_FIT}
    wait_for(lambda: reasons(cluster) == both, lambda: f"{reasons(cluster)}")
    message = scenarios.condition(there(cluster)["w0"])["message"]
    assert message.startswith("waiting: gang train (annotation): 1 of 2 members fit; the second (w1): 0 of ")
    cluster.kube.delete(paths.pods(TEAM, "first"))
    wait_for(lambda: running(cluster) == {"w0", "w1"}, lambda: f"{reasons(cluster)}")
    plans = {name for name, each in there(cluster).items() if names.GANG_PLAN in pods.annotations_of(each)}
    assert plans == {"w0"}
    invariants.check(cluster, labelled=(TEAM,))
    clear(cluster)


def test_a_group_of_a_leader_worker_set_is_a_gang(cluster: Cluster) -> None:
    group = [
        worker(name).labelled(f"{LWS}/name", "serve").labelled(f"{LWS}/group-index", "0").annotated(f"{LWS}/size", "2")
        for name in ("serve-0", "serve-0-1")
    ]
    create(cluster, group[0])
    wait_for(lambda: reasons(cluster)["serve-0"] == PodReason.GANG_INCOMPLETE, lambda: f"{reasons(cluster)}")
    create(cluster, group[1])
    wait_for(lambda: running(cluster) == {"serve-0", "serve-0-1"}, lambda: f"{reasons(cluster)}")
    clear(cluster)


def test_a_leader_that_its_workers_wait_for_starts_alone(cluster: Cluster) -> None:
    leader = worker("ready-0").labelled(f"{LWS}/name", "ready").labelled(f"{LWS}/group-index", "0")
    create(cluster, leader.labelled(f"{LWS}/worker-index", "0").annotated(f"{LWS}/size", "2"))
    wait_for(lambda: reasons(cluster)["ready-0"] == PodReason.GANG_INCOMPLETE, lambda: f"{reasons(cluster)}")
    wait_for(lambda: running(cluster) == {"ready-0"}, lambda: f"{reasons(cluster)}", 60)
    clear(cluster)


def test_two_gangs_that_want_the_same_cards_start_one_after_the_other(cluster: Cluster) -> None:
    for number in range(2):
        for gang in "ab":
            made = worker(f"{gang}{number}").annotated(names.GANG, gang)
            create(cluster, made.annotated(names.GANG_MINIMUM, "2"))
    wait_for(lambda: len(running(cluster)) == 2, lambda: f"{reasons(cluster)}")
    (one,) = {name[0] for name in running(cluster)}
    other = "b" if one == "a" else "a"
    for number in range(2):
        cluster.kube.delete(paths.pods(TEAM, f"{one}{number}"))
    wait_for(lambda: running(cluster) == {f"{other}0", f"{other}1"}, lambda: f"{reasons(cluster)}")
    clear(cluster)


def test_nobody_else_writes_a_plan(cluster: Cluster) -> None:
    create(cluster, worker("forged").annotated(names.GANG_PLAN, '{"v": 1, "members": {}}'))
    wait_for(lambda: running(cluster) == {"forged"}, lambda: f"{reasons(cluster)}")
    assert names.GANG_PLAN not in pods.annotations_of(there(cluster)["forged"])
    clear(cluster)
