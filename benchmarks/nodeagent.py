"""
`python -m benchmarks.nodeagent`: the agent's own cost on a node with 8 GPUs and 64 sharers.

The agent's own parts run as in `run`, check after check without the pauses. The processor time is compared with the
pauses that there would have been. The library is simulated or, with `--nvml-library`, any that NVML's bindings load.
Only the API server is a stand-in that answers from memory: between changes, the agent does not call it anyway.

Must not: stand in for the agent's own work anywhere.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from contract.metrics import metrics_of
from contract.model import Allocation, ContainerAllocation, GpuShare
from nodeagent.agent import Agent
from nodeagent.gpus.library import Card, GpuLibrary
from nodeagent.gpus.nvml import Nvml
from nodeagent.gpus.observation import Observation, Observer
from nodeagent.machine import Machine
from nodeagent.publishing.metrics import AgentGauges
from nodeagent.sharing.overuse import OveruseMonitor, OveruseSettings
from nodeagent.sharing.overuse_reports import OveruseReporter, read_cgroup
from nodeagent.sharing.residents import Resident, Residents
from runtime.kubernetes.client import JSON, Kube
from runtime.kubernetes.transport import HttpRequest
from runtime.metrics import Metrics
from runtime.settings import SettingsError, load, setting, settings_file

GPUS, SHARERS_OF_EACH = 8, 8
_WARM_UP = 5
_SCRAPE_EVERY = 3
"""Checks between two scrapes: 15 s with a check every 5 s."""


@dataclass(frozen=True)
class BenchSettings:
    """The settings of the measurement."""

    nvml_library: str = setting("", "Path of a libnvidia-ml.so.1 to look through; empty: made-up cards.")
    looks: int = setting(200, "How many looks to measure.", minimum=1)
    interval: float = setting(5.0, "The pause between two looks that is reckoned with.", unit="duration", minimum=0.1)


@dataclass(frozen=True, slots=True)
class Cost:
    """The result: resident bytes, and seconds of processor time for one check with all of its consequences."""

    gpus: int
    sharers: int
    resident: int
    per_look: float

    def part_of_a_core(self, interval: float) -> float:
        """The part of a core that the agent uses with a check every `interval` seconds."""
        return self.per_look / interval


class Crowd:
    """A library of 8 cards with 8 processes on each."""

    def driver_version(self) -> str:
        """See `GpuLibrary`."""
        return "550.54.15"

    def cuda_version(self) -> str:
        """See `GpuLibrary`."""
        return "12.4"

    def gpus(self) -> tuple[Card, ...]:
        """See `GpuLibrary`."""
        return tuple(
            Card(
                index,
                f"GPU-{index}",
                "NVIDIA H100 80GB HBM3",
                80 << 30,
                used_bytes=SHARERS_OF_EACH << 30,
                processes=tuple((1000 + index * SHARERS_OF_EACH + n, 1 << 30) for n in range(SHARERS_OF_EACH)),
            )
            for index in range(GPUS)
        )


class _Sharers(Residents):
    """A pod of its own for each process."""

    def __init__(self, cards: tuple[Card, ...]) -> None:
        super().__init__()
        self._all = tuple(_resident(card, pid) for card in cards for pid, _ in card.processes or ())

    def all(self) -> tuple[Resident, ...]:
        return self._all


@dataclass
class _Answer:
    body: JSON
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)

    def read(self, most: int | None = None) -> bytes:
        return json.dumps(self.body).encode()

    def chunks(self) -> Iterator[bytes]:
        yield self.read()

    def close(self) -> None:
        return None


class _Memory:
    """An API server's answers for one Node and its GPUNode: it returns the last writes."""

    def __init__(self) -> None:
        self._objects: dict[str, JSON] = {}

    def request(self, request: HttpRequest) -> _Answer:
        key = "gpunode" if "gpunodes" in request.path else "node"
        known = self._objects.setdefault(key, {"metadata": {"name": "bench", "uid": "bench"}, "status": {}})
        for part, value in json.loads(request.body or b"{}").items():
            known[part] = {**known[part], **value} if isinstance(value, dict) and part in known else value
        return _Answer(known)


def measure(library: GpuLibrary, *, looks: int) -> Cost:
    """Look so many times and give the cost of one."""
    metrics = Metrics(metrics_of("nodeagent"))
    gauges = AgentGauges(metrics, node="bench")
    cards = library.gpus()
    residents = _Sharers(cards)
    kube = Kube(_Memory())
    guard = OveruseReporter(
        residents,
        OveruseMonitor(OveruseSettings()),
        show=gauges.show_usage,
        cgroup_of=lambda pid: _cgroup(pid),
    )

    def seen(observation: Observation) -> None:
        gauges.show(observation)
        guard.step(observation)

    observer = Observer(library, on_look=seen)
    agent = Agent(kube, Machine(observer.latest, residents=residents), "bench")

    def look(number: int) -> None:
        observer.look_once()
        agent.step()
        if number % _SCRAPE_EVERY == 0:
            metrics.render()

    for number in range(_WARM_UP):
        look(number)
    started = time.process_time()
    for number in range(looks):
        look(number)
    spent = time.process_time() - started
    return Cost(len(cards), len(residents.all()), _resident_bytes(), spent / looks)


def report(cost: Cost, *, interval: float) -> str:
    """The figures as one sentence."""
    part = 100 * cost.part_of_a_core(interval)
    return (
        f"node agent with {cost.gpus} GPUs and {cost.sharers} sharers: {cost.resident / (1 << 20):.0f} MiB resident, "
        f"{1000 * cost.per_look:.2f} ms of processor time a look, {part:.2f} % of a core at a look every {interval:g} s"
    )


def _cgroup(pid: int) -> str:
    """The price of reading a process's file, and a container that is the process's own."""
    read_cgroup(1)
    return f"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{pid:064x}.scope\n"


def _resident(card: Card, pid: int) -> Resident:
    share = GpuShare(card.uuid, card.index, card.memory_bytes // SHARERS_OF_EACH, 0, card.memory_bytes)
    allocation = Allocation(f"a{pid}", "bench", (ContainerAllocation("main", (share,)),))
    return Resident(f"uid-{pid}", "bench", f"pod-{pid}", allocation, containers=((f"{pid:064x}", "main"),))


def _resident_bytes() -> int:
    """VmRSS of this process (proc(5))."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("/proc/self/status has no VmRSS")


def main(argv: list[str]) -> int:
    """Measure and print. The exit status: 2 where a flag is wrong."""
    try:
        file, flags = settings_file(argv)
        settings = load(BenchSettings, file=file, env=os.environ, argv=flags)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    library = Nvml(path=settings.nvml_library) if settings.nvml_library else Crowd()
    print(report(measure(library, looks=settings.looks), interval=settings.interval))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
