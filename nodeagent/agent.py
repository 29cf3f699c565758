"""
The agent's loop: it keeps the GPUNode and the Node's capacity equal to what the machine shows.

One thread owns all state here. Each step observes the machine, reads what is published if that is unknown, asks
`nodeagent.publishing.reconcile` what to write, and writes it in `_apply`. The watches and the observer only wake it.

    unknown ──read──▶ known ──write ok──▶ known (the answer is what is published now)
       ▲                └──write failed, outcome unknown, or the watch saw another writer──┐
       └────────────────────────────────────────────────────────────────────────────────────┘

So the agent reads the object back after a write without an answer, before it writes anything else. After an outage of
the API server of any length, there is one read and one write.

Must not: decide what to write, call the driver, or let an API error end the loop.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from contract.backoff import backoff, with_jitter
from contract.encoding import moments
from contract.nodes import proofs
from nodeagent.isolation.levels import PublishedLevels
from nodeagent.machine import Machine
from nodeagent.publishing.beyond import ExcessCapacity
from nodeagent.publishing.changes import Change
from nodeagent.publishing.reconcile import (
    Action,
    AdoptObject,
    CreateObject,
    History,
    NodeView,
    ObjectView,
    Published,
    PublishingPace,
    PublishingPlan,
    RemoveTaints,
    WriteCapacity,
    WriteStatus,
    jittered,
    node_view,
    object_view,
    reconcile,
    settled,
)
from nodeagent.publishing.startup import Taints
from nodeagent.publishing.status import DEFAULT_TERMS, Desired, Terms, desired
from nodeagent.publishing.terms import NodeReport, terms_of, unique
from nodeagent.settings import PaceSettings
from nodeagent.sharing.ownership import HOLDING
from runtime.kubernetes import events
from runtime.kubernetes.client import JSON, Kube, KubeError, KubeForbidden, KubeInvalid, KubeNotFound
from runtime.kubernetes.paths import gpunodes, nodes
from runtime.kubernetes.watch import Event, Put, Replaced

log = logging.getLogger(__name__)
DEFAULT_PACE = PaceSettings()


_BACKOFF, _BACKOFF_CAP = 1.0, 60.0
"""Seconds after the first failed call; doubled with each further one up to the cap, with jitter."""


class Agent:
    """
    Publishes one node's GPUs. `step` is one round; `run` does rounds until stopped.

    `node` is the name of the Node that this machine is. `pace.interval` lies between two steps if nothing wakes the
    agent, and between two writes of a field that another writer undoes. `terms` is the part of the terms that is known
    at the start. `clock` is wall time in seconds since the epoch, because the heartbeat counts from a published time.
    """

    def __init__(
        self,
        kube: Kube,
        machine: Machine,
        node: str,
        pace: PaceSettings = DEFAULT_PACE,
        *,
        terms: Terms = DEFAULT_TERMS,
        clock: Callable[[], float] = time.time,
        rng: random.Random | None = None,
    ) -> None:
        self._kube = kube
        self._machine = machine
        self._node = node
        self._interval = pace.interval
        self._terms = terms
        self._clock = clock
        self._rng = rng or random.Random()
        self._pace = PublishingPace(heartbeat=jittered(pace.heartbeat, node), rewrite=pace.interval)
        self._published: Published | None = None
        self._history = History()
        self._failures = 0
        self._trouble = "no GPU was looked at yet"
        self._refused: Desired | None = None
        self._startup_refused: tuple[Taints, str] = ((), "")
        """Startup taints whose removal was refused, and why."""
        self._excess = ExcessCapacity()
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._seen: dict[str, NodeView | ObjectView | None] = {}

    @property
    def trouble(self) -> str:
        """Why the node's GPUs are not published as usable, as one sentence; empty when they are. For `/readyz`."""
        return self._trouble

    def wake(self) -> None:
        """Run the next step now. May be called from any thread."""
        self._wake.set()

    def node_event(self, event: Event) -> None:
        """An event of the watch on our Node. From any thread."""
        node = _object_of(event)
        self._note("node", node_view(node) if node is not None else None)

    def gpunode_event(self, event: Event) -> None:
        """An event of the watch on our GPUNode. From any thread."""
        gpunode = _object_of(event)
        self._note("gpunode", object_view(gpunode) if gpunode is not None else None)

    def run(self, stopping: threading.Event) -> None:
        """Do rounds until `stopping` is set; call `wake` after setting it."""
        while not stopping.is_set():
            pause = self.step()
            if self._failures:
                # Only a stop shortens a backoff, because an event that wakes one agent may wake those of all nodes.
                stopping.wait(pause)
            else:
                self._wake.wait(pause)
            self._wake.clear()

    def step(self) -> float:
        """Do one round. Returns the seconds until the next one."""
        report = self._machine.observe()
        if report is None:
            return self._interval
        try:
            self._round(report)
        except KubeError as error:
            return self._failed(error)
        if self._failures:
            log.info("the API server answers again")
        self._failures = 0
        return self._interval

    def _round(self, report: NodeReport) -> None:
        self._check_seen()
        published = self._published
        if published is None:
            published = self._published = self._read()
        if published.node is None:
            self._published = None
            self._trouble = f"there is no Node named {self._node!r}; set node to the name of this machine's Node"
            return
        if report.waits:
            self._trouble = report.waits
            return
        if published.node.ownership.choice == HOLDING and report.pods_unknown:
            # Without the holders the agent would take every GPU out of sharing at each start.
            self._trouble = report.pods_unknown
            return
        status = published.gpunode.status if published.gpunode else {}
        taints, why = self._startup_refused
        own = replace(self._terms, startup_refused=why if taints == published.node.startup_taints else "")
        repeated = unique(published.gpunode.repeated) if published.gpunode else ()
        terms = terms_of(replace(own, conditions=repeated), report, published.node, status)
        wanted = desired(self._node, report.observation, terms=terms)
        beyond = self._excess.beyond(wanted, published)
        wanted = replace(
            wanted, beyond=beyond, idle=report.idle, reports=report.reports, heartbeat=math.ceil(self._pace.heartbeat)
        )
        now = self._clock()
        wanted = wanted.under(
            self._machine.enforce(wanted.inventory, now, published.node.labels, _published(published))
        )
        self._apply(reconcile(wanted, published, self._history, now, self._pace), wanted, published)
        self._trouble = "" if wanted.condition.ready else wanted.condition.message

    def _apply(self, plan: PublishingPlan, wanted: Desired, published: Published) -> None:
        """
        Carry out the plan. Raises `KubeError` if a write fails. A failed Event is only logged, and so is a refused
        removal of the startup taint: a policy refused it, or the Node's taints changed meanwhile.
        """
        refused = False
        for action in plan.actions:
            try:
                published = self._write(action, published)
            except (KubeForbidden, KubeInvalid) as error:
                if not isinstance(action, RemoveTaints):
                    raise
                log.warning("startup taint not removed", extra={"reason": str(error)})
                taints = published.node.startup_taints if published.node is not None else ()
                self._startup_refused, refused = (taints, str(error)), True
                continue
            log.info("published", extra={"what": type(action).__name__, "node": self._node})
        self._history = plan.history
        for change in plan.events:
            log.warning(change.reason, extra={"reason": change.message})
            try:
                self._record(change)
            except KubeError as error:
                log.warning("Event not written", extra={"reason": str(error)})
        if plan.actions:
            self._wrote(wanted, published)
        if refused:
            self._published = None  # read it again: if the taints changed, the next removal names the present ones

    def _wrote(self, wanted: Desired, published: Published) -> None:
        self._published = published
        if settled(wanted, published):
            self._refused = None
        elif self._refused != wanted:
            self._refused = wanted
            log.warning(
                "the API server dropped a part of the write; is the CustomResourceDefinition of this release installed?"
            )

    def _read(self) -> Published:
        node = self._get(nodes(self._node))
        gpunode = self._get(gpunodes(self._node))
        return Published(
            node=node_view(node) if node is not None else None,
            gpunode=object_view(gpunode) if gpunode is not None else None,
        )

    def _get(self, path: str) -> JSON | None:
        try:
            return self._kube.get(path)
        except KubeNotFound:
            return None

    def _write(self, action: Action, published: Published) -> Published:
        name = self._node
        match action:
            case CreateObject(body):
                return replace(published, gpunode=object_view(self._kube.create(gpunodes(), body)))
            case AdoptObject(patch):
                return replace(published, gpunode=object_view(self._kube.patch_merge(gpunodes(name), patch)))
            case WriteStatus(patch):
                answer = self._kube.patch_merge(gpunodes(name, "status"), patch)
                return replace(published, gpunode=object_view(answer))
            case WriteCapacity(patch):
                return replace(published, node=node_view(self._kube.patch_merge(nodes(name, "status"), patch)))
            case RemoveTaints(operations):
                return replace(published, node=node_view(self._kube.patch_json(nodes(name), operations)))

    def _failed(self, error: KubeError) -> float:
        self._published = None
        hint = "; is the CustomResourceDefinition of GPUNode installed?" if isinstance(error, KubeNotFound) else ""
        self._trouble = f"the inventory is not published: {error}{hint}"
        level = logging.INFO if self._failures else logging.WARNING
        log.log(level, "publishing failed", extra={"reason": type(error).__name__, "detail": str(error)})
        self._failures += 1
        longest = backoff(self._failures, _BACKOFF, _BACKOFF_CAP)
        return max(error.retry_after or 0.0, with_jitter(longest, self._rng.random()))

    def _record(self, change: Change) -> None:
        """Write an Event about this machine's Node. Its uid is the Node's name, as in kubelet's Events."""
        node = self._node
        events.record(
            self._kube,
            events.about("Node", "", node, node),
            reason=change.reason,
            message=change.message,
            at=moments.stamp(self._clock()),
            component="gpufraction-nodeagent",
            host=node,
        )

    def _note(self, what: str, view: NodeView | ObjectView | None) -> None:
        with self._lock:
            self._seen[what] = view
        self._wake.set()

    def _check_seen(self) -> None:
        """Read the objects again if a watch saw something other than what we last knew."""
        with self._lock:
            seen, self._seen = self._seen, {}
        known = self._published
        if known is not None and any(getattr(known, what) != view for what, view in seen.items()):
            self._published = None


def _published(published: Published) -> PublishedLevels:
    """The levels that the GPUNode has, which may be of another version or damaged, and its proof."""
    if published.gpunode is None:
        return PublishedLevels()
    levels = published.gpunode.status.get("isolation")
    return PublishedLevels(
        tuple(map(str, levels)) if isinstance(levels, list) else (), proofs.from_text(published.gpunode.proof)
    )


def _object_of(event: Event) -> JSON | None:
    """The object of a watch on a single name; None if it does not exist."""
    match event:
        case Put(found):
            return found
        case Replaced([found, *_]):
            return found
    return None
