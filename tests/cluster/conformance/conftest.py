"""Both API servers, with a new namespace for every test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from playground.api.kinds.values import ADMIN, User
from playground.embedded import ControlPlane
from playground.machinery.cluster import no_gpus
from playground.waiting import wait_for
from runtime.kubernetes.transport import Transport, connect_transport
from tests.cluster.conformance.asking import Api, Ask
from tests.clusters import control_planes


@dataclass
class Server:
    """A running control plane."""

    plane: ControlPlane
    directory: Path
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def transport(self, user: User = ADMIN) -> Transport:
        path = self.directory / f"kubeconfig-{next(self.numbers)}"
        path.write_text(self.plane.kubeconfig(user))
        return connect_transport(kubeconfig=str(path), context=None, user_agent="conformance")


@pytest.fixture(scope="package", params=control_planes())
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    plane: ControlPlane = request.param(no_gpus)
    try:
        plane.start()
        yield Server(plane, tmp_path_factory.mktemp("conformance"))
    finally:
        plane.stop()


@pytest.fixture(scope="package")
def admin(server: Server) -> Transport:
    return server.transport()


@pytest.fixture
def api(server: Server, admin: Transport) -> Api:
    """The administrator, in a namespace for this test alone in which pods can be created."""
    api = Api(admin, f"conformance-{next(server.numbers)}")
    labels = {"gpufraction.io/inject": "enabled", "test": api.namespace}
    api.done(Ask("POST", "/api/v1/namespaces", {"metadata": {"name": api.namespace, "labels": labels}}))
    wait_for(lambda: api.ask(Ask("GET", "serviceaccounts/default")).code == 200, "no default service account")
    return api
