"""A driver that hangs, or a bug of ours, must not keep an old inventory published."""

from __future__ import annotations

import threading

from contract.reasons.gpunodes import GPUNodeReason
from nodeagent.gpus.library import Card
from nodeagent.gpus.observation import Observation, Observer
from tests.unit.nodeagent.builders import card, observation


class Driver:
    """Answers when the test allows it."""

    def __init__(self) -> None:
        self.answers, self.began = threading.Event(), threading.Event()
        self.bug: Exception | None = None

    def driver_version(self) -> str:
        return "550.54.15"

    def cuda_version(self) -> str:
        return "12.4"

    def gpus(self) -> tuple[Card, ...]:
        self.began.set()
        assert self.answers.wait(10)
        if self.bug:
            raise self.bug
        return (card(0),)


def test_a_hanging_driver_is_reported_once_patience_is_over() -> None:
    driver, now = Driver(), [0.0]
    observer = Observer(driver, patience=60, clock=lambda: now[0])
    assert observer.latest() is None
    driver.answers.set()
    observer.look_once()
    driver.answers.clear()
    driver.began.clear()
    thread = threading.Thread(target=observer.look_once, name="hanging-look", daemon=True)
    thread.start()
    assert driver.began.wait(10)
    now[0] = 60.0
    assert observer.latest() == observation(card(0))
    now[0] = 60.1
    problem = "the driver does not answer: a call into it has taken more than 60 s"
    assert observer.latest() == Observation(problem=problem, reason=GPUNodeReason.DRIVER_HANGS)
    driver.answers.set()
    thread.join(10)
    assert observer.latest() == observation(card(0))


def test_a_bug_of_ours_is_published_as_a_problem() -> None:
    driver = Driver()
    driver.answers.set()
    driver.bug = ZeroDivisionError()
    observer = Observer(driver)
    observer.look_once()
    problem = "the agent failed while looking: ZeroDivisionError"
    assert observer.latest() == Observation(problem=problem, reason=GPUNodeReason.AGENT_FAILED)


def test_each_look_is_reported_until_the_end() -> None:
    driver, stopping, looks = Driver(), threading.Event(), []
    driver.answers.set()

    def seen(what: Observation) -> None:
        looks.append(what)
        if len(looks) == 3:
            stopping.set()

    Observer(driver, interval=0.001, on_look=seen).run(stopping)
    assert looks == [observation(card(0))] * 3
