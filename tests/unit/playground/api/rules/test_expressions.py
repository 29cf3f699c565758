"""CEL expressions: the shortcuts of the evaluation do not change any value."""

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from playground.api.rules import reading
from playground.api.rules.expressions import Evaluation, Failed, evaluate, execute
from playground.programs import installing

JSON = dict[str, Any]

OBJECT: JSON = {"metadata": {"name": "a", "uid": "u"}, "spec": {"list": [1, 2], "big": "x" * 9}}
READ: dict[str, tuple[str, JSON]] = {
    "a field": ("object.metadata.name == 'a'", {"metadata": {"name": "a"}}),
    "a field that is not there": ("object.spec.none == 1", {"spec": {}}),
    "a field of a field that is not there": ("object.none.none == 1", {}),
    "what a method is called on": ("object.spec.list.exists(i, i > 1)", {"spec": {"list": [1, 2]}}),
    "an element": ("object.spec.list[0] == 1", {"spec": {"list": [1, 2]}}),
    "a field by a key": ("object.metadata['name'] == 'a'", {"metadata": OBJECT["metadata"]}),
    "a field, then what it is in": (
        "object.metadata.name == 'a' && has(object.metadata)",
        {"metadata": OBJECT["metadata"]},
    ),
    "what a field is in, then the field": (
        "has(object.metadata) && object.metadata.name == 'a'",
        {"metadata": OBJECT["metadata"]},
    ),
    "two fields": ("object.metadata.name == object.spec.big", {"metadata": {"name": "a"}, "spec": {"big": "x" * 9}}),
    "whether it is there": ("object != null", {}),
    "everything": ("object == other", OBJECT),
    "everything, by a method": ("object.exists(key, key == 'spec')", OBJECT),
    "a part of a longer name": ("objects.metadata == 1 && myobject.spec == 2", {}),
}


@pytest.mark.parametrize(("text", "expected"), READ.values(), ids=READ.keys())
def test_an_expression_gets_what_it_can_read(text: str, expected: JSON) -> None:
    assert reading.part(OBJECT, reading.fields(text, "object")) == expected


def test_what_is_nothing_stays_nothing() -> None:
    assert reading.part(None, reading.fields("object.metadata.name == 'a' || object == null", "object")) is None


def policies() -> Iterator[JSON]:
    for folder in (installing.BASE, *sorted(installing.COMPONENTS.iterdir())):
        for document in installing.shipped(folder) if (folder / "kustomization.yaml").exists() else ():
            if document["kind"] == "ValidatingAdmissionPolicy":
                yield document


POLICIES = {document["metadata"]["name"]: document["spec"] for document in policies()}
ALLOCATOR = "system:serviceaccount:gpufraction-system:gpufraction-allocator"


def pod(*, gates: bool = False, annotations: JSON | None = None, status: JSON | None = None, size: int = 1) -> JSON:
    limits = {"gpufraction.io/gpu-memory": "2Gi", "cpu": 1}
    env = [{"name": f"E{i}", "value": "x" * 100} for i in range(size)]
    spec: JSON = {"containers": [{"name": "main", "resources": {"limits": limits}, "env": env}]}
    if gates:
        spec["schedulingGates"] = [{"name": "gpufraction.io/allocation"}]
    metadata: JSON = {"name": "web", "namespace": "team", "uid": "u", "resourceVersion": str(size)}
    if annotations is not None:
        metadata["annotations"] = annotations
    return {"kind": "Pod", "metadata": metadata, "spec": spec, **({"status": status} if status else {})}


