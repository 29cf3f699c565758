"""A snapshot repeats the allocator's decision if volumes and other pods decide, and holds no more than that needs."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.cache.podinfo import pod_event
from allocator.engine.reference import Placement
from allocator.neighbours import spreading, storage
from allocator.neighbours.followed import key_of
from allocator.scheduler.events import NamespacesLabelled, ProfilesDeclared, StorageListed
from allocator.server import debug
from contract import names, pods
from contract.scheduling.clusterfilters import trimming
from contract.scheduling.clusterfilters.neighbourhood import Neighbourhood, NeighbourSnapshot, PodsOfKind
from contract.scheduling.clusterfilters.objects import (
    DEFAULT_SCHEDULER,
    PodRules,
    Profile,
    SpreadConstraint,
    read_rules,
)
from contract.scheduling.clusterfilters.selectors import LabelSelector
from contract.scheduling.needs import PodNeeds, Requirement
from tests.builders import PodBuilder, node, pod
from tests.examples import examples
from tests.unit.allocator.harness import SchedulerHarness, admitted

JSON = dict[str, Any]
HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
ZONES = {"a": "1", "b": "1", "c": "2"}
NODES = [node(n).labelled(HOST, n).labelled(ZONE, z).gpu(mib=16384) for n, z in ZONES.items()]
CPU = node("cpu").labelled(HOST, "cpu").labelled(ZONE, "2")


def term(app: str, key: str, *, everywhere: bool = False) -> JSON:
    found: JSON = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}
    return {**found, "namespaceSelector": {"matchLabels": {"team": "yes"}}} if everywhere else found


@st.composite
def templates(draw: st.DrawFn) -> JSON:
    """What a pod's author writes: labels, and rules of some kinds."""
    apps, keys = st.sampled_from("xy"), st.sampled_from((HOST, ZONE))
    spec: JSON = {}
    affinity = {
        kind: {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                term(draw(apps), draw(keys), everywhere=draw(st.booleans()))
            ]
        }
        for kind in draw(st.sets(st.sampled_from(("podAffinity", "podAntiAffinity"))))
    }
    if affinity:
        spec["affinity"] = affinity
    if draw(st.booleans()):
        constraint = {"topologyKey": draw(keys), "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
        spec["topologySpreadConstraints"] = [{**constraint, "labelSelector": {"matchLabels": {"app": draw(apps)}}}]
    if draw(st.integers(0, 3)) == 0:
        claim = {"claimName": draw(st.sampled_from(("bound", "shared", "missing")))}
        spec["volumes"] = [{"name": "v", "persistentVolumeClaim": claim}]
    namespace = draw(st.sampled_from(("one", "two")))
    return {"app": draw(apps), "namespace": namespace, "spec": spec}


def made(name: str, template: JSON) -> PodBuilder:
    builder = pod(name, template["namespace"]).uid(f"u-{name}").labelled("app", template["app"])
    return builder.labelled("secret", "hunter2").spec(**template["spec"])


def volumes() -> list[tuple[str, JSON]]:
    in_zone = {"key": ZONE, "operator": "In", "values": ["2"]}
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [in_zone]}]}}
    found: list[tuple[str, JSON]] = [
        ("persistentvolumes", {"metadata": {"name": "v-0"}, "spec": {"nodeAffinity": affinity}}),
        ("csinodes", {"metadata": {"name": "a"}, "spec": {"drivers": [{"name": "d", "allocatable": {"count": 1}}]}}),
    ]
    for namespace in ("one", "two"):
        for name, mode in (("bound", "ReadWriteOnce"), ("shared", "ReadWriteOncePod"), ("strange", "ReadWriteOnce")):
            metadata = {"namespace": namespace, "name": name, "annotations": {"pv.kubernetes.io/bind-completed": "y"}}
            claim = {"metadata": metadata, "spec": {"volumeName": "v-0", "accessModes": [mode]}}
            found.append(("persistentvolumeclaims", claim))
    return found


def harness_with(running: list[tuple[JSON, str]]) -> SchedulerHarness:
    harness = SchedulerHarness([*NODES, CPU])
    harness.controller.handle(NamespacesLabelled({"one": {"team": "yes", "secret": "hunter2"}, "two": {}}))
    for plural, kind in storage.KINDS.items():
        read = tuple((key_of(each), kind.read(each)) for of, each in volumes() if of == plural)
        harness.controller.handle(StorageListed(plural, read))
    for number, (template, on) in enumerate(running):
        harness.controller.handle(pod_event(pods.trim(made(f"r{number}", template).on(on).json())))
    return harness


