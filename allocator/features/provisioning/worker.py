"""
Requests nodes: the leader keeps requests on the API server as decided by `allocator.features.provisioning`.

Every pass reads the existing requests, so a lost answer or another leader has no effect. Requests are
ProvisioningRequests if the cluster serves that kind, else placeholder pods. A pool's spare nodes are a CapacityBuffer.
This module does not choose nodes. The next pass retries failures.
"""

from __future__ import annotations

import functools
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from allocator.faults import Faulted, surfaced
from allocator.features.provisioning import objects, pools, status
from allocator.features.provisioning.objects import RequestForm
from allocator.features.provisioning.packing import Packer
from allocator.features.provisioning.part import NodesExpected, ProvisioningPart
from allocator.features.provisioning.settings import ProvisioningSettings
from allocator.features.provisioning.spares import Spare, spares
from allocator.features.provisioning.wishes import (
    Ended,
    Memory,
    NodeRequest,
    Plan,
    PoolView,
    Unserved,
    reconcile,
)
from allocator.queue.records import EventRecord
from allocator.scheduler.core import Controller
from allocator.workers.replicas import REPLICAS, image_of
from contract import kinds, names
from contract.encoding import moments
from contract.metrics import allocator as specs
from contract.nodes import pool_status
from contract.nodes.pool_status import BLOCKED, FRESHENED, PoolsStatus, PoolStatus
from contract.options import NO_OPTIONS, PoolOptions
from contract.reasons.gpunodes import NodeEventReason
from contract.scheduling.filters import Limits
from contract.scheduling.needs import SchedulingRequest
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError, KubeNotFound
from runtime.metrics import Metrics

JSON = dict[str, Any]
log = logging.getLogger(__name__)
_EVERY, _SOON = 2.0, 0.25
"""Seconds from one pass to the next, and to the next attempt if the queue had to be tried first."""
_RESTS, _LONGEST_REST = 4.0, 30.0
"""The pause after a long pass: this many times its duration, and at most this many seconds."""
_NO_WAY = (
    "ProvisioningRequests are not served, or are turned off; run Cluster Autoscaler with "
    "--enable-provisioning-requests, or add manifests/components/node-placeholders"
)
provisioning_requests = paths.NamespacedResource(*objects.PROVISIONING_REQUESTS[:2])
capacity_buffers = paths.NamespacedResource(*objects.CAPACITY_BUFFERS[:2])
pod_templates = paths.NamespacedResource(*objects.POD_TEMPLATES[:2])
_OURS = {"labelSelector": str(names.POOL)}
_UNSEEN = (
    "the API server has nodes of the pool that the watch has not shown yet; the pool is evaluated as soon as "
    "they are seen"
)
_NO_BUFFERS = (
    "the cluster serves no CapacityBuffers; run Cluster Autoscaler with --capacity-buffer-controller-enabled and "
    "--capacity-buffer-pod-injection-enabled"
)


@dataclass(frozen=True, slots=True)
class ProvisioningCounters:
    """Counts the nodes that were requested in a pool, and the outcome of each request's nodes."""

    requested: Callable[[str, int], None] = lambda pool, nodes: None
    ended: Callable[[str, str, int], None] = lambda pool, outcome, nodes: None
    spare: Callable[[str, int], None] = lambda pool, nodes: None

    @classmethod
    def of(cls, metrics: Metrics) -> ProvisioningCounters:
        """The metrics."""
        requested, ended = metrics.counter(specs.NODES_REQUESTED), metrics.counter(specs.NODE_REQUESTS_ENDED)
        spare = metrics.gauge(specs.SPARE_NODES)
        return cls(
            requested=lambda pool, nodes: requested.labels(pool=pool).inc(nodes),
            ended=lambda pool, outcome, nodes: ended.labels(pool=pool, outcome=outcome).inc(nodes),
            spare=lambda pool, nodes: spare.labels(pool=pool).set(nodes),
        )


