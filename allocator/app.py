"""
The allocator as it runs: every long-lived part made and started in one place.
"""

from __future__ import annotations

import functools
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from allocator import selectors
from allocator.cache.cache import Cache
from allocator.cache.ledger import Journal
from allocator.engine.engine import Engine
from allocator.engine.reference import LEARNED, Policy
from allocator.faults import Faulted
from allocator.features import FEATURES
from allocator.features.base import Built, Feature, Running, Shell, Thread, built
from allocator.neighbours import spreading, storage
from allocator.scheduler.core import Controller
from allocator.scheduler.events import QueueWeighed
from allocator.server import http
from allocator.server import metrics as gauges
from allocator.settings import Settings, address
from allocator.workers.binder import EventRecorder
from allocator.workers.claim_reader import ClaimReader
from allocator.workers.informers import Informers
from allocator.workers.learner import LearningWorker, PoolWatcher
from allocator.workers.loop import LoopCounters, SchedulingLoop
from allocator.workers.namespaces import NamespaceLabel, NamespaceLabels
from allocator.workers.profiles import ProfileWatcher
from allocator.workers.recorder import Upkeep
from allocator.workers.resync import Resync, ResyncCounters
from allocator.workers.volumes import InformersOnDemand
from contract import names
from contract.dialects import DIALECTS
from contract.dialects.table import Dialects
from contract.encoding import resourceclaims
from contract.metrics import allocator as specs
from contract.metrics import metrics_of
from contract.nodes.reservations import annotation
from contract.options import NO_OPTIONS, PoolOptions, pool_options
from contract.scheduling import fairness, gates
from contract.scheduling.clusterfilters import FILTERS, Filter
from contract.scheduling.filters import Limits
from runtime.httpserver import Serve, Server, serve_http, serve_probes
from runtime.kubernetes import lease as leader
from runtime.kubernetes.client import Kube
from runtime.kubernetes.lease import Leader, LeaseTiming
from runtime.livefile import LiveFile, yaml_file
from runtime.metrics import Metrics
from runtime.process import HealthChecks, Process, health_routes
from runtime.scraping import Review, scraping
from runtime.settings import SettingsError, composed
from runtime.supervision import Workers
from runtime.tokenreview import kube_review

JSON = dict[str, Any]
log = logging.getLogger(__name__)
LIMITS = Limits(selects=selectors.holds)
"""The rules of all decisions."""
OLDEST_KUBERNETES = (1, 30)
"""Scheduling gates, matchConditions and ValidatingAdmissionPolicy are stable from here on."""


_ADMITTED_WITHIN, _LOOK_EVERY = 5.0, 0.05
"""Seconds: an admitted pod is stored within moments, unless another webhook or a quota keeps it."""


@dataclass(frozen=True)
class Registry:
    """The tables that the allocator runs with: a new feature, dialect or filter is an entry in one of them."""

    features: tuple[Feature[Any, Any], ...] = FEATURES
    dialects: Dialects = DIALECTS
    filters: tuple[Filter, ...] = FILTERS
    """Those of kube-scheduler that look beyond one node."""


REGISTRY = Registry()


class TooOld(Exception):
    """The cluster lacks what the design needs."""


@dataclass(frozen=True)
class RunningAllocator:
    """The parts that must be stopped, and those that tests look at."""

    controller: Controller
    servers: tuple[Server, ...]
    feed: Informers
    leader: Leader

    def stop(self) -> None:
        """Stop in an order that breaks no promise: servers, then leadership, then watches."""
        for server in self.servers:
            server.close()
        self._see_the_admitted()
        self.leader.stop()
        self.feed.stop()

    def _see_the_admitted(self) -> None:
        """Lead a little longer until the pods just admitted are on the API server, where the next leader finds them."""
        until = time.monotonic() + _ADMITTED_WITHIN
        while self.controller.look().assumed and time.monotonic() < until:
            time.sleep(_LOOK_EVERY)


def check_version(kube: Kube) -> gates.Version:
    """The cluster's version. Raises `TooOld` for a cluster before 1.30."""
    version = kube.version()
    if version < OLDEST_KUBERNETES:
        raise TooOld(f"Kubernetes {version[0]}.{version[1]} found; 1.30 or newer is needed")
    return version


