"""ResourceClaims from their manifests to the exact request, or to the exact refusal."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract import names
from contract.dialects import DIALECTS
from contract.dialects.base import PodReader, Refusal
from contract.dialects.resourceclaims import (
    ClaimReading,
    Readings,
    entries,
    is_as_counted,
    is_borne_out,
    isolation_of,
    read_claim,
    read_pod,
    uses,
)
from contract.encoding import codec
from contract.encoding.quantity import GIB
from contract.encoding.reading import Malformed
from contract.model import (
    WHOLE,
    Alternative,
    ClaimEntry,
    Constraint,
    DeviceRequest,
    FractionRequest,
    PodRequest,
    Wishes,
)
from contract.options import DEFAULTS
from tests.unit.contract.strategies import JSON as ANY

JSON = dict[str, Any]
CLASS = "share.gpufraction.io"
FIRST = "spec.devices.requests[0]"


def exactly(name: str = "gpu", **fields: Any) -> JSON:
    return {"name": name, "exactly": {"deviceClassName": CLASS, **fields}}


def capacity(**amounts: Any) -> JSON:
    return {"capacity": {"requests": amounts}}


def spec(*requests: Any, **more: Any) -> JSON:
    return {"devices": {"requests": list(requests), **more}}


def config(*requests: str, **parameters: Any) -> JSON:
    about = {"apiVersion": "gpufraction.io/v1alpha1", "kind": "ShareParameters", **parameters}
    opaque = {"opaque": {"driver": "gpufraction.io", "parameters": about}}
    return {"requests": list(requests), **opaque} if requests else opaque


def alternative(name: str, **fields: Any) -> JSON:
    return {"name": name, "deviceClassName": CLASS, **fields}


def selecting(*expressions: str) -> JSON:
    return {"selectors": [{"cel": {"expression": each}} for each in expressions]}


def other(**fields: Any) -> JSON:
    return {"name": "nic", "exactly": {"deviceClassName": "nic.example.com", **fields}}


CONSTRAINT = "spec.devices.constraints[0]"
DISTINCT = Constraint("uuid", ("a", "b", "c"), distinct=True)
EXPRESSION = f"{FIRST}.exactly.selectors[0].cel.expression"
READ: dict[str, tuple[Any, ClaimReading | Refusal]] = {
    "memory alone reserves no cores": (spec(exactly(**capacity(memory="8Gi"))), (DeviceRequest("gpu", 1, 8 * GIB),)),
    "memory and cores": (
        spec(exactly(**capacity(memory="8Gi", cores="30"))),
        (DeviceRequest("gpu", 1, 8 * GIB, 30),),
    ),
    "what the API server writes into a claim changes nothing": (
        spec(exactly(allocationMode="ExactCount", count=1, **capacity(memory="8Gi")), constraints=[], config=None),
        (DeviceRequest("gpu", 1, 8 * GIB),),
    ),
    "no capacity is whole cards": (spec(exactly(count=2)), (DeviceRequest("gpu", 2),)),
    "an empty capacity is whole cards": (spec(exactly(capacity={"requests": {}})), (DeviceRequest("gpu"),)),
    "several requests": (
        spec(exactly("a", **capacity(memory="1Gi")), exactly("b", count=2, **capacity(memory="2Gi"))),
        (DeviceRequest("a", 1, GIB), DeviceRequest("b", 2, 2 * GIB)),
    ),
    "a claim of another driver is not read": (spec(other(adminAccess=True, count="many")), ()),
    "nothing is not ours": (None, ()),
    "text is not ours": ("spec", ()),
    "requests that are no list are not ours": ({"devices": {"requests": {"name": "gpu"}}}, ()),
    "a claim of two kinds of devices": (
        spec(exactly(), other()),
        Refusal(
            "spec.devices.requests[1].exactly.deviceClassName",
            "'nic.example.com'",
            f"a claim has devices of one kind: give {CLASS}, or create another claim for the others",
        ),
    ),
    "alternatives": (
        spec(
            {
                "name": "gpu",
                "firstAvailable": [
                    alternative("a", count=2, **capacity(memory="8Gi"), **selecting("true")),
                    alternative("b", count=2, allocationMode="ExactCount", **capacity(memory="8192Mi")),
                ],
            },
        ),
        (DeviceRequest("gpu", 2, 8 * GIB, alternatives=(Alternative("a", ("true",)), Alternative("b"))),),
    ),
    "an alternative of another class": (
        spec({"name": "gpu", "firstAvailable": [alternative("a"), {"name": "b", "deviceClassName": "x"}]}),
        Refusal(
            f"{FIRST}.firstAvailable[1].deviceClassName",
            "'x'",
            f"a claim has devices of one kind: give {CLASS}, or create another claim for the others",
        ),
    ),
    "alternatives of different amounts": (
        spec({"name": "gpu", "firstAvailable": [alternative("a"), alternative("b", **capacity(memory="8Gi"))]}),
        Refusal(
            f"{FIRST}.firstAvailable[1]",
            "another count or capacity than in the first alternative",
            "give all alternatives the same: a quota counts the pod before one is chosen; or use several templates",
        ),
    ),
    "alternatives of one name": (
        spec({"name": "gpu", "firstAvailable": [alternative("a"), alternative("a")]}),
        Refusal(f"{FIRST}.firstAvailable", "two alternatives with the same name", "give each its own name"),
    ),
    "an alternative with a toleration": (
        spec({"name": "gpu", "firstAvailable": [alternative("a", tolerations=[{"operator": "Exists"}])]}),
        Refusal(
            f"{FIRST}.firstAvailable[0].tolerations",
            "[{'operator': 'Exists'}]",
            "leave it out; an unhealthy GPU accepts no pods",
        ),
    ),
    "many alternatives": (
        spec({"name": "gpu", "firstAvailable": [alternative(f"a{number}") for number in range(9)]}),
        Refusal(f"{FIRST}.firstAvailable", "9 alternatives", "give at most 8"),
    ),
    "alternatives and a choice": (
        spec({**exactly(), "firstAvailable": [alternative("a")]}),
        Refusal(f"{FIRST}.exactly", "exactly together with firstAvailable", "give one of the two"),
    ),
    "constraints": (
        spec(
            *(exactly(name) for name in "abc"),
            constraints=[
                {"matchAttribute": "gpufraction.io/numa", "requests": ["b", "a"]},
                {"matchAttribute": "gpu.nvidia.com/productName", "requests": ["c"]},
                {"distinctAttribute": "gpufraction.io/uuid"},
            ],
        ),
        (
            *(DeviceRequest(name, constraints=(Constraint("numa", ("a", "b")), DISTINCT)) for name in "ab"),
            DeviceRequest("c", constraints=(Constraint("productName", ("c",)), DISTINCT)),
        ),
    ),
    "a constraint about an attribute of others": (
        spec(exactly(), constraints=[{"matchAttribute": "a/b"}]),
        Refusal(f"{CONSTRAINT}.matchAttribute", "'a/b'", "give gpufraction.io/numa or gpufraction.io/productName"),
    ),
    "a constraint about the PCIe root": (
        spec(exactly(), constraints=[{"matchAttribute": "resource.kubernetes.io/pcieRoot"}]),
        Refusal(
            f"{CONSTRAINT}.matchAttribute",
            "'resource.kubernetes.io/pcieRoot'",
            "give gpufraction.io/numa, which keeps the GPUs on one NUMA node",
        ),
    ),
    "the same UUID": (
        spec(exactly(), constraints=[{"matchAttribute": "gpufraction.io/uuid"}]),
        Refusal(
            f"{CONSTRAINT}.matchAttribute",
            "'gpufraction.io/uuid'",
            "give gpufraction.io/numa or gpufraction.io/productName",
        ),
    ),
    "different models": (
        spec(exactly(), constraints=[{"distinctAttribute": "gpufraction.io/productName"}]),
        Refusal(
            f"{CONSTRAINT}.distinctAttribute",
            "'gpufraction.io/productName'",
            "give gpufraction.io/uuid alone, for different GPUs",
        ),
    ),
    "a constraint without an attribute": (
        spec(exactly(), constraints=[{"requests": ["gpu"]}]),
        Refusal(f"{CONSTRAINT}.matchAttribute", "None", "give gpufraction.io/numa or gpufraction.io/productName"),
    ),
    "a constraint about a request that there is not": (
        spec(exactly(), constraints=[{"matchAttribute": "gpufraction.io/numa", "requests": ["gpu/a"]}]),
        Refusal(f"{CONSTRAINT}.requests", "'gpu/a'", "give requests of this claim: gpu"),
    ),
    "many constraints": (
        spec(exactly(), constraints=[{"matchAttribute": "gpufraction.io/numa"}] * 33),
        Refusal("spec.devices.constraints", "33 constraints", "give at most 32"),
    ),
    "isolation and a memory limit": (
        spec(
            exactly("a", **capacity(memory="8Gi")),
            exactly("b", **capacity(memory="8Gi")),
            config=[config(isolation="mps"), config("b", memoryLimit="16Gi")],
        ),
        (
            DeviceRequest("a", 1, 8 * GIB, isolation="mps"),
            DeviceRequest("b", 1, 8 * GIB, limit=16 * GIB, isolation="mps"),
        ),
    ),
    "a limit that is the request": (
        spec(exactly(**capacity(memory="8Gi")), config=[config(memoryLimit="8Gi")]),
        (DeviceRequest("gpu", 1, 8 * GIB),),
    ),
    "a limit below the request": (
        spec(exactly(**capacity(memory="8Gi")), config=[config(memoryLimit="4Gi")]),
        Refusal(
            "spec.devices.config[0].opaque.parameters.memoryLimit",
            "'4Gi'",
            "give memory with its unit, at least the 8Gi of the request",
        ),
    ),
    "a limit of whole cards": (
        spec(exactly(), config=[config(memoryLimit="4Gi")]),
        Refusal(
            "spec.devices.config[0].opaque.parameters.memoryLimit",
            "'4Gi' for whole GPUs",
            "give memory in the capacity of request gpu, which is the amount that is booked",
        ),
    ),
    "an isolation that there is not": (
        spec(exactly(), config=[config(isolation="strict")]),
        Refusal(
            "spec.devices.config[0].opaque.parameters.isolation", "'strict'", "give one of driver, mps, preload, watch"
        ),
    ),
    "a parameter that there is not": (
        spec(exactly(), config=[config(sharing="fair")]),
        Refusal(
            "spec.devices.config[0].opaque.parameters.sharing",
            "'fair'",
            "leave it out; gpufraction does not know the field",
        ),
    ),
    "a configuration for a request that is not there": (
        spec(exactly(), config=[config("other", isolation="mps")]),
        Refusal("spec.devices.config[0].requests", "'other'", "give requests of this claim: gpu"),
    ),
    "a configuration for another driver": (
        spec(exactly(), config=[{"opaque": {"driver": "example.com"}}]),
        Refusal(
            "spec.devices.config[0].opaque.driver",
            "'example.com'",
            "give gpufraction.io, or leave the configuration out",
        ),
    ),
    "a configuration without a kind": (
        spec(exactly(), config=[{"opaque": {"driver": "gpufraction.io"}}]),
        Refusal(
            "spec.devices.config[0].opaque.parameters.apiVersion",
            "None",
            "give gpufraction.io/v1alpha1",
        ),
    ),
    "CEL selectors": (
        spec(exactly(selectors=[*selecting("true")["selectors"], *selecting("false", "true")["selectors"]])),
        (DeviceRequest("gpu", selectors=("true", "false")),),
    ),
    "a selector that is too long": (
        spec(exactly(**selecting("true " * 500))),
        Refusal(f"{EXPRESSION}", "2500 characters", "give at most 1,024"),
    ),
    "selectors that are too long together": (
        spec(*(exactly(f"r{n}", **selecting(f"{n} == 1 || device.driver == '{'a' * 120}'")) for n in range(20))),
        Refusal(
            "spec.devices.requests[13].exactly.selectors[0].cel.expression",
            "a longer sum of expressions",
            "give at most 2,048 characters in all expressions of a claim",
        ),
    ),
    "many selectors": (
        spec(exactly(**selecting(*(f"{number} == 1" for number in range(9))))),
        Refusal(f"{FIRST}.exactly.selectors", "9 selectors", "give at most 8"),
    ),
    "a selector that is no CEL": (
        spec(exactly(selectors=[{"jsonPath": "x"}])),
        Refusal(f"{FIRST}.exactly.selectors[0].jsonPath", "'x'", "leave it out; gpufraction does not know the field"),
    ),
    "a selector without an expression": (
        spec(exactly(selectors=[{"cel": {}}])),
        Refusal(EXPRESSION, "None", "give a CEL expression"),
    ),
    "a selector that CEL does not accept": (
        spec(exactly(**selecting("1 == wrong"))),
        Refusal(EXPRESSION, "the name 'wrong'", "an expression knows only device"),
    ),
    "administrative access": (
        spec(exactly(adminAccess=True)),
        Refusal(
            f"{FIRST}.exactly.adminAccess",
            "True",
            "leave it out; kubectl gpufraction nodes shows the GPUs and their pods",
        ),
    ),
    "no administrative access": (spec(exactly(adminAccess=False)), (DeviceRequest("gpu"),)),
    "tolerations": (
        spec(exactly(tolerations=[{"operator": "Exists"}])),
        Refusal(
            f"{FIRST}.exactly.tolerations",
            "[{'operator': 'Exists'}]",
            "leave it out; an unhealthy GPU accepts no pods",
        ),
    ),
    "all devices": (
        spec(exactly(allocationMode="All")),
        Refusal(f"{FIRST}.exactly.allocationMode", "'All'", "give ExactCount and a count"),
    ),
    "a field of a later version": (
        spec(exactly(sharing="fair")),
        Refusal(f"{FIRST}.exactly.sharing", "'fair'", "leave it out; gpufraction does not know the field"),
    ),
    "another capacity": (
        spec(exactly(**capacity(memory="8Gi", compute="5"))),
        Refusal(f"{FIRST}.exactly.capacity.requests[compute]", "'5'", "give memory, and cores"),
    ),
    "cores alone": (
        spec(exactly(**capacity(cores="30"))),
        Refusal(
            f"{FIRST}.exactly.capacity.requests",
            "cores without memory",
            "give memory too, such as 8Gi, or no capacity for whole GPUs",
        ),
    ),
    "memory without a unit": (
        spec(exactly(**capacity(memory="8"))),
        Refusal(
            f"{FIRST}.exactly.capacity.requests[memory]", "'8'", "give memory with its unit, at least 1Mi, such as 8Gi"
        ),
    ),
    "more memory than any card has": (
        spec(exactly(**capacity(memory="1Ei"))),
        Refusal(f"{FIRST}.exactly.capacity.requests[memory]", "'1Ei'", "too large for any GPU: give at most 64Ti"),
    ),
    "more cores than a card has": (
        spec(exactly(**capacity(memory="8Gi", cores="101"))),
        Refusal(
            f"{FIRST}.exactly.capacity.requests[cores]",
            "'101'",
            "give percent of a GPU's multiprocessors, a whole number from 1 to 100",
        ),
    ),
    "a count that is none": (
        spec(exactly(count=True)),
        Refusal(f"{FIRST}.exactly.count", "True", "give a whole number from 1 to 32"),
    ),
    "too many cards": (
        spec(exactly("a", count=20), exactly("b", count=20)),
        Refusal(
            "spec.devices.requests",
            "40 cards in all",
            "a claim has at most 32: give each container a claim of its own",
        ),
    ),
    "too many requests": (
        spec(*(exactly(f"a{at}") for at in range(33))),
        Refusal("spec.devices.requests", "33 requests", "give at most 32"),
    ),
    "two requests of one name": (
        spec(exactly(), exactly()),
        Refusal("spec.devices.requests", "two requests with the same name", "give each its own name"),
    ),
    "a name that no request has": (
        spec(exactly("GPU_1")),
        Refusal(f"{FIRST}.name", "'GPU_1'", "give at most 63 of a-z, 0-9 and -"),
    ),
}


@pytest.mark.parametrize("sentence", READ)
def test_a_claim_is_read_or_refused_by_the_field(sentence: str) -> None:
    document, wanted = READ[sentence]
    assert read_claim(document) == wanted


def pod(*containers: tuple[str, list[JSON]], init: tuple[tuple[str, list[JSON]], ...] = (), **annotations: str) -> JSON:
    """A pod whose containers have these references to claims."""

    def listed(given: tuple[tuple[str, list[JSON]], ...]) -> list[JSON]:
        return [{"name": name, "resources": {"claims": references}} for name, references in given]

    claims = [{"name": "gpu", "resourceClaimTemplateName": "t"}, {"name": "own", "resourceClaimName": "c"}]
    return {
        "metadata": {"annotations": annotations},
        "spec": {"resourceClaims": claims, "initContainers": listed(init), "containers": listed(containers)},
    }


def ref(name: str = "gpu", request: str = "") -> JSON:
    return {"name": name, **({"request": request} if request else {})}


SMALL = DeviceRequest("a", 1, GIB, 10)
TWO = DeviceRequest("b", 2, GIB, 10)
LARGE = DeviceRequest("b", 1, 2 * GIB)
CLAIMS = "spec.containers[0].resources.claims"


def asked(*fractions: FractionRequest) -> PodRequest:
    return PodRequest("resourceclaims", fractions)


def constrained(*requests: DeviceRequest, about: tuple[str, ...] = (), distinct: bool = False) -> ClaimReading:
    """The requests with constraints that cover all of them."""
    meant = tuple(each.name for each in requests)
    found = [Constraint(each, meant) for each in about] + [Constraint("uuid", meant, distinct=True)] * distinct
    return tuple(replace(each, constraints=tuple(found)) for each in requests)


DIFFERENT = (
    "requests with different selectors, or one with firstAvailable among several",
    "give all requests of a container the same selectors and no alternatives, or use several containers",
)
PODS: dict[str, tuple[JSON, Readings, PodRequest | Refusal | None]] = {
    "a container with a claim": (
        pod(("main", [ref()])),
        {"gpu": (SMALL,)},
        asked(FractionRequest("main", memory=GIB, cores=10)),
    ),
    "a whole card": (
        pod(("main", [ref()])),
        {"gpu": (DeviceRequest("a", 2),)},
        asked(FractionRequest("main", count=2, percent=WHOLE, cores=WHOLE, exclusive=True)),
    ),
    "requests of one size add up": (
        pod(("main", [ref()])),
        {"gpu": (SMALL, TWO)},
        asked(FractionRequest("main", count=3, memory=GIB, cores=10)),
    ),
    "claims of one size add up": (
        pod(("main", [ref(), ref("own")])),
        {"gpu": (SMALL,), "own": (TWO,)},
        asked(FractionRequest("main", count=3, memory=GIB, cores=10)),
    ),
    "each container has its own request": (
        pod(("one", [ref("gpu", "a")]), ("two", [ref("gpu", "b")]), ("none", [])),
        {"gpu": (SMALL, LARGE)},
        asked(FractionRequest("one", memory=GIB, cores=10), FractionRequest("two", memory=2 * GIB)),
    ),
    "an init container": (
        pod(("main", []), init=(("first", [ref()]),)),
        {"gpu": (SMALL,)},
        asked(FractionRequest("first", memory=GIB, cores=10, init=True)),
    ),
    "our annotations choose cards": (
        pod(("main", [ref()]), init=(), **{str(names.USE_MODELS): "A100"}),
        {"gpu": (LARGE,)},
        asked(FractionRequest("main", memory=2 * GIB, wishes=Wishes(("A100",)))),
    ),
    "selectors are wishes": (
        pod(("main", [ref()]), init=(), **{str(names.USE_MODELS): "A100,H100"}),
        {"gpu": (replace(SMALL, selectors=("true",)), replace(TWO, selectors=("true",)))},
        asked(
            FractionRequest(
                "main", 3, GIB, cores=10, wishes=Wishes(("A100", "H100"), ordered=True, selectors=("true",))
            )
        ),
    ),
    "alternatives take the place of an order of models": (
        pod(("main", [ref()]), init=(), **{str(names.USE_MODELS): "A100,H100"}),
        {"gpu": (replace(TWO, alternatives=(Alternative("a", ("true",)), Alternative("b"))),)},
        asked(FractionRequest("main", 2, GIB, cores=10, wishes=Wishes(("A100", "H100"), alternatives=(("true",), ())))),
    ),
    "requests of one container with different selectors": (
        pod(("main", [ref()])),
        {"gpu": (replace(SMALL, selectors=("true",)), TWO)},
        Refusal(CLAIMS, *DIFFERENT),
    ),
    "alternatives of one request among several of a container": (
        pod(("main", [ref()])),
        {"gpu": (replace(SMALL, alternatives=(Alternative("a"),)), TWO)},
        Refusal(CLAIMS, *DIFFERENT),
    ),
    "many combinations of alternatives": (
        pod(*((name, [ref("gpu", name)]) for name in ("a", "b"))),
        {"gpu": tuple(DeviceRequest(name, alternatives=tuple(map(Alternative, "xyz"))) for name in ("a", "b"))},
        Refusal(
            "spec.containers",
            "9 combinations of alternatives",
            "give at most 8: the numbers of alternatives of all containers are multiplied",
        ),
    ),
    "constraints about all GPUs of a container": (
        pod(("main", [ref()])),
        {"gpu": constrained(SMALL, TWO, about=("numa", "productName"))},
        asked(FractionRequest("main", 3, GIB, cores=10, one_numa=True, one_model=True)),
    ),
    "constraints about one GPU say nothing": (
        pod(("main", [ref()])),
        {"gpu": constrained(SMALL, about=("numa", "productName"))},
        asked(FractionRequest("main", 1, GIB, cores=10)),
    ),
    "different GPUs of one container": (
        pod(("main", [ref()])),
        {"gpu": constrained(SMALL, TWO, distinct=True)},
        asked(FractionRequest("main", 3, GIB, cores=10)),
    ),
    "different GPUs of several containers": (
        pod(("one", [ref("gpu", "a")]), ("two", [ref("gpu", "b")]), ("three", [ref("own")])),
        {"gpu": constrained(SMALL, TWO, distinct=True), "own": (SMALL,)},
        asked(
            FractionRequest("one", 1, GIB, cores=10, apart=True),
            FractionRequest("two", 2, GIB, cores=10, apart=True),
            FractionRequest("three", 1, GIB, cores=10),
        ),
    ),
    "GPUs of several containers on one NUMA node": (
        pod(("one", [ref("gpu", "a")]), ("two", [ref("gpu", "b")])),
        {"gpu": constrained(SMALL, TWO, about=("numa",))},
        Refusal(
            CLAIMS,
            "a matchAttribute of claim gpu for several containers",
            "leave it out, or have one container use all requests that it names",
        ),
    ),
    "some GPUs of a container on one NUMA node": (
        pod(("main", [ref(), ref("own")])),
        {"gpu": constrained(TWO, about=("numa",)), "own": (SMALL,)},
        Refusal(
            CLAIMS,
            "a constraint of claim gpu about some of the container's requests",
            "have the constraint name all requests that the container uses, or none of them",
        ),
    ),
    "claims of other drivers only": (pod(("main", [ref("own")])), {}, None),
    "two containers with one request": (
        pod(("one", [ref()]), ("two", [ref()])),
        {"gpu": (SMALL,)},
        Refusal(
            "spec.containers[1].resources.claims",
            "request a of claim gpu, which container 'one' uses",
            "give each container its own request, and name it there",
        ),
    ),
    "requests of two sizes in one container": (
        pod(("main", [ref()])),
        {"gpu": (SMALL, LARGE)},
        Refusal(
            CLAIMS,
            "requests of different capacity or limit",
            "a container has the same share of each of its GPUs: make the requests equal, or use several containers",
        ),
    ),
    "a request that nobody uses": (
        pod(("main", [ref("gpu", "a")])),
        {"gpu": (SMALL, LARGE)},
        Refusal(
            "spec.resourceClaims",
            "claim gpu, whose request b no container uses",
            "name it under resources.claims of a container, or leave the request out of the claim",
        ),
    ),
    "a request that is not there": (
        pod(("main", [ref("gpu", "c")])),
        {"gpu": (SMALL, LARGE)},
        Refusal(f"{CLAIMS}[0].request", "'c'", "give a request of that claim: a, b"),
    ),
    "a request twice": (
        pod(("main", [ref(), ref("gpu", "a")])),
        {"gpu": (SMALL,)},
        Refusal(CLAIMS, "a request twice", "name it once"),
    ),
    "the name of our own claim": (
        pod(("main", [ref("gpufraction")])),
        {"gpufraction": (SMALL,)},
        Refusal(
            "spec.resourceClaims[].name",
            "'gpufraction'",
            "give another name here and under resources.claims; this one is taken",
        ),
    ),
}


@pytest.mark.parametrize("sentence", PODS)
def test_a_pod_is_read_by_its_claims(sentence: str) -> None:
    body, readings, wanted = PODS[sentence]
    assert read_pod(PodReader(body, DEFAULTS), readings) == wanted


def test_a_pod_has_one_isolation() -> None:
    mps, driver = DeviceRequest("a", isolation="mps"), DeviceRequest("b", isolation="driver")
    assert (isolation_of({"gpu": (SMALL,)}), isolation_of({"gpu": (SMALL, mps)})) == ("", "mps")
    assert isolation_of({"gpu": (mps,), "own": (driver,)}) == Refusal(
        "spec.resourceClaims",
        "claims that ask for isolation by driver and by mps",
        "a pod has one level of isolation: give the same in all of its claims",
    )


def test_a_claim_that_asks_for_something_else_is_noticed() -> None:
    body = pod(("main", [ref()]))
    read = {size: read_pod(PodReader(body, DEFAULTS), {"gpu": (size,)}) for size in (SMALL, LARGE)}
    small, large = read[SMALL], read[LARGE]
    assert isinstance(small, PodRequest)
    assert isinstance(large, PodRequest)
    assert (is_as_counted(small, small), is_as_counted(small, large)) == (True, False)


def test_the_entries_of_a_pod_are_templates_and_claims_but_none_of_ours() -> None:
    listed = [
        {"name": "gpu", "resourceClaimTemplateName": "t"},
        {"name": "own", "resourceClaimName": "c"},
        {"name": "gpufraction", "resourceClaimName": "gpufraction.io-0123"},
        {"name": "group", "podGroupResourceClaim": "x"},
        {"name": "../..", "resourceClaimName": "c"},
        {"name": "path", "resourceClaimName": "../../secrets/x"},
        "text",
    ]
    assert entries({"resourceClaims": listed}) == (ClaimEntry("gpu", template="t"), ClaimEntry("own", claim="c"))


def test_a_stored_request_counts_only_where_its_containers_name_claims() -> None:
    """The pod's author may have written the annotation."""
    request = asked(FractionRequest("main", memory=GIB))
    assert is_borne_out(pod(("main", [ref()])), request)
    assert not is_borne_out(pod(("main", [ref("nobody")])), request)
    assert not is_borne_out({"spec": {"containers": [{"name": "main"}]}}, request)
    assert DIALECTS.borne_out(pod(("main", [ref()])), request)
    assert not DIALECTS.borne_out(pod(("main", [])), request)


