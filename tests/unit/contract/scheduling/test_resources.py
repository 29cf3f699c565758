"""What a pod takes from its node, and whether a node has it: NodeResourcesFit, sentence by sentence."""

from __future__ import annotations

from typing import Any

import pytest

from allocator.cache.cache import Cache
from allocator.cache.podinfo import read_pod
from allocator.engine.engine import Engine
from contract import bounds, pods
from contract.dialects import DIALECTS
from contract.model import Compute, Inventory, NodeState, Scalars, Taint
from contract.nodes import attributes
from contract.reasons.nodes import Code, Reason, of_one
from contract.scheduling import gates
from contract.scheduling.filters import compute_reason, lasting_reason
from contract.scheduling.gates import NEWEST, Gate, Gates
from contract.scheduling.needs import PodNeeds, needs_of
from contract.scheduling.nodefilters.resources import effective_compute, larger, minus, plus, resized, takes_less
from tests.builders import PodBuilder, node, pod

GIB, MIB = 1 << 30, 1 << 20
NIC, HUGE = "example.com/nic", "hugepages-2Mi"


def spec(containers: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A pod's spec with a container that has these requests."""
    return {"containers": [{"name": "main", "resources": {"requests": containers}}], **more}


OTHERS: dict[str, tuple[PodBuilder, Scalars]] = {
    "an extended resource and huge pages": (pod("p").asks(NIC, 2).asks(HUGE, "4Mi"), ((NIC, 2), (HUGE, 4 * MIB))),
    "containers add up": (pod("p").container("a").asks(NIC, 1).container("b").asks(NIC, 2), ((NIC, 3),)),
    "a larger init container counts instead": (
        pod("p").init("i").asks(NIC, 4).container("a").asks(NIC, 1),
        ((NIC, 4),),
    ),
    "an init container runs beside the sidecars before it": (
        pod("p").sidecar("s").asks(NIC, 1).init("i").asks(NIC, 4).container("a"),
        ((NIC, 5),),
    ),
    "nothing of a resource is no request of it": (pod("p").asks(NIC, 0), ()),
    "ours are counted by the GPUs that they stand for": (pod("p").asks("gpufraction.io/gpu-memory", "1Gi"), ()),
    "a name without a domain is no resource of nodes": (pod("p").asks("nonsense", 1), ()),
}


@pytest.mark.parametrize(("builder", "want"), OTHERS.values(), ids=OTHERS.keys())
def test_other_resources_of_a_pod(builder: PodBuilder, want: Scalars) -> None:
    assert effective_compute(builder.json()["spec"]).scalars == want


OF_POD: dict[str, tuple[dict[str, Any], dict[str, Any], Compute]] = {
    "its request stands for its containers'": ({"cpu": "1"}, {"requests": {"cpu": "3"}}, Compute(3000, 0, 0, 1)),
    "a limit alone is the request where no container asks": ({}, {"limits": {"cpu": "2"}}, Compute(2000, 0, 0, 1)),
    "and not where a container asks": ({"cpu": "1"}, {"limits": {"cpu": "2"}}, Compute(1000, 0, 0, 1)),
    "nor where it asks for none": ({"cpu": "0"}, {"limits": {"cpu": "2"}}, Compute(0, 0, 0, 1)),
    "huge pages": ({}, {"limits": {HUGE: "8Mi"}}, Compute(0, 0, 0, 1, ((HUGE, 8 * MIB),))),
    "a limit of huge pages goes before containers": (
        {HUGE: "4Mi"},
        {"limits": {HUGE: "8Mi"}},
        Compute(0, 0, 0, 1, ((HUGE, 8 * MIB),)),
    ),
    "a pod cannot ask for other resources": ({NIC: "1"}, {"requests": {NIC: "5"}}, Compute(0, 0, 0, 1, ((NIC, 1),))),
}


@pytest.mark.parametrize(("containers", "own", "want"), OF_POD.values(), ids=OF_POD.keys())
def test_resources_of_the_pod_itself(containers: dict[str, Any], own: dict[str, Any], want: Compute) -> None:
    assert effective_compute(spec(containers, resources=own)) == want


def test_resources_of_the_pod_itself_count_from_1_34() -> None:
    made = spec({"cpu": "1"}, resources={"requests": {"cpu": "3"}}, overhead={"cpu": "250m"})
    assert effective_compute(made, gates.of_version((1, 33))).cpu == 1250
    assert effective_compute(made, gates.of_version((1, 34))).cpu == 3250


def status(runs: dict[str, str], granted: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    """What a node reports about the container."""
    given = {} if granted is None else {"allocatedResources": granted}
    return {"containerStatuses": [{"name": "main", "resources": {"requests": runs}, **given}], **more}


INFEASIBLE = {"conditions": [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]}
DEFERRED = {"conditions": [{"type": "PodResizePending", "status": "True", "reason": "Deferred"}]}
RESIZES: dict[str, tuple[dict[str, Any], dict[str, Any], int | None]] = {
    "it runs with what it asks for": (spec({"cpu": "1"}), status({"cpu": "1"}, {"cpu": "1"}), None),
    "it shrinks, and still runs with more": (spec({"cpu": "1"}), status({"cpu": "3"}, {"cpu": "1"}), 3000),
    "it shrinks, and was granted more": (spec({"cpu": "1"}), status({"cpu": "1"}, {"cpu": "2"}), 2000),
    "it grows, and runs with less": (spec({"cpu": "4"}), status({"cpu": "1"}, {"cpu": "1"}), 4000),
    "it wants to grow beyond its node": (spec({"cpu": "4"}), status({"cpu": "1"}, {"cpu": "1"}, **INFEASIBLE), 1000),
    "its growth is put off": (spec({"cpu": "4"}), status({"cpu": "1"}, {"cpu": "1"}, **DEFERRED), 4000),
    "overhead is added": (
        spec({"cpu": "1"}, overhead={"cpu": "100m"}),
        status({"cpu": "3"}, {"cpu": "1"}),
        3100,
    ),
    "the pod itself is resized": (
        spec({}, resources={"requests": {"cpu": "1"}}),
        {"resources": {"requests": {"cpu": "2"}}, "allocatedResources": {"cpu": "3"}},
        3000,
    ),
}


@pytest.mark.parametrize(("made", "override", "want"), RESIZES.values(), ids=RESIZES.keys())
def test_a_pod_that_is_resized_in_place(made: dict[str, Any], override: dict[str, Any], want: int | None) -> None:
    found = resized(pods.trim({"metadata": {"name": "p"}, "spec": made, "status": override}))
    assert (found.cpu if found is not None else None) == want


def test_sidecars_are_resized_and_other_init_containers_are_not() -> None:
    made = {
        "initContainers": [
            {"name": "side", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}},
            {"name": "init", "resources": {"requests": {"cpu": "1"}}},
        ],
        "containers": [{"name": "main"}],
    }
    override = {
        "initContainerStatuses": [
            {"name": name, "resources": {"requests": {"cpu": "2"}}, "allocatedResources": {"cpu": "2"}}
            for name in ("side", "init")
        ]
    }
    found = resized(pods.trim({"metadata": {}, "spec": made, "status": override}))
    assert found == Compute(3000, 0, 0, 1), "2 of the sidecar, and 1 of the init container beside it"


def test_only_states_that_differ_are_kept_of_a_pod() -> None:
    listed = [
        {"name": name, "image": "x", "resources": {"requests": runs, "limits": {}}, "allocatedResources": {"cpu": "1"}}
        for name, runs in (("main", {"cpu": "1"}), ("other", {"cpu": "2"}))
    ]
    asks = {"resources": {"requests": {"cpu": "1"}}}
    made = {"containers": [{"name": "main", **asks}, {"name": "other", **asks}]}
    small = pods.trim({"metadata": {}, "spec": made, "status": {"containerStatuses": listed}})
    assert small["status"] == {
        "containerStatuses": [
            {"name": "other", "resources": {"requests": {"cpu": "2"}}, "allocatedResources": {"cpu": "1"}}
        ]
    }


@pytest.mark.parametrize(("on", "want"), [(NEWEST, 3000), (gates.of_version((1, 32)), 1000)], ids=["1.33", "before"])
def test_a_shrinking_pod_keeps_its_size_on_its_node(on: Gates, want: int) -> None:
    cache = Cache(engine=Engine(), gates=on)
    cache.put_node(attributes.NodeFacts("n"))
    cache.put_inventory(Inventory("n"))
    shrinking = {
        "metadata": {"name": "p", "namespace": "d", "uid": "u"},
        "spec": spec({"cpu": "1"}, nodeName="n"),
        "status": status({"cpu": "3"}, {"cpu": "1"}),
    }
    cache.put_pod(read_pod(pods.trim(shrinking)), 0.0)
    assert cache.snapshot["n"].requested.cpu == want
    cache.check_invariants()


def state(has: Scalars | None, taken: Scalars = (), pods_taken: int = 0) -> NodeState:
    return NodeState("n", allocatable=Compute(0, 0, 0, 10, has), requested=Compute(9, 9, 9, pods_taken, taken))


FITS: dict[str, tuple[NodeState, Scalars, Reason | None]] = {
    "enough is left": (state(((NIC, 4),), ((NIC, 2),)), ((NIC, 2),), None),
    "too little is left": (state(((NIC, 4),), ((NIC, 3),)), ((NIC, 2),), Reason(Code.RESOURCE, 2, 1, NIC)),
    "a node that does not list it has none": (state(()), ((NIC, 1),), Reason(Code.RESOURCE, 1, 0, NIC)),
    "overcommitted, and none is asked for": (state(((NIC, 1),), ((NIC, 3),)), (), None),
    "it is unknown what the node has": (state(None), ((NIC, 1),), None),
    "pod slots come first": (state((), (), 10), ((NIC, 1),), Reason(Code.PODS, 1, 0)),
}


@pytest.mark.parametrize(("at", "wanted", "want"), FITS.values(), ids=FITS.keys())
def test_whether_a_node_has_other_resources(at: NodeState, wanted: Scalars, want: Reason | None) -> None:
    assert compute_reason(at, PodNeeds(Compute(0, 0, 0, 1, wanted))) == want


def test_what_a_node_has_and_declares() -> None:
    found = attributes.facts(
        {
            "metadata": {"name": "n"},
            "status": {
                "allocatable": {"pods": "5", NIC: "2", HUGE: "4Mi", "gpufraction.io/gpu-memory": "1Gi", "bad/x": "?"},
                "declaredFeatures": ["RestartAllContainersOnContainerExits", "Other"],
            },
        }
    )
    assert found.allocatable == Compute(pods=5, scalars=(("bad/x", 0), (NIC, 2), (HUGE, 4 * MIB)))
    assert found.features == {"RestartAllContainersOnContainerExits"}


def test_amounts_by_name() -> None:
    one, other = Compute(scalars=((NIC, 2),)), Compute(scalars=((NIC, 1), (HUGE, 5)))
    assert plus(one, other).scalars == ((NIC, 3), (HUGE, 5))
    assert minus(plus(one, other), other).scalars == ((NIC, 2), (HUGE, 0))
    assert larger(one.scalars, other.scalars) == ((NIC, 2), (HUGE, 5))
    assert (takes_less(other.scalars, one.scalars), takes_less(one.scalars, one.scalars)) == (True, False)


def test_the_resources_by_which_a_pod_asks_for_its_share_are_no_needs() -> None:
    found = needs_of(pod("p").asks("aliyun.com/gpu-mem", 5).asks(NIC, 1).json())
    assert DIALECTS.others_only(found).compute.scalars == ((NIC, 1),)


def test_a_pod_with_a_share_has_a_bounded_number_of_other_resources() -> None:
    many = {f"example.com/r{number}": "1" for number in range(65)}
    assert bounds.problem({"spec": spec(dict(list(many.items())[:64]))}) is None
    refusal = bounds.problem({"spec": spec(many)})
    assert "found 65 extended resources" in str(refusal)


# -- the table of gates -------------------------------------------------------------------------------------------

VERSIONS = {
    (1, 30): set[Gate](),
    (1, 31): {Gate.MATCH_LABEL_KEYS_IN_POD_AFFINITY},
    (1, 33): {Gate.MATCH_LABEL_KEYS_IN_POD_AFFINITY, Gate.IN_PLACE_RESIZE, Gate.DEVICE_STATUS},
    (1, 36): set(Gate) - {Gate.TOLERATION_COMPARISON},
    (1, 40): set(Gate) - {Gate.TOLERATION_COMPARISON},
}


@pytest.mark.parametrize(("version", "want"), VERSIONS.items(), ids=map("{0[0]}.{0[1]}".format, VERSIONS))
def test_the_gates_of_a_version(version: gates.Version, want: set[Gate]) -> None:
    assert gates.of_version(version) == want


def test_the_administrator_overrides_gates() -> None:
    given = gates.read_overrides(["NodeDeclaredFeatures=false", " TaintTolerationComparisonOperators=true"])
    on = gates.of_version((1, 36), given)
    assert on == NEWEST - {Gate.DECLARED_FEATURES} | {Gate.TOLERATION_COMPARISON}


@pytest.mark.parametrize("item", ["NodeDeclaredFeatures", "NodeDeclaredFeatures=yes", "Unknown=true", ""])
def test_an_unreadable_override_is_reported_with_what_would_work(item: str) -> None:
    with pytest.raises(ValueError, match=r"is not Name=true or .* NodeDeclaredFeatures"):
        gates.read_overrides([item])


# -- declared features, tolerations and ports ---------------------------------------------------------------------

RESTART = {"restartPolicyRules": [{"action": "RestartAllContainers", "exitCodes": {}}]}
FEATURES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "nothing": (spec({}), set()),
    "a rule restarts all containers": (
        {"containers": [{"name": "a", **RESTART}]},
        {"RestartAllContainersOnContainerExits"},
    ),
    "an init container's rule does": (
        {"initContainers": [{"name": "a", **RESTART}], "containers": []},
        {"RestartAllContainersOnContainerExits"},
    ),
    "a rule restarts its own container": (
        {"containers": [{"name": "a", "restartPolicyRules": [{"action": "Restart"}]}]},
        set(),
    ),
    "users of its own on the host's network": (
        spec({}, hostNetwork=True, hostUsers=False),
        {"UserNamespacesHostNetworkSupport"},
    ),
    "the host's users on the host's network": (spec({}, hostNetwork=True, hostUsers=True), set()),
    "users of its own": (spec({}, hostUsers=False), set()),
}


