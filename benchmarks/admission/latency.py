"""
Admission over HTTPS, with the webhook and the allocator as separate processes: latency at a fixed rate, the
highest rate, and the added cost of a pod's creation on the embedded API server.

The cluster is loaded, the API server is the embedded one, and the reviews come from a process of their own. All of them
share the machine's cores, as does the load generator.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.admission import creation
from benchmarks.admission.quiet import Quiet
from benchmarks.figures import MIB, MILLISECOND, Spread, machine_line, table
from benchmarks.processes import cpu_seconds, rss
from benchmarks.progress import say
from contract import names
from playground.cluster import Cluster
from playground.programs.probes import accepts_tls, free_port
from playground.programs.process import Program
from playground.waiting import wait_for
from webhook.serving.server import THREADS

JSON = dict[str, Any]
_TOP = Path(__file__).resolve().parents[2]
NODES, SHARERS = 1_000, 16_000
RATES = (100, 200)
_SECONDS, _FLAT_OUT_SECONDS, _WARM_UP_SECONDS = 10.0, 5.0, 2.0
_CONNECTIONS, _FLAT_OUT_CONNECTIONS = 4, 8
_SLOW = 100
_SERVER_NAME = f"gpufraction-webhook.{names.NAMESPACE}.svc"
_TENANT = creation.TENANT
_ASSUME_TTL = "10m"
"""Reviews are sent without a pod that follows them, and a reservation must not expire while it is measured."""
_UNBOUNDED = ("--sharing-max-unconfirmed", "0")
"""Nor may all of them but the first be gated, for that many without a pod are more than a namespace may have."""


@contextlib.contextmanager
def loaded_cluster(
    *, nodes: int, sharers: int, others: int = 0, depending: bool = False, replicas: int = 1
) -> Iterator[Cluster]:
    """A cluster without machinery, holding that much, with a webhook and an allocator each; see `Quiet`."""
    cluster = Cluster(
        nodes=(),
        control_plane=lambda gpus_of: Quiet(nodes=nodes, sharers=sharers, others=others, depending=depending),
        settings={"allocator": ("--assume-ttl", _ASSUME_TTL, *_UNBOUNDED)},
        namespaces=(_TENANT,),
        replicas=replicas,
    )
    try:
        cluster.start(timeout=1200)  # on a machine with other work
        yield cluster
    finally:
        cluster.stop()


def admission() -> Iterator[str]:
    """All parts on one loaded cluster."""
    with loaded_cluster(nodes=NODES, sharers=SHARERS) as cluster:
        yield from _latency(cluster)
        yield from _most(cluster)
        yield from _crowded(cluster)
        yield from creation.added(cluster, "the embedded API server")


# -- reviews ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sent:
    """The result of one run of the load generator."""

    latencies: list[int]
    seconds: float
    outcomes: dict[str, int]
    errors: dict[str, int]

    def part(self, outcome: str) -> float:
        """The share of reviews with this outcome."""
        return self.outcomes.get(outcome, 0) / max(len(self.latencies), 1)

    @property
    def others(self) -> str:
        """Unexpected outcomes, for the table."""
        left = {key: n for key, n in {**self.outcomes, **self.errors}.items() if key not in ("placed", "gated")}
        return ", ".join(f"{n} {key}" for key, n in left.items()) or "-"


def _send(cluster: Cluster, port: int, *, rate: float, seconds: float, connections: int) -> Sent:
    flags = {
        "port": port,
        "ca": cluster.directory / "certs" / "ca.crt",
        "server-name": _SERVER_NAME,
        "namespace": _TENANT,
        "rate": rate,
        "seconds": seconds,
        "connections": connections,
    }
    command = [sys.executable, "-m", "benchmarks.admission.load", *(f"--{key}={value}" for key, value in flags.items())]
    done = subprocess.run(command, cwd=_TOP, stdout=subprocess.PIPE, check=True, timeout=seconds + 60)
    found = json.loads(done.stdout)
    return Sent(found["latency_ns"], found["seconds"], found["outcomes"], found["errors"])


def _latency(cluster: Cluster) -> Iterator[str]:
    port = cluster.replicas[0].webhook_port
    _send(cluster, port, rate=100, seconds=_WARM_UP_SECONDS, connections=_CONNECTIONS)
    rows, lines = [], []
    for rate in RATES:
        say(f"{rate} reviews a second for {_SECONDS:.0f} s")
        before = _worked(cluster)
        sent = _send(cluster, port, rate=rate, seconds=_SECONDS, connections=_CONNECTIONS)
        spread = Spread.of(sent.latencies)
        worked = [(after - then) / spread.count for then, after in zip(before, _worked(cluster), strict=True)]
        costs = [f"{1e3 * seconds:.2f}" for seconds in worked]
        shares = [f"{100 * sent.part(name):.1f} %" for name in ("placed", "gated")]
        rows.append((f"{rate}/s", str(spread.count), *spread.cells(MILLISECOND), *costs, *shares, sent.others))
        keys = ("p50_ms", "p99_ms", "max_ms")
        values = dict(zip(keys, spread.cells(MILLISECOND), strict=True))
        values |= dict(zip(("webhook_cpu_ms", "allocator_cpu_ms"), costs, strict=True))
        lines.append(machine_line("admission", {"rate": rate, **values, "placed": f"{sent.part('placed'):.3f}"}))
    yield table(
        f"Admission over HTTPS, {NODES} nodes x 8 GPUs with {SHARERS} sharers, {_CONNECTIONS} connections;"
        " from the time due",
        ("rate", "reviews", "p50 ms", "p99 ms", "max ms", "webhook cpu", "allocator cpu", "placed", "gated", "other"),
        rows,
    )
    sizes = [(name, rss(cluster.programs[name].pid)) for name in ("webhook", "allocator")]
    yield "cpu: processor time a review, in ms; memory: " + ", ".join(
        f"{name} {size / MIB:.0f} MiB" for name, size in sizes
    )
    yield from lines


def _worked(cluster: Cluster) -> tuple[float, float]:
    """Processor seconds so far of the webhook and of the allocator."""
    return cpu_seconds(cluster.programs["webhook"].pid), cpu_seconds(cluster.programs["allocator"].pid)


def _most(cluster: Cluster) -> Iterator[str]:
    say("as fast as answers come: an empty Flask application, then the webhook, twice")
    port, empty_port = cluster.replicas[0].webhook_port, free_port()
    program = _empty(cluster, empty_port)
    program.start()
    try:
        wait_for(lambda: accepts_tls(empty_port), "the empty application does not listen", 30.0)
        runs: dict[str, list[Sent]] = {"empty Flask": [], "webhook": []}
        costs: dict[str, float] = {}
        for _ in range(2):
            for name, at, pid in (
                ("empty Flask", empty_port, program.pid),
                ("webhook", port, cluster.programs["webhook"].pid),
            ):
                before = cpu_seconds(pid)
                sent = _send(cluster, at, rate=0, seconds=_FLAT_OUT_SECONDS, connections=_FLAT_OUT_CONNECTIONS)
                cost = 1e3 * (cpu_seconds(pid) - before) / max(len(sent.latencies), 1)
                costs[name] = min(cost, costs.get(name, cost))
                runs[name].append(sent)
    finally:
        program.terminate()
        program.wait()
    best = {name: max(sent, key=_per_second) for name, sent in runs.items()}
    share = _per_second(best["webhook"]) / _per_second(best["empty Flask"])
    yield table(
        f"As fast as answers come, {_FLAT_OUT_CONNECTIONS} connections, better of two runs each of"
        f" {_FLAT_OUT_SECONDS:.0f} s",
        ("application", "reviews/s", "p50 ms", "p99 ms", "cpu ms", "of empty", "placed", "other"),
        [
            (
                name,
                f"{_per_second(sent):.0f}",
                *Spread.of(sent.latencies).cells(MILLISECOND)[:2],
                f"{costs[name]:.2f}",
                f"{100 * _per_second(sent) / _per_second(best['empty Flask']):.0f} %",
                f"{100 * sent.part('placed'):.1f} %",
                sent.others if name == "webhook" else "-",
            )
            for name, sent in best.items()
        ],
    )
    yield machine_line(
        "sustained",
        {
            "webhook_per_s": f"{_per_second(best['webhook']):.0f}",
            "empty_per_s": f"{_per_second(best['empty Flask']):.0f}",
            "share": f"{share:.3f}",
            "share_of_cpu": f"{costs['empty Flask'] / max(costs['webhook'], 1e-9):.3f}",
        },
    )


def _crowded(cluster: Cluster) -> Iterator[str]:
    say(f"as fast as answers come, with and without {_SLOW} slow clients, alternating")
    port = cluster.replicas[0].webhook_port
    runs: dict[str, list[Sent]] = {"none": [], f"{_SLOW} slow clients": []}
    for _ in range(2):
        for name, sent in runs.items():
            with contextlib.nullcontext() if name == "none" else _slow_clients(cluster, port):
                sent.append(_send(cluster, port, rate=0, seconds=_FLAT_OUT_SECONDS, connections=_FLAT_OUT_CONNECTIONS))
    best = {name: max(sent, key=_per_second) for name, sent in runs.items()}
    yield table(
        f"The same alongside {_SLOW} slow clients: half of them in the handshake, half sending a body byte by byte",
        ("beside", "reviews/s", "p50 ms", "p99 ms", "max ms", "placed", "other"),
        [
            (
                name,
                f"{_per_second(sent):.0f}",
                *Spread.of(sent.latencies).cells(MILLISECOND),
                f"{100 * sent.part('placed'):.1f} %",
                sent.others,
            )
            for name, sent in best.items()
        ],
    )
    alone, crowded = (_per_second(sent) for sent in best.values())
    yield machine_line(
        "crowded", {"alone_per_s": f"{alone:.0f}", "crowded_per_s": f"{crowded:.0f}", "share": f"{crowded / alone:.3f}"}
    )


@contextlib.contextmanager
def _slow_clients(cluster: Cluster, port: int) -> Iterator[None]:
    """All of them are there while this is open."""
    flags = {
        "port": port,
        "ca": cluster.directory / "certs" / "ca.crt",
        "server-name": _SERVER_NAME,
        "clients": _SLOW,
    }
    command = [sys.executable, "-m", "benchmarks.admission.slow", *(f"--{key}={value}" for key, value in flags.items())]
    with subprocess.Popen(command, cwd=_TOP, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield
        finally:
            process.terminate()


def _per_second(sent: Sent) -> float:
    return len(sent.latencies) / sent.seconds


def _empty(cluster: Cluster, port: int) -> Program:
    """The empty application under gunicorn's own worker of threads, with as many as the webhook has."""
    certs = cluster.directory / "certs"
    flags = {
        "bind": f"127.0.0.1:{port}",
        "worker-class": "gthread",
        "workers": "1",
        "threads": str(THREADS),
        "worker-connections": "1000",
        "keep-alive": "120",
        "certfile": str(certs / "tls.crt"),
        "keyfile": str(certs / "tls.key"),
    }
    arguments = ["gunicorn", *(f"--{key}={value}" for key, value in flags.items())]
    arguments.append("benchmarks.admission.empty:create_app()")
    return Program("empty", arguments, log=cluster.directory / "empty.log", environment={})
