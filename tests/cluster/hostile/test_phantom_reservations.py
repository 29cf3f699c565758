"""
A3: shares that are reserved for pods that are never stored. The causes are a tenant whose quota refuses everything, one
name repeatedly, and a stranger's reviews. Meanwhile neighbours are placed within a second, little is reserved, and it
is released soon.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from contract import names, pods
from playground import scenarios
from playground.programs.otherwebhook import patching
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeForbidden
from tests.builders import PodBuilder, pod
from tests.cluster.hostile import replicas
from tests.cluster.hostile.attack import DELAY, NEIGHBOUR, TENANT, Hostile, hostile_cluster, unharmed
from tests.cluster.hostile.strangers import review
from tests.cluster.system import another
from tests.clusters import control_planes

pytestmark = [pytest.mark.hostile, pytest.mark.long]
JSON = dict[str, Any]
LONG_TTL = ("--assume-ttl", "40s")
"""The shipped default. Reservations end sooner here because pods are stored quickly."""
QUOTA = {"metadata": {"name": "none"}, "spec": {"hard": {"requests.gpufraction.io/gpu-memory": "0"}}}
CARDS = 8
ASSUMED = 'gpufraction_reservations{state="assumed"}'


@pytest.fixture(scope="module", params=control_planes())
def shipped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    yield from hostile_cluster(request.param, tmp_path_factory.mktemp("phantom"), flags=LONG_TTL)


@pytest.fixture
def hostile(shipped: Hostile) -> Iterator[Hostile]:
    """The allocator has seen a few pods, so it knows how long pods take to be stored."""
    with replicas.asking(shipped, leads=True):
        if taught(shipped) < 8:
            for number in range(16):
                shipped.create(small(f"before-{number}"), NEIGHBOUR)
            scenarios.settled(shipped.kube, 16, NEIGHBOUR, running=16)
            scenarios.clear(shipped.kube, NEIGHBOUR)
        yield from unharmed(shipped)


def taught(hostile: Hostile) -> float:
    return hostile.figures(replicas.leader(hostile)).get('gpufraction_decisions_total{outcome="placed"}', 0)


@pytest.fixture(scope="module", params=control_planes())
def stored_first(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    flags = (*LONG_TTL, "--placement-when", "stored")
    yield from hostile_cluster(request.param, tmp_path_factory.mktemp("stored"), flags=flags)


@pytest.fixture
def careful(stored_first: Hostile) -> Iterator[Hostile]:
    yield from unharmed(stored_first)


def small(name: str) -> PodBuilder:
    return pod(name).asks("gpufraction.io/gpu-memory", "256Mi")


def card(name: str) -> PodBuilder:
    """More than half of any card of the demo's nodes."""
    return pod(name).asks("gpufraction.io/gpu-memory", "12Gi").tolerates("nvidia.com/gpu")


@contextlib.contextmanager
def no_quota(hostile: Hostile) -> Iterator[None]:
    quotas = paths.path("v1", "resourcequotas", TENANT)
    hostile.kube.create(quotas, QUOTA)
    try:
        wait_for(lambda: refused(hostile, small("probe"), dry_run=True), "the quota does not count")
        yield
    finally:
        hostile.kube.delete(f"{quotas}/none")


def refused(hostile: Hostile, made: PodBuilder, *, dry_run: bool = False) -> bool:
    try:
        hostile.create(made, dry_run=dry_run)
    except KubeForbidden as error:
        return "exceeded quota" in str(error)
    return False


def assumed(hostile: Hostile) -> float:
    return sum(hostile.figures(number).get(ASSUMED, 0) for number in (0, 1))


@pytest.mark.parametrize("count", [12, pytest.param(200, marks=pytest.mark.storm)])
def test_refused_creations_of_a_tenant_without_quota(hostile: Hostile, count: int) -> None:
    """A3: before, 12 of them filled the cluster for 40 s."""
    with no_quota(hostile):
        for number in range(count):
            assert refused(hostile, card(f"refused-{number}"))
            assert assumed(hostile) <= CARDS // 2
            if number in (11, 99, 199):
                hostile.neighbour_is_served(DELAY)
    comes_back(hostile)


def comes_back(hostile: Hostile) -> None:
    """Reservations are released within seconds: pods are stored quickly here, so these are not coming."""
    wait_for(lambda: assumed(hostile) == 0, lambda: f"{assumed(hostile)} are held", 15)


