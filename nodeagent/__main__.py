"""
The commands of the node agent: `run`, `inventory`, `hold` and `mps`.

`_run` composes the agent. One round of it is `Agent.step`: `Machine.observe` reads the machine, `reconcile` decides
what to write, and `Agent._apply` writes it. Every setting is a flag and a variable of the environment; `--help` lists
them.

Must not: decide anything.
"""

from __future__ import annotations

import functools
import logging
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from contract import kinds
from contract.encoding.quantity import MIB
from contract.metrics import metrics_of
from contract.options import PoolOptions, pool_options
from nodeagent.agent import Agent
from nodeagent.delivering import DELIVERY, BuildWay, Site
from nodeagent.gpus.health import Record
from nodeagent.gpus.library import ACTIVE_SECONDS, GpuLibrary
from nodeagent.gpus.nvml import Nvml
from nodeagent.gpus.observation import Observation, Observer, look
from nodeagent.gpus.restart_policy import RestartPolicy
from nodeagent.gpus.simulated import BadSimulation, Simulated
from nodeagent.isolation.effects import judged, without_own
from nodeagent.isolation.host import read_host
from nodeagent.isolation.levels import MECHANISMS, Isolation, sees_host_processes
from nodeagent.isolation.mechanism import Handle, MechanismTable
from nodeagent.machine import Machine
from nodeagent.mps import commands
from nodeagent.mps.commands import MpsSettings
from nodeagent.publishing.metrics import AgentGauges
from nodeagent.publishing.status import Terms, usable
from nodeagent.publishing.terms import PoolDocument, pooled
from nodeagent.settings import AgentSettings, HoldSettings, address, settings_type
from nodeagent.sharing.holders import HolderReporter
from nodeagent.sharing.idleness import IdleTracker
from nodeagent.sharing.overuse import OveruseMonitor
from nodeagent.sharing.overuse_reports import OveruseReporter
from nodeagent.sharing.residents import Residents, trim
from nodeagent.sharing.usage import NodeUsage
from runtime import logs
from runtime.httpserver import HttpServer, serve_probes
from runtime.kubernetes.client import Kube, KubeConfigError
from runtime.kubernetes.paths import fields, gpunodes, nodes, pods
from runtime.kubernetes.watch import Informer
from runtime.livefile import LiveFile, yaml_file
from runtime.metrics import Metrics
from runtime.process import HealthChecks, Process, health_routes
from runtime.scraping import Review, scraping
from runtime.settings import SettingsError, describe, effective, load, settings_file
from runtime.supervision import Workers
from runtime.tokenreview import kube_review

log = logging.getLogger("nodeagent")

USAGE = """\
usage: python -m nodeagent run [--settings FILE] [flags]
       python -m nodeagent inventory [--settings FILE] [flags]
       python -m nodeagent hold [--settings FILE] [flags]
       python -m nodeagent mps [--settings FILE] [flags]

run        publish this node's GPUs, until stopped
hold       report the GPUs that a device plugin gave this pod, until stopped
mps        keep an MPS control daemon for each GPU that the agent names, until stopped
inventory  print this machine's GPUs as they would be published, and exit; no cluster is needed

A flag is the setting's name with dashes: --node, --nvml-library.
"""


COMMANDS = ("run", "inventory", "hold", "mps", "mps-supervisor")


_SETTINGS: Mapping[str, type] = {
    "hold": HoldSettings,
    "mps": MpsSettings,
    "mps-supervisor": MpsSettings,
}


