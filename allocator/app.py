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
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from allocator.cache.cache import Cache
from allocator.cache.ledger import Journal
from allocator.engine.engine import Engine
from allocator.engine.reference import LEARNED, Policy
from allocator.faults import Faulted
from allocator.features.delivery.sweeper import ClaimSweeper
from allocator.features.elasticgpuclaims.worker import Claims
from allocator.features.kueue.judge import TemplateReading
from allocator.features.kueue.worker import FitOptions, FitsWorker
from allocator.features.metering.meter import Meter
from allocator.features.metering.worker import MeteringWorker
from allocator.features.provisioning.worker import PoolReport, Provisioner, ProvisioningBounds, ProvisioningCounters
from allocator.neighbours import spreading, storage
from allocator.options import SchedulerOptions
from allocator.preemption import defragmentation
from allocator.scheduler.core import Controller
from allocator.scheduler.events import ConsentsListed, DefragmentationAgreed, QueueWeighed
from allocator.server import http
from allocator.server import metrics as gauges
from allocator.settings import Settings
from allocator.workers.binder import EventRecorder
from allocator.workers.informers import Follows, Informers
from allocator.workers.learner import LearningWorker, PoolWatcher
from allocator.workers.loop import LoopCounters, SchedulingLoop
from allocator.workers.namespaces import NamespaceLabel, NamespaceLabels
from allocator.workers.profiles import ProfileWatcher
from allocator.workers.recorder import Upkeep
from allocator.workers.resync import Resync, ResyncCounters
from allocator.workers.volumes import InformersOnDemand
from contract import names
from contract.encoding import resourceclaims
from contract.metrics import allocator as specs
from contract.metrics import metrics_of
from contract.options import NO_OPTIONS, PoolOptions, pool_options
from contract.scheduling import consent, fairness, gates
from contract.scheduling.filters import Limits
from runtime.httpserver import HttpServer, serve_http, serve_probes
from runtime.kubernetes import lease as leader
from runtime.kubernetes.client import Kube
from runtime.kubernetes.lease import Leader, LeaseTiming
from runtime.livefile import LiveFile, yaml_file
from runtime.metrics import Metrics
from runtime.process import HealthChecks, Process, health_routes
from runtime.scraping import scraping
from runtime.settings import SettingsError
from runtime.tokenreview import kube_review

JSON = dict[str, Any]
log = logging.getLogger(__name__)
OLDEST_KUBERNETES = (1, 30)
"""Scheduling gates, matchConditions and ValidatingAdmissionPolicy are stable from here on."""


_ADMITTED_WITHIN, _LOOK_EVERY = 5.0, 0.05
"""Seconds: an admitted pod is stored within moments, unless another webhook or a quota keeps it."""


class TooOld(Exception):
    """The cluster lacks what the design rests on."""


@dataclass(frozen=True)
class RunningAllocator:
    """The parts that must be stopped, and those that tests look at."""

    controller: Controller
    servers: tuple[HttpServer, ...]
    feed: Informers
    leader: Leader | None
    health: HttpServer | None

    def stop(self) -> None:
        """In the order in which nothing is promised that cannot be kept: doors, then leadership, then watches."""
        for server in self.servers:
            server.close()
        if self.leader is not None:
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


