"""Leaders that are cut off, paused or killed, and wrong clocks: one decides at a time, and no share is given twice."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pytest

from playground import scenarios
from playground.programs.process import Program
from playground.scenarios import Outcome
from playground.waiting import wait_for
from tests.cluster.system import invariants
from tests.cluster.trouble import requests
from tests.cluster.trouble.conftest import Troubled, card
from tests.cluster.trouble.proxy import Alter, Drop, Refuse

pytestmark = pytest.mark.system
FULL = Outcome(running=2, waiting=1, nodes=("t4",), gpus=2, waits=("Memory",))
JSON = dict[str, Any]
CLOCK = "%Y-%m-%dT%H:%M:%S.%fZ"


def test_a_leader_that_is_cut_off_is_followed_by_the_other(trouble: Troubled) -> None:
    leader, other = trouble.leader(), trouble.follower()
    with trouble.fault(requests.everything, Drop(), only=leader):
        trouble.proxies[leader.name].cut()
        wait_for(lambda: trouble.leads(other) and not trouble.leads(leader), "nobody took over")
        trouble.create(card("a"), card("b"), card("c"))
        trouble.becomes(FULL)
        before = len(written(trouble, leader))
    trouble.becomes(FULL)
    assert len(written(trouble, leader)) == before


def test_a_former_leader_resolves_a_placement_that_was_in_doubt(trouble: Troubled) -> None:
    leader, other = trouble.leader(), trouble.follower()
    trouble.held(card("a"), card("b"), card("c"))
    with (
        trouble.fault(requests.commits(), Drop(), only=leader) as dropped,
        trouble.fault(requests.renewals, Refuse(429, "TooManyRequests"), only=leader),
    ):
        trouble.let_go("a", "b", "c")
        wait_for(lambda: dropped.hits > 0, "nothing was written")
        wait_for(lambda: trouble.leads(other) and not trouble.leads(leader), "nobody took over")
        trouble.becomes(FULL)
        # Both ledgers are compared with the pods before the replica in doubt can lead again.
        invariants.check(trouble.cluster)


def test_a_leader_that_may_not_renew_stops_before_another_begins(trouble: Troubled) -> None:
    leader, other = trouble.leader(), trouble.follower()
    with trouble.fault(requests.renewals, Refuse(429, "TooManyRequests"), only=leader):
        wait_for(lambda: not trouble.leads(leader), "it goes on leading")
        # Pods that it admits from now on wait; the other replica places them when its time has come.
        trouble.create(card("a"), card("b"), card("c"))
        trouble.becomes(FULL)
        wait_for(lambda: trouble.leads(other), "the other does not lead")


def test_while_no_replica_reaches_the_api_server_pods_wait(trouble: Troubled) -> None:
    with trouble.fault(requests.everything, Drop()):
        trouble.cut_watches()
        wait_for(lambda: not any(map(trouble.leads, trouble.allocators)), "somebody leads")
        trouble.create(card("a"), card("b"), card("c"))
        assert scenarios.outcome(scenarios.all_pods(trouble.cluster.kube)).running == 0
    trouble.becomes(FULL)


def test_a_leader_that_was_paused_finds_that_its_time_is_over(trouble: Troubled) -> None:
    leader, other = trouble.leader(), trouble.follower()
    trouble.held(card("a"), card("b"), card("c"))
    trouble.pause(leader)
    trouble.let_go("a", "b", "c")
    wait_for(lambda: trouble.leads(other), "nobody took over")
    trouble.becomes(FULL)
    before = len(written(trouble, leader))
    trouble.resume(leader)
    wait_for(lambda: trouble.answers(leader), "it does not go on")
    trouble.becomes(FULL)
    assert len(written(trouble, leader)) == before


def shifted(seconds: float) -> Callable[[JSON], JSON]:
    """A lease as written by a replica whose clock is wrong by this much."""

    def change(lease: JSON) -> JSON:
        spec = {**lease["spec"]}
        for field in ("renewTime", "acquireTime"):
            if spec.get(field):
                there = datetime.datetime.strptime(spec[field], CLOCK) + datetime.timedelta(seconds=seconds)
                spec[field] = there.strftime(CLOCK)
        return {**lease, "spec": spec}

    return change


def test_clocks_that_are_hours_apart_do_not_disturb_leader_election(trouble: Troubled) -> None:
    one, another = trouble.allocators
    with (
        trouble.fault(requests.renewals, Alter(shifted(5 * 3600)), only=one),
        trouble.fault(requests.renewals, Alter(shifted(-5 * 3600)), only=another),
    ):
        first = trouble.leader()
        trouble.create(card("a"))
        first.kill()
        trouble.create(card("b"), card("c"))
        trouble.becomes(FULL)
        first.start()
        wait_for(lambda: trouble.answers(first), "it is not back")
        trouble.delete("a")
        trouble.becomes(Outcome(running=2, nodes=("t4",), gpus=2))
        trouble.leader()


def written(trouble: Troubled, program: Program) -> list[str]:
    """The pods that a replica has placed."""
    commits = requests.commits()
    return [request.path for request, _ in trouble.proxies[program.name].passed if commits(request)]
