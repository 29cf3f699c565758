"""
HAMi (Project-HAMi): its mutating webhook and its scheduler's extender, one program, alongside a kube-scheduler of its
own.

Both have the flags of its chart's defaults, but for what a machine without a cluster's network asks for: loopback
addresses, no election of a leader, and client rates like those that kube-scheduler has here. By default its extender
may send 5 requests a second, and a pod costs it nine. Of its configuration of devices it has NVIDIA's part.

Its device plugin is played: for each pod that is bound it does what Allocate reads and writes, and takes the lock off
the node, without which no other pod could be bound there.
"""

from __future__ import annotations

import base64
import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.throughput.peers import acting, kubernetes, trial
from benchmarks.throughput.peers.bookings import Booking
from benchmarks.throughput.peers.peer import CARD, CARDS, MODEL, SHARE, Host, Needed, Peer, Reading
from contract.encoding import quantity
from playground.api.kinds.values import ADMIN
from playground.machinery.cluster import SCHEDULER
from playground.programs.probes import free_port
from playground.programs.process import Program
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube
from runtime.kubernetes.errors import KubeConflict, KubeNotFound

JSON = dict[str, Any]
EXTENDER = Needed("hami-scheduler", "hami/scheduler")
NODE, ALLOCATED = "hami.io/vgpu-node", "hami.io/vgpu-devices-allocated"
_TO_ALLOCATE, PHASE = "hami.io/vgpu-devices-to-allocate", "hami.io/bind-phase"
_REGISTER, LOCK = "hami.io/node-nvidia-register", "hami.io/mutex.lock"
_HANDSHAKES = ("", "-biren", "-va", "-dcu", "-xpu")
"""Ends of the annotations by which the scheduler checks whether the agents of each vendor are alive."""
_COUNT, _MEMORY = "nvidia.com/gpu", "nvidia.com/gpumem"
_OTHERS = ("nvidia.com/gpucores", "nvidia.com/gpumem-percentage", "nvidia.com/priority")
_SCHEDULER, _WEBHOOK, _OWN = "hami-scheduler", "hami-webhook", "hami-kube-scheduler"
_SPLITS = 10
"""Pods that share a card at most, the chart's default."""
_CONFIGURATIONS = paths.path("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations")
_TRIES, _AGAIN = 5, 0.1
"""How often the device plugin tries to take a lock off, and seconds between."""


# -- nodes and pods -----------------------------------------------------------------------------------------------


def dress(node: JSON) -> None:
    """The reports of its device plugin, and the handshakes of a scheduler that has run for a while."""
    metadata = node["metadata"]
    metadata.setdefault("labels", {})["gpu"] = "on"
    annotations = metadata.setdefault("annotations", {})
    annotations[_REGISTER] = json.dumps([_device(metadata["name"], index) for index in range(CARDS)])
    asked = time.strftime("Requesting_%Y-%m-%d %H:%M:%S")
    annotations |= {f"hami.io/node-handshake{maker}": asked for maker in _HANDSHAKES}
    for amounts in ("capacity", "allocatable"):
        node["status"][amounts][_COUNT] = str(CARDS * _SPLITS)


def _device(node: str, index: int) -> JSON:
    return {
        "id": f"GPU-{node}-{index}",
        **({"index": index} if index else {}),
        "count": _SPLITS,
        "devmem": CARD // quantity.MIB,
        "devcore": 100,
        "type": MODEL,
        "mode": "hami-core",
        "health": True,
    }


