"""Requesting nodes: what is written, and what administrators see of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from allocator.cache import templates
from allocator.cache.podinfo import pod_event
from allocator.features.provisioning.packing import Packer, Packing, PoolRoom
from allocator.features.provisioning.settings import ProvisioningSettings
from allocator.features.provisioning.worker import PoolReport, Provisioner
from allocator.queue.records import EventRecord
from allocator.scheduler.events import NodeChanged, PoolsDeclared
from contract.encoding.quantity import GIB
from contract.metrics import metrics_of
from contract.model import NodeState
from contract.nodes import pool_status
from contract.nodes.attributes import facts, trim
from contract.nodes.pool_status import PoolsStatus
from contract.options import pool_options
from contract.reasons.gpunodes import NodeEventReason
from contract.scheduling.filters import Limits
from contract.scheduling.needs import SchedulingRequest
from runtime.kubernetes.client import Kube, KubeError
from runtime.metrics import Metrics
from tests.builders import node, pod
from tests.unit.allocator.harness import SchedulerHarness, admitted
from tests.wires import Wire, status_body

JSON = dict[str, Any]
NODE = {"gpus": 1, "model": "T4", "gpuMemory": "16Gi", "cpu": 8, "memory": "32Gi", "max": 3}
POOLS = {
    "pools": [
        {"name": "t4", "nodeSelector": {"matchLabels": {"pool": "t4"}}, "node": NODE},
        {"name": "dark", "nodeSelector": {"matchLabels": {"pool": "dark"}}, "node": {"max": 1}},
    ]
}
OPTIONS = pool_options(POOLS)
NAMESPACE = "/api/v1/namespaces/gpufraction-system"
AUTOSCALING = "/apis/autoscaling.x-k8s.io/v1/namespaces/gpufraction-system"
STARTED = 1_767_600_000.0
"""2026-01-05T08:00:00Z."""
CREATED = "2026-01-05T08:00:01Z"


class Shelf:
    """An API server that stores what it gets, and refuses what it is told to, by path or by method and path."""

    def __init__(self) -> None:
        self.objects: dict[str, JSON] = {}
        self.refuses: dict[str, int] = {}
        self.published: list[PoolsStatus] = []

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "",
    ) -> tuple[int, JSON]:
        refused = self.refuses.get(path) or self.refuses.get(f"{method} {path}")
        if refused is not None:
            return refused, status_body(refused, "Refused", "you may not")
        match method:
            case "GET":
                items = [made for at, made in self.objects.items() if at.startswith(f"{path}/")]
                return 200, {"items": items, "metadata": {"resourceVersion": "1"}}
            case "POST":
                made = body | {"metadata": body["metadata"] | {"creationTimestamp": CREATED}}
                self.objects[f"{path}/{made['metadata']['name']}"] = made
                return 201, made
            case "DELETE":
                self.objects.pop(path, None)
                return 200, {}
            case _:
                assert path == f"{NAMESPACE}/configmaps/gpufraction-pools"
                self.published.append(pool_status.read(body["data"][pool_status.FILE]))
                return 200, {}


class Poisoned(Packer):
    """Fails as soon as a pod of this many bytes is among the waiting ones."""

    def __init__(self, memory: int) -> None:
        super().__init__(Limits(48))
        self._memory = memory

    def _look(self, asks: Sequence[SchedulingRequest]) -> None:
        if any(fraction.memory == self._memory for each in asks for fraction in each.request.containers):
            raise ZeroDivisionError("made up")

    def pack(
        self, asks: Sequence[SchedulingRequest], coming: Sequence[NodeState], pools: Sequence[PoolRoom]
    ) -> Packing:
        self._look(asks)
        return super().pack(asks, coming, pools)

    def serves(self, pool: str, empty: NodeState, ask: SchedulingRequest) -> bool:
        self._look([ask])
        return super().serves(pool, empty, ask)


class Bench:
    """The provisioner, with a pod that waits for a node of the pool t4."""

    def __init__(self, packer: Packer | None = None, *, placeholders: bool = False) -> None:
        self.faults: list[str] = []
        self.shelf, self.recorded, self.now = Shelf(), list[EventRecord](), STARTED
        self.harness = SchedulerHarness([node("other").gpus(1, mib=4_000)])
        self.metrics = Metrics(metrics_of("allocator"))
        kube = Kube(Wire(self.shelf))
        self.report = PoolReport(kube, self.metrics)
        self.provisioner = Provisioner(
            kube=kube,
            controller=self.harness.controller,
            part=self.harness.provisioning,
            options=lambda: OPTIONS,
            settings=ProvisioningSettings(placeholders=placeholders, after=0.0),
            limits=Limits(48),
            report=self.report,
            tell=self.recorded.append,
            now=lambda: self.now,
            word=lambda: "x",
            packer=packer,
            faulted=self._faulted,
        )
        self.harness.controller.handle(PoolsDeclared(templates.empty_nodes(OPTIONS, (), 48)))
        waits = pod("p").uid("u1").asks("gpufraction.io/gpu-memory", "8Gi")
        self.harness.controller.handle(pod_event(admitted(waits, gated=True)))

    def _faulted(self, place: str, about: str) -> str:
        self.faults.append(place)
        return "fault"

    def passes(self, after: float = 0.0) -> None:
        """Time passes, then the queue is tried and one pass is made."""
        self.now += after
        self.harness.controller.schedule_pending()
        assert self.provisioner.once()

    def states(self) -> list[str]:
        return [pool.state for pool in self.shelf.published[-1].pools]

    def gauges(self, name: str) -> list[str]:
        lines = self.metrics.render().decode().splitlines()
        return [line.removeprefix(name) for line in lines if line.startswith(f"{name}{{") and not line.endswith(" 0.0")]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_administrators_see_what_is_requested(bench: Bench) -> None:
    bench.passes()
    assert bench.states() == ["asked", "unknown"]
    assert f"{AUTOSCALING}/provisioningrequests/t4-x" in bench.shelf.objects
    assert bench.gauges("gpufraction_nodes_wanted") == ['{pool="t4"} 1.0']
    assert bench.gauges("gpufraction_pool_blocked") == ['{pool="dark",reason="unknown"} 1.0']


def test_the_status_is_written_when_it_changes_and_once_a_minute(bench: Bench) -> None:
    bench.passes()
    bench.passes(2)
    written = len(bench.shelf.published)
    for _ in range(20):
        bench.passes(2)
    assert len(bench.shelf.published) == written
    bench.passes(20)
    assert len(bench.shelf.published) == written + 1


def test_what_a_pool_did_not_give_is_reported_and_counted(bench: Bench) -> None:
    bench.passes()
    bench.passes(901)
    [t4, _] = bench.shelf.published[-1].pools
    assert (t4.state, t4.outcome, t4.failures, t4.until) == ("paused", "too-late", 1, bench.now + 60)
    assert bench.gauges("gpufraction_pool_failures") == ['{pool="t4"} 1.0']
    assert '{pool="t4",reason="paused"} 1.0' in bench.gauges("gpufraction_pool_blocked")
    assert bench.gauges("gpufraction_nodes_wanted") == []


def test_a_node_that_came_without_gpus_is_reported_on_the_node(bench: Bench) -> None:
    bench.passes()
    come = replace(facts(trim(node("n1").labelled("pool", "t4").json())), created=STARTED + 30)
    bench.harness.controller.handle(NodeChanged(come))
    bench.passes(60)
    assert (bench.states()[0], bench.recorded) == ("coming", [])
    bench.passes(900)
    assert bench.recorded == [
        EventRecord(
            "Node",
            "n1",
            "n1",
            NodeEventReason.WITHOUT_GPUS,
            "15 min after the node was requested for pods that wait for pool t4, it cannot serve any: no GPUs are "
            "published for it. Check the node agent's pod there: kubectl -n gpufraction-system get pods -o wide",
        )
    ]
    bench.passes(2)
    assert len(bench.recorded) == 1, "its request has ended"


def test_where_no_request_is_possible_administrators_see_why(bench: Bench) -> None:
    bench.shelf.refuses[f"{AUTOSCALING}/provisioningrequests"] = 404
    bench.passes()
    status = bench.shelf.published[-1]
    assert status.trouble.startswith("ProvisioningRequests are not served")
    assert (status.pools[0].state, status.pools[0].why) == ("not-asked", status.trouble)


def test_a_request_that_is_refused_is_shown(bench: Bench) -> None:
    bench.shelf.refuses[f"POST {NAMESPACE}/podtemplates"] = 403
    bench.passes()
    [t4, _] = bench.shelf.published[-1].pools
    assert (t4.state, "you may not" in t4.why) == ("not-asked", True)


def test_a_node_that_the_watch_has_not_shown_yet_counts_as_one_of_the_pool(bench: Bench) -> None:
    """A request ends when its nodes have come. An allocator that sees neither would exceed the pool's limit."""
    come = trim(node("n1").labelled("pool", "t4").json())
    bench.shelf.objects["/api/v1/nodes/n1"] = come
    bench.passes()
    [t4, _] = bench.shelf.published[-1].pools
    assert (t4.state, "the watch has not shown yet" in t4.why) == ("not-asked", True)
    assert not [path for path in bench.shelf.objects if path.startswith(AUTOSCALING)]
    bench.harness.controller.handle(NodeChanged(replace(facts(come), created=STARTED - 3_600)))
    bench.passes(2)
    assert f"{AUTOSCALING}/provisioningrequests/t4-x" in bench.shelf.objects


