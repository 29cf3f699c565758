"""
Label and field selectors: text to predicate.

The grammar is that of the Kubernetes documentation "Labels and Selectors". Field selectors support only the fields that
a real server indexes, and refuse others, so that no program starts to depend on a field that a real server lacks.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from playground.api.kinds.errors import bad_request
from playground.api.kinds.kinds import Kind
from playground.api.kinds.values import JSON, dig

Predicate: TypeAlias = Callable[[JSON], bool]
_Labels: TypeAlias = Mapping[str, str]

_SET = re.compile(r"^(?P<key>[^\s!=,()]+)\s+(?P<op>in|notin)\s*\((?P<values>[^)]*)\)$")
_COMPARE = re.compile(r"^(?P<key>[^\s!=<>,()]+)\s*(?P<op>==|=|!=|>|<)\s*(?P<value>[^\s!=<>,()]*)$")
_EXISTS = re.compile(r"^(?P<not>!?)\s*(?P<key>[^\s!=<>,()]+)$")
_COMMA_OUTSIDE_PARENS = re.compile(r",(?![^(]*\))")

_FIELDS: Mapping[str, tuple[str, ...]] = {
    "pods": (
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    ),
    "events": (
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ),
    "nodes": ("spec.unschedulable",),
    "namespaces": ("status.phase",),
    "secrets": ("type",),
    "replicasets.apps": ("status.replicas",),
    "jobs.batch": ("status.successful",),
    "services": ("spec.clusterIP", "spec.type"),
}


def labels_of(value: JSON) -> _Labels:
    return value["metadata"].get("labels") or {}


def everything(_: JSON) -> bool:
    return True


def label_selector(text: str) -> Predicate | None:
    """The predicate of a `labelSelector` parameter; None when it selects everything."""
    if not text.strip():
        return None
    tests = [_label_test(part.strip()) for part in _COMMA_OUTSIDE_PARENS.split(text)]
    return lambda value: all(test(labels_of(value)) for test in tests)


def _label_test(text: str) -> Callable[[_Labels], bool]:
    if match := _SET.match(text):
        key, wanted = match["key"], {v.strip() for v in match["values"].split(",")}
        if match["op"] == "in":
            return lambda labels: key in labels and labels[key] in wanted
        return lambda labels: labels.get(key) not in wanted
    if match := _COMPARE.match(text):
        return _comparison(match["key"], match["op"], match["value"])
    if match := _EXISTS.match(text):
        key, absent = match["key"], bool(match["not"])
        return lambda labels: (key in labels) is not absent
    raise bad_request(f'unable to parse requirement: found "{text}", expected: an expression of a label selector')


def _comparison(key: str, operator: str, value: str) -> Callable[[_Labels], bool]:
    match operator:
        case "=" | "==":
            return lambda labels: labels.get(key) == value
        case "!=":
            return lambda labels: labels.get(key) != value
    if not re.fullmatch(r"-?[0-9]+", value):
        raise bad_request(
            f"unable to parse requirement: for 'Gt', 'Lt' operators, the value must be an integer: {value}"
        )
    bound, sign = int(value), 1 if operator == ">" else -1
    return lambda labels: sign * _number(labels.get(key), bound) > sign * bound


def _number(text: str | None, otherwise: int) -> int:
    return int(text) if text is not None and re.fullmatch(r"-?[0-9]+", text) else otherwise


def field_selector(text: str, kind: Kind) -> Predicate | None:
    """The predicate of a `fieldSelector` parameter; None when it selects everything."""
    if not text.strip():
        return None
    tests = [_field_test(part.strip(), kind) for part in text.split(",")]
    return lambda value: all(test(value) for test in tests)


def _field_test(text: str, kind: Kind) -> Predicate:
    match = re.match(r"^(?P<field>[^=!]+)(?P<op>==|=|!=)(?P<value>.*)$", text)
    if match is None:
        raise bad_request(f'invalid selector: "{text}"; can\'t understand "{text}"')
    path, value, equal = match["field"], match["value"], match["op"] != "!="
    if path not in ("metadata.name", "metadata.namespace") and path not in _selectable(kind):
        raise bad_request(
            f'Unable to find "{kind.api_version}, Resource={kind.plural}" that match label selector "", '
            f'field selector "{text}": field label not supported: {path}'
        )
    steps = tuple(path.split("."))
    return lambda item: (_text(_field(item, steps)) == value) is equal


def _selectable(kind: Kind) -> tuple[str, ...]:
    if kind.custom is None:
        return _FIELDS.get(kind.key, ())
    return tuple(entry["jsonPath"].lstrip(".") for entry in kind.custom.get("selectableFields") or ())


def _field(item: JSON, steps: tuple[str, ...]) -> Any:
    if steps == ("source",):
        return dig(item, "source", "component")
    return dig(item, *steps)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def matches(selector: JSON | None, labels: _Labels) -> bool:
    """Whether a metav1.LabelSelector selects these labels. An absent one selects nothing, an empty one everything."""
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_expression(entry, labels) for entry in selector.get("matchExpressions") or ())


def _expression(entry: JSON, labels: _Labels) -> bool:
    value, values = labels.get(entry["key"]), entry.get("values") or ()
    match entry["operator"]:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    return False