def _pod(pod: JSON) -> None:
    pod["spec"]["containers"][0]["resources"]["limits"] = {_COUNT: "1", _MEMORY: str(SHARE // quantity.MIB)}


# -- programs -----------------------------------------------------------------------------------------------------


def _start(host: Host) -> Mapping[str, Program]:
    port = free_port()
    programs = {
        EXTENDER.name: host.start(EXTENDER, _extender_flags(host, port), _environment(host)),
        _OWN: host.start(kubernetes.SCHEDULER, _scheduler_flags(host, port), name=_OWN),
    }
    host.kube.create(_CONFIGURATIONS, _webhook(port, host.server.authority.pem))
    trial.admitted(host, _pod, lambda pod: bool(pod["spec"]["schedulerName"] == _SCHEDULER), programs)
    trial.placed(host, _pod, lambda pod: _annotations(pod).get(PHASE) == "success", programs)
    return programs


def _environment(host: Host) -> Mapping[str, str]:
    return {
        "KUBECONFIG": str(host.server.certified(ADMIN)),
        "POD_NAME": _SCHEDULER,
        "POD_NAMESPACE": "kube-system",
        "HAMI_NODELOCK_EXPIRE": "5m",
    }


def _extender_flags(host: Host, port: int) -> list[str]:
    certificate, key = host.server.authority.server(("localhost", "127.0.0.1"))
    files = {"tls.crt": certificate, "tls.key": key, "devices.yaml": json.dumps(_devices()).encode()}
    for name, content in files.items():
        _file(host, name).write_bytes(content)
    return [
        f"--http_bind=127.0.0.1:{port}",
        f"--cert_file={_file(host, 'tls.crt')}",
        f"--key_file={_file(host, 'tls.key')}",
        f"--device-config-file={_file(host, 'devices.yaml')}",
        f"--scheduler-name={_SCHEDULER}",
        f"--metrics-bind-address=127.0.0.1:{free_port()}",
        "--node-scheduler-policy=binpack",
        "--gpu-scheduler-policy=spread",
        "--force-overwrite-default-scheduler=true",
        "--leader-elect=false",
        "--kube-qps=500",
        "--kube-burst=1000",
        "--debug",
        "-v=4",
    ]


def _file(host: Host, name: str) -> Path:
    return host.server.directory / f"hami-{name}"


def _devices() -> JSON:
    return {
        "nvidia": {
            "resourceCountName": _COUNT,
            "resourceMemoryName": _MEMORY,
            "resourceCoreName": _OTHERS[0],
            "resourceMemoryPercentageName": _OTHERS[1],
            "resourcePriorityName": _OTHERS[2],
            "overwriteEnv": False,
            "defaultMemory": 0,
            "defaultCores": 0,
            "defaultGPUNum": 1,
            "memoryFactor": 1,
            "deviceSplitCount": _SPLITS,
            "deviceMemoryScaling": 1,
            "deviceCoreScaling": 1,
            "gpuCorePolicy": "default",
            "libCudaLogLevel": "1",
        }
    }


def _scheduler_flags(host: Host, port: int) -> list[str]:
    kubeconfig = str(host.server.certified(SCHEDULER))
    _file(host, "scheduler.yaml").write_text(json.dumps(_scheduler(kubeconfig, port)))
    return [f"--config={_file(host, 'scheduler.yaml')}", "--bind-address=127.0.0.1", "--secure-port=0", "-v=4"]


def _scheduler(kubeconfig: str, port: int) -> JSON:
    extender = {
        "urlPrefix": f"https://127.0.0.1:{port}",
        "enableHTTPS": True,
        "tlsConfig": {"insecure": True},
        "filterVerb": "filter",
        "bindVerb": "bind",
        "nodeCacheCapable": True,
        "weight": 1,
        "httpTimeout": "30s",
        "managedResources": [{"name": each, "ignoredByScheduler": True} for each in (_COUNT, _MEMORY, *_OTHERS)],
    }
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": kubeconfig, "qps": 500, "burst": 1000},
        "profiles": [{"schedulerName": _SCHEDULER}],
        "extenders": [extender],
    }


def _webhook(port: int, authority: bytes) -> JSON:
    ignored = {"key": "hami.io/webhook", "operator": "NotIn", "values": ["ignore"]}
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods"],
        "scope": "*",
    }
    webhook = {
        "name": "vgpu.hami.io",
        "admissionReviewVersions": ["v1beta1"],
        "clientConfig": {
            "url": f"https://localhost:{port}/webhook",
            "caBundle": base64.b64encode(authority).decode(),
        },
        "failurePolicy": "Ignore",
        "matchPolicy": "Equivalent",
        "namespaceSelector": {"matchExpressions": [ignored]},
        "objectSelector": {"matchExpressions": [ignored]},
        "reinvocationPolicy": "Never",
        "rules": [rule],
        "sideEffects": "None",
        "timeoutSeconds": 10,
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": _WEBHOOK},
        "webhooks": [webhook],
    }


