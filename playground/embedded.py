"""
The embedded control plane: API server over HTTPS, controllers, scheduler and kubelets, all in this process.

A `Cluster` uses this control plane or a real kube-apiserver. Both implement `ControlPlane`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from playground.api.admission.webhookclient import WebhookClient
from playground.api.api import SERVER_VERSION, Api
from playground.api.http.server import HttpsServer
from playground.api.kinds.values import User
from playground.api.store.store import Store
from playground.machinery.client.claims import Plugins
from playground.machinery.cluster import Machinery
from playground.machinery.kubelet.gpuruntime import NodeGpus
from playground.machinery.kubelet.podrun import Programs
from playground.machinery.objects.nodes import NodeSpec

JSON = dict[str, Any]


class ControlPlane(Protocol):
    """The interface of a cluster's control plane."""

    def start(self) -> None:
        """Start it; it answers when this returns."""

    def stop(self) -> None:
        """Stop everything that was started."""

    def identify_to_webhooks(self, certificate: bytes, key: bytes) -> None:
        """Show webhooks this client certificate, PEM. To be called before the start."""

    def kubeconfig(self, user: User) -> str:
        """A kubeconfig, as YAML, with which a client is that user."""

    def add_node(self, spec: NodeSpec) -> None:
        """Have a kubelet register the node, now or soon. An existing node stays unchanged."""

    def use_plugins(self, plugins: Plugins) -> None:
        """Have the kubelets ask these plugins for the devices of ResourceClaims."""

    def use_programs(self, programs: Programs) -> None:
        """Have the simulated kubelets run containers' programs with `programs`."""

    def fail_node(self, name: str) -> None:
        """Stop a node's heartbeats, as if its machine were down. Only for simulated kubelets."""

    def restart_node(self, name: str) -> None:
        """Start the heartbeats of such a node again."""

    def reach(self, configuration: JSON, port: int) -> tuple[JSON, list[JSON]]:
        """
        How the API server reaches a webhook on a loopback port.

        Returns the webhook configuration to apply, and objects to apply alongside it.
        """

    @property
    def webhook_names(self) -> tuple[str, ...]:
        """Names that the webhook's certificate needs besides its Service's."""


class Embedded:
    """The embedded control plane. `gpus_of` gives the GPUs of a node, for the container runtime's part."""

    def __init__(
        self,
        *,
        gpus_of: Callable[[str], NodeGpus],
        port: int = 0,
        host: str = "127.0.0.1",
        version: str = SERVER_VERSION,
    ) -> None:
        """`host`: the address of this machine on which it listens, and on which it calls webhooks."""
        self.api = Api(webhooks=self._caller, server_version=version)
        self.server = HttpsServer(self.api, port=port, host=host)
        self._host = host
        self.machinery = Machinery(self.api, gpus_of=gpus_of)
        self.api.log_provider = self.machinery.logs

    def _caller(self, store: Store) -> WebhookClient:
        self._webhooks = WebhookClient(store)
        return self._webhooks

    def identify_to_webhooks(self, certificate: bytes, key: bytes) -> None:
        """Show webhooks this client certificate. To be called before the start."""
        self._webhooks.identify(certificate, key)

    def start(self) -> None:
        """Start it; it answers when this returns."""
        self.server.start()
        self.machinery.start()

    def stop(self) -> None:
        """Stop everything that was started."""
        self.machinery.stop()
        self.server.stop()

    def kubeconfig(self, user: User) -> str:
        """A kubeconfig, as YAML, with which a client is that user."""
        return self.server.kubeconfig(user)

    def add_node(self, spec: NodeSpec) -> None:
        """Have a kubelet register the node. An existing node stays unchanged."""
        self.machinery.add_node(spec)

    def use_plugins(self, plugins: Plugins) -> None:
        """Have the simulated kubelets ask these plugins for the devices of ResourceClaims."""
        self.machinery.use_plugins(plugins)

    def use_programs(self, programs: Programs) -> None:
        """Have the kubelets run containers' programs with `programs`."""
        self.machinery.use_programs(programs)

    def fail_node(self, name: str) -> None:
        """Stop a node's heartbeats."""
        self.machinery.fail_node(name)

    def restart_node(self, name: str) -> None:
        """Start its heartbeats again."""
        self.machinery.restart_node(name)

    def reach(self, configuration: JSON, port: int) -> tuple[JSON, list[JSON]]:
        """Through the Service, as in production: its endpoint is the loopback port."""
        if not configuration["webhooks"]:
            return configuration, []
        service = configuration["webhooks"][0]["clientConfig"]["service"]
        endpoints = {
            "apiVersion": "v1",
            "kind": "Endpoints",
            "metadata": {"name": service["name"], "namespace": service["namespace"]},
            "subsets": [{"addresses": [{"ip": self._host}], "ports": [{"name": "https", "port": port}]}],
        }
        return configuration, [endpoints]

    @property
    def webhook_names(self) -> tuple[str, ...]:
        """No names: the API server calls the webhook by its Service's name."""
        return ()
