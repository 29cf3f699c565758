"""Strangers that open connections and are slow: reviews, probes and other tenants' pods are not affected."""

from __future__ import annotations

import contextlib
import ssl
import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.hostile import strangers
from tests.cluster.hostile.attack import DELAY, Hostile
from tests.cluster.hostile.strangers import HELLO, plain, secured

pytestmark = pytest.mark.hostile

CLIENTS = 100
Opened = Callable[[int, ssl.SSLContext], Any]
BODY = b"POST /mutate HTTP/1.1\r\nContent-Length: 100000\r\n\r\n" + b"{" * 1000
MUCH = b"GET /healthz HTTP/1.1\r\n\r\n" * 2000
"""More answers than the buffers of a connection can hold."""
SLOW: dict[str, Opened] = {
    "silent": lambda port, context: plain(port),
    "within the handshake": lambda port, context: plain(port, HELLO),
    "after the handshake": secured,
    "within the headers": lambda port, context: secured(port, context, b"POST /mutate HTTP/1.1\r\nX: "),
    "within the body": lambda port, context: secured(port, context, BODY),
    "taking no answer": lambda port, context: secured(port, context, MUCH),
}


@pytest.mark.long
@pytest.mark.parametrize("opened", SLOW.values(), ids=SLOW.keys())
def test_a_hundred_slow_clients_delay_nobody(hostile: Hostile, opened: Opened) -> None:
    """A4: before, 32 half-open handshakes stopped all reviews and the probes."""
    before = max(hostile.neighbour_is_served() for _ in range(3))
    context = strangers.trusting(hostile)
    ports = [replica.webhook_port for replica in hostile.cluster.replicas]
    with strangers.holding(lambda port: opened(port, context), ports, CLIENTS):
        time.sleep(0.5)  # until they are connected
        took = [hostile.neighbour_is_served() for _ in range(3)]
        assert strangers.probes_answer(hostile) == []
    # A client that blocks a server delays every review. A single late review is due to this machine's own hundreds of
    # handshakes.
    assert statistics.median(took) - before < DELAY, (before, took)
    assert strangers.complaints(hostile) == []


def _saying(sent: bytes) -> Callable[[int], Any]:
    return lambda port: plain(port, sent)


def test_slow_clients_of_the_ports_for_probes_keep_no_probe_waiting(hostile: Hostile) -> None:
    """A4: the same on the other ports."""
    ports = [port for replica in hostile.cluster.replicas for port in (replica.health_port, replica.allocator_port)]
    for sent in (b"", b"GET /metrics HTTP/1.1\r\nX: ", MUCH, b"POST / HTTP/1.1\r\nContent-Length: 4000000\r\n\r\n{"):
        with strangers.holding(_saying(sent), ports, CLIENTS):
            time.sleep(0.5)  # until they are connected
            assert strangers.probes_answer(hostile) == []
            hostile.neighbour_is_served()


def test_connections_that_end_in_any_state_are_nothing_to_log(hostile: Hostile) -> None:
    """C12: before, gunicorn logged a traceback when an idle connection ended."""
    context = strangers.trusting(hostile)
    idle: Opened = lambda port, context: secured(port, context, b"GET /healthz HTTP/1.1\r\n\r\n")  # noqa: E731
    for replica in hostile.cluster.replicas:
        for opened in (*SLOW.values(), idle):
            for _ in range(3):
                with contextlib.closing(opened(replica.webhook_port, context)):
                    time.sleep(0.05)  # let the server see the connections
    hostile.neighbour_is_served()
    assert strangers.complaints(hostile) == []
