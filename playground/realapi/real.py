"""
A real control plane: etcd, kube-apiserver and the other programs in the folder of KUBEBUILDER_ASSETS, with hollow
kubelets.

It is a `ControlPlane` like the embedded one, so tests can run on both. The machinery of the embedded cluster replaces a
missing kube-scheduler or kube-controller-manager, over HTTPS. All programs listen on loopback only, are ended by their
process ids, and leave no files behind.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from playground.api.kinds.values import User
from playground.machinery.client.claims import Plugins
from playground.machinery.client.client import NODES, Client
from playground.machinery.cluster import MANAGER, SCHEDULER, Machinery, Parts, Timing, no_gpus
from playground.machinery.kubelet.gpuruntime import NodeGpus
from playground.machinery.kubelet.nodekeeper import node_user
from playground.machinery.kubelet.podrun import Programs
from playground.machinery.objects.nodes import NodeSpec
from playground.realapi import components
from playground.realapi.caretaker import Caretaker
from playground.realapi.components import Assets
from playground.realapi.hollow import HollowKubelets
from playground.realapi.nodes import KubeletServer, Registration
from playground.realapi.reacting import Reactor
from playground.realapi.remote import RemoteApi
from playground.realapi.server import RealServer, called_by_url

JSON = dict[str, Any]


class Real:
    """
    A real API server with everything behind it. `gpus_of` gives the GPUs of a node, for the container runtime's part.

    `scheduler` and `controllers`: whether to start the folder's kube-scheduler and kube-controller-manager if they
    exist; otherwise the machinery does their work. `stand_in`: whether the machinery also stands in for the nodes'
    kubelets; if not, others run them, and the real controllers watch the nodes' heartbeats. `hollow`: each node's
    kubelet is the folder's `kubemark`, which must exist. `offers`: extended resources, by node, that such a kubelet
    has from device plugins. `audit`: as for `RealServer`.
    """

    def __init__(
        self,
        assets: Assets,
        *,
        gpus_of: Callable[[str], NodeGpus] = no_gpus,
        scheduler: bool = True,
        controllers: bool = True,
        stand_in: bool = True,
        hollow: bool = False,
        offers: Mapping[str, Mapping[str, str]] | None = None,
        timing: Timing | None = None,
        audit: Path | None = None,
    ) -> None:
        self.server = RealServer(assets, audit=audit)
        self._own_scheduler = scheduler and assets.has(components.SCHEDULER)
        self._own_controllers = controllers and assets.has(components.CONTROLLERS)
        self._stop = threading.Event()
        self._remote = RemoteApi(self.server.connect)
        manager = Client(self._remote, MANAGER)
        self._stand_in = stand_in and not hollow
        self.hollow = HollowKubelets(assets, self.server.directory, self._of_node, offers=offers) if hollow else None
        parts = Parts(not self._own_controllers, not self._own_scheduler, self._stand_in, roles="playground:")
        self.machinery = Machinery(self._remote, gpus_of=gpus_of, stop=self._stop, timing=timing, parts=parts)
        self._kubelets = KubeletServer(self.server.authority, self.machinery.logs)
        port = self._kubelets.port if self._stand_in else None
        self._registration = Reactor(manager, [(NODES, Registration(manager, port).changed)], self._stop)
        self._caretaker = None if self._own_controllers else Caretaker(manager, self._stop)

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start it; it answers when this returns. Raises `NotReady`."""
        server = self.server
        server.start()
        if self._own_controllers:
            kubeconfig = server.certified(User("system:kube-controller-manager"))
            flags = components.controllers_flags(server.files, kubeconfig, judging=not self._stand_in)
            server.add(components.CONTROLLERS, flags).start()
        if self._own_scheduler:
            server.add(components.SCHEDULER, components.scheduler_flags(server.certified(SCHEDULER))).start()
        self._kubelets.start()
        self.machinery.start()
        self._registration.start("registration")
        if self._caretaker is not None:
            self._caretaker.start()
        server.await_namespace("default")

    def stop(self) -> None:
        """Stop everything that was started, and remove its directory."""
        self._stop.set()
        self._remote.close()
        if self._caretaker is not None:
            self._caretaker.close()
        self._registration.close()
        if self.hollow is not None:
            self.hollow.stop()
        self.machinery.stop()
        self._kubelets.stop()
        self.server.stop()

    # -- what a cluster needs of it -------------------------------------------------------------------------------

    def identify_to_webhooks(self, certificate: bytes, key: bytes) -> None:
        """See `RealServer.identify_to_webhooks`."""
        self.server.identify_to_webhooks(certificate, key)

    def kubeconfig(self, user: User) -> str:
        """See `RealServer.kubeconfig`."""
        return self.server.kubeconfig(user)

    def add_node(self, spec: NodeSpec) -> None:
        """Have a kubelet register the node; a real one does so a moment later. An existing node stays unchanged."""
        if self.hollow is not None:
            self.hollow.register(spec)
        else:
            self.machinery.add_node(spec)

    def use_plugins(self, plugins: Plugins) -> None:
        """Have the simulated kubelets ask these plugins for the devices of ResourceClaims."""
        self.machinery.use_plugins(plugins)

    def use_programs(self, programs: Programs) -> None:
        """Have the simulated kubelets run containers' programs with `programs`."""
        self.machinery.use_programs(programs)

    def fail_node(self, name: str) -> None:
        """Stop a node's heartbeats. Only for simulated kubelets."""
        self.machinery.fail_node(name)

    def restart_node(self, name: str) -> None:
        """Start its heartbeats again."""
        self.machinery.restart_node(name)

    def reach(self, configuration: JSON, port: int) -> tuple[JSON, list[JSON]]:
        """By URL: nothing here implements Services, so an API server cannot reach one."""
        return called_by_url(configuration, port), []

    @property
    def webhook_names(self) -> tuple[str, ...]:
        """The name in the URL."""
        return ("localhost",)

    def _of_node(self, name: str) -> Path:
        return self.server.certified(node_user(name))
