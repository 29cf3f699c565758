"""
A real control plane: etcd, kube-apiserver and what else the folder of KUBEBUILDER_ASSETS has, with hollow kubelets.

The other `ControlPlane` besides the embedded one, so that what is shown there can be shown here. What the folder lacks
of kube-scheduler and kube-controller-manager is stood in for by the machinery of the embedded cluster, over HTTPS.
Everything listens on loopback only, is ended by its process id, and leaves nothing behind.
"""

from __future__ import annotations

import base64
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from playground.api.http.certificates import Authority
from playground.api.kinds.values import ADMIN, User
from playground.machinery.client.client import NODES, Client
from playground.machinery.cluster import MANAGER, SCHEDULER, Machinery, Parts, Timing, no_gpus
from playground.machinery.kubelet.gpuruntime import NodeGpus
from playground.machinery.kubelet.nodekeeper import node_user
from playground.machinery.objects.nodes import NodeSpec
from playground.programs.process import Program, ProgramFailed
from playground.realapi import components
from playground.realapi.caretaker import Caretaker
from playground.realapi.components import Assets, Files, NoAssets, Ports
from playground.realapi.hollow import HollowKubelets
from playground.realapi.nodes import KubeletServer, Registration
from playground.realapi.reacting import Reactor
from playground.realapi.remote import RemoteApi
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError, KubeNotFound
from runtime.kubernetes.transport import Transport, connect_transport

JSON = dict[str, Any]
ENVIRONMENT = "KUBEBUILDER_ASSETS"
_BOUND = {"authentication.kubernetes.io/node-name": "Node", "authentication.kubernetes.io/pod-name": "Pod"}
"""What a token can be bound to, by what the API server then says of its user."""
_ACCOUNT = "system:serviceaccount:"
_READY_SECONDS = 60.0
_TOKEN_SECONDS = 24 * 3600
_PAUSE = 0.1


class NotReady(Exception):
    """The control plane does not serve; the message says what is missing."""


def assets_of(environment: Mapping[str, str]) -> Assets | str:
    """The folder that KUBEBUILDER_ASSETS names, or one line on why there is none."""
    folder = environment.get(ENVIRONMENT, "")
    if not folder:
        return f"{ENVIRONMENT} is not set; it names a folder with etcd and kube-apiserver"
    try:
        return Assets(Path(folder))
    except NoAssets as error:
        return f"{ENVIRONMENT}: {error}"


