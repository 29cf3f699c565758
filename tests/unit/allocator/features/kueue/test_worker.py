"""The worker that answers Kueue's check: lost answers, other versions, other leaders, and clusters without Kueue."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from allocator.engine.reference import DEFAULT_POLICY
from allocator.features.kueue.claims import TemplateClaimReader
from allocator.features.kueue.judge import TemplateReading
from allocator.features.kueue.settings import FitsSettings
from allocator.features.kueue.worker import FitsWorker
from allocator.workers.claim_reader import ClaimReader
from contract import names
from contract.model import DeviceRequest
from contract.scheduling.filters import DEFAULT_LIMITS
from playground.api.api import Api
from playground.api.http.server import HttpsServer
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube
from runtime.kubernetes.errors import KubeTimeout
from runtime.kubernetes.transport import HttpRequest, Response, Transport, connect_transport
from tests.builders import node, pod
from tests.cluster.hostile.reserving import KINDS, Reserving, definition
from tests.unit.allocator.harness import SchedulerHarness
from tests.unit.allocator.workers.test_share_claims import spec_of
from tests.wires import Answer, Fate, status_body

JSON = dict[str, Any]
EIGHT = pod("w").asks("gpufraction.io/gpu-memory", "8Gi").needs(cpu="100m")
NODES = [node("a").gpu("T4", mib=16 << 10), node("b").gpu("T4", mib=16 << 10)]


class Late:
    """The answer to a watch, whose events do not arrive before `opened` is set."""

    def __init__(self, to: Response, opened: threading.Event) -> None:
        self._to, self._opened = to, opened
        self.status, self.headers = to.status, to.headers

    def read(self, most: int | None = None) -> bytes:
        return self._to.read(most)

    def chunks(self) -> Iterator[bytes]:
        for chunk in self._to.chunks():
            self._opened.wait()
            yield chunk

    def close(self) -> None:
        self._to.close()


class Way(Transport):
    """The connection to the API server, on which the answers to writes of a Workload have fates."""

    def __init__(self, to: Transport) -> None:
        self._to = to
        self.fates: list[Fate] = []
        self.requests: list[str] = []
        self.answers = 0
        """The writes of a Workload so far."""
        self.watched = threading.Event()
        """Whether events reach the watches. Otherwise they wait, in order."""
        self.watched.set()
        self.holds_watches = False
        """Whether the next write of a Workload clears `watched`."""

    def request(self, request: HttpRequest) -> Response:
        self.requests.append(f"{request.method} {request.path}")
        if request.stream:
            return Late(self._to.request(request), self.watched)
        answers = request.method == "PATCH" and "/workloads/" in request.path
        if answers:
            self.answers += 1
            if self.holds_watches:
                self.watched.clear()
                self.holds_watches = False
        fate = self.fates.pop(0) if answers and self.fates else "answered"
        if fate == "refused":
            return Answer(403, status_body(403, "Forbidden"))
        if fate == "dropped":
            raise KubeTimeout("no answer")
        response = self._to.request(request)
        if fate == "lost-and-done":
            response.read()
            raise KubeTimeout("no answer")
        return response


class Bench:
    """A worker and an API server; the test runs each step."""

    def __init__(self, server: HttpsServer, path: str) -> None:
        self.now, self.takes = 100.0, 0.0
        self.scheduler = SchedulerHarness(nodes=NODES)
        to = connect_transport(kubeconfig=path, context=None, user_agent="test")
        self.way = Way(to)
        self.reserving = Reserving(Kube(to))
        self.faults: list[str] = []
        self.counted: list[str] = []
        self.worker = FitsWorker(
            kube=Kube(self.way),
            controller=self.scheduler.controller,
            limits=DEFAULT_LIMITS,
            policy=DEFAULT_POLICY,
            settings=FitsSettings(),
            rejects=True,
            nodes_within=None,
            reading=self._reading,
            timeout=5.0,
            claims=TemplateClaimReader(ClaimReader(Kube(self.way), version=(1, 36))),
            clock=lambda: self.now,
            counted=self.counted.append,
            faulted=lambda place, about: self.faults.append(about) or "id",  # type: ignore[func-returns-value]
        )

    def serve(self, namespace: str, how: str | None = names.INJECT_ENABLED, *, label: str = names.INJECT_LABEL) -> None:
        """Label the namespace."""
        labels = {"metadata": {"labels": {str(label): how}}}
        self.reserving.kube.patch_merge(paths.namespaces(namespace), labels)

    def _reading(self) -> TemplateReading:
        self.now += self.takes
        return TemplateReading()

    def answer(self, name: str) -> str:
        return str(self.reserving.answer(name)["state"])

    def answered_by_another(self, name: str) -> None:
        """Another replica has answered Ready."""
        entry = {**self.reserving.answer(name), "state": "Ready"}
        other = {"name": "another", "state": "Ready", "message": "", "lastTransitionTime": entry["lastTransitionTime"]}
        where = self.reserving.path("workloads", name, "status")
        self.reserving.kube.patch_merge(where, {"status": {"admissionChecks": [other, entry]}})

    def turn(self) -> None:
        """Run the scheduling loop, and then the worker."""
        self.scheduler.controller.schedule_pending()
        self.worker.once()

    def until(self, name: str, state: str) -> None:
        """Run turns until the answer is this."""

        def turned() -> bool:
            self.turn()
            return self.answer(name) == state

        wait_for(turned, lambda: f"{name} is {self.reserving.answer(name)}", 15)

    def turns(self, number: int = 10) -> None:
        """Run some turns with time for the watches in between."""
        for _ in range(number):
            self.turn()
            time.sleep(0.03)


@pytest.fixture
def bare(tmp_path: Any) -> Iterator[Bench]:
    """Without Kueue's kinds."""
    with HttpsServer(Api()) as server:
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(server.kubeconfig())
        bench = Bench(server, str(kubeconfig))
        yield bench
        bench.way.watched.set()
        bench.worker.stop()
        assert bench.faults == []


