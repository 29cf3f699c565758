"""A pod's annotations count only if the resources that kubelet and quota count agree with them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from contract import names, pods
from contract.encoding.codec import allocation_to_text, request_to_text
from contract.model import Allocation, ContainerAllocation, FractionRequest, GpuShare, PodRequest
from tests.builders import PodBuilder, container, pod
from tests.unit.contract.strategies import JSON, REQUESTS, allocation_for

GIB = 1 << 30
MEMORY, CORES = names.GPU_MEMORY, names.GPU_CORES

REQUEST = PodRequest(
    "hami",
    (
        FractionRequest("fetch", memory=GIB, init=True),
        FractionRequest("train", count=2, memory=3 * GIB, cores=30),
    ),
)


def admitted(request: PodRequest = REQUEST) -> PodBuilder:
    """A pod as admission leaves it, with a container `log` that requests nothing."""
    return (
        pod("p")
        .init("fetch")
        .asks(MEMORY, "1Gi")
        .container("train")
        .asks(MEMORY, "6Gi")
        .asks(CORES, 60)
        .container("log")
        .needs(cpu=1)
        .annotated(names.REQUEST, request_to_text(request))
    )


def test_an_admitted_pod_is_read_back() -> None:
    assert pods.admitted(admitted().json()) == REQUEST


def test_a_mirror_pod_was_never_admitted() -> None:
    """Policies let kubelets write mirror pods, so a compromised node could take the GPUs of any other node."""
    assert pods.admitted(admitted().annotated(pods.MIRROR, "1").json()) is None


@given(REQUESTS)
def test_whatever_admission_writes_is_read_back(request_: PodRequest) -> None:
    spec: dict[str, Any] = {"initContainers": [], "containers": []}
    order = sorted(request_.containers, key=lambda fraction: not fraction.init)
    ordered = PodRequest(request_.dialect, tuple(order))
    for fraction in order:
        amounts = pods.accounting(fraction, fraction.count * fraction.memory)
        resources = {"limits": amounts, "requests": amounts}
        spec["initContainers" if fraction.init else "containers"].append(
            container(fraction.container, resources=resources)
        )
    made = {"metadata": {"annotations": {str(names.REQUEST): request_to_text(ordered)}}, "spec": spec}
    read = pods.admitted(made)
    assert read is not None
    assert replace(read, counted=0) == ordered


def without(key: str) -> Callable[[dict[str, Any]], None]:
    def change(made: dict[str, Any]) -> None:
        for each in made["spec"]["containers"]:
            for amounts in each["resources"].values():
                amounts.pop(key, None)

    return change


def swapped(made: dict[str, Any]) -> None:
    made["spec"]["initContainers"][0]["restartPolicy"] = "Always"


def renamed(made: dict[str, Any]) -> None:
    made["spec"]["containers"][0]["name"] = "other"


def another_asks(made: dict[str, Any]) -> None:
    made["spec"]["containers"][1]["resources"]["requests"][MEMORY] = "1"


def reordered(made: dict[str, Any]) -> None:
    text = made["metadata"]["annotations"][names.REQUEST]
    document = json.loads(text)
    document["containers"].reverse()
    made["metadata"]["annotations"][str(names.REQUEST)] = json.dumps(document)


def annotated(text: Any) -> Callable[[dict[str, Any]], None]:
    return lambda made: made["metadata"]["annotations"].update({names.REQUEST: text})


def amount(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(made: dict[str, Any]) -> None:
        for amounts in made["spec"]["containers"][0]["resources"].values():
            amounts[key] = value

    return change


FORGED: dict[str, Callable[[dict[str, Any]], None]] = {
    "the memory is not counted": without(MEMORY),
    "the cores are not counted": without(CORES),
    "less memory is counted": amount(MEMORY, "3Gi"),
    "more memory is counted": amount(MEMORY, "7Gi"),
    "other cores are counted": amount(CORES, "30"),
    "an amount that is no quantity": amount(MEMORY, "lots"),
    "an amount of the wrong kind": amount(MEMORY, ["6Gi"]),
    "the init container is a sidecar": swapped,
    "the container has another name": renamed,
    "a further container is counted": another_asks,
    "the containers are in another order": reordered,
    "no JSON": annotated("{"),
    "no text": annotated(5),
    "a request for nothing": annotated('{"v":1,"dialect":"native","containers":[]}'),
    "a request for another pod": annotated(
        request_to_text(PodRequest("native", (FractionRequest("main", memory=GIB),)))
    ),
}


@pytest.mark.parametrize("change", FORGED.values(), ids=FORGED.keys())
def test_an_annotation_that_the_resources_contradict_counts_nothing(change: Callable[[dict[str, Any]], None]) -> None:
    made = admitted().json()
    change(made)
    assert pods.admitted(made) is None


def test_a_pod_without_the_annotation_was_not_admitted() -> None:
    assert pods.admitted(pod("p").asks(MEMORY, "1Gi").json()) is None
    assert pods.admitted({}) is None
    assert pods.admitted({"metadata": None, "spec": None}) is None


@given(JSON)
def test_any_annotation_is_a_request_or_nothing(value: Any) -> None:
    made = admitted().json()
    for text in (value, json.dumps(value)):
        annotated(text)(made)
        assert pods.admitted(made) is None


def test_memory_in_percent_agrees_with_any_amount_but_cores_must_fit() -> None:
    request = PodRequest("hami", (FractionRequest("main", percent=50, cores=20),))
    builder = pod("p").asks(CORES, 20).annotated(names.REQUEST, request_to_text(request))
    assert pods.admitted(builder.json()) == request
    assert pods.admitted(builder.asks(MEMORY, "7Gi").json()) == replace(request, counted=7 * GIB)
    assert pods.admitted(builder.asks(CORES, 10).json()) is None


def test_what_a_share_in_percent_is_counted_for_is_read_from_the_pod() -> None:
    """Kubernetes adds it up as containers run: an init container ends before the others start."""
    shares = (FractionRequest("first", percent=60, init=True), *(FractionRequest(c, percent=20) for c in "ab"))
    request = PodRequest("native", shares)
    made = pod("p").annotated(names.REQUEST, request_to_text(request)).json()
    amounts = {"first": "15Gi", "a": "9Gi", "b": "7Gi"}
    made["spec"]["initContainers"] = [container("first")]
    made["spec"]["containers"] = [container("a"), container("b")]
    for each in (*made["spec"]["initContainers"], *made["spec"]["containers"]):
        each["resources"] = {"requests": {str(MEMORY): amounts[each["name"]]}}
    assert pods.admitted(made) == replace(request, counted=16 * GIB)


ACCOUNTED = {
    "memory over all GPUs": ((FractionRequest("c", count=2, memory=GIB), 2 * GIB), {MEMORY: "2Gi"}),
    "cores over all GPUs": (
        (FractionRequest("c", count=2, memory=GIB, cores=30), 2 * GIB),
        {MEMORY: "2Gi", CORES: "60"},
    ),
    "memory in percent before it is known": ((FractionRequest("c", percent=50), 0), {}),
    "memory in percent once it is known": (
        (FractionRequest("c", percent=50, cores=50), GIB),
        {MEMORY: "1Gi", CORES: "50"},
    ),
}


@pytest.mark.parametrize(("requested", "wanted"), ACCOUNTED.values(), ids=ACCOUNTED.keys())
def test_accounting(requested: tuple[FractionRequest, int], wanted: dict[str, str]) -> None:
    assert pods.accounting(*requested) == wanted


# -- the allocation -----------------------------------------------------------------------------------------------

ALLOCATION = allocation_for(REQUEST)


def allocated(text: str) -> dict[str, Any]:
    return admitted().annotated(names.ALLOCATION, text).json()


def test_an_allocation_is_read_back() -> None:
    assert pods.allocation_of(allocated(allocation_to_text(ALLOCATION)), REQUEST) == ALLOCATION


@given(REQUESTS)
def test_every_allocation_that_meets_its_request_is_read_back(request_: PodRequest) -> None:
    allocation = allocation_for(request_)
    made = pod("p").annotated(names.ALLOCATION, allocation_to_text(allocation)).json()
    assert pods.allocation_of(made, request_) == allocation


def forged(**fields: Any) -> str:
    """The allocation with other fields in the first share of the last container."""
    document = json.loads(allocation_to_text(ALLOCATION))
    document["containers"][-1]["gpus"][0].update(fields)
    return json.dumps(document)


def reshaped(change: Callable[[list[Any]], object]) -> str:
    document = json.loads(allocation_to_text(ALLOCATION))
    change(document["containers"])
    return json.dumps(document)


CONTRADICTED = {
    "more memory than asked, to keep others off": forged(memory=1 << 40),
    "less memory than asked, to hide": forged(memory=1),
    "more cores than asked": forged(cores=100),
    "fewer cores than asked": forged(cores=0),
    "a limit that was not asked for": forged(burst=1),
    "every GPU": forged(uuid="all"),
    "fewer GPUs than asked": reshaped(lambda containers: containers[-1]["gpus"].pop()),
    "a container is missing": reshaped(lambda containers: containers.pop()),
    "the containers are in another order": reshaped(lambda containers: containers.reverse()),
    "a container that asked for nothing": reshaped(lambda containers: containers[0].update(name="log")),
    "not JSON": "GPU-1",
}


@pytest.mark.parametrize("text", CONTRADICTED.values(), ids=CONTRADICTED.keys())
def test_an_allocation_that_does_not_meet_its_request_is_none(text: str) -> None:
    assert pods.allocation_of(allocated(text), REQUEST) is None


def test_a_pod_without_an_allocation_has_none() -> None:
    assert pods.allocation_of(admitted().json(), REQUEST) is None


PERCENT = PodRequest("hami", (FractionRequest("main", percent=50),))
OF_PERCENT = {
    "half of what the card may give away": (7 * GIB, True),
    "half of the whole card": (8 * GIB, True),
    "more than half of the card": (8 * GIB + 1, False),
    "nothing": (0, False),
}


@pytest.mark.parametrize(("memory", "counts"), OF_PERCENT.values(), ids=OF_PERCENT.keys())
def test_a_percentage_is_at_most_that_of_the_whole_card(memory: int, counts: bool) -> None:
    document = json.loads(allocation_to_text(allocation_for(PERCENT, gpu_memory=16 * GIB)))
    document["containers"][0]["gpus"][0]["memory"] = memory
    made = pod("p").annotated(names.ALLOCATION, json.dumps(document)).json()
    assert isinstance(pods.allocation_of(made, PERCENT), Allocation) is counts


BURSTING = PodRequest("native", (FractionRequest("main", memory=4 * GIB, limit=12 * GIB),))
BURSTING_PART = PodRequest("native", (FractionRequest("main", percent=25, limit=50),))
LIMITS: dict[str, tuple[PodRequest, int, bool]] = {
    "the limit that was asked for": (BURSTING, 8 * GIB, True),
    "no limit, of a leader that knows none": (BURSTING, 0, True),
    "more than was asked for": (BURSTING, 8 * GIB + 1, False),
    "half of the card": (BURSTING_PART, 4 * GIB, True),
    "more than half of the card": (BURSTING_PART, 4 * GIB + 1, False),
}


@pytest.mark.parametrize(("request_", "burst", "counts"), LIMITS.values(), ids=LIMITS.keys())
def test_a_limit_is_at_most_what_was_requested(request_: PodRequest, burst: int, counts: bool) -> None:
    document = json.loads(allocation_to_text(allocation_for(request_, gpu_memory=16 * GIB)))
    document["containers"][0]["gpus"][0]["burst"] = burst
    made = pod("p").annotated(names.ALLOCATION, json.dumps(document)).json()
    assert isinstance(pods.allocation_of(made, request_), Allocation) is counts


# -- small questions ----------------------------------------------------------------------------------------------


def test_names_of_a_pod() -> None:
    made = pod("train", "team").uid("u1").gated("a", names.GATE).json()
    assert (pods.key(made), pods.uid(made), pods.gates(made)) == ("team/train", "u1", ("a", names.GATE))
    generated = pod("x", "team").generated("train-").json()
    assert (pods.key(generated), pods.uid(generated), pods.gates(generated)) == ("team/", "", ())


PHASES = {"Pending": False, "Running": False, "Unknown": False, "Succeeded": True, "Failed": True}


@pytest.mark.parametrize(("phase", "wanted"), PHASES.items())
def test_only_a_finished_pod_has_given_its_share_back(phase: str, wanted: bool) -> None:
    made = pod("p").phase(phase).json()
    assert pods.finished(made) is wanted
    made["metadata"]["deletionTimestamp"] = "2026-01-05T09:00:00Z"
    assert pods.finished(made) is wanted
    assert pods.finished(pod("p").json()) is False


def test_trimming_keeps_what_decisions_read_and_nothing_of_the_rest() -> None:
    full = (
        admitted()
        .annotated(names.ALLOCATION, allocation_to_text(ALLOCATION))
        .annotated("kubectl.kubernetes.io/last-applied-configuration", "x" * 1000)
        .env("SECRET", "s3cret")
        .host_port(80)
        .selects(pool="gpu")
        .spec(
            resources={"requests": {"cpu": "1"}},
            volumes=[{"name": "tmp", "emptyDir": {}}, {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        )
        .phase("Running")
        .json()
    )
    before = copy.deepcopy(full)
    slim = pods.trim(full)
    assert full == before
    assert pods.admitted(slim) == REQUEST
    assert pods.allocation_of(slim, REQUEST) == ALLOCATION
    assert slim["spec"]["volumes"] == [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    assert slim["spec"]["resources"] == {"requests": {"cpu": "1"}}
    assert "s3cret" not in json.dumps(slim)
    assert "last-applied" not in json.dumps(slim)
    assert pods.trim(slim) == slim
    assert pods.trim({}) == {"metadata": {}, "spec": {}, "status": {}}


CLAIMED = PodRequest("claims", (FractionRequest("main"),), claim="c")


def test_a_pod_that_names_a_claim_counts_nothing_of_its_own() -> None:
    asks = pod("p").annotated(names.REQUEST, request_to_text(CLAIMED))
    assert pods.admitted(asks.json()) == CLAIMED
    assert pods.admitted(asks.asks(MEMORY, "1Gi").json()) is None


def test_a_pod_that_names_a_claim_is_admitted_beside_a_limit_range() -> None:
    asks = pod("p").annotated(names.REQUEST, request_to_text(CLAIMED))
    assert pods.admitted(asks.asks(MEMORY, "0").json()) == CLAIMED
    assert pods.admitted(asks.asks(MEMORY, "0").asks(names.GPU_CORES, "10").json()) is None


def test_a_claims_share_is_carried_by_who_names_a_claim_and_by_nobody_else() -> None:
    share = ContainerAllocation("main", (GpuShare("GPU-1", 0, GIB, 0, 16 * GIB),))
    own = PodRequest("native", (FractionRequest("main", memory=GIB),))
    for request, claim, counts in ((CLAIMED, "egpu-1", True), (CLAIMED, "", False), (own, "egpu-1", False)):
        given = Allocation("id", "n", (share,), claim)
        made = pod("p").annotated(names.ALLOCATION, allocation_to_text(given)).json()
        assert (pods.allocation_of(made, request) is not None) is counts
