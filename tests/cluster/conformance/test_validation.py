"""
Which pods are valid: extended resources, names of annotations, environment from fields, and objects that are not pods.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.conformance.asking import JSON, Api, Ask, Case, annotated, check, create, op, patch, pod, titled
from tests.versions import QUOTED_VALUES, WHOLE_PODS, Worded

MEMORY = "gpufraction.io/gpu-memory"
NAME_63, NAME_64 = "d" * 63, "d" * 64
PREFIX_254 = ".".join(["a" * 50] * 5)
NOT_A_PART = "name part must consist of alphanumeric characters, '-', '_' or '.'"
NOT_A_KEY = "a valid label key must consist of alphanumeric characters"
NOT_A_NAME = "a qualified name must consist of alphanumeric characters"


def asks(amount: Any, name: str = MEMORY) -> Ask:
    return create(pod("p", {name: amount}))


def with_resources(resources: JSON, where: str = "containers") -> Ask:
    made = pod("p")
    container = {"name": "i" if where == "initContainers" else "c", "image": "x", "resources": resources}
    made["spec"][where] = [container]
    return create(made)


def with_env(*entries: JSON) -> Ask:
    made = pod("p")
    made["spec"]["containers"][0]["env"] = list(entries)
    return create(made)


def from_field(path: str) -> Ask:
    return with_env({"name": "E", "valueFrom": {"fieldRef": {"fieldPath": path}}})


def no_integer(quoted: str) -> tuple[str | Worded, ...]:
    """The message about a limit of the container that is not an integer."""
    before = Worded(QUOTED_VALUES, now=f'Invalid value: "{quoted}"', before="Invalid value: resource.Quantity")
    return (f"spec.containers[0].resources.limits[{MEMORY}]: Invalid value: ", before, ": must be an integer")


def held(amount: str) -> JSON:
    """The amount as the limit and, by default, as the request."""
    resources = {"limits": {MEMORY: amount}, "requests": {MEMORY: amount}}
    return {"spec": {"containers": [{"resources": resources}]}}


AMOUNTS = {
    "half": Case(asks("0.5"), 422, "Invalid", no_integer("500m")),
    "half, in thousandths": Case(asks("500m"), 422, "Invalid", no_integer("500m")),
    "half, as a number": Case(asks(0.5), 422, "Invalid", no_integer("500m")),
    "less than nothing": Case(
        asks("-1"), 422, "Invalid", (f'limits[{MEMORY}]: Invalid value: "-1": must be greater than or equal to 0',)
    ),
    "a fraction of a unit that is whole": Case(asks("1.5Gi"), 201, shows=held("1536Mi")),
    "a fraction of a unit that is not": Case(asks("0.1Gi"), 422, "Invalid", no_integer("107374182400m")),
    "an exponent": Case(asks("1e3"), 201, shows=held("1e3")),
    "decimal units": Case(asks("5G"), 201, shows=held("5G")),
    "nothing": Case(asks("0"), 201, shows=held("0")),
    "a number": Case(asks(5), 201, shows=held("5")),
    "bytes": Case(asks("8589934592"), 201, shows=held("8589934592")),
    "more than 63 bits": Case(asks("9223372036854775808"), 201, shows=held("9223372036854775808")),
    "a word": Case(
        asks("abc"),
        400,
        "BadRequest",
        ('Pod in version "v1" cannot be handled as a Pod: quantities must match the regular expression',),
    ),
}


def of_priority(**fields: Any) -> Ask:
    made = pod("p")
    made["spec"].update(fields)
    return create(made)


FROM_ITS_CLASS = "must not be provided in pod spec; priority admission controller computed"
PRIORITIES = {
    "as its class": Case(of_priority(priority=0, preemptionPolicy="PreemptLowerPriority"), 201),
    "higher than its class": Case(
        of_priority(priority=5), 403, "Forbidden", (f"the integer value of priority (5) {FROM_ITS_CLASS} 0 from",)
    ),
    "milder than its class": Case(
        of_priority(preemptionPolicy="Never"),
        403,
        "Forbidden",
        (f"the string value of PreemptionPolicy (Never) {FROM_ITS_CLASS} PreemptLowerPriority from",),
    ),
}

RESOURCES = {
    "of the whole pod": Case(
        create(pod("p", resources={"limits": {"cpu": "1", "memory": "1Gi"}})),
        201,
        shows={"spec": {"resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}},
        since=WHOLE_PODS,
    ),
    "of the whole pod, which has no such": Case(
        create(pod("p", resources={"limits": {MEMORY: "1Gi"}})),
        422,
        "Invalid",
        (f'spec.resources.limits[{MEMORY}]: Unsupported value: "{MEMORY}"', '"cpu", "hugepages-", "memory"'),
        since=WHOLE_PODS,
    ),
    "a name without a domain": Case(
        asks("1", "gpu"),
        422,
        "Invalid",
        (
            Worded((1, 34), now='limits[gpu]: Invalid value: "gpu": ', before="limits[gpu]: Invalid value: gpu: "),
            ": must be a standard resource type or fully",
        ),
    ),
    "a name that quotas use": Case(
        asks("1", "requests.x.io/gpu"), 422, "Invalid", ("doesn't follow extended resource name standard",)
    ),
    "a domain of one word": Case(asks("20", "nano-gpu/gpu-percent"), 201),
    "requests below limits": Case(
        with_resources({"limits": {MEMORY: "2Gi"}, "requests": {MEMORY: "1Gi"}}),
        422,
        "Invalid",
        (f'spec.containers[0].resources.requests: Invalid value: "1Gi": must be equal to {MEMORY} limit of 2Gi',),
    ),
    "requests below limits, before the start": Case(
        with_resources({"limits": {MEMORY: "2"}, "requests": {MEMORY: "1"}}, "initContainers"),
        422,
        "Invalid",
        (f'spec.initContainers[0].resources.requests: Invalid value: "1": must be equal to {MEMORY} limit of 2',),
    ),
    "requests alone": Case(
        with_resources({"requests": {MEMORY: "1Gi"}}),
        422,
        "Invalid",
        ("spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources",),
    ),
    "requests above limits": Case(
        with_resources({"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}),
        422,
        "Invalid",
        ('spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1',),
    ),
}

KEYS = {
    "a name of 63": Case(create(annotated("p", {f"gpufraction.io/{NAME_63}": "v"})), 201),
    "a name of 64": Case(
        create(annotated("p", {f"gpufraction.io/{NAME_64}": "v"})),
        422,
        "Invalid",
        (f'metadata.annotations: Invalid value: "gpufraction.io/{NAME_64}": name part must be no more than 63',),
    ),
    "a name of 64, patched": Case(
        patch("p", op("add", f"/metadata/annotations/gpufraction.io~1{NAME_64}", "v")),
        422,
        "Invalid",
        ("name part must be no more than 63",),
        given=(create(annotated("p", {"a": "b"})),),
    ),
    "no name": Case(
        create(annotated("p", {"gpufraction.io/": "v"})),
        422,
        "Invalid",
        ("name part must be non-empty", NOT_A_PART),
    ),
    "a domain of 254": Case(
        create(annotated("p", {f"{PREFIX_254}/x": "v"})), 422, "Invalid", ("prefix part must be no more than 253",)
    ),
    "two slashes": Case(
        create(annotated("p", {"a/b/c": "v"})), 422, "Invalid", ('"a/b/c": ', Worded((1, 35), NOT_A_KEY, NOT_A_NAME))
    ),
    "a value that is no text": Case(
        create(annotated("p", {"a/b": 1})), 400, "BadRequest", ('Pod in version "v1" cannot be handled as a Pod',)
    ),
    "256 KiB and a byte": Case(
        create(annotated("p", {"a": "v" * (256 * 1024)})),
        422,
        "Invalid",
        (
            "metadata.annotations: Too long: ",
            Worded((1, 32), now="may not be more than 262144 bytes", before="must have at most 262144 bytes"),
        ),
    ),
    "capitals in the domain": Case(create(annotated("p", {"GPUfraction.io/x": "v"})), 201),
    "a label's value of 64": Case(
        create({**pod("p"), "metadata": {"name": "p", "labels": {"x": "v" * 64}}}),
        422,
        "Invalid",
        ("metadata.labels: Invalid value", "must be no more than 63"),
    ),
    "a pod's name with capitals": Case(
        create(pod("Bad_Name")),
        422,
        "Invalid",
        ('metadata.name: Invalid value: "Bad_Name": a lowercase RFC 1123 subdomain must consist of',),
    ),
}

ENVIRONMENT = {
    "an annotation": Case(from_field("metadata.annotations['gpufraction.io/devices.c']"), 201),
    "an annotation with a name of 64": Case(
        from_field(f"metadata.annotations['gpufraction.io/{NAME_64}']"),
        422,
        "Invalid",
        ("spec.containers[0].env[0].valueFrom.fieldRef", "name part must be no more than 63"),
    ),
    "all annotations": Case(
        from_field("metadata.annotations"),
        422,
        "Invalid",
        ('spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Unsupported value: "metadata.annotations"',),
    ),
    "a field that there is not": Case(
        from_field("spec.nothing"), 422, "Invalid", ("spec.containers[0].env[0].valueFrom.fieldRef.fieldPath",)
    ),
    "a value and a source": Case(
        with_env({"name": "E", "value": "v", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}),
        422,
        "Invalid",
        ("spec.containers[0].env[0].valueFrom: Invalid value", "may not be specified when `value` is not empty"),
    ),
    "a name twice": Case(with_env({"name": "E", "value": "1"}, {"name": "E", "value": "2"}), 201),
}

BODIES = {
    "a field that there is not": Case(create({**pod("p"), "bogus": 1}), 201),
    "a field that there is not, strictly": Case(
        create({**pod("p"), "bogus": 1}, fieldValidation="Strict"),
        400,
        "BadRequest",
        ('strict decoding error: unknown field "bogus"',),
    ),
    "another kind": Case(
        create({**pod("p"), "kind": "Node"}), 400, "BadRequest", ('Node in version "v1" cannot be handled as a Pod',)
    ),
    "another namespace": Case(
        create({**pod("p"), "metadata": {"name": "p", "namespace": "other"}}),
        400,
        "BadRequest",
        ("the namespace of the provided object does not match the namespace sent on the request",),
    ),
    "a version already": Case(
        create({**pod("p"), "metadata": {"name": "p", "resourceVersion": "5"}}),
        500,
        "",
        ("resourceVersion should not be set on objects to be created",),
    ),
    "a name that is taken": Case(
        create(pod("p")), 409, "AlreadyExists", ('pods "p" already exists',), given=(create(pod("p")),)
    ),
    "a form that nobody reads": Case(
        Ask("POST", "pods", pod("p"), "text/plain"),
        415,
        "UnsupportedMediaType",
        ("the body of the request was in an unknown format - accepted media types include: application/json",),
    ),
    "an account that there is not": Case(
        create(pod("p", serviceAccountName="nobody")),
        403,
        "Forbidden",
        ("error looking up service account", 'serviceaccount "nobody" not found'),
    ),
    "a dry run of a kind that there is not": Case(
        create(pod("p"), dryRun="true"), 422, "Invalid", ("dryRun: Unsupported value", '"All"')
    ),
}

CASES = titled(
    {
        "amount": AMOUNTS,
        "resources": RESOURCES,
        "priority": PRIORITIES,
        "key": KEYS,
        "environment": ENVIRONMENT,
        "body": BODIES,
    }
)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_answer(api: Api, case: Case) -> None:
    check(api, case)


def test_an_unknown_field_is_a_warning(api: Api) -> None:
    assert api.ask(create({**pod("p"), "bogus": 1})).warnings == r'299 - "unknown field \"bogus\""'


def test_a_namespace_that_is_not_there(api: Api) -> None:
    answer = api.ask(Ask("POST", "/api/v1/namespaces/nowhere/pods", pod("p")))
    assert (answer.code, answer.message) == (404, 'namespaces "nowhere" not found')
