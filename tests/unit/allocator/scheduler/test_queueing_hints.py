"""
An event wakes the waiting pods whose reasons it can cure, and no others.

Two schedulers get any history of events: one with hints, and one in which each event wakes every pod. They make the
same decisions after each event, so no pod with room stays asleep. The clock does not move, so that the refresh of
figures, which is the safety net, hides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from allocator.cache.cache import cures
from allocator.cache.podinfo import PodEvent, pod_event
from allocator.engine.engine import Engine
from allocator.engine.reference import NOWHERE, Decision, Prefer
from allocator.neighbours.followed import key_of
from allocator.neighbours.storage import KINDS
from allocator.scheduler.events import (
    BindFailed,
    BindSucceeded,
    Event,
    InventoryChanged,
    InventoryDeleted,
    NamespacesLabelled,
    NodeChanged,
    NodeDeleted,
    PodDeleted,
    StorageChanged,
    StorageDeleted,
    StorageListed,
    TickPhase,
)
from contract import names, pods
from contract.model import FREE, NO_OVERCOUNT, Compute, Delivery, NodeState, Overcount
from contract.nodes.attributes import facts, trim
from contract.reasons import Cure
from contract.reasons.nodes import Reason
from contract.scheduling.needs import SchedulingRequest
from tests.builders import NodeBuilder, PodBuilder, node, pod
from tests.examples import examples
from tests.unit.allocator.harness import SchedulerHarness, admitted

JSON = dict[str, Any]
HOST, ZONE, APP = "kubernetes.io/hostname", "topology.kubernetes.io/zone", "app"


def _term(app: str, key: str, **more: Any) -> JSON:
    return {"topologyKey": key, "labelSelector": {"matchLabels": {APP: app}}, **more}


def required(kind: str, term: JSON) -> JSON:
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def spread(**more: Any) -> JSON:
    constraint = {"topologyKey": ZONE, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **more}
    return {"topologySpreadConstraints": [{**constraint, "labelSelector": {"matchLabels": {APP: "web"}}}]}


DISK = {"volumes": [{"name": "home", "persistentVolumeClaim": {"claimName": "disk"}}]}
ALONE = {"volumes": [{"name": "home", "persistentVolumeClaim": {"claimName": "alone"}}]}
TEAM = _term("db", HOST, namespaceSelector={"matchLabels": {"team": "a"}})

Shape = Callable[[PodBuilder], PodBuilder]
WAITING: Mapping[str, Shape] = {
    "small": lambda p: p.asks(names.GPU_MEMORY, "2Gi"),
    "large": lambda p: p.asks(names.GPU_MEMORY, "12Gi"),
    "cores": lambda p: p.asks(names.GPU_MEMORY, "1Gi").asks(names.GPU_CORES, 80),
    "a large init container": lambda p: (
        p.init("first")
        .asks(names.GPU_MEMORY, "12Gi")
        .container("main")
        .asks(names.GPU_MEMORY, "5Gi")
        .container("second")
        .asks(names.GPU_MEMORY, "5Gi")
    ),
    "whole": lambda p: p.asks("nvidia.com/gpu", 1),
    "two GPUs": lambda p: p.asks(names.GPU_MEMORY, "6Gi").asks(names.GPU_COUNT, 2),
    "another model": lambda p: p.asks(names.GPU_MEMORY, "1Gi").annotated(names.USE_MODELS, "A100"),
    "CPU": lambda p: p.asks(names.GPU_MEMORY, "1Gi").needs(cpu="3"),
    "a port": lambda p: p.asks(names.GPU_MEMORY, "1Gi").host_port(80),
    "a selector": lambda p: p.asks(names.GPU_MEMORY, "1Gi").selects(disk="ssd"),
    "a toleration": lambda p: p.asks(names.GPU_MEMORY, "1Gi").tolerates("spot"),
    "an isolation": lambda p: p.asks(names.GPU_MEMORY, "1Gi").annotated(names.ISOLATION, "mps"),
    "affinity": lambda p: p.asks(names.GPU_MEMORY, "1Gi").spec(**required("podAffinity", _term("db", ZONE))),
    "anti-affinity": lambda p: p.asks(names.GPU_MEMORY, "1Gi").spec(**required("podAntiAffinity", _term("web", HOST))),
    "affinity to a team": lambda p: p.asks(names.GPU_MEMORY, "1Gi").spec(**required("podAffinity", TEAM)),
    "spread": lambda p: p.asks(names.GPU_MEMORY, "1Gi").spec(**spread()),
    "spread by taints": lambda p: p.asks(names.GPU_MEMORY, "1Gi").spec(**spread(nodeTaintsPolicy="Honor")),
    "a volume": lambda p: p.asks(names.GPU_MEMORY, "1Gi").spec(**DISK),
    "a volume for one": lambda p: p.asks(names.GPU_MEMORY, "1Gi").spec(**ALONE),
}
BYSTANDERS: Mapping[str, Shape] = {
    "db": lambda p: p.labelled(APP, "db").container("c").needs(cpu="2"),
    "web": lambda p: p.labelled(APP, "web").container("c").host_port(80),
    "loner": lambda p: p.container("c").spec(**required("podAntiAffinity", _term("web", ZONE))),
    "disk": lambda p: p.container("c").spec(**ALONE),
}


def base(name: str) -> NodeBuilder:
    made = node(name).gpus(2, mib=16384).allocatable(cpu=4000).labelled(HOST, name)
    return made.labelled(ZONE, "b" if name == "n2" else "a")


def sick(made: NodeBuilder) -> NodeBuilder:
    first, *rest = made._gpus
    return replace(made, _gpus=(replace(first, healthy=False, reason="lost"), *rest))


def cordoned_gpus(made: NodeBuilder) -> NodeBuilder:
    return replace(made, _gpus=tuple(replace(g, healthy=False, withheld="Cordoned") for g in made._gpus))


NODES: Mapping[str, Callable[[NodeBuilder], NodeBuilder]] = {
    "as it was": lambda made: made,
    "labelled": lambda made: made.labelled("disk", "ssd"),
    "of another zone": lambda made: made.labelled(ZONE, "c"),
    "without a zone": lambda made: replace(made, _labels={HOST: made.name}),
    "tainted": lambda made: made.tainted("spot"),
    "tainted for all": lambda made: made.tainted("broken"),
    "cordoned": lambda made: made.cordoned(),
    "not ready": lambda made: made.not_ready(),
    "with less CPU": lambda made: made.allocatable(cpu=1000),
    "with a sick GPU": sick,
    "with cordoned GPUs": cordoned_gpus,
    "with another model": lambda made: made.gpu("A100", mib=40960),
    "with one GPU": lambda made: replace(made, _gpus=made._gpus[:1], _usage=made._usage[:1]),
    "without GPUs": lambda made: replace(made, _gpus=(), _usage=()),
    "isolating": lambda made: made.isolating("mps"),
}


def reach(zone: str) -> JSON:
    return {"nodeSelectorTerms": [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]}]}


def claim(name: str, volume: str = "", *modes: str) -> JSON:
    bound = {"pv.kubernetes.io/bind-completed": "yes"} if volume else {}
    metadata = {"namespace": "default", "name": name, "annotations": bound}
    return {"metadata": metadata, "spec": {"accessModes": list(modes), **({"volumeName": volume} if volume else {})}}


def volume(name: str, zone: str) -> JSON:
    return {"metadata": {"name": name}, "spec": {"nodeAffinity": {"required": reach(zone)}}}


STORED: Mapping[str, tuple[str, JSON]] = {
    "the claim": ("persistentvolumeclaims", claim("disk", "vol")),
    "the claim, unbound": ("persistentvolumeclaims", claim("disk")),
    "the claim for one": ("persistentvolumeclaims", claim("alone", "one", "ReadWriteOncePod")),
    "the volume in a": ("persistentvolumes", volume("vol", "a")),
    "the volume in b": ("persistentvolumes", volume("vol", "b")),
    "the volume for one": ("persistentvolumes", volume("one", "a")),
}
PODS = st.sampled_from([f"p{number}" for number in range(8)])
NAMED = st.sampled_from(("n0", "n1", "n2"))


class CountingEngine(Engine):
    """Counts its calls."""

    decisions = 0

    def decide(
        self, ask: SchedulingRequest, refused: Mapping[str, Reason] = NOWHERE, prefer: Prefer | None = None
    ) -> Decision:
        self.decisions += 1
        return super().decide(ask, refused, prefer)


class Scheduler:
    """One of the two schedulers, and what it placed."""

    def __init__(self, *, hints: bool) -> None:
        self.engine = CountingEngine()
        self.harness = SchedulerHarness([base("n0"), base("n1")], engine=self.engine, hints=hints)
        for plural in KINDS:
            self.harness.controller.handle(StorageListed(plural, ()))

    def handle(self, event: Event) -> None:
        self.harness.controller.handle(event)

    def settle(self, made: Mapping[str, PodBuilder], *, fails: bool) -> list[tuple[str, str, tuple[str, ...]]]:
        """
        Run cycles until nothing more is placed. Returns what was placed, in order. `fails`: the first write fails.
        """
        placed = []
        self.harness.controller.tick(TickPhase.UPKEEP)
        for _ in range(12):
            bindings, _ = self.harness.controller.schedule_pending()
            for binding in bindings:
                uid, found = binding.pod.uid, binding.allocation
                uuids = tuple(share.uuid for each in found.containers for share in each.shares)
                placed.append((uid, found.node, uuids))
                if fails:
                    fails = False
                    self.handle(BindFailed(binding, seen(admitted(made[uid], gated=True)), "conflict"))
                    continue
                there = admitted(made[uid].on(found.node), allocation=found)
                self.handle(BindSucceeded(binding, seen(there)))
            if not bindings and not self.harness.controller._trigger.again:
                break
        self.harness.controller.check_invariants()
        return placed


def seen(document: JSON) -> PodEvent:
    return pod_event(pods.trim(document))


def changed(name: str, change: str = "as it was") -> tuple[Event, ...]:
    made = NODES[change](base(name))
    return NodeChanged(facts(trim(made.json()))), InventoryChanged(made.inventory())


def everywhere(change: str) -> tuple[Event, ...]:
    return (*changed("n0", change), *changed("n1", change))


def running(kind: str, where: str, name: str = "") -> PodEvent:
    name = name or f"{kind}-{where}"
    return seen(BYSTANDERS[kind](pod(name).uid(name).on(where)).json())


def stored(*which: str) -> tuple[Event, ...]:
    found = (STORED[each] for each in which)
    return tuple(StorageChanged(plural, key_of(each), KINDS[plural].read(each)) for plural, each in found)


DELETED = (InventoryDeleted("n1"), NodeDeleted("n1"))
FULL = (running("db", "n0"), running("db", "n1"))
TAKEN = (running("web", "n0"), running("web", "n1"))


@dataclass(frozen=True)
class Cured:
    """A pod that waits after some events, and the event that allows its placement."""

    shape: str
    before: tuple[Event, ...]
    cure: Event
    decisions: int = 1
    """Two if the pod that requires another model has the same reason."""


CURES: Mapping[str, Cured] = {
    "a node's label": Cured("a selector", (), changed("n0", "labelled")[0]),
    "a taint is removed": Cured("small", everywhere("tainted for all"), changed("n0")[0], 2),
    "a node is uncordoned": Cured("small", everywhere("cordoned"), changed("n0")[0], 2),
    "a node is ready": Cured("small", everywhere("not ready"), changed("n0")[0], 2),
    "a node has more CPU": Cured("CPU", everywhere("with less CPU"), changed("n0")[0]),
    "GPUs are well": Cured("two GPUs", everywhere("with a sick GPU"), changed("n0")[1], 2),
    "GPUs are uncordoned": Cured("small", everywhere("with cordoned GPUs"), changed("n0")[1], 2),
    "a level of isolation": Cured("an isolation", (), changed("n0", "isolating")[1], 2),
    "a node joins": Cured("a selector", (*DELETED, changed("n1", "labelled")[0]), changed("n1", "labelled")[1], 2),
    "a pod ends, and its CPU": Cured("CPU", FULL, PodDeleted("db-n0")),
    "a pod ends, and its port": Cured("a port", TAKEN, PodDeleted("web-n0")),
    "a pod with the label runs": Cured("affinity", (), running("db", "n0")),
    "a pod with the label ends": Cured("anti-affinity", TAKEN, PodDeleted("web-n0")),
    "a pod that keeps others away ends": Cured("small", (running("loner", "n0"),), PodDeleted("loner-n0"), 2),
    "a namespace is labelled": Cured(
        "affinity to a team", (running("db", "n0"),), NamespacesLabelled({"default": {"team": "a"}})
    ),
    "a claim comes": Cured("a volume", stored("the volume in a"), stored("the claim")[0]),
    "a volume comes": Cured("a volume", stored("the claim"), stored("the volume in a")[0]),
    "a volume is free": Cured(
        "a volume for one",
        (*stored("the claim for one", "the volume for one"), running("disk", "n1")),
        PodDeleted("disk-n1"),
    ),
    "an empty domain goes": Cured(
        "spread", (*changed("n2", "tainted for all"), running("web", "n0")), NodeDeleted("n2")
    ),
}


@pytest.mark.parametrize("case", CURES.values(), ids=CURES.keys())
def test_an_event_wakes_the_pod_that_it_can_cure_and_no_other(case: Cured) -> None:
    decided = {}
    for hints in (True, False):
        it = Scheduler(hints=hints)
        waits, other = (
            WAITING[shape](pod(name).uid(name).labelled(APP, "web"))
            for name, shape in (("waits", case.shape), ("other", "another model"))
        )
        for event in (*case.before, seen(admitted(waits, gated=True)), seen(admitted(other, gated=True))):
            it.handle(event)
        made = {"waits": waits, "other": other}
        assert it.settle(made, fails=False) == []
        it.engine.decisions = 0
        it.handle(case.cure)
        assert [uid for uid, *_ in it.settle(made, fails=False)] == ["waits"]
        decided[hints] = it.engine.decisions
    assert decided[True] == case.decisions < decided[False]


def test_a_released_share_wakes_those_that_are_short_of_memory_or_cores() -> None:
    it = Scheduler(hints=True)
    made = {
        f"{shape}-{number}": WAITING[shape](pod(f"{shape}-{number}").uid(f"{shape}-{number}"))
        for shape in ("large", "a selector", "another model", "whole")
        for number in range(4)
    }
    for each in made.values():
        it.handle(seen(admitted(each, gated=True)))
    placed = it.settle(made, fails=False)
    assert [uid for uid, *_ in placed] == [f"large-{number}" for number in range(4)]
    it.engine.decisions = 0
    it.handle(PodDeleted("large-0"))
    assert [uid for uid, *_ in it.settle(made, fails=False)] == ["whole-0"]
    assert it.engine.decisions == 2, "whole-0 is placed, whole-1 is not, and its shape is decided once"


def test_a_pod_that_nothing_helped_is_tried_again_when_figures_are_refreshed() -> None:
    it = Scheduler(hints=True)
    other = WAITING["another model"](pod("other").uid("other"))
    it.handle(seen(admitted(other, gated=True)))
    it.settle({"other": other}, fails=False)
    it.engine.decisions = 0
    it.handle(running("db", "n0"))
    it.settle({"other": other}, fails=False)
    assert it.engine.decisions == 0
    it.harness.now += 16.0
    it.settle({"other": other}, fails=False)
    assert it.engine.decisions == 1


class Histories(RuleBasedStateMachine):
    """Each event goes to both."""

    def __init__(self) -> None:
        super().__init__()
        self.hinted, self.plain = Scheduler(hints=True), Scheduler(hints=False)
        self.asking: dict[str, PodBuilder] = {}
        self.running: dict[str, PodBuilder] = {}
        self.fails = False
        self.came = 0

    def both(self, event: Event) -> None:
        self.hinted.handle(event)
        self.plain.handle(event)

    @initialize(shapes=st.lists(st.sampled_from(sorted(WAITING)), min_size=3, max_size=6))
    def begin(self, shapes: list[str]) -> None:
        for number, shape in enumerate(shapes):
            self.a_pod_waits(f"p{number}", shape, 0, False)

    @rule(name=PODS, shape=st.sampled_from(sorted(WAITING)), priority=st.integers(0, 1), held=st.booleans())
    def a_pod_waits(self, name: str, shape: str, priority: int, held: bool) -> None:
        if name in self.asking:
            return
        self.came += 1
        made = pod(name).uid(f"{name}-{self.came}").labelled(APP, "web").spec(priority=priority)
        made = WAITING[shape](made)
        self.asking[name] = made
        there = admitted(made, gated=True)
        if held:
            there["spec"]["schedulingGates"].append({"name": "example.com/other"})
        self.both(seen(there))

    @rule(name=PODS)
    def another_systems_gate_is_removed(self, name: str) -> None:
        waits = self.asking.get(name)
        if waits is not None and self.hinted.harness.controller._queue.pod(waits._pod["metadata"]["uid"]) is not None:
            self.both(seen(admitted(waits, gated=True)))

    @rule(name=PODS)
    def a_pod_is_deleted(self, name: str) -> None:
        made = self.asking.pop(name, None)
        if made is not None:
            self.both(PodDeleted(made._pod["metadata"]["uid"]))

    @rule(kind=st.sampled_from(sorted(BYSTANDERS)), where=NAMED, number=st.integers(0, 1), app=st.sampled_from("dw"))
    def a_bystander_runs(self, kind: str, where: str, number: int, app: str) -> None:
        name = f"{kind}-{number}"
        made = BYSTANDERS[kind](pod(name).uid(name).on(where))
        if name in self.running:  # it is relabelled in place
            made = self.running[name].labelled(APP, "db" if app == "d" else "web")
        self.running[name] = made
        self.both(seen(made.json()))

    @rule(kind=st.sampled_from(sorted(BYSTANDERS)), number=st.integers(0, 1))
    def a_bystander_ends(self, kind: str, number: int) -> None:
        if self.running.pop(f"{kind}-{number}", None) is not None:
            self.both(PodDeleted(f"{kind}-{number}"))

    @rule(name=NAMED, change=st.sampled_from(sorted(NODES)), node_first=st.booleans())
    def a_node_changes(self, name: str, change: str, node_first: bool) -> None:
        events = changed(name, change)
        for event in events if node_first else reversed(events):
            self.both(event)

    @rule(name=NAMED, whole=st.booleans())
    def a_node_goes(self, name: str, whole: bool) -> None:
        self.both(InventoryDeleted(name))
        if whole:
            self.both(NodeDeleted(name))

    @rule(team=st.sampled_from(("", "a", "b")))
    def namespaces_are_labelled(self, team: str) -> None:
        self.both(NamespacesLabelled({"default": {"team": team}}))

    @rule(which=st.sampled_from(sorted(STORED)), there=st.booleans())
    def storage_changes(self, which: str, there: bool) -> None:
        plural, document = STORED[which]
        key = key_of(document)
        self.both(StorageChanged(plural, key, KINDS[plural].read(document)) if there else StorageDeleted(plural, key))

    @rule()
    def a_write_fails(self) -> None:
        self.fails = True

    @rule()
    def pauses_end(self) -> None:
        for each in (self.hinted, self.plain):
            each.harness.now += 2.0 if each.harness.now < 112.0 else 0.0

    @invariant()
    def the_same_pods_are_placed(self) -> None:
        made = {each._pod["metadata"]["uid"]: each for each in self.asking.values()}
        found = [each.settle(made, fails=self.fails) for each in (self.hinted, self.plain)]
        self.fails = self.fails and not found[0]
        assert found[0] == found[1]


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=examples(15), stateful_step_count=15, deadline=None)


# -- what a node's change cures ------------------------------------------------------------------------------------

_BARE = base("n0").tainted("spot").gpu(used_mib=1000).port_taken(80).requested(cpu=1000, pods=2).isolating("mps")
BEFORE = replace(_BARE.state(), overcount=Overcount(1))
CHANGES: Mapping[str, tuple[Any, Cure]] = {
    "gpus": (BEFORE.gpus[:1], Cure.GPUS),
    "usage": ((FREE,) * len(BEFORE.usage), Cure.SHARE),
    "labels": ({}, Cure.LABELS),
    "taints": ((), Cure.TAINTS),
    "cordoned": (True, Cure.TAINTS),
    "ready": (False, Cure.READY),
    "silent": (True, Cure.READY),
    "allocatable": (Compute(cpu=1), Cure.ALLOCATABLE),
    "requested": (Compute(cpu=1000, pods=1), Cure.ROOM),
    "host_ports": (frozenset(), Cure.PORTS),
    "delivery": (Delivery(("",)), Cure.GPUS),
    "isolation": ((), Cure.GPUS),
    "features": (frozenset(("X",)), Cure.FEATURES),
    "overcount": (NO_OVERCOUNT, Cure.SHARE),
}


def test_each_field_of_a_node_is_known_to_cure_something() -> None:
    assert CHANGES.keys() == {each.name for each in fields(NodeState)} - {"name"}


@pytest.mark.parametrize(("field", "value", "cure"), [(name, *each) for name, each in CHANGES.items()], ids=CHANGES)
def test_a_change_of_a_node_has_its_cure(field: str, value: Any, cure: Cure) -> None:
    assert cures(BEFORE, BEFORE) == frozenset()
    assert cures(BEFORE, replace(BEFORE, **{field: value})) == {cure}


def test_what_takes_room_cures_nothing() -> None:
    taken = replace(BEFORE, requested=Compute(cpu=2000, pods=3), host_ports=BEFORE.host_ports | {("TCP", "", 81)})
    fuller = tuple(replace(each, memory=each.memory + 1, sharers=each.sharers + 1) for each in BEFORE.usage)
    assert cures(BEFORE, replace(taken, usage=fuller)) == frozenset()
