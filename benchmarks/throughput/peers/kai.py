"""
KAI-Scheduler (NVIDIA/KAI-Scheduler) with GPU sharing: its scheduler, binder, podgrouper and admission webhooks.

They have the flags that its operator gives them by default, but for what a machine without a cluster's network asks
for, GPU sharing, which is off by default, and client rates like those that kube-scheduler has here: by default its
binder may send 20 requests a second. Its operator and the two controllers of queues' and groups' status do not run. Its
kinds are read from the folder of its programs.

A card that is shared is held by a pod of its own, which on a real node gets it from NVIDIA's device plugin and writes
its UUID on itself. Here this is played, at once: a real one is pulled and started first. Kubernetes' own collector of
garbage runs, since KAI leaves it three objects for each pod that is deleted.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks.throughput.peers import acting, kubernetes, trial
from benchmarks.throughput.peers.bookings import Booking
from benchmarks.throughput.peers.peer import CARD, CARDS, MODEL, SHARE, Host, Needed, Peer, Reading
from contract.encoding import quantity
from playground.api.kinds.values import ADMIN
from playground.engines import engine
from playground.programs import installing
from playground.programs.probes import free_port
from playground.programs.process import Program
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube
from runtime.kubernetes.errors import KubeNotFound

JSON = dict[str, Any]
SCHEDULER = Needed("kai-scheduler", "kai/scheduler")
BINDER = Needed("kai-binder", "kai/binder")
GROUPER = Needed("kai-podgrouper", "kai/podgrouper")
ADMISSION = Needed("kai-admission", "kai/admission")
CRDS = Needed("kai-crds", "kai/crds.yaml")
GROUP, RESERVED, FRACTION = "runai-gpu-group", "run.ai/reserve_for_gpu_index", "gpu-fraction"
RESERVATIONS, _OWN, _SCALING = "kai-resource-reservation", "kai-scheduler", "kai-scale-adjust"
"""Namespaces of KAI: of the pods that hold shared cards, of its programs, and of pods for an autoscaler."""
_NAME, _QUEUE, _PARENT = "kai-scheduler", "default-queue", "default-parent-queue"
_QUEUES = "scheduling.run.ai/v2"
_QUEUE_LABEL, _SHARED = "kai.scheduler/queue", "runai/shared-gpu-configmap"
_PRIORITIES = {"train": 50, "build-preemptible": 75, "build": 100, "inference": 125}
_RUNTIME = "nvidia"
_PLUGINS = (
    "predicates",
    "proportion",
    "priority",
    "nodeavailability",
    "resourcetype",
    "podaffinity",
    "elastic",
    "kubeflow",
    "ray",
    "subgrouporder",
    "taskorder",
    "nominatednode",
    "dynamicresources",
    "minruntime",
    "topology",
    "snapshot",
    "gpupack",
)
_ACTIONS = "allocate, consolidation, reclaim, preempt, stalegangeviction"
_RATES = ("--qps=500", "--burst=1000")
_UNSERVED = ("--metrics-bind-address=0", "--health-probe-bind-address=0")
_TIMEOUT = 120.0


# -- nodes and pods -----------------------------------------------------------------------------------------------


def dress(node: JSON) -> None:
    """The reports of NVIDIA's device plugin and its feature discovery."""
    labels = node["metadata"].setdefault("labels", {})
    labels |= {
        "nvidia.com/gpu.count": str(CARDS),
        "nvidia.com/gpu.memory": str(CARD // quantity.MIB),
        "nvidia.com/gpu.product": MODEL.replace(" ", "-"),
    }
    for amounts in ("capacity", "allocatable"):
        node["status"][amounts]["nvidia.com/gpu"] = str(CARDS)


def uuid(node: str, index: int) -> str:
    """Of a card that is played."""
    return f"GPU-{node}-{index}"


def _pod(pod: JSON) -> None:
    """By fraction, of which ten fit on a card; of the same in MiB, by `gpu-memory`, KAI fits nine."""
    pod["spec"]["schedulerName"] = _NAME
    metadata = pod["metadata"]
    metadata["labels"] = {**metadata.get("labels", {}), _QUEUE_LABEL: _QUEUE}
    metadata["annotations"] = {**metadata.get("annotations", {}), FRACTION: str(SHARE / CARD)}


# -- objects ------------------------------------------------------------------------------------------------------


def _create(host: Host) -> None:
    kube = host.kube
    file = Path(host.folders[CRDS.variable]) / CRDS.path
    crds = [each for each in yaml.safe_load_all(file.read_text()) if each]
    for crd in crds:
        installing.apply(kube, crd)
    wait_for(lambda: engine.are_served(kube, crds), "KAI's kinds are not served", _TIMEOUT, every=0.2)
    for path, document in _objects():
        kube.create(path, document)


def _objects() -> Iterator[tuple[str, JSON]]:
    """The objects that its chart installs alongside its programs, each with the path of its collection."""
    for namespace in (RESERVATIONS, _OWN, _SCALING):
        yield paths.path("v1", "namespaces"), _object("v1", "Namespace", namespace)
    yield paths.path("v1", "serviceaccounts", RESERVATIONS), _object("v1", "ServiceAccount", RESERVATIONS)
    version = "node.k8s.io/v1"
    yield paths.path(version, "runtimeclasses"), _object(version, "RuntimeClass", _RUNTIME, handler=_RUNTIME)
    version = "scheduling.k8s.io/v1"
    for name, value in _PRIORITIES.items():
        yield paths.path(version, "priorityclasses"), _object(version, "PriorityClass", name, value=value)
    for name, parent in ((_PARENT, ""), (_QUEUE, _PARENT)):
        yield paths.path(_QUEUES, "queues"), _object(_QUEUES, "Queue", name, spec=_unlimited(parent))


def _object(version: str, kind: str, name: str, **fields: Any) -> JSON:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **fields}


