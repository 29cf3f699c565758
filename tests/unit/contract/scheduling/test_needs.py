"""kube-scheduler's rules, which a pod pinned by name bypasses, as tables after the Kubernetes documentation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.encoding.quantity import BadQuantity, milli
from contract.model import Compute, Taint
from contract.scheduling.needs import (
    PodNeeds,
    Requirement,
    Toleration,
    effective_compute,
    needs_of,
    port_conflict,
    resource_names,
    selects,
    untolerated,
)
from contract.scheduling.nodefilters.resources import of_containers
from tests.builders import defaults, node, pod

GIB = 1 << 30

# -- effective requests -------------------------------------------------------------------------------------------


def most_at_any_moment(spec: dict[str, Any]) -> int:
    """
    The slow oracle: simulate the pod's start, list what runs at every moment, and take the moment with the most.

    Init containers start one after another. An ordinary one has ended before the next one starts; a sidecar keeps
    running.
    """
    moments: list[list[int]] = [[]]
    running: list[int] = []
    for container in spec.get("initContainers", []):
        moments.append([*running, container["amount"]])
        if container.get("restartPolicy") == "Always":
            running.append(container["amount"])
    moments.append(running + [container["amount"] for container in spec["containers"]])
    return max(sum(moment) for moment in moments)


INIT = st.fixed_dictionaries(
    {"amount": st.integers(0, 100)}, optional={"restartPolicy": st.sampled_from(["Always", "Never", None])}
)
APP = st.fixed_dictionaries({"amount": st.integers(0, 100)}, optional={"restartPolicy": st.just("Always")})
SPECS = st.fixed_dictionaries(
    {"containers": st.lists(APP, max_size=4)}, optional={"initContainers": st.lists(INIT, max_size=5)}
)


@given(SPECS, st.integers(0, 10))
def test_effective_is_the_most_that_runs_at_any_moment(spec: dict[str, Any], overhead: int) -> None:
    found = of_containers(spec, lambda container, ends: {"x": container["amount"]}).get("x", 0)
    assert found + overhead == most_at_any_moment(spec) + overhead


COMPUTE = {
    "two containers add up": (
        pod("p").container("a").needs(cpu="500m", memory="1Gi").container("b").needs(cpu=1, memory="1Gi"),
        Compute(1500, 2 * GIB, 0, 1),
    ),
    "a limit without a request is the request": (
        pod("p").limited(cpu="2", memory="1Gi", ephemeral_storage="2Gi"),
        Compute(2000, GIB, 2 * GIB, 1),
    ),
    "a larger init container counts instead": (
        pod("p").init("i").needs(cpu=4).container("a").needs(cpu=1, memory="1Gi"),
        Compute(4000, GIB, 0, 1),
    ),
    "a smaller init container counts nothing": (
        pod("p").init("i").needs(cpu="100m").container("a").needs(cpu=1),
        Compute(1000, 0, 0, 1),
    ),
    "an init container runs beside the sidecars before it": (
        pod("p").sidecar("s").needs(cpu=2).init("i").needs(cpu=3).container("a").needs(cpu=1),
        Compute(5000, 0, 0, 1),
    ),
    "and not beside those after it": (
        pod("p").init("i").needs(cpu=3).sidecar("s").needs(cpu=2).container("a").needs(cpu=1),
        Compute(3000, 0, 0, 1),
    ),
    "overhead comes on top": (
        pod("p").needs(cpu=1).spec(overhead={"cpu": "250m", "memory": "120Mi"}),
        Compute(1250, 120 << 20, 0, 1),
    ),
    "what the pod itself requests stands for its containers": (
        pod("p").needs(cpu=1, memory="1Gi", ephemeral_storage="1Gi").spec(resources={"requests": {"cpu": "3"}}),
        Compute(3000, GIB, GIB, 1),
    ),
    "thousandths and bytes round up": (
        pod("p").needs(cpu="1u", memory="1500m"),
        Compute(1, 2, 0, 1),
    ),
    "nothing requested": (pod("p"), Compute(0, 0, 0, 1)),
}


@pytest.mark.parametrize(("builder", "wanted"), COMPUTE.values(), ids=COMPUTE.keys())
def test_effective_compute(builder: Any, wanted: Compute) -> None:
    assert effective_compute(builder.json()["spec"]) == wanted
    assert effective_compute(builder.manifest()["spec"]) == wanted


def test_an_amount_that_is_no_quantity_is_reported() -> None:
    with pytest.raises(BadQuantity, match="'lots' is not a quantity"):
        needs_of(pod("p").needs(cpu="lots").json())


def test_absent_null_and_empty_mean_the_same() -> None:
    empty = PodNeeds()
    assert needs_of({}) == empty
    assert needs_of({"spec": None}) == empty
    nothing: dict[str, Any] = {"containers": None, "initContainers": None, "tolerations": None, "affinity": None}
    assert needs_of({"spec": nothing | {"nodeSelector": None, "overhead": None, "resources": None}}) == empty
    assert needs_of({"spec": {"containers": [{"resources": None, "ports": None}]}}) == empty


def test_every_resource_that_is_named() -> None:
    made = pod("p").init("i").asks("nvidia.com/gpu", 1).container("a").needs(cpu=1).container("b").json()
    assert resource_names(made["spec"]) == {"nvidia.com/gpu", "cpu"}


# -- taints and tolerations ---------------------------------------------------------------------------------------

TAINT = Taint("nvidia.com/gpu", "present", "NoSchedule")
TOLERATED = {
    "the same key, value and effect": (Toleration("nvidia.com/gpu", "Equal", "present", "NoSchedule"), True),
    "no operator means Equal": (Toleration("nvidia.com/gpu", value="present"), True),
    "another value": (Toleration("nvidia.com/gpu", "Equal", "absent"), False),
    "no value where the taint has one": (Toleration("nvidia.com/gpu"), False),
    "Exists for the key": (Toleration("nvidia.com/gpu", "Exists"), True),
    "Exists for another key": (Toleration("amd.com/gpu", "Exists"), False),
    "Exists without a key": (Toleration("", "Exists"), True),
    "Exists without a key for this effect": (Toleration("", "Exists", "", "NoSchedule"), True),
    "Exists without a key for another effect": (Toleration("", "Exists", "", "NoExecute"), False),
    "an empty effect is every effect": (Toleration("nvidia.com/gpu", "Exists", "", ""), True),
    "another effect": (Toleration("nvidia.com/gpu", "Exists", "", "NoExecute"), False),
    "Equal without a key": (Toleration("", "Equal", "present"), False),
    "an operator unknown to us": (Toleration("nvidia.com/gpu", "Gt", "present"), False),
}


@pytest.mark.parametrize(("toleration", "wanted"), TOLERATED.values(), ids=TOLERATED.keys())
def test_tolerations(toleration: Toleration, wanted: bool) -> None:
    assert toleration.tolerates(TAINT) is wanted


def test_a_taint_without_a_value_is_tolerated_by_equal_without_a_value() -> None:
    assert Toleration("dedicated", "Equal", "").tolerates(Taint("dedicated", "", "NoExecute"))


def test_only_effects_that_keep_pods_off_matter() -> None:
    made = node("n1").tainted("a", effect="PreferNoSchedule").tainted("b", effect="NoExecute").tainted("c").state()
    assert untolerated(made, ()) == Taint("b", "", "NoExecute")
    assert untolerated(made, (Toleration("b", "Exists"),)) == Taint("c", "", "NoSchedule")
    assert untolerated(made, iter((Toleration("b", "Exists"), Toleration("c", "Exists")))) is None


# -- selectors and required affinity ------------------------------------------------------------------------------

HAS = node("n1").labelled("pool", "gpu").labelled("rank", "5").labelled("odd", "1_000").state()
REQUIRED = {
    "In": (Requirement("pool", "In", ("cpu", "gpu")), True),
    "In with other values": (Requirement("pool", "In", ("cpu",)), False),
    "In where the label is absent": (Requirement("zone", "In", ("a",)), False),
    "NotIn": (Requirement("pool", "NotIn", ("cpu",)), True),
    "NotIn with the value": (Requirement("pool", "NotIn", ("gpu",)), False),
    "NotIn where the label is absent": (Requirement("zone", "NotIn", ("a",)), True),
    "Exists": (Requirement("pool", "Exists"), True),
    "Exists where it does not": (Requirement("zone", "Exists"), False),
    "DoesNotExist": (Requirement("zone", "DoesNotExist"), True),
    "DoesNotExist where it does": (Requirement("pool", "DoesNotExist"), False),
    "Gt": (Requirement("rank", "Gt", ("4",)), True),
    "Gt the same": (Requirement("rank", "Gt", ("5",)), False),
    "Gt a negative number": (Requirement("rank", "Gt", ("-1",)), True),
    "Lt": (Requirement("rank", "Lt", ("6",)), True),
    "Lt the same": (Requirement("rank", "Lt", ("5",)), False),
    "Lt where the label is absent": (Requirement("zone", "Lt", ("6",)), False),
    "Gt where the label is no number": (Requirement("pool", "Gt", ("0",)), False),
    "Gt where only Python sees a number": (Requirement("odd", "Gt", ("0",)), False),
    "Gt more than 64 bits": (Requirement("rank", "Lt", (str(1 << 63),)), False),
    "Gt a thousand digits": (Requirement("rank", "Lt", ("9" * 1000,)), False),
    "Gt no value": (Requirement("rank", "Gt"), False),
    "Gt two values": (Requirement("rank", "Gt", ("1", "2")), False),
    "the node's name": (Requirement("metadata.name", "In", ("n1",), field=True), True),
    "another node's name": (Requirement("metadata.name", "In", ("n2",), field=True), False),
    "not that node": (Requirement("metadata.name", "NotIn", ("n1",), field=True), False),
    "a field that nodes cannot be selected by": (Requirement("spec.x", "NotIn", ("n1",), field=True), False),
    "a label called like the field": (Requirement("metadata.name", "Exists"), False),
    "an unknown operator": (Requirement("pool", "Like", ("gpu",)), False),
}


@pytest.mark.parametrize(("requirement", "wanted"), REQUIRED.values(), ids=REQUIRED.keys())
def test_requirements(requirement: Requirement, wanted: bool) -> None:
    assert requirement.holds(HAS) is wanted


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


GPU_POOL, ZONE = expression("pool", "In", "gpu"), expression("zone", "Exists")
SELECTED = {
    "no wish": (pod("p"), True),
    "a nodeSelector that fits": (pod("p").selects(pool="gpu"), True),
    "a nodeSelector of which one label is wrong": (pod("p").selects(pool="gpu", rank="6"), False),
    "terms are alternatives": (
        pod("p").affinity({"matchExpressions": [ZONE]}, {"matchExpressions": [GPU_POOL]}),
        True,
    ),
    "all expressions of a term must hold": (pod("p").affinity({"matchExpressions": [GPU_POOL, ZONE]}), False),
    "a term without expressions matches no node": (pod("p").affinity({}), False),
    "a null term list in a term matches no node": (pod("p").affinity({"matchExpressions": None}), False),
    "no terms match no node": (pod("p").affinity(), False),
    "a field beside a label": (
        pod("p").affinity({"matchExpressions": [GPU_POOL], "matchFields": [expression("metadata.name", "In", "n1")]}),
        True,
    ),
    "nodeSelector and affinity must both hold": (
        pod("p").selects(pool="cpu").affinity({"matchExpressions": [GPU_POOL]}),
        False,
    ),
    "a preference keeps nobody off": (
        pod("p").spec(affinity={"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{}]}}),
        True,
    ),
}


@pytest.mark.parametrize(("builder", "wanted"), SELECTED.values(), ids=SELECTED.keys())
def test_selection(builder: Any, wanted: bool) -> None:
    assert selects(needs_of(builder.json()), HAS) is wanted


# -- host ports ---------------------------------------------------------------------------------------------------

TAKEN = node("n1").port_taken(80).port_taken(53, protocol="UDP").port_taken(443, ip="10.0.0.1").state()
PORTS = {
    "a free port": (pod("p").host_port(8080), None),
    "a taken port": (pod("p").host_port(80), ("", "TCP", 80)),
    "taken on all addresses, wanted on one": (pod("p").host_port(80, ip="10.0.0.2"), ("10.0.0.2", "TCP", 80)),
    "taken on one address, wanted on all": (pod("p").host_port(443), ("", "TCP", 443)),
    "0.0.0.0 is all addresses": (pod("p").host_port(443, ip="0.0.0.0"), ("", "TCP", 443)),
    "taken on another address": (pod("p").host_port(443, ip="10.0.0.2"), None),
    "taken by another protocol": (pod("p").host_port(53), None),
    "an init container's port is never open": (pod("p").init("i").host_port(80).container("a"), None),
    "a sidecar's is": (pod("p").sidecar("s").host_port(80).container("a"), ("", "TCP", 80)),
    "a container port on the host's network": (
        pod("p").container("a", ports=[{"containerPort": 80}]).spec(hostNetwork=True),
        ("", "TCP", 80),
    ),
    "a container port on the pod's network": (pod("p").container("a", ports=[{"containerPort": 80}]), None),
}


@pytest.mark.parametrize(("builder", "wanted"), PORTS.values(), ids=PORTS.keys())
def test_host_ports(builder: Any, wanted: tuple[str, str, int] | None) -> None:
    assert port_conflict(needs_of(builder.json()), TAKEN) == wanted


def test_a_pod_with_very_many_ports_is_counted_as_if_it_had_every_one() -> None:
    many = pod("p").container("c", ports=[{"hostPort": at + 1, "hostIP": "10.0.0.1"} for at in range(30_000)])
    found = needs_of(many.json()).host_ports
    assert found == frozenset({("", "*", 0)})
    taken = replace(TAKEN, host_ports=found)
    assert port_conflict(needs_of(pod("q").host_port(40_000).json()), taken) == ("", "TCP", 40_000)
    assert port_conflict(needs_of(pod("q").json()), taken) is None


# -- the whole ----------------------------------------------------------------------------------------------------


def test_everything_that_a_pod_needs() -> None:
    made = (
        pod("p")
        .needs(cpu=1)
        .host_port(80, ip="10.0.0.1")
        .selects(pool="gpu")
        .tolerates("nvidia.com/gpu", effect="NoSchedule")
        .affinity({"matchExpressions": [GPU_POOL], "matchFields": [expression("metadata.name", "In", "n1")]})
        .on("n1")
        .json()
    )
    assert needs_of(made) == PodNeeds(
        compute=Compute(cpu=milli("1"), pods=1),
        node_name="n1",
        node_selector=(("pool", "gpu"),),
        affinity=((Requirement("pool", "In", ("gpu",)), Requirement("metadata.name", "In", ("n1",), field=True)),),
        tolerations=(
            Toleration("nvidia.com/gpu", "Exists", "", "NoSchedule"),
            *(Toleration(t["key"], "Exists", "", "NoExecute") for t in defaults()["tolerations"]),
        ),
        host_ports=frozenset({("10.0.0.1", "TCP", 80)}),
    )
    assert hash(needs_of(made)) == hash(needs_of(made))