def test_one_name_again_and_again(hostile: Hostile) -> None:
    """A3: the same pod, created repeatedly, with the same request and with others."""
    with no_quota(hostile):
        for number in range(60):
            made = card("again") if number % 3 else card("again").needs(cpu=f"{number + 1}m")
            assert refused(hostile, made)
            assert assumed(hostile) <= 1
        hostile.neighbour_is_served(DELAY)
    comes_back(hostile)


def test_a_strangers_reviews(hostile: Hostile) -> None:
    """A3: reviews that no API server sent, in the tenant's name and in invented ones."""
    leader = replicas.leader(hostile)
    for number in range(60):
        namespace = TENANT if number % 2 else f"made-up-{number}"
        made = card(f"stranger-{number}").json()
        made["metadata"]["namespace"] = namespace
        status, _ = replicas.post(hostile, leader, review(made, namespace=namespace))
        assert status == 200
        assert assumed(hostile) <= CARDS
    hostile.neighbour_is_served(DELAY)
    comes_back(hostile)


def test_what_a_stranger_learns_of_others(hostile: Hostile) -> None:
    """A3: the message of a waiting pod has figures, and no node, card or tenant."""
    hostile.create(card("neighbours"), NEIGHBOUR)
    scenarios.settled(hostile.kube, 1, NEIGHBOUR, running=1)
    leader, made = replicas.leader(hostile), pod("large").asks("gpufraction.io/gpu-memory", "22000Mi")
    nodes = {node.spec.name for node in hostile.cluster.nodes}
    for asks in (made.spec(nodeSelector={"gpushare": "true"}), made.asks("gpufraction.io/gpu-count", 4), made):
        for dry_run in (False, True):
            body = asks.json()
            body["metadata"]["namespace"] = "stranger"
            status, answer = replicas.post(hostile, leader, review(body, namespace="stranger", dryRun=dry_run))
            response = answer["response"]
            text = json.dumps([response.get("warnings"), response.get("status")])
            assert status == 200
            words = set(text.replace('"', " ").replace(",", " ").split())
            assert "GPU-" not in text
            assert NEIGHBOUR not in text
            assert not nodes & words, text


def test_a_creation_that_another_webhook_makes_us_refuse_holds_nothing(hostile: Hostile) -> None:
    """C6: the second pass refuses the pod, and the share of the first pass is released at once."""

    def foul(request: JSON) -> JSON:
        limits = {"nvidia.com/gpumem": "1000", "aliyun.com/gpu-mem": "1"}
        added = {"name": "foul", "image": "registry.example/foul:1", "resources": {"limits": limits}}
        if any(each["name"] == "foul" for each in request["object"]["spec"]["containers"]):
            return {"allowed": True}
        return patching([{"op": "add", "path": "/spec/containers/-", "value": added}])

    with another.registered(hostile.kube, foul, label="foul"):
        made = small("fouled").labelled("foul", "yes")
        wait_for(lambda: _denied(hostile, made, dry_run=True), "the other webhook is not called")
        for number in range(5):
            assert _denied(hostile, small(f"fouled-{number}").labelled("foul", "yes"))
            assert assumed(hostile) == 0


def _denied(hostile: Hostile, made: PodBuilder, *, dry_run: bool = False) -> bool:
    try:
        hostile.create(made, dry_run=dry_run)
    except Exception as error:
        return "denied the request" in str(error)
    return False


def test_where_pods_are_stored_first_nobody_holds_anything(careful: Hostile) -> None:
    """A3: `placement.when: stored`, for an administrator who trusts tenants less."""
    leader = replicas.leader(careful)
    with no_quota(careful):
        for number in range(12):
            assert refused(careful, card(f"refused-{number}"))
            replicas.post(careful, leader, review(card(f"stranger-{number}").json()))
            assert assumed(careful) == 0
        careful.neighbour_is_served(DELAY)
    for number in range(6):
        careful.create(small(f"placed-{number}"))
    found = scenarios.settled(careful.kube, 6, TENANT, running=6)
    assert all(names.ALLOCATION in pods.annotations_of(each) for each in found)
    assert [each["spec"].get("schedulingGates") for each in found] == [None] * 6
