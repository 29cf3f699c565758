"""The index of pods by kind: for any history it counts the pods that are on nodes, and no others."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from allocator.cache.neighbours import Neighbours
from contract.model import NodeState
from contract.nodes.attributes import NodeFacts
from contract.reasons.nodes import Reason
from contract.scheduling import clusterfilters
from contract.scheduling.clusterfilters.objects import Cluster, PodKind, PodRules, read_rules
from contract.scheduling.needs import PodNeeds

HOST = "kubernetes.io/hostname"
NODES = {
    name: NodeState(name, labels={HOST: name, "zone": zone}) for name, zone in (("a", "1"), ("b", "1"), ("c", "2"))
}


def rules(app: str, *, apart: str = "", beside: str = "", spread: bool = False, namespace: str = "one") -> PodRules:
    """What filters read of a pod with the label `app`."""
    terms = {
        kind: {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": other}}}
            ]
        }
        for kind, other in (("podAntiAffinity", apart), ("podAffinity", beside))
        if other
    }
    even = {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    constraints = [{**even, "labelSelector": {"matchLabels": {"app": app}}}] if spread else []
    return read_rules(
        {
            "metadata": {"namespace": namespace, "labels": {"app": app}},
            "spec": {"affinity": terms, "topologySpreadConstraints": constraints},
        }
    )


PODS = st.builds(
    rules,
    st.sampled_from("xy"),
    apart=st.sampled_from(("", "x")),
    beside=st.sampled_from(("", "y")),
    spread=st.booleans(),
    namespace=st.sampled_from(("one", "two")),
)


class AnyHistory(RuleBasedStateMachine):
    """Pods come, move, change and go; the answer is that of a cluster made of those that are there."""

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

    @rule()
    def freeze(self) -> None:
        seen = {each.kind: dict(each.nodes) for each in self.neighbours.snapshot().pods}
        assert seen == {kind: on for kinds in self._pods().values() for kind, on in kinds.items()}

    @rule(pod=PODS, gone=st.sets(st.sampled_from("12345")))
    def ask_without(self, pod: PodRules, gone: set[str]) -> None:
        stay = {key: place for key, place in self.there.items() if key not in gone}
        found = self.neighbours.refused_without(gone, pod, PodNeeds(), NODES.values())
        assert found == self._plainly(pod, stay)

    def _pods(self, there: Mapping[str, tuple[PodKind, str]] | None = None) -> dict[str, dict[PodKind, dict[str, int]]]:
        pods: dict[str, dict[PodKind, dict[str, int]]] = {}
        for kind, node in (self.there if there is None else there).values():
            on_nodes = pods.setdefault(kind.namespace, {}).setdefault(kind, {})
            on_nodes[node] = on_nodes.get(node, 0) + 1
        return pods

    def _plainly(self, pod: PodRules, there: Mapping[str, tuple[PodKind, str]] | None = None) -> Mapping[str, Reason]:
        pods = self._pods(there)
        repelling = {kind: on for kinds in pods.values() for kind, on in kinds.items() if kind.anti_affinity}
        cluster = Cluster(nodes=NODES, pods=pods, repelling=repelling)
        return clusterfilters.refused(pod, PodNeeds(), cluster, NODES.values())

    @invariant()
    def holds(self) -> None:
        self.neighbours.check_invariants()


TestAnyHistory = AnyHistory.TestCase


def test_a_deployments_replicas_are_one_entry() -> None:
    it = Neighbours()
    for number in range(1000):
        it.put(str(number), rules("x").placed(), f"node-{number % 3}")
    assert [len(each.nodes) for each in it.snapshot().pods] == [3]


def test_nothing_is_asked_where_no_pod_has_rules() -> None:
    it = Neighbours()
    it.put("1", rules("x").placed(), "a")
    assert (it.concerns(rules("x")), it.refused(rules("x"), PodNeeds(), NODES.values())) == (False, {})
