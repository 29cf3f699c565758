"""
A former leader's writes in progress, and writes that arrive after its successor has decided: no share is given twice.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from contract import names, pods
from contract.reasons.pods import PodReason
from playground import scenarios
from playground.machinery.kubelet.podrun import START_SECONDS
from playground.scenarios import Outcome
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube
from tests.cluster.system import another, invariants
from tests.cluster.trouble import requests
from tests.cluster.trouble.conftest import URGENT, Troubled, card
from tests.cluster.trouble.proxy import Refuse

pytestmark = pytest.mark.system
JSON = dict[str, Any]
BUSY = Refuse(429, "TooManyRequests", retry_after=1)
BOTH = Outcome(running=2, nodes=("t4",), gpus=2)
SLOW = "slow"
_HELD = 25.0
"""Seconds for which a webhook may delay a pod: less than the 30 that an API server allows."""


def test_a_placement_that_arrives_after_the_next_leaders_changes_nothing(trouble: Troubled) -> None:
    trouble.held(card("a"))
    released = threading.Event()
    leader, other = trouble.leader(), trouble.follower()
    try:
        # Nothing may tell the pod that it waits, because that alone would create another version of the pod.
        with (
            trouble.hold(requests.commits("a"), released) as late,
            trouble.fault(requests.condition_of("a"), BUSY) as untold,
        ):
            trouble.let_go("a")
            wait_for(lambda: late.hits == 1, "the placement was not written")
            leader.kill()
            trouble.create(*(card(name).spec(priorityClassName=URGENT) for name in ("b", "c")))
            wait_for(lambda: trouble.leads(other), "nobody took over")
            wait_for(lambda: running(trouble) == {"b", "c"}, lambda: f"{running(trouble)} run")
            wait_for(lambda: untold.hits > 0, "nothing was decided about it")
            released.set()
            wait_for(lambda: len(late.carried_out) == 1, "it has not arrived")
        assert late.carried_out[0] in (409, 422)
        trouble.becomes(Outcome(running=2, waiting=1, nodes=("t4",), gpus=2, waits=("Memory",)))
    finally:
        released.set()


def test_nothing_is_decided_until_every_waiting_pod_was_touched(trouble: Troubled) -> None:
    trouble.held(card("a"))
    leader, other = trouble.leader(), trouble.follower()
    with trouble.fault(requests.commits("a"), BUSY, only=other) as untouched:
        leader.kill()
        trouble.let_go("a")
        wait_for(lambda: untouched.hits > 1, "it was not tried again")
        trouble.create(card("b"))
        assert running(trouble) == set()
    trouble.becomes(BOTH)


def by_its_successor(trouble: Troubled) -> None:
    """The leader is killed, and the other takes over."""
    leader, other = trouble.leader(), trouble.follower()
    leader.kill()
    wait_for(lambda: trouble.leads(other), "nobody took over")


def by_itself(trouble: Troubled) -> None:
    """The leader has waited for the pod as long as it ever does."""
    leader = trouble.allocators.index(trouble.leader())

    def given_back() -> bool:
        figures = invariants.figures(trouble.cluster, leader)
        return figures.get('gpufraction_reservations{state="assumed"}') == 0

    wait_for(given_back, "the reservation is not given back")


GIVEN_AWAY: dict[str, Callable[[Troubled], None]] = {"by the next leader": by_its_successor, "by itself": by_itself}
STARTS = {"before it starts": "30", "though it has started": "0"}


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS.keys())
@pytest.mark.parametrize("given_away", GIVEN_AWAY.values(), ids=GIVEN_AWAY.keys())
def test_an_admitted_pod_that_is_stored_when_its_share_was_given_away_is_failed(
    trouble: Troubled, given_away: Callable[[Troubled], None], start: str
) -> None:
    with a_slow_webhook(trouble) as (released, held):
        with creating(trouble, held, start) as name:
            given_away(trouble)
            trouble.create(card("b"), card("c"))
            wait_for(lambda: running(trouble) == {"b", "c"}, lambda: f"{running(trouble)} run")
            released.set()
        found: JSON = {}

        def failed() -> bool:
            found.update(trouble.cluster.kube.get(paths.pods("default", name)))
            return pods.finished(found)

        wait_for(failed, lambda: f"{name} is {found.get('status')}")
    assert found["spec"]["nodeName"] == "t4", "it was bound when it was admitted"
    status = found["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "DeadlineExceeded")
    wait_for(lambda: reported(trouble, name) == ("False", PodReason.SHARE_TAKEN), "it is not told")
    if start != "0":
        assert not any(s.get("started") for s in status.get("containerStatuses", ()))
        assert scenarios.printed(trouble.cluster.kube, found, "main") == ""
    assert running(trouble) == {"b", "c"}, "nobody else had to go"
    late = sum(invariants.figures(trouble.cluster, n).get("gpufraction_late_pods_total", 0) for n in (0, 1))
    assert late >= 1


def reported(trouble: Troubled, name: str) -> tuple[str, str]:
    """What a pod's condition says about its share."""
    found = scenarios.condition(trouble.cluster.kube.get(paths.pods("default", name)))
    return found.get("status", ""), found.get("reason", "")


def running(trouble: Troubled) -> set[str]:
    """The names of the pods that run."""
    return {p["metadata"]["name"] for p in scenarios.all_pods(trouble.cluster.kube) if scenarios.is_running(p)}


@contextlib.contextmanager
def a_slow_webhook(trouble: Troubled) -> Iterator[tuple[threading.Event, list[str]]]:
    """
    Another user's webhook after ours, which delays pods that got a share until it is released. Yields their names.
    """
    released, held = threading.Event(), list[str]()

    def slow(request: JSON) -> JSON:
        if request.get("dryRun"):
            return another.adding_a_container(request)
        if names.ALLOCATION in pods.annotations_of(request["object"]):
            held.append(request["object"]["metadata"]["name"])
            released.wait(_HELD)
        return {"allowed": True}

    probe, path = card("probe").labelled(SLOW, "yes").manifest(), paths.pods("default")
    try:
        with another.registered(trouble.cluster.kube, slow, label=SLOW):
            wait_for(
                lambda: len(trouble.cluster.kube.create(path, probe, {"dryRun": "All"})["spec"]["containers"]) == 2,
                "the other webhook is not called",
            )
            yield released, held
            released.set()
    finally:
        released.set()


@contextlib.contextmanager
def creating(trouble: Troubled, held: list[str], start: str) -> Iterator[str]:
    """A pod that got a share and is being created; it is not stored before the end. Yields its name."""
    # The follower's webhook would only let it wait.
    trouble.cluster.programs[trouble.replica_of(trouble.follower()).name("webhook")].kill()
    kube = Kube.connect(kubeconfig=str(trouble.cluster.kubeconfig), user_agent="late")
    path = paths.pods("default")
    with ThreadPoolExecutor(1) as client:
        for number in range(10):
            made = card(f"late-{number}").labelled(SLOW, "yes").annotated(START_SECONDS, start).manifest()
            name = made["metadata"]["name"]
            stored = client.submit(kube.create, path, made, timeout=_HELD + 10)
            wait_for(
                lambda name=name, stored=stored: name in held or stored.done(),  # type: ignore[misc]
                "it is neither held up nor stored",
            )
            if name in held:
                yield name
                stored.result()
                return
            trouble.delete(name)  # it must wait: another replica may have begun to lead
            wait_for(lambda: not scenarios.all_pods(trouble.cluster.kube), "it is still there")
    pytest.fail("no pod is given a share when it is admitted")
