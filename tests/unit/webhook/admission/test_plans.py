"""What admission decides to do about a pod, before it asks the allocator."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from contract import names, pods
from contract.model import FractionRequest, PodRequest
from contract.options import Options
from contract.scheduling import node_pin
from tests.unit.webhook.builders import GIB, admitted_pod, allocation, container, pod, request_text
from webhook.admission.admit import Allocate, Deny, KeepGated, Pass, plan

JSON = dict[str, Any]

EIGHT = PodRequest("native", (FractionRequest("main", memory=8 * GIB),))
OLD = allocation("old", node="gpu-9")


def pinned_to(node: str, made: JSON) -> JSON:
    made["spec"]["affinity"] = node_pin.pinned(made["spec"], node)
    return made


def with_owner(kind: str, made: JSON) -> JSON:
    made["metadata"]["ownerReferences"] = [{"apiVersion": "apps/v1", "kind": kind, "name": "x", "uid": "u"}]
    return made


def annotated(made: JSON, **annotations: str) -> JSON:
    made["metadata"].setdefault("annotations", {}).update(annotations)
    return made


UNTOUCHED = {
    "a pod that asks for nothing": pod(container(cpu="2")),
    "a pod without containers": {"metadata": {}, "spec": {}},
    "a pod that only names a GPU count of 0": pod(container(nvidia_com__gpu="0")),
    "a pod behind another's gate": pod(container(), schedulingGates=[{"name": "example.com/quota"}]),
}


@pytest.mark.parametrize("made", UNTOUCHED.values(), ids=UNTOUCHED.keys())
def test_passes(made: JSON) -> None:
    assert plan(made, Options()) == Pass()


def test_a_mirror_pod_runs_already() -> None:
    made = pod(container(gpufraction_io__gpu_memory="8Gi"), annotations={"kubernetes.io/config.mirror": "1"})
    assert plan(made, Options()) == Pass(beyond_reach=True)


def test_a_first_pass_asks_for_what_the_dialect_says() -> None:
    made = pod(container(aliyun_com__gpu_mem="5"), container("side"), nodeSelector={"pool": "gpu"})
    decided = plan(made, Options())
    assert isinstance(decided, Allocate)
    assert (decided.held, decided.pod) == ("", pods.trim(made))
    assert [(f.container, f.memory) for f in decided.request.containers] == [("main", 5 * GIB)]


def test_the_administrators_unit_is_used() -> None:
    decided = plan(pod(container(aliyun_com__gpu_mem="5000")), Options(aliyun_unit=1 << 20))
    assert isinstance(decided, Allocate)
    assert decided.request.containers[0].memory == 5000 << 20


ADMITTED = {
    "an admitted pod with an allocation: is it live?": (
        admitted_pod(allocated=allocation("alloc-1")),
        Allocate(EIGHT, "alloc-1", pods.trim(admitted_pod(allocated=allocation("alloc-1")))),
    ),
    "the same behind the gate, as in a backup": (
        admitted_pod(allocated=OLD, gated=True),
        Allocate(EIGHT, "old", pods.trim(admitted_pod(allocated=OLD, gated=True))),
    ),
    "an admitted pod that waits goes on waiting": (admitted_pod(gated=True), KeepGated(EIGHT)),
    "an admitted pod with gate and node cannot wait, so it is asked for": (
        admitted_pod(gated=True, nodeName="gpu-1"),
        Allocate(EIGHT, "", pods.trim(admitted_pod(gated=True, nodeName="gpu-1"))),
    ),
    "an admitted pod without gate and allocation is asked for again": (
        admitted_pod(),
        Allocate(EIGHT, "", pods.trim(admitted_pod())),
    ),
    "the pin of an allocation that may be stale is not asked for": (
        pinned_to("gpu-9", admitted_pod(allocated=OLD)),
        Allocate(EIGHT, "old", pods.trim(admitted_pod(allocated=OLD))),
    ),
    "a pin to another node is the tenant's": (
        pinned_to("gpu-5", admitted_pod(allocated=OLD)),
        Allocate(EIGHT, "old", pods.trim(pinned_to("gpu-5", admitted_pod(allocated=OLD)))),
    ),
    "a DaemonSet's pin is its controller's": (
        pinned_to("gpu-9", with_owner("DaemonSet", admitted_pod(allocated=OLD))),
        Allocate(EIGHT, "old", pods.trim(pinned_to("gpu-9", with_owner("DaemonSet", admitted_pod(allocated=OLD))))),
    ),
    "an unreadable allocation is none": (
        annotated(admitted_pod(gated=True), **{str(names.ALLOCATION): "{"}),
        KeepGated(EIGHT),
    ),
}


@pytest.mark.parametrize(("made", "want"), ADMITTED.values(), ids=ADMITTED.keys())
def test_a_pod_that_was_admitted_before(made: JSON, want: Allocate | KeepGated) -> None:
    before = copy.deepcopy(made)
    assert plan(made, Options()) == want
    assert made == before


FORGED = {
    "an annotation that asks for more than the resources say": annotated(
        pod(container(gpufraction_io__gpu_memory="1Gi")),
        **{str(names.REQUEST): request_text(main={"memory": 8 * GIB}), str(names.ALLOCATION): "{}"},
    ),
    "an annotation that is not readable": annotated(
        pod(container(gpufraction_io__gpu_memory="1Gi")), **{str(names.REQUEST): "{"}
    ),
    "an annotation for another container": annotated(
        pod(container(gpufraction_io__gpu_memory="1Gi")), **{str(names.REQUEST): request_text(other={"memory": GIB})}
    ),
}


@pytest.mark.parametrize("made", FORGED.values(), ids=FORGED.keys())
def test_a_request_annotation_that_disagrees_does_not_count(made: JSON) -> None:
    decided = plan(made, Options())
    assert isinstance(decided, Allocate)
    assert decided.held == ""
    assert [(f.container, f.memory) for f in decided.request.containers] == [("main", GIB)]


def test_a_request_annotation_does_not_hide_another_dialects_resource() -> None:
    made = admitted_pod(gated=True)
    made["spec"]["containers"].append(container("second", aliyun_com__gpu_mem="5"))
    decided = plan(made, Options())
    assert isinstance(decided, Deny)
    assert "aliyun.com/gpu-mem" in decided.message


TINY = pod(container(gpufraction_io__gpu_memory="1"))
TINY["metadata"]["annotations"] = {str(names.REQUEST): request_text(main={"memory": 1})}
TOO_LITTLE = {
    "a byte, as if it had been admitted": TINY,
    "a byte that waits": {**TINY, "spec": {**TINY["spec"], "schedulingGates": [{"name": str(names.GATE)}]}},
    "less than the administrator's least": pod(container(gpufraction_io__gpu_memory="7Gi")),
    "the same, as if it had been admitted": annotated(
        pod(container(gpufraction_io__gpu_memory="7Gi")), **{str(names.REQUEST): request_text(main={"memory": 7 * GIB})}
    ),
}


@pytest.mark.parametrize("made", TOO_LITTLE.values(), ids=TOO_LITTLE.keys())
def test_the_least_share_counts_whoever_wrote_the_request(made: JSON) -> None:
    decided = plan(made, Options(least_memory=8 * GIB))
    assert isinstance(decided, Deny)
    assert decided.message.endswith("on each GPU; request at least 8Gi, the smallest share of a GPU here")


LONG = "n" * 1_200_000
NAMED = {
    "a path": (
        {"name": "../../nodes"},
        "metadata.name: found '../../nodes'; give a name of at most 253 of a-z, 0-9, - ",
    ),
    "a name without end": ({"name": LONG}, f"metadata.name: found '{'n' * 37}...{'n' * 37}'; give a name of at most"),
    "half a path": ({"generateName": "a/"}, "metadata.generateName: found 'a/'; give the beginning of a name, of a-z"),
    "a line break": ({"name": "a\nb"}, r"metadata.name: found 'a\nb'; give a name of at most 253 of a-z"),
}


@pytest.mark.parametrize(("metadata", "message"), NAMED.values(), ids=NAMED.keys())
def test_a_pod_that_cannot_be_stored_is_refused_without_the_allocator(metadata: JSON, message: str) -> None:
    made = pod(container(gpufraction_io__gpu_memory="1Gi"))
    decided = plan({**made, "metadata": metadata}, Options())
    assert isinstance(decided, Deny)
    assert decided.message.startswith(message)
    assert len(decided.message) < 300


def test_names_of_containers_and_nodes_are_names() -> None:
    wrong = [
        pod(container("a/b", gpufraction_io__gpu_memory="1Gi")),
        pod(container(LONG, gpufraction_io__gpu_memory="1Gi")),
        pod(container(gpufraction_io__gpu_memory="1Gi"), nodeName="../pods"),
    ]
    decided = [plan(made, Options()) for made in wrong]
    assert [str(d.message)[:24] for d in decided if isinstance(d, Deny)] == [
        "spec.containers[0].name:",
        "spec.containers[0].name:",
        "spec.nodeName: found '..",
    ]


REQUIRED = "kueue.x-k8s.io/podset-required-topology"
CONSTRAINTS = "kueue.x-k8s.io/podset-slice-required-topology-constraints"
HOSTS_IN_A_RACK = '[{"topology":"rack","size":8},{"topology":"kubernetes.io/hostname","size":2}]'
ABOVE_HOSTS = (
    "Kueue would choose the node by the sum over its GPUs, but a share must fit on single GPUs: name a level above "
    "hosts, in a Topology that ends above hosts"
)


@pytest.mark.parametrize("name", [REQUIRED, "kueue.x-k8s.io/podset-preferred-topology"])
@pytest.mark.parametrize(
    ("level", "asks"),
    [("example.com/rack", {"gpufraction_io__gpu_memory": "1Gi"}), ("kubernetes.io/hostname", {})],
    ids=["a level above hosts", "no share"],
)
def test_other_requests_for_a_topology_are_kueues_alone(name: str, level: str, asks: JSON) -> None:
    assert not isinstance(plan(pod(container(**asks), annotations={name: level}), Options()), Deny)


DENIED = {
    "our gate on a pod that asks for nothing, which would wait for ever": (
        pod(container(), schedulingGates=[{"name": str(names.GATE)}]),
        "spec.schedulingGates: found gpufraction.io/allocation on a pod that requests no share; "
        "remove it, or request a share",
    ),
    "our request annotation on a pod that asks for nothing": (
        pod(container(), annotations={str(names.REQUEST): request_text(main={"memory": GIB})}),
        "metadata.annotations: found gpufraction.io/request on a pod that requests no share; "
        "remove it, or request a share",
    ),
    "another operating system, whose kubelets would fail the pod": (
        pod(container(gpufraction_io__gpu_memory="1Gi"), os={"name": "windows"}),
        "spec.os.name: found 'windows'; GPU shares are available only on Linux nodes: leave it out, or give linux",
    ),
    "a request that Kueue chooses one host": (
        pod(container(gpufraction_io__gpu_memory="1Gi"), annotations={REQUIRED: "kubernetes.io/hostname"}),
        f"metadata.annotations[{REQUIRED}]: found 'kubernetes.io/hostname'; {ABOVE_HOSTS}",
    ),
    "a request that Kueue chooses hosts within a rack": (
        pod(container(gpufraction_io__gpu_memory="1Gi"), annotations={CONSTRAINTS: HOSTS_IN_A_RACK}),
        f"metadata.annotations[{CONSTRAINTS}]: found {HOSTS_IN_A_RACK!r}; {ABOVE_HOSTS}",
    ),
    "an amount out of range": (
        {
            "metadata": {},
            "spec": {"containers": [{"name": "a", "resources": {"limits": {"nano-gpu/gpu-percent": "120"}}}]},
        },
        "spec.containers[0].resources.limits[nano-gpu/gpu-percent]: found '120'; "
        "give a whole number from 1 to 100, which is one whole card",
    ),
    "two containers of one name": (
        pod(container(gpufraction_io__gpu_memory="1Gi"), container(gpufraction_io__gpu_memory="1Gi")),
        "spec.containers[1].name: found 'main'; give every container its own name",
    ),
    "containers that are not a list": (
        {"metadata": {}, "spec": {"containers": "x"}},
        "spec.containers: found text; give a list",
    ),
    "a limit that is an object": (
        {"metadata": {}, "spec": {"containers": [{"name": "a", "resources": {"limits": {"cpu": {}}}}]}},
        "spec.containers[0].resources.limits[cpu]: found an object; give text or a number",
    ),
    "an annotation that is a number": (
        {"metadata": {"annotations": {"a": 1}}, "spec": {}},
        "metadata.annotations[a]: found a number; give text",
    ),
    "an environment entry that is text": (
        {"metadata": {}, "spec": {"containers": [{"name": "a", "env": ["X=1"]}]}},
        "spec.containers[0].env[0]: found text; give an object",
    ),
    "metadata that is a list": ({"metadata": [], "spec": {}}, "metadata: found a list; give an object"),
}


@pytest.mark.parametrize(("made", "message"), DENIED.values(), ids=DENIED.keys())
def test_denials_name_the_field_and_the_cure(made: JSON, message: str) -> None:
    assert plan(made, Options()) == Deny(message)
