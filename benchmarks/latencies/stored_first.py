"""
The cost of placing only stored pods (`placement.when: stored`): the time from a pod's creation until it is pinned.

One client creates pods one after the other, and polls each until it has its share and no gate. It does the same on a
cluster that gives shares at admission; on the embedded API server, and on a real one if there is one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.figures import MILLISECOND, Spread, machine_line, table
from benchmarks.progress import say
from contract import names, pods
from contract.metrics.allocator import BINDINGS
from playground.cluster import Cluster, MakeControlPlane
from playground.embedded import Embedded
from playground.realapi.components import assets_of
from playground.realapi.real import Real
from playground.shapes import gpu_node
from playground.waiting import wait_for
from runtime.kubernetes import paths

JSON = dict[str, Any]
_CREATES = 150
_NAMESPACE = "default"
_TIMEOUT = 30.0
_NODES = [gpu_node(f"gpus-{number}", "8 x NVIDIA A100-SXM4-80GB 81920MiB") for number in range(2)]


def stored_first(environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Both settings on each control plane that there is."""
    planes: dict[str, MakeControlPlane] = {"embedded": lambda gpus_of: Embedded(gpus_of=gpus_of)}
    assets = assets_of(environment)
    if isinstance(assets, str):
        yield f"On a real API server it was not measured: {assets}"
    else:
        planes["real"] = lambda gpus_of: Real(assets, gpus_of=gpus_of)
    rows, lines = [], []
    for plane, make in planes.items():
        for when in ("admission", "stored"):
            say(f"creating {_CREATES} pods, shares given at {when}, {plane} API server")
            flags = ("--placement-when", when)
            with Cluster(nodes=_NODES, control_plane=make, settings={"allocator": flags}) as cluster:
                created, pinned, writes = _measured(cluster)
            cells = (*created.cells(MILLISECOND)[:2], *pinned.cells(MILLISECOND))
            rows.append((f"{plane}, {when}", *cells, f"{writes:.2f}"))
            keys = ("created_p50_ms", "created_p99_ms", "pinned_p50_ms", "pinned_p99_ms", "pinned_max_ms")
            values = dict(zip(keys, cells, strict=True))
            lines.append(machine_line("stored", {"plane": plane, "when": when, **values, "writes": f"{writes:.2f}"}))
    yield table(
        f"From creation until the pod is pinned, {_CREATES} pods one after the other",
        ("API server, shares given at", "created p50 ms", "p99", "pinned p50 ms", "p99", "max", "placing writes"),
        rows,
    )
    yield from lines


def _measured(cluster: Cluster) -> tuple[Spread, Spread, float]:
    """Until the creation was answered, until the pod was pinned; and the placements written for each pod."""
    created, pinned = list[int](), list[int]()
    path, before = paths.pods(_NAMESPACE), _placements(cluster)
    for number in range(_CREATES):
        started = time.perf_counter_ns()
        found = cluster.kube.create(path, _pod(f"pod-{number}"))
        created.append(time.perf_counter_ns() - started)
        if not _is_pinned(found):
            _await_pinned(cluster, f"{path}/pod-{number}")
        pinned.append(time.perf_counter_ns() - started)
    return Spread.of(created), Spread.of(pinned), (_placements(cluster) - before) / _CREATES


def _await_pinned(cluster: Cluster, path: str) -> None:
    wait_for(lambda: _is_pinned(cluster.kube.get(path)), f"{path} is not pinned", _TIMEOUT, every=0.0)


def _pod(name: str) -> JSON:
    limits = {str(names.GPU_MEMORY): "1Gi", "cpu": "10m"}
    container = {"name": "main", "image": "registry.example/main:1", "resources": {"limits": limits}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": _NAMESPACE},
        "spec": {"containers": [container]},
    }


def _is_pinned(pod: JSON) -> bool:
    return names.ALLOCATION in pods.annotations_of(pod) and names.GATE not in pods.gates(pod)


def _placements(cluster: Cluster) -> float:
    """How many placements of waiting pods the allocator has written."""
    lines = cluster.metrics().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f'{BINDINGS.name}{{outcome="succeeded"'))