def test_a_request_survives_its_annotation() -> None:
    request = asked(FractionRequest("main", count=2, memory=GIB, cores=10))
    assert codec.request_from_text(codec.request_to_text(request)) == request


def test_a_request_with_expressions_is_no_text_of_the_first_version() -> None:
    """A program of the first version would place the pod on other cards."""
    plain = FractionRequest("main", 2, GIB)
    by_wishes = [Wishes(selectors=("true",)), Wishes(alternatives=(("true",), ()))]
    others = [replace(plain, one_model=True), replace(plain, apart=True)]
    for request in (*map(asked, others), *(asked(replace(plain, wishes=each)) for each in by_wishes)):
        text = codec.request_to_text(request)
        assert json.loads(text)["v"] == 2
        assert codec.request_from_text(text) == request
    assert json.loads(codec.request_to_text(asked(plain)))["v"] == 1


def test_no_text_brings_an_expression_past_its_bounds() -> None:
    request = json.loads(
        codec.request_to_text(asked(FractionRequest("main", 1, GIB, wishes=Wishes(selectors=("true",)))))
    )
    for expression in ("[1].map(x, x) == []", "", 3, "1 == 1 " * 300):
        request["containers"][0]["selectors"] = [expression]
        with pytest.raises(Malformed):
            codec.request_from_text(json.dumps(request))


