"""Pods, reviews and answers for the webhook's tests, in short form."""

from __future__ import annotations

import base64
import json
from typing import Any

import jsonpatch

from contract import names
from contract.encoding import codec
from contract.encoding.protocol import Placed, Wait
from contract.model import Allocation, ContainerAllocation, GpuShare

JSON = dict[str, Any]
GIB = 1 << 30
T4 = 15109 << 20
NOW_NS = 1_700_000_000_000_000_000

WAIT = Wait("NoRoom", "0 of 3 GPU nodes fit: 2 short of memory (largest free 5120 MiB, wanted 8192), 1 cordoned")


def container(name: str = "main", /, *, env: list[JSON] | None = None, **limits: str) -> JSON:
    """A container. Limits are given as `aliyun_com__gpu_mem="5"`: `__` is the slash, and `_` before it is a dot."""
    made: JSON = {"name": name, "image": "nvidia/cuda:12.4.1-base-ubuntu22.04"}
    if limits:
        made["resources"] = {"limits": {_resource(key): value for key, value in limits.items()}}
    if env is not None:
        made["env"] = env
    return made


def _resource(key: str) -> str:
    domain, _, name = key.rpartition("__")
    return f"{domain.replace('_', '.')}/{name.replace('_', '-')}" if domain else name


def pod(
    *containers: JSON, annotations: dict[str, str] | None = None, init: list[JSON] | None = None, **spec: Any
) -> JSON:
    """A pod as a controller submits it, without a name."""
    metadata: JSON = {"generateName": "train-", "namespace": "team-a", "labels": {"app": "train"}}
    if annotations is not None:
        metadata["annotations"] = annotations
    body: JSON = {"containers": list(containers), **spec}
    if init:
        body["initContainers"] = init
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}


def share(uuid: str = "GPU-aaaa", index: int = 0, memory: int = 5 * GIB, cores: int = 0, of: int = T4) -> GpuShare:
    return GpuShare(uuid, index, memory, cores, of)


def allocation(id_: str = "alloc-1", node: str = "gpu-1", **containers: tuple[GpuShare, ...]) -> Allocation:
    containers = containers or {"main": (share(),)}
    return Allocation(id_, node, tuple(ContainerAllocation(name, shares) for name, shares in containers.items()))


def placed(pin: str = "nodeName", **kwargs: Any) -> Placed:
    return Placed(allocation(**kwargs), pin)


def review(pod: JSON, **request: Any) -> JSON:
    """An AdmissionReview for the creation of `pod`."""
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "namespace": "team-a",
            "operation": "CREATE",
            "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller"},
            "object": pod,
            "oldObject": None,
            "dryRun": False,
            **request,
        },
    }


def patched(pod: JSON, response: JSON) -> JSON:
    """The pod after the response's patch, as the API server would apply it."""
    if "patch" not in response:
        return pod
    assert response["patchType"] == "JSONPatch"
    operations = json.loads(base64.b64decode(response["patch"]))
    changed: JSON = jsonpatch.apply_patch(json.loads(json.dumps(pod)), operations)  # JSON has no shared parts
    return changed


def environment(pod: JSON, name: str) -> dict[str, str]:
    """
    The environment that kubelet would give the container: literals and annotations are resolved, and later entries win.
    """
    annotations = pod["metadata"].get("annotations") or {}
    spec = pod["spec"]
    found = next(c for c in [*(spec.get("initContainers") or []), *spec["containers"]] if c["name"] == name)
    values = {}
    for entry in found.get("env") or []:
        source = ((entry.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath")
        if source is None:
            values[entry["name"]] = entry.get("value", "")
        else:
            values[entry["name"]] = annotations.get(source.removeprefix("metadata.annotations['")[:-2], "")
    return values


def request_text(**containers: JSON) -> str:
    """The text of a request annotation."""
    listed = [{"name": name, "count": 1, **fields} for name, fields in containers.items()]
    return json.dumps({"v": 1, "dialect": "native", "containers": listed})


def admitted_pod(*, allocated: Allocation | None = None, gated: bool = False, **spec: Any) -> JSON:
    """A pod that was admitted before: 8 GiB for its container `main`."""
    made = pod(container(gpufraction_io__gpu_memory="8Gi"), **spec)
    made["spec"]["containers"][0]["resources"]["requests"] = {str(names.GPU_MEMORY): "8Gi"}
    made["metadata"]["annotations"] = {str(names.REQUEST): request_text(main={"memory": 8 * GIB})}
    if allocated is not None:
        made["metadata"]["annotations"][str(names.ALLOCATION)] = codec.allocation_to_text(allocated)
    if gated:
        made["spec"]["schedulingGates"] = [{"name": str(names.GATE)}]
    return made
