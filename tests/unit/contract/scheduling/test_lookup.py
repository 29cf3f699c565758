"""Filters give the same answers with the selected pods on nodes as with all pods, for every form of a selector."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from contract.model import NodeState
from contract.scheduling import clusterfilters
from contract.scheduling.clusterfilters import lookup
from contract.scheduling.clusterfilters.lookup import Lookup
from contract.scheduling.clusterfilters.objects import (
    Cluster,
    PodKind,
    PodRules,
    StorageObjects,
    VolumeClaim,
    read_rules,
)
from contract.scheduling.needs import PodNeeds

JSON = dict[str, Any]
HOST = "kubernetes.io/hostname"
NODES = {
    name: NodeState(name, labels={HOST: name, "zone": zone}) for name, zone in (("a", "1"), ("b", "1"), ("c", "2"))
}
NAMESPACES = {"one": {"team": "red"}, "two": {"team": "blue"}}
CLAIM = VolumeClaim("one", "data", volume="disk", bound=True, modes=frozenset({"ReadWriteOncePod"}))
STORAGE = StorageObjects(claims={("one", "data"): CLAIM})


def rules(app: str, apart: JSON | None, beside: JSON | None, even: JSON | None, volume: JSON | None, space: str) -> Any:
    """What filters read from a pod with the label `app`."""
    terms = {
        kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        for kind, term in (("podAntiAffinity", apart), ("podAffinity", beside))
        if term is not None
    }
    spec = {
        "affinity": terms,
        "topologySpreadConstraints": [] if even is None else [even],
        "volumes": [] if volume is None else [{"name": "data", **volume}],
    }
    return read_rules({"metadata": {"namespace": space, "labels": {"app": app, "tier": space}}, "spec": spec})


def expression(key: str, operator: str, *values: str) -> JSON:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


SELECTORS: tuple[JSON, ...] = (
    {"matchLabels": {"app": "x"}},
    {"matchLabels": {"app": "y", "tier": "two"}},
    expression("app", "In", "x", "z"),
    expression("app", "NotIn", "x"),
    expression("tier", "Exists"),
    {},
)
"""Every form in which a selector names a label's values, or none."""
TERMS = st.builds(
    lambda selector, more: {"topologyKey": HOST, **selector, **more},
    st.sampled_from([{}, *({"labelSelector": each} for each in SELECTORS)]),
    st.sampled_from([{}, {"namespaces": ["one", "two"]}, {"namespaceSelector": {"matchLabels": {"team": "red"}}}]),
)
CONSTRAINTS = st.sampled_from(SELECTORS).map(
    lambda each: {
        **{"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"},
        "labelSelector": each,
    }
)
VOLUMES = st.sampled_from(
    [None, {"persistentVolumeClaim": {"claimName": "data"}}, {"gcePersistentDisk": {"pdName": "disk"}}]
)
PODS = st.builds(
    rules,
    st.sampled_from("xyz"),
    st.none() | TERMS,
    st.none() | TERMS,
    st.none() | CONSTRAINTS,
    VOLUMES,
    st.sampled_from(("one", "two")),
)
PLACES = st.lists(st.tuples(PODS.map(PodRules.placed), st.sampled_from((*NODES, "gone"))), max_size=6)


def cluster(places: Iterable[tuple[PodKind, str]]) -> Cluster:
    """A cluster with all pods."""
    pods: dict[str, dict[PodKind, dict[str, int]]] = {}
    for kind, node in places:
        on_nodes = pods.setdefault(kind.namespace, {}).setdefault(kind, {})
        on_nodes[node] = on_nodes.get(node, 0) + 1
    repelling = {kind: on for kinds in pods.values() for kind, on in kinds.items() if kind.anti_affinity}
    return Cluster(nodes=NODES, pods=pods, repelling=repelling, namespaces=NAMESPACES, storage=STORAGE)


@given(st.lists(PODS, min_size=1, max_size=3), PLACES, PLACES)
def test_the_answers_are_those_of_all_pods(waiting: list[PodRules], removed: Any, there: Any) -> None:
    whole, short = cluster(there), Lookup()
    for kind in {kind for kind, _ in removed} - {kind for kind, _ in there}:
        short.put(kind, {"a": 1})
        short.narrowed(cluster(removed), waiting[0])  # an index that was made before pods went
        short.drop(kind)
    for kinds in whole.pods.values():
        for kind, on_nodes in kinds.items():
            short.put(kind, on_nodes)
    for pod in waiting:
        seen = short.narrowed(whole, pod)
        want = clusterfilters.refused(pod, PodNeeds(), whole, NODES.values())
        assert clusterfilters.refused(pod, PodNeeds(), seen, NODES.values()) == want


def test_a_pod_is_compared_with_the_pods_that_its_selectors_name() -> None:
    web, short = rules("x", None, None, None, None, "one"), Lookup()
    apart = rules("x", {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "x"}}}, None, None, None, "one")
    places = [(rules(app, None, None, None, None, "one").placed(), "a") for app in "xyz"]
    for kinds in cluster(places).pods.values():
        for kind, on_nodes in kinds.items():
            short.put(kind, on_nodes)
    found = [short.narrowed(cluster(places), pod).pods for pod in (web, apart)]
    assert found == [{}, {"one": {web.placed(): {"a": 1}}}]


def test_anti_affinity_is_compared_with_the_pods_that_it_may_mean() -> None:
    short, named = Lookup(), {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "x"}}}
    kind = rules("quiet", named, None, None, None, "one").placed()
    short.put(kind, {"a": 1})
    waiting = [rules(app, None, None, None, None, space) for app, space in (("x", "one"), ("y", "one"), ("x", "two"))]
    assert [short.excludes(each) for each in waiting] == [True, False, False]


def test_labels_by_which_pods_are_found_are_bounded() -> None:
    short, whole = Lookup(), cluster([])
    for number in range(3 * lookup.MOST_LABELS):
        term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {f"label-{number}": "x"}}}
        short.narrowed(whole, rules("x", term, None, None, None, "one"))
    assert short.labels == tuple(f"label-{number}" for number in range(2 * lookup.MOST_LABELS, 3 * lookup.MOST_LABELS))
