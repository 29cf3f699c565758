"""
A cluster of two replicas in which every program reaches the API server through its own proxy.

All these tests share one cluster. Each leaves it empty, with every program running and no fault, and the invariants are
checked before and after that.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from playground import scenarios
from playground.cluster import Cluster, Replica
from playground.embedded import ControlPlane
from playground.machinery.kubelet.gpuruntime import NodeGpus
from playground.programs.process import Program
from playground.scenarios import Outcome
from playground.shapes import GpuNode, gpu_node
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeNotFound
from tests.builders import PodBuilder, pod
from tests.cluster.system import invariants
from tests.cluster.trouble.proxy import Action, Fault, Hold, Proxy, Request, Wanted
from tests.clusters import only_real

LEASE, RENEW = 3.0, 2.0
"""
Seconds. A commit has 0.8 of the difference. They are short because tests wait for them. If the machine is busy for
longer, the leader changes once more, and every test must tolerate that.
"""
ASSUME_TTL = 2.0
PATIENCE = 60.0
"""Seconds: longer than two changes of the leader and the longest pauses between two attempts, on a busy machine."""
HOLD = "example.com/hold"
"""Another system's scheduling gate: a pod behind it waits until a test releases it."""
URGENT = "urgent"
"""A PriorityClass: its pods come before all others in the queue."""
NODES = (gpu_node("t4", "2 x Tesla T4 15109MiB"),)
MakePlane = Callable[[Callable[[str], NodeGpus]], ControlPlane]


def card(name: str) -> PodBuilder:
    """A pod that takes more than half of a card, so that the cluster has room for two."""
    return pod(name).asks("gpufraction.io/gpu-memory", "10000Mi")


