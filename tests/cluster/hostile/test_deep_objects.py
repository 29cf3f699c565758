"""Other users' objects that are nested more deeply than Python can decode."""

from __future__ import annotations

import time

import pytest

from playground.api.kinds.values import ADMIN
from playground.realapi.real import Real
from runtime.kubernetes import paths
from runtime.kubernetes.transport import HttpRequest
from tests.builders import pod
from tests.cluster.hostile import strangers
from tests.cluster.hostile.attack import DELAY, TENANT, Hostile

pytestmark = pytest.mark.hostile
LEVELS = 3_000
SWEEPS = 3.0
"""Seconds in which the leader lists all pods more than once, to repair what it missed."""


def deepened(hostile: Hostile, plane: Real, name: str) -> int:
    """Change the managed fields of a pod, as a user with edit rights can. Returns the status of the answer."""
    fields = '{"f:metadata":{"f:annotations":' + '{"f:a":' * LEVELS + "{}" + "}" * LEVELS + "}}"
    entry = f'{{"manager":"m","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{fields}}}'
    body = f'{{"metadata":{{"managedFields":[{entry}]}}}}'.encode()  # as text, because Python cannot encode it either
    headers = {"Accept": "application/json", "Content-Type": "application/merge-patch+json"}
    answer = plane.server.connect(ADMIN).request(
        HttpRequest("PATCH", paths.pods(TENANT, name), {}, headers, body, 60.0, False)
    )
    answer.read()
    return answer.status


def test_a_pod_with_deep_managed_fields_blinds_no_program(hostile: Hostile) -> None:
    """Every list and every watch of pods failed at this one, so no pod was placed any more."""
    plane = hostile.cluster.control_plane
    if not isinstance(plane, Real):
        pytest.skip("needs a real API server: the embedded one keeps no managed fields")
    before = max(hostile.neighbour_is_served() for _ in range(2))
    hostile.create(pod("deep").asks("gpufraction.io/gpu-memory", "1Gi"))
    assert deepened(hostile, plane, "deep") == 200
    end, took = time.monotonic() + SWEEPS, list[float]()
    while time.monotonic() < end:
        took.append(hostile.neighbour_is_served())
    assert max(took) - before < DELAY, (before, took)
    assert strangers.complaints(hostile) == []
