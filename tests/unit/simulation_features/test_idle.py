"""An idle pod that is evicted although it may stay, and one that is wrongly not evicted, are found."""

from __future__ import annotations

from typing import Any

import pytest

from contract import names
from tests.builders import pod
from tests.simulation.features import idle
from tests.simulation.features.cards import GPUNODES
from tests.simulation.features.idle import GivesWay
from tests.unit.allocator.harness import admitted
from tests.unit.simulation_features.fakes import change, run

HOST, VICTIM = "allocator-0.1", "default/notebook"
JSON = dict[str, Any]


def asking(name: str, *, priority: int = 0, gated: bool = False, after: str | None = None) -> Any:
    made = pod(name).asks("gpufraction.io/gpu-memory", "1Gi").spec(priority=priority).uid(f"u-{name}")
    if after is not None:
        made = made.annotated(str(names.IDLE_AFTER), after)
    return admitted(made, gated=gated)


def reported(*uids: str) -> JSON:
    idle = [{"pod": uid, "since": "2030-01-01T00:00:00Z"} for uid in uids]
    return {"metadata": {"name": "n"}, "status": {"idle": idle, "observedAt": "2030-01-01T00:01:00Z"}}


class Clock:
    """The clock of a run without a cluster."""

    def __init__(self) -> None:
        self.run = run()
        self.now = 100.0
        self.run.kernel.seconds = lambda: self.now
        self.run.plan.shape["flags"] = {"allocator": (idle.EVICTS, "--idle-grace=3s")}
        self.run.world.cards = {}
        self.judge = GivesWay(self.run)


@pytest.fixture
def clock() -> Clock:
    """A pod that agreed to give way after 5 s, is idle and was warned 10 s ago, while another pod waits."""
    found = Clock()
    found.judge.take(change("pods", asking("notebook", after="5s")))
    found.judge.take(change("pods", asking("waits", gated=True)))
    warned(found)
    found.now += 10.0
    found.judge.take(change(GPUNODES, reported("u-notebook")))
    return found


def warned(clock: Clock) -> None:
    clock.judge._heard(HOST, "idle pod warned", {"pod": VICTIM})


def test_who_agreed_and_was_warned_may_be_evicted(clock: Clock) -> None:
    assert clock.judge.judged(HOST, VICTIM) is None


def test_a_warning_counts_once_and_of_one_leader(clock: Clock) -> None:
    assert "had not warned it" in (clock.judge.judged("allocator-1.1", VICTIM) or "")
    assert clock.judge.judged(HOST, VICTIM) is None
    assert "had not warned it" in (clock.judge.judged(HOST, VICTIM) or "")


def test_an_eviction_within_the_grace_is_found(clock: Clock) -> None:
    warned(clock)
    assert "0.0 s after its warning" in (clock.judge.judged(HOST, VICTIM) or "")


@pytest.mark.parametrize("after", [None, "0"])
def test_an_eviction_without_consent_is_found(clock: Clock, after: str | None) -> None:
    clock.judge.take(change("pods", asking("notebook", after=after)))
    assert "never agreed" in (clock.judge.judged(HOST, VICTIM) or "")


def test_an_eviction_for_nobody_or_for_less_is_found(clock: Clock) -> None:
    clock.judge.take(change("pods", asking("notebook", after="5s", priority=1)))
    assert "no pod waits of more than 0" in (clock.judge.judged(HOST, VICTIM) or "")
    clock.judge.take(change("pods", asking("waits")))
    clock.now += 100.0
    warned(clock)
    clock.now += 10.0
    assert "and none waits" in (clock.judge.judged(HOST, VICTIM) or "")


def test_an_eviction_of_who_computes_is_found(clock: Clock) -> None:
    idle.shares(clock.run).since[VICTIM] = 20.0
    assert "has computed for 90 s" in (clock.judge.judged(HOST, VICTIM) or "")


def test_an_agent_that_calls_who_computes_idle_is_found(clock: Clock) -> None:
    idle.shares(clock.run).since[VICTIM] = 20.0
    assert "its agent calls it idle" in (clock.judge.holds(change(GPUNODES, reported("u-notebook"))) or "")


def test_an_eviction_that_no_agent_has_confirmed_is_found(clock: Clock) -> None:
    clock.now += 20.0
    warned(clock)
    clock.now += 10.0
    assert "has not said since its warning" in (clock.judge.judged(HOST, VICTIM) or "")