def start(settings: Settings, kube: Kube, process: Process) -> RunningAllocator:
    """Make everything and start it. Raises `TooOld` or an error of the runtime; nothing keeps running then."""
    on = gates.of_version(check_version(kube), gates.read_overrides(settings.scheduler_feature_gates))
    woken = threading.Event()
    metrics = Metrics(metrics_of("allocator"))
    workers, faulted = process.workers, _faulted(metrics)
    restarted = metrics.counter(specs.WORKER_RESTARTS)
    workers.restarted = lambda name: restarted.labels(worker=name).inc()
    elected = _leader(settings, kube, woken)
    leading: Callable[[], bool] = elected.is_leader if elected else lambda: True
    teaching = LearningWorker(policy=settings.placement.node_policy, limits=_limits(settings))
    journal = Journal()
    by_claims = settings.dra and _has_claims(kube)
    controller = _controller(settings, elected, woken, metrics, teaching, faulted, journal, on, by_claims=by_claims)
    metering = MeteringWorker(
        controller=controller,
        meter=Meter(_limits(settings).capacity),
        clock=time.monotonic,
        covered=elected.covered if elected else None,
        faulted=faulted,
    )
    options = yaml_file(settings.options, pool_options)
    metrics.gauge(specs.ALLOCATOR_OPTIONS_REFUSED).set_function(lambda: float(bool(options.trouble)))
    pools = PoolWatcher(options.value, idle=controller.idle_nodes, declare=controller.handle, limits=_limits(settings))
    pools.once()  # before the first question is answered
    profiles = ProfileWatcher(options.value, declare=controller.handle)
    profiles.once()
    labels = _namespace_labels(settings, controller)
    namespaces = NamespaceLabels(kube, labels, timeout=_write_timeout(settings))
    namespaces.once()  # before anything is placed
    restarts = metrics.counter(specs.WATCH_RESTARTS)
    upkeep = Upkeep(kube, leading=leading, faulted=faulted)
    fits = _fits(settings, kube, controller, process, metrics, faulted, options)
    fed = Informers(
        kube,
        controller,
        on_restart=lambda name, why: restarts.labels(informer=name, reason=why).inc(),
        follows=Follows(claims=settings.claims, kept_out=settings.unhealthy_lists),
        seen=upkeep.seen if fits is None else _both(upkeep.seen, fits.pod_seen),
        workers=workers,
        faulted=faulted,
    )
    follow = functools.partial(
        InformersOnDemand,
        kube,
        controller,
        on_restart=lambda name, why: restarts.labels(informer=name, reason=why).inc(),
        workers=workers,
    )
    volumes = follow(
        storage.KINDS.values(), wanted=controller.wants_volumes, why="a pod that asks for a share has a claim"
    )
    devices = [
        follow(
            (kind,),
            wanted=functools.partial(controller.wants_devices, plural),
            why="a pod that asks for a share needs devices",
        )
        for plural, kind in storage.DEVICE_KINDS.items()
    ]
    selectors = follow(
        spreading.KINDS.values(), wanted=controller.wants_selectors, why="there are default topology spread constraints"
    )
    ready = HealthChecks(
        cache=lambda: controller.ready() or None,
        watch=functools.partial(_stale, fed),
    )
    review = kube_review(kube)
    doors = [
        serve_http(
            http.socket_routes(controller, metrics, faulted=faulted, review=review),
            settings.socket,
            name="socket",
            mode=http.SOCKET_MODE,
            limits=http.SOCKET_LIMITS,
        )
    ]
    health = None
    if settings.listen:
        figures = gauges.AllocatorGauges(controller, metrics, leading)
        gauges.CardHours(metrics, metering.counted, new=settings.card_hours_after, clock=time.monotonic)
        host, port = settings.listen.rsplit(":", 1)
        routes = health_routes(metrics, ready=ready, alive=HealthChecks(workers=workers.broken))
        try:
            scrapes = scraping(settings.metrics_access, settings.metrics_certificates, review)
        except OSError as error:
            raise SettingsError([f"metrics_certificates: {settings.metrics_certificates}: {error}"]) from error
        served = gauges.scraped(routes, figures.refresh)
        health = serve_probes(served, (host, int(port)), name="health", guard=scrapes.guard, tls=scrapes.tls)
        doors.append(health)
    recorder = EventRecorder(kube, clock=lambda: datetime.now(UTC), leading=leading, faulted=faulted)
    claims_woken = threading.Event()
    claims = Claims(
        kube=kube,
        controller=controller,
        woken=claims_woken,
        limits=_limits(settings),
        card_writes=settings.card_writes,
        timeout=_write_timeout(settings),
        faulted=faulted,
    )
    loop = SchedulingLoop(
        kube=kube,
        controller=controller,
        recorder=recorder,
        woken=woken,
        now_ns=time.time_ns,
        relist=fed.relist,
        write_timeout=_write_timeout(settings),
        protects=settings.placement.scale_down == "block",
        counted=LoopCounters.of(metrics),
        decided=claims_woken.set,
        workers=workers,
        faulted=faulted,
    )
    fed.start()
    if elected is not None:
        elected.start()
    process.supervise("scheduling", lambda: loop.run(process.stop))
    process.supervise("metering", lambda: metering.run(process.stop))
    if settings.placement.node_policy in LEARNED:
        process.supervise("learner", lambda: teaching.run(controller.nodes, controller.adopt, process.stop))
    process.supervise("pools", lambda: pools.run(process.stop))
    process.supervise("profiles", lambda: profiles.run(process.stop))
    if labels:
        process.supervise("namespaces", lambda: namespaces.run(process.stop))
    if fits is not None:
        process.supervise("kueue", functools.partial(fits.run, process.stop))
    if settings.claims:
        process.supervise("claims", lambda: claims.run(process.stop))
    process.supervise("volumes", lambda: volumes.run(process.stop))
    for each in devices:
        process.supervise(each.name, functools.partial(each.run, process.stop))
    process.supervise("selectors", lambda: selectors.run(process.stop))
    process.supervise("recorder", lambda: recorder.run(process.stop))
    process.supervise("upkeep", lambda: upkeep.run(process.stop))
    if by_claims:
        sweeper = ClaimSweeper(kube, leading=leading, timeout=_write_timeout(settings), faulted=faulted)
        process.supervise("resource-claims", lambda: sweeper.run(process.stop))
    if settings.provisioning.enabled:
        provisioner = Provisioner(
            kube=kube,
            controller=controller,
            options=options.value,
            bounds=_provisioning(settings),
            report=PoolReport(kube, settings.provisioning.namespace, metrics),
            tell=recorder.put,
            counted=ProvisioningCounters.of(metrics),
            faulted=faulted,
        )
        process.supervise("provisioner", lambda: provisioner.run(process.stop))
    if settings.repair_every:
        repair = Resync(
            kube=kube,
            controller=controller,
            clock=time.monotonic,
            every=settings.repair_every,
            options=options.value,
            found=ResyncCounters.of(metrics),
            faulted=faulted,
        )
        process.supervise("resync", lambda: repair.run(process.stop))
    return RunningAllocator(controller, tuple(doors), fed, elected, health)


