"""
Tests a side's accounting while its scheduler is killed repeatedly: counts overcommitted cards from outside.

A few nodes are kept full. Pods are deleted and as many created, all the time, so that each decision takes the room of a
pod that has just gone. Meanwhile the programs that decide on cards are killed (SIGKILL) and started again at once, as a
kubelet does with a container that ends for the first time. One checker reads all sides' stored pods.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.figures import machine_line, table
from benchmarks.progress import say
from benchmarks.throughput import plane
from benchmarks.throughput.peers.bookings import Card, overcommitted, without_card
from benchmarks.throughput.peers.peer import CARD, CARDS, SHARE
from benchmarks.throughput.sides import Bench, Followed, Side, pod_of
from playground.waiting import NotInTime, wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError

JSON = dict[str, Any]
NODES = 2
"""Nodes that are kept full, of the cluster's many."""
ROOM = NODES * CARDS * CARD // SHARE
_WAITING = ROOM // 10
"""Pods more than there is room for."""
_FULL = 0.9
_FILLING, _BACK, _SETTLED = 900.0, 120.0, 60.0
"""The most seconds until the nodes are full, until pods are placed again after a kill, and until the end is quiet."""
_PAUSE = 0.05
"""Seconds between two pods that go."""
_BETWEEN = (1.0, 4.0)
"""Seconds of undisturbed work between two kills, from and to."""
_BURST, _HIT = 10, 0.3
"""Before a kill so many pods go at once, and it comes at most so many seconds later, while their room is given away."""
_PATIENCE = 20.0
"""Seconds after which a pod that waits while there is room is given up."""
_SENT = 0.1
"""Seconds in which the API server carries out the requests that a killed program had sent."""
_CHECK_EVERY = 1.0
_SEED = 42


@dataclass(frozen=True, slots=True)
class Killed:
    """
    The findings.

    `bound`: pods that got a node in all. `back`: seconds from each kill until the program that was started again had
    bound a pod, at most `_BACK`. `checks`: how often the checker looked. `ever`: the most that was found on each
    overcommitted card, in bytes; `end`: what is left of it at the end. `cardless`: pods that have a node and no card at
    the end. `given_up`: pods that waited for long while there was room, and were deleted. `counted`: the side counts
    memory.
    """

    bound: int
    back: Sequence[float]
    checks: int
    ever: Mapping[Card, int]
    end: Mapping[Card, int]
    cardless: int
    given_up: int
    counted: bool


HEADER = (
    "side",
    "killed",
    "bound",
    "back p50 s",
    "max s",
    "checks",
    "overcommitted",
    "at the end",
    "no card",
    "given up",
)


def report(nodes: int, times: int, found: Mapping[str, Killed]) -> str:
    """A table by the sides' titles."""
    cards = NODES * CARDS
    title = f"Scheduler killed {times} times while pods come and go, {nodes} nodes: overcommitted of {cards} full cards"
    return table(title, HEADER, [(side, *_cells(one)) for side, one in found.items()])


def _cells(one: Killed) -> tuple[str, ...]:
    back = sorted(one.back)
    times = (f"{back[len(back) // 2]:.1f}", f"{back[-1]:.1f}") if back else ("-", "-")
    cards = (str(len(one.ever)), str(len(one.end)), str(one.cardless)) if one.counted else ("not counted", "-", "-")
    return str(len(back)), str(one.bound), *times, str(one.checks), *cards, str(one.given_up)


def line(nodes: int, side: Side, one: Killed) -> str:
    """The same for programs."""
    cards = {"ever": len(one.ever), "end": len(one.end), "no_card": one.cardless} if one.counted else {"ever": "-"}
    back = ",".join(f"{each:.1f}" for each in one.back)
    values = {"side": side.name, "nodes": nodes, "kills": len(one.back), "bound": one.bound, "back_s": back}
    return machine_line("kills", {**values, "checks": one.checks, **cards, "given_up": one.given_up})


def measure(bench: Bench, side: Side, times: int) -> Killed:
    """Kill its scheduler so many times; afterwards none of the pods is left. Raises `NotInTime`."""
    watched = Watched(bench.kube, side)
    checker = _Checker(bench.kube, side)
    chance = random.Random(_SEED)
    try:
        watched.create()
        _fill(watched)
        with _running(lambda: watched.turn_over(chance), _PAUSE), _running(checker.check, _CHECK_EVERY):
            back = [_kill(bench, side, watched, chance) for _ in range(times)]
        with contextlib.suppress(NotInTime):
            wait_for(lambda: watched.held() >= ROOM, "the nodes are not full", _SETTLED, every=0.5)
        bench.settle()
        checker.check()
    finally:
        watched.close()
        bench.clear(side)
    counted = side.reading is not None and side.reading.counted
    return Killed(
        watched.bound, back, checker.checks, checker.ever, checker.now, checker.cardless, watched.given_up, counted
    )


