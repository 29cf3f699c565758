"""A stranger who can connect to the page of `kubectl gpufraction ui` asks it about things that it does not show."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import pytest

from kubectl_gpufraction.cluster.state import ClusterView
from kubectl_gpufraction.ui.command import serving
from playground import scenarios
from runtime.kubernetes import paths
from tests.builders import pod
from tests.cluster.hostile.attack import NEIGHBOUR, TENANT, Hostile

pytestmark = pytest.mark.hostile
JSON = dict[str, Any]
EVENTS = 260
ELSEWHERE = (
    "shares%2Fstatus",
    "shares/log",
    "..",
    "../secrets/any",
    "shares%3Fwatch",
    "shares%23",
    "shares%252Fstatus",
)


@pytest.fixture
def asked(hostile: Hostile) -> Iterator[int]:
    """The page's port, with a pod that shares a card and a neighbour's pod that requests none."""
    hostile.create(pod("shares").asks("gpufraction.io/gpu-memory", "1Gi"))
    hostile.create(pod("private").container("main"), NEIGHBOUR)
    scenarios.settled(hostile.kube, 1, running=1)

    def read() -> ClusterView:
        inventories, nodes, found = (
            hostile.kube.list(each).items for each in (paths.gpunodes(), paths.nodes(), paths.pods())
        )
        return ClusterView.of(inventories, nodes, found)

    with serving(hostile.kube, read, TENANT, token="", least_rest=0.05) as server:
        yield server.port


def story(port: int, namespace: str, name: str) -> tuple[int, JSON]:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", f"/api/pod?namespace={namespace}&name={name}", headers={"Host": "127.0.0.1"})
    answer = connection.getresponse()
    found = json.loads(answer.read())
    connection.close()
    return answer.status, found


def tell(hostile: Hostile, uid: str, number: int) -> None:
    """An Event about a pod of this name."""
    about = {"apiVersion": "v1", "kind": "Pod", "namespace": TENANT, "name": "shares", "uid": uid}
    body = {
        "metadata": {"name": f"shares.{number:05}", "namespace": TENANT},
        "involvedObject": about,
        "reason": "Loud" if uid == "another" else "Own",
        "message": "m" * 1000,
        "type": "Normal",
        "lastTimestamp": "2100-01-01T00:00:00Z",
        "firstTimestamp": "2100-01-01T00:00:00Z",
        "count": 1,
    }
    hostile.kube.create(paths.events(TENANT), body)


def test_the_page_tells_nothing_of_pods_without_a_share(hostile: Hostile, asked: int) -> None:
    answers = {name: story(asked, NEIGHBOUR, name) for name in ("private", "absent")}
    assert answers == {
        name: (404, {"error": f"no pod {NEIGHBOUR}/{name} has a share or waits for one (any more)"}) for name in answers
    }
    assert {story(asked, TENANT, name)[0] for name in ELSEWHERE} == {400}


def test_the_page_reads_a_bounded_part_of_a_pods_own_events(hostile: Hostile, asked: int) -> None:
    uid = hostile.kube.get(paths.pods(TENANT, "shares"))["metadata"]["uid"]
    for number in range(EVENTS):
        tell(hostile, uid if number % 10 else "another", number)
    for number in range(EVENTS):
        if number % 10 == 0:
            tell(hostile, uid, EVENTS + number)
    status, shown = story(asked, TENANT, "shares")
    assert (status, shown["unseen"], len(shown["events"])) == (200, "this pod has more Events than are read", 50)
    assert {each["reason"] for each in shown["events"]} == {"Own"}
