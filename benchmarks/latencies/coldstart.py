"""
From the start of the allocator's process until it is ready to decide, on one of the largest clusters.

The figure includes the API server's time to list everything. It is the embedded one, in this process and on the same
cores, and the webhook starts alongside it. A real API server is faster, but has network latency.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks import processes
from benchmarks.admission import creation
from benchmarks.admission.latency import loaded_cluster
from benchmarks.figures import MIB, machine_line, table
from contract import names
from playground import scenarios
from playground.cluster import Cluster
from playground.waiting import wait_for
from runtime.kubernetes import paths

NODES, SHARERS, OTHERS = 5_000, 10_000, 90_000


def coldstart() -> Iterator[str]:
    """Measure one start. Then create a pod with a claim, so that claims and volumes are read too."""
    with loaded_cluster(nodes=NODES, sharers=SHARERS, others=OTHERS, depending=True) as cluster:
        ready = time.clock_gettime(time.CLOCK_BOOTTIME)  # the cluster is up as soon as its allocator is ready
        pid = cluster.programs["allocator"].pid
        seconds, worked = ready - processes.started(pid), processes.cpu_seconds(pid)
        now, peak = processes.rss(pid), processes.peak(pid)
        _read_volumes(cluster)
        volumes, most = processes.rss(pid), processes.peak(pid)
    pods = SHARERS + OTHERS
    yield table(
        f"Cold start to ready: {NODES} nodes x 8 GPUs, {pods} pods, {SHARERS} of them with a share",
        ("seconds", "of these at work", "RSS MiB", "peak MiB", "with volumes", "peak then"),
        [(f"{seconds:.1f}", f"{worked:.1f}", *(f"{each / MIB:.0f}" for each in (now, peak, volumes, most)))],
    )
    values = {
        "seconds": f"{seconds:.1f}",
        "cpu_s": f"{worked:.1f}",
        "rss_mib": f"{now / MIB:.0f}",
        "peak_mib": f"{peak / MIB:.0f}",
        "rss_with_volumes_mib": f"{volumes / MIB:.0f}",
        "peak_with_volumes_mib": f"{most / MIB:.0f}",
    }
    yield machine_line("coldstart", {"nodes": NODES, "pods": pods, **values})


def _read_volumes(cluster: Cluster) -> None:
    """Create a pod with a claim that is not there, and wait until its condition says so."""
    asked = {"limits": {str(names.GPU_MEMORY): "1Gi"}}
    container = {"name": "main", "image": "example.com/main", "resources": asked}
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "none"}}
    made = {"metadata": {"name": "notebook"}, "spec": {"containers": [container], "volumes": [volume]}}
    cluster.kube.create(paths.pods(creation.TENANT), made)

    def message() -> str:
        found = cluster.kube.get(paths.pods(creation.TENANT, "notebook"))
        return str(scenarios.condition(found).get("message", ""))

    wait_for(lambda: "does not exist" in message(), lambda: f"it says {message()!r}", 300, every=1.0)
