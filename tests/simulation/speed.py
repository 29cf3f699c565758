"""
How fast the simulation is: `python -m tests.simulation.speed` prints simulated seconds for each second of this machine.

Each case runs in its own process, without faults and invariants, so the figures are those of the programs, the API
server and the kernel. The time to bring the cluster up is not counted. Real time is processor time: other work on the
machine does not count.

    python -m tests.simulation.speed --profile    also where the time goes, by sampling
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from tests.simulation.kernel import loader

loader.install()

from tests.simulation.features.workload import manifest  # noqa: E402  (after the loader)
from tests.simulation.kernel import scheduler  # noqa: E402
from tests.simulation.kernel.scheduler import SECOND, Kernel  # noqa: E402
from tests.simulation.world.world import NAMESPACES, Shape, World  # noqa: E402

EVERY = 0.002
"""Seconds of processor time between two samples of a profile."""


@dataclass(frozen=True, slots=True)
class Case:
    """
    A cluster and its work. cards: for each node. each_second: pods created per second. stay: the maximum number of
    pods; the oldest is deleted. seconds: of virtual time. goal: simulated seconds per second.
    """

    name: str
    nodes: int
    cards: int
    each_second: int
    stay: int
    seconds: int
    goal: float


CASES = (
    Case("5 nodes, 20 GPUs, a new pod each second", 5, 4, 1, 100, 120, 40),
    Case("5 nodes, 20 GPUs, idle", 5, 4, 0, 0, 600, 500),
    Case("50 nodes, 400 GPUs, 5 new pods each second", 50, 8, 5, 400, 60, 8),
)


@dataclass(frozen=True, slots=True)
class Figure:
    """What a case took: seconds of virtual and of processor time, turns of the kernel and commits of the store."""

    simulated: float
    real: float
    turns: int
    commits: int

    @property
    def speed(self) -> float:
        return self.simulated / self.real


def measured(case: Case, around: Callable[[], object]) -> Figure:
    """Run the case. `around` returns a context that is open while time is measured."""
    kernel = scheduler.activate(Kernel("speed"))
    cards = {f"n{i}": f"{case.cards} x Tesla T4 15109MiB" for i in range(case.nodes)}
    world = World(kernel, Shape(cards=cards))
    booted = False

    def boot() -> None:
        nonlocal booted
        world.boot()
        booted = True

    kernel.spawn(world.admin, boot, "boot")
    kernel.run(1 << 62, lambda: booted)
    commits: list[None] = []
    world.observers.append(lambda change: commits.append(None))
    if case.each_second:
        kernel.spawn(world.admin, lambda: _work(kernel, world, case), "work")
    began, turns, real = kernel.now, kernel.turns, time.process_time()
    with around():  # type: ignore[attr-defined]
        kernel.run(began + case.seconds * SECOND)
    real = time.process_time() - real
    return Figure((kernel.now - began) / SECOND, real, kernel.turns - turns, len(commits))


def _work(kernel: Kernel, world: World, case: Case) -> None:
    """Create pods, and delete the oldest ones if there are enough."""
    kube, there, number = world.kube(world.admin), [], 0
    while True:
        number += 1
        namespace, name = NAMESPACES[number % len(NAMESPACES)], f"p-{number}"
        limits = {"gpufraction.io/gpu-memory": f"{(1, 2, 3, 5)[number % 4]}Gi"}
        kube.create(
            f"/api/v1/namespaces/{namespace}/pods", manifest({"name": name, "namespace": namespace, "limits": limits})
        )
        there.append((namespace, name))
        if len(there) > case.stay:
            namespace, name = there.pop(0)
            kube.delete(f"/api/v1/namespaces/{namespace}/pods/{name}")
        kernel.block(SECOND // case.each_second)


# -- where the time goes ----------------------------------------------------------------------------------------------


class Samples:
    """Which functions ran, sampled repeatedly by processor time."""

    def __init__(self) -> None:
        self.count = 0
        self.own: Counter[str] = Counter()
        self.within: Counter[str] = Counter()

    @contextmanager
    def taken(self) -> Iterator[None]:
        before = signal.signal(signal.SIGPROF, self._take)
        signal.setitimer(signal.ITIMER_PROF, EVERY, EVERY)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        seen: set[str] = set()
        first = True
        while frame is not None:
            name = f"{_module(frame)}:{frame.f_code.co_qualname}"
            if first:
                self.own[name] += 1
            first = False
            seen.add(name)
            frame = frame.f_back
        self.within.update(seen)

    def report(self, most: int = 45) -> str:
        """The functions with the largest shares, in percent: on their own, and with what they call."""
        rows = []
        for title, counts in (("own", self.own), ("with what it calls", self.within)):
            rows.append(f"  {title}:")
            rows += [f"    {100 * n / max(self.count, 1):5.1f} %  {name}" for name, n in counts.most_common(most)]
        return "\n".join(rows)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "?"))


# -- the program ------------------------------------------------------------------------------------------------------


def _in_a_process(case: Case, profile: bool) -> None:
    """Measure in a child process, and print. What tasks hold disappears with the process."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    samples = Samples()
    figure = measured(case, samples.taken if profile else _nothing)
    print(
        f"{case.name}: {figure.simulated:.0f} s in {figure.real:.1f} s, {figure.speed:.1f} times real time"
        f" (goal {case.goal:.0f}); {figure.turns / figure.simulated:.0f} turns and"
        f" {figure.commits / figure.simulated:.1f} commits a second"
    )
    if profile:
        print(samples.report())
    sys.stdout.flush()
    os._exit(0)


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.speed", description=__doc__)
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    parser.add_argument("--case", type=int, action="append", help="only this one, counted from 1; repeatable")
    options = parser.parse_args(arguments)
    for number, case in enumerate(CASES, 1):
        if not options.case or number in options.case:
            _in_a_process(case, options.profile)
    return 0


if __name__ == "__main__":
    sys.exit(main())
