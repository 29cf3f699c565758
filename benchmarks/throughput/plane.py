"""
A real control plane with many nodes that nobody runs: etcd, kube-apiserver and kube-scheduler.

Nodes are objects, and so are their GPUs. There are no kubelets, no agents and no controllers, so nothing is written
but by what is measured.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.progress import say
from benchmarks.throughput.peers.peer import CARD, CARDS, MODEL, Host, Peer
from contract import names
from contract.model import Gpu, Inventory
from contract.nodes.inventories import inventory_to_status
from playground.api.kinds.values import User
from playground.machinery.client.claims import Plugins
from playground.machinery.cluster import SCHEDULER
from playground.machinery.kubelet.podrun import Programs
from playground.machinery.objects.nodes import NodeSpec, node_object
from playground.programs import installing
from playground.programs.process import Program
from playground.realapi import components
from playground.realapi.components import Assets
from playground.realapi.server import RealServer, called_by_url
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError

JSON = dict[str, Any]
EXTENDED = "bench.example/replica"
"""The extended resource by which kube-scheduler alone places."""
SHARES, GPUS = 64, CARDS
"""Shares of a node, in EXTENDED, and its cards."""
POOL = "pool"
HELD, OPEN = "held", "open"
"""Values of the label POOL: of a few nodes, such as those that gated pods wait for, and of all others."""
_SEEDING = 8


class Nodes:
    """
    A control plane of so many nodes, `held` of which are those that gated pods wait for.

    `gpus`: whether the nodes have GPUs that gpufraction knows. `namespaces` exist from the start, with the account that
    a controller would make. Without GPUs it is a cluster that has never seen gpufraction. `dress` changes each Node, in
    place, before it is created. `scheduler`: kube-scheduler is started with it.
    """

    def __init__(
        self,
        assets: Assets,
        *,
        nodes: int,
        held: int,
        gpus: bool,
        namespaces: Sequence[str],
        dress: Callable[[JSON], None] = lambda node: None,
        scheduler: bool = True,
    ) -> None:
        # No controller would take away the taint that the plugin gives each new node.
        self.server = RealServer(assets, disabled=("TaintNodesByCondition",))
        self._nodes = nodes
        self._held = held
        self._gpus = gpus
        self._namespaces = tuple(namespaces)
        self._dress = dress
        self._scheduler = scheduler

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start it with its nodes. Raises `NotReady`."""
        server = self.server
        server.start()
        kube = server.kube()
        for namespace in self._namespaces:
            installing.apply(kube, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
            account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
            kube.create(paths.path("v1", "serviceaccounts", namespace), account)
        say(f"creating {self._nodes} nodes, {'with' if self._gpus else 'without'} GPUs of ours")
        _side_by_side(lambda number: self._create_node(kube, number), range(self._nodes))
        if self._gpus:
            # Before the policies are there, which let only a node's own agent report its GPUs.
            (definition,) = installing.documents(installing.BASE / "gpunodes.crd.yaml")
            installing.apply(kube, definition)
            gpunodes = paths.gpunodes()
            wait_for(lambda: _served(kube, gpunodes), "GPUNodes are not served")
            _side_by_side(lambda number: _create_gpunode(kube, _name(number)), range(self._nodes))
        if self._scheduler:
            server.add(components.SCHEDULER, components.scheduler_flags(server.certified(SCHEDULER))).start()

    def stop(self) -> None:
        """Stop everything that was started, and remove its directory."""
        self.server.stop()

    def _create_node(self, kube: Kube, number: int) -> None:
        pool = HELD if number < self._held else OPEN
        spec = NodeSpec(_name(number), cpu="128", memory="1Ti", pods=250, labels={POOL: pool})
        made = node_object(spec, time.time())
        amounts = {EXTENDED: str(SHARES)}
        if self._gpus:
            amounts |= {str(names.GPU_MEMORY): str(GPUS * CARD), str(names.GPU_CORES): str(100 * GPUS)}
        made["status"]["capacity"] |= amounts
        made["status"]["allocatable"] |= amounts
        self._dress(made)
        kube.create(paths.nodes(), made)

    @property
    def names(self) -> tuple[str, ...]:
        """Its nodes."""
        return tuple(map(_name, range(self._nodes)))

    # -- what a cluster needs of it -------------------------------------------------------------------------------

    def identify_to_webhooks(self, certificate: bytes, key: bytes) -> None:
        """See `RealServer.identify_to_webhooks`."""
        self.server.identify_to_webhooks(certificate, key)

    def kubeconfig(self, user: User) -> str:
        """See `RealServer.kubeconfig`."""
        return self.server.kubeconfig(user)

    def add_node(self, spec: NodeSpec) -> None:
        """All nodes are there from the start. Raises ValueError."""
        raise ValueError(f"node {spec.name}: nodes are created when the control plane starts")

    def fail_node(self, name: str) -> None:
        """No kubelet runs here, so none can fail. Raises ValueError."""
        raise ValueError(f"node {name}: it has no kubelet")

    def restart_node(self, name: str) -> None:
        """As `fail_node`. Raises ValueError."""
        self.fail_node(name)

    def use_plugins(self, plugins: Plugins) -> None:
        """No kubelet runs here, so none is asked."""

    def use_programs(self, programs: Programs) -> None:
        """No kubelet runs here, so no program does."""

    def reach(self, configuration: JSON, port: int) -> tuple[JSON, list[JSON]]:
        """By URL: nothing here implements Services."""
        return called_by_url(configuration, port), []

    @property
    def webhook_names(self) -> tuple[str, ...]:
        """The name in the URL."""
        return ("localhost",)


@contextlib.contextmanager
def with_peer(
    assets: Assets, peer: Peer, *, nodes: int, held: int, namespaces: Sequence[str], environment: Mapping[str, str]
) -> Iterator[tuple[RealServer, Mapping[str, Program]]]:
    """A control plane that has never seen gpufraction, where a peer works, and the peer's programs by name."""
    plane = Nodes(assets, nodes=nodes, held=held, gpus=False, namespaces=namespaces, dress=peer.dress, scheduler=False)
    with contextlib.ExitStack() as held_open:
        held_open.callback(plane.stop)
        plane.start()
        host = Host(plane.server, plane.server.kube(), plane.names, namespaces[0], environment)
        held_open.enter_context(peer.acting(host))
        say(f"starting {', '.join(each.name for each in peer.programs)}")
        yield plane.server, peer.start(host)


def _side_by_side(create: Callable[[int], None], numbers: Iterable[int]) -> None:
    with ThreadPoolExecutor(_SEEDING) as pool:
        list(pool.map(create, numbers))


def _name(number: int) -> str:
    return f"gpu-{number:05}"


def _create_gpunode(kube: Kube, name: str) -> None:
    gpus = tuple(Gpu(f"GPU-{name}-{index}", index, MODEL, CARD, CARD) for index in range(GPUS))
    made = {"apiVersion": names.GPUNODE_GROUP_VERSION, "kind": "GPUNode", "metadata": {"name": name}}
    kube.create(paths.gpunodes(), made)
    kube.patch_merge(paths.gpunodes(name, "status"), {"status": inventory_to_status(Inventory(name, gpus))})


def _served(kube: Kube, path: str) -> bool:
    try:
        kube.list(path)
        return True
    except KubeError:
        return False
