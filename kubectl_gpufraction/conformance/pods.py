"""
The pods of the checks, and the content of their logs.

Every pod lives in a namespace of the kit's own, at Pod Security's Restricted level, is bound to the chosen node by its
affinity, and ends by itself: `activeDeadlineSeconds` also holds if the command was killed. Pure.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from contract import names, pods
from contract.encoding import codec
from contract.encoding.reading import Malformed, is_gpu
from kubectl_gpufraction.conformance import checks
from kubectl_gpufraction.conformance.codes import ReportReason
from runtime import cudaprobe

JSON = dict[str, Any]
NAMESPACES = {checks.SERVED: "gpufraction-conformance", checks.UNSERVED: "gpufraction-conformance-unserved"}
"""By whether pods there are served. They are the kit's own; one with the name and without our label is left alone."""
CONTAINER = "probe"
OUT_OF_MEMORY = cudaprobe.OUT_OF_MEMORY
"""CUDA's code for memory that is refused."""
LABELS = {str(names.CONFORMANCE): "run"}
SELECTOR = f"{names.CONFORMANCE}=run"
_BEGIN, _DEVICE, _GPU, _MODULE, _END = (f"gpufraction-{word}" for word in ("begin", "device", "gpu", "module", "end"))
_LOOK = f"""look() {{
echo {_BEGIN}
for file in /dev/nvidia[0-9]*; do [ -c "$file" ] && echo "{_DEVICE} ${{file#/dev/nvidia}}"; done
nvidia-smi -L 2>/dev/null | while read -r line; do echo "{_GPU} $line"; done
[ -e /proc/driver/nvidia/version ] && echo {_MODULE}
echo {_END}
}}
"""
LOOK_ONCE = _LOOK + "look"
LOOK_AND_FAIL = _LOOK + "look; sleep 3; exit 1"
LOOK_AGAIN = _LOOK + "while :; do look; sleep 2; done"
"""Scripts for any shell: the GPUs that the container sees, once or repeatedly."""
MOST_LOG = 64 << 10
_UUID = re.compile(r"\(UUID: ([^()\s]{1,128})\)")
_MOST_SEEN = 256
_UNPULLED = frozenset(
    ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable")
)
_UNSTARTED = frozenset(("StartError", "ContainerCannotRun"))
_NO_EXECUTABLE = re.compile(r"executable file (`[^`]*` )?not found")
"""The message of runc and crun about a missing command. CRI-O then does not create the container."""
_NOT_FOUND = (126, 127)
"""Exit codes of a shell that finds no program."""
_MOST_FIGURE = 1 << 53


@dataclass(frozen=True, slots=True)
class Share:
    """A pod's request for a GPU. `uuid`: of the card to take; `isolation`: the weakest level that it accepts."""

    mib: int = 1024
    cores: int = 0
    uuid: str = ""
    isolation: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """The GPUs in a container: files of cards, UUIDs by `nvidia-smi`, and whether the kernel has NVIDIA's module."""

    devices: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    module: bool = False

    @property
    def seen(self) -> int:
        """How many GPUs it sees, in any way."""
        return max(len(self.devices), len(self.uuids))


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """
    The output of a program at its end, numbers by name. `failed`: whether it could not be tried. `full`: since others
    have filled the card.
    """

    figures: dict[str, int] = field(default_factory=dict)
    failed: bool = False
    full: bool = False


def program(mode: str, *numbers: int) -> tuple[str, ...]:
    """The command of a CUDA program, without its interpreter."""
    return ("-c", inspect.getsource(cudaprobe), mode, *map(str, numbers))


def manifest(
    name: str,
    node: str,
    command: Sequence[str],
    *,
    image: str,
    seconds: int,
    share: Share | None = None,
    plugin: bool = False,
    restart: str = "Never",
    runtime_class: str = "",
) -> JSON:
    """A pod for the node. `seconds`: after which it ends in any case. `plugin`: it asks a device plugin."""
    limits: JSON = {"cpu": "1", "memory": "1Gi"}
    annotations: JSON = {}
    if share is not None:
        limits[str(names.GPU_MEMORY)] = f"{share.mib}Mi"
        if share.cores:
            limits[str(names.GPU_CORES)] = str(share.cores)
        if share.uuid:
            annotations[str(names.USE_UUIDS)] = share.uuid
        if share.isolation:
            annotations[str(names.ISOLATION)] = share.isolation
    if plugin:
        limits["nvidia.com/gpu"] = "1"
    fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    required = {"nodeSelectorTerms": [{"matchFields": fields}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {
            "restartPolicy": restart,
            **({"runtimeClassName": runtime_class} if runtime_class else {}),
            "activeDeadlineSeconds": seconds,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "tolerations": [{"operator": "Exists"}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
            "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": CONTAINER,
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": list(command),
                    "resources": {"limits": limits, "requests": {"cpu": "10m", "memory": "64Mi"}},
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                }
            ],
        },
    }


