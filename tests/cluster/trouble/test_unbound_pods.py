"""
A share whose pod is not bound is released, while requests are lost and late, leaders end, and the binding comes late.

The tests act as the pod's scheduler, so that it binds at the worst moment.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from contract import names, pods
from playground import scenarios
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.cluster.system import invariants
from tests.cluster.trouble import requests
from tests.cluster.trouble.conftest import PATIENCE, Troubled, card
from tests.cluster.trouble.proxy import Drop, Lose
from tests.clusters import only_real

pytestmark = [pytest.mark.system, pytest.mark.long]
JSON = dict[str, Any]
REFUSAL = "0/1 nodes are available: 1 node(s) need a licence."
NUMBERS = itertools.count()


class Refused:
    """A cluster that releases shares after some seconds, and the scheduler of pods that nothing else schedules."""

    def __init__(self, trouble: Troubled, name: str) -> None:
        """`name`: of the pod; no other pod of that name was refused before."""
        self.trouble, self.kube, self.name = trouble, trouble.cluster.kube, name

    def pod(self, name: str = "") -> JSON:
        return self.kube.get(paths.pods("default", name or self.name))

    def annotations(self) -> set[str]:
        return set(pods.annotations_of(self.pod()))

    def given_a_share(self) -> None:
        """A pod that is pinned to the node and has a share there."""
        self.trouble.create(card(self.name).spec(schedulerName="nobody"))
        wait_for(lambda: names.ALLOCATION in self.annotations(), "it is given no share")

    def refuse(self) -> None:
        unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": REFUSAL}
        self.kube.patch_strategic(paths.pods("default", self.name, "status"), {"status": {"conditions": [unscheduled]}})

    def bind(self) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": "t4"}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": self.name}, "target": target}
        self.kube.create(paths.pods("default", self.name, "binding"), body)

    def until_taken_back(self) -> None:
        wait_for(lambda: names.WITHDRAWN in self.annotations(), "the share is not taken back", PATIENCE)

    def runs(self, *wanted: str) -> None:
        def running() -> set[str]:
            found = scenarios.all_pods(self.kube)
            return {each["metadata"]["name"] for each in found if scenarios.is_running(each)}

        wait_for(lambda: running() >= set(wanted), lambda: f"{running()} run, not {wanted}", PATIENCE)

    def says(self, code: str, words: str) -> None:
        def condition() -> JSON:
            return scenarios.condition(self.pod())

        wait_for(
            lambda: condition().get("reason") == code and words in condition().get("message", ""),
            lambda: f"{self.name} says {condition()}",
            PATIENCE,
        )

    def sees_gpus(self, name: str = "") -> bool:
        return "GPU 0: " in scenarios.printed(self.kube, self.pod(name), "main")


@pytest.fixture(scope="module", params=only_real())
def patient(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Troubled]:
    flags = ("--unbound-after", "3s")
    troubled = Troubled(request.param, tmp_path_factory.mktemp("unbound"), flags=flags)
    try:
        with troubled.cluster:
            yield troubled
    finally:
        for proxy in troubled.proxies.values():
            proxy.close()


@pytest.fixture
def it(patient: Troubled) -> Iterator[Refused]:
    patient.leader()
    try:
        yield Refused(patient, f"a-{next(NUMBERS)}")
    finally:
        patient.mend()
    invariants.check(patient.cluster)
    scenarios.clear(patient.cluster.kube)
    invariants.check(patient.cluster)


def test_a_pod_that_is_bound_after_its_share_went_back_sees_no_gpu(it: Refused) -> None:
    it.given_a_share()
    it.refuse()
    it.until_taken_back()
    it.says("ShareWithdrawn", f"the scheduler nobody did not bind the pod there in time ({REFUSAL})")
    assert not any(key.startswith(names.CONTAINER_PREFIXES) for key in it.annotations())
    it.trouble.create(card("b"), card("c"))
    it.runs("b", "c")
    it.bind()
    it.runs(it.name, "b", "c")
    it.says("BoundWithoutShare", "runs on node t4 without a GPU")
    assert [it.sees_gpus(name) for name in (it.name, "b", "c")] == [False, True, True]


def test_a_pod_that_is_bound_while_our_write_is_on_its_way_keeps_its_share(it: Refused) -> None:
    it.given_a_share()
    released = threading.Event()
    try:
        with it.trouble.hold(requests.commits(it.name), released) as late:
            it.refuse()
            wait_for(lambda: late.hits == 1, "it is not written", PATIENCE)
            it.bind()
            released.set()
            wait_for(lambda: len(late.carried_out) == 1, "it has not arrived")
        assert late.carried_out == [409]
    finally:
        released.set()
    it.runs(it.name)
    assert it.annotations() >= {names.ALLOCATION}
    assert names.WITHDRAWN not in it.annotations()
    wait_for(it.sees_gpus, "it sees no GPU")


@pytest.mark.parametrize("action", [Lose(), Drop()], ids=["carried out, and the answer lost", "never carried out"])
def test_a_write_without_an_answer_gives_the_share_to_nobody_too_early(it: Refused, action: Lose | Drop) -> None:
    it.given_a_share()
    with it.trouble.fault(requests.commits(it.name), action, times=1) as lost:
        it.refuse()
        wait_for(lambda: lost.hits == 1, "it is not written", PATIENCE)
        it.trouble.create(card("b"), card("c"))
        it.runs("b", "c")
    assert names.WITHDRAWN in it.annotations(), "both cards are others' only once the pod has none"
    it.bind()
    it.runs(it.name)
    assert not it.sees_gpus()


def test_a_leader_that_dies_during_its_write_loses_and_doubles_no_share(it: Refused) -> None:
    it.given_a_share()
    leader, other, released = it.trouble.leader(), it.trouble.follower(), threading.Event()
    try:
        with it.trouble.hold(requests.commits(it.name), released) as late:
            it.refuse()
            wait_for(lambda: late.hits == 1, "it is not written", PATIENCE)
            leader.kill()
            it.trouble.create(card("b"), card("c"))
            wait_for(lambda: it.trouble.leads(other), "nobody took over", PATIENCE)
            released.set()
            wait_for(lambda: len(late.carried_out) == 1, "it has not arrived")
    finally:
        released.set()
    it.runs("b", "c")
    assert names.WITHDRAWN in it.annotations()
    it.says("ShareWithdrawn", "was released")


def test_if_a_leader_dies_after_its_write_the_next_reports_what_the_pod_has(it: Refused) -> None:
    it.given_a_share()
    leader, other = it.trouble.leader(), it.trouble.follower()
    with it.trouble.fault(requests.commits(it.name), Lose(), times=1) as lost:
        it.refuse()
        wait_for(lambda: lost.carried_out == [200], "it is not written", PATIENCE)
        leader.kill()
    wait_for(lambda: it.trouble.leads(other), "nobody took over", PATIENCE)
    it.trouble.create(card("b"), card("c"))
    it.runs("b", "c")
    it.says("ShareWithdrawn", "was released")


def test_the_next_pod_of_its_name_is_not_placed_where_kube_scheduler_refused_it(it: Refused) -> None:
    it.given_a_share()
    it.refuse()
    it.until_taken_back()
    it.says("ShareWithdrawn", "a pod of its name is not placed on node t4 for 10 min")
    it.trouble.delete(it.name)
    wait_for(lambda: not scenarios.all_pods(it.kube), "it is still there")
    it.trouble.create(card(it.name).spec(schedulerName="nobody"))
    it.says("RefusedByScheduler", "0 of 1 GPU nodes fit: 1 that kube-scheduler refused (1 node(s) need a licence)")