def _mount(host: Host) -> None:
    """The ConfigMaps that a controller puts in each namespace, and that every pod mounts: KAI waits for them."""
    pod = host.kube.create(paths.pods(host.namespace), trial.made(lambda pod: None), {"dryRun": "All"})
    for volume in pod["spec"].get("volumes") or ():
        for source in (volume.get("projected") or {}).get("sources") or ():
            if "configMap" in source:
                made = _object("v1", "ConfigMap", source["configMap"]["name"])
                host.kube.create(paths.configmaps(host.namespace), made)


def _unlimited(parent: str) -> JSON:
    """A queue without limits."""
    unlimited = {"quota": 0, "limit": -1, "overQuotaWeight": 1}
    resources = {resource: unlimited for resource in ("cpu", "gpu", "memory")}
    return {"resources": resources, **({"parentQueue": parent} if parent else {})}


# -- programs -----------------------------------------------------------------------------------------------------


def _start(host: Host) -> Mapping[str, Program]:
    _create(host)
    _mount(host)
    kubernetes.controllers(host, "garbage-collector-controller")
    port = free_port()
    kubeconfig = {"KUBECONFIG": str(host.server.certified(ADMIN))}
    temporary = _certificates(host)
    programs = {
        SCHEDULER.name: host.start(SCHEDULER, _scheduler_flags(host), {**kubeconfig, "GOGC": "400"}),
        BINDER.name: host.start(BINDER, _binder_flags(), kubeconfig),
        GROUPER.name: host.start(GROUPER, _grouper_flags(), kubeconfig),
        ADMISSION.name: host.start(ADMISSION, _admission_flags(port), {**kubeconfig, "TMPDIR": str(temporary)}),
    }
    for kind, verbs, path in (
        ("MutatingWebhookConfiguration", ("CREATE",), "/mutate--v1-pod"),
        ("ValidatingWebhookConfiguration", ("CREATE", "UPDATE"), "/validate--v1-pod"),
    ):
        address = {"url": f"https://localhost:{port}{path}", "caBundle": _encoded(host.server.authority.pem)}
        installing.apply(host.kube, _webhook(kind, verbs, address))
    trial.admitted(host, _pod, lambda pod: _SHARED in _annotations(pod), programs)
    trial.placed(host, _pod, lambda pod: bool(known(pod)), programs)
    return programs


