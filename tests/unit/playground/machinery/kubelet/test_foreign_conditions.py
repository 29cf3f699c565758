"""A kubelet writes only conditions of its own types; conditions that others have written meanwhile stay."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from playground.api.api import Api
from playground.api.kinds.values import ADMIN, JSON, User
from playground.machinery.client.client import Watching
from playground.machinery.cluster import Machinery
from playground.machinery.kubelet import podstatus
from tests.unit.playground.machinery.conftest import QUICK, gpus_of
from tests.unit.playground.machinery.driving import PODS, Cluster, pod

OTHERS = "example.com/Allocated"


class Racing:
    """An API server to which another client writes a condition right before a kubelet's write arrives."""

    def __init__(self, api: Api) -> None:
        self._api, self._lock = api, threading.Lock()
        self.written = 0

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        user: User = ADMIN,
    ) -> tuple[int, JSON]:
        if method == "PATCH" and path.startswith(PODS) and user.name.startswith("system:node:"):
            with self._lock:
                self.written += 1
                condition = {"type": OTHERS, "status": "True", "reason": "Told", "message": str(self.written)}
                status = {"status": {"conditions": [condition]}}
                strategic = "application/strategic-merge-patch+json"
                assert self._api.call("PATCH", path, body=status, content_type=strategic)[0] == 200
        return self._api.call(method, path, query=query, body=body, content_type=content_type, user=user)

    def watch(self, path: str, *, query: Mapping[str, str] | None = None, user: User = ADMIN) -> Watching:
        return self._api.watch(path, query=query, user=user)


@pytest.fixture
def racing() -> Iterator[tuple[Cluster, list[Racing]]]:
    servers: list[Racing] = []

    def machinery(api: Api) -> Machinery:
        servers.append(Racing(api))
        return Machinery(servers[0], gpus_of=gpus_of, timing=QUICK)

    made = Cluster(machinery)
    yield made, servers
    made.machinery.stop()


def test_what_others_write_while_the_kubelet_works_stays(racing: tuple[Cluster, list[Racing]]) -> None:
    cluster, servers = racing
    cluster.nodes("n1")
    waits = pod("p")
    cluster.do("POST", PODS, waits)
    stale = {"status": {"conditions": [{"type": OTHERS, "status": "False", "reason": "Waiting", "message": "stale"}]}}
    cluster.do("PATCH", f"{PODS}/p/status", stale, content_type="application/strategic-merge-patch+json")
    cluster.phase("p", "Running")
    found = {each["type"]: each for each in cluster.do("GET", f"{PODS}/p")["status"]["conditions"]}
    (server,) = servers
    assert (found[OTHERS]["status"], found[OTHERS]["message"]) == ("True", str(server.written))
    assert found["Ready"]["status"] == "True"
    assert found.keys() - {OTHERS} == podstatus.OWN_CONDITIONS


def test_a_status_without_own_conditions_names_none() -> None:
    rejected = podstatus.rejected({"status": {"conditions": [{"type": OTHERS}]}}, "OutOfcpu", "no", "now")
    assert podstatus.own(rejected) == {"phase": "Failed", "reason": "OutOfcpu", "message": "no", "startTime": "now"}
