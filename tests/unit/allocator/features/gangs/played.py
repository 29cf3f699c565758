"""Replicas of the allocator on one small API server, and gangs that are created there."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from allocator.cache.podinfo import pod_event
from allocator.features.elasticgpuclaims import objects
from allocator.features.elasticgpuclaims.changes import ClaimsListed
from allocator.features.gangs.part import GangScheduling
from allocator.queue.records import Report, StatusUpdate
from allocator.scheduler.events import PodDeleted, TickPhase, pods_listed
from allocator.workers.binder import EventRecorder
from allocator.workers.loop import SchedulingLoop
from contract import names, pods
from runtime.kubernetes.client import Kube
from tests.builders import NodeBuilder, PodBuilder, node, pod
from tests.unit.allocator.apiserver import ApiServer
from tests.unit.allocator.harness import SchedulerHarness, admitted

JSON = dict[str, Any]


class Replica:
    """A controller with an election, and the real loop over the shared API server."""

    def __init__(
        self,
        api: ApiServer,
        nodes: Iterable[NodeBuilder],
        *,
        term: int | None = None,
        scheduling: type[GangScheduling] = GangScheduling,
    ) -> None:
        leads = term is not None
        self.harness = SchedulerHarness(list(nodes), elected=True, term=term, leads=leads, scheduling=scheduling)
        self.controller, self.api = self.harness.controller, api
        kube = Kube(api.wire)
        self.reports: list[Report] = []
        recorder = EventRecorder(kube, clock=lambda: datetime.now(UTC))
        recorder.put = self.reports.append  # type: ignore[method-assign, assignment]
        self.loop = SchedulingLoop(
            kube=kube,
            controller=self.controller,
            recorder=recorder,
            woken=threading.Event(),
            now_ns=lambda: 0,
            writers=1,
        )
        if term is not None:
            self.relist(term)

    def watch(self, events: list[tuple[str, JSON]]) -> None:
        for kind, seen in events:
            if kind == "put":
                self.controller.handle(pod_event(pods.trim(seen)))
            else:
                self.controller.handle(PodDeleted(pods.uid(seen)))

    def lead(self, term: int) -> None:
        self.harness.leads, self.harness.term = True, term
        self.relist(term)

    def follow(self) -> None:
        self.harness.leads, self.harness.term = False, None

    def relist(self, term: int) -> None:
        self.controller.handle(pods_listed([pods.trim(p) for p in self.api.listed()], term=term))
        self.controller.handle(ClaimsListed(objects.SHARES, (), term=term))
        self.loop.carry_out(TickPhase.TAKE_OVER)

    def catch_up(self) -> None:
        """Read what happened, and take it in."""
        events = list(self.api.events)
        self.api.events.clear()
        self.watch(events)

    def cycle(self) -> None:
        """One scheduling cycle with its writes, after which the watch is quiet."""
        self.loop.once()
        self.catch_up()
        self.controller.check_invariants()

    def said(self) -> dict[str, str]:
        """The last message to each pod."""
        return {each.key: each.reason for each in self.reports if isinstance(each, StatusUpdate)}


def member(name: str, gang: str = "train", minimum: int = 2, *, mib: int = 10_000) -> PodBuilder:
    made = pod(name).asks("gpufraction.io/gpu-memory", f"{mib}Mi")
    return made.annotated(names.GANG, gang).annotated(names.GANG_MINIMUM, str(minimum))


def created(api: ApiServer, *builders: PodBuilder) -> None:
    for each in builders:
        api.create(admitted(each, gated=True))


def cards(number: int) -> list[NodeBuilder]:
    """This many nodes of one card, which has room for one member each."""
    return [node(f"n{i}").gpus(1) for i in range(number)]


def placed(api: ApiServer) -> dict[str, str]:
    """The node of each pod that has a share."""
    found = {key: pods.carried_allocation(each) for key, each in api.pods.items()}
    return {key: share.node for key, share in found.items() if share is not None}


def passes(replica: Replica, seconds: float) -> None:
    """This many seconds pass, with two cycles at the end."""
    replica.harness.now += seconds
    replica.loop.carry_out(TickPhase.UPKEEP)
    replica.cycle()
    replica.cycle()
