"""The index of pods by kind: for any history it counts exactly the pods that are on nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from allocator.neighbours.pods import Neighbours
from contract.model import NodeState, Taint
from contract.nodes.attributes import NodeFacts
from contract.reasons.nodes import Code, Reason
from contract.scheduling import clusterfilters, preferences
from contract.scheduling.clusterfilters.objects import (
    Cluster,
    PodKind,
    PodRules,
    PodWishes,
    Profile,
    SpreadConstraint,
    namespaces_of,
    read_rules,
)
from contract.scheduling.clusterfilters.selectors import LabelSelector
from contract.scheduling.needs import PodNeeds, Requirement

HOST = "kubernetes.io/hostname"
NODES = {
    name: NodeState(name, labels={HOST: name, "zone": zone}) for name, zone in (("a", "1"), ("b", "1"), ("c", "2"))
}


def rules(
    app: str,
    *,
    apart: str = "",
    beside: str = "",
    wants: str = "",
    spread: bool = False,
    namespace: str = "one",
    labels: Mapping[str, str] | None = None,
) -> PodRules:
    """What filters and preferences read from a pod with the label `app`."""
    terms: dict[str, dict[str, Any]] = {
        kind: {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": other}}}
            ]
        }
        for kind, other in (("podAntiAffinity", apart), ("podAffinity", beside))
        if other
    }
    if wants:
        term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": wants}}}
        preferred = [{"weight": 5, "podAffinityTerm": term}]
        terms.setdefault("podAffinity", {})["preferredDuringSchedulingIgnoredDuringExecution"] = preferred
    even = {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    constraints = [{**even, "labelSelector": {"matchLabels": {"app": app}}}] if spread else []
    return read_rules(
        {
            "metadata": {"namespace": namespace, "labels": {"app": app, **(labels or {})}},
            "spec": {"affinity": terms, "topologySpreadConstraints": constraints},
        }
    )


PODS = st.builds(
    rules,
    st.sampled_from("xy"),
    apart=st.sampled_from(("", "x")),
    beside=st.sampled_from(("", "y")),
    wants=st.sampled_from(("", "x", "y")),
    spread=st.booleans(),
    namespace=st.sampled_from(("one", "two")),
)


class AnyHistory(RuleBasedStateMachine):
    """Pods arrive, move, change and leave. The answer equals that of a cluster built from the remaining pods."""

    def __init__(self) -> None:
        super().__init__()
        self.neighbours = Neighbours()
        self.there: dict[str, tuple[PodKind, str]] = {}
        for name, node in NODES.items():
            self.neighbours.put_node(NodeFacts(name, labels=node.labels))

    @rule(key=st.sampled_from("12345"), pod=PODS, node=st.sampled_from((*NODES, "gone")), terminating=st.booleans())
    def put(self, key: str, pod: PodRules, node: str, terminating: bool) -> None:
        kind = pod.placed(terminating=terminating)
        self.neighbours.put(key, kind, node)
        self.there[key] = kind, node

    @rule(key=st.sampled_from("12345"))
    def drop(self, key: str) -> None:
        self.neighbours.drop(key)
        self.there.pop(key, None)

    @rule(pod=PODS)
    def ask(self, pod: PodRules) -> None:
        assert self.neighbours.refused(pod, PodNeeds(), NODES.values()) == self._plainly(pod)
        nodes, prefer = list(NODES.values()), self.neighbours.preference(pod, PodNeeds())
        want = preferences.total(pod, PodNeeds(), self._cluster(self._pods()), nodes)
        assert (prefer(nodes) if prefer is not None else [0] * len(nodes)) == want

    @rule()
    def freeze(self) -> None:
        seen = {each.kind: dict(each.nodes) for each in self.neighbours.snapshot().pods}
        assert seen == {kind: on for kinds in self._pods().values() for kind, on in kinds.items()}

    @rule(pod=PODS, removed=st.sets(st.sampled_from("12345")))
    def ask_without(self, pod: PodRules, removed: set[str]) -> None:
        stay = {key: place for key, place in self.there.items() if key not in removed}
        found = self.neighbours.refused_without(removed, pod, PodNeeds(), NODES.values())
        assert found == self._plainly(pod, stay)

    def _pods(self, there: Mapping[str, tuple[PodKind, str]] | None = None) -> dict[str, dict[PodKind, dict[str, int]]]:
        pods: dict[str, dict[PodKind, dict[str, int]]] = {}
        for kind, node in (self.there if there is None else there).values():
            on_nodes = pods.setdefault(kind.namespace, {}).setdefault(kind, {})
            on_nodes[node] = on_nodes.get(node, 0) + 1
        return pods

    def _plainly(self, pod: PodRules, there: Mapping[str, tuple[PodKind, str]] | None = None) -> Mapping[str, Reason]:
        return clusterfilters.refused(pod, PodNeeds(), self._cluster(self._pods(there)), NODES.values())

    def _cluster(self, pods: Mapping[str, Mapping[PodKind, Mapping[str, int]]]) -> Cluster:
        placed = [(kind, on) for kinds in pods.values() for kind, on in kinds.items()]
        wishing: dict[str, dict[PodWishes, dict[str, int]]] = {}
        for kind, on_nodes in placed:
            for namespace in namespaces_of(kind.wishes):
                counts = wishing.setdefault(namespace, {}).setdefault(kind.wishes, {})
                for node, number in on_nodes.items():
                    counts[node] = counts.get(node, 0) + number
        repelling = {kind: on for kind, on in placed if kind.anti_affinity}
        return Cluster(nodes=NODES, pods=pods, repelling=repelling, wishing=wishing)

    @invariant()
    def holds(self) -> None:
        self.neighbours.check_invariants()


TestAnyHistory = AnyHistory.TestCase


def test_a_deployments_replicas_are_one_entry() -> None:
    it = Neighbours()
    for number in range(1000):
        it.put(str(number), rules("x").placed(), f"node-{number % 3}")
    assert [len(each.nodes) for each in it.snapshot().pods] == [3]


def test_nothing_is_evaluated_where_no_pod_has_rules() -> None:
    it = Neighbours()
    it.put("1", rules("x").placed(), "a")
    assert (it.concerns(rules("x")), it.refused(rules("x"), PodNeeds(), NODES.values())) == (False, {})


def test_a_pod_without_preferences_where_nobody_has_any_asks_nothing() -> None:
    it = Neighbours()
    it.put_node(NodeFacts("a"))
    it.put("1", rules("x").placed(), "a")
    assert it.preference(rules("x"), PodNeeds()) is None


def test_preferences_of_another_namespaces_pods_require_nothing() -> None:
    it = Neighbours()
    it.put("1", rules("x", wants="y", namespace="two").placed(), "a")
    assert (it.preference(rules("y"), PodNeeds()), it.preference(rules("y", namespace="two"), PodNeeds()) is None) == (
        None,
        False,
    )


def test_a_soft_taint_anywhere_is_a_preference_of_every_pod() -> None:
    it = Neighbours()
    it.put_node(NodeFacts("a", taints=(Taint("x", "", "PreferNoSchedule"),)))
    with_taint = it.preference(rules("x"), PodNeeds())
    it.put_node(NodeFacts("a"))
    assert (with_taint is None, it.preference(rules("x"), PodNeeds())) == (False, None)


def test_pods_whose_labels_differ_share_what_they_wish() -> None:
    it = Neighbours()
    for number in range(5):
        pod = rules("x", wants="y", labels={"index": str(number)})
        it.put(str(number), pod.placed(), "a")
    kinds = [each.kind for each in it.snapshot().pods]
    assert (len(kinds), len({id(kind.wishes) for kind in kinds})) == (5, 1)
    for number in range(5):
        it.drop(str(number))
    it.check_invariants()
    assert it.preference(rules("y"), PodNeeds()) is None


# -- the administrator's settings of a profile --------------------------------------------------------------------

ABSENT = LabelSelector(absent=True)
HARD = {"default-scheduler": Profile(spread=(SpreadConstraint("zone", ABSENT, 1),))}
SOFT = {"default-scheduler": Profile(preferred_spread=(SpreadConstraint("zone", ABSENT, 1),))}
OF_X = LabelSelector((("app", "In", ("x",)),))


def spreading(profiles: Mapping[str, Profile], *, read: bool = True) -> Neighbours:
    """Two pods `x` in zone 1, which a Service selects."""
    it = Neighbours()
    for name, node in NODES.items():
        it.put_node(NodeFacts(name, labels=node.labels))
    it.put("1", rules("x").placed(), "a")
    it.put("2", rules("x").placed(), "b")
    it.declare(profiles)
    for plural in ("services", "replicationcontrollers", "replicasets", "statefulsets") if read else ():
        it.spreading.listed(plural, [(("one", "s"), OF_X)] if plural == "services" else [])
    return it


def test_default_constraints_hold_for_pods_without_their_own() -> None:
    it, skew = spreading(HARD), Reason(Code.TOPOLOGY_SPREAD)
    assert it.refused(rules("x"), PodNeeds(), NODES.values()) == {"a": skew, "b": skew}


def test_a_pod_that_nothing_selects_has_no_default_constraints() -> None:
    assert spreading(HARD).refused(rules("y"), PodNeeds(), NODES.values()) == {}


def test_a_pod_with_a_constraint_of_its_own_has_no_default_constraints() -> None:
    own = rules("x")
    soft = replace(own.prefers, spread=(SpreadConstraint("zone", OF_X, 9),))
    assert spreading(HARD).refused(replace(own, prefers=soft), PodNeeds(), NODES.values()) == {}


def test_pods_of_another_scheduler_have_no_default_constraints() -> None:
    other = replace(rules("x"), profile="other")
    assert spreading(HARD).refused(other, PodNeeds(), NODES.values()) == {}


def test_pods_wait_until_it_is_known_what_default_constraints_count() -> None:
    it = spreading(HARD, read=False)
    unknown = dict.fromkeys(NODES, Reason(Code.SPREAD_UNKNOWN))
    assert (it.spreading.wanted, it.refused(rules("y"), PodNeeds(), NODES.values())) == (True, unknown)


def test_preferred_default_constraints_decide_between_equals() -> None:
    it = spreading(SOFT)
    prefer = it.preference(rules("x"), PodNeeds())
    assert prefer is not None
    assert (it.refused(rules("x"), PodNeeds(), NODES.values()), prefer(list(NODES.values()))) == ({}, [0, 0, 200])


def test_the_affinity_that_a_profile_adds_is_required_of_every_pod() -> None:
    it = spreading({"default-scheduler": Profile(added_affinity=((Requirement("zone", "In", ("2",)),),))})
    assert it.refused(rules("x"), PodNeeds(), NODES.values()) == dict.fromkeys("ab", Reason(Code.ADDED_AFFINITY))
