"""
Mutating and validating webhooks: which ones a write calls, the review that they get, and the effect of their response.

Matching, order, reinvocation, failure policy and the wording of refusals are those of a real API server. A
`WebhookCaller` delivers reviews to webhooks.
"""

import base64
import binascii
import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jsonpatch
import jsonpointer

from playground.api.admission.attributes import Attributes
from playground.api.admission.matching import Conditions, Unevaluable, matches_rules, matches_selectors
from playground.api.admission.webhookcaller import CallFailed, WebhookCaller
from playground.api.kinds import defaults, errors
from playground.api.kinds.kinds import Kind
from playground.api.kinds.values import JSON, copy_json
from playground.api.rules import fields
from playground.api.store.store import Store

_GROUP = "admissionregistration.k8s.io"
MUTATING, VALIDATING = f"mutatingwebhookconfigurations.{_GROUP}", f"validatingwebhookconfigurations.{_GROUP}"


@dataclass(frozen=True, slots=True)
class _Hook:
    key: tuple[str, int]
    spec: JSON

    @property
    def name(self) -> str:
        return str(self.spec["name"])


class Webhooks:
    """The admission plugin that calls webhooks."""

    def __init__(
        self, *, store: Store, caller: WebhookCaller, again: Callable[[Attributes], None] = lambda attributes: None
    ) -> None:
        """`again`: the built-in plugins that run again after a webhook has changed the object."""
        self._store = store
        self._caller = caller
        self._again = again

    def mutate(self, attributes: Attributes) -> None:
        """
        Call the mutating webhooks in order. Then call those with reinvocation again, if a later webhook or a built-in
        plugin that ran again has changed the object.
        """
        changed = False
        reinvoke: set[tuple[str, int]] = set()
        earlier: set[tuple[str, int]] = set()
        for hook in self._asked(MUTATING, attributes):
            if self._mutate_one(hook, attributes):
                reinvoke |= earlier
                changed = True
            if hook.spec.get("reinvocationPolicy") == "IfNeeded":
                earlier.add(hook.key)
        if changed:
            before = copy_json(attributes.object)
            self._again(attributes)
            reinvoke |= earlier if attributes.object != before else set()
        if reinvoke:
            for hook in self._asked(MUTATING, attributes):
                if hook.key in reinvoke:
                    self._mutate_one(hook, attributes)

    def validate(self, attributes: Attributes) -> None:
        for hook in self._asked(VALIDATING, attributes):
            self._ask(hook, attributes)

    def _asked(self, resource: str, attributes: Attributes) -> Iterator[_Hook]:
        """The hooks that match. Each is matched against the object as it is when its turn comes."""
        if attributes.kind.group == _GROUP:
            return
        configurations, _ = self._store.ordered(resource)
        for configuration in configurations:
            for i, spec in enumerate(configuration.get("webhooks") or ()):
                hook = _Hook((configuration["metadata"]["name"], i), spec)
                if self._matches(hook, attributes):
                    yield hook

    def _matches(self, hook: _Hook, attributes: Attributes) -> bool:
        spec = hook.spec
        if not matches_rules(spec.get("rules") or (), attributes):
            return False
        if not matches_selectors(spec, attributes, self._store):
            return False
        try:
            return Conditions(spec.get("matchConditions") or ()).hold(attributes, self._store)
        except Unevaluable as failure:
            if spec.get("failurePolicy") == "Ignore":
                return False
            raise errors.forbidden(attributes.kind, attributes.name, str(failure)) from None

    def _mutate_one(self, hook: _Hook, attributes: Attributes) -> bool:
        """Whether the hook changed the object."""
        response = self._ask(hook, attributes)
        if response is None or not response.get("patch") or attributes.object is None:
            return False
        changed = self._patched(hook, attributes.object, response)
        if changed == attributes.object:
            return False
        attributes.object = changed = _decoded(attributes.kind, changed)
        if not attributes.request.subresource:
            defaults.apply(attributes.kind, changed)
        return True

    def _patched(self, hook: _Hook, value: JSON, response: JSON) -> JSON:
        try:
            patch = jsonpatch.JsonPatch(json.loads(base64.b64decode(response["patch"], validate=True)))
        except (binascii.Error, ValueError, TypeError, jsonpatch.JsonPatchException) as failure:
            why = f"received undecodable patch in webhook response: {failure}"
            raise errors.internal(f'failed calling webhook "{hook.name}": {why}') from None
        return _applied(patch, value)

    def _ask(self, hook: _Hook, attributes: Attributes) -> JSON | None:
        """The hook's response; None if the call failed and its failure policy is Ignore. Raises the hook's refusal."""
        review = review_of(attributes)
        try:
            answer = self._caller.call(hook.spec, review)
            response = _response(answer, review["request"]["uid"])
        except CallFailed as failure:
            if hook.spec.get("failurePolicy") == "Ignore":
                return None
            raise errors.internal(f'failed calling webhook "{hook.name}": {failure}') from None
        attributes.request.warnings.extend(str(text) for text in response.get("warnings") or ())
        if not response.get("allowed"):
            raise _refusal(hook.name, response.get("status") or {})
        return response