def main(
    arguments: Sequence[str] | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    mechanisms: MechanismTable = MECHANISMS,
    ways: Sequence[BuildWay] = DELIVERY,
) -> int:
    """Run the command; the exit status: 0 success, 1 failure, 2 wrong arguments."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = given.pop(0) if given else ""
    if command in ("-h", "--help") or {"-h", "--help"} & set(given):
        print(f"{USAGE}\n{describe(_SETTINGS.get(command, settings_type(mechanisms)))}")
        return 0
    if command not in COMMANDS:
        print(f"{USAGE}\nfound {command!r}; give run, inventory, hold or mps", file=sys.stderr)
        return 2
    env = dict(os.environ if environment is None else environment)
    if command == "inventory":
        # Nothing is published, so any name will do.
        env.setdefault("GPUFRACTION_NODE", socket.gethostname())
    try:
        file, flags = settings_file(given)
        if command == "hold":
            return _hold(load(HoldSettings, file=file, env=env, argv=flags))
        if command.startswith("mps"):
            about = load(MpsSettings, file=file, env=env, argv=flags)
            return commands.keep(about, given) if command == "mps" else commands.supervise(about)
        settings = load(settings_type(mechanisms), file=file, env=env, argv=flags)
        library = _library(settings)
        if command == "inventory":
            return inventory(library, settings, sys.stdout)
        return _run(library, settings, mechanisms, ways)
    except BadSimulation as error:
        print(f"settings:\n  simulate: {error}", file=sys.stderr)
        return 2
    except (SettingsError, KubeConfigError) as error:
        print(error, file=sys.stderr)
        return 2


def inventory(library: GpuLibrary, settings: AgentSettings, out: TextIO) -> int:
    """Print a table of this machine's GPUs. Without one, print the reason and return 1."""
    seen = look(library)
    if seen.problem:
        print(f"no GPU: {seen.problem}", file=sys.stderr)
        return 1
    file = yaml_file(settings.options, pool_options)
    terms = pooled(Terms(), PoolDocument(file.value(), file.trouble), labels={}, published={})
    print(f"driver {seen.driver}, CUDA {seen.cuda or 'unknown'}", file=out)
    rows: list[tuple[str, ...]] = [("INDEX", "UUID", "MODEL", "MEMORY", "USABLE", "HEALTH")]
    for card in seen.cards:
        amounts = [f"{amount // MIB}MiB" for amount in (card.memory_bytes, usable(card, terms.reserve))]
        health = "Healthy" if card.healthy else f"Unhealthy: {card.reason}"
        rows.append((str(card.index), card.uuid or "-", card.model or "-", *amounts, health))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        print("  ".join((*cells, row[-1])), file=out)
    return 0


def _run(library: GpuLibrary, settings: AgentSettings, mechanisms: MechanismTable, ways: Sequence[BuildWay]) -> int:
    logs.setup(form=settings.log_format, level=settings.log_level, stream=sys.stderr)
    log.info("settings", extra={"settings": effective(settings)})
    kube = Kube.connect(kubeconfig=settings.kubeconfig or None, user_agent="gpufraction-nodeagent")
    metrics = Metrics(metrics_of("nodeagent"))
    gauges = AgentGauges(metrics, node=settings.node)

    residents = Residents(on_change=lambda: agent.wake(), followed=settings.pods)
    site = Site(kube, settings, latest=lambda: latest(), changed=lambda: agent.wake())
    isolation = Isolation(
        _handle(library, settings, residents, mechanisms), mechanisms, [build(site) for build in ways]
    )
    idleness = IdleTracker(least=settings.idle_least, gap=max(ACTIVE_SECONDS, 2 * settings.pace.interval))

    def used(usage: NodeUsage, watch: OveruseMonitor) -> None:
        """Called with the use at each look, on the thread that judges overuse."""
        gauges.show_usage(usage, watch)
        now = time.time()
        if idleness.see(usage, now):
            agent.wake()
        gauges.show_idle(idleness.idle(now), residents.all())

    overuse = OveruseReporter(
        residents,
        OveruseMonitor(settings.overuse),
        show=used,
        cgroup_of=library.cgroup_of if isinstance(library, Simulated) else None,
        more=isolation.reports,
        changed=lambda: agent.wake(),
    )

    process, restarts = Process(), RestartPolicy()

    def looked(observation: Observation) -> None:
        """Called after each look at the GPUs, on the observer's thread."""
        if why := restarts.seen(observation):
            process.fail(why)
        isolation.look(observation)
        gauges.show(observation)
        gauges.show_isolation(isolation.enforced())
        gauges.show_mechanisms(isolation.effects)
        # No pod is evicted because a mechanism closes its GPU: its programs may continue.
        overuse.seen(without_own(observation, isolation.effects))
        agent.wake()

    record = Record(quiet=settings.xid_quiet, ignored=tuple(map(int, settings.xid_ignore)))
    observer = Observer(library, interval=settings.pace.interval, on_look=looked, record=record)

    def latest() -> Observation | None:
        observation = observer.latest()
        return judged(observation, isolation.effects) if observation is not None else None

    machine = Machine(
        latest,
        residents=residents,
        isolation=isolation,
        options=functools.partial(_document, yaml_file(settings.options, pool_options), gauges),
        published_soon=gauges.show_inventory,
        idle=lambda: idleness.idle(time.time()),
        reports=lambda: overuse.reports,
    )
    terms = Terms(host=read_host(), startup_taint=settings.startup_taint)
    agent = Agent(kube, machine, settings.node, settings.pace, terms=terms)
    watches = _watches(kube, agent, residents if settings.pods else None, settings.node, process.workers)
    process.handle_signals()
    process.watch_threads()
    server = _serve(settings, metrics, agent, process.workers, kube_review(kube))
    process.supervise("gpu-observer", lambda: observer.run(process.stop))
    process.supervise("overuse", lambda: overuse.run(process.stop))
    for name, run in isolation.workers.items():
        process.supervise(name, functools.partial(run, process.stop))
    publisher = process.supervise("publisher", lambda: agent.run(process.stop))
    for watch in watches:
        watch.start()
    code = process.wait()
    agent.wake()
    overuse.wake()
    publisher.join(5.0)
    for watch in watches:
        watch.stop(1.0)
    if server is not None:
        server.close(1.0)
    return code


