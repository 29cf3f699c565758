"""
From the start of the allocator's process until it is ready to decide, on a cluster as large as clusters come.

What the API server needs to list everything is in the figure: it is the embedded one, in this process, on the same
cores, and the webhook starts beside it. A real API server is faster, and farther away.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks import processes
from benchmarks.admission.latency import loaded_cluster
from benchmarks.figures import MIB, machine_line, table

NODES, SHARERS, OTHERS = 5_000, 10_000, 90_000


def coldstart() -> Iterator[str]:
    """One start."""
    with loaded_cluster(nodes=NODES, sharers=SHARERS, others=OTHERS) as cluster:
        ready = time.clock_gettime(time.CLOCK_BOOTTIME)  # the cluster is up as soon as its allocator is ready
        pid = cluster.programs["allocator"].pid
        seconds, worked = ready - processes.started(pid), processes.cpu_seconds(pid)
        now, peak = processes.rss(pid), processes.peak(pid)
    pods = SHARERS + OTHERS
    yield table(
        f"Cold start to ready: {NODES} nodes x 8 GPUs, {pods} pods, {SHARERS} of them with a share",
        ("seconds", "of these at work", "RSS MiB", "peak MiB"),
        [(f"{seconds:.1f}", f"{worked:.1f}", f"{now / MIB:.0f}", f"{peak / MIB:.0f}")],
    )
    values = {
        "seconds": f"{seconds:.1f}",
        "cpu_s": f"{worked:.1f}",
        "rss_mib": f"{now / MIB:.0f}",
        "peak_mib": f"{peak / MIB:.0f}",
    }
    yield machine_line("coldstart", {"nodes": NODES, "pods": pods, **values})
