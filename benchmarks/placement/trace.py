"""
The public trace and the published protocol on it: which nodes there are and which pods arrive in which order.

The trace is `openb` of Weng et al., "Beware of Fragmentation" (USENIX ATC'23): a list of nodes and many lists of pods.
Its protocol, "workload inflation": the list in random order without repetition, then pods drawn from it with
repetition until 130% of the cluster's GPUs were requested (a list that is already longer loses random pods). They come
one at a time, nobody leaves, and a pod that fits nowhere is dropped. A card of the trace has 1000 parts.

How a part becomes ours: each card gets 1000 MiB, a share of N parts asks for N MiB and N/10 percent of cores, and a
whole card is requested exclusively. All shares of the trace are multiples of 10, so both sides always agree, and
a card has room for a share exactly when it has so many parts left.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from allocator.scoring.classes import CARD, Demanded, demanded
from contract.encoding.quantity import MIB
from contract.model import Compute, FractionRequest, Gpu, NodeState, PodRequest, Usage, Wishes
from contract.scheduling.needs import PodNeeds, SchedulingRequest

LISTS = (
    "default",
    *(f"cpu{part}" for part in ("050", "100", "200", "250")),
    *(f"gpushare{part}" for part in (40, 60, 80, 100)),
    *(f"gpuspec{part}" for part in (10, 20, 25, 33)),
    *(f"multigpu{part}" for part in (20, 30, 40, 50)),
)
"""The 17 lists of the published figures."""
BESIDE = ("gpuspec05", "late:multigpu30", "late:multigpu50")
"""Further lists: few pods name models, and pods of several cards come after all others (see `ordered`)."""
INFLATED_TO = 1.3
_CARD_BYTES = CARD * MIB
_MOST_PODS = 1001


class NoTrace(Exception):
    """The folder lacks the trace."""


@dataclass(frozen=True, slots=True)
class Task:
    """A pod of the trace. `cpu` in thousandths, `memory` in MiB, `parts` of each of `cards`; no models accept all."""

    cpu: int
    memory: int
    cards: int
    parts: int
    models: tuple[str, ...] = ()

    @property
    def volume(self) -> int:
        """Parts of cards in all."""
        return self.cards * self.parts

    def ask(self) -> SchedulingRequest:
        """The request as the allocator gets it."""
        containers: tuple[FractionRequest, ...] = ()
        if self.cards:
            fraction = FractionRequest(
                "main",
                self.cards,
                memory=self.parts * MIB,
                cores=self.parts // 10,
                exclusive=self.parts == CARD,
                wishes=Wishes(use_models=self.models),
            )
            containers = (fraction,)
        return SchedulingRequest(PodRequest("trace", containers), PodNeeds(Compute(self.cpu, self.memory * MIB, 0, 1)))


@dataclass(frozen=True, slots=True)
class Machine:
    """A node of the trace. `cpu` in thousandths, `memory` in MiB."""

    cpu: int
    memory: int
    cards: int
    model: str

    def state(self, name: str) -> NodeState:
        """The node, empty."""
        gpus = tuple(
            Gpu(f"GPU-{name}-{index}", index, self.model, _CARD_BYTES, _CARD_BYTES) for index in range(self.cards)
        )
        return NodeState(
            name,
            gpus,
            (Usage(),) * self.cards,
            allocatable=Compute(self.cpu, self.memory * MIB, 0, _MOST_PODS),
        )


def machines(folder: Path) -> tuple[Machine, ...]:
    """The nodes with GPUs. Raises `NoTrace`."""
    rows = _rows(folder / "openb_node_list_gpu_node.csv")
    return tuple(Machine(int(r["cpu_milli"]), int(r["memory_mib"]), int(r["gpu"]), r["model"]) for r in rows)


def tasks(folder: Path, name: str) -> tuple[Task, ...]:
    """One list of pods, in the order of their names. Raises `NoTrace`."""
    rows = sorted(_rows(folder / f"openb_pod_list_{name}.csv"), key=lambda row: row["name"])
    return tuple(
        Task(
            int(row["cpu_milli"]),
            int(row["memory_mib"]),
            int(row["num_gpu"]),
            int(row["gpu_milli"]) if int(row["num_gpu"]) else 0,
            tuple(word for word in (row.get("gpu_spec") or "").split("|") if word),
        )
        for row in rows
    )


def times(folder: Path, name: str) -> list[tuple[int, int]]:
    """When each pod of a list was created and deleted, in seconds, in the order of `tasks`. Raises `NoTrace`."""
    rows = sorted(_rows(folder / f"openb_pod_list_{name}.csv"), key=lambda row: row["name"])
    return [(int(row["creation_time"]), int(row["deletion_time"])) for row in rows]


def _rows(path: Path) -> Iterator[dict[str, str]]:
    if not path.is_file():
        raise NoTrace(f"{path} is missing: give the folder of the openb trace with --trace")
    with path.open(newline="") as file:
        yield from csv.DictReader(file)


def arrivals(listed: Sequence[Task], capacity: int, rng: np.random.Generator) -> list[Task]:
    """The pods of one run in their order; `capacity` in parts."""
    order = [listed[int(at)] for at in rng.permutation(len(listed))]
    bound, total = INFLATED_TO * capacity, sum(task.volume for task in order)
    while total > bound:
        total -= order.pop(int(rng.integers(len(order)))).volume
    while True:
        drawn = listed[int(rng.integers(len(listed)))]
        if total + drawn.parts > bound:
            return order
        order.append(drawn)
        total += drawn.volume


SHIFT, LATE = "+", "late:"


def ordered(folder: Path, name: str, capacity: int, rng: np.random.Generator) -> list[Task]:
    """
    The pods of one run in their order, where the name may also be of a demand that changes. Raises `NoTrace`.

    `a+b`: pods of list a until half of the cards were requested, then pods of list b. `late:a`: the pods of list a, but
    those of several cards after all others, so that nothing announces them.
    """
    first, shift, then = name.removeprefix(LATE).partition(SHIFT)
    order = arrivals(tasks(folder, first), capacity, rng)
    if name.startswith(LATE):
        return sorted(order, key=lambda task: task.cards > 1)
    if not shift:
        return order
    changed = _upto(order, capacity // 2)
    return changed + _upto(arrivals(tasks(folder, then), capacity, rng), int(INFLATED_TO * capacity) - _total(changed))


def _upto(order: Sequence[Task], bound: int) -> list[Task]:
    end = int(np.searchsorted(np.cumsum([task.volume for task in order]), bound, side="right"))
    return list(order[:end])


def _total(order: Iterable[Task]) -> int:
    return sum(task.volume for task in order)


def target_of(folder: Path, name: str) -> dict[Demanded, float]:
    """The total demand of a list, or of one that changes. Raises `NoTrace`."""
    lists = name.removeprefix(LATE).split(SHIFT)
    return target([task for each in lists for task in tasks(folder, each)])


def nodes(listed: Sequence[Machine], rng: np.random.Generator) -> list[NodeState]:
    """The empty nodes under names that are in random order, which is how the published runs break ties."""
    return [
        machine.state(f"node-{int(number):05d}")
        for machine, number in zip(listed, rng.permutation(len(listed)), strict=True)
    ]


def target(listed: Iterable[Task]) -> dict[Demanded, float]:
    """The demand of a list, for policies that may know it beforehand."""
    classes = Counter(each for task in listed for each in _classes(task))
    return {each: float(amount) for each, amount in classes.items()}


def _classes(task: Task) -> Iterator[Demanded]:
    ask = task.ask()
    return demanded(ask.request, ask.needs.compute.cpu)
