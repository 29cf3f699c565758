"""
Runs Cluster Autoscaler's own program with a control plane; its `kwok` provider creates a node by writing the object.
"""

from __future__ import annotations

import contextlib
import re
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from playground.api.kinds.values import User
from playground.cluster import Cluster
from playground.engines import engine
from playground.machinery.objects.nodes import NodeSpec, node_object
from playground.programs import installing
from playground.programs.probes import free_port, healthy
from playground.programs.process import Program
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeConflict, KubeError, KubeNotFound

JSON = dict[str, Any]
PROGRAM, DEFINITIONS = "cluster-autoscaler", "cluster-autoscaler-crds.yaml"
NAMESPACE = "kube-system"
GROUP_LABEL = "engines.test/group"
GROUP_VERSION = "autoscaling.x-k8s.io/v1"
BUFFER_VERSION = "autoscaling.x-k8s.io/v1beta1"
BEST_EFFORT = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
_MANAGED = "kwok.x-k8s.io/node"
_LIMIT = "cluster-autoscaler.kwok.nodegroup/{}-count"
_CONFIG, _TEMPLATES = "kwok-provider-config", "kwok-provider-templates"
_LOOPS = re.compile(r'^cluster_autoscaler_function_duration_seconds_count\{function="main"\} (\d+)', re.MULTILINE)
_PLAN = re.compile(
    r"Pod [^/ ]+/(?P<request>[^/ ]+)-\d+-\d+ is unschedulable|Final scale-up plan: \[\{\S+ (?P<had>\d+)->(?P<gets>\d+) "
)
_LEAVING_SECONDS = 30.0
_REQUESTS = (
    "--enable-provisioning-requests=true",
    "--capacity-buffer-controller-enabled=true",
    "--capacity-buffer-pod-injection-enabled=true",
)
_FLAGS = (
    "--cloud-provider=kwok",
    f"--namespace={NAMESPACE}",
    "--leader-elect=false",
    "--scan-interval=1s",
    "--scale-down-delay-after-add=3s",
    "--scale-down-unneeded-time=3s",
    "--scale-down-unready-time=3s",
    "--unremovable-node-recheck-timeout=3s",
    "--node-delete-delay-after-taint=0s",
    "--max-graceful-termination-sec=5",
    "--initial-node-group-backoff-duration=5s",
    "--provisioning-request-initial-backoff-time=2s",
    "--user-agent=cluster-autoscaler",
    "--v=3",
)
"""The settings that the documentation tells an administrator to use, with seconds where the defaults are minutes."""


def assets() -> Path | str:
    """The folder with the program and its CRDs, or one line that says what is missing."""
    return engine.assets(PROGRAM, DEFINITIONS)


@dataclass(frozen=True)
class Group:
    """A group of equal nodes, initially empty. `resources`: extended resources that a node has from the start."""

    name: str
    most: int = 20
    cpu: str = "8"
    memory: str = "32Gi"
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[str, ...] = ()
    resources: Mapping[str, str] = field(default_factory=dict)

    def template(self) -> JSON:
        """The Node that the provider copies. Each copy gets a new name, so there is no hostname yet."""
        spec = NodeSpec(
            name=self.name,
            cpu=self.cpu,
            memory=self.memory,
            labels={**self.labels, GROUP_LABEL: self.name},
            taints=self.taints,
        )
        # An old heartbeat is no fault, because nothing judges these nodes by it.
        node = node_object(spec, 1.7e9)
        node["metadata"]["annotations"] = {_LIMIT.format("min"): "0", _LIMIT.format("max"): str(self.most)}
        del node["metadata"]["labels"]["kubernetes.io/hostname"]
        for amounts in (node["status"]["capacity"], node["status"]["allocatable"]):
            amounts.update(self.resources)
        return node


@dataclass(frozen=True)
class Autoscaler:
    """The running program, and what it created."""

    kube: Kube
    program: Program
    url: str

    def nodes(self, group: str = "") -> list[JSON]:
        """The nodes of a group, or of all groups."""
        return [
            each
            for each in self.kube.list(paths.path("v1", "nodes")).items
            if _MANAGED in (each["metadata"].get("annotations") or {})
            and group in ("", each["metadata"]["labels"].get(GROUP_LABEL))
        ]

    def request(self, name: str, template: JSON, count: int, namespace: str = NAMESPACE) -> None:
        """A ProvisioningRequest for this many pods of the template, which are never created."""
        document = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": name}, "template": template}
        self.kube.create(paths.path("v1", "podtemplates", namespace), document)
        sets = [{"count": count, "podTemplateRef": {"name": name}}]
        request = {
            "apiVersion": GROUP_VERSION,
            "kind": "ProvisioningRequest",
            "metadata": {"name": name},
            "spec": {"provisioningClassName": BEST_EFFORT, "podSets": sets},
        }
        self.kube.create(paths.path(GROUP_VERSION, "provisioningrequests", namespace), request)

    def requests(self, namespace: str = NAMESPACE) -> list[JSON]:
        """The ProvisioningRequests of a namespace."""
        return list(self.kube.list(paths.path(GROUP_VERSION, "provisioningrequests", namespace)).items)

    def is_provisioned(self, name: str, namespace: str = NAMESPACE) -> bool:
        """Whether it says that the request's nodes are being created."""
        found = self.kube.get(paths.path(GROUP_VERSION, "provisioningrequests", namespace, name))
        conditions = (found.get("status") or {}).get("conditions") or []
        return any(each["type"] == "Provisioned" and each["status"] == "True" for each in conditions)

    def forget_requests(self, namespace: str = NAMESPACE) -> None:
        """Delete the requests and their templates. As long as a request exists, its nodes stay for ten minutes."""
        self.kube.delete(paths.path(GROUP_VERSION, "provisioningrequests", namespace))
        self.kube.delete(paths.path("v1", "podtemplates", namespace))

    def served_again(self) -> int:
        """
        The nodes that it added beyond those that ProvisioningRequests requested, according to its log.

        It writes that a request is accepted and then, from the state before that write, that it is provisioned. If the
        second write fails, it serves the request again, with a list of nodes that may lack some of those that it just
        created.
        """
        served: set[str] = set()
        request, again = "", 0
        for found in _PLAN.finditer(self.program.log.read_text(errors="replace")):
            if found["request"]:
                request = found["request"]
                continue
            again += int(found["gets"]) - int(found["had"]) if request in served else 0
            served.add(request)
        assert served, "its log has no scale-up in the words that are known"
        return again

    def loops(self) -> int:
        """How often it has looked for pods that need a node."""
        found = _LOOPS.search(_text_of(f"{self.url}/metrics"))
        return int(found[1]) if found else 0

    def after_loops(self, count: int) -> None:
        """Wait until it has looked this many more times. What it has not done by then it will not do."""
        before = self.loops()
        wait_for(lambda: self.loops() > before + count, lambda: f"it stands still: {self.program.tail()}")