def test_who_can_evaluate_cel_is_asked_about_each_expression_once() -> None:
    seen = []

    def check(expression: str) -> str:
        seen.append(expression)
        return "" if expression == "true" else "it is wrong"

    good, bad = exactly("a", **selecting("true", "true")), exactly("b", **selecting("true", "1 == 'a'"))
    assert read_claim(spec(good), check=check) == (DeviceRequest("a", selectors=("true",)),)
    found = read_claim(spec(good, bad), "claim", check)
    assert isinstance(found, Refusal)
    assert found.field == "claim.devices.requests[1].exactly.selectors[1].cel.expression"
    assert found.found == "\"1 == 'a'\", of which CEL says: it is wrong"
    assert seen == ["true", "true", "1 == 'a'"]


def test_a_claim_with_other_selectors_is_not_as_counted() -> None:
    body, plain = pod(("main", [ref()])), DeviceRequest("a", 1, GIB)
    forms = [plain, replace(plain, selectors=("true",)), replace(plain, alternatives=(Alternative("a", ("true",)),))]
    read = [read_pod(PodReader(body, DEFAULTS), {"gpu": (each,)}) for each in forms]
    for one in read:
        for other_ in read:
            assert isinstance(one, PodRequest)
            assert isinstance(other_, PodRequest)
            assert is_as_counted(one, other_) == (one is other_)


