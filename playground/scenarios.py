"""
The samples, and the expected outcome of each on the demo's cluster. The demo and the tests use this one table.

The outcome is read only from the API server: phases, conditions, annotations, and the containers' logs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contract import names
from contract.encoding import codec
from playground.programs import installing
from playground.waiting import wait_for
from runtime.kubernetes import paths as kubepaths
from runtime.kubernetes.client import Kube, KubeError, KubeNotFound, KubeTimeout

JSON = dict[str, Any]
ELASTIC = "elasticgpu.io/v1alpha1"
SAMPLES = Path(__file__).resolve().parent.parent / "samples"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a manifest. `nodes`, `gpus` and `waits` say where the pods run and why others wait."""

    running: int
    waiting: int = 0
    nodes: tuple[str, ...] = ()
    gpus: int = 0
    """Distinct GPUs that the running pods hold a share of."""
    waits: tuple[str, ...] = ()
    """Reason codes of the waiting pods."""

    def __str__(self) -> str:
        text = f"{self.running} Running on {', '.join(self.nodes) or '-'}, {self.gpus} GPU{'s' * (self.gpus != 1)}"
        return text + (f"; {self.waiting} waiting for {', '.join(self.waits)}" if self.waiting else "")


@dataclass(frozen=True, slots=True)
class Scenario:
    """One sample with the outcome that must be observed, and lines that its first container must have printed."""

    title: str
    sample: str
    want: Outcome
    prints: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    """Samples that are applied first."""
    replicas: int = 0
    """Scale the Deployment to this many replicas first; 0 leaves it as it is."""
    pods: int = field(default=1)
    """The expected number of pods in all."""


SCENARIOS = (
    Scenario(
        "check: 1Gi of any GPU",
        "check.yaml",
        Outcome(running=1, nodes=("t4",), gpus=1),
        prints=("GPU 0: Tesla T4", "0MiB / 1024MiB"),
    ),
    Scenario(
        "Aliyun: gpu-count 1, gpu-mem 5",
        "aliyun-gpushare.yaml",
        Outcome(running=1, nodes=("t4",), gpus=1),
        prints=(
            "ALIYUN_COM_GPU_MEM_CONTAINER=5",
            "ALIYUN_COM_GPU_MEM_DEV=14",
            "ALIYUN_COM_GPU_MEM_IDX=0",
            "ALIYUN_COM_GPU_MEM_POD=5",
            "GPU 0: Tesla T4",
        ),
    ),
    Scenario(
        "Aliyun: two replicas share one T4",
        "aliyun-gpushare.yaml",
        Outcome(running=2, nodes=("t4",), gpus=1),
        replicas=2,
        pods=2,
    ),
    Scenario(
        "4paradigm: 10 x gpumem 10000",
        "4paradigm-vgpu.yaml",
        Outcome(running=6, waiting=4, nodes=("v100",), gpus=2, waits=("Memory",)),
        prints=("GPU 0: Tesla V100-PCIE-32GB", "0MiB / 10000MiB"),
        pods=10,
    ),
    Scenario(
        "4paradigm: 10 x gpucores 30",
        "4paradigm-vgpu-cores.yaml",
        Outcome(running=6, waiting=4, nodes=("v100",), gpus=2, waits=("Cores",)),
        pods=10,
    ),
    Scenario(
        "nano-gpu: gpu-percent 20",
        "superedge-nano-gpu.yaml",
        Outcome(running=1, nodes=("t4",), gpus=1),
        prints=("GPU 0: Tesla T4", "0MiB / 3021MiB"),
    ),
    Scenario(
        "Elastic GPU: gpu-memory 256",
        "elastic-gpu.yaml",
        Outcome(running=1, nodes=("t4",), gpus=1),
        prints=("GPU 0: Tesla T4", "0MiB / 256MiB"),
    ),
    Scenario(
        "KAI: gpu-fraction 0.5",
        "kai-fraction.yaml",
        Outcome(running=1, nodes=("v100",), gpus=1),
        prints=("GPU 0: Tesla V100-PCIE-32GB", "0MiB / 16384MiB"),
    ),
    Scenario(
        "a whole GPU: nvidia.com/gpu 1",
        "whole-gpu.yaml",
        Outcome(running=1, nodes=("t4",), gpus=1),
        prints=("GPU 0: Tesla T4", "0MiB / 15109MiB"),
    ),
    Scenario(
        "OpenShift: Aliyun, restricted",
        "openshift-gpushare.yaml",
        Outcome(running=1, nodes=("a10",), gpus=1),
        prints=("ALIYUN_COM_GPU_MEM_DEV=22", "GPU 0: NVIDIA A10"),
    ),
    Scenario(
        "OKE: two claims, two pods",
        "oke-claims-pods.yaml",
        Outcome(running=2, nodes=("a10",), gpus=1),
        prints=("GPU 0: NVIDIA A10", "0MiB / 2048MiB"),
        before=("oke-claims.yaml",),
        pods=2,
    ),
    Scenario(
        "native: two containers, 2 GPUs",
        "native.yaml",
        Outcome(running=1, nodes=("v100",), gpus=2),
        prints=("GPU 0: Tesla V100-PCIE-32GB", "GPU 1: Tesla V100-PCIE-32GB", "0MiB / 8192MiB"),
    ),
)


