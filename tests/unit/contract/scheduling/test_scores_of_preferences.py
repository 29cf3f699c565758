"""
What a pod prefers, plugin by plugin: figures computed by hand from kube-scheduler's `scoring.go`.

`tests/cluster/differential/test_scheduler_preferences.py` compares them with a real kube-scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from contract.model import NodeState, Taint
from contract.scheduling import preferences
from contract.scheduling.clusterfilters.objects import (
    NO_PREFERENCES,
    Cluster,
    PodKind,
    PodRules,
    PodWishes,
    Profile,
    namespaces_of,
    read_rules,
)
from contract.scheduling.needs import PodNeeds, Requirement, Toleration
from contract.scheduling.preferences import node_affinity, pod_affinity, taints, topology_spread

JSON = dict[str, Any]
HOST, ZONE = "kubernetes.io/hostname", "zone"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
ZONES = {"n0": "a", "n1": "a", "n2": "b"}
NODES = {name: NodeState(name, labels={HOST: name, ZONE: zone}) for name, zone in ZONES.items()}
NEEDS = PodNeeds()


def rules(app: str = "web", namespace: str = "one", **spec: Any) -> PodRules:
    """What is read from a pod with the label `app`."""
    return read_rules({"metadata": {"namespace": namespace, "labels": {"app": app}}, "spec": spec})


def about(app: str, weight: int, key: str = ZONE, **term: Any) -> JSON:
    """A preferred term about pods with the label."""
    return {
        "weight": weight,
        "podAffinityTerm": {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}, **term},
    }


def near(*terms: JSON) -> JSON:
    return {"podAffinity": {PREFERRED: list(terms)}}


def far(*terms: JSON) -> JSON:
    return {"podAntiAffinity": {PREFERRED: list(terms)}}


def cluster(*there: tuple[PodRules, str], terminating: bool = False, **other: Any) -> Cluster:
    """A cluster with these pods on these nodes."""
    pods: dict[str, dict[PodKind, dict[str, int]]] = {}
    wishing: dict[str, dict[PodWishes, dict[str, int]]] = {}
    for pod, node in there:
        kind = pod.placed(terminating=terminating)
        on_nodes = pods.setdefault(kind.namespace, {}).setdefault(kind, {})
        on_nodes[node] = on_nodes.get(node, 0) + 1
        for namespace in namespaces_of(kind.wishes) if kind.wishes else ():
            counts = wishing.setdefault(namespace, {}).setdefault(kind.wishes, {})
            counts[node] = counts.get(node, 0) + 1
    return Cluster(nodes=NODES, pods=pods, wishing=wishing, **other)


def all_of(nodes: Mapping[str, NodeState] = NODES) -> Sequence[NodeState]:
    return list(nodes.values())


# -- affinity between pods ----------------------------------------------------------------------------------------

DB, WEB = rules("db"), rules()
PODS: dict[str, tuple[PodRules, Cluster, list[int] | None]] = {
    "no pod says anything": (rules(), cluster((DB, "n0")), None),
    "nobody is there that is meant": (rules(affinity=near(about("cache", 9))), cluster((DB, "n0")), None),
    "the domain of a pod that is meant": (rules(affinity=near(about("db", 9))), cluster((DB, "n2")), [0, 0, 100]),
    "each pod counts": (
        rules(affinity=near(about("db", 10))),
        cluster((DB, "n2"), (DB, "n2"), (DB, "n0")),
        [0, 0, 100],
    ),
    "weights of several terms": (  # n0 10, n1 0, n2 40
        rules(affinity=near(about("db", 40), about("cache", 10, HOST))),
        cluster((DB, "n2"), (rules("cache"), "n0")),
        [25, 0, 100],
    ),
    "anti-affinity counts against": (rules(affinity=far(about("db", 9))), cluster((DB, "n2")), [100, 100, 0]),
    "all the same": (rules(affinity=near(about("db", 9))), cluster((DB, "n0"), (DB, "n2")), [0, 0, 0]),
    "rounded down": (  # n0 1, n1 0, n2 3: a third is 33
        rules(affinity=near(about("db", 1, HOST))),
        cluster((DB, "n0"), *[(DB, "n2")] * 3),
        [33, 0, 100],
    ),
    "another pod wants it": (
        rules(),
        cluster((rules("db", affinity=near(about("web", 5, HOST))), "n1")),
        [0, 100, 0],
    ),
    "another pod does not want it": (
        rules(),
        cluster((rules("db", affinity=far(about("web", 5, HOST))), "n1")),
        [100, 0, 100],
    ),
    "another pod's required affinity weighs 1": (  # n0 1, n1 0, n2 4
        rules(),
        cluster(
            (
                rules(
                    "db",
                    affinity={
                        "podAffinity": {
                            REQUIRED: [{"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "web"}}}]
                        }
                    },
                ),
                "n0",
            ),
            (rules("db", affinity=near(about("web", 4, HOST))), "n2"),
        ),
        [25, 0, 100],
    ),
    "another namespace's pods are not meant": (
        rules(affinity=near(about("db", 9))),
        cluster((rules("db", "two"), "n2")),
        None,
    ),
    "a namespace that is selected by labels": (
        rules(affinity=near(about("db", 9, namespaceSelector={"matchLabels": {"team": "x"}}))),
        cluster((rules("db", "two"), "n2"), namespaces={"two": {"team": "x"}}),
        [0, 0, 100],
    ),
    "another namespace's pod wants it, by labels of its namespace": (
        rules(),
        cluster(
            (rules("db", "two", affinity=near(about("web", 9, namespaceSelector={}))), "n2"), namespaces={"one": {}}
        ),
        [0, 0, 100],
    ),
    "a label that no node has": (rules(affinity=near(about("db", 9, "rack"))), cluster((DB, "n0")), None),
}


@pytest.mark.parametrize(("pod", "there", "want"), PODS.values(), ids=PODS)
def test_affinity_between_pods(pod: PodRules, there: Cluster, want: list[int] | None) -> None:
    assert pod_affinity.scores(pod, NEEDS, there, all_of()) == want


@pytest.mark.parametrize(("most", "want"), [(1, None), (2, [0, 0, 100])])
def test_no_more_pairs_are_looked_at_than_the_bound(most: int, want: list[int] | None) -> None:
    there = cluster((rules("cache"), "n0"), (DB, "n2"))
    assert pod_affinity.scores(rules(affinity=near(about("db", 9))), NEEDS, there, all_of(), most) == want


@pytest.mark.parametrize(("most", "want"), [(1, None), (2, [0, 0, 100])])
def test_no_more_wishes_of_others_are_looked_at_than_the_bound(most: int, want: list[int] | None) -> None:
    there = cluster(
        (rules("db", affinity=near(about("cache", 9))), "n0"), (rules("db", affinity=near(about("web", 9))), "n2")
    )
    assert pod_affinity.scores(WEB, NEEDS, there, all_of(), most) == want


# -- topology spread ----------------------------------------------------------------------------------------------


def even(key: str = ZONE, skew: int = 1, **more: Any) -> JSON:
    return {
        "topologyKey": key,
        "maxSkew": skew,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": "web"}},
        **more,
    }


def spreading(*constraints: JSON) -> PodRules:
    return rules(topologySpreadConstraints=list(constraints))


SPREAD: dict[str, tuple[PodRules, Cluster, list[int] | None]] = {
    "no constraint": (WEB, cluster((WEB, "n0")), None),
    "one that must hold is for the filter": (
        spreading(even(whenUnsatisfiable="DoNotSchedule")),
        cluster((WEB, "n0")),
        None,
    ),
    "nobody is there": (spreading(even()), cluster(), [100, 100, 100]),
    # Zones 2 and 0: the weight of two zones is ln 4, so 2.77, rounded to 3; 100 * (3 + 0 - 3) / 3.
    "the zone with fewer": (spreading(even()), cluster((WEB, "n0"), (WEB, "n1")), [0, 0, 100]),
    # Zones 3 and 1: 4.16 and 1.39, so 4 and 1; 100 * (4 + 1 - 4) / 4.
    "not the whole scale": (spreading(even()), cluster(*[(WEB, "n0")] * 3, (WEB, "n2")), [25, 25, 100]),
    # Nodes 1, 0, 2 of three: ln 5 is 1.61; 2, 0, 3.
    "each node is a domain": (spreading(even(HOST)), cluster((WEB, "n0"), *[(WEB, "n2")] * 2), [33, 100, 0]),
    # The skew of 3 adds 2 everywhere: 5, 5, 2.
    "a larger skew evens out": (spreading(even(skew=3)), cluster((WEB, "n0"), (WEB, "n1")), [40, 40, 100]),
    # Zones 1 and 0, nodes 1, 0, 0: 1.39 + 1.61 is 3; 1.39 is 1; 0.
    "two constraints": (spreading(even(), even(HOST)), cluster((WEB, "n0")), [0, 66, 100]),
    "terminating pods do not count": (
        spreading(even()),
        cluster((WEB, "n0"), terminating=True),
        [100, 100, 100],
    ),
    "other namespaces' pods do not count": (spreading(even()), cluster((rules("web", "two"), "n0")), [100, 100, 100]),
    "an empty selector counts nobody": (spreading(even(labelSelector={})), cluster((WEB, "n0")), [100, 100, 100]),
}


@pytest.mark.parametrize(("pod", "there", "want"), SPREAD.values(), ids=SPREAD)
def test_topology_spread(pod: PodRules, there: Cluster, want: list[int] | None) -> None:
    assert topology_spread.scores(pod, NEEDS, there, all_of()) == want


def test_a_node_without_the_label_is_the_worst_by_spread() -> None:
    nodes = {**NODES, "n3": NodeState("n3", labels={HOST: "n3"})}
    there = replace(cluster((WEB, "n0")), nodes=nodes)
    assert topology_spread.scores(spreading(even()), NEEDS, there, all_of(nodes)) == [0, 0, 100, 0]


def test_only_nodes_that_the_pod_may_use_count_in_a_zone() -> None:
    only = PodNeeds(node_selector=((HOST, "n1"),))
    there = cluster((WEB, "n0"))
    honoured = topology_spread.scores(spreading(even()), only, there, all_of())
    ignored = topology_spread.scores(spreading(even(nodeAffinityPolicy="Ignore")), only, there, all_of())
    assert (honoured, ignored) == ([100, 100, 100], [0, 0, 100])


# -- nodes --------------------------------------------------------------------------------------------------------


def zone(name: str, weight: int) -> JSON:
    return {"weight": weight, "preference": {"matchExpressions": [{"key": ZONE, "operator": "In", "values": [name]}]}}


ADDED = {"default-scheduler": Profile(added_wishes=((10, (Requirement(HOST, "In", ("n1",)),)),))}
OF_NODES: dict[str, tuple[list[JSON], dict[str, Profile], list[int] | None]] = {
    "no preference": ([], {}, None),
    "the nodes of the term": ([zone("b", 1)], {}, [0, 0, 100]),
    "weights": ([zone("a", 25), zone("b", 50)], {}, [50, 50, 100]),
    "no node is meant": ([zone("c", 5)], {}, [0, 0, 0]),
    "a term without expressions means no node": ([{"weight": 5, "preference": {}}], {}, [0, 0, 0]),
    "what the profile adds": ([], ADDED, [0, 100, 0]),
    "both": ([zone("a", 10)], ADDED, [50, 100, 0]),
}


@pytest.mark.parametrize(("terms", "profiles", "want"), OF_NODES.values(), ids=OF_NODES)
def test_node_affinity(terms: list[JSON], profiles: dict[str, Profile], want: list[int] | None) -> None:
    pod = rules(affinity={"nodeAffinity": {PREFERRED: terms}}) if terms else rules()
    assert node_affinity.scores(pod, NEEDS, Cluster(nodes=NODES, profiles=profiles), all_of()) == want


def test_the_fewer_taints_that_are_not_tolerated_the_better() -> None:
    soft = [Taint(key, "", "PreferNoSchedule") for key in "xy"]
    nodes = [NodeState("n0", taints=tuple(soft)), NodeState("n1", taints=(soft[0],)), NodeState("n2")]
    tolerant = PodNeeds(tolerations=(Toleration("y", "Exists", "", "PreferNoSchedule"),))
    found = [taints.scores(WEB, needs, Cluster(), nodes) for needs in (NEEDS, tolerant)]
    assert found == [[0, 50, 100], [0, 0, 100]]


def test_without_such_taints_there_is_nothing_to_say() -> None:
    hard = NodeState("n0", taints=(Taint("x", "", "NoSchedule"),))
    assert taints.scores(WEB, NEEDS, Cluster(), [hard]) is None


def test_plugins_are_added_up_with_the_weights_of_the_default_profile() -> None:
    pod = rules(affinity={**near(about("db", 9)), "nodeAffinity": {PREFERRED: [zone("a", 1)]}})
    nodes = {**NODES, "n0": replace(NODES["n0"], taints=(Taint("x", "", "PreferNoSchedule"),))}
    assert preferences.total(pod, NEEDS, cluster((DB, "n2")), all_of(nodes)) == [200, 300 + 200, 300 + 200]


# -- how they are read --------------------------------------------------------------------------------------------


def test_a_pod_that_prefers_nothing_shares_one_value() -> None:
    assert rules().prefers is NO_PREFERENCES


@pytest.mark.parametrize(("weight", "want"), [(-5, 0), (0, 0), (100, 100), (1 << 31, 100), (None, 0)])
def test_a_weight_that_the_api_server_would_refuse_is_bounded(weight: int | None, want: int) -> None:
    pod = rules(affinity=near({**about("db", 1), "weight": weight}))
    assert [each for each, _ in pod.prefers.pods] == [want]


def test_what_a_pod_requires_it_wishes_for_once_it_is_placed() -> None:
    terms = [{"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "db"}}}]
    kind = rules(affinity={"podAffinity": {REQUIRED: terms, PREFERRED: [about("db", 7, HOST)]}}).placed()
    assert [weight for weight, _ in kind.wishes] == [1, 7]