LIKELY: st.SearchStrategy[Any] = st.sampled_from(
    [1, 2, "8Gi", "30", True, None, "", -1, "1e999", [], {}, "ExactCount", CLASS, "gpu"]
)
VALUES = LIKELY | ANY
SELECTORS = st.lists(
    st.sampled_from(["true", "1 == 1", "device.driver == ''", "wrong", ""]).map(
        lambda each: selecting(each)["selectors"][0]
    )
    | ANY,
    max_size=3,
)
ALTERNATIVES = st.lists(
    st.builds(alternative, st.sampled_from(["a", "b"]), selectors=SELECTORS, count=LIKELY | st.just(1)) | ANY,
    max_size=3,
)
REQUEST = st.fixed_dictionaries(
    {"name": st.sampled_from(["a", "b"]) | VALUES},
    optional={
        "exactly": st.dictionaries(
            st.sampled_from(["deviceClassName", "count", "allocationMode", "capacity", "selectors", "adminAccess"]),
            LIKELY
            | SELECTORS
            | st.fixed_dictionaries({"requests": st.dictionaries(st.sampled_from(["memory", "cores", "x"]), VALUES)})
            | ANY,
        ).map(lambda found: {"deviceClassName": CLASS, **found}),
        "firstAvailable": VALUES | ALTERNATIVES,
    },
)
SPECS = st.fixed_dictionaries(
    {"devices": st.fixed_dictionaries({"requests": st.lists(REQUEST | ANY, max_size=4)}) | ANY}
)