def _certificates(host: Host) -> Path:
    """The directory for temporary files below which the webhooks look for their certificate."""
    temporary = host.server.directory / "kai"
    directory = temporary / "k8s-webhook-server" / "serving-certs"
    directory.mkdir(parents=True)
    pair = host.server.authority.server(("localhost",))
    for name, content in zip(("tls.crt", "tls.key"), pair, strict=True):
        (directory / name).write_bytes(content)
    return temporary


def _encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _scheduler_flags(host: Host) -> list[str]:
    configuration = host.server.directory / "kai-scheduler.yaml"
    configuration.write_text(json.dumps(_configuration()))
    return [
        f"--scheduler-conf={configuration}",
        f"--scheduler-name={_NAME}",
        f"--namespace={_OWN}",
        "--nodepool-label-key=kai.scheduler/node-pool",
        "--partition-label-value=",
        f"--resource-reservation-app-label={RESERVATIONS}",
        f"--queue-label-key={_QUEUE_LABEL}",
        f"--listen-address=127.0.0.1:{free_port()}",
        f"--plugin-server-port={free_port()}",
        "--metrics-namespace=kai",
        *_RATES,
    ]


def _configuration() -> JSON:
    """The operator's configuration for its default shard, which packs nodes and cards."""
    packed = {"name": "nodeplacement", "arguments": {"gpu": "binpack", "cpu": "binpack"}}
    plugins = [*({"name": name} for name in _PLUGINS), packed, {"name": "gpusharingorder"}]
    return {"actions": _ACTIONS, "tiers": [{"plugins": plugins}]}


def _binder_flags() -> list[str]:
    return [
        f"--scheduler-name={_NAME}",
        f"--resource-reservation-namespace={RESERVATIONS}",
        f"--resource-reservation-service-account={RESERVATIONS}",
        f"--resource-reservation-app-label={RESERVATIONS}",
        "--resource-reservation-pod-image=registry.example/reservation:1",
        f"--scale-adjust-namespace={_SCALING}",
        "--cdi-enabled=false",
        f"--runtime-class-name={_RUNTIME}",
        *_UNSERVED,
        *_RATES,
    ]


def _grouper_flags() -> list[str]:
    return [
        f"--scheduler-name={_NAME}",
        f"--queue-label-key={_QUEUE_LABEL}",
        "--nodepool-label-key=kai.scheduler/node-pool",
        *_UNSERVED,
        *_RATES,
    ]


def _admission_flags(port: int) -> list[str]:
    return [
        f"--scheduler-name={_NAME}",
        f"--webhook-addr={port}",
        "--gpu-sharing-enabled=true",
        f"--gpu-pod-runtime-class-name={_RUNTIME}",
        *_UNSERVED,
    ]


def _webhook(kind: str, verbs: Sequence[str], address: JSON) -> JSON:
    own = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", _OWN]}
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": list(verbs),
        "resources": ["pods"],
        "scope": "Namespaced",
    }
    webhook = {
        "name": f"admission.{_OWN}.svc",
        "admissionReviewVersions": ["v1"],
        "clientConfig": address,
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "namespaceSelector": {"matchExpressions": [own]},
        "matchConditions": [{"name": "scheduler-name-match", "expression": f"object.spec.schedulerName == '{_NAME}'"}],
        "rules": [rule],
        **({"reinvocationPolicy": "IfNeeded"} if kind.startswith("Mutating") else {}),
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": "kai-admission"},
        "webhooks": [webhook],
    }


# -- the pods that hold cards -------------------------------------------------------------------------------------


_REFUSED = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no card is left on this node"}
"""The status that a kubelet gives a pod for which its device plugin has nothing."""


