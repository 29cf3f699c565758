"""
A whole cluster with gpufraction installed: control plane, shipped manifests, and the three programs as processes.

The demo, `make playground`, the system tests and the benchmark use this one composition. Every program gets a
kubeconfig of its own service account, so it runs with its real RBAC. Nothing here decides anything.
"""

from __future__ import annotations

import base64
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contract import names
from contract.components import AGENT, agents_namespace, component, with_brought
from playground.api.kinds.values import ADMIN, User
from playground.embedded import ControlPlane, Embedded
from playground.machinery.kubelet.gpuruntime import NodeGpu, NodeGpus
from playground.programs import installing, scraping
from playground.programs.balancer import Balancer
from playground.programs.kubeletplugin import KubeletPlugins
from playground.programs.mounted import Mounted
from playground.programs.probes import accepts_tls, free_port, healthy
from playground.programs.process import Program
from playground.shapes import DEMO, GpuNode
from playground.waiting import NotInTime, wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError, KubeNotFound, KubeTooManyRequests, KubeUnavailable

JSON = dict[str, Any]
MakeControlPlane = Callable[[Callable[[str], NodeGpus]], ControlPlane]
_PROGRAMS = ("certs", "webhook", "allocator", "nodeagent")
DEFAULT_COMPONENTS = ("claims", "unhealthy-lists")
"""The components that the samples need in addition to the base."""
_ELECTION = ("--election-lease", "3s")
"""
The lease is as short as a busy machine with two cores allows: a new cluster waits one lease for its first leader,
and a leader whose renewal takes too long loses its term.
"""
_ACCOUNT_SECONDS = 20.0
_AWAY_SECONDS = 30.0
_REPLACED_SECONDS = 60.0


class NotUp(Exception):
    """The cluster did not start in time; the message says what was still missing."""


def account(name: str, *, node: str = "", pod: str = "", components: Sequence[str] = ()) -> User:
    """
    One of our service accounts. An agent's token names the node of its pod, and a holder's token names its pod. With
    some components, the agent's account is in a separate namespace.
    """
    claims = {"node-name": node, "pod-name": pod}
    extra = {f"authentication.kubernetes.io/{key}": (value,) for key, value in claims.items() if value}
    namespace = agents_namespace(components) if name == AGENT else names.NAMESPACE
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    return User(f"system:serviceaccount:{namespace}:{name}", groups, extra)


@dataclass(frozen=True)
class Replica:
    """One pod of the Deployment `gpufraction`: a webhook and an allocator, and what they share."""

    number: int
    webhook_port: int
    allocator_port: int
    health_port: int
    socket: Path

    def name(self, program: str) -> str:
        """The name of one of its programs: `allocator` in the first replica, `allocator-1` in the second."""
        return f"{program}-{self.number}" if self.number else program