def look_of(log: str) -> Look | None:
    """The last complete look in a log of any content; None if there is none."""
    lines = log[-MOST_LOG:].splitlines()
    ends = [number for number, line in enumerate(lines) if line.strip() == _END]
    if not ends:
        return None
    begins = [number for number, line in enumerate(lines[: ends[-1]]) if line.strip() == _BEGIN]
    if not begins:
        return None
    block = lines[begins[-1] : ends[-1]]
    devices = [line.partition(" ")[2].strip() for line in block if line.startswith(f"{_DEVICE} ")]
    uuids = [match[1] for line in block if line.startswith(f"{_GPU} ") and (match := _UUID.search(line))]
    return Look(
        tuple(sorted(set(devices))[:_MOST_SEEN]),
        tuple(sorted({uuid for uuid in uuids if is_gpu(uuid)})[:_MOST_SEEN]),
        any(line.strip() == _MODULE for line in block),
    )


def answer_of(log: str) -> ProbeAnswer | None:
    """The output of the CUDA program; None where it printed nothing that can be read."""
    found = next((line for line in reversed(log[-MOST_LOG:].splitlines()) if line.startswith(cudaprobe.MARK)), "")
    try:
        document = json.loads(found.removeprefix(cudaprobe.MARK))
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    figures = {
        key: value
        for key, value in document.items()
        if type(value) is int and 0 <= value <= _MOST_FIGURE and len(key) < 64
    }
    return ProbeAnswer(figures, "failed" in document, document.get("failed") == cudaprobe.FULL)


def given_of(pod: JSON) -> tuple[str, ...]:
    """The UUIDs of the GPUs in the pod's allocation."""
    try:
        allocation = codec.allocation_from_text(pods.annotations_of(pod).get(names.ALLOCATION))
    except Malformed:
        return ()
    return tuple(sorted({share.uuid for each in allocation.containers for share in each.shares}))


def way_of(pod: JSON) -> str:
    """The way of `checks.WAYS` by which a bound pod's GPU comes; empty where it is none."""
    spec, annotations = pod.get("spec") or {}, pods.annotations_of(pod)
    if any(each.get("name") == str(names.POD_CLAIM) for each in spec.get("resourceClaims") or ()):
        return "dra"
    if any(key.startswith(names.DEVICE_ANNOTATION_PREFIXES) for key in annotations):
        return "nri-annotation"
    devices = str(annotations.get(names.per_container(names.DEVICES_PREFIX, CONTAINER)) or "")
    if not devices:
        return ""
    form = "env-class" if spec.get("runtimeClassName") else "env-plain"
    return f"{form}-cdi" if "=" in devices else form


def status_of(pod: JSON) -> JSON:
    """The status of the probe's container."""
    found = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((each for each in found if isinstance(each, dict) and each.get("name") == CONTAINER), {})


def phase(pod: JSON) -> str:
    """The pod's phase."""
    return str((pod.get("status") or {}).get("phase") or "Pending")


def hopeless(pod: JSON) -> ReportReason | None:
    """Why waiting longer for the pod is useless; None if it is not."""
    status, state = pod.get("status") or {}, status_of(pod).get("state") or {}
    terminated, waiting = state.get("terminated") or {}, state.get("waiting") or {}
    if waiting.get("reason") in _UNPULLED:
        return ReportReason.NO_IMAGE
    if waiting.get("reason") == "CreateContainerError" and _NO_EXECUTABLE.search(str(waiting.get("message"))):
        return ReportReason.NO_PROGRAM
    if terminated.get("reason") in _UNSTARTED or terminated.get("exitCode") in _NOT_FOUND:
        return ReportReason.NO_PROGRAM
    if phase(pod) == "Failed" and not terminated and status.get("reason") != "DeadlineExceeded":
        return ReportReason.REJECTED
    if phase(pod) == "Failed" and status.get("reason") == "DeadlineExceeded":
        return ReportReason.NOT_STARTED
    return None


def late(pod: JSON) -> ReportReason:
    """Why a pod is not where it should be when the time is over."""
    if not (pod.get("spec") or {}).get("nodeName"):
        return ReportReason.NO_ROOM
    if (status_of(pod).get("state") or {}).get("waiting", {}).get("reason") in _UNPULLED:
        return ReportReason.NO_IMAGE
    return ReportReason.NOT_STARTED
