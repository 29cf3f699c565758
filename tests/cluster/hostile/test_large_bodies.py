"""Strangers that send large bodies, made to be costly: memory stays within the manifests' limits, others are served."""

from __future__ import annotations

import json

import pytest

from tests.cluster.hostile import strangers
from tests.cluster.hostile.attack import DELAY, Hostile

pytestmark = pytest.mark.hostile

MIB = 1 << 20
LIMIT = 256 * MIB
FILLINGS = {"objects": '{"a":{}},', "lists": "[],", "words": '"ab",', "wide letters": '"\U0001f600",'}


def costly(filling: str, size: int) -> bytes:
    """A review of that many bytes, of a pod that asks for a share."""
    pod = {
        "metadata": {"name": "large", "namespace": "default"},
        "spec": {
            "containers": [
                {"name": "main", "image": "x", "resources": {"limits": {"gpufraction.io/gpu-memory": "1Gi"}}}
            ],
            "filling": "FILLING",
        },
    }
    empty = strangers.review(pod, dryRun=True).decode()
    room = size - len(empty)
    return empty.replace('"FILLING"', "[" + filling * (room // len(filling.encode())) + "0]").encode()


@pytest.mark.parametrize("size", [4 * MIB, 3 * MIB - 100, MIB, 64 << 10], ids=lambda size: f"{size >> 10}KiB")
def test_sixteen_clients_with_large_bodies_take_no_more_memory_than_there_is(hostile: Hostile, size: int) -> None:
    """A4: 16 clients with bodies of 4 MiB took the webhook to 1.5 GB, where its limit is 256 MiB."""
    before = max(hostile.neighbour_is_served() for _ in range(3))
    bodies = [costly(filling, size) for filling in FILLINGS.values()]
    with strangers.Crowd(hostile, 16, bodies) as crowd:
        took = [hostile.neighbour_is_served() for _ in range(5)]
        assert strangers.probes_answer(hostile) == []
    assert max(took) - before < DELAY, (before, took)
    assert set(crowd.found) <= {"200", "413", "503"}, crowd.found
    if size > 3 * MIB:
        assert set(crowd.found) == {"413"}
    peaks = {name: peak for name, peak in hostile.footprint.peaks.items() if name.startswith("webhook")}
    assert max(peaks.values()) < LIMIT, peaks
    assert strangers.complaints(hostile) == []


def test_a_body_that_is_not_a_review_is_refused_and_nothing_else(hostile: Hostile) -> None:
    """A4: what a parser could choke on."""
    context = strangers.trusting(hostile)
    port = hostile.cluster.replicas[0].webhook_port
    deep = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    wrong = {
        "nothing": b"",
        "no JSON": b"{",
        "too deep": deep,
        "deep lists": b"[" * 100_000 + b"]" * 100_000,
        "zeros": b"\0" * MIB,
        "a long number": b"1" * MIB,
        "no text": b"\xff" * MIB,
        "half of a letter": b'"\\ud800' * 1000,
        "another object": json.dumps({"kind": "List"}).encode(),
    }
    found = {name: strangers.post(port, context, body)[0] for name, body in wrong.items()}
    assert set(found.values()) <= {400, 413}, found
    assert strangers.complaints(hostile) == []