def attracting_nobody(template: JSON) -> JSON:
    """
    The template without required affinity. Among equal nodes, the allocator prefers those where a running pod requires
    such pods next to it, but a snapshot leaves preferences out.
    """
    spec = template["spec"]
    affinity = {kind: terms for kind, terms in spec.get("affinity", {}).items() if kind != "podAffinity"}
    return {**template, "spec": {**spec, "affinity": affinity}}


@given(
    running=st.lists(
        st.tuples(templates().map(attracting_nobody), st.sampled_from((*ZONES, "cpu"))),
        max_size=4,
    ),
    waiting=st.lists(templates(), min_size=1, max_size=6),
)
@settings(max_examples=examples(25), deadline=None)
def test_the_replay_gives_the_controllers_own_decisions(running: list[tuple[JSON, str]], waiting: list[JSON]) -> None:
    harness = harness_with(running)
    for number, template in enumerate(waiting):
        builder = made(f"p{number}", template).asks("gpufraction.io/gpu-memory", "6Gi")
        harness.controller.handle(pod_event(pods.trim(admitted(builder, gated=True))))
    text = json.dumps(debug.to_json(harness.controller.view()))
    view = debug.from_json(json.loads(text))
    assert view == harness.controller.view()
    bindings, news = harness.controller.schedule_pending()
    outcomes = list(debug.one_cycle(view))
    placed = [(o.pod.key, o.decision.node) for o in outcomes if isinstance(o.decision, Placement)]
    assert placed == [(c.pod.key, c.allocation.node) for c in bindings]
    unplaced = [(o.pod.key, o.code, o.reason) for o in outcomes if not isinstance(o.decision, Placement)]
    assert unplaced == [(t.key, t.code, t.reason) for t in news]
    assert "hunter2" not in text
    assert "strange" not in text, "a claim that no pod has"


@given(templates(), st.lists(st.tuples(templates(), st.sampled_from((*ZONES, "cpu"))), max_size=6))
@settings(max_examples=examples(25), deadline=None)
def test_what_is_trimmed_refuses_as_the_whole_does(template: JSON, running: list[tuple[JSON, str]]) -> None:
    seen = harness_with(running).controller.frozen()[0].neighbours
    rules = rules_of(template)
    fewer, (same,) = trimming.trimmed(seen, [rules])
    nodes = [each.state() for each in NODES]
    assert Neighbourhood(fewer).refused(same, PodNeeds(), nodes) == Neighbourhood(seen).refused(
        rules, PodNeeds(), nodes
    )


def rules_of(template: JSON) -> PodRules:
    return read_rules(pods.trim(made("p", template).json()))


def test_nothing_of_other_pods_is_kept_where_nobody_has_rules() -> None:
    plain = rules_of({"app": "x", "namespace": "one", "spec": {}})
    seen = NeighbourSnapshot((), (PodsOfKind(plain.placed(), (("a", 1),)),), {"one": {}})
    assert trimming.trimmed(seen, [plain, plain]) == (NeighbourSnapshot(), (PodRules(), PodRules()))


def test_the_replay_knows_what_a_profile_asks_of_nodes() -> None:
    harness = harness_with([({"app": "x", "namespace": "one", "spec": {}}, "a")])
    for plural in spreading.KINDS:
        of_x = LabelSelector((("app", "In", ("x",)),))
        harness.controller.handle(StorageListed(plural, ((("one", "s"), of_x),) if plural == "services" else ()))
    even = SpreadConstraint(ZONE, LabelSelector(absent=True), 1)
    outside = ((Requirement(HOST, "NotIn", ("b",)),),)
    harness.controller.handle(ProfilesDeclared({DEFAULT_SCHEDULER: Profile(added_affinity=outside, spread=(even,))}))
    for number in range(3):
        builder = made(f"p{number}", {"app": "x", "namespace": "one", "spec": {}}).asks(names.GPU_MEMORY, "1Gi")
        harness.controller.handle(pod_event(pods.trim(admitted(builder, gated=True))))
    view = debug.from_json(json.loads(json.dumps(debug.to_json(harness.controller.view()))))
    bindings, _ = harness.controller.schedule_pending()
    replayed = [o.decision.node for o in debug.one_cycle(view) if isinstance(o.decision, Placement)]
    assert replayed == [binding.allocation.node for binding in bindings]
    assert "b" not in replayed


def test_a_snapshot_of_a_program_without_these_filters_is_read() -> None:
    harness = harness_with([])
    builder = made("p", {"app": "x", "namespace": "one", "spec": {}}).asks("gpufraction.io/gpu-memory", "6Gi")
    harness.controller.handle(pod_event(pods.trim(admitted(builder, gated=True))))
    document = debug.to_json(harness.controller.view())
    document.pop("neighbours", None)
    for each in document["queue"]:
        each.pop("rules", None)
    assert [outcome.code for outcome in debug.one_cycle(debug.from_json(document))] == ["Placed"]