def _applied(patch: jsonpatch.JsonPatch, value: JSON) -> JSON:
    """The patched object, operation by operation, so that the one that fails can be named. Raises 500."""
    changed = copy_json(value)
    for operation in patch:
        kind, path = operation["op"], operation["path"]
        try:
            changed = jsonpatch.JsonPatch([operation]).apply(changed)
        except jsonpatch.JsonPatchTestFailed:
            raise errors.internal(f"testing value {path} failed: test failed") from None
        except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException, TypeError, KeyError) as failure:
            raise errors.internal(f"error in {kind} for path: '{path}': {failure}") from None
    if not isinstance(changed, dict):
        raise errors.internal("json: cannot unmarshal the patched value into an object")
    return changed


def _decoded(kind: Kind, value: JSON) -> JSON:
    """Decode a patched object: unknown fields are dropped, and a wrong type fails the request."""
    if kind.custom is not None:
        return value
    try:
        return fields.decode(kind, value)[0]
    except errors.ApiError as refusal:
        raise errors.internal(refusal.message.partition(f"{errors.UNHANDLED}{kind.name}: ")[2]) from None


def _response(answer: Any, uid: str) -> JSON:
    response = answer.get("response") if isinstance(answer, dict) else None
    problem = ""
    if not isinstance(response, dict):
        problem = "webhook response was absent"
    elif answer.get("kind") != "AdmissionReview" or answer.get("apiVersion") != "admission.k8s.io/v1":
        found = f"{answer.get('apiVersion')}, Kind={answer.get('kind')}"
        problem = f"expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got {found}"
    elif response.get("uid") != uid:
        problem = f'expected response.uid="{uid}", got "{response.get("uid")}"'
    elif response.get("patch") and not response.get("patchType"):
        problem = "webhook returned response.patch but not response.patchType"
    elif response.get("patchType") and not response.get("patch"):
        problem = "webhook returned response.patchType but not response.patch"
    elif response.get("patchType", "JSONPatch") != "JSONPatch":
        problem = f'invalid value of response.patchType="{response["patchType"]}": only "JSONPatch" is supported'
    if problem or not isinstance(response, dict):
        raise CallFailed(f"received invalid webhook response: {problem}")
    return response


def _refusal(name: str, status: JSON) -> errors.ApiError:
    message, reason = status.get("message"), status.get("reason")
    text = f'admission webhook "{name}" denied the request'
    if message:
        text += f": {message}"
    elif reason:
        text += f": {reason}"
    else:
        text += " without explanation"
    code = int(status.get("code") or 0)
    return errors.ApiError(code if code >= 400 else 400, str(reason or ""), text, status.get("details"))


def review_of(attributes: Attributes) -> JSON:
    """The AdmissionReview to send to a webhook."""
    request, kind = attributes.request, attributes.kind
    about = {"group": kind.group, "version": kind.version}
    body = attributes.object if attributes.object is not None else attributes.old
    own = request.subresource and body is not None and body.get("kind")
    review: JSON = {
        "uid": str(uuid.uuid4()),
        "kind": _kind_of(body) if own and body else {**about, "kind": kind.name},
        "resource": {**about, "resource": kind.plural},
        "requestResource": {**about, "resource": kind.plural},
        "operation": attributes.operation,
        "userInfo": attributes.user.info(),
        "object": attributes.object,
        "oldObject": attributes.old,
        "dryRun": request.dry_run,
        "options": attributes.options,
    }
    review["requestKind"] = review["kind"]
    if request.subresource:
        review["subResource"] = review["requestSubResource"] = request.subresource
    if attributes.name:
        review["name"] = attributes.name
    if request.namespace:
        review["namespace"] = request.namespace
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": review}


def _kind_of(value: JSON) -> JSON:
    group, _, version = str(value.get("apiVersion", "")).rpartition("/")
    return {"group": group, "version": version, "kind": value.get("kind")}