def settings_type(features: Iterable[Feature[Any, Any]] = FEATURES) -> type[Settings]:
    """The settings of the core and these features."""
    return composed(Settings, ((each.name, each.group, each.settings) for each in features))


def start(
    settings: Settings, kube: Kube, process: Process, registry: Registry = REGISTRY, *, serve: Serve = serve_http
) -> RunningAllocator:
    """
    Make everything and start it. Raises `TooOld` or an error of the runtime; nothing keeps running then.

    `serve` opens the webhook's socket and the port for probes. Nothing here concerns the whole process, such as its
    signals: several allocators may run in one.
    """
    version = check_version(kube)
    on = gates.of_version(version, gates.read_overrides(settings.scheduler_feature_gates))
    woken = threading.Event()
    parts = built(registry.features, settings)
    metrics = Metrics((*metrics_of("allocator"), *(spec for each in registry.features for spec in each.metrics)))
    workers, faulted = _counted(process.workers, metrics), _faulted(metrics)
    elected = _leader(settings, kube, woken)
    teaching = LearningWorker(policy=settings.placement.node_policy, limits=LIMITS)
    by_claims = settings.dra and _has_claims(kube)
    controller = _controller(
        settings, registry, elected, woken, metrics, teaching, faulted, on, by_claims=by_claims, parts=parts
    )
    options = yaml_file(settings.options, pool_options)
    metrics.gauge(specs.ALLOCATOR_OPTIONS_REFUSED).set_function(lambda: float(bool(options.trouble)))
    pools = PoolWatcher(options.value, idle=controller.idle_nodes, declare=controller.handle, limits=LIMITS)
    pools.once()  # before the first question is answered
    profiles = ProfileWatcher(options.value, declare=controller.handle)
    profiles.once()
    recorder = EventRecorder(kube, clock=lambda: datetime.now(UTC), leading=elected.is_leader, faulted=faulted)
    shell = Shell(
        kube,
        controller=controller,
        settings=settings,
        dialects=registry.dialects,
        limits=LIMITS,
        metrics=metrics,
        options=lambda: options.value() or NO_OPTIONS,
        recorder=recorder,
        leading=elected.is_leader,
        covered=elected.covered,
        by_claims=by_claims,
        claims=ClaimReader(kube, version=version) if any(each.feature.serves_claims for each in parts) else None,
        new_nodes_within=_new_nodes_within(parts),
        write_timeout=_write_timeout(settings),
        restarted=_watch_restarts(metrics),
        workers=workers,
        faulted=faulted,
    )
    running = [part.run(shell) for part in parts]
    labels = (*_namespace_labels(settings, controller), *(label for each in running for label in each.labels))
    namespaces = NamespaceLabels(kube, labels, timeout=_write_timeout(settings))
    namespaces.once()  # before anything is placed
    upkeep = Upkeep(kube, leading=elected.is_leader, dialects=registry.dialects, faulted=faulted)
    fed = _informers(shell, [upkeep.seen, *(each.seen for each in running if each.seen is not None)], running)
    servers = _servers(shell, fed, serve, running)
    loop = _loop(shell, woken, fed, running)
    elected.annotations = lambda: {
        str(names.RESERVED_NODES): None,
        **annotation((each.node, each.uid) for each in controller.reserved_nodes()),
    }
    fed.start()
    elected.start()
    threads: dict[str, Thread] = {
        "scheduling": loop.run,
        "pools": pools.run,
        "profiles": profiles.run,
        "recorder": recorder.run,
        "upkeep": upkeep.run,
        **_on_demand(shell),
    }
    if settings.placement.node_policy in LEARNED:
        threads["learner"] = functools.partial(teaching.run, controller.nodes, controller.adopt)
    if labels:
        threads["namespaces"] = namespaces.run
    if settings.repair_every:
        threads["resync"] = _resync(shell, options).run
    for each in running:
        threads.update(each.threads)
    for name, run in threads.items():
        process.supervise(name, functools.partial(run, process.stop))
    return RunningAllocator(controller, servers, fed, elected)


def _counted(workers: Workers, metrics: Metrics) -> Workers:
    """The workers, whose restarts are counted."""
    restarted = metrics.counter(specs.WORKER_RESTARTS)
    workers.restarted = lambda name: restarted.labels(worker=name).inc()
    return workers


