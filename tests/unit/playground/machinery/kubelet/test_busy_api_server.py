"""What the simulated kubelets could not tell a busy API server they tell it again, as kubelets do."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from playground.api.api import Api
from playground.api.kinds.values import ADMIN, JSON, User
from playground.machinery.client.client import Watching
from playground.machinery.cluster import Machinery
from tests.unit.playground.machinery.conftest import QUICK, gpus_of
from tests.unit.playground.machinery.driving import PODS, Cluster, pod

BUSY = 503, {"kind": "Status", "reason": "ServiceUnavailable", "message": "try again", "code": 503}


class Busy:
    """An API server that accepts every write to a pod by a kubelet only at the third attempt."""

    def __init__(self, api: Api) -> None:
        self._api, self._lock = api, threading.Lock()
        self.turned_away: list[tuple[str, str]] = []

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
        if method in ("PATCH", "DELETE") and path.startswith(PODS) and user.name.startswith("system:node:"):
            with self._lock:
                if self.turned_away.count((method, path)) < 2:
                    self.turned_away.append((method, path))
                    return BUSY
        return self._api.call(method, path, query=query, body=body, content_type=content_type, user=user)

    def watch(self, path: str, *, query: Mapping[str, str] | None = None, user: User = ADMIN) -> Watching:
        return self._api.watch(path, query=query, user=user)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster(lambda api: Machinery(Busy(api), gpus_of=gpus_of, timing=QUICK))
    yield made
    made.machinery.stop()


def test_a_pod_starts_and_ends_although_the_api_server_was_busy(cluster: Cluster) -> None:
    cluster.nodes("n1")
    cluster.do("POST", PODS, pod("p"))
    cluster.phase("p", "Running")
    cluster.do("DELETE", f"{PODS}/p")
    cluster.wait(lambda: not cluster.pods(), "the pod is gone")