class Real:
    """
    A real API server with everything behind it. `gpus_of` gives the GPUs of a node, for the container runtime's part.

    `scheduler` and `controllers`: whether the folder's own kube-scheduler and kube-controller-manager are started where
    they are there; the machinery does their work otherwise. `stand_in`: whether it is the nodes' kubelets, too; where
    it is not, somebody else runs them, and the real controllers judge nodes by their heartbeat. `hollow`: each node's
    kubelet is the folder's `kubemark`, which must be there; `offers` are extended resources, by node, that such a
    kubelet has of device plugins.
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
    ) -> None:
        self._assets = assets
        self.directory = Path(tempfile.mkdtemp(prefix="real-"))
        self.ports = Ports.free()
        self._authority = Authority()
        self._files = Files(self.directory / "pki", self._authority)
        self._own_scheduler = scheduler and assets.has(components.SCHEDULER)
        self._own_controllers = controllers and assets.has(components.CONTROLLERS)
        self._more_flags: list[str] = []
        self.programs: dict[str, Program] = {}
        self._stop = threading.Event()
        self._remote = RemoteApi(self._connect)
        manager = Client(self._remote, MANAGER)
        self._stand_in = stand_in and not hollow
        self.hollow = HollowKubelets(assets, self.directory, self._of_node, offers=offers) if hollow else None
        parts = Parts(not self._own_controllers, not self._own_scheduler, self._stand_in, roles="playground:")
        self.machinery = Machinery(self._remote, gpus_of=gpus_of, stop=self._stop, timing=timing, parts=parts)
        self._kubelets = KubeletServer(self._authority, self.machinery.logs)
        port = self._kubelets.port if self._stand_in else None
        self._registration = Reactor(manager, [(NODES, Registration(manager, port).changed)], self._stop)
        self._caretaker = None if self._own_controllers else Caretaker(manager, self._stop)

    def identify_to_webhooks(self, certificate: bytes, key: bytes) -> None:
        """Show webhooks this client certificate, PEM. To be called before the start."""
        self._more_flags += components.identifying(self.directory, certificate, key)

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start it; it answers when this returns. Raises `NotReady`."""
        self._files.write()
        self._add("etcd", components.etcd_flags(self.ports, self.directory / "etcd"))
        self._add("kube-apiserver", [*components.apiserver_flags(self.ports, self._files), *self._more_flags])
        for program in self.programs.values():
            program.start()
        self._await_ready()
        if self._own_controllers:
            kubeconfig = self._written(User("system:kube-controller-manager"))
            flags = components.controllers_flags(self._files, kubeconfig, judging=not self._stand_in)
            self._add(components.CONTROLLERS, flags).start()
        if self._own_scheduler:
            self._add(components.SCHEDULER, components.scheduler_flags(self._written(SCHEDULER))).start()
        self._kubelets.start()
        self.machinery.start()
        self._registration.start("registration")
        if self._caretaker is not None:
            self._caretaker.start()
        self.await_namespace("default")

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
        for program in reversed(self.programs.values()):
            program.terminate()
            program.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def restart_api_server(self, *, crash: bool = False) -> None:
        """End kube-apiserver and start it again on the same port and the same store. Raises `NotReady`."""
        program = self.programs["kube-apiserver"]
        if crash:
            program.kill()
        else:
            program.terminate()
            program.wait()
        program.start()
        self._await_ready()

    def await_namespace(self, name: str) -> None:
        """Wait until pods can be created there: a new namespace gets its default service account a moment later."""
        kube, path = self._kube(), paths.path("v1", "serviceaccounts", name, "default")

        def there() -> bool:
            try:
                return bool(kube.get(path))
            except KubeNotFound:
                return False

        self._await(there, f"namespace {name} has no default service account")

    # -- what a cluster needs of it -------------------------------------------------------------------------------

    def kubeconfig(self, user: User) -> str:
        """
        A kubeconfig, as YAML, with which a client is that user.

        A service account gets a token that the API server issued, bound to its node or pod where the user has one, as
        its pod's would be; anybody else a client certificate. Raises ValueError for what neither can say of a user.
        """
        if user.name.startswith(_ACCOUNT):
            return self._document({"token": self._token(user)})
        if user.extra:
            raise ValueError(f"user {user.name}: extra {sorted(user.extra)} can only be had by a service account")
        return self._certified(user)

    def add_node(self, spec: NodeSpec) -> None:
        """Have a kubelet register the node, a real one a moment later. One that is there already stays as it is."""
        if self.hollow is not None:
            self.hollow.register(spec)
        else:
            self.machinery.add_node(spec)

    def reach(self, configuration: JSON, port: int) -> tuple[JSON, list[JSON]]:
        """By URL: nothing here implements Services, so an API server cannot reach one."""
        reached = deepcopy(configuration)
        for webhook in reached["webhooks"]:
            service = webhook["clientConfig"].pop("service")
            webhook["clientConfig"]["url"] = f"https://localhost:{port}{service.get('path', '/')}"
        return reached, []

    @property
    def webhook_names(self) -> tuple[str, ...]:
        """The name in the URL."""
        return ("localhost",)

    # -- credentials ----------------------------------------------------------------------------------------------

    def _token(self, user: User) -> str:
        namespace, _, name = user.name.removeprefix(_ACCOUNT).partition(":")
        spec: JSON = {"expirationSeconds": _TOKEN_SECONDS}
        others = sorted(set(user.extra) - set(_BOUND))
        if others or len(user.extra) > 1:
            raise ValueError(
                f"user {user.name}: extra {others or sorted(user.extra)} is nothing that a token can carry"
            )
        for key, (name_of_bound,) in user.extra.items():
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": _BOUND[key], "name": name_of_bound}
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        answer = self._kube().create(paths.path("v1", "serviceaccounts", namespace, name, "token"), request)
        return str(answer["status"]["token"])

    def _certified(self, user: User) -> str:
        certificate, key = self._authority.client(user)
        return self._document({"client-certificate-data": _base64(certificate), "client-key-data": _base64(key)})

    def _document(self, credentials: JSON) -> str:
        cluster = {
            "server": f"https://127.0.0.1:{self.ports.api}",
            "certificate-authority-data": _base64(self._authority.pem),
        }
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "real", "cluster": cluster}],
            "users": [{"name": "user", "user": credentials}],
            "contexts": [{"name": "real", "context": {"cluster": "real", "user": "user"}}],
            "current-context": "real",
        }
        return json.dumps(document, indent=1)  # which is YAML too

    def _of_node(self, name: str) -> Path:
        return self._written(node_user(name))

    def _written(self, user: User) -> Path:
        path = self.directory / f"kubeconfig-{user.name.replace(':', '-')}"
        path.touch(mode=0o600)
        path.write_text(self._certified(user))
        return path

    def _connect(self, user: User) -> Transport:
        return connect_transport(kubeconfig=str(self._written(user)), context=None, user_agent="playground")

    def _kube(self) -> Kube:
        return Kube.connect(kubeconfig=str(self._written(ADMIN)), user_agent="playground")

    # -- processes ------------------------------------------------------------------------------------------------

    def _add(self, name: str, flags: Any) -> Program:
        program = self._assets.program(name, list(flags), self.directory)
        self.programs[name] = program
        return program

    def _await_ready(self) -> None:
        kube = self._kube()

        def ready() -> bool:
            try:
                return kube.text("/readyz", timeout=2.0) == "ok"
            except KubeError:
                return False

        self._await(ready, "kube-apiserver is not ready")

    def _await(self, done: Callable[[], bool], missing: str) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        while not done():
            for program in self.programs.values():
                try:
                    program.check()
                except ProgramFailed as error:
                    raise NotReady(str(error)) from error
            if time.monotonic() > deadline:
                raise NotReady(f"{missing} after {_READY_SECONDS:.0f} s")
            time.sleep(_PAUSE)


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
