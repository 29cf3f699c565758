"""
A cluster in one process: the API server, the machinery behind it, and our programs, installed as an administrator does.

    world = World(kernel, Shape())
    kernel.spawn(world.admin, lambda: world.boot(), "boot")

Everything except the observer runs on tasks. `world.api` is the current API server; after a restore of etcd it is the
same one with another state.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contract import names
from contract.components import component
from nodeagent.delivering import DELIVERY
from nodeagent.gpus.library import GpuLibraryError
from playground.api.admission.attributes import Attributes
from playground.api.admission.webhookcaller import CallFailed
from playground.api.api import SERVER_VERSION, Api
from playground.api.kinds.values import ADMIN, JSON
from playground.api.store.store import Change, Snapshot
from playground.cluster import account
from playground.machinery.cluster import Machinery
from playground.machinery.kubelet.gpuruntime import NodeGpu
from playground.machinery.objects.nodes import NodeSpec
from playground.programs import installing
from runtime.kubernetes.client import Kube
from runtime.kubernetes.oversized import Oversized
from tests.simulation.kernel.modules import monotonic, wall
from tests.simulation.kernel.primitives import Event
from tests.simulation.kernel.scheduler import SECOND, Host, Kernel
from tests.simulation.world import claimplugins, programs
from tests.simulation.world.claimplugins import ClaimPlugins
from tests.simulation.world.driver import Driver
from tests.simulation.world.network import Network, Way
from tests.simulation.world.programs import Program

NAMESPACES = ("team-a", "team-b")
BY_CLAIMS = "delivery-dra"
"""The component that makes the agents kubelet plugins."""
SHARES_BY_CLAIMS = "resourceclaims"
"""The component that lets tenants request by ResourceClaims. It needs this version of Kubernetes."""
SINCE = "v1.36.2"
Reviewing = Callable[[list[Program], str, bytes], list[Program]]
"""Chooses the webhook that receives a review among those that answer. It gets the path and the review, and may wait."""
Storing = Callable[[Attributes], None]
"""Called with what admission has admitted, before it is stored. It may wait, and raises `ApiError` to refuse it."""


@dataclass(frozen=True, slots=True)
class Shape:
    """
    What a world has. cards: of each node, as `nodeagent.gpus.simulated` describes them. flags: further flags by
    program.

    latency: seconds for one direction on the network, minimum and maximum. options: the administrator's document, if
    any.
    """

    cards: Mapping[str, str] = field(default_factory=lambda: {f"n{i}": "4 x Tesla T4 15109MiB" for i in range(1, 4)})
    replicas: int = 2
    components: tuple[str, ...] = ("claims", "unhealthy-lists")
    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    latency: tuple[float, float] = (0.0005, 0.02)
    agents: bool = True
    options: str = ""


class World:
    """
    The cluster of one run.

    observers: called with each change at its commit; they must not wait. ended: called with each program that ended by
    itself, and its exit code.
    """

    def __init__(self, kernel: Kernel, shape: Shape) -> None:
        self.kernel = kernel
        self.shape = shape
        self.admin = Host("admin", kernel.seed)
        self.server = Host("apiserver", kernel.seed)
        self.manager = Host("kube-system", kernel.seed)
        self.observers: list[Callable[[Change], None]] = []
        self.ended: list[Callable[[Program, int], None]] = []
        self.network = Network(kernel, lambda: self.api, self.server, latency=shape.latency)
        self.api: Api
        self.machinery: Machinery
        self.folder = Path(tempfile.mkdtemp(prefix="gpufraction-simulation-"))
        self._options = self.folder / "options.yaml"
        if shape.options:
            self._options.write_text(shape.options)
        self.flags: dict[str, tuple[str, ...]] = dict(shape.flags)
        """The flags for the programs' next start."""
        self.reviewed: list[Callable[[JSON], None]] = []
        """Called with each review that a webhook has answered."""
        self.reviewing: list[Reviewing] = []
        """Faults of reviews in transit, in the order in which they began."""
        self.review_held = 0.0
        """Seconds that a review spends in transit to the webhook."""
        self.storing: list[Storing] = []
        """Faults between the admission of an object and its commit."""
        self.allocators = [self._program(f"allocator-{i}", self._allocator(i)) for i in range(shape.replicas)]
        self.webhooks = [self._program(f"webhook-{i}", self._webhook(i)) for i in range(shape.replicas)]
        self.agents = {node: self._program(f"nodeagent-{node}", self._agent(node)) for node in shape.cards}
        self.cards: dict[str, str] = dict(shape.cards)
        """What each node has now."""
        self.disguises: dict[str, list[Callable[[str], str]]] = {node: [] for node in shape.cards}
        self.leaving: list[Program] = []
        """Instances that have been replaced and still run."""
        self._shown: dict[str, str] = {}
        """What each node's driver shows."""
        self._drivers: dict[str, Driver] = {}
        self.up = False

    # -- parts --------------------------------------------------------------------------------------------------------

    def programs(self) -> list[Program]:
        """All of our programs."""
        return [*self.allocators, *self.webhooks, *self.agents.values()]

    def replace(self, program: Program) -> Program:
        """
        Start another instance in the program's place; the program still runs among those that are leaving. Does nothing
        if the program has already been replaced.
        """
        if program.retired:
            return program
        found = program.successor()
        for places in (self.allocators, self.webhooks):
            if program in places:
                places[places.index(program)] = found
        self.agents = {node: found if each is program else each for node, each in self.agents.items()}
        self.leaving.append(program)
        found.start()
        return found

    def kube(self, host: Host, user: Any = ADMIN) -> Kube:
        """A client of the API server on that host."""
        return Kube(Way(self.network, host, user), oversized=Oversized())

    def show_cards(self, node: str, text: str) -> None:
        """Make the node's driver show these cards: a YAML document of `nodeagent.gpus.simulated`."""
        self._shown[node] = text

    def exchange_cards(self, node: str, cards: str) -> None:
        """Give the node other cards, such as `2 x Tesla T4 15109MiB`."""
        self.cards[node] = cards
        self._show(node)

    def disguise_cards(self, node: str, disguise: Callable[[str], str]) -> Callable[[], None]:
        """
        Make the driver show the node's cards differently until the returned function is called. If there are several
        disguises, the last one that has not ended applies.
        """
        self.disguises[node].append(disguise)
        self._show(node)

        def undo() -> None:
            self.disguises[node].remove(disguise)
            self._show(node)

        return undo

    def show_again(self, node: str) -> None:
        """Read again what the disguise of the node's cards shows."""
        self._show(node)

    def _show(self, node: str) -> None:
        cards, disguises = self.cards[node], self.disguises[node]
        self.show_cards(node, disguises[-1](cards) if disguises else f"gpus: {cards}\n")

    def _program(self, name: str, body: Callable[[Program, Any], int]) -> Program:
        return Program(self.kernel, name, body, self._exited)

    def _exited(self, program: Program, code: int) -> None:
        for each in self.ended:
            each(program, code)

    def another_allocator(self, name: str) -> Program:
        """An additional allocator, which is not started again when it ends."""
        return Program(self.kernel, f"allocator-{name}", self._allocator(name), lambda program, code: None)

    def _allocator(self, number: int | str) -> Callable[[Program, Any], int]:
        def flags() -> list[str]:
            own = ["--socket", "/socket", "--listen", "", "--election-identity", f"replica-{number}"]
            return [*own, *self._component_flags("allocator"), *self.flags.get("allocator", ())]

        return programs.allocator_body(flags, lambda host: self.kube(host, account("gpufraction-allocator")))

    def _webhook(self, number: int) -> Callable[[Program, Any], int]:
        def client(program: Program) -> programs.ToAllocator:
            return programs.ToAllocator(self.kernel, lambda: self.allocators[number], lambda: 50_000)

        def flags() -> list[str]:
            own = ["--certificates", str(self.folder), "--listen", ""]
            return [*own, *self._component_flags("webhook"), *self.flags.get("webhook", ())]

        return programs.webhook_body(flags, client)

    def _agent(self, node: str) -> Callable[[Program, Any], int]:
        def flags() -> list[str]:
            return [*self._component_flags("nodeagent"), *self.flags.get("nodeagent", ())]

        user = account("gpufraction-nodeagent", node=node, components=self.shape.components)
        ways = claimplugins.WAYS if BY_CLAIMS in self.shape.components else DELIVERY
        return programs.agent_body(node, lambda: self._shown[node], flags, lambda host: self.kube(host, user), ways)

    def _component_flags(self, program: str) -> tuple[str, ...]:
        options = (f"--options={self._options}",) if self.shape.options else ()
        return (*options, *(flag for name in self.shape.components for flag in component(name).flags(program)))

    # -- life ---------------------------------------------------------------------------------------------------------

    def boot(self) -> None:
        """On a task: install everything and start the programs. Returns when a leader decides and a webhook answers."""
        self.kernel.spawn(self.manager, self._start_control_plane, "start")
        while not self.up:
            self.kernel.block(SECOND // 100)
        kube = Kube(_Direct(self.api))
        for document in installing.to_apply(components=self.shape.components):
            installing.apply(kube, document)
        for node in self.shape.cards:
            self.add_node(node)
        for namespace in NAMESPACES:
            labels = {names.INJECT_LABEL: names.INJECT_ENABLED}
            installing.apply(
                kube, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}}
            )
        for node in self.shape.cards:
            self._show(node)
        for program in self.programs():
            program.start()
        while not self.serves():
            self.kernel.block(SECOND // 10)

    def add_node(self, node: str) -> None:
        """Register a node of the world's shape, as its kubelet does. An existing node stays as it is."""
        number = list(self.shape.cards).index(node)
        self.machinery.add_node(NodeSpec(node, cpu="32", memory="256Gi", address=f"10.0.0.{number + 1}"))

    def grow(self, node: str, cards: str, labels: Mapping[str, str]) -> None:
        """A node that the shape does not have joins the cluster, with its agent."""
        self.show_cards(node, f"gpus: {cards}\n")
        self.agents[node] = agent = self._program(f"nodeagent-{node}", self._agent(node))
        address = f"10.0.1.{len(self.agents)}"
        self.machinery.add_node(NodeSpec(node, cpu="32", memory="256Gi", address=address, labels=labels))
        agent.start()

    def serves(self) -> bool:
        """Whether one allocator leads, a webhook answers, and every node has its cards published."""
        return self.leader() is not None and bool(self._answering()) and all(map(self._published, self.shape.cards))

    def leader(self) -> Program | None:
        """The allocator that may decide now; one of them if there are two."""
        return next(iter(self.leaders()), None)

    def leaders(self) -> list[Program]:
        """Every allocator that believes it may decide. This runs none of its tasks."""
        leaving = [each for each in self.leaving if each.name.startswith("allocator")]
        found = [*self.allocators, *leaving]
        return [each for each in found if each.alive and each.running and _leads(self.kernel, each)]

    def _published(self, node: str) -> bool:
        return self.api.store.get(f"{names.GPUNODE_PLURAL}.{names.GROUP}", ("", node)) is not None

    def _answering(self) -> list[Program]:
        """The webhooks to which the Service sends reviews."""
        ready = [each for each in self.webhooks if each.alive and each.running is not None]
        return [each for each in ready if each.host is not None and each.host.paused_until <= self.kernel.now]

    def _start_control_plane(self) -> None:
        self.api = Api(
            server_version=SINCE if SHARES_BY_CLAIMS in self.shape.components else SERVER_VERSION,
            clock=wall,
            monotonic=monotonic,
            webhooks=lambda store: self,
            observer=self._committed,
            plugins=(_Storing(self.storing),),
        )
        self._start_machinery()
        self.up = True

    def _start_machinery(self) -> None:
        self.machinery = Machinery(self.api, gpus_of=self._gpus_of)
        self.api.log_provider = self.machinery.logs
        if BY_CLAIMS in self.shape.components:
            self.machinery.use_plugins(ClaimPlugins(self._claim, lambda node: self.agents[node].alive))
        self.machinery.start()

    def _claim(self, namespace: str, name: str) -> JSON | None:
        return self.api.store.get(claimplugins.CLAIMS, (namespace, name))

    def restore(self, state: Snapshot, *, bump: int) -> None:
        """On a task: restore etcd to a state, and start controllers and kubelets again, as after such a disaster."""
        self.api.restore(state, bump=bump)
        before = self.machinery
        done = Event()

        def begin() -> None:
            before.stop()
            self._start_machinery()
            done.set()

        self.kernel.spawn(self.manager, begin, "start")
        done.wait()

    def _committed(self, change: Change) -> None:
        self.network.committed[change.revision] = self.kernel.now
        for each in self.observers:
            each(change)

    def _gpus_of(self, node: str) -> tuple[NodeGpu, ...]:
        """What the node's driver sees."""
        try:
            if node not in self._drivers:
                self._drivers[node] = Driver(lambda: self._shown[node], node=node)
            cards = self._drivers[node].gpus()
        except GpuLibraryError:
            return ()
        return tuple(NodeGpu(card.index, card.uuid, card.model, card.memory_bytes) for card in cards)

    # -- how the API server calls a webhook ---------------------------------------------------------------------------

    def call(self, hook: JSON, document: JSON) -> Any:
        """`WebhookCaller`: calls a webhook that answers, chosen by the task's own random numbers."""
        task = self.kernel.current
        assert task is not None
        answering = self._answering()
        url = hook["clientConfig"].get("service", {}).get("path") or "/"
        what = f'failed to call webhook: Post "https://webhook{url}"'
        timeout = float(hook.get("timeoutSeconds") or 10)
        body = json.dumps(document).encode()
        for each in list(self.reviewing):
            answering = each(answering, url, body)
        if not answering:
            raise CallFailed(f"{what}: connect: connection refused")
        chosen = answering[task.rng.randrange(len(answering))]
        self.kernel.block(self.network.delay(self.server))
        found = programs.review(self.kernel, chosen, url, body, timeout, held=self.review_held)
        if found is None:
            raise CallFailed(f"{what}: context deadline exceeded")
        status, body = found
        if status != 200:
            raise CallFailed(f'failed to call webhook: an error on the server ("{status}")')
        self.kernel.block(self.network.delay(self.server))
        for told in self.reviewed:
            told(document)
        return json.loads(body)

    def identify(self, certificate: bytes, key: bytes) -> None:
        """`WebhookCaller`: nothing here asks for a certificate."""

    def close(self) -> None:
        """`WebhookCaller`: nothing is open."""


class _Storing:
    """The last plugin of admission: here an object that our webhook has admitted is delayed or lost."""

    def __init__(self, faults: list[Storing]) -> None:
        self._faults = faults

    def mutate(self, attributes: Attributes) -> None:
        """Does nothing."""

    def validate(self, attributes: Attributes) -> None:
        """Let each fault wait or refuse."""
        for each in list(self._faults):
            each(attributes)


def _leads(kernel: Kernel, program: Program) -> bool:
    """`is_leader` by the program's own clock."""
    before, kernel.current = kernel.current, _Look(program.host)  # type: ignore[assignment]
    try:
        return bool(program.running.allocator.leader.is_leader())
    finally:
        kernel.current = before


@dataclass
class _Look:
    """Acts as a task while an observer reads a program's clock."""

    host: Host | None
    preempt: bool = False


class _Direct:
    """A `Transport` that calls the API server directly, for the administrator's work before the run begins."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def request(self, request: Any) -> Any:
        from tests.simulation.world.network import _Answer

        body = json.loads(request.body) if request.body else None
        kind = request.headers.get("Content-Type", "application/json")
        code, answer = self._api.call(
            request.method, request.path, query=dict(request.query), body=body, content_type=kind
        )
        return _Answer(code, json.dumps(answer).encode())
