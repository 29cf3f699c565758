"""
The three programs as they run in production, each on its own host in this process.

The function that a program's `main` calls starts it, with its settings, a client over the simulated network, and a
server of its routes for other hosts. Killing a host ends each of its tasks immediately: nothing of it runs again, not
even a `finally`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import allocator.app
import nodeagent.app
import webhook.app
from allocator.app import RunningAllocator
from nodeagent.delivering import DELIVERY, BuildWay
from nodeagent.isolation.host import HostSystem
from nodeagent.isolation.levels import MECHANISMS
from nodeagent.settings import settings_type
from runtime import unixhttp
from runtime.httpserver import Request, answered
from runtime.kubernetes.client import Kube, KubeError
from runtime.process import Process
from runtime.settings import load
from tests.serving import InProcess
from tests.simulation.kernel.primitives import Event, Queue
from tests.simulation.kernel.scheduler import SECOND, Host, Kernel
from tests.simulation.world.driver import Driver
from webhook.settings import ServeSettings

_MACHINE = HostSystem(kernel="6.8.0", cgroup="v2", sees_processes=True)

Exited = Callable[["Program", int], None]


class Program:
    """
    A program and the hosts on which it ran: each start has a new host.

    name: of its place, such as `allocator-0`. body: composes it on a task of its host, and returns its exit code.
    retired: another instance has replaced it, so it is not started again.
    """

    def __init__(
        self, kernel: Kernel, name: str, body: Callable[[Program, Process], int], exited: Exited, *, rate: float = 1.0
    ) -> None:
        self.name = name
        self.rate = rate
        self.offset = 0.0
        self.starts = 0
        self.retired = False
        self.host: Host | None = None
        self.process: Process | None = None
        self.running: Any = None
        """What the program's own start function returned; None until it returns."""
        self._kernel = kernel
        self._body = body
        self._exited = exited

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.host is not None and self.host.alive

    def start(self) -> None:
        """Start it on a new host. Does nothing if the program runs or is retired."""
        if self.alive or self.retired:
            return
        self.starts += 1
        self.running = self.process = None
        self.host = host = Host(f"{self.name}.{self.starts}", self._kernel.seed)
        host.rate, host.offset = self.rate, self.offset
        self._kernel.spawn(host, lambda: self._run(host), "main")

    def successor(self) -> Program:
        """Another instance in the same place, to start while this one still runs. This one is not started again."""
        self.retired = True
        found = Program(self._kernel, self.name, self._body, self._exited, rate=self.rate)
        found.offset, found.starts = self.offset, self.starts
        return found

    def drift(self, rate: float) -> None:
        """Make its clocks run at this rate, also after its next start."""
        self.rate = rate
        if self.host is not None:
            self.host.drift(self._kernel.now, rate)

    def set_wall(self, offset: float) -> None:
        """Set its wall clock this many seconds ahead, also after its next start."""
        self.offset = offset
        if self.host is not None:
            self.host.offset = offset

    def kill(self) -> None:
        """End it immediately."""
        if self.host is not None:
            self.host.alive = False

    def stop(self) -> None:
        """Stop it gracefully, as SIGTERM does. It is killed when its grace period is over."""
        if self.alive and self.process is not None:
            self.process.stop.set()

    def pause(self, seconds: float) -> None:
        """Let none of its tasks run for this long, like a stopped process or a suspended machine."""
        if self.host is not None:
            self._kernel.pause(self.host, seconds)

    def _run(self, host: Host) -> None:
        process = Process()
        self.process = process
        process.watch_threads()
        code = self._body(self, process)
        host.alive = False
        self._exited(self, code)


# -- the allocator ---------------------------------------------------------------------------------------------------


@dataclass
class AllocatorProgram:
    """A running allocator: what the simulation reads from it, and what it serves."""

    allocator: RunningAllocator
    served: InProcess


