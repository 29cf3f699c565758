"""
Canaries as pods: written, and read back. Pure.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from allocator.features.canary.machine import LONGEST, CanaryPod
from contract import names, pods
from contract.encoding import moments
from contract.scheduling import node_pin
from runtime import cudaprobe

JSON = dict[str, Any]
CONTAINER = "canary"
LABEL = {str(names.CANARY): "true"}
SHARE_MIB, CHUNK_MIB = 2048, 64
"""A canary's share, of which a CUDA context takes some hundred MiB, and the memory that it tries to take beyond it."""
SHARE = SHARE_MIB << 20


def canary(name: str, node: str, uuid: str, image: str) -> JSON:
    """A canary for a card of a node. `image`: our own, which has Python and which nodes can pull."""
    program = ["python", "-c", inspect.getsource(cudaprobe), "memory"]
    numbers = [str(SHARE_MIB + CHUNK_MIB), str(CHUNK_MIB)]
    limits = {str(names.GPU_MEMORY): f"{SHARE_MIB}Mi", "cpu": "500m", "memory": "512Mi"}
    required = {"nodeSelectorTerms": [{"matchFields": [node_pin.requirement(node)]}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": names.CANARY_NAMESPACE,
            "labels": dict(LABEL),
            "annotations": {str(names.USE_UUIDS): uuid},
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": int(LONGEST),
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "tolerations": [{"operator": "Exists"}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
            "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": CONTAINER,
                    "image": image,
                    "command": [*program, *numbers],
                    "resources": {"limits": limits, "requests": {"cpu": "10m", "memory": "64Mi"}},
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                }
            ],
        },
    }


def read(pod: Mapping[str, Any]) -> CanaryPod | None:
    """A canary; None for a pod that is not ours."""
    metadata = pod.get("metadata") or {}
    if (metadata.get("labels") or {}).get(str(names.CANARY)) != LABEL[str(names.CANARY)]:
        return None
    return CanaryPod(
        str(metadata.get("name", "")),
        pods.uid(pod),
        _node(pod),
        moments.created(pod),
        pods.finished(pod),
        _held(pod),
        bool(metadata.get("deletionTimestamp")),
    )


def _node(pod: Mapping[str, Any]) -> str:
    """The node for which it was made: by its affinity, of which ours has one term, before the node that it is on."""
    spec = pod.get("spec") or {}
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    for term in affinity.get("nodeSelectorTerms") or ():
        for each in term.get("matchFields") or ():
            if len(each.get("values") or ()) == 1:
                return str(each["values"][0])
    return str(spec.get("nodeName") or "")


def _held(pod: Mapping[str, Any]) -> bool | None:
    """The verdict by the exit code of its program; None for any other end."""
    found = (pod.get("status") or {}).get("containerStatuses") or ()
    states = [each.get("state") or {} for each in found if each.get("name") == CONTAINER]
    codes = [(state.get("terminated") or {}).get("exitCode") for state in states]
    verdicts = {cudaprobe.HELD: True, cudaprobe.EXCEEDED: False}
    return verdicts.get(codes[0]) if len(codes) == 1 and type(codes[0]) is int else None
