"""
ValidatingAdmissionPolicy: CEL rules that the API server evaluates itself, and the bindings that enable them.

The match rules, match conditions, variables, params by name, validations and the actions Deny and Warn are those of
admissionregistration.k8s.io/v1. The variable `authorizer` and params chosen by selector are not implemented: an
expression that uses them fails, and the failure policy decides.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from playground.api.admission.attributes import Attributes
from playground.api.admission.builtin import Validating
from playground.api.admission.matching import (
    Conditions,
    Unevaluable,
    cel_variables,
    concerns,
    matches_rules,
    matches_selectors,
)
from playground.api.kinds import errors
from playground.api.kinds.kinds import Kinds
from playground.api.kinds.values import JSON, dig
from playground.api.rules import expressions
from playground.api.store.store import Store

_GROUP = "admissionregistration.k8s.io"
_POLICIES, _BINDINGS = f"validatingadmissionpolicies.{_GROUP}", f"validatingadmissionpolicybindings.{_GROUP}"
_EXEMPT = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
"""Kinds to which no policy applies, so that a policy that refuses everything can be removed. Policies do apply to
webhook configurations."""
_CODES = {"Unauthorized": 401, "Forbidden": 403, "Invalid": 422, "RequestEntityTooLarge": 413}


@dataclass(frozen=True, slots=True)
class _Finding:
    """One validation that does not hold."""

    message: str
    reason: str = "Invalid"


class Policies(Validating):
    def __init__(self, *, store: Store, kinds: Kinds) -> None:
        self._store = store
        self._kinds = kinds
        self._sorts: tuple[tuple[int, ...], dict[tuple[str, ...], tuple[tuple[JSON, JSON], ...]]] = (), {}

    def validate(self, attributes: Attributes) -> None:
        if attributes.kind.group == _GROUP and attributes.kind.name in _EXEMPT:
            return
        for policy, binding in self._bound(attributes):
            if self._concerns(policy, binding, attributes):
                self._apply(policy, binding, attributes)

    def _bound(self, attributes: Attributes) -> tuple[tuple[JSON, JSON], ...]:
        """
        The policies, with their bindings, that are about writes of this sort; remembered until one of either changes,
        since most policies are about few resources and most writes are of others.
        """
        kind, writes = attributes.kind, self._store.writes((_POLICIES, _BINDINGS))
        known, found = self._sorts
        if known != writes:
            self._sorts = known, found = writes, {}
        sort = (kind.group, kind.version, kind.plural, attributes.request.subresource, attributes.operation)
        if sort not in found:
            found[sort] = tuple(self._find(attributes))
        return found[sort]

    def _find(self, attributes: Attributes) -> Iterator[tuple[JSON, JSON]]:
        for binding in self._store.ordered(_BINDINGS)[0]:
            policy = self._store.get(_POLICIES, ("", binding["spec"].get("policyName", "")))
            rules = dig(policy, "spec", "matchConstraints", "resourceRules") or ()
            about = attributes.operation, attributes.kind, attributes.request.subresource
            if policy is not None and any(concerns(rule, *about) for rule in rules):
                yield policy, binding

    def _concerns(self, policy: JSON, binding: JSON, attributes: Attributes) -> bool:
        constraints = policy["spec"].get("matchConstraints") or {}
        if not self._matches(constraints, attributes):
            return False
        narrowed = binding["spec"].get("matchResources")
        return narrowed is None or self._matches(narrowed, attributes, empty=True)

    def _matches(self, constraints: JSON, attributes: Attributes, *, empty: bool = False) -> bool:
        rules = constraints.get("resourceRules") or ()
        if not (matches_rules(rules, attributes) if rules else empty):
            return False
        if matches_rules(constraints.get("excludeResourceRules") or (), attributes):
            return False
        return matches_selectors(constraints, attributes, self._store)

    def _apply(self, policy: JSON, binding: JSON, attributes: Attributes) -> None:
        named = f"ValidatingAdmissionPolicy '{policy['metadata']['name']}' with binding '{binding['metadata']['name']}'"
        actions = binding["spec"].get("validationActions") or ()
        for finding in self._findings(policy, binding, attributes):
            if "Warn" in actions:
                attributes.request.warnings.append(f"Validation failed for {named}: {finding.message}")
            if "Deny" in actions:
                why = f"{named} denied request: {finding.message}"
                refusal = errors.forbidden(attributes.kind, attributes.name, why)
                refusal.reason = finding.reason
                refusal.code = _CODES.get(finding.reason, 422)
                refusal.details = {**(refusal.details or {}), "causes": [{"message": finding.message}]}
                raise refusal

    def _findings(self, policy: JSON, binding: JSON, attributes: Attributes) -> Iterator[_Finding]:
        spec = policy["spec"]
        strict = spec.get("failurePolicy") != "Ignore"
        variables = cel_variables(attributes, self._store)
        problem = self._add_params(spec, binding, attributes, variables)
        if problem is not None:
            if strict:
                yield _Finding(problem)
            return
        evaluation = expressions.Evaluation({"params": None, **variables})
        try:
            if not Conditions(spec.get("matchConditions") or ()).hold_in(evaluation):
                return
        except Unevaluable as failure:
            if strict:
                yield _Finding(str(failure))
            return
        _add_values(spec.get("variables") or (), evaluation)
        for validation in spec.get("validations") or ():
            finding = _judge(validation, evaluation, strict=strict)
            if finding is not None:
                yield finding

    def _add_params(self, spec: JSON, binding: JSON, attributes: Attributes, variables: dict[str, Any]) -> str | None:
        """Set `params` to the object that the binding refers to. Returns an error message if it does not exist."""
        about = spec.get("paramKind")
        if not about:
            return None
        reference = binding["spec"].get("paramRef") or {}
        kind = self._kinds.by_name(about.get("apiVersion", ""), about.get("kind", ""))
        namespace = ""
        if kind is not None and kind.namespaced:
            namespace = reference.get("namespace") or attributes.namespace
        found = self._store.get(kind.key, (namespace, reference.get("name", ""))) if kind else None
        variables["params"] = found
        if found is None and reference.get("parameterNotFoundAction", "Deny") == "Deny":
            return "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"
        return None


def _add_values(definitions: Any, evaluation: expressions.Evaluation) -> None:
    """Add the policy's variables. Each may use the ones before it. A variable that fails is left out."""
    found: dict[str, Any] = {}
    evaluation.put("variables", found)
    for definition in definitions:
        value = evaluation.value(definition["expression"])
        if not isinstance(value, expressions.Failed):
            found[definition["name"]] = value
            evaluation.put("variables", found)


def _judge(validation: JSON, evaluation: expressions.Evaluation, *, strict: bool) -> _Finding | None:
    text = validation["expression"]
    value = evaluation.value(text)
    if value is True:
        return None
    if isinstance(value, expressions.Failed):
        return _Finding(f"expression '{text}' resulted in error: {value.message}") if strict else None
    reason = str(validation.get("reason") or "Invalid")
    computed = None
    if dynamic := validation.get("messageExpression"):
        computed = evaluation.value(dynamic)
    if isinstance(computed, str) and computed.strip():
        return _Finding(computed, reason)
    return _Finding(str(dig(validation, "message") or f"failed expression: {text}"), reason)