class Troubled:
    """The cluster, its proxies by program, and the actions of tests on both."""

    def __init__(
        self,
        plane: MakePlane,
        directory: Path,
        *,
        nodes: Sequence[GpuNode] = NODES,
        flags: Sequence[str] = (),
        components: Sequence[str] = (),
    ) -> None:
        self.proxies: dict[str, Proxy] = {}
        self._paused: set[Program] = set()
        # Tests delay pods that got a share. After such a test no other pod would get one for a while.
        pace = ("--election-lease", f"{LEASE}s", "--sharing-max-unconfirmed", "0")
        self.cluster = Cluster(
            nodes=nodes,
            directory=directory,
            settings={"allocator": (*pace, "--assume-ttl", f"{ASSUME_TTL}s", *flags)},
            components=components,
            replicas=2,
            control_plane=plane,
            route=self._route,
        )

    def _route(self, program: str, kubeconfig: str) -> str:
        proxy = self.proxies[program] = Proxy()
        return proxy.kubeconfig(kubeconfig)

    # -- roles ----------------------------------------------------------------------------------------------------

    @property
    def allocators(self) -> list[Program]:
        """The allocators of both replicas."""
        return [self.cluster.programs[replica.name("allocator")] for replica in self.cluster.replicas]

    def leader(self) -> Program:
        """The allocator that leads, once a running one does."""
        found: list[Program] = []

        def leads() -> bool:
            found[:] = [each for each in self.allocators if self.leads(each)]
            return len(found) == 1

        wait_for(leads, lambda: f"{len(found)} replicas say that they lead")
        return found[0]

    def follower(self) -> Program:
        """The other one."""
        leader = self.leader()
        return next(each for each in self.allocators if each is not leader)

    def replica_of(self, program: Program) -> Replica:
        """The replica that an allocator belongs to."""
        return self.cluster.replicas[self.allocators.index(program)]

    def leads(self, program: Program) -> bool:
        """Whether a replica says that it leads."""
        return self._figures(program).get("gpufraction_leader") == 1

    def answers(self, program: Program) -> bool:
        """Whether a replica runs and has seen the cluster."""
        return bool(self._figures(program))

    def _figures(self, program: Program) -> dict[str, float]:
        if program in self._paused or not program.alive():
            return {}
        return invariants.figures(self.cluster, self.allocators.index(program))

    # -- actions --------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def fault(
        self, wanted: Wanted, action: Action, *, times: int | None = None, only: Program | None = None
    ) -> Iterator[Fault]:
        """Make the fault happen in this context to both allocators, or to only one program."""
        fault = Fault(wanted, action, times)
        programs = self.allocators if only is None else [only]
        with contextlib.ExitStack() as stack:
            for program in programs:
                stack.enter_context(self.proxies[program.name].suffering(fault))
            yield fault

    @contextlib.contextmanager
    def hold(self, wanted: Wanted, released: threading.Event) -> Iterator[Fault]:
        """Delay one request in this context, until it is released."""
        with self.fault(wanted, Hold(released), times=1) as fault:
            yield fault

    @contextlib.contextmanager
    def weather(self, seed: int, *actions: tuple[float, Action]) -> Iterator[list[Fault]]:
        """Make each action happen in this context to that random fraction of the allocators' requests, by the seed."""
        rng, lock = random.Random(seed), threading.Lock()

        def by_chance(part: float) -> Wanted:
            def wanted(request: Request) -> bool:
                with lock:
                    return rng.random() < part

            return wanted

        with contextlib.ExitStack() as stack:
            yield [stack.enter_context(self.fault(by_chance(part), action)) for part, action in actions]

    def cut_watches(self) -> int:
        """Cut the allocators' watches. Returns how many."""
        return sum(self.proxies[program.name].cut() for program in self.allocators)

    def pause(self, program: Program) -> None:
        """Stop it where it is (SIGSTOP), until `resume`."""
        self._paused.add(program)
        os.kill(program.pid, signal.SIGSTOP)

    def resume(self, program: Program) -> None:
        """Resume it."""
        os.kill(program.pid, signal.SIGCONT)
        self._paused.discard(program)

    def create(self, *made: PodBuilder) -> None:
        """Submit pods, one after another."""
        for builder in made:
            self.cluster.kube.create(paths.pods("default"), builder.manifest())

    def held(self, *made: PodBuilder) -> None:
        """Submit pods behind another system's gate, and wait until both allocators have seen them."""
        self.create(*(builder.gated(HOLD) for builder in made))
        wait_for(
            lambda: all(self._figures(each).get("gpufraction_waiting_pods") == len(made) for each in self.allocators),
            "the allocators do not see the pods",
        )

    def let_go(self, *pods: str) -> None:
        """Remove the other system's gate."""
        for name in pods:
            path = paths.pods("default", name)
            gates = [gate["name"] for gate in self.cluster.kube.get(path)["spec"]["schedulingGates"]]
            where = f"/spec/schedulingGates/{gates.index(HOLD)}"
            self.cluster.kube.patch_json(
                path, [{"op": "test", "path": f"{where}/name", "value": HOLD}, {"op": "remove", "path": where}]
            )

    def delete(self, name: str) -> None:
        """Delete a pod, if it was stored."""
        with contextlib.suppress(KubeNotFound):
            self.cluster.kube.delete(paths.pods("default", name))

    def becomes(self, wanted: Outcome, timeout: float = PATIENCE) -> list[dict[str, Any]]:
        """Wait until this holds for the existing pods. Returns the pods."""
        found: list[dict[str, Any]] = []

        def so() -> bool:
            found[:] = scenarios.all_pods(self.cluster.kube)
            return len(found) == wanted.running + wanted.waiting and scenarios.outcome(found) == wanted

        wait_for(so, lambda: f"{scenarios.outcome(found)} of {scenarios.shown(found)}", timeout)
        return found

    def mend(self) -> None:
        """Make every program run again."""
        for program in tuple(self._paused):
            self.resume(program)
        for program in self.cluster.programs.values():
            if program.name != "certs" and not program.alive():
                program.start()
        wait_for(lambda: all(map(self.answers, self.allocators)), "an allocator is not back")
        self.leader()


@pytest.fixture(scope="package", params=only_real())
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Troubled]:
    troubled = Troubled(request.param, tmp_path_factory.mktemp("troubled"))
    try:
        with troubled.cluster:
            troubled.cluster.kube.create(paths.priorityclasses(), {"metadata": {"name": URGENT}, "value": 1000})
            yield troubled
    finally:
        for proxy in troubled.proxies.values():
            proxy.close()


@pytest.fixture
def trouble(running: Troubled) -> Iterator[Troubled]:
    """The cluster, empty and in order. Afterwards every invariant holds, with the test's pods and without them."""
    running.leader()
    try:
        yield running
    finally:
        running.mend()
    invariants.check(running.cluster)
    scenarios.clear(running.cluster.kube)
    invariants.check(running.cluster)
