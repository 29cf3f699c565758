"""Strangers that send large, costly bodies: memory stays within the manifests' limits, and others are served."""

from __future__ import annotations

import json
import time

import pytest

from benchmarks.admission import families
from benchmarks.admission.families import filled
from playground.embedded import Embedded
from tests.cluster.hostile import strangers
from tests.cluster.hostile.attack import DELAY, Hostile

pytestmark = [pytest.mark.hostile, pytest.mark.long]

MIB = 1 << 20
LIMIT = 256 * MIB
FILLINGS = {"objects": '{"a":{}},', "lists": "[],", "words": '"ab",', "wide letters": '"\U0001f600",'}


def costly(filling: str, size: int) -> bytes:
    """A review of this many bytes, for a pod that requests a share."""
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
    """A4: before, 16 clients with bodies of 4 MiB took the webhook to 1.5 GB; its limit is 256 MiB."""
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
    """A4: bodies that could break a parser."""
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


CLIENTS = 48
ROUNDS = 6
NAMES = (
    "annotations like ours",
    "annotations near HAMi's",
    "labels near Aliyun's",
    "limits near HAMi's",
    "long names of limits",
    "containers",
    "init containers",
    "env of one limiter",
    "tolerations",
    "affinity expressions",
    "node selector",
    "owners",
    "an allocation annotation",
)
"""Families of names for which a review of 60 KiB costs up to a second."""
SMALL = {"name": "main", "image": "x", "resources": {"limits": {"gpufraction.io/gpu-memory": "1Gi"}}}


RESTS = {60 << 10: 8.0, 2900 << 10: 480.0}
"""
Seconds that a tenant's client waits between two dry runs, by their bytes. An API server with two processors needs 0.06
and 3 seconds of processor time for each of these pods, with and without gpufraction. The crowd leaves it most of that
time.
"""
LONG_FOR_THE_API_SERVER = {
    60 << 10: {"long names of limits"},
    2900 << 10: {"long names of limits", "limits near HAMi's", "containers", "init containers"},
}
"""Families for which kube-apiserver itself takes longer than that, up to 24 s. Strangers at the port send them too."""


@pytest.mark.timeout(400)
@pytest.mark.parametrize("tenants", [False, True], ids=["strangers at the port", "dry runs of tenants"])
@pytest.mark.parametrize(
    "size", [60 << 10, pytest.param(2900 << 10, marks=pytest.mark.storm)], ids=lambda size: f"{size >> 10}KiB"
)
def test_a_crowd_with_costly_names_delays_no_other_review_by_a_second(
    hostile: Hostile, size: int, tenants: bool
) -> None:
    """Before, each unknown name was compared with each known one: 4 reviews of 27 KB a second stopped all admission."""
    if tenants and isinstance(hostile.cluster.control_plane, Embedded):
        pytest.skip("needs a real API server: the embedded one takes seconds to check each of these pods")
    families_sent = [name for name in NAMES if not tenants or name not in LONG_FOR_THE_API_SERVER[size]]
    pods = [filled(family, size) for family in families_sent]
    bodies = [json.dumps(pod).encode() if tenants else families.review(pod) for pod in pods]
    rests = RESTS[size] if tenants else 0.0
    before = max(hostile.neighbour_is_served() for _ in range(3))
    with strangers.Crowd(hostile, CLIENTS, bodies, tenants=tenants, rests=rests) as crowd:
        assert crowd.is_at_work()
        each_sent_once = time.monotonic() + rests * len(bodies) / CLIENTS
        by_replica = [strangers.served_by_each(hostile, SMALL) for _ in range(ROUNDS)]
        through = [hostile.neighbour_is_served() for _ in range(ROUNDS)]
        while time.monotonic() < each_sent_once:
            by_replica.append(strangers.served_by_each(hostile, SMALL))
            through.append(hostile.neighbour_is_served())
        assert strangers.probes_answer(hostile) == []
    print(f"{crowd.found}; by replica {by_replica}; through the API server {through}, before {before}")
    assert crowd.found
    assert max(took for each in by_replica for took in each) < DELAY, by_replica
    assert max(through) - before < DELAY, (before, through)
    assert strangers.complaints(hostile) == []