def _fill(watched: Watched) -> None:
    def full() -> bool:
        return watched.held() >= _FULL * ROOM

    wait_for(full, lambda: f"{watched.held()} pods have a node, of {ROOM} that fit", _FILLING, every=0.5)


def _kill(bench: Bench, side: Side, watched: Watched, chance: random.Random) -> float:
    """Kill it in the middle of its work and start it again; seconds until pods are bound again."""
    time.sleep(chance.uniform(*_BETWEEN))
    for _ in range(_BURST):
        with contextlib.suppress(KubeError):
            watched.turn_over(chance)
    time.sleep(chance.uniform(0, _HIT))
    programs = [bench.programs[name] for name in side.kills]
    for program in programs:
        program.kill()
    killed = time.perf_counter()
    time.sleep(_SENT)
    before = watched.bound
    for program in programs:
        program.start()
    with contextlib.suppress(NotInTime):
        wait_for(lambda: watched.bound > before, "no pod is bound", _BACK, every=0.02)
    took = time.perf_counter() - killed
    say(f"pods are bound again after {took:.1f} s")
    return took


@contextlib.contextmanager
def _running(work: Callable[[], None], every: float) -> Iterator[None]:
    """Meanwhile the work is done repeatedly, with so many seconds between; an API server may refuse some of it."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(every):
            with contextlib.suppress(KubeError):
                work()

    thread = threading.Thread(target=run, name="bench-kills", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class _Checker:
    """Reads the stored objects, and remembers the overcommitted cards."""

    def __init__(self, kube: Kube, side: Side) -> None:
        assert side.reading is not None
        self._kube = kube
        self._side = side
        self._reading = side.reading
        self.checks = 0
        self.ever: dict[Card, int] = {}
        self.now: Mapping[Card, int] = {}
        self.cardless = 0

    def check(self) -> None:
        """Look once."""
        bookings = self._reading.booked(self._kube, self._side.namespace)
        self.now = overcommitted(bookings, CARD)
        self.cardless = without_card(bookings)
        for card, memory in self.now.items():
            self.ever[card] = max(memory, self.ever.get(card, 0))
        self.checks += 1


class Watched:
    """The pods that come and go, and how many of them were ever bound, by a watch."""

    def __init__(self, kube: Kube, side: Side) -> None:
        self._kube = kube
        self._side = side
        self._path = paths.pods(side.namespace)
        self._created = 0
        self._lock = threading.Lock()
        self._held: list[str] = []
        self._waiting: dict[str, float] = {}
        """When each pod was created that was not seen with a node, in their order."""
        self._bound: set[str] = set()
        self.given_up = 0
        """How many pods were deleted that had waited for long while there was room."""
        self._closed = threading.Event()
        Followed(kube, self._path, self._see, self._closed)

    def _see(self, pod: JSON) -> None:
        name = pod["metadata"]["name"]
        with self._lock:
            if pod["spec"].get("nodeName") and self._waiting.pop(name, None) is not None:
                self._bound.add(name)
                self._held.append(name)

    @property
    def bound(self) -> int:
        """How many pods were bound so far."""
        return len(self._bound)

    def held(self) -> int:
        """How many pods are bound that were not deleted."""
        return len(self._held)

    def create(self) -> None:
        """Create pods for the nodes that are kept full, until there are a few more. Raises `KubeError`."""
        while len(self._held) + len(self._waiting) < ROOM + _WAITING:
            name = f"churn-{self._created:06}"
            pod = pod_of(self._side, name)
            pod["spec"]["nodeSelector"] = {plane.POOL: plane.HELD}
            self._created += 1
            with self._lock:
                self._waiting[name] = time.monotonic()
            try:
                self._kube.create(self._path, pod, timeout=60)
            except KubeError:
                self._waiting.pop(name, None)
                raise

    def turn_over(self, chance: random.Random) -> None:
        """
        Delete one of the bound pods and create another one. Raises `KubeError`.

        While few are bound, it is the pod that has waited longest, if that is long, as its owner would do.
        """
        name = self._leaving(chance)
        if name:
            self._kube.delete(paths.pods(self._side.namespace, name), {"gracePeriodSeconds": 0})
        self.create()

    def _leaving(self, chance: random.Random) -> str:
        """The pod that goes next, which counts no more; empty for none."""
        with self._lock:
            if len(self._held) >= _FULL * ROOM:
                return self._held.pop(chance.randrange(len(self._held)))
            name, since = next(iter(self._waiting.items()), ("", 0.0))
            if not name or time.monotonic() - since < _PATIENCE:
                return ""
            del self._waiting[name]
            self.given_up += 1
            return name

    def close(self) -> None:
        """End the watch."""
        self._closed.set()
