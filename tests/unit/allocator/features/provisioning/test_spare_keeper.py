"""
The CapacityBuffer and PodTemplate of each pool with spare nodes: created, changed, deleted, without an extra write.
"""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest

from allocator.features.provisioning.spares import Spare
from allocator.features.provisioning.wishes import PoolView
from allocator.features.provisioning.worker import SpareKeeper
from contract.model import Compute, Gpu, NodeState, Usage
from runtime.kubernetes.client import Kube
from tests.wires import Answer, Sent, Transport

JSON = dict[str, Any]
OURS = "gpufraction-system"
BUFFERS = f"/apis/autoscaling.x-k8s.io/v1beta1/namespaces/{OURS}/capacitybuffers"
TEMPLATES = f"/api/v1/namespaces/{OURS}/podtemplates"
GPU = Gpu("g-0", 0, "T4", 1 << 34, 1 << 34)
VIEW = PoolView("a", NodeState("a", (GPU,), (Usage(),), allocatable=Compute(8_000, 1 << 35, 0, 110)), 4)
LABELS = {"a": {"pool": "a"}}


class Server(Transport):
    """Keeps buffers and templates, with generations as an API server counts them."""

    def __init__(self, *, serves_buffers: bool = True) -> None:
        self.objects: dict[str, JSON] = {}
        self.written: list[tuple[str, str]] = []
        self._serves_buffers = serves_buffers

    def answer(self, sent: Sent) -> Answer:
        if sent.path.startswith(BUFFERS) and not self._serves_buffers:
            return Answer(404, {"kind": "Status", "code": 404, "reason": "NotFound", "message": "no such kind"})
        if sent.method == "GET":
            found = [each for path, each in self.objects.items() if path.startswith(f"{sent.path}/")]
            return Answer(200, {"items": copy.deepcopy(found), "metadata": {"resourceVersion": "1"}})
        path = f"{sent.path}/{sent.body['metadata']['name']}" if sent.method == "POST" else sent.path
        self.written.append((sent.method, path.removeprefix(BUFFERS).removeprefix(TEMPLATES)))
        match sent.method:
            case "POST":
                self.objects[path] = sent.body
                sent.body["metadata"].update(uid=path, generation=1)
            case "PATCH":
                for change in sent.body:
                    self.set(path, change["path"].removeprefix("/"), change["value"])
            case "DELETE":
                return Answer(200, self.objects.pop(path))
        return Answer(200, self.objects[path])

    def set(self, path: str, field: str, value: Any) -> None:
        """Write a field, as any writer does."""
        document = self.objects[path]
        if document.get(field) != value:
            document["metadata"]["generation"] += 1
        document[field] = value

    def taken(self) -> list[tuple[str, str]]:
        """What was written since the last call."""
        taken, self.written = self.written, []
        return taken


def keeper(server: Server, counted: dict[str, int] | None = None) -> SpareKeeper:
    totals = {} if counted is None else counted
    return SpareKeeper(Kube(server), totals.__setitem__)


def keep(it: SpareKeeper, *wanted: Spare) -> None:
    it.keep(wanted, [VIEW], LABELS)


BUFFER, TEMPLATE = f"{BUFFERS}/a-spare", f"{TEMPLATES}/a-spare"
MADE = [("POST", "/a-spare")] * 2
CHANGED = [("PATCH", "/a-spare")] * 2
ONE = Spare("a", 1, ())


def test_a_buffer_is_made_once_and_names_the_nodes_that_are_not_spare() -> None:
    server, counted = Server(), dict[str, int]()
    it = keeper(server, counted)
    keep(it, Spare("a", 2, ("n1",)))
    assert server.taken() == MADE
    keep(it, Spare("a", 2, ("n1",)))
    assert server.taken() == []
    assert server.objects[BUFFER]["spec"] == {"podTemplateRef": {"name": "a-spare"}, "replicas": 2}
    spec = server.objects[TEMPLATE]["template"]["spec"]
    assert spec["nodeSelector"] == {"pool": "a"}
    term = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n1"]}
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert required == {"nodeSelectorTerms": [{"matchExpressions": [term]}]}
    assert counted == {"a": 2}


def test_a_buffer_is_rewritten_when_the_plan_or_somebody_else_changes_it() -> None:
    server = Server()
    it = keeper(server)
    for wanted in (ONE, Spare("a", 1, ("n1",)), Spare("a", 2, ("n1",)), ONE):
        keep(it, wanted)
        assert server.taken() in (MADE, CHANGED)
    assert "nodeAffinity" not in server.objects[TEMPLATE]["template"]["spec"]["affinity"]
    server.objects[BUFFER]["status"] = {"replicas": 1}
    keep(it, ONE)
    assert server.taken() == []
    server.set(BUFFER, "spec", {"replicas": 99})
    keep(it, ONE)
    assert server.objects[BUFFER]["spec"]["replicas"] == 1
    del server.objects[TEMPLATE]
    keep(it, ONE)
    assert TEMPLATE in server.objects


def test_another_leader_goes_on_with_the_buffer_that_is_there() -> None:
    server = Server()
    keep(keeper(server), ONE)
    keep(keeper(server), ONE)
    assert server.taken() == MADE + CHANGED
    assert {each["metadata"]["generation"] for each in server.objects.values()} == {1}


def test_it_goes_with_the_wish_also_when_another_leader_made_it() -> None:
    server, counted = Server(), dict[str, int]()
    keep(keeper(server), ONE)
    it = keeper(server, counted)
    keep(it)
    assert server.objects == {}
    assert counted == {"a": 0}
    assert not it.keeps


def test_a_cluster_without_the_kind_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    server, counted = Server(serves_buffers=False), dict[str, int]()
    it = keeper(server, counted)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            keep(it, ONE)
    (record,) = caplog.records
    assert "--capacity-buffer-controller-enabled" in record.__dict__["reason"]
    assert counted == {"a": 0}
    assert server.written == []