class PoolReport:
    """The published state of the pools: gauges, and a ConfigMap that is written on changes and once a minute."""

    def __init__(self, kube: Kube, metrics: Metrics | None = None) -> None:
        self._kube = kube
        self._path = paths.configmaps(names.NAMESPACE, names.POOLS)
        self._last = PoolsStatus(0.0)
        """The text of the last write or attempt."""
        self._pools: tuple[PoolStatus, ...] = ()
        self._wanted: Mapping[str, int] = {}
        if metrics is not None:
            metrics.rows(specs.NODES_WANTED, lambda: [((p.name,), self._wanted.get(p.name, 0)) for p in self._pools])
            metrics.rows(specs.POOL_FAILURES, lambda: [((pool.name,), pool.failures) for pool in self._pools])
            metrics.rows(specs.POOL_BLOCKED, self._blocked)

    def show(self, status: PoolsStatus, wanted: Mapping[str, int]) -> None:
        """Publish this state. Raises `KubeError` if it could not be written."""
        self._pools = status.pools
        self._wanted = wanted
        last = self._last
        if (status.pools, status.trouble) == (last.pools, last.trouble) and status.at - last.at < FRESHENED:
            return
        self._last = status
        self._kube.patch_merge(self._path, {"data": {pool_status.FILE: pool_status.document(status)}})

    def trouble(self, now: float, why: str) -> None:
        """Publish that the pools could not be read. Raises `KubeError` if that could not be written."""
        self.show(PoolsStatus(now, self._pools, why), self._wanted)

    def clear(self) -> None:
        """This replica no longer decides: only the leader publishes."""
        self._pools = ()
        self._wanted = {}
        self._last = PoolsStatus(0.0)

    def _blocked(self) -> list[tuple[tuple[str, ...], float]]:
        return [
            ((pool.name, reason), float(pool.state == reason and (pool.waits or reason == "unknown")))
            for pool in self._pools
            for reason in BLOCKED
        ]


def pause_after(tried: bool, took: float) -> float:
    """
    Seconds until the next pass, after one that took this long; `tried`: whether the queue had been tried.

    Packing thousands of pods of many shapes takes seconds. Then the pauses are longer, so that packing takes little of
    the processor time that decisions need.
    """
    return max(_EVERY if tried else _SOON, min(_RESTS * took, _LONGEST_REST))