class Cards:
    """The holder of each node's cards, as kubelets know it."""

    def __init__(self, kube: acting.Client) -> None:
        self._kube = kube
        self._held: dict[str, dict[str, str]] = {}
        """By node: cards, by the uid of the pod that holds each."""

    def react(self, happened: str, pod: JSON) -> acting.Work | None:
        """Give a new pod the first card that is free. Where all are held it fails, as a kubelet has it."""
        metadata, node = pod["metadata"], pod["spec"].get("nodeName", "")
        held = self._held.setdefault(node, {})
        if happened == "DELETED" or (pod.get("status") or {}).get("phase") == "Failed":
            held.pop(metadata["uid"], None)
        elif node and metadata["uid"] not in held:
            return self._give(held, node, metadata, _annotations(pod).get(RESERVED, ""))
        return None

    def _give(self, held: dict[str, str], node: str, metadata: JSON, has: str) -> acting.Work | None:
        free = (card for card in (uuid(node, index) for index in range(CARDS)) if card not in held.values())
        card = has or next(free, "")
        name = (metadata["namespace"], metadata["name"])
        if not card:
            return partial(self._write, paths.pods(*name, "status"), {"status": _REFUSED})
        held[metadata["uid"]] = card
        return None if has else partial(self._write, paths.pods(*name), {"metadata": {"annotations": {RESERVED: card}}})

    def _write(self, path: str, change: JSON) -> None:
        with contextlib.suppress(KubeNotFound):  # deleted meanwhile
            self._kube.patch_merge(path, change)


@contextlib.contextmanager
def _acting(host: Host) -> Iterator[None]:
    with acting.reacting(host.kube, paths.pods(RESERVATIONS), Cards(host.kube).react):
        yield


# -- reading ------------------------------------------------------------------------------------------------------


def _annotations(stored: JSON) -> Mapping[str, str]:
    return stored["metadata"].get("annotations") or {}


def _labels(stored: JSON) -> Mapping[str, str]:
    return stored["metadata"].get("labels") or {}


def known(pod: JSON) -> str:
    """The binder labels a pod with its group once the pod that holds the group's card has reported its UUID."""
    return str(pod["metadata"]["name"]) if GROUP in _labels(pod) and pod["spec"].get("nodeName") else ""


def _booked(kube: Kube, namespace: str) -> Sequence[Booking]:
    pods, holders = (kube.list(paths.pods(each)).items for each in (namespace, RESERVATIONS))
    return bookings(pods, holders)


def bookings(pods: Iterable[JSON], holders: Iterable[JSON]) -> list[Booking]:
    """
    The holdings of pods with a node on the card that is held for their group.

    A pod has no card where nothing holds one for its group on its own node. Where several pods hold cards for one
    group, it counts on the first by name. Raises ValueError for memory that is no number of MiB.
    """
    cards: dict[tuple[str, str], str] = {}
    for holder in sorted(holders, key=lambda each: str(each["metadata"]["name"])):
        key = (holder["spec"].get("nodeName", ""), _labels(holder).get(GROUP, ""))
        if card := _annotations(holder).get(RESERVED):
            cards.setdefault(key, card)
    return [_booking(pod, cards) for pod in pods if pod["spec"].get("nodeName")]


def _booking(pod: JSON, cards: Mapping[tuple[str, str], str]) -> Booking:
    node = pod["spec"]["nodeName"]
    card = cards.get((node, _labels(pod).get(GROUP, "")), "")
    memory = round(Decimal(_annotations(pod)[FRACTION]) * CARD) if card else 0
    return Booking(pod["metadata"]["name"], node, card, memory)


PEER = Peer(
    name="kai",
    title="KAI-Scheduler",
    programs=(SCHEDULER, BINDER, GROUPER, ADMISSION, CRDS, kubernetes.CONTROLLERS),
    dress=dress,
    start=_start,
    kills=(SCHEDULER.name, BINDER.name),
    pod=_pod,
    reading=Reading(known=known, booked=_booked),
    acting=_acting,
)
