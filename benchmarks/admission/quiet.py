"""
A control plane that holds a large cluster and is otherwise idle: the embedded API server without the machinery.

Its nodes, GPUs and pods are put into its store directly, because the benchmark starts with them and does not measure
them. There are no kubelets and no agents, so only the measured programs change anything.
"""

from __future__ import annotations

import gc
import random
import time
from typing import Any
from urllib.parse import urlencode

from benchmarks import others as depend
from benchmarks.admission import workload
from benchmarks.progress import say
from contract import kinds, names, pods
from contract.encoding import codec, quantity
from contract.model import (
    Allocation,
    ContainerAllocation,
    FractionRequest,
    Gpu,
    GpuShare,
    Inventory,
    PodRequest,
)
from contract.nodes.inventories import inventory_to_status
from playground.api.http import answers
from playground.api.kinds.values import ADMIN, timestamp
from playground.embedded import Embedded
from playground.machinery.objects.nodes import NodeSpec, node_object
from playground.programs import installing
from runtime.kubernetes import paths

JSON = dict[str, Any]
_GPUS = 8
_MODELS = (("Tesla T4", 16), ("Tesla V100-SXM2-32GB", 32), ("NVIDIA A10", 24), ("NVIDIA A100-SXM4-80GB", 80))
_SERVED = {
    "persistentvolumeclaims": "persistentvolumeclaims",
    "persistentvolumes": "persistentvolumes",
    "storageclasses": "storageclasses.storage.k8s.io",
}
"""Of the objects that volumes consist of, those that the embedded API server has, as it names them."""
LOADED = "loaded"
"""Namespace of the pods that are there from the start."""


class Quiet(Embedded):
    """
    `nodes` nodes of 8 GPUs, with `sharers` pods that hold a share and `others` that hold none, spread evenly.

    Every GPU has a sharer, as long as there are that many, so that none is ever free as a whole.
    """

    def __init__(self, *, nodes: int, sharers: int, others: int = 0, depending: bool = False) -> None:
        """`depending`: the others depend on each other and on volumes (`benchmarks.others`)."""
        super().__init__(gpus_of=lambda node: ())
        self._nodes = nodes
        self._sharers = sharers
        self._others = others
        self._depending = depending

    def start(self) -> None:
        """Fill the store and listen."""
        say(f"loading {self._nodes} nodes, {self._sharers} pods with a share and {self._others} without")
        gc.freeze()
        self.server.start()
        for document in installing.to_apply():
            if document["kind"] == "CustomResourceDefinition":
                self.api.call("POST", installing.path_of(document), body=document)
        self.api.call("POST", paths.path("v1", "namespaces"), body={"metadata": {"name": LOADED}})
        now = time.time()
        inventories = [inventory(number) for number in range(self._nodes)]
        for number, found in enumerate(inventories):
            self._put("nodes", "", node(number, now))
            self._put(f"{names.GPUNODE_PLURAL}.{names.GROUP}", "", _gpunode(found))
        rng = random.Random(1)
        places = [(found.node, gpu) for found in inventories for gpu in found.gpus]
        rng.shuffle(places)
        created = timestamp(now)
        for number in range(self._sharers):
            where, gpu = places[number % len(places)]
            self._put("pods", LOADED, _sharer(number, where, gpu, created))
        plain = [workload.pod(number, namespace=LOADED, wanted={}) for number in range(6)]
        for number in range(self._others):
            where, template = inventories[number % self._nodes].node, plain[number % len(plain)]
            if self._depending:
                where = inventories[depend.place(number, self._nodes)].node
                made = _running("", depend.pod(number, where, template), where, created)
                made["metadata"]["name"] = depend.name(number)
                self._put("pods", made["metadata"]["namespace"], made)
            else:
                self._put("pods", LOADED, _running(f"other-{number:06}", template, where, created))
        for plural, made in (
            depend.storage(self._others, [each.node for each in inventories]) if self._depending else ()
        ):
            if plural in _SERVED:
                self._put(_SERVED[plural], made["metadata"].get("namespace", ""), made)
        gc.freeze()

    def stop(self) -> None:
        """Stop listening."""
        self.server.stop()

    def record(self) -> None:
        """
        Write the lists of nodes, GPUNodes and pods once, for every program that reads them from now on, until `live`.

        A watch that begins at such a list has everything that has changed since.
        """
        say("recording the lists")
        for path, of in (
            (paths.path("v1", "nodes"), kinds.NODES),
            (paths.path(names.GPUNODE_GROUP_VERSION, names.GPUNODE_PLURAL), kinds.GPUNODES),
            (paths.pods(), kinds.PODS),
        ):
            token = ""
            while True:
                query = {"limit": str(of.page), **({"continue": token} if token else {})}
                page = self.api.handle("GET", path, query=query, body=None, content_type="", user=ADMIN)
                self.server.recorded[f"{path}?{urlencode(query)}"] = answers.content_of(page)[0]
                token = page.body["metadata"].get("continue", "")
                if not token:
                    break

    def live(self) -> None:
        """Lists are live from now on."""
        self.server.recorded.clear()

    def _put(self, resource: str, namespace: str, value: JSON) -> None:
        metadata = value["metadata"]
        metadata["uid"] = f"{resource}-{metadata['name']}"
        self.api.store.create(resource, (namespace, metadata["name"]), value)


