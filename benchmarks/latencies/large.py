"""
A cluster that is larger than most: the allocator's start time and resource usage, a change of the leader, and an update
from the agent of every node within a minute.

Two replicas with their webhooks, as processes. The API server is the embedded one, in this process and on the same
cores. It would write a gigabyte of JSON in Python each time a replica starts, so those lists are recorded in advance.
All later lists, and every watch, are written on request.
"""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

from benchmarks import processes
from benchmarks.admission import creation, quiet
from benchmarks.admission.latency import loaded_cluster
from benchmarks.figures import MIB, MILLISECOND, Spread, machine_line, table
from benchmarks.progress import say
from contract import names
from contract.nodes.inventories import inventory_to_status
from playground.api.kinds.values import timestamp
from playground.cluster import Cluster, Replica, account
from playground.programs.probes import healthy
from playground.waiting import wait_for
from runtime.kubernetes import paths

JSON = dict[str, Any]
NODES, SHARERS, OTHERS = 20_000, 100_000, 300_000
_MINUTE = 60.0
_PATIENCE = 600.0
_PROBE_EVERY = 0.5
"""Seconds between two pods that are created while the agents report."""


def large(nodes: int = NODES, sharers: int = SHARERS, others: int = OTHERS, minute: float = _MINUTE) -> Iterator[str]:
    """All parts on one cluster; `minute`: the seconds within which every agent reports."""
    with loaded_cluster(nodes=nodes, sharers=sharers, others=others, replicas=2) as cluster:
        for number in (0, 1):
            cluster.programs[cluster.replicas[number].name("allocator")].kill()
        pods = sharers + others
        yield f"{nodes} nodes x 8 GPUs, {pods} pods, {sharers} of them with a share"
        yield from _starts(cluster)
        yield from _reports(cluster, nodes, minute)
        yield from _changes(cluster)


def _starts(cluster: Cluster) -> Iterator[str]:
    """One replica after the other, each alone, from recorded lists."""
    rows, lines = [], []
    plane = _plane(cluster)
    plane.record()
    for replica in cluster.replicas:
        program = cluster.programs[replica.name("allocator")]
        say(f"starting {program.name}")
        program.start()
        ready = f"{cluster.allocator_url(replica.number)}/readyz"
        wait_for(functools.partial(healthy, ready), "it is not ready", _PATIENCE)
        took = time.clock_gettime(time.CLOCK_BOOTTIME) - processes.started(program.pid)
        worked = processes.cpu_seconds(program.pid)
        now, peak = (each / MIB for each in (processes.rss(program.pid), processes.peak(program.pid)))
        rows.append((program.name, f"{took:.1f}", f"{worked:.1f}", f"{now:.0f}", f"{peak:.0f}"))
        values = {"replica": replica.number, "seconds": f"{took:.1f}", "cpu_s": f"{worked:.1f}"}
        lines.append(machine_line("large-start", {**values, "rss_mib": f"{now:.0f}", "peak_mib": f"{peak:.0f}"}))
    plane.live()
    yield table("From its start until it is ready", ("replica", "seconds", "at work", "RSS MiB", "peak MiB"), rows)
    yield from lines


def _plane(cluster: Cluster) -> quiet.Quiet:
    assert isinstance(cluster.control_plane, quiet.Quiet)
    return cluster.control_plane


