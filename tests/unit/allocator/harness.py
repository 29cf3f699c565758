"""A controller on a bench: a clock that tests set, ids that count up, and pods as the API server shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from allocator.cache.cache import Cache
from allocator.cache.ledger import Journal, Reservation
from allocator.engine.engine import Engine
from allocator.engine.reference import DEFAULT_POLICY, Policy
from allocator.faults import surfaced
from allocator.features.defragmentation.part import Defragmenter
from allocator.features.defragmentation.settings import DefragmentationSettings
from allocator.features.elasticgpuclaims import ClaimSettings, objects
from allocator.features.elasticgpuclaims.changes import ClaimsListed
from allocator.features.elasticgpuclaims.part import ClaimsPart
from allocator.features.gangs.part import GangScheduling
from allocator.features.gangs.settings import GangSettings
from allocator.features.idle.part import IdlePods
from allocator.features.idle.settings import IdleSettings
from allocator.features.provisioning.part import ProvisioningPart
from allocator.features.provisioning.wishes import Unserved
from allocator.features.starts.part import StartScheduling
from allocator.features.starts.settings import StartSettings
from allocator.queue.records import Binding
from allocator.scheduler.core import Controller
from allocator.scheduler.events import (
    CheckAssumed,
    ExcludedGpusListed,
    FencePods,
    InventoriesListed,
    LatePod,
    NamespacesLabelled,
    NodesListed,
    Relist,
    TickPhase,
    pods_listed,
)
from allocator.scheduler.parts import Core, FeaturePart
from allocator.settings import Settings
from allocator.workers.fence import Fencer
from contract import names, pods
from contract.dialects import DIALECTS
from contract.encoding import codec, moments
from contract.encoding.protocol import Question
from contract.model import Allocation, PodRequest
from contract.nodes.attributes import facts, trim
from contract.scheduling.filters import DEFAULT_LIMITS, Limits
from tests.builders import NodeBuilder, PodBuilder, pod
from tests.unit.allocator.chosen import chosen

JSON = dict[str, Any]
CLAIMS_ON = ClaimSettings(claims=True)


@dataclass
class SchedulerHarness:
    """A controller with its inputs and its effects."""

    nodes: Iterable[NodeBuilder] = ()
    options: Settings = field(default_factory=chosen)
    limits: Limits = DEFAULT_LIMITS
    policy: Policy = DEFAULT_POLICY
    synced: bool = True
    now: float = 100.0
    wall: float | None = None
    """Seconds since the epoch; None to use `now`."""
    leads: bool = True
    elected: bool = False
    term: int | None = None
    made: int = 0
    woken: int = 0
    forgotten: list[str] = field(default_factory=list)
    requested: list[tuple[PodRequest, int]] = field(default_factory=list)
    engine: Engine | None = None
    hints: bool = True
    claiming: ClaimSettings = CLAIMS_ON
    by_claims: bool = False
    moving: DefragmentationSettings | None = None
    idling: IdleSettings = field(default_factory=IdleSettings)
    scheduling: type[GangScheduling] = GangScheduling
    faults: list[tuple[str, str]] | None = None
    """Records where our errors were isolated and for which pod; None lets the errors surface."""

    journal: Journal = field(default_factory=Journal)

    give_way: Callable[[], object] = lambda: None
    """Called between two turns of a long operation."""

    def __post_init__(self) -> None:
        self.controller = Controller(
            cache=Cache(
                engine=self.engine or Engine(limits=self.limits, policy=self.policy),
                faulted=self._faulted,
                journal=self.journal,
                patience=self.options.agent_silence,
            ),
            settings=self.options,
            by_claims=self.by_claims,
            clock=lambda: self.now,
            new_id=self._new_id,
            leading=lambda: self.leads,
            wake=self._wake,
            term=(lambda: self.term) if self.elected else None,
            forgotten=self.forgotten.append,
            on_request=lambda request, cpu: self.requested.append((request, cpu)),
            faulted=self._faulted,
            give_way=self._give_way,
            journal=self.journal,
            wall=lambda: self.now if self.wall is None else self.wall,
            hints=self.hints,
            parts=tuple(self._parts()),
        )
        if self.synced:
            self.sync()

    def sync(self, existing: Iterable[JSON] = ()) -> None:
        """Deliver the first lists."""
        builders = list(self.nodes)
        self.controller.handle(NodesListed(tuple(facts(trim(b.json())) for b in builders)))
        self.controller.handle(InventoriesListed(tuple(b.inventory() for b in builders)))
        self.no_claims()
        self.controller.handle(pods_listed(pods.trim(pod) for pod in existing))

    def no_claims(self) -> None:
        """The lists of a cluster that has none of these objects, and no excluded card."""
        self.controller.handle(ExcludedGpusListed(()))
        self.controller.handle(NamespacesLabelled({}))
        for plural in (objects.CLAIMS, objects.CLASSES, objects.SHARES) if self.claiming.claims else ():
            self.controller.handle(ClaimsListed(plural, ()))

    def _parts(self) -> Iterator[Callable[[Core], FeaturePart]]:
        if self.claiming.claims:
            yield self._claims
        yield self._provisioning
        yield self._idle
        yield self._gangs
        yield self._starts
        if self.moving is not None:
            yield self._defragmentation

    def _defragmentation(self, core: Core) -> FeaturePart:
        assert self.moving is not None
        return Defragmenter(core, self.moving).part()

    def _gangs(self, core: Core) -> FeaturePart:
        self.gangs = self.scheduling(core, GangSettings())
        return self.gangs.part()

    def _starts(self, core: Core) -> FeaturePart:
        self.starts = StartScheduling(core, StartSettings())
        return self.starts.part()

    def _claims(self, core: Core) -> FeaturePart:
        self.claims = ClaimsPart(core, most_memory=self.claiming.claim_memory)
        return self.claims.part()

    def _provisioning(self, core: Core) -> FeaturePart:
        self.provisioning = ProvisioningPart(core)
        return self.provisioning.part()

    def _idle(self, core: Core) -> FeaturePart:
        self.idle = IdlePods(core, self.idling)
        return self.idle.part()

    def unserved(self, after: float) -> tuple[Unserved, ...] | None:
        """The pods that no node serves, after this many seconds; None if that is unknown."""
        found = self.provisioning.unserved(after)
        self.controller.in_turns(found.turns())
        return found.found

    def _new_id(self) -> str:
        self.made += 1
        return f"id-{self.made}"

    def _give_way(self) -> None:
        self.give_way()

    def _faulted(self, place: str, about: str) -> str:
        if self.faults is None:
            return surfaced(place, about)
        self.faults.append((place, about))
        return f"fault-{len(self.faults)}"

    def _wake(self) -> None:
        self.woken += 1


def overdue(controller: Controller) -> tuple[Reservation, ...]:
    """The reservations whose pods must be looked for now."""
    checks = [each for each in controller.tick(TickPhase.RESERVATIONS) if isinstance(each, CheckAssumed)]
    return tuple(reservation for check in checks for reservation in check.reservations)


def relists(controller: Controller) -> list[int | None]:
    """The terms for which pods must be listed again now."""
    ticked = controller.tick(TickPhase.TAKE_OVER)
    return [each.term for each in ticked if isinstance(each, Relist) and each.pods]


def late_pods(controller: Controller) -> list[LatePod]:
    """The pods that must be failed now."""
    return [each for each in controller.tick(TickPhase.LATE_PODS) if isinstance(each, LatePod)]


def unresolved(controller: Controller) -> list[Binding]:
    """The bindings that must be written again now."""
    return [each for each in controller.tick(TickPhase.BINDINGS) if isinstance(each, Binding)]


def fence(controller: Controller, fencer: Fencer) -> None:
    """Fence the pods that must be fenced now."""
    for each in controller.tick(TickPhase.TAKE_OVER):
        if isinstance(each, FencePods):
            fencer.fence(each)


def fail_late(controller: Controller, fencer: Fencer) -> None:
    """Fail the pods that must be failed now."""
    for each in late_pods(controller):
        fencer.fail(each)


def request_of(pod: JSON) -> PodRequest:
    """What the pod requests; the request must be servable."""
    request = DIALECTS.read(pod)
    assert isinstance(request, PodRequest), request
    return request


def remade(binding: Binding) -> PodBuilder:
    """
    The pod of a commit as its author wrote it: one container, in our own dialect. The queue keeps only an outline.
    """
    entry, (fraction,) = binding.pod, binding.pod.ask.request.containers
    made = (
        pod(entry.key.split("/", 1)[1])
        .uid(entry.uid)
        .created(moments.stamp(entry.created))
        .spec(priority=entry.priority)
    )
    made = made.asks("gpufraction.io/gpu-memory", fraction.memory)
    return made.asks("gpufraction.io/gpu-count", fraction.count) if fraction.count > 1 else made


def question(builder: PodBuilder, *, dry_run: bool = False, held: str = "", uid: str = "review-1") -> Question:
    """The webhook's question about a pod."""
    pod = builder.json()
    namespace = pod["metadata"]["namespace"]
    return Question(uid, namespace, request_of(pod), pods.trim(pod), dry_run, held)


def admitted(builder: PodBuilder, *, allocation: Allocation | None = None, gated: bool = False) -> JSON:
    """The pod on the API server after admission: with accounting resources, and with the annotations written."""
    pod = builder.json()
    request = request_of(pod)
    for container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
        for amounts in container.get("resources", {}).values():
            for resource in DIALECTS.resources & amounts.keys():
                del amounts[resource]
    for fraction in request.containers:
        for container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
            if container["name"] == fraction.container:
                resources = pods.accounting(fraction, fraction.memory * fraction.count)
                container["resources"].setdefault("limits", {}).update(resources)
                container["resources"].setdefault("requests", {}).update(resources)
    annotations = pod["metadata"].setdefault("annotations", {})
    annotations[names.REQUEST] = codec.request_to_text(request)
    if allocation is not None:
        annotations[names.ALLOCATION] = codec.allocation_to_text(allocation)
        annotations.update(codec.container_annotations(allocation))
    if gated:
        pod["spec"]["schedulingGates"] = [{"name": str(names.GATE)}]
    return pod