class Cluster:
    """
    Start with `start`, end with `stop`, or use it as a context.

    `directory` receives kubeconfigs and logs and is left alone at the end; without one a temporary one is made and
    removed. `settings` are extra flags by program: `certs`, `webhook`, `allocator`, `nodeagent`. `route` may send a
    program to the API server by another way: it is given the program's name and kubeconfig, and gives the kubeconfig to
    use.

    `components` are those of the manifests; of their changes to the workloads, the settings of `contract.components`
    apply, except `pod_settings`. `modules`: by program the Python module that runs in its place. `proceed` is called
    between the steps of long operations, which end with what it raises.
    """

    def __init__(
        self,
        *,
        nodes: Sequence[GpuNode] = DEMO,
        directory: Path | None = None,
        control_plane: MakeControlPlane | None = None,
        settings: Mapping[str, Sequence[str]] | None = None,
        replicas: int = 1,
        namespaces: Sequence[str] = ("default",),
        route: Callable[[str, str], str] = lambda program, kubeconfig: kubeconfig,
        components: Sequence[str] = DEFAULT_COMPONENTS,
        modules: Mapping[str, str] | None = None,
        proceed: Callable[[], None] = lambda: None,
    ) -> None:
        self.nodes = tuple(nodes)
        self._own_directory = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix="gpufraction-"))
        self.directory.mkdir(parents=True, exist_ok=True)
        # A unix socket's path may have 108 bytes, which a test's directory can exceed.
        self._run = Path(tempfile.mkdtemp(prefix="gpf-"))
        self.control_plane = (control_plane or _embedded)(self._gpus_of)
        self._settings = {
            program: (*_flags(components, program), *(settings or {}).get(program, ())) for program in _PROGRAMS
        }
        self.replicas = tuple(
            Replica(number, free_port(), free_port(), free_port(), self._run / f"allocator-{number}.sock")
            for number in range(replicas)
        )
        self._asked: int | None = None
        self._service = Balancer(self._webhook_ports)
        self._namespaces = tuple(namespaces)
        self._route = route
        self._components = tuple(components)
        self._modules = dict(modules or {})
        self._proceed = proceed
        self._scraper_token = ""
        self.programs: dict[str, Program] = {}
        self.kubeconfig = self.directory / "kubeconfig"
        self._options = self.directory / "options"
        self._mounted: Mounted | None = None
        by_claim = "delivery-dra" in self._components
        self._kubelets = {n.spec.name: self._run / f"k{i}" for i, n in enumerate(self.nodes)} if by_claim else {}
        """The kubelets' folders, where the agents are kubelet plugins."""

    def __enter__(self) -> Cluster:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self, timeout: float = 60.0) -> None:
        """Start everything and wait until it serves. Raises `NotUp` or `ProgramFailed`."""
        self.control_plane.start()
        self.kubeconfig.write_text(self.control_plane.kubeconfig(ADMIN))
        self.kube = Kube.connect(kubeconfig=str(self.kubeconfig), user_agent="playground")
        self._service.start()
        self._install()
        if self._kubelets:
            self.control_plane.use_plugins(KubeletPlugins(names.GROUP, self._kubelets))
        for node in self.nodes:
            self.control_plane.add_node(node.spec)
        for namespace in self._namespaces:
            self.label_namespace(namespace)
        self._mounted = Mounted(self.kube, names.NAMESPACE, names.OPTIONS, self._options)
        self._mounted.start()
        self._start_programs()
        self.await_up(timeout)

    def stop(self) -> None:
        """Stop everything that was started."""
        running = [program for program in self.programs.values() if program.alive()]
        for program in running:
            program.terminate()
        for program in running:
            program.wait()
        if self._mounted is not None:
            self._mounted.stop()
        self._service.stop()
        self.control_plane.stop()
        shutil.rmtree(self._run, ignore_errors=True)
        if self._own_directory:
            shutil.rmtree(self.directory, ignore_errors=True)

    def allocator_url(self, replica: int = 0) -> str:
        """The URL at which an allocator answers probes."""
        return f"http://127.0.0.1:{self.replicas[replica].allocator_port}"

    def webhook_url(self, replica: int = 0) -> str:
        """The URL at which a webhook answers probes."""
        return f"http://127.0.0.1:{self.replicas[replica].health_port}"

    def scraper_token(self) -> str:
        """The token with which a Prometheus of this cluster scrapes."""
        if not self._scraper_token:
            self._scraper_token = scraping.token_of(self.control_plane.kubeconfig(account(scraping.SCRAPER)))
        return self._scraper_token

    def metrics(self, replica: int = 0, *, of: str = "allocator", timeout: float = 5.0) -> str:
        """The metrics of a replica's allocator or webhook. Raises `OSError`."""
        found = self.replicas[replica]
        port = found.allocator_port if of == "allocator" else found.health_port
        return scraping.scrape(port, self.scraper_token(), timeout=timeout)

    def leads(self, replica: int) -> bool:
        """Whether the allocator of a replica says that it leads."""
        try:
            return "\ngpufraction_leader 1.0\n" in self.metrics(replica)
        except OSError:
            return False

    def webhook_answers(self, replica: int = 0) -> bool:
        """Whether a webhook takes TLS connections."""
        return accepts_tls(self.replicas[replica].webhook_port)

    def ask_only(self, replica: int | None, *, cut: bool = True) -> None:
        """
        Send the API server's reviews to this replica from now on; None: to all replicas in turn.

        `cut`: close the open connections now, and with them the reviews in progress. Otherwise they stay open until
        their webhook closes them, as behind a Service.
        """
        self._asked = replica
        if cut:
            self._service.cut()

    def upgrade(self, report: Callable[[str], None]) -> None:
        """
        Replace every program by one that starts now, as the rollout of a Deployment and of a DaemonSet does.

        It replaces one replica after the other. The API server calls the others in the meantime. `report` gets the
        name of each part that serves again. Raises `NotUp` or `ProgramFailed`.
        """
        for replica in self.replicas:
            others = [each.number for each in self.replicas if each is not replica]
            self.ask_only(others[0] if others else None, cut=False)
            self._replace(replica.name("webhook"), replica.name("allocator"))
            self.ask_only(None, cut=False)
            report(f"replica {replica.number} of gpufraction is replaced and ready")
        for node in self.nodes:
            self._replace(f"nodeagent-{node.spec.name}")
            report(f"the node agent on {node.spec.name} is replaced")

    def _replace(self, *programs: str) -> None:
        for name in programs:
            self.programs[name].terminate()
        for name in programs:
            self.programs[name].wait()
            self.programs[name].start()
        self.await_up()

    def _webhook_ports(self) -> list[int]:
        return [each.webhook_port for each in self.replicas if self._asked in (None, each.number)]

    def label_namespace(self, name: str) -> None:
        """Create the namespace if needed, and label it, as an administrator does for a tenant."""
        installing.apply(self.kube, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        labels = {"metadata": {"labels": {names.INJECT_LABEL: names.INJECT_ENABLED}}}
        self.kube.patch_merge(paths.path("v1", "namespaces", name=name), labels)
        self.await_account(name)

    def await_account(self, namespace: str) -> None:
        """Wait until pods can be created there. Raises `NotUp`."""
        try:
            wait_for(
                lambda: installing.takes_pods(self.kube, namespace),
                f"namespace {namespace} has no default service account",
                _ACCOUNT_SECONDS,
            )
        except NotInTime as error:
            raise NotUp(str(error)) from error

    # -- parts ----------------------------------------------------------------------------------------------------

    def reached(self, configuration: JSON) -> tuple[JSON, list[JSON]]:
        """The webhook configuration with an address that this API server reaches, and objects to apply alongside it."""
        return self.control_plane.reach(configuration, self._service.port)

    def _install(self) -> None:
        for document in installing.to_apply(components=self._components):
            beside: list[JSON] = []
            if document["kind"] == "MutatingWebhookConfiguration":
                document, beside = self.reached(document)
            for each in (*beside, document):
                self._proceed()
                installing.apply(self.kube, each)
        for document in installing.documents(scraping.manifest()):
            installing.apply(self.kube, document)

    def _start_programs(self) -> None:
        self._proceed()
        certs = self.directory / "certs"
        certificate_names = ",".join(self.control_plane.webhook_names)
        self._program(
            "certs",
            [
                *("webhook", "certs", "--dir", str(certs), "--configuration", names.CONFIGURATION),
                *("--names", certificate_names, "--options", str(self._options / names.OPTIONS_FILE)),
                *self._settings.get("certs", ()),
            ],
            account("gpufraction-certs"),
        ).run()
        self._proceed()
        for replica in self.replicas:
            self._start_replica(replica, certs)
        for node in self.nodes:
            self._program(
                f"nodeagent-{node.spec.name}",
                [
                    *("nodeagent", "run", "--node", node.spec.name, "--simulate", node.gpus, "--listen", ""),
                    *("--interval", "1s", "--options", str(self._options / names.OPTIONS_FILE)),
                    *self._plugin_flags(node),
                    *self._settings.get("nodeagent", ()),
                ],
                account(AGENT, node=node.spec.name, components=self._components),
            ).start()

    def _plugin_flags(self, node: GpuNode) -> tuple[str, ...]:
        """Flags that make the node's agent a kubelet plugin, on a host where NVIDIA's tools have described the GPUs."""
        folder = self._kubelets.get(node.spec.name)
        if folder is None:
            return ()
        host = self.directory / f"host-{node.spec.name}"
        # The agent reads only the CDI kind; the simulated runtime finds every GPU of the node.
        described = [{"name": "GPU-0", "containerEdits": {}}]
        text = json.dumps({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": described})
        (host / "etc/cdi").mkdir(parents=True, exist_ok=True)
        (host / "etc/cdi/nvidia.json").write_text(text)
        return "--kubelet", str(folder), "--host-root", str(host)

    def _start_replica(self, replica: Replica, certs: Path) -> None:
        self._program(
            replica.name("allocator"),
            [
                *("allocator", "run", "--socket", str(replica.socket)),
                *("--options", str(self._options / names.OPTIONS_FILE)),
                *(
                    "--listen",
                    f"127.0.0.1:{replica.allocator_port}",
                    "--election-identity",
                    f"replica-{replica.number}",
                ),
                *_ELECTION,
                *self._settings.get("allocator", ()),
            ],
            account("gpufraction-allocator"),
        ).start()
        self._program(
            replica.name("webhook"),
            [
                *("webhook", "serve", "--bind", f"127.0.0.1:{replica.webhook_port}", "--certificates", str(certs)),
                *("--socket", str(replica.socket), "--options", str(self._options / names.OPTIONS_FILE)),
                *("--listen", f"127.0.0.1:{replica.health_port}"),
                *self._settings.get("webhook", ()),
            ],
            None,
        ).start()

    def _program(self, name: str, arguments: list[str], user: User | None) -> Program:
        """A program that is not started yet; the webhook serves without any access to the API server."""
        environment = {"KUBECONFIG": "/nonexistent"}
        if user is not None:
            path = self.directory / f"kubeconfig-{name}"
            path.write_text(self._route(name, self.control_plane.kubeconfig(user)))
            environment = {"KUBECONFIG": str(path)}
        module, *rest = arguments
        arguments = [self._modules.get(module, module), *rest]
        program = Program(name, arguments, log=self.directory / f"{name}.log", environment=environment)
        self.programs[name] = program
        return program

    def await_up(self, timeout: float = _REPLACED_SECONDS) -> None:
        """Wait until every part serves. Raises `NotUp`, or `ProgramFailed` for a program that has ended."""

        def up() -> bool:
            self._proceed()
            for name, program in self.programs.items():
                if name != "certs":
                    program.check()
            return not self._missing()

        try:
            wait_for(up, lambda: f"not up: {self._missing()}", timeout, every=0.05)
        except NotInTime as error:
            raise NotUp(str(error)) from error

    def _missing(self) -> str:
        for replica in self.replicas:
            if not healthy(f"{self.allocator_url(replica.number)}/readyz"):
                return f"{replica.name('allocator')} is not ready"
            if not self.webhook_answers(replica.number):
                return f"{replica.name('webhook')} does not listen"
            if not healthy(f"{self.webhook_url(replica.number)}/readyz"):
                return f"{replica.name('webhook')} is not ready"
        if not any(self.leads(replica.number) for replica in self.replicas):
            return "no allocator leads yet"
        for node in self.nodes:
            found = self._node(node.spec.name)
            if names.GPU_MEMORY not in (found.get("status", {}).get("allocatable") or {}):
                return f"node {node.spec.name} has no GPU capacity yet"
        if not self._webhook_trusted():
            return "the webhook configuration has no CA yet"
        return ""

    def _node(self, name: str) -> JSON:
        try:
            return self.kube.get(paths.path("v1", "nodes", name=name))
        except KubeError:
            return {}

    def _webhook_trusted(self) -> bool:
        path = paths.path("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations", name=names.CONFIGURATION)
        bundle = self.kube.get(path)["webhooks"][0]["clientConfig"].get("caBundle", "")
        return b"BEGIN CERTIFICATE" in base64.b64decode(bundle)

    def _gpus_of(self, node: str) -> NodeGpus:
        """The GPUs that the node's driver sees: those that the agent simulates, as it published them."""
        path = paths.path(names.GPUNODE_GROUP_VERSION, names.GPUNODE_PLURAL, name=node)
        deadline = time.monotonic() + _AWAY_SECONDS
        while True:
            try:
                found = self.kube.get(path)
                break
            except KubeNotFound:
                return ()
            except (KubeUnavailable, KubeTooManyRequests):
                # A driver answers even without the API server.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        gpus = (found.get("status") or {}).get("gpus") or []
        return tuple(NodeGpu(g["index"], g["uuid"], g["model"], g["memoryBytes"]) for g in gpus)


def _flags(components: Sequence[str], program: str) -> tuple[str, ...]:
    return tuple(flag for name in with_brought(components) for flag in component(name).flags(program))


def _embedded(gpus_of: Callable[[str], NodeGpus]) -> ControlPlane:
    return Embedded(gpus_of=gpus_of)