def _reports(cluster: Cluster, nodes: int, minute: float) -> Iterator[str]:
    """Every agent writes its GPUNode within a minute, while pods come."""
    say(f"{nodes} agents report within {minute:.0f} s")
    programs = [cluster.programs[each.name("allocator")] for each in cluster.replicas]
    before, began = [processes.cpu_seconds(each.pid) for each in programs], time.perf_counter()
    with _Probing(cluster, "reporting") as probing:
        for number in range(nodes):
            time.sleep(max(0.0, began + number * minute / nodes - time.perf_counter()))
            _report(cluster, number)
        took = time.perf_counter() - began
    worked = [processes.cpu_seconds(each.pid) - then for each, then in zip(programs, before, strict=True)]
    peaks = [processes.peak(each.pid) / MIB for each in programs]
    spread = Spread.of(probing.took)
    yield table(
        f"{nodes} agents report within {took:.0f} s, and a pod comes every {_PROBE_EVERY:.1f} s",
        ("pods", "created p50 ms", "p99 ms", "max ms", "leader at work s", "other s", "peaks MiB"),
        [
            (
                str(spread.count),
                *spread.cells(MILLISECOND, 0),
                *(f"{seconds:.1f}" for seconds in worked),
                ", ".join(f"{each:.0f}" for each in peaks),
            )
        ],
    )
    values = dict(zip(("p50_ms", "p99_ms", "max_ms"), spread.cells(MILLISECOND, 0), strict=True))
    values |= {"cpu_s": ",".join(f"{each:.1f}" for each in worked), "waited": str(probing.waited)}
    yield machine_line("large-reports", {"nodes": nodes, "seconds": f"{took:.0f}", **values})


def _report(cluster: Cluster, number: int) -> None:
    """An agent's write after an update of the driver: the same GPUs, another version."""
    found = quiet.inventory(number)
    status = {**inventory_to_status(found), "observedAt": timestamp(time.time()), "driverVersion": "580.95.05"}
    code, answer = _plane(cluster).api.call(
        "PATCH",
        paths.gpunodes(found.node, "status"),
        body={"status": status},
        content_type="application/merge-patch+json",
        user=account("gpufraction-nodeagent", node=found.node),
    )
    assert code == 200, answer


def _changes(cluster: Cluster) -> Iterator[str]:
    """The leader is killed; pods are still created, through the other replica."""

    def leads(replica: Replica) -> bool:
        return cluster.leads(replica.number)

    leader = wait_for(lambda: next(filter(leads, cluster.replicas), None), "none leads", _PATIENCE)
    assert leader is not None
    other = next(each for each in cluster.replicas if each is not leader)
    cluster.ask_only(other.number)
    say("the leader is killed")
    with _Probing(cluster, "changing") as probing:
        time.sleep(2 * _PROBE_EVERY)
        began = time.perf_counter()
        cluster.programs[leader.name("allocator")].kill()
        wait_for(lambda: cluster.leads(other.number), "the other does not lead", _PATIENCE, every=0.02)
        led = time.perf_counter() - began
        wait_for(probing.places, "no pod is placed", _PATIENCE, every=0.05)
        places = time.perf_counter() - began
    pid = cluster.programs[other.name("allocator")].pid
    now, peak = processes.rss(pid) / MIB, processes.peak(pid) / MIB
    yield table(
        "After the leader was killed",
        ("the other leads after s", "a pod is placed after s", "RSS MiB", "peak MiB"),
        [(f"{led:.1f}", f"{places:.1f}", f"{now:.0f}", f"{peak:.0f}")],
    )
    values = {
        "leads_s": f"{led:.1f}",
        "places_s": f"{places:.1f}",
        "rss_mib": f"{now:.0f}",
        "peak_mib": f"{peak:.0f}",
    }
    yield machine_line("large-change", values)


class _Probing:
    """Small pods that come one after the other while this is open. `took`: nanoseconds of each creation."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._name = name
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bench-probe", daemon=True)
        self._placed_last = False
        self.took: list[int] = []
        self.waited = 0
        """Pods that were created without a node."""

    def __enter__(self) -> _Probing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def places(self) -> bool:
        """Whether the pod that was created last got its node then."""
        return self._placed_last

    def _run(self) -> None:
        container = {"name": "main", "image": "any", "resources": {"limits": {str(names.GPU_MEMORY): "64Mi"}}}
        pods = paths.pods(creation.TENANT)
        for number in itertools.count():
            made = {"metadata": {"name": f"{self._name}-{number:04}"}, "spec": {"containers": [container]}}
            began = time.perf_counter_ns()
            created = self._cluster.kube.create(pods, made, timeout=60)
            self.took.append(time.perf_counter_ns() - began)
            self._placed_last = str(names.ALLOCATION) in created["metadata"].get("annotations", {})
            self.waited += not self._placed_last
            if self._stop.wait(_PROBE_EVERY):
                return