class Provisioner:
    """One pass every few seconds while this replica decides."""

    def __init__(
        self,
        *,
        kube: Kube,
        controller: Controller,
        part: ProvisioningPart,
        options: Callable[[], PoolOptions | None],
        settings: ProvisioningSettings,
        limits: Limits,
        report: PoolReport,
        tell: Callable[[EventRecord], None],
        counted: ProvisioningCounters | None = None,
        now: Callable[[], float] = time.time,
        word: Callable[[], str] = lambda: secrets.token_hex(4),
        packer: Packer | None = None,
        faulted: Faulted = surfaced,
    ) -> None:
        """`tell`: enqueues an Event."""
        self._kube = kube
        self._controller = controller
        self._part = part
        self._options = options
        self._settings = settings
        self._report = report
        self._tell = tell
        self._counted = counted or ProvisioningCounters()
        self._now = now
        self._word = word
        self._faulted = faulted
        self._memory = Memory()
        self._packer = packer or Packer(limits)
        self._poison: set[SchedulingRequest] = set()
        """Requests of waiting pods that caused an error. No node is requested for them."""
        self._logged: dict[str, str] = {}
        self._spares = SpareKeeper(kube, self._counted.spare)
        self._image = ""
        """The image of the placeholder pods; empty until it is looked up."""
        self._served = True
        """Whether ProvisioningRequests may be created, and the cluster served them at the last check."""

    def run(self, stop: threading.Event) -> None:
        """Run until stopped."""
        pause = _EVERY
        while not stop.wait(pause):
            pause = _EVERY
            if not self._controller.decides():
                self._report.clear()
                continue
            began = self._now()
            try:
                pause = pause_after(self.once(), self._now() - began)
            except KubeError as error:
                self._say("nodes not asked for", str(error))
                self._publish(functools.partial(self._report.trouble, self._now(), str(error)))

    def once(self) -> bool:
        """One pass. False if the queue has to be tried first. Raises `KubeError`."""
        term = self._controller.term()
        options = self._options() or NO_OPTIONS
        placeholders = self._placeholders() if self._settings.placeholders else []
        documents = [*self._provisioning_requests(), *placeholders]
        requests = [request for each in documents if (request := objects.request_of(each)) is not None]
        declared = {pool.name: dict(pool.node.labels) for pool in options.pools if pool.node is not None}
        if not requests and not declared and not self._spares.keeps:
            self._publish(lambda: self._report.show(PoolsStatus(self._now()), {}))
            return True
        unserved = self._part.unserved(self._settings.after)
        self._controller.in_turns(unserved.turns())
        if unserved.found is None:
            return False
        occupied = {name for pod in placeholders if (name := (pod.get("spec") or {}).get("nodeName"))}
        controller = self._controller
        empty, states = ({node.name: node for node in f()} for f in (controller.empty_nodes, controller.nodes))
        now, listed = self._now(), pools.views(options, empty, controller.node_facts(), states, occupied)
        plan = self._reconciled(now, listed, requests, unserved.found)
        views = {view.name: view for view in listed}
        failed = self._carry_out(plan, views, declared, term)
        self._memory = plan.memory
        self._controller.handle(
            NodesExpected({uid: each for uid, each in plan.expectations.items() if each.pool not in failed})
        )
        trouble = "" if self._served or self._settings.placeholders else _NO_WAY
        shown = status.of_pools(now, (pool for pool in options.pools if pool.name in declared), views, plan, failed)
        if self._controller.may_write_in(term):
            self._publish(lambda: self._report.show(PoolsStatus(now, shown, trouble), status.wanted(plan, failed)))
            self._spares.keep(spares(options, listed, states, now, self._settings.patience), listed, declared)
        return True

    def _reconciled(
        self, now: float, views: Sequence[PoolView], requests: Sequence[NodeRequest], unserved: Sequence[Unserved]
    ) -> Plan:
        """`reconcile` without pods that cause an error, so that one pod does not affect the others."""
        while True:
            sound = [pod for pod in unserved if pod.ask not in self._poison]
            try:
                return reconcile(now, views, requests, sound, self._memory, self._settings.patience, self._packer)
            except Exception:
                self._faulted("provisioning", "pods that wait for nodes")
                found = {pod.ask for pod in sound if not self._can_be_judged(pod.ask, views)}
                if not found:
                    raise
                self._poison = {pod.ask for pod in unserved if pod.ask in self._poison} | found

    def _can_be_judged(self, ask: SchedulingRequest, views: Iterable[PoolView]) -> bool:
        try:
            for view in views:
                self._packer.serves(view.name, view.empty, ask)
        except Exception:
            return False
        return True

    def _publish(self, write: Callable[[], None]) -> None:
        """A failure to publish does not fail the pass."""
        try:
            write()
        except KubeError as error:
            self._say("pools not reported", str(error), "report")

    # -- reading --------------------------------------------------------------------------------------------------

    def _provisioning_requests(self) -> list[JSON]:
        try:
            found = self._kube.list(provisioning_requests(names.NAMESPACE), _OURS, of=kinds.PROVISIONINGREQUESTS).items
        except KubeNotFound:
            self._served = False
            return []
        self._served = self._settings.requests
        return found

    def _has_unseen_nodes(self, view: PoolView, selector: Mapping[str, str]) -> bool:
        """
        Whether the API server has nodes of the pool that its view lacks, because the watch of nodes is behind.

        A request ends when its nodes have come, so a new leader with an old view would see neither, and repeat it.
        """
        query = {"labelSelector": ",".join(f"{key}={value}" for key, value in sorted(selector.items()))}
        listed = self._kube.list(paths.nodes(), query, of=kinds.NODES, trim=_labelled).items
        options = self._options() or NO_OPTIONS
        there = {
            _name(each) for each in listed if options.of_node(each["metadata"].get("labels") or {})[0] == view.name
        }
        return not there <= {node.name for node in view.nodes}

    def _placeholders(self) -> list[JSON]:
        return self._kube.list(paths.pods(names.NAMESPACE), _OURS, of=kinds.PLACEHOLDERS).items

    # -- writing --------------------------------------------------------------------------------------------------

    def _carry_out(
        self, plan: Plan, views: Mapping[str, PoolView], selectors: Mapping[str, Mapping[str, str]], term: int | None
    ) -> dict[str, str]:
        """Write the plan. Returns the pools whose request could not be created, and why."""
        failed = {}
        for end in plan.end:
            if self._controller.may_write_in(term):
                self._end(end)
                self._tell_of_nodes(end, views.get(end.request.pool))
        for pool, count in plan.make:
            try:
                if self._has_unseen_nodes(views[pool], selectors[pool]):
                    failed[pool] = _UNSEEN
                elif self._controller.may_write_in(term):
                    self._ask(views[pool], selectors[pool], count)
                    self._logged.pop(pool, None)
            except KubeError as error:
                # The request may exist anyway; the next pass finds it.
                failed[pool] = str(error)
                self._say("nodes not asked for", str(error), pool)
        return failed

    def _say(self, what: str, why: str, pool: str = "") -> None:
        """Log the failure, once for each reason in a row."""
        if self._logged.get(pool) != why:
            self._logged[pool] = why
            log.warning(what, extra={"pool": pool, "reason": why})

    def _ask(self, view: PoolView, selector: Mapping[str, str], count: int) -> None:
        chosen, off = self._settings, tuple(node.name for node in view.nodes)
        name = f"{view.name}-{self._word()}"
        form = RequestForm(name, view.name, view.empty, selector, off, karpenter=view.karpenter)
        if not self._served and not chosen.placeholders:
            raise KubeNotFound(_NO_WAY)
        self._sweep()
        if self._served:
            self._kube.create(pod_templates(names.NAMESPACE), objects.pod_template(form))
            request = objects.provisioning_request(form, count, chosen.patience)
            self._kube.create(provisioning_requests(names.NAMESPACE), request)
        else:
            self._image = self._image or self._own_image()
            for number in range(count):
                one = replace(form, name=f"{form.name}-{number}", image=self._image)
                self._kube.create(paths.pods(names.NAMESPACE), objects.placeholder(one))
        self._counted.requested(view.name, count)
        log.info("nodes asked for", extra={"pool": view.name, "nodes": count, "request": form.name})

    def _own_image(self) -> str:
        return image_of(self._kube.list(paths.pods(names.NAMESPACE), REPLICAS, of=kinds.PLACEHOLDERS).items)

    def _end(self, end: Ended) -> None:
        request = end.request
        if request.bound is not None:
            self._delete(paths.pods(names.NAMESPACE, request.name))
        else:
            self._delete(provisioning_requests(names.NAMESPACE, request.name))
            self._delete(pod_templates(names.NAMESPACE, request.name))
        self._counted.ended(request.pool, end.outcome, request.count)
        log.info("request for nodes ended", extra={"request": request.name, "outcome": end.outcome, "nodes": end.nodes})

    def _tell_of_nodes(self, end: Ended, view: PoolView | None) -> None:
        """Send an Event about each node that came for a request and is unusable."""
        lacks = {node.name: node.lacks for node in view.nodes} if view is not None else {}
        for node in end.nodes if end.outcome in ("without-gpus", "too-late") else ():
            message = (
                f"{moments.duration(self._settings.patience)} after the node was requested for pods that wait for "
                f"pool {end.request.pool}, it cannot serve any: {lacks.get(node, '')}. Check the node agent's pod "
                f"there: kubectl -n gpufraction-system get pods -o wide"
            )
            log.warning("node does not serve", extra={"node": node, "pool": end.request.pool, "reason": message})
            self._tell(EventRecord("Node", node, node, NodeEventReason.WITHOUT_GPUS, message))

    def _sweep(self) -> None:
        """Delete the PodTemplates of requests that are deleted or were never created."""
        if not self._served:
            return
        kept = {_name(each) for each in self._provisioning_requests()}
        for template in _templates(self._kube):
            if _name(template) not in kept and not objects.is_spare_name(_name(template)):
                self._delete(pod_templates(names.NAMESPACE, _name(template)))

    def _delete(self, path: str) -> None:
        _delete(self._kube, path)