def _watch_restarts(metrics: Metrics) -> Callable[[str, str], None]:
    """Counts the informers that begin again."""
    watches = metrics.counter(specs.WATCH_RESTARTS)
    return lambda informer, why: watches.labels(informer=informer, reason=why).inc()


def _informers(shell: Shell, seen: Sequence[Callable[[JSON], None]], running: Iterable[Running]) -> Informers:
    """`seen` is called with each pod that is new or changed."""
    return Informers(
        shell.kube,
        shell.controller,
        on_restart=shell.restarted,
        kept_out=shell.settings.unhealthy_lists,
        follows=[kind for each in running for kind in each.follows],
        seen=_all_of(seen),
        workers=shell.workers,
        faulted=shell.faulted,
    )


def _loop(shell: Shell, woken: threading.Event, fed: Informers, running: Sequence[Running]) -> SchedulingLoop:
    return SchedulingLoop(
        kube=shell.kube,
        controller=shell.controller,
        recorder=shell.recorder,
        woken=woken,
        now_ns=time.time_ns,
        relist=fed.relist,
        write_timeout=shell.write_timeout,
        protects=shell.settings.placement.scale_down == "block",
        dialects=shell.dialects,
        counted=LoopCounters.of(shell.metrics),
        decided=_all_of([each.decided for each in running if each.decided is not None]),
        carries={effect: carry for each in running for effect, carry in each.carries.items()},
        workers=shell.workers,
        faulted=shell.faulted,
    )


def _resync(shell: Shell, options: LiveFile[PoolOptions]) -> Resync:
    return Resync(
        kube=shell.kube,
        controller=shell.controller,
        clock=time.monotonic,
        every=shell.settings.repair_every,
        options=options.value,
        dialects=shell.dialects,
        found=ResyncCounters.of(shell.metrics),
        faulted=shell.faulted,
    )


def _servers(shell: Shell, fed: Informers, serve: Serve, running: Iterable[Running]) -> tuple[Server, ...]:
    """The server for the webhook's questions, and the one for probes and scrapes if it is wanted."""
    review = kube_review(shell.kube)
    routes = dict(http.socket_routes(shell.controller, shell.metrics, faulted=shell.faulted, review=review))
    for each in running:
        routes.update(each.routes)
    socket_server = serve(
        routes,
        shell.settings.socket,
        name="socket",
        mode=http.SOCKET_MODE,
        limits=http.SOCKET_LIMITS,
    )
    return (socket_server, _health(shell, fed, review, serve)) if shell.settings.listen else (socket_server,)


def _all_of(calls: Sequence[Callable[..., None]]) -> Callable[..., None]:
    """One call in place of these."""

    def call(*arguments: object) -> None:
        for each in calls:
            each(*arguments)

    return call


def _new_nodes_within(parts: Iterable[Built]) -> float | None:
    """Seconds that a new node may take, where a feature requests nodes."""
    found = (part.feature.nodes_within(part.chosen) for part in parts if part.feature.nodes_within is not None)
    return next(found, None)


def _on_demand(shell: Shell) -> dict[str, Thread]:
    """The objects that are watched only once a pod needs them."""
    controller = shell.controller
    follow = functools.partial(
        InformersOnDemand,
        shell.kube,
        controller,
        on_restart=shell.restarted,
        workers=shell.workers,
    )
    devices = (
        follow(
            (kind,),
            wanted=functools.partial(controller.wants_devices, plural),
            why="a pod that asks for a share needs devices",
        )
        for plural, kind in storage.DEVICE_KINDS.items()
    )
    volumes = follow(
        storage.KINDS.values(), wanted=controller.wants_volumes, why="a pod that asks for a share has a claim"
    )
    selectors = follow(
        spreading.KINDS.values(), wanted=controller.wants_selectors, why="there are default topology spread constraints"
    )
    return {"volumes": volumes.run, "selectors": selectors.run, **{each.name: each.run for each in devices}}


def _health(shell: Shell, fed: Informers, review: Review, serve: Serve) -> Server:
    settings = shell.settings
    ready = HealthChecks(
        cache=lambda: shell.controller.ready() or None,
        watch=functools.partial(_stale, fed),
    )
    figures = gauges.AllocatorGauges(shell.controller, shell.metrics, shell.leading)
    routes = health_routes(shell.metrics, ready=ready, alive=HealthChecks(workers=shell.workers.broken))
    try:
        scrapes = scraping(settings.metrics_access, settings.metrics_certificates, review)
    except OSError as error:
        raise SettingsError([f"metrics_certificates: {settings.metrics_certificates}: {error}"]) from error
    served = gauges.scraped(routes, figures.refresh)
    return serve_probes(
        served, address(settings.listen), name="health", guard=scrapes.guard, tls=scrapes.tls, serve=serve
    )


