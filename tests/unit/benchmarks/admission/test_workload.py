"""The benchmark sends what it claims to send: all dialects, real pods, a fair mix, the same every time."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import Any

import pytest

from allocator.engine.reference import Placement, Unschedulable
from benchmarks.admission import quiet, workload
from benchmarks.admission.load import outcome
from benchmarks.decisions import mix
from benchmarks.decisions.world import World
from contract import kinds, names
from contract.dialects import DIALECTS
from contract.encoding.quantity import GIB
from contract.model import PodRequest
from contract.options import Options
from playground.api.kinds.values import ADMIN
from runtime.kubernetes.client import Kube

JSON = dict[str, Any]


def test_there_are_sixty_request_shapes_and_no_two_are_alike() -> None:
    shapes = mix.shapes(random.Random(1))
    assert len(set(shapes)) == len(shapes) == 60
    assert len({ask.needs for ask in shapes}) >= 50
    assert sum(ask.request.containers[0].count > 1 for ask in shapes) == 6
    assert sum(len(ask.request.containers) > 1 for ask in shapes) == 6
    assert mix.shapes(random.Random(1)) == shapes


def test_every_shape_fits_a_loaded_cluster_unless_it_is_called_unplaceable() -> None:
    world = World(nodes=60, sharers=960, rng=random.Random(1))
    decide = world.cluster.engine.decide
    placed = [isinstance(decide(ask), Placement) for ask in mix.shapes(random.Random(1))]
    assert sum(placed) >= 50
    assert [r.what for r in mix.unplaceable() if not isinstance(decide(r.ask), Unschedulable)] == []


def test_a_world_stays_consistent_and_as_full_as_it_was() -> None:
    rng = random.Random(1)
    world = World(nodes=12, sharers=192, rng=rng)
    held = len(world.cluster.ledger)
    shapes = mix.shapes(rng)
    for number in range(60):
        ask = shapes[number]
        decision = world.cluster.engine.decide(ask)
        if isinstance(decision, Placement):
            world.book(ask, decision)
            world.release_one()
        world.update_a_node()
    world.replace_a_node()
    world.cluster.check_invariants()
    assert len(world.cluster.ledger) == held == 192


def test_pods_ask_in_every_dialect_and_one_in_twenty_for_more_than_there_is() -> None:
    read = [_request(workload.pod(n, namespace="x", wanted=workload.limits(n))) for n in range(40)]
    assert {request.dialect for request in read} == {"native", "aliyun", "hami", "nano"}
    assert [n for n, request in enumerate(read) if request.containers[0].memory == 80 * GIB] == [19, 39]


def _request(pod: JSON) -> PodRequest:
    found = DIALECTS.read(pod, Options())
    assert isinstance(found, PodRequest), found
    return found


def test_reviews_are_whole_and_each_has_its_own_uid() -> None:
    reviews = [json.loads(body) for body in workload.reviews(30, namespace="tenant")]
    assert len({review["request"]["uid"] for review in reviews}) == 30
    assert {review["request"]["object"]["metadata"]["namespace"] for review in reviews} == {"tenant"}


def test_a_quiet_cluster_holds_its_sharers() -> None:
    plane = quiet.Quiet(nodes=3, sharers=48, others=10)
    plane.start()
    try:
        pods = plane.api.call("GET", "/api/v1/pods")[1]["items"]
        gpunodes = plane.api.call("GET", f"/apis/{names.GPUNODE_GROUP_VERSION}/{names.GPUNODE_PLURAL}")[1]["items"]
    finally:
        plane.stop()
    sharing = [pod for pod in pods if names.ALLOCATION in pod["metadata"]["annotations"]]
    assert (len(pods), len(sharing), len(gpunodes)) == (58, 48, 3)
    assert len({json.loads(p["metadata"]["annotations"][names.ALLOCATION])["id"] for p in sharing}) == 48


def test_recorded_lists_are_those_of_the_moment_until_they_are_live(tmp_path: Path) -> None:
    plane = quiet.Quiet(nodes=3, sharers=700, others=10)
    plane.start()
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(plane.kubeconfig(ADMIN))
    kube = Kube.connect(kubeconfig=str(kubeconfig))
    try:
        before = kube.list("/api/v1/pods", of=kinds.PODS)
        plane.record()
        at_once = {"gracePeriodSeconds": "0"}
        assert plane.api.call("DELETE", "/api/v1/namespaces/loaded/pods/other-000001", query=at_once)[0] == 200
        recorded = kube.list("/api/v1/pods", of=kinds.PODS)
        plane.live()
        after = kube.list("/api/v1/pods", of=kinds.PODS)
    finally:
        plane.stop()
    assert (len(before.items), recorded.items == before.items, len(after.items)) == (710, True, 709)


def _answer(**response: object) -> bytes:
    return json.dumps({"response": {"uid": "u", "allowed": True, **response}}).encode()


def _patch(*operations: JSON) -> str:
    return base64.b64encode(json.dumps(operations).encode()).decode()


GATE = {"name": names.GATE}
OUTCOMES = {
    "no patch": (200, _answer(), "untouched"),
    "refused": (200, _answer(allowed=False), "denied"),
    "a pin": (200, _answer(patch=_patch({"op": "add", "path": "/spec/nodeName", "value": "n"})), "placed"),
    "our gate": (200, _answer(patch=_patch({"op": "add", "path": "/spec/schedulingGates", "value": [GATE]})), "gated"),
    "our gate beside another": (
        200,
        _answer(patch=_patch({"op": "add", "path": "/spec/schedulingGates/1", "value": GATE})),
        "gated",
    ),
    "a fault": (500, b"", "status 500"),
}


@pytest.mark.parametrize(("status", "body", "want"), OUTCOMES.values(), ids=OUTCOMES)
def test_outcome(status: int, body: bytes, want: str) -> None:
    assert outcome(status, body) == want