def _templates(kube: Kube) -> list[JSON]:
    """The PodTemplates of ours."""
    return kube.list(pod_templates(names.NAMESPACE), _OURS, of=kinds.PODTEMPLATES).items


class SpareKeeper:
    """
    Keeps a CapacityBuffer and its PodTemplate for each pool with spare nodes.

    They are written again only if they must change or somebody changed them: the template contains the nodes with
    shares, and every pass compares. This comes last in a pass, so a failure delays no pod.
    """

    def __init__(self, kube: Kube, counted: Callable[[str, int], None]) -> None:
        self._kube = kube
        self._counted = counted
        self._written: dict[str, tuple[Spare, RequestForm, tuple[Any, ...]]] = {}
        """By pool: the written objects, and their state after the write."""
        self.keeps = True
        """Whether there may be a buffer of ours."""
        self._served = True

    def keep(
        self, wanted: Sequence[Spare], views: Sequence[PoolView], selectors: Mapping[str, Mapping[str, str]]
    ) -> None:
        """One pass. `selectors`: by pool, the labels of its nodes. Raises `KubeError`."""
        if not wanted and not self.keeps:
            return
        by_name = {view.name: view for view in views}
        try:
            listed = self._kube.list(capacity_buffers(names.NAMESPACE), _OURS, of=kinds.CAPACITYBUFFERS).items
        except KubeNotFound:
            self._unserved(wanted)
            return
        self._served = True
        buffers = _by_pool(listed)
        templates = _by_pool(each for each in _templates(self._kube) if objects.is_spare_name(_name(each)))
        for spare in wanted:
            view = by_name[spare.pool]
            name = objects.spare_name(spare.pool)
            form = RequestForm(name, spare.pool, view.empty, selectors[spare.pool], spare.off, karpenter=view.karpenter)
            self._write(spare, form, templates.get(spare.pool), buffers.get(spare.pool))
        for pool in (buffers.keys() | templates.keys()) - {spare.pool for spare in wanted}:
            self._end(pool, buffers.get(pool), templates.get(pool))
        self.keeps = bool(wanted)

    def _write(self, spare: Spare, form: RequestForm, template: JSON | None, buffer: JSON | None) -> None:
        self._counted(spare.pool, spare.nodes)
        if self._written.get(spare.pool) == (spare, form, (_state(template), _state(buffer))):
            return
        shape, body = objects.pod_template(form), objects.capacity_buffer(form, spare.nodes)
        written = (
            self._put(pod_templates, template, shape, "template"),
            self._put(capacity_buffers, buffer, body, "spec"),
        )
        self._written[spare.pool] = (spare, form, (_state(written[0]), _state(written[1])))
        log.info("spare nodes", extra={"pool": spare.pool, "nodes": spare.nodes, "off": len(spare.off)})

    def _put(self, resource: paths.NamespacedResource, present: JSON | None, body: JSON, field: str) -> JSON:
        if present is None:
            return self._kube.create(resource(names.NAMESPACE), body)
        change = {"op": "replace", "path": f"/{field}", "value": body[field]}
        return self._kube.patch_json(resource(names.NAMESPACE, _name(body)), [change])

    def _end(self, pool: str, buffer: JSON | None, template: JSON | None) -> None:
        for resource, document in ((capacity_buffers, buffer), (pod_templates, template)):
            if document is not None:
                _delete(self._kube, resource(names.NAMESPACE, _name(document)))
        self._written.pop(pool, None)
        self._counted(pool, 0)

    def _unserved(self, wanted: Sequence[Spare]) -> None:
        for spare in wanted:
            self._counted(spare.pool, 0)
        if wanted and self._served:
            log.warning("no spare nodes", extra={"pools": [spare.pool for spare in wanted], "reason": _NO_BUFFERS})
            self._served = False


def _by_pool(documents: Iterable[JSON]) -> dict[str, JSON]:
    """Objects of ours, by the pool of their label."""
    return {str(each["metadata"]["labels"].get(names.POOL)): each for each in documents}


def _labelled(node: JSON) -> JSON:
    """A node's name and labels. Many nodes are listed, so nothing else of them is read."""
    return {"metadata": kinds.project(node["metadata"], {"name": {}, "labels": {}})}


def _state(document: JSON | None) -> tuple[Any, ...]:
    """The state of an object, without the status that others write."""
    metadata = (document or {}).get("metadata") or {}
    return metadata.get("uid"), metadata.get("generation")


def _delete(kube: Kube, path: str) -> None:
    try:
        kube.delete(path)
    except KubeNotFound:
        return


def _name(document: JSON) -> str:
    return str(document["metadata"]["name"])
