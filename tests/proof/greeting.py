"""An invented feature of the allocator in one file: a setting, an event, an effect, a thread, a metric and a reason."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from allocator.features.base import Feature, Running, Shell
from allocator.scheduler.events import TickPhase
from allocator.scheduler.parts import Core, Explanation, FeaturePart
from contract.metrics.spec import MetricSpec
from contract.reasons.base import ReasonKind, Reasons, Row
from runtime.settings import setting


class GreetingReason(Reasons):
    """Reasons of the condition of waiting pods."""

    GREETED = "Greeted", Row(ReasonKind.WAITS, "the pod was greeted ... times", "Wait.")


GREETINGS = MetricSpec("gpufraction_greetings_total", "counter", "Greetings that were answered.", "allocator")


@dataclass(frozen=True)
class GreetingSettings:
    """Greetings."""

    every: float = setting(0.0, "Time between two greetings; 0 sends none.", unit="duration", minimum=0)


@dataclass(frozen=True, slots=True)
class Greeted:
    """A user greets the waiting pods."""

    word: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The greeting must be answered."""

    word: str


class Greetings:
    """Its state in the core."""

    def __init__(self, core: Core, settings: GreetingSettings) -> None:
        self._trigger = core.state.trigger
        self._queue = core.state.queue
        self._word = ""
        self._answered = True

    def part(self) -> FeaturePart:
        """What it adds to the core."""
        return FeaturePart(
            handlers={Greeted: self._greeted},
            ticks={TickPhase.UPKEEP: self._tick},
            explains=self._explain,
        )

    def _greeted(self, event: Greeted, now: float) -> None:
        self._word = event.word
        self._answered = False
        self._trigger.retell()
        self._trigger.wake()

    def _explain(self, uid: str) -> Explanation | None:
        """It greets pods with a name like `greet-me`."""
        entry = self._queue.pod(uid)
        greeted = entry is not None and "/greet" in entry.key
        return Explanation(GreetingReason.GREETED, f"greeted with {self._word}") if greeted else None

    def _tick(self, now: float) -> list[Answer]:
        answers = [] if self._answered else [Answer(self._word)]
        self._answered = True
        return answers


def _run(shell: Shell, settings: GreetingSettings, inside: Greetings) -> Running:
    answered = shell.metrics.counter(GREETINGS)

    def greet(stop: threading.Event) -> None:
        while not stop.wait(settings.every):
            shell.controller.handle(Greeted("hello"))

    return Running(threads={"greeting": greet}, carries={Answer: lambda answer: answered.inc()})


FEATURE = Feature(
    name="greeting",
    group="greeting",
    settings=GreetingSettings,
    inside=Greetings,
    part=Greetings.part,
    run=_run,
    enabled=lambda settings: settings.every > 0,
    metrics=(GREETINGS,),
)