@contextlib.contextmanager
def running(
    cluster: Cluster,
    folder: Path,
    directory: Path,
    groups: Sequence[Group],
    *,
    gpu_label: str = "",
    requests: bool = True,
    flags: Sequence[str] = (),
) -> Iterator[Autoscaler]:
    """
    Run it with these groups, all empty. At the end its nodes are removed; the definitions stay.

    `gpu_label`: the label with which the cloud marks GPU nodes. From it the autoscaler concludes that they offer GPUs.
    `requests`: whether ProvisioningRequests and CapacityBuffers are defined and served, in addition to ordinary pods.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if requests:
        definitions = [each for each in yaml.safe_load_all((folder / DEFINITIONS).read_text()) if each]
        for document in definitions:
            installing.apply(cluster.kube, document)
        wait_for(lambda: engine.are_served(cluster.kube, definitions), "its kinds are not served", 30)
    _configure(cluster.kube, groups, gpu_label)
    kubeconfig = directory / "kubeconfig.yaml"
    kubeconfig.write_text(cluster.control_plane.kubeconfig(User("cluster-autoscaler", ("system:masters",))))
    port = free_port()
    program = Program(
        PROGRAM,
        [
            *_FLAGS,
            *(_REQUESTS if requests else ()),
            f"--address=127.0.0.1:{port}",
            f"--kubeconfig={kubeconfig}",
            *flags,
        ],
        log=directory / f"{PROGRAM}.log",
        environment={"KWOK_PROVIDER_MODE": "local", "KUBECONFIG": str(kubeconfig), "POD_NAMESPACE": NAMESPACE},
        command=(str(folder / PROGRAM),),
    )
    program.start()
    url = f"http://127.0.0.1:{port}"
    found = Autoscaler(cluster.kube, program, url)
    try:

        def ready() -> bool:
            program.check()
            return healthy(f"{url}/health-check") and found.loops() > 0

        wait_for(ready, lambda: f"it does not start: {program.tail()}", 60)
        yield found
    finally:
        program.terminate()  # it deletes its nodes before it ends
        with contextlib.suppress(Exception):
            wait_for(lambda: not program.alive(), "it does not end", _LEAVING_SECONDS)
        program.wait()
        _clear(found)


def _configure(kube: Kube, groups: Sequence[Group], gpu_label: str) -> None:
    gpus = {"gpuLabelKey": gpu_label, "availableGPUTypes": {"any": {}}}
    config = {
        "apiVersion": "v1alpha1",
        "readNodesFrom": "configmap",
        "nodegroups": {"fromNodeLabelKey": GROUP_LABEL},
        "nodes": {"skipTaint": True, **({"gpuConfig": gpus} if gpu_label else {})},
        "configmap": {"name": _TEMPLATES},
    }
    templates = {"apiVersion": "v1", "kind": "List", "items": [group.template() for group in groups]}
    for name, key, document in ((_CONFIG, "config", config), (_TEMPLATES, "templates", templates)):
        data = {"data": {key: yaml.safe_dump(document)}}
        metadata = {"name": name, "namespace": NAMESPACE}
        try:
            kube.create(paths.path("v1", "configmaps", NAMESPACE), {"metadata": metadata, **data})
        except KubeConflict:
            kube.patch_merge(paths.path("v1", "configmaps", NAMESPACE, name), data)


def _clear(autoscaler: Autoscaler) -> None:
    """Remove what it left behind if it was killed, and what it keeps in the API server for its next start."""
    with contextlib.suppress(KubeNotFound):
        autoscaler.forget_requests()
    for node in autoscaler.nodes():
        with contextlib.suppress(KubeNotFound):
            autoscaler.kube.delete(paths.path("v1", "nodes", name=node["metadata"]["name"]))
    with contextlib.suppress(KubeError):
        autoscaler.kube.delete(paths.path("v1", "configmaps", NAMESPACE, "cluster-autoscaler-status"))


def _text_of(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return str(answer.read().decode())
