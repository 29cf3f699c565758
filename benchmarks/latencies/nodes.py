"""
The time from a pod that fits no node to the request for a node, when an autoscaler can begin.

The time for which a pod waits first (`provisioning.after`) is zero here. It comes on top.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import yaml

from allocator.features.provisioning.objects import PROVISIONING_REQUESTS
from benchmarks.figures import MILLISECOND, Spread, machine_line, table
from benchmarks.progress import say
from contract import names
from playground.cluster import DEFAULT_COMPONENTS, Cluster
from playground.programs import installing
from playground.waiting import wait_for
from runtime.kubernetes import paths

JSON = dict[str, Any]
ROUNDS = 20
_TENANT = "tenant"
_SPREAD = 2.0
"""Seconds between two checks of the waiting pods."""
_VERSION, _PLURAL, _KIND = PROVISIONING_REQUESTS
_POOL = {
    "name": "t4",
    "nodeSelector": {"matchLabels": {"pool": "t4"}},
    "node": {"gpus": 2, "model": "Tesla T4", "gpuMemory": "15109Mi", "cpu": 8, "memory": "32Gi", "max": 10},
}
requests = paths.NamespacedResource(_VERSION, _PLURAL)


def definition() -> JSON:
    """The CustomResourceDefinition of ProvisioningRequests, with any content: no autoscaler reads them here."""
    group, version = _VERSION.split("/")
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{_PLURAL}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": _PLURAL, "singular": _KIND.lower(), "kind": _KIND, "listKind": f"{_KIND}List"},
            "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
        },
    }


def nodes() -> Iterator[str]:
    """Create a pod for which there is no node, repeatedly, and wait for the request."""
    say(f"{ROUNDS} pods, one after the other, for which there is no node")
    with Cluster(
        nodes=(),
        namespaces=(_TENANT,),
        components=(*DEFAULT_COMPONENTS, "node-provisioning"),
        settings={"allocator": ("--provisioning-after", "0s")},
    ) as cluster:
        installing.apply(cluster.kube, definition())
        options = {names.OPTIONS_FILE: yaml.safe_dump({"pools": [_POOL]})}
        cluster.kube.patch_merge(paths.configmaps(names.NAMESPACE, names.OPTIONS), {"data": options})
        _asked_for(cluster)  # the allocator has read the options
        took = []
        for number in range(ROUNDS):
            time.sleep(_SPREAD * number / ROUNDS)  # each pod is created at a different moment between two checks
            took.append(_asked_for(cluster))
    spread = Spread.of(took)
    cells = spread.cells(MILLISECOND, 0)
    yield table(
        "From a pod that no node serves to the request for a node",
        ("rounds", "p50 ms", "p99 ms", "max ms"),
        [(str(spread.count), *cells)],
    )
    keys = ("p50_ms", "p99_ms", "max_ms")
    yield machine_line("nodes", {"rounds": spread.count, **dict(zip(keys, cells, strict=True))})


def _asked_for(cluster: Cluster) -> int:
    """Nanoseconds from the answer to the pod's creation until there is a request; afterwards neither is there."""
    limits = {str(names.GPU_MEMORY): "4Gi"}
    container = {"name": "main", "image": "any", "resources": {"limits": limits}}
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "waits"}, "spec": {"containers": [container]}}
    cluster.kube.create(paths.pods(_TENANT), made)
    began = time.perf_counter_ns()
    wait_for(lambda: _there_are(cluster), "no node is asked for", every=0.005)
    took = time.perf_counter_ns() - began
    cluster.kube.delete(paths.pods(_TENANT, "waits"))
    wait_for(lambda: not _there_are(cluster), "the request stays", every=0.05)
    return took


def _there_are(cluster: Cluster) -> bool:
    return bool(cluster.kube.list(requests(names.NAMESPACE)).items)
