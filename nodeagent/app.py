"""
The agent as it runs: every long-lived part made and started in one place.

One round of it is `Agent.step`: `Machine.observe` reads the machine, `reconcile` decides what to write, and
`Agent._apply` writes it.

Must not: decide anything, or do what concerns the whole process, such as its signals and its log.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from contract import kinds, names
from contract.metrics import metrics_of
from contract.options import PoolOptions, pool_options
from nodeagent.agent import Agent
from nodeagent.delivering import DELIVERY, BuildWay, Site
from nodeagent.gpus.health import Record
from nodeagent.gpus.library import ACTIVE_SECONDS, GpuLibrary
from nodeagent.gpus.nvml import Nvml
from nodeagent.gpus.observation import Observation, Observer
from nodeagent.gpus.restart_policy import RestartPolicy
from nodeagent.gpus.simulated import Simulated
from nodeagent.isolation.effects import judged, without_own
from nodeagent.isolation.host import HostSystem
from nodeagent.isolation.levels import MECHANISMS, Isolation
from nodeagent.isolation.mechanism import Handle, MechanismTable
from nodeagent.machine import Machine
from nodeagent.publishing.followed_options import FollowedOptions
from nodeagent.publishing.metrics import AgentGauges
from nodeagent.publishing.status import Terms
from nodeagent.publishing.terms import PoolDocument
from nodeagent.settings import AgentSettings, address
from nodeagent.sharing.idleness import IdleTracker
from nodeagent.sharing.overuse import OveruseMonitor
from nodeagent.sharing.overuse_reports import OveruseReporter
from nodeagent.sharing.residents import Residents, trim
from nodeagent.sharing.usage import NodeUsage
from runtime.httpserver import Serve, Server, serve_http, serve_probes
from runtime.kubernetes.client import Kube
from runtime.kubernetes.paths import configmaps, fields, gpunodes, nodes, pods
from runtime.kubernetes.watch import Informer
from runtime.livefile import LiveFile, yaml_file
from runtime.metrics import Metrics
from runtime.process import HealthChecks, Process, health_routes
from runtime.scraping import Review, scraping
from runtime.settings import SettingsError
from runtime.supervision import Workers
from runtime.tokenreview import kube_review

_LAST_WRITE = 5.0
"""Seconds that the publisher has at a stop to finish its current round."""


@dataclass(frozen=True)
class RunningAgent:
    """The parts that must be stopped, and those that tests look at."""

    agent: Agent
    overuse: OveruseReporter
    publisher: threading.Thread
    watches: tuple[Informer, ...]
    server: Server | None
    """Of probes and metrics."""

    def stop(self) -> None:
        """When the process must stop: let the publisher finish its round, then end watches and probes."""
        self.agent.wake()
        self.overuse.wake()
        self.publisher.join(_LAST_WRITE)
        for watch in self.watches:
            watch.stop(1.0)
        if self.server is not None:
            self.server.close(1.0)


def start(
    settings: AgentSettings,
    library: GpuLibrary,
    kube: Kube,
    process: Process,
    *,
    host: HostSystem,
    mechanisms: MechanismTable = MECHANISMS,
    ways: Sequence[BuildWay] = DELIVERY,
    serve: Serve = serve_http,
) -> RunningAgent:
    """
    Make everything and start it. Raises `SettingsError` for what is not available here; nothing runs then.

    `host`: what is known about the machine apart from its GPUs. `serve` opens the port for probes.
    """
    metrics = Metrics(metrics_of("nodeagent"))
    gauges = AgentGauges(metrics, node=settings.node)

    residents = Residents(on_change=lambda: agent.wake(), followed=settings.pods)
    site = Site(kube, settings, latest=lambda: latest(), changed=lambda: agent.wake())
    isolation = Isolation(
        _handle(library, settings, residents, mechanisms, host),
        mechanisms,
        [build(site) for build in ways],
        proven_within=settings.proven_within,
    )
    idleness = IdleTracker(least=settings.idle_least, gap=max(ACTIVE_SECONDS, 2 * settings.pace.interval))

    def used(usage: NodeUsage, watch: OveruseMonitor) -> None:
        """Called with the usage at each look, on the thread that judges overuse."""
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

    restarts = RestartPolicy()

    def looked(observation: Observation) -> None:
        """Called after each look at the GPUs, on the observer's thread."""
        if why := restarts.seen(observation):
            process.fail(why)
        isolation.look(observation)
        gauges.show(observation)
        gauges.show_isolation(isolation.enforced())
        gauges.show_proof(isolation.proof())
        gauges.show_mechanisms(isolation.effects)
        # No pod is evicted because a mechanism closes its GPU: its programs may continue.
        overuse.seen(without_own(observation, isolation.effects))
        agent.wake()

    record = Record(quiet=settings.xid_quiet, ignored=tuple(map(int, settings.xid_ignore)))
    observer = Observer(library, interval=settings.pace.interval, on_look=looked, record=record)

    followed = FollowedOptions(lambda: agent.wake()) if settings.options_by_api else None

    def latest() -> Observation | None:
        if followed is not None and followed.awaited():
            return None
        observation = observer.latest()
        return judged(observation, isolation.effects) if observation is not None else None

    machine = Machine(
        latest,
        residents=residents,
        isolation=isolation,
        options=functools.partial(_document, followed or yaml_file(settings.options, pool_options), gauges),
        published_soon=gauges.show_inventory,
        idle=lambda: idleness.idle(time.time()),
        reports=lambda: overuse.reports,
        waits=functools.partial(_waits, residents) if settings.options_by_api else str,
    )
    terms = Terms(host=host, startup_taint=settings.startup_taint)
    agent = Agent(kube, machine, settings.node, settings.pace, terms=terms)
    watches = _watches(kube, agent, residents if settings.pods else None, settings.node, process.workers)
    if followed is not None:
        watches = (*watches, _options_watch(kube, followed, process.workers))
    server = _serve(settings, metrics, agent, process.workers, kube_review(kube), serve)
    process.supervise("gpu-observer", lambda: observer.run(process.stop))
    process.supervise("overuse", lambda: overuse.run(process.stop))
    for name, run in isolation.workers.items():
        process.supervise(name, functools.partial(run, process.stop))
    publisher = process.supervise("publisher", lambda: agent.run(process.stop))
    for watch in watches:
        watch.start()
    return RunningAgent(agent, overuse, publisher, watches, server)