def allocator_body(flags: Callable[[], list[str]], kube: Callable[[Host], Kube]) -> Callable[[Program, Process], int]:
    """Runs an allocator to its end. `flags` are read at each start, so that it can be rolled to other flags."""

    def body(program: Program, process: Process) -> int:
        assert program.host is not None
        settings = load(allocator.app.settings_type(), file=None, env={}, argv=flags())
        served = InProcess()
        try:
            running = allocator.app.start(settings, kube(program.host), process, serve=served)
        except (KubeError, allocator.app.TooOld):
            return 1
        program.running = AllocatorProgram(running, served)
        code = process.wait()
        running.stop()
        return code

    return body


# -- the webhook -----------------------------------------------------------------------------------------------------


@dataclass
class WebhookProgram:
    """A running webhook. `post` answers a review on a task of its host."""

    service: Any
    client: Any


class ToAllocator:
    """
    The `UnixClient` of a webhook whose allocator is another host of the same pod.

    A task of the allocator carries out each request. `peer` returns the program to ask.
    """

    def __init__(self, kernel: Kernel, peer: Callable[[], Program], latency: Callable[[], int]) -> None:
        self._kernel, self._peer, self._latency = kernel, peer, latency

    def get(self, target: str, *, timeout: float) -> unixhttp.Answer:
        """See `UnixClient`."""
        return self._ask("GET", target, b"", timeout)

    def post(self, target: str, document: Any, *, timeout: float) -> unixhttp.Answer:
        """See `UnixClient`."""
        return self._ask("POST", target, json.dumps(document, separators=(",", ":")).encode(), timeout)

    def _ask(self, method: str, target: str, body: bytes, timeout: float) -> unixhttp.Answer:
        peer = self._peer()
        found = peer.running
        served = found.served.opened.get("socket") if peer.alive and found is not None else None
        if served is None or served.closings or peer.host is None:
            raise unixhttp.Unreachable("no server listens")
        came: Queue = Queue()

        def carry_out() -> None:
            self._kernel.block(self._latency())
            came.put(answered(served.routes, Request(method, target, "", {}, body)))

        self._kernel.spawn(peer.host, carry_out, "asked")
        try:
            reply = came.get(timeout=timeout)
        except Exception as late:
            raise unixhttp.TimedOut(f"no answer within {timeout} s") from late
        return unixhttp.Answer(reply.status, reply.body)


def webhook_body(
    flags: Callable[[], list[str]], client: Callable[[Program], ToAllocator]
) -> Callable[[Program, Process], int]:
    """Runs a webhook to its end, without its server: reviews come through `ask`."""

    def body(program: Program, process: Process) -> int:
        settings = load(ServeSettings, file=None, env={}, argv=flags())
        service = webhook.app.make_app(settings, client=lambda path: client(program))
        program.running = WebhookProgram(service, service.app.test_client())
        return process.wait()

    return body


def review(
    kernel: Kernel, program: Program, path: str, body: bytes, timeout: float, *, held: float = 0.0
) -> tuple[int, bytes] | None:
    """
    What a webhook answers to a review, with the status; None if no answer comes within the timeout. held: seconds that
    the review spends in transit; it is still answered.
    """
    came, answers = Event(), []

    def carry_out() -> None:
        if held:
            kernel.block(int(held * SECOND))
        response = program.running.client.post(path, data=body, content_type="application/json")
        answers.append((response.status_code, response.get_data()))
        came.set()

    assert program.host is not None
    kernel.spawn(program.host, carry_out, "review")
    return answers[0] if came.wait(timeout) else None


# -- the node agent ---------------------------------------------------------------------------------------------------


def agent_body(
    node: str,
    shows: Callable[[], str],
    flags: Callable[[], list[str]],
    kube: Callable[[Host], Kube],
    ways: Sequence[BuildWay] = DELIVERY,
) -> Callable[[Program, Process], int]:
    """Runs a node agent to its end, with the cards that its driver shows; see `Driver`. `ways`: of delivery."""

    def body(program: Program, process: Process) -> int:
        assert program.host is not None
        settings = load(settings_type(MECHANISMS), file=None, env={}, argv=["--node", node, "--listen", "", *flags()])
        library = Driver(shows, node=node)
        running = nodeagent.app.start(settings, library, kube(program.host), process, host=_MACHINE, ways=ways)
        program.running = running
        code = process.wait()
        running.stop()
        return code

    return body