def test_a_node_of_no_pool_is_not_waited_for(bench: Bench) -> None:
    bench.shelf.objects["/api/v1/nodes/n1"] = trim(node("n1").labelled("pool", "other").json())
    bench.passes()
    assert f"{AUTOSCALING}/provisioningrequests/t4-x" in bench.shelf.objects


def test_a_status_that_cannot_be_written_holds_nothing_up(bench: Bench) -> None:
    bench.shelf.refuses[f"{NAMESPACE}/configmaps/gpufraction-pools"] = 403
    bench.passes()
    assert f"{AUTOSCALING}/provisioningrequests/t4-x" in bench.shelf.objects


def test_a_pod_of_which_an_error_comes_keeps_no_other_from_its_node() -> None:
    bench = Bench(Poisoned(5 * GIB))
    poison = pod("poison").uid("u2").asks("gpufraction.io/gpu-memory", "5Gi")
    bench.harness.controller.handle(pod_event(admitted(poison, gated=True)))
    bench.passes()
    bench.passes()
    assert f"{AUTOSCALING}/provisioningrequests/t4-x" in bench.shelf.objects
    assert bench.faults == ["provisioning"], "one error, and the pod is left out from then on"


def test_a_deletion_that_fails_counts_as_one_failure_however_often_it_is_tried(bench: Bench) -> None:
    bench.passes()
    bench.shelf.refuses[f"DELETE {AUTOSCALING}/provisioningrequests/t4-x"] = 403
    for _ in range(3):
        with pytest.raises(KubeError):
            bench.passes(901.0)
    del bench.shelf.refuses[f"DELETE {AUTOSCALING}/provisioningrequests/t4-x"]
    bench.passes(1.0)
    assert bench.shelf.published[-1].pools[0].failures == 1