def _namespace_labels(settings: Settings, controller: Controller) -> tuple[NamespaceLabel, ...]:
    """The labels of namespaces that settings of the core use."""
    if settings.queue.order != "fair":
        return ()
    weight = NamespaceLabel(
        names.QUEUE_WEIGHT,
        fairness.weight_of,
        fairness.misread,
        lambda weights: controller.handle(QueueWeighed(weights)),
    )
    return (weight,)


def _has_claims(kube: Kube) -> bool:
    """Whether the API server has ResourceClaims; writes a line to the log if it has none."""
    version = kube.version()
    if version < resourceclaims.SINCE:
        needed = ".".join(map(str, resourceclaims.SINCE))
        log.warning(
            "no delivery by ResourceClaims",
            extra={"found": f"Kubernetes {version[0]}.{version[1]}", "needed": f"Kubernetes {needed}"},
        )
    return version >= resourceclaims.SINCE


def _faulted(metrics: Metrics) -> Faulted:
    """Log and count errors that affect only one pod, node or claim; returns the id in the log."""
    counted = metrics.counter(specs.FAULTS)

    def tell(place: str, about: str) -> str:
        fault = secrets.token_hex(4)
        log.exception("fault", extra={"fault": fault, "place": place, "about": about})
        counted.labels(place=place).inc()
        return fault

    return tell


def _leader(settings: Settings, kube: Kube, woken: threading.Event) -> Leader:
    return Leader(
        kube,
        namespace=names.NAMESPACE,
        name=names.LEASE,
        identity=leader.identity(settings.election.identity or socket.gethostname()),
        timing=_timing(settings),
        on_change=lambda leads: woken.set(),
    )


def _timing(settings: Settings) -> LeaseTiming:
    """The election's pace: client-go's proportions of 15 to 10 to 2, which leave four attempts to renew in time."""
    lease = settings.election.lease
    return LeaseTiming(lease, renew_deadline=lease * 2 / 3, retry_period=lease * 2 / 15)


def _write_timeout(settings: Settings) -> float:
    """
    How long a commit may take, in seconds: less than the time between the end of our leadership and the start of the
    next, so that our commits have ended before another replica decides.
    """
    timing = _timing(settings)
    return 0.8 * (timing.lease_duration - timing.renew_deadline)


def _policy(settings: Settings) -> Policy:
    return Policy(settings.placement.node_policy, settings.placement.gpu_policy)


def _controller(
    settings: Settings,
    registry: Registry,
    elected: Leader,
    woken: threading.Event,
    metrics: Metrics,
    teaching: LearningWorker,
    faulted: Faulted,
    on: gates.Gates,
    *,
    by_claims: bool,
    parts: Iterable[Built],
) -> Controller:
    journal = Journal()
    engine = Engine(
        limits=LIMITS,
        policy=_policy(settings),
    )
    forgotten = metrics.counter(specs.RESERVATIONS_FORGOTTEN)
    return Controller(
        cache=Cache(
            engine=engine,
            faulted=faulted,
            journal=journal,
            gates=on,
            filters=registry.filters,
            patience=settings.agent_silence,
        ),
        settings=settings,
        gates=on,
        by_claims=by_claims,
        dialects=registry.dialects,
        clock=time.monotonic,
        new_id=lambda: secrets.token_hex(16),
        leading=elected.is_leader,
        term=elected.token,
        wake=woken.set,
        forgotten=lambda reason: forgotten.labels(reason=reason).inc(),
        on_request=teaching.see,
        faulted=faulted,
        give_way=functools.partial(time.sleep, 0),
        journal=journal,
        wall=time.time,
        parts=[part.make for part in parts],
    )


_STALE_AFTER = 180.0
"""Seconds: the API server sends a bookmark about once a minute, so three missed ones are a broken watch."""


def _stale(fed: Informers) -> str | None:
    for informer in fed.informers:
        age = informer.age()
        if age is not None and age > _STALE_AFTER:
            return f"no news from the watch of {informer.name} for {age:.0f} s"
    return None