REQUESTED = {"gpufraction.io/request": "{}"}
PLACED = {**REQUESTED, "gpufraction.io/allocation": "{}", "gpufraction.io/devices.main": "GPU-1"}
GATED = pod(gates=True, annotations=REQUESTED)
RUNNING = pod(annotations=PLACED, status={"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]})
LARGE = pod(annotations={"cdi.k8s.io/x": "a"}, size=80)
NODE = {"kind": "Node", "metadata": {"name": "n1", "labels": {}}, "status": {"capacity": {"cpu": "1"}}}
WRITES: list[tuple[JSON | None, JSON | None]] = [
    (None, pod()),
    (None, GATED),
    (GATED, RUNNING),
    (RUNNING, GATED),
    (RUNNING, LARGE),
    (NODE, NODE),
    (LARGE, None),
]
REQUESTS = [
    {"userInfo": {"username": name, "groups": groups, "extra": extra}, "name": "n1", **about}
    for name, groups, extra in (
        (ALLOCATOR, ["system:authenticated"], {}),
        ("jane", ["system:masters", "system:nodes"], {"authentication.kubernetes.io/node-name": ["n1"]}),
    )
    for about in (
        {"operation": "CREATE", "subResource": "", "namespace": "team", "resource": {"resource": "pods"}},
        {"operation": "UPDATE", "subResource": "status", "namespace": "kube-system", "resource": {"resource": "nodes"}},
    )
]
NAMESPACES = [None, {"metadata": {"name": "team", "labels": {"gpufraction.io/inject": "enabled"}}}]


def judged(spec: JSON, variables: JSON) -> Iterator[tuple[str, JSON]]:
    """A policy's expressions in order, each with the variables that it gets."""
    for each in spec.get("matchConditions") or ():
        yield each["expression"], variables
    found: JSON = {}
    for each in spec.get("variables") or ():
        yield each["expression"], {**variables, "variables": dict(found)}
        value = execute(each["expression"], {**variables, "variables": found})
        if not isinstance(value, Failed):
            found[each["name"]] = value
    for each in spec.get("auditAnnotations") or ():
        yield each["valueExpression"], {**variables, "variables": found}
    for each in spec.get("validations") or ():
        for key in ("expression", "messageExpression"):
            if key in each:
                yield each[key], {**variables, "variables": found}


def in_any_order(value: Any) -> Any:
    """The library returns the keys of a map in its own order, which differs from call to call."""
    return sorted(value) if isinstance(value, list) and all(isinstance(item, str) for item in value) else value


@pytest.mark.parametrize("spec", POLICIES.values(), ids=POLICIES.keys())
def test_the_shipped_policies_say_the_same_by_short_cuts(spec: JSON) -> None:
    for (old, new), request, namespace in itertools.product(WRITES, REQUESTS, NAMESPACES):
        about = {"object": new, "oldObject": old, "request": request, "namespaceObject": namespace}
        for text, variables in judged(spec, {"params": None, **about}):
            expected = in_any_order(execute(text, variables))
            evaluation = Evaluation(variables)
            seen = [in_any_order(evaluation.value(text)) for _ in range(2)]  # the second time from memory
            assert seen == [expected, expected], text


ROOTS = st.sampled_from(["object", "oldObject", "request"])
NAMED = st.sampled_from(["a", "b", "list"])
CONSTANTS = st.sampled_from(["null", "true", "1", "'v'", "'object.a'", "[1, 'v']"])


def paths_of(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Expressions that read a part of these."""
    return st.one_of(
        st.tuples(values, NAMED).map(lambda pair: f"{pair[0]}.{pair[1]}"),
        st.tuples(values, NAMED).map(lambda pair: f"{pair[0]}['{pair[1]}']"),
    )


def composed(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Larger expressions built from these."""
    operators = st.sampled_from(["&&", "||", "==", "!=", "in"])
    return st.one_of(
        st.tuples(parts, operators, parts).map(lambda three: f"({three[0]} {three[1]} {three[2]})"),
        st.tuples(parts, operators, parts).map(lambda three: f"{three[0]} {three[1]} {three[2]}"),
        st.tuples(parts, parts, parts).map(lambda three: f"({three[0]} ? {three[1]} : {three[2]})"),
        st.tuples(parts, parts).map(lambda two: f"{two[0]}.exists(x, x == {two[1]} || x.a == 1)"),
        st.tuples(parts, parts).map(lambda two: f"[{two[0]}, {two[1]}].all(x, has(x.a) || x == null)"),
        parts.map(lambda part: f"!{part}"),
        parts.map(lambda part: f"{part}.size()"),
        paths_of(ROOTS).map(lambda path: f"has({path})" if path.endswith(("a", "b", "list")) else path),
    )


EXPRESSIONS = st.recursive(
    st.one_of(ROOTS, CONSTANTS, st.recursive(ROOTS, paths_of, max_leaves=2)), composed, max_leaves=6
)
LEAVES = st.sampled_from([None, True, 1, "v", "v" * 300, "v" * 5000, [], [1, "v"], [{"a": 1}]])
VALUES = st.recursive(LEAVES, lambda values: st.dictionaries(NAMED, values, max_size=3), max_leaves=6)


@given(text=EXPRESSIONS, object=VALUES, old=VALUES, request=VALUES)
def test_any_expression_says_the_same_by_short_cuts(text: str, object: Any, old: Any, request: Any) -> None:
    variables = {"object": object, "oldObject": old, "request": request}
    assert Evaluation(variables).value(text) == execute(text, variables)


def test_a_value_is_found_without_an_object_where_it_does_not_count() -> None:
    variables = {"request": {"name": "a"}, "object": {"metadata": {"uid": "u" * 1000}}}
    assert Evaluation(variables).value("request.name == 'a' || object.metadata.none == 1") is True
    assert Evaluation(variables).value("request.name == 'b' || object.metadata.uid.size() == 1000") is True


def test_values_that_differ_in_type_alone_are_not_mixed_up() -> None:
    text = "type(x) == type(1)"
    assert [evaluate(text, {"x": x}) for x in (1, 1.0, True, 1)] == [execute(text, {"x": x}) for x in (1, 1.0, True, 1)]


def test_a_computed_time_can_be_a_variable() -> None:
    found = evaluate("timestamp('2026-01-01T00:00:00Z')", {})
    assert found == datetime(2026, 1, 1, tzinfo=UTC)
    assert evaluate("t < timestamp('2027-01-01T00:00:00Z')", {"t": found}) is True


def test_an_expression_that_does_not_compile_has_no_value() -> None:
    assert isinstance(evaluate("object.", {"object": {}}), Failed)