def test_a_replica_that_decides_no_more_says_nothing_of_pools(bench: Bench) -> None:
    bench.passes()
    bench.report.clear()
    assert bench.gauges("gpufraction_nodes_wanted") == []
    assert json.dumps(bench.gauges("gpufraction_pool_blocked")) == "[]"


def replica(name: str, image: str, created: str) -> JSON:
    containers = [{"name": "webhook", "image": "other"}, {"name": "allocator", "image": image}]
    return {"metadata": {"name": name, "creationTimestamp": created}, "spec": {"containers": containers}}


@pytest.mark.parametrize(
    ("replicas", "wanted"),
    [
        (
            (
                replica("old", "r.example/gpufraction:0.1.0", "2026-01-04T08:00:00Z"),
                replica("young", "r.example/gpufraction:0.2.0", "2026-01-05T08:00:00Z"),
            ),
            "r.example/gpufraction:0.2.0",
        ),
        ((), "gpufraction"),
    ],
)
def test_placeholders_have_the_image_of_the_allocator(replicas: tuple[JSON, ...], wanted: str) -> None:
    bench = Bench(placeholders=True)
    bench.shelf.refuses[f"{AUTOSCALING}/provisioningrequests"] = 404
    bench.shelf.objects.update({f"{NAMESPACE}/pods/{each['metadata']['name']}": each for each in replicas})
    bench.passes()
    made = [each for at, each in bench.shelf.objects.items() if at.startswith(f"{NAMESPACE}/pods/t4-")]
    assert [each["spec"]["containers"][0]["image"] for each in made] == [wanted]