@pytest.fixture
def bench(bare: Bench) -> Bench:
    bare.reserving.install()
    bare.serve("default")

    def active() -> bool:
        bare.turn()
        return bare.reserving.is_active()

    wait_for(active, "the check is not active", 15)
    return bare


def test_an_answer_that_was_written_though_it_was_lost_is_kept(bench: Bench) -> None:
    bench.way.fates = ["lost-and-done"]
    bench.reserving.reserve("one", ("main", 3, EIGHT))
    bench.until("one", "Ready")
    bench.reserving.reserve("two", ("main", 2, EIGHT))
    bench.until("two", "Retry")
    assert bench.answer("one") == "Ready"


def test_an_answer_is_kept_though_it_was_repeated_before_the_watch_shows_it(bench: Bench) -> None:
    """The repeated write is refused then, because the first one has changed the version that both name."""
    bench.way.fates, bench.way.holds_watches = ["lost-and-done"], True
    bench.reserving.reserve("one", ("main", 3, EIGHT))

    def repeated() -> bool:
        bench.turn()
        return bench.way.answers == 2

    wait_for(repeated, "it is not repeated")
    bench.way.watched.set()
    bench.reserving.reserve("two", ("main", 2, EIGHT))
    bench.until("two", "Retry")
    assert bench.answer("one") == "Ready"


def test_an_answer_that_was_lost_before_it_arrived_is_given_again(bench: Bench) -> None:
    bench.way.fates = ["dropped"]
    bench.reserving.reserve("one", ("main", 3, EIGHT))
    bench.until("one", "Ready")
    assert bench.way.fates == []
    bench.reserving.reserve("two", ("main", 2, EIGHT))
    bench.until("two", "Retry")


def test_an_answer_that_is_refused_promises_nothing_and_is_not_repeated_at_once(bench: Bench) -> None:
    bench.way.fates = ["refused"]
    bench.reserving.reserve("one", ("main", 3, EIGHT))

    def refused() -> bool:
        bench.turn()
        return not bench.way.fates

    wait_for(refused, "it is not answered")
    bench.reserving.reserve("two", ("main", 4, EIGHT))
    bench.until("two", "Ready")
    assert bench.answer("one") == "Pending"
    bench.now += 60
    bench.until("one", "Ready")


def test_only_the_leader_answers_and_the_next_one_knows_its_promises(bench: Bench) -> None:
    bench.scheduler.leads = False
    bench.reserving.reserve("one", ("main", 3, EIGHT))
    bench.turns()
    assert bench.answer("one") == "Pending"
    bench.answered_by_another("one")
    bench.reserving.reserve("two", ("main", 2, EIGHT))
    bench.turns()
    bench.scheduler.leads = True
    bench.until("two", "Retry")


def test_a_workload_waits_for_its_flavor_and_keeps_none_from_an_answer(bench: Bench) -> None:
    kube, path = bench.reserving.kube, bench.reserving.path
    kube.delete(path("resourceflavors", "any"))
    bench.reserving.reserve("one", ("main", 1, EIGHT))
    bench.turns()
    assert bench.answer("one") == "Pending"
    bench.reserving.create("resourceflavors", "any", {"spec": {}})
    bench.until("one", "Ready")