# -- the device plugin --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _acting(host: Host) -> Iterator[None]:
    kube = host.kube

    def react(happened: str, pod: JSON) -> acting.Work | None:
        bound = happened != "DELETED" and pod["spec"].get("nodeName")
        waits = bound and _annotations(pod).get(PHASE) == "allocating"
        return partial(_serve, kube, pod) if waits else None

    with acting.reacting(kube, paths.pods(host.namespace), react):
        yield


def _serve(kube: Kube, pod: JSON) -> None:
    with contextlib.suppress(KubeNotFound):  # deleted meanwhile
        allocate(kube, pod)


def allocate(kube: acting.Client, pod: JSON) -> None:
    """The requests of the device plugin's Allocate, one after the other."""
    node, path = pod["spec"]["nodeName"], paths.pods(pod["metadata"]["namespace"], pod["metadata"]["name"])
    kube.get(paths.nodes(node))
    found = kube.get(path)
    if _annotations(found).get(PHASE) != "allocating":
        return  # seen twice
    kube.patch_merge(path, {"metadata": {"annotations": {_TO_ALLOCATE: ";"}}})
    kube.get(path)
    kube.patch_merge(path, {"metadata": {"annotations": {PHASE: "success"}}})
    _unlock(kube, node, f",{pod['metadata']['namespace']},{pod['metadata']['name']}")


def _unlock(kube: acting.Client, node: str, owner: str) -> None:
    kube.get(paths.nodes(node))
    for _ in range(_TRIES):
        found = kube.get(paths.nodes(node))
        if not _annotations(found).get(LOCK, "").endswith(owner):
            return
        version = found["metadata"]["resourceVersion"]
        with contextlib.suppress(KubeConflict):
            kube.patch_merge(paths.nodes(node), {"metadata": {"annotations": {LOCK: None}, "resourceVersion": version}})
            return
        time.sleep(_AGAIN)


# -- reading ------------------------------------------------------------------------------------------------------


def _annotations(stored: JSON) -> Mapping[str, str]:
    return stored["metadata"].get("annotations") or {}


def known(pod: JSON) -> str:
    """The annotations may still change before the pod is bound, when its node is locked by another pod."""
    written = ALLOCATED in _annotations(pod) and pod["spec"].get("nodeName")
    return str(pod["metadata"]["name"]) if written else ""


def _booked(kube: Kube, namespace: str) -> Sequence[Booking]:
    pods = kube.list(paths.pods(namespace)).items
    return [each for pod in pods if pod["spec"].get("nodeName") for each in bookings(pod)]


def bookings(pod: JSON) -> list[Booking]:
    """
    The holdings of a pod with a node, from `UUID,NVIDIA,MiB,cores:` for each card and `;` after each container.

    A pod that is on another node than its cards has none. Raises ValueError for an annotation that cannot be read.
    """
    name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
    annotations = _annotations(pod)
    cards = [each for container in annotations.get(ALLOCATED, "").split(";") for each in container.split(":") if each]
    if not cards or annotations.get(NODE) != node:
        return [Booking(name, node, "", 0)]
    return [Booking(name, node, uuid, memory) for uuid, memory in map(_card, cards)]


def _card(text: str) -> tuple[str, int]:
    fields = text.split(",")
    if len(fields) != 4 or not fields[0]:
        raise ValueError(f"{text!r}: expected a card's UUID, its type, MiB and cores")
    return fields[0], int(fields[2]) * quantity.MIB


PEER = Peer(
    name="hami",
    title="HAMi",
    programs=(EXTENDER, kubernetes.SCHEDULER),
    dress=dress,
    start=_start,
    kills=(EXTENDER.name,),
    pod=_pod,
    reading=Reading(known=known, booked=_booked),
    acting=_acting,
)
