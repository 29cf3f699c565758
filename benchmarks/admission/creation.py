"""
The time that gpufraction adds to a pod's creation, on the embedded API server of the reviews and on a real one.

It creates pods of three kinds in turn, so that other work on the machine affects all of them equally. No kubelet and no
scheduler takes part: on the real API server, the pods name a scheduler that does not exist.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping

from benchmarks.admission import workload
from benchmarks.figures import MILLISECOND, Spread, machine_line, table
from benchmarks.progress import say
from playground.cluster import Cluster
from playground.programs import installing
from playground.realapi.components import assets_of
from playground.realapi.real import Real
from playground.shapes import gpu_node
from runtime.kubernetes import paths

TENANT, _UNLABELLED = "tenant", "unlabelled"
_CREATES = 150
_NOBODY = "nobody"


def real(environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """On the API server of KUBEBUILDER_ASSETS, with a node of 8 GPUs for each of the workload's pools."""
    assets = assets_of(environment)
    if isinstance(assets, str):
        yield f"Creating a pod on a real API server was not measured: {assets}"
        return
    nodes = [
        gpu_node(f"gpu-{pool}", "8 x NVIDIA A100-SXM4-80GB 81920MiB", labels={"pool": pool}) for pool in workload.POOLS
    ]
    with Cluster(
        nodes=nodes, control_plane=lambda gpus_of: Real(assets, gpus_of=gpus_of), namespaces=(TENANT,)
    ) as cluster:
        version = ".".join(map(str, cluster.kube.version()))
        yield from added(cluster, f"a real API server, Kubernetes {version}", scheduler=_NOBODY, section="create-real")


def added(cluster: Cluster, where: str, *, scheduler: str = "", section: str = "create") -> Iterator[str]:
    """Create the pods and compare. `scheduler`: the scheduler that the pods name; empty: the default one."""
    say(f"creating pods with and without a webhook, on {where}")
    installing.apply(cluster.kube, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _UNLABELLED}})
    cluster.await_account(_UNLABELLED)
    kinds = {
        "no webhook: namespace without the label": (_UNLABELLED, False),
        "matchConditions only: requests no share": (TENANT, False),
        "through the webhook: requests a share": (TENANT, True),
    }
    took: dict[str, list[int]] = {kind: [] for kind in kinds}
    for number in range(_CREATES):
        for kind, (namespace, asks) in kinds.items():
            made = workload.pod(number, namespace=namespace, wanted=workload.limits(number) if asks else {})
            if scheduler:
                made["spec"]["schedulerName"] = scheduler
            before = time.perf_counter_ns()
            cluster.kube.create(paths.pods(namespace), made)
            took[kind].append(time.perf_counter_ns() - before)
    spreads = [(kind, Spread.of(values)) for kind, values in took.items()]
    base = spreads[0][1].p50
    yield table(
        f"Creating a pod on {where}, {_CREATES} each, alternating",
        ("pod", "p50 ms", "p99 ms", "max ms", "added at p50"),
        [
            (kind, *spread.cells(MILLISECOND), f"{(spread.p50 - base) / MILLISECOND:+.2f} ms")
            for kind, spread in spreads
        ],
    )
    yield machine_line(
        section,
        {
            "without_p50_ms": f"{base / MILLISECOND:.2f}",
            "with_p50_ms": f"{spreads[-1][1].p50 / MILLISECOND:.2f}",
            "added_p50_ms": f"{(spreads[-1][1].p50 - base) / MILLISECOND:.2f}",
        },
    )