# -- doing --------------------------------------------------------------------------------------------------------


def submit(kube: Kube, scenario: Scenario, namespace: str = "default") -> list[JSON]:
    """Apply the sample as a tenant would. Returns the created objects."""
    made = []
    for document in (d for name in (*scenario.before, scenario.sample) for d in installing.documents(SAMPLES / name)):
        document["metadata"]["namespace"] = namespace
        if scenario.replicas and document["kind"] == "Deployment":
            document["spec"]["replicas"] = scenario.replicas
        made.append(kube.create(installing.path_of(document), document))
    return made


def remove(kube: Kube, made: Iterable[JSON]) -> None:
    """Delete the objects and wait until their pods and claims are removed."""
    made = list(made)
    retire(kube, made)
    for document in made:
        kube.delete(installing.path_of(document, named=True), {"propagationPolicy": "Background"})
    wait_for(lambda: not any(_belongs(pod, made) for pod in all_pods(kube)), "pods are still there")
    names_of_claims = {document["metadata"]["name"] for document in made if document["kind"] == "ElasticGPUClaim"}
    wait_for(
        lambda: not names_of_claims & {claim["metadata"]["name"] for claim in all_claims(kube)},
        "claims are still there",
    )


def retire(kube: Kube, owners: Iterable[JSON]) -> None:
    """
    Scale Deployments, ReplicaSets and Jobs down to no pods, and wait until their controllers report that.

    A controller that is deleted in the meantime may still create a pod, for which no code would wait.
    """
    paths = {installing.path_of(owner, named=True): owner["kind"] for owner in owners if owner["kind"] in _STILL}
    for path, kind in paths.items():
        with contextlib.suppress(KubeNotFound):
            kube.patch_merge(path, {"spec": _STILL[kind]})

    def settled(path: str) -> bool:
        try:
            return _is_still(kube.get(path))
        except KubeNotFound:
            return True  # its owner took it along

    wait_for(lambda: all(map(settled, paths)), "controllers have not come to rest")


def clear(kube: Kube, namespace: str = "default") -> None:
    """Delete all pods of the namespace, and all objects that would create new ones."""
    versions = {"Deployment": "apps/v1", "ReplicaSet": "apps/v1", "Job": "batch/v1"}

    def owners() -> list[JSON]:
        return [
            {**item, "kind": kind, "apiVersion": version}
            for kind, version in versions.items()
            for item in kube.list(kubepaths.path(version, installing.plural(kind), namespace)).items
        ]

    retire(kube, owners())
    for owner in owners():
        with contextlib.suppress(KubeNotFound):  # its owner took it along
            # Without a propagation policy, a Job would leave its pods behind.
            kube.delete(installing.path_of(owner, named=True), {"propagationPolicy": "Background"})
    wait_for(lambda: not owners(), "controllers are still there")
    delete_pods(kube, namespace)
    kube.delete(kubepaths.path(ELASTIC, "elasticgpuclaims", namespace))
    wait_for(lambda: not all_claims(kube, namespace), "claims are still there")
    shares = kubepaths.path(ELASTIC, "elasticgpus")
    kube.delete(shares)
    kube.delete(kubepaths.path(ELASTIC, "elasticgpuclasses"))
    wait_for(lambda: not kube.list(shares).items, "ElasticGPUs are still there")


_ALL_OF_THEM = 60.0
"""Seconds to delete a thousand pods in one request, which a real API server handles one by one."""


def delete_pods(kube: Kube, namespace: str) -> None:
    """Delete all pods of a namespace. Retries, because a busy API server may end the request before the last pod."""

    def deleted() -> bool:
        try:
            kube.delete(kubepaths.pods(namespace), timeout=_ALL_OF_THEM)
        except KubeTimeout:
            return False
        return True

    wait_for(deleted, "pods cannot be deleted", 5 * _ALL_OF_THEM)
    wait_for(lambda: not all_pods(kube, namespace), "pods are still there")


