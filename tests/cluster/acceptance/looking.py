"""Reads what the rows check: annotations, labels, what a container printed, and the command line tool's text."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from contract import names
from contract.encoding import codec
from contract.model import Allocation, ContainerAllocation, FractionRequest, GpuShare, PodRequest
from contract.nodes.inventories import inventory_from_object
from kubectl_gpufraction.__main__ import main
from playground import scenarios
from playground.cluster import Cluster
from playground.programs import installing
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeError, KubeNotFound
from runtime.kubernetes.paths import gpunodes
from tests.builders import PodBuilder, pod

JSON = dict[str, Any]
ALIYUN = "ALIYUN_COM_GPU_MEM_"
_CREATION = "gpufraction-pod-create"


def on_t4(made: PodBuilder) -> PodBuilder:
    """Restrict the pod to the node with two T4 of 14 units each."""
    return made.spec(nodeSelector={"gpushare": "true"})


def gpu_mem(name: str, units: int) -> PodBuilder:
    """A pod with Aliyun's resource on the T4 node."""
    return on_t4(pod(name)).asks("aliyun.com/gpu-mem", units)


def create(cluster: Cluster, *made: PodBuilder) -> None:
    """Submit pods, one after another."""
    for builder in made:
        cluster.kube.create(paths.pods("default"), builder.manifest())


def refusal(cluster: Cluster, made: PodBuilder) -> str:
    """The API server's message when it refuses the pod; empty if it accepts it."""
    try:
        create(cluster, made)
    except KubeError as error:
        return str(error)
    return ""


def run(cluster: Cluster, *made: PodBuilder, running: int | None = None) -> dict[str, JSON]:
    """Submit pods and wait until each runs or waits with a reason. Returns the pods by name."""
    create(cluster, *made)
    wanted = len(made) if running is None else running
    found = scenarios.settled(cluster.kube, len(made), running=wanted)
    return {each["metadata"]["name"]: each for each in found}


def get(cluster: Cluster, name: str) -> JSON:
    """The pod's current state."""
    return cluster.kube.get(paths.pods("default", name))


def annotated(made: JSON, prefix: str) -> dict[str, str]:
    """The pod's annotations with this prefix."""
    found = made["metadata"].get("annotations") or {}
    return {key.removeprefix(prefix): value for key, value in found.items() if key.startswith(prefix)}


def environment(cluster: Cluster, made: JSON, prefix: str) -> dict[str, str]:
    """The environment variables with this prefix that the first container printed."""
    found: dict[str, str] = {}

    def read() -> bool:
        lines = scenarios.printed(cluster.kube, made).splitlines()
        pairs = (line.partition("=") for line in lines if line.startswith(prefix))
        found.update({name: value for name, _, value in pairs})
        return bool(lines)

    wait_for(read, lambda: f"{made['metadata']['name']} printed nothing")
    return found


def uuids(made: JSON) -> set[str]:
    """The GPUs that the pod's allocation names."""
    return set(scenarios.held(made))


def indexes(made: JSON) -> list[int]:
    """Their indexes, in order for each container."""
    allocation = codec.allocation_from_text(made["metadata"]["annotations"][names.ALLOCATION])
    return [share.index for container in allocation.containers for share in container.shares]


def plugin(cluster: Cluster, *arguments: str) -> str:
    """What `kubectl gpufraction` prints, on either stream."""
    out = io.StringIO()
    main([*arguments, "--kubeconfig", str(cluster.kubeconfig)], out=out, err=out, environment={})
    return out.getvalue()


def bound(cluster: Cluster, name: str) -> tuple[JSON, JSON]:
    """An ElasticGPUClaim and its ElasticGPU, once both are bound to each other."""
    found: list[JSON] = []

    def both() -> bool:
        claim = cluster.kube.get(paths.path(scenarios.ELASTIC, "elasticgpuclaims", "default", name))
        if (claim.get("status") or {}).get("phase") != "Bound":
            return False
        share = cluster.kube.get(paths.path(scenarios.ELASTIC, "elasticgpus", name=claim["spec"]["elasticGPUName"]))
        found[:] = [claim, share]
        return bool(share["status"]["phase"] == "Bound")

    wait_for(both, lambda: f"{name} is not bound: {scenarios.all_claims(cluster.kube)}")
    return found[0], found[1]