def test_kueue_may_be_missing_come_later_and_be_replaced_by_a_newer_one(
    bare: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        bare.turns()
    assert caplog.messages == []
    assert bare.way.requests == ["GET /apis/kueue.x-k8s.io"], "asked for once, and again after a minute"
    bare.serve("default")
    older = Reserving(bare.reserving.kube, "v1beta1")
    older.install()
    bare.reserving = older
    bare.now += 60
    older.reserve("one", ("main", 1, EIGHT))
    bare.until("one", "Ready")
    for plural in KINDS:
        versions = definition(plural, ("v1beta2", "v1beta1"))["spec"]["versions"]
        name = paths.customresourcedefinitions(f"{plural}.kueue.x-k8s.io")
        older.kube.patch_merge(name, {"spec": {"versions": versions}})
    bare.now += 60
    older.reserve("two", ("main", 1, EIGHT))
    bare.until("two", "Ready")
    assert any(requests.startswith("PATCH /apis/kueue.x-k8s.io/v1beta2/") for requests in bare.way.requests)
    assert bare.counted == ["Ready", "Ready"]


def test_pods_of_a_namespace_that_is_not_served_are_not_ours_to_judge(bench: Bench) -> None:
    bench.serve("default", None)
    large = pod("w").asks("nvidia.com/gpu", 99)
    bench.reserving.reserve("one", ("main", 9, large))
    bench.until("one", "Ready")
    bench.serve("default")
    bench.now += 10
    bench.reserving.reserve("two", ("main", 9, large))
    bench.until("two", "Rejected")


def test_many_workloads_are_judged_by_several_looks_at_the_cluster(bench: Bench) -> None:
    """The state that a turn uses must not be old; the other Workloads are checked in the next turns."""
    wanted = [f"w{number}" for number in range(5)]
    for name in wanted:
        bench.reserving.reserve(name, ("main", 1, pod("w").asks("gpufraction.io/gpu-memory", "1Gi")))
    bench.takes, numbers = 1.5, [0]

    def judged() -> bool:
        bench.turn()
        numbers.append(len(bench.counted))
        return numbers[-1] == len(wanted)

    wait_for(judged, lambda: f"answered are {bench.counted}", 15)
    assert max(after - before for before, after in itertools.pairwise(numbers)) <= 2


def test_the_check_of_another_controller_is_left_alone(bench: Bench) -> None:
    bench.reserving.create("admissionchecks", "theirs", {"spec": {"controllerName": "example.com/theirs"}})
    bench.turns()
    theirs = bench.reserving.kube.get(bench.reserving.path("admissionchecks", "theirs"))
    assert "status" not in theirs
    assert not any(requests.startswith("PATCH") and "theirs" in requests for requests in bench.way.requests)


BY_CLAIM = pod("w").uses("gpu", template="8gi")


def test_claims_count_where_the_namespace_asks_by_them(bench: Bench) -> None:
    bench.reserving.reserve("before", ("main", 9, BY_CLAIM))
    bench.until("before", "Ready")
    assert bench.reserving.answer("before")["message"] == "no pod of the Workload requests a GPU share"
    bench.reserving.kube.delete(bench.reserving.path("workloads", "before"))
    bench.serve("default", label=names.RESOURCE_CLAIMS_LABEL)
    bench.now += 10
    bench.reserving.reserve("one", ("main", 3, BY_CLAIM))
    bench.until("one", "Retry")
    assert "ResourceClaimTemplate 8gi, which does not exist" in bench.reserving.answer("one")["message"]
    spec = spec_of(DeviceRequest("gpu", 1, 8 << 30))
    body = {"metadata": {"name": "8gi"}, "spec": {"spec": spec}}
    bench.reserving.kube.create(paths.resourceclaimtemplates("default"), body)
    bench.reserving.reserve_again("one")
    bench.until("one", "Ready")
    bench.reserving.reserve("two", ("main", 2, BY_CLAIM))
    bench.until("two", "Retry")


def test_the_next_leader_reads_the_claims_of_what_was_promised(bench: Bench) -> None:
    bench.serve("default", label=names.RESOURCE_CLAIMS_LABEL)
    body = {"metadata": {"name": "8gi"}, "spec": {"spec": spec_of(DeviceRequest("gpu", 1, 8 << 30))}}
    bench.reserving.kube.create(paths.resourceclaimtemplates("default"), body)
    bench.scheduler.leads = False
    bench.reserving.reserve("one", ("main", 3, BY_CLAIM))
    bench.turns()
    bench.answered_by_another("one")
    bench.reserving.reserve("two", ("main", 2, BY_CLAIM))
    bench.turns()
    bench.scheduler.leads = True
    bench.until("two", "Retry")
