"""
Whether a webhook or a policy applies to a write: rules, selectors, match conditions.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from playground.api.admission.attributes import Attributes
from playground.api.kinds.kinds import NAMESPACES, Kind
from playground.api.kinds.values import JSON
from playground.api.rules import expressions
from playground.api.store.selection import matches
from playground.api.store.store import Store


class Unevaluable(Exception):
    """A condition cannot be evaluated for this request, and no other condition is false."""


def matches_rules(rules: Iterable[JSON], attributes: Attributes) -> bool:
    return any(_matches_rule(rule, attributes) for rule in rules)


def _matches_rule(rule: JSON, attributes: Attributes) -> bool:
    names = rule.get("resourceNames")
    if names and attributes.name not in names:
        return False
    return concerns(rule, attributes.operation, attributes.kind, attributes.request.subresource)


def concerns(rule: JSON, operation: str, kind: Kind, subresource: str) -> bool:
    """Whether a rule applies to writes of this sort, for any object."""
    if not _has(rule.get("operations"), operation):
        return False
    if not (_has(rule.get("apiGroups"), kind.group) and _has(rule.get("apiVersions"), kind.version)):
        return False
    scope = rule.get("scope") or "*"
    if scope != "*" and (scope == "Namespaced") is not kind.namespaced:
        return False
    return any(matches_resource(pattern, kind.plural, subresource) for pattern in rule["resources"])


def _has(values: Iterable[str] | None, value: str) -> bool:
    return any(entry in ("*", value) for entry in values or ())


def matches_resource(pattern: str, plural: str, subresource: str) -> bool:
    """`pods`, `pods/status`, `pods/*`, `*/status`, `*` (no subresources), `*/*` (everything)."""
    resource, _, sub = pattern.partition("/")
    if resource not in ("*", plural):
        return False
    return sub in ("*", subresource) if sub else not subresource


def matches_selectors(spec: JSON, attributes: Attributes, store: Store) -> bool:
    """`namespaceSelector` and `objectSelector`; an absent one selects everything."""
    namespaces, objects = spec.get("namespaceSelector") or {}, spec.get("objectSelector") or {}
    if namespaces and not _namespace_matches(namespaces, attributes, store):
        return False
    if not objects:
        return True
    sides = [side for side in (attributes.object, attributes.old) if side is not None]
    return any(matches(objects, (side.get("metadata") or {}).get("labels") or {}) for side in sides)


def _namespace_matches(selector: JSON, attributes: Attributes, store: Store) -> bool:
    if attributes.kind is NAMESPACES:
        namespace = attributes.object or attributes.old
    elif not attributes.kind.namespaced:
        return True
    else:
        namespace = store.get(NAMESPACES.key, ("", attributes.namespace))
    return namespace is not None and matches(selector, (namespace.get("metadata") or {}).get("labels") or {})


def cel_variables(attributes: Attributes, store: Store) -> dict[str, Any]:
    """`object`, `oldObject`, `request` and `namespaceObject` as CEL sees them."""
    request, kind = attributes.request, attributes.kind
    group = {"group": kind.group, "version": kind.version}
    about = {
        "kind": {**group, "kind": kind.name},
        "resource": {**group, "resource": kind.plural},
        "subResource": request.subresource,
        "requestKind": {**group, "kind": kind.name},
        "requestResource": {**group, "resource": kind.plural},
        "requestSubResource": request.subresource,
        "name": attributes.name,
        "namespace": request.namespace,
        "operation": attributes.operation,
        "userInfo": {"extra": {}, "uid": "", **attributes.user.info()},
        "dryRun": request.dry_run,
        "options": attributes.options,
    }
    namespace = store.get(NAMESPACES.key, ("", request.namespace)) if request.namespace else None
    return {"object": attributes.object, "oldObject": attributes.old, "request": about, "namespaceObject": namespace}


class Conditions:
    """`matchConditions`: all must be true. A false condition decides, even if another condition cannot be evaluated."""

    def __init__(self, conditions: Iterable[Mapping[str, Any]]) -> None:
        self._conditions = tuple(conditions)

    def hold(self, attributes: Attributes, store: Store) -> bool:
        if not self._conditions:
            return True
        return self.hold_in(expressions.Evaluation(cel_variables(attributes, store)))

    def hold_in(self, evaluation: expressions.Evaluation) -> bool:
        """The same, with variables that other expressions read too."""
        failures = []
        for condition in self._conditions:
            value = evaluation.value(condition["expression"])
            if isinstance(value, expressions.Failed):
                failures.append(f"expression '{condition['expression']}' resulted in error: {value.message}")
            elif value is not True:
                return False
        if failures:
            raise Unevaluable("; ".join(failures))
        return True
