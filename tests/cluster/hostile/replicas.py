"""Which replica leads, an API server that asks only one replica, and reviews that go directly to a replica's port."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Iterator
from typing import Any

from playground.programs.probes import unverified
from playground.waiting import wait_for
from runtime.kubernetes.client import KubeForbidden, KubeInvalid, KubeUnavailable
from tests.builders import pod
from tests.cluster.hostile.attack import Hostile

JSON = dict[str, Any]
_CACHED = 0.5
"""Seconds after which an answer of `/metrics` is a new one, on a machine that is not overloaded."""


def leader(hostile: Hostile) -> int:
    """The number of the replica that leads; waits until one does."""
    found: list[int] = []

    def one_leads() -> bool:
        numbers = [replica.number for replica in hostile.cluster.replicas]
        found[:] = [number for number in numbers if hostile.figures(number).get("gpufraction_leader") == 1]
        return len(found) == 1

    wait_for(one_leads, lambda: f"these replicas lead: {found}")
    return found[0]


@contextlib.contextmanager
def asking(hostile: Hostile, *, leads: bool) -> Iterator[int]:
    """Inside this context the API server asks one replica: either the leader, or one that does not lead."""
    number = leader(hostile)
    if not leads:
        number = next(replica.number for replica in hostile.cluster.replicas if replica.number != number)
    _ask_only(hostile, number)
    try:
        yield number
    finally:
        _ask_only(hostile, None)


def _ask_only(hostile: Hostile, number: int | None) -> None:
    """
    This cuts the connections that the API server keeps. A review that it is about to send on one of them fails, so no
    review is sent until it has noticed.
    """
    hostile.cluster.ask_only(number)

    def asks() -> bool:
        try:
            hostile.create(pod("probe").asks("gpufraction.io/gpu-memory", "1Mi"), dry_run=True)
        except KubeUnavailable:
            return False
        except (KubeForbidden, KubeInvalid):  # refused by a quota or a policy, after the webhook was asked
            return True
        return True

    wait_for(lambda: asks() and asks(), "the API server does not reach the replica")


def post(hostile: Hostile, replica: int, body: bytes, *, path: str = "/mutate") -> tuple[int, JSON]:
    """The answer that a stranger gets at a replica's port."""
    port = hostile.cluster.replicas[replica].webhook_port
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=unverified())
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"{}")
    finally:
        connection.close()


def asked(hostile: Hostile, replica: int) -> dict[str, float]:
    """
    How often a replica's webhook got each answer from its allocator, by the answer.

    Metrics are cached for a multiple of the time that they take to compute, so this waits until they are equal twice.
    """
    found = [_asked(hostile, replica)]

    def settled() -> bool:
        time.sleep(_CACHED)
        found.append(_asked(hostile, replica))
        return found[-1] == found[-2]

    wait_for(settled, lambda: f"the figures do not settle: {found[-2:]}")
    return found[-1]


def _asked(hostile: Hostile, replica: int) -> dict[str, float]:
    lines = hostile.cluster.metrics(replica, of="webhook", timeout=20).splitlines()
    name = 'gpufraction_allocator_questions_total{answer="'
    return {line[len(name) :].split('"')[0]: float(line.split()[-1]) for line in lines if line.startswith(name)}