def _hold(settings: HoldSettings) -> int:
    logs.setup(form=settings.log_format, level=settings.log_level, stream=sys.stderr)
    kube = Kube.connect(user_agent="gpufraction-holder")
    holder = HolderReporter(kube, Nvml(), settings.pod)
    process = Process()
    process.handle_signals()
    process.watch_threads()
    process.spawn("holder", lambda: holder.run(process.stop))
    return process.wait()


def _handle(library: GpuLibrary, settings: AgentSettings, residents: Residents, mechanisms: MechanismTable) -> Handle:
    opens = settings.host_root and isinstance(library, Nvml)
    return Handle(
        settings.limiters,
        residents,
        root=Path(settings.host_root or "/"),
        # Another thread uses it, so it has a library of its own; NVML allows several.
        driver=functools.partial(Nvml, path=settings.nvml_library) if opens else None,
        cgroup=read_host().cgroup,
        sees_processes=sees_host_processes(),
        chosen={level.name: getattr(settings, level.name) for level in mechanisms},
    )


def _document(file: LiveFile[PoolOptions], gauges: AgentGauges) -> PoolDocument:
    document = PoolDocument(file.value(), file.trouble)
    gauges.show_options(refused=bool(document.trouble))
    return document


def _watches(
    kube: Kube, agent: Agent, residents: Residents | None, node: str, workers: Workers
) -> tuple[Informer, ...]:
    """The watches on this node's own objects. Without `residents` no pods are read."""
    query, here = ({"fieldSelector": fields({key: node})} for key in ("metadata.name", "spec.nodeName"))
    own = (
        Informer(kube, nodes(), agent.node_event, name="node", query=query, of=kinds.OWN_NODE, workers=workers),
        Informer(
            kube, gpunodes(), agent.gpunode_event, name="gpunode", query=query, of=kinds.GPUNODES, workers=workers
        ),
    )
    if residents is None:
        return own
    return (
        *own,
        Informer(
            kube, pods(), residents.event, name="pods", query=here, of=kinds.RESIDENTS, trim=trim, workers=workers
        ),
    )


def _serve(
    settings: AgentSettings, metrics: Metrics, agent: Agent, workers: Workers, review: Review
) -> HttpServer | None:
    if not settings.listen:
        return None
    ready, alive = HealthChecks(published=lambda: agent.trouble or None), HealthChecks(workers=workers.broken)
    routes = health_routes(metrics, ready=ready, alive=alive)
    try:
        scrapes = scraping(settings.metrics_access, settings.metrics_certificates, review)
    except OSError as error:
        raise SettingsError([f"metrics_certificates: {settings.metrics_certificates}: {error}"]) from error
    try:
        return serve_probes(routes, address(settings.listen), name="metrics", guard=scrapes.guard, tls=scrapes.tls)
    except OSError as error:
        raise SettingsError([f"listen: {settings.listen}: {error.strerror}; give another port"]) from error


def _library(settings: AgentSettings) -> GpuLibrary:
    if settings.simulate:
        return Simulated(settings.simulate, node=settings.node)
    return Nvml(path=settings.nvml_library)


if __name__ == "__main__":
    sys.exit(main())