def inventory(number: int) -> Inventory:
    """The GPUs of a node by its number, all of one model."""
    name = f"gpu-{number:05}"
    model, gib = _MODELS[number % len(_MODELS)]
    size = gib * quantity.GIB
    return Inventory(name, tuple(Gpu(f"GPU-{name}-{at}", at, model, size, size) for at in range(_GPUS)))


def node(number: int, now: float) -> JSON:
    """The Node by its number; every second one has the taint that managed clusters give their GPU pools."""
    pool = workload.POOLS[number % len(workload.POOLS)]
    taints = (f"{workload.TAINT['key']}={workload.TAINT['value']}:{workload.TAINT['effect']}",) if number % 2 else ()
    spec = NodeSpec(f"gpu-{number:05}", cpu="128", memory="1Ti", pods=250, labels={"pool": pool}, taints=taints)
    return node_object(spec, now)


def _gpunode(found: Inventory) -> JSON:
    return {
        "apiVersion": names.GPUNODE_GROUP_VERSION,
        "kind": "GPUNode",
        "metadata": {"name": found.node},
        "status": {key: value for key, value in inventory_to_status(found).items() if value is not None},
    }


def _sharer(number: int, where: str, gpu: Gpu, created: str) -> JSON:
    memory = gpu.usable // (16 + number % 8) // quantity.MIB * quantity.MIB
    fraction = FractionRequest("main", memory=memory, cores=(0, 1, 2)[number % 3])
    share = GpuShare(gpu.uuid, gpu.index, memory, fraction.cores, gpu.memory)
    allocation = Allocation(f"{number:032x}", where, (ContainerAllocation("main", (share,)),))
    made = _running(f"sharer-{number:06}", workload.pod(number, namespace=LOADED, wanted={}), where, created)
    made["metadata"]["annotations"] |= {
        names.REQUEST: codec.request_to_text(PodRequest("native", (fraction,))),
        names.ALLOCATION: codec.allocation_to_text(allocation),
        **codec.container_annotations(allocation),
    }
    resources = made["spec"]["containers"][0]["resources"]
    resources["limits"] |= pods.accounting(fraction, memory)
    resources["requests"] |= pods.accounting(fraction, memory)
    return made


def _running(name: str, pod: JSON, where: str, created: str) -> JSON:
    """The pod under this name, running on a node; shares everything else with `pod`."""
    status = {
        "phase": "Running",
        "conditions": [
            {"type": kind, "status": "True", "lastTransitionTime": created}
            for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready", names.ALLOCATED_CONDITION)
        ],
        "startTime": created,
    }
    return {
        **pod,
        "metadata": {**pod["metadata"], "name": name, "creationTimestamp": created},
        "spec": {**pod["spec"], "nodeName": where},
        "status": status,
    }