@given(document=SPECS | ANY)
def test_any_claim_is_read_refused_or_not_ours(document: Any) -> None:
    found = read_claim(document)
    if isinstance(found, Refusal):
        assert len(str(found)) < 1_000
        assert "\n" not in str(found)
        return
    assert sum(each.count for each in found) <= 32
    assert all(each.memory >= 0 and 0 <= each.cores <= WHOLE and each.count >= 1 for each in found)
    assert (CLASS in json.dumps(document, default=repr)) or not found


NAMES = st.sampled_from(["gpu", "own", "other"])
REFERENCES = st.lists(
    st.fixed_dictionaries({"name": NAMES | VALUES}, optional={"request": st.sampled_from(["a", "b"]) | VALUES}) | ANY,
    max_size=3,
)
READINGS = st.dictionaries(
    NAMES,
    st.lists(st.sampled_from([SMALL, TWO, LARGE, DeviceRequest("c", 3)]), min_size=1, max_size=3, unique_by=repr).map(
        tuple
    ),
)


@given(one=REFERENCES, two=REFERENCES, readings=READINGS)
def test_every_card_of_a_claim_is_one_containers(one: list[JSON], two: list[JSON], readings: Readings) -> None:
    """The counted amount is what the claims request in total, whatever the containers name."""
    readings = {name: tuple({each.name: each for each in found}.values()) for name, found in readings.items()}
    context = PodReader(pod(("one", one), ("two", two)), DEFAULTS)
    found = read_pod(context, readings)
    if isinstance(found, Refusal):
        assert len(str(found)) < 1_000
        return
    wanted = sum(each.count for requests in readings.values() for each in requests)
    assert sum(each.count for each in found.containers) == wanted if found else wanted == 0
    if found:
        given_out = [(name, each.name) for use in uses(context, readings) for name, each in use.requests]
        assert len(set(given_out)) == len(given_out)