@pytest.mark.parametrize(("made", "want"), FEATURES.values(), ids=FEATURES.keys())
def test_the_features_that_a_pod_needs(made: dict[str, Any], want: set[str]) -> None:
    assert needs_of(pods.trim({"metadata": {}, "spec": made})).features == want


@pytest.mark.parametrize(
    ("on", "want"),
    [(NEWEST, "without a node feature"), (gates.of_version((1, 35)), "")],
    ids=["1.36", "before"],
)
def test_a_node_that_does_not_declare_a_feature(on: Gates, want: str) -> None:
    cache = Cache(engine=Engine(), gates=on)
    cache.put_node(attributes.NodeFacts("n", ready=True))
    cache.put_inventory(node("n").gpus(1).inventory())
    found = lasting_reason(cache.snapshot["n"], PodNeeds(features=frozenset({"RestartAllContainersOnContainerExits"})))
    assert (of_one(found) if found else "")[: len("without a node feature")] == want


COMPARED = {"Gt": {"9": True, "5": False, "x": False}, "Lt": {"9": False, "5": False, "3": True}}


@pytest.mark.parametrize("operator", COMPARED)
def test_tolerations_that_compare_numbers(operator: str) -> None:
    made = {"spec": {"tolerations": [{"key": "k", "operator": operator, "value": "5", "effect": "NoSchedule"}]}}
    assert needs_of(made, gates=NEWEST).tolerations == (), "off by default"
    (toleration,) = needs_of(made).tolerations  # a stored pod was admitted with it
    assert {v: toleration.tolerates(Taint("k", v, "NoSchedule")) for v in COMPARED[operator]} == COMPARED[operator]
