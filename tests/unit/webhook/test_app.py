"""The webhook as `make_app` composes it, without a socket, a certificate or a separate process."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from allocator.server import http
from contract import names
from contract.metrics import metrics_of
from playground.waiting import wait_for
from runtime import unixhttp
from runtime.metrics import Metrics
from tests.serving import RoutesClient
from tests.unit.allocator.harness import SchedulerHarness
from tests.unit.allocator.one_gpu import ONE_GPU
from tests.unit.webhook.builders import container, patched, pod, review
from webhook.app import make_app
from webhook.serving.asking import AllocatorClient
from webhook.serving.server import Service
from webhook.settings import ServeSettings

SOCKET = Path("/nowhere/allocator.sock")


@dataclass(frozen=True)
class Reading(RoutesClient):
    """A client that records who reads with it."""

    readers: set[threading.Thread] = field(default_factory=set)

    def get(self, target: str, *, timeout: float) -> unixhttp.Answer:
        self.readers.add(threading.current_thread())
        return super().get(target, timeout=timeout)


class Made:
    """A webhook whose allocator is in this process."""

    def __init__(self, folder: Path) -> None:
        routes = http.socket_routes(SchedulerHarness([ONE_GPU]).controller, Metrics(metrics_of("allocator")))
        self.clients: list[Reading] = []

        def client(socket: Path) -> AllocatorClient:
            assert socket == SOCKET
            self.clients.append(Reading(routes))
            return self.clients[-1]

        settings = ServeSettings(certificates=folder, socket=SOCKET, metrics_access="open")
        self.service: Service = make_app(settings, client=client)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    webhook = Made(tmp_path)
    yield webhook
    webhook.service.stop()


def test_a_webhook_places_pods_without_a_socket_or_a_certificate(made: Made) -> None:
    asks, client = pod(container(gpufraction_io__gpu_memory="5Gi")), made.service.app.test_client()
    answer = client.post("/mutate", data=json.dumps(review(asks))).get_json()["response"]
    assert answer["allowed"] is True
    assert names.ALLOCATION in patched(asks, answer)["metadata"]["annotations"]
    assert client.get("/readyz").get_data(as_text=True) == (
        "the serving certificate cannot be read: FileNotFoundError\n"
    )


def test_reviews_and_scrapers_have_a_client_each(made: Made) -> None:
    assert len(made.clients) == 2


def test_a_webhook_that_is_stopped_leaves_no_thread(made: Made) -> None:
    wait_for(lambda: made.clients[0].readers, "nobody asks for the kinds of cards")
    made.service.stop()
    for reader in made.clients[0].readers:
        reader.join(5.0)
        assert not reader.is_alive()