def _handle(
    library: GpuLibrary, settings: AgentSettings, residents: Residents, mechanisms: MechanismTable, host: HostSystem
) -> Handle:
    opens = settings.host_root and isinstance(library, Nvml)
    return Handle(
        settings.limiters,
        residents,
        root=Path(settings.host_root or "/"),
        # Another thread uses it, so it has a library of its own; NVML allows several.
        driver=functools.partial(Nvml, path=settings.nvml_library) if opens else None,
        cgroup=host.cgroup,
        sees_processes=host.sees_processes,
        chosen={level.name: getattr(settings, level.name) for level in mechanisms},
    )


def _waits(residents: Residents) -> str:
    """Why an agent in its own namespace writes nothing: an agent of an earlier installation is still on the node."""
    former = residents.former_agents()
    if not former:
        return ""
    return (
        f"pod {former[0]} is an agent of an earlier installation, and two agents must not write the same files; run: "
        f"kubectl -n {names.NAMESPACE} delete daemonset gpufraction-nodeagent"
    )


def _document(source: LiveFile[PoolOptions] | FollowedOptions, gauges: AgentGauges) -> PoolDocument:
    if isinstance(source, FollowedOptions):
        document = source.document()
    else:
        document = PoolDocument(source.value(), source.trouble)
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


def _options_watch(kube: Kube, followed: FollowedOptions, workers: Workers) -> Informer:
    query = {"fieldSelector": fields({"metadata.name": str(names.OPTIONS)})}
    path = configmaps(names.NAMESPACE)
    return Informer(kube, path, followed.event, name="options", query=query, of=kinds.OPTIONS, workers=workers)


def _serve(
    settings: AgentSettings, metrics: Metrics, agent: Agent, workers: Workers, review: Review, serve: Serve
) -> Server | None:
    if not settings.listen:
        return None
    ready, alive = HealthChecks(published=lambda: agent.trouble or None), HealthChecks(workers=workers.broken)
    routes = health_routes(metrics, ready=ready, alive=alive)
    try:
        scrapes = scraping(settings.metrics_access, settings.metrics_certificates, review)
    except OSError as error:
        raise SettingsError([f"metrics_certificates: {settings.metrics_certificates}: {error}"]) from error
    try:
        return serve_probes(
            routes, address(settings.listen), name="metrics", guard=scrapes.guard, tls=scrapes.tls, serve=serve
        )
    except OSError as error:
        raise SettingsError([f"listen: {settings.listen}: {error.strerror}; give another port"]) from error