def _namespace_labels(settings: Settings, controller: Controller) -> tuple[NamespaceLabel, ...]:
    """The labels of namespaces that the settings give a meaning to."""
    weight = NamespaceLabel(
        names.QUEUE_WEIGHT,
        fairness.weight_of,
        fairness.misread,
        lambda weights: controller.handle(QueueWeighed(weights)),
    )
    agreed = NamespaceLabel(
        names.IDLE_AFTER,
        consent.seconds_of,
        consent.misread,
        lambda namespaces: controller.handle(ConsentsListed(namespaces)),
    )
    moves = NamespaceLabel(
        names.DEFRAGMENT,
        defragmentation.agreed,
        defragmentation.misread,
        lambda found: controller.handle(DefragmentationAgreed(frozenset(found))),
    )
    wanted = (
        (weight, settings.queue.order == "fair"),
        (agreed, settings.idle.evict),
        (moves, settings.defragmentation.evictions_per_hour > 0),
    )
    return tuple(label for label, on in wanted if on)


def _has_claims(kube: Kube) -> bool:
    """Whether the API server has ResourceClaims; a line in the log where it has none."""
    version = kube.version()
    if version < resourceclaims.SINCE:
        needed = ".".join(map(str, resourceclaims.SINCE))
        log.warning(
            "no delivery by ResourceClaims",
            extra={"found": f"Kubernetes {version[0]}.{version[1]}", "needed": f"Kubernetes {needed}"},
        )
    return version >= resourceclaims.SINCE


def _faulted(metrics: Metrics) -> Faulted:
    """Errors that stay with one pod, node or claim, into the log and a counter; gives the id that the log has."""
    counted = metrics.counter(specs.FAULTS)

    def tell(place: str, about: str) -> str:
        fault = secrets.token_hex(4)
        log.exception("fault", extra={"fault": fault, "place": place, "about": about})
        counted.labels(place=place).inc()
        return fault

    return tell


def _both(one: Callable[[JSON], None], other: Callable[[JSON], None]) -> Callable[[JSON], None]:
    def call(pod: JSON) -> None:
        one(pod)
        other(pod)

    return call