_STILL: dict[str, JSON] = {"Deployment": {"replicas": 0}, "ReplicaSet": {"replicas": 0}, "Job": {"suspend": True}}


def _is_still(owner: JSON) -> bool:
    status = owner.get("status") or {}
    if owner["kind"] == "Job":
        ended = {"Complete", "Failed", "Suspended"}
        ended_so = any(c["type"] in ended and c["status"] == "True" for c in status.get("conditions") or [])
        return ended_so and not status.get("active")
    heard = status.get("observedGeneration", 0) >= owner["metadata"].get("generation", 0)
    return heard and not status.get("replicas")


def _belongs(pod: JSON, made: Iterable[JSON]) -> bool:
    name = pod["metadata"]["name"]
    return any(name == d["metadata"]["name"] or name.startswith(d["metadata"]["name"] + "-") for d in made)


# -- looking ------------------------------------------------------------------------------------------------------


def all_pods(kube: Kube, namespace: str = "default") -> list[JSON]:
    """The pods of a namespace, including terminating ones."""
    return kube.list(kubepaths.pods(namespace)).items


def all_claims(kube: Kube, namespace: str = "default") -> list[JSON]:
    """The ElasticGPUClaims of a namespace."""
    return kube.list(kubepaths.path(ELASTIC, "elasticgpuclaims", namespace)).items


def is_running(pod: JSON) -> bool:
    """Whether the pod is running and not terminating."""
    return pod.get("status", {}).get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]


def waits(pod: JSON) -> str:
    """The reason code of a waiting gated pod; empty if it is not gated or has no reason yet."""
    gated = any(g["name"] == names.GATE for g in pod["spec"].get("schedulingGates") or [])
    return condition(pod).get("reason", "") if gated else ""


def condition(pod: JSON) -> JSON:
    """The pod's condition `Allocated`; empty where there is none."""
    conditions = pod.get("status", {}).get("conditions") or []
    return next((c for c in conditions if c["type"] == names.ALLOCATED_CONDITION), {})


def settled(kube: Kube, count: int, namespace: str = "default", *, running: int = 0) -> list[JSON]:
    """
    Wait until `count` pods all run or wait with a reason, and return them.

    `running`: the least number of pods that must run, if waiting pods are about to start.
    """
    found: list[JSON] = []

    def done() -> bool:
        found[:] = [p for p in all_pods(kube, namespace) if "deletionTimestamp" not in p["metadata"]]
        quiet = len(found) == count and all(is_running(p) or waits(p) for p in found)
        return quiet and sum(map(is_running, found)) >= running

    wait_for(done, lambda: f"{count} pods wanted, found: {shown(found)}")
    return found


def shown(found: Iterable[JSON]) -> str:
    """The pods in one line, for a message about a wait that timed out."""
    return "; ".join(map(_line, found))


def _line(pod: JSON) -> str:
    status = pod.get("status", {})
    return f"{pod['metadata']['name']} {status.get('phase')} {status.get('reason', '')} {condition(pod)}"


def outcome(found: Iterable[JSON]) -> Outcome:
    """The outcome of these pods."""
    running = [pod for pod in found if is_running(pod)]
    codes = [waits(pod) for pod in found if waits(pod)]
    uuids = {uuid for pod in running for uuid in held(pod)}
    return Outcome(
        running=len(running),
        waiting=len(codes),
        nodes=tuple(sorted({pod["spec"]["nodeName"] for pod in running})),
        gpus=len(uuids),
        waits=tuple(sorted(set(codes))),
    )


def held(pod: JSON) -> dict[str, int]:
    """Bytes of each GPU that the pod's allocation holds, by UUID."""
    text = pod["metadata"].get("annotations", {}).get(names.ALLOCATION)
    shares: dict[str, int] = {}
    if text is not None:
        for container in codec.allocation_from_text(text).containers:
            for share in container.shares:
                shares[share.uuid] = shares.get(share.uuid, 0) + share.memory
    return shares


def printed(kube: Kube, pod: JSON, container: str = "") -> str:
    """The log of the named container, or of the pod's first one; empty if there is none."""
    metadata = pod["metadata"]
    query = {"container": container or pod["spec"]["containers"][0]["name"]}
    try:
        return kube.text(kubepaths.pods(metadata["namespace"], metadata["name"], "log"), query)
    except KubeError:
        return ""


def missing_lines(kube: Kube, scenario: Scenario, found: Iterable[JSON]) -> list[str]:
    """The expected lines that the container did not print."""
    if not scenario.prints:
        return []
    running = sorted((p for p in found if is_running(p)), key=lambda p: str(p["metadata"]["name"]))
    text = printed(kube, running[0]) if running else ""
    return [line for line in scenario.prints if line not in text]