def phase(cluster: Cluster, share: JSON) -> str:
    """The phase of an ElasticGPU now; empty if it does not exist."""
    try:
        found = cluster.kube.get(paths.path(scenarios.ELASTIC, "elasticgpus", name=share["metadata"]["name"]))
    except KubeNotFound:
        return ""
    return str((found.get("status") or {}).get("phase", ""))


def left(cluster: Cluster, resource: str) -> dict[str, int]:
    """What the GPU objects report as unused on each card, by the card's UUID."""
    found = cluster.kube.list(paths.path(scenarios.ELASTIC, "gpus")).items
    return {c["spec"]["uuid"]: int((c.get("status") or {}).get("allocatable", {}).get(resource, -1)) for c in found}


@contextmanager
def overcommitted(cluster: Cluster, node: str, index: int, memory: int) -> Iterator[None]:
    """
    A running pod, bound by hand, that holds more of a card than the card has.

    Our policies refuse such a pod, and an allocator that finds an unknown one makes it fail. So the pod is created
    while both are away, as if before their installation.
    """
    request = PodRequest("native", (FractionRequest("main", memory=memory),))
    [gpu] = [g for g in inventory_from_object(cluster.kube.get(gpunodes(node))).gpus if g.index == index]
    share = ContainerAllocation("main", (GpuShare(gpu.uuid, index, memory, 0, gpu.memory),))
    assert memory > gpu.usable
    foreign = (
        pod("foreign", "legacy")
        .asks(names.GPU_MEMORY, memory)
        .annotated(names.REQUEST, codec.request_to_text(request))
        .annotated(names.ALLOCATION, codec.allocation_to_text(Allocation("by-hand", node, (share,))))
        .on(node)
    )
    installing.apply(cluster.kube, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "legacy"}})
    cluster.await_account("legacy")
    allocator = cluster.programs["allocator"]
    allocator.kill()
    try:
        with _unguarded(cluster, foreign.manifest()):
            cluster.kube.create(paths.pods("legacy"), foreign.manifest())
        scenarios.settled(cluster.kube, 1, "legacy", running=1)
    finally:
        allocator.start()
    try:
        wait_for(lambda: _overcommitted(cluster) == 1, lambda: f"{_overcommitted(cluster)} cards are overcommitted")
        yield
    finally:
        cluster.kube.delete(paths.pods("legacy", "foreign"))
        path = paths.pods("legacy")
        wait_for(lambda: not cluster.kube.list(path).items, "the foreign pod is still there")


@contextmanager
def _unguarded(cluster: Cluster, pod: JSON) -> Iterator[None]:
    """Remove the policy that refuses the creation of this pod."""
    path = paths.path("admissionregistration.k8s.io/v1", "validatingadmissionpolicybindings", name=_CREATION)
    binding = cluster.kube.get(path)
    again = {**binding, "metadata": {"name": _CREATION, "labels": binding["metadata"].get("labels") or {}}}

    other = {**pod, "metadata": {**pod["metadata"], "name": "another"}}

    def refused() -> bool:
        try:
            cluster.kube.create(paths.pods("legacy"), other, {"dryRun": "All"})
        except KubeError as error:
            return "ValidatingAdmissionPolicy" in str(error)
        return False

    cluster.kube.delete(path)
    try:
        wait_for(lambda: not refused(), "the policy refuses the pod still")
        yield
    finally:
        cluster.kube.create(path.rpartition("/")[0], again)
        wait_for(refused, "the policy lets the pod through still")


def _overcommitted(cluster: Cluster) -> float:
    """How many overcommitted cards the allocator has found; -1 if it does not answer because it has just started."""
    try:
        text = cluster.metrics()
    except OSError:
        return -1
    return float(re.findall(r"^gpufraction_overcommitted_gpus (\S+)$", text, re.MULTILINE)[0])