def _fits(
    settings: Settings,
    kube: Kube,
    controller: Controller,
    process: Process,
    metrics: Metrics,
    faulted: Faulted,
    options: LiveFile[PoolOptions],
) -> FitsWorker | None:
    """Who answers Kueue's check; None where it is off."""
    if not settings.fits.enabled:
        return None
    answered, restarts = metrics.counter(specs.KUEUE_ANSWERS), metrics.counter(specs.WATCH_RESTARTS)
    return FitsWorker(
        kube=kube,
        controller=controller,
        limits=_limits(settings),
        policy=_policy(settings),
        options=FitOptions(
            retry_after=settings.fits.retry_after,
            hold=settings.fits.hold,
            rejects=settings.placement.unsatisfiable == "deny",
            nodes_within=settings.provisioning.patience if settings.provisioning.enabled else None,
        ),
        reading=lambda: TemplateReading(options.value() or NO_OPTIONS, settings.fits.runtime_class, settings.dra),
        timeout=_write_timeout(settings),
        counted=lambda state: answered.labels(state=state).inc(),
        on_restart=lambda name, why: restarts.labels(informer=name, reason=why).inc(),
        workers=process.workers,
        faulted=faulted,
    )


def _leader(settings: Settings, kube: Kube, woken: threading.Event) -> Leader | None:
    if not settings.election.enabled:
        return None
    return Leader(
        kube,
        namespace=settings.election.namespace,
        name=settings.election.name,
        identity=leader.identity(settings.election.identity or socket.gethostname()),
        timing=LeaseTiming(settings.election.lease, settings.election.renew, settings.election.retry),
        on_change=lambda leads: woken.set(),
    )


def _write_timeout(settings: Settings) -> float:
    """
    How long a commit may take, in seconds: less than lies between the end of our leadership and the next one's
    beginning, so that a commit begun by us has ended before anybody else decides.
    """
    return 0.8 * (settings.election.lease - settings.election.renew) if settings.election.enabled else 10.0


def _limits(settings: Settings) -> Limits:
    return Limits(settings.sharing.max_sharers)


def _provisioning(settings: Settings) -> ProvisioningBounds:
    chosen = settings.provisioning
    return ProvisioningBounds(
        chosen.namespace,
        chosen.image,
        chosen.requests,
        chosen.placeholders,
        chosen.after,
        chosen.patience,
        _limits(settings),
    )


def _policy(settings: Settings) -> Policy:
    return Policy(settings.placement.node_policy, settings.placement.gpu_policy)


def _controller(
    settings: Settings,
    elected: Leader | None,
    woken: threading.Event,
    metrics: Metrics,
    teaching: LearningWorker,
    faulted: Faulted,
    journal: Journal,
    on: gates.Gates,
    *,
    by_claims: bool,
) -> Controller:
    engine = Engine(
        limits=_limits(settings),
        policy=_policy(settings),
    )
    forgotten = metrics.counter(specs.RESERVATIONS_FORGOTTEN)
    return Controller(
        cache=Cache(engine=engine, faulted=faulted, journal=journal, gates=on),
        options=SchedulerOptions(
            placement=settings.placement.pin,
            gates=on,
            protects=settings.placement.scale_down == "block",
            when=settings.placement.when,
            max_unconfirmed=settings.sharing.max_unconfirmed,
            unsatisfiable=settings.placement.unsatisfiable,
            assume_ttl=settings.assume_ttl,
            queue_order=settings.queue.order,
            queue_memory=settings.queue.memory,
            queue_memory_total=settings.queue.memory_total,
            starvation_timeout=settings.starvation_timeout,
            starvation_reservation_limit=settings.starvation_reservation_limit,
            unbound=settings.unbound,
            unbound_after=settings.unbound_after,
            claims=settings.claims,
            claim_memory=settings.claim_memory,
            by_claims=by_claims,
            preemption=settings.preemption,
            idle_evict=settings.idle.evict,
            idle_grace=settings.idle.grace,
            repair=settings.repair,
            defragment=settings.defragmentation.evictions_per_hour,
            defragment_rest=settings.defragmentation.rest,
            defragment_every=settings.defragmentation.interval,
        ),
        clock=time.monotonic,
        new_id=lambda: secrets.token_hex(16),
        leading=elected.is_leader if elected else lambda: True,
        term=elected.token if elected else None,
        wake=woken.set,
        forgotten=lambda reason: forgotten.labels(reason=reason).inc(),
        asked=teaching.see,
        faulted=faulted,
        give_way=functools.partial(time.sleep, 0),
        journal=journal,
        wall=time.time,
    )


_STALE_AFTER = 180.0
"""Seconds: the API server sends a bookmark about once a minute, so three missed ones are a broken watch."""


def _stale(fed: Informers) -> str | None:
    for informer in fed.informers:
        age = informer.age()
        if age is not None and age > _STALE_AFTER:
            return f"nothing heard of {informer.name} for {age:.0f} s"
    return None
