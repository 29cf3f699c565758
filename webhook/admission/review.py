"""
AdmissionReview v1 in and out: the only code that knows base64, `patchType` and status codes.

Formats: Kubernetes, "Dynamic Admission Control", request and response. Pure. `decode` raises `BadReview` for a body
that is not an AdmissionReview. `structure_problem` checks that a pod's JSON has the structure on which
`webhook.admission.admit` relies; the pod's requests are judged there.
"""

from __future__ import annotations

import base64
import json
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NoReturn

from jsonpointer import escape

from contract.dialects.base import Refusal
from contract.encoding import reading
from contract.encoding.plain import plain
from contract.encoding.reading import shown

JSON = dict[str, Any]

API_VERSION, KIND = "admission.k8s.io/v1", "AdmissionReview"
INVALID, FORBIDDEN = 422, 403
"""Status of a denial: the pod as written cannot be served; or it could be, but not here or not now."""
_REASONS = {INVALID: "Invalid", FORBIDDEN: "Forbidden"}

WARNING_LENGTH, WARNINGS_LENGTH = 120, 4096
"""Characters: Kubernetes' recommended limit of one warning, and what it keeps of all warnings together."""


AUDIT_LENGTH = 1_024
"""Characters of one note for the audit log; it may contain a tenant's text."""
_OPERATIONS = ("CREATE", "UPDATE", "DELETE", "CONNECT")
_LONGEST_KIND = 253
_MOST_CHANGED = 256
"""Items of a list that are changed one by one; where more change, the list is replaced as a whole."""
_TEMPLATES = "fake-pod-"
"""`generateName` of the pods by which Cluster Autoscaler tries templates (`capacitybuffer/fakepods/dryrun.go`)."""


class BadReview(ValueError):
    """
    The body is not an AdmissionReview v1 as an API server sends it. The message names the wrong part, and shows at most
    its beginning and its end.
    """


@dataclass(frozen=True, slots=True)
class Review:
    """One admission request. `pod` is the object as it will be stored, empty if the operation has none."""

    uid: str
    operation: str
    namespace: str
    dry_run: bool
    pod: JSON
    old: JSON
    kind: str
    """The object's kind, with its group where it has one: `Pod`, `apps/Deployment`."""
    sub_resource: str = ""

    @property
    def creates_pod(self) -> bool:
        """Whether this is the request in which shares are given."""
        return self.operation == "CREATE" and self.kind == "Pod" and not self.sub_resource

    @property
    def is_template(self) -> bool:
        """
        Whether an autoscaler asks about the result of a pod template, to add nodes for such pods (CapacityBuffer).

        Cluster Autoscaler creates such a pod in a dry run, under a generated name of its own.
        """
        metadata = self.pod.get("metadata")
        generated = metadata.get("generateName") if isinstance(metadata, Mapping) else None
        return self.dry_run and self.creates_pod and generated == _TEMPLATES

    @property
    def debugs_pod(self) -> bool:
        """Whether the request puts ephemeral containers into a pod, as `kubectl debug` does."""
        return (self.operation, self.kind, self.sub_resource) == ("UPDATE", "Pod", "ephemeralcontainers")


def decode(body: bytes) -> Review:
    """
    Read the body of a request. Raises `BadReview`, also for names that no API server sends: any client of the port can
    send anything, and names become keys, paths and log lines.
    """
    try:
        document = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BadReview("the body is not JSON") from error
    if not isinstance(document, dict):
        raise BadReview("the body is not a JSON object")
    if (document.get("apiVersion"), document.get("kind")) != (API_VERSION, KIND):
        raise BadReview(f"the body is not an {KIND} of {API_VERSION}")
    request = _object(document, "request")
    if not request:
        raise BadReview("request is missing")
    kind, operation = _object(request, "kind"), _text(request, "operation")
    group, name = _text(kind, "group"), _text(kind, "kind")
    uid, pod = _text(request, "uid"), _object(request, "object")
    if not uid or not operation or not name:
        raise BadReview("request.uid, request.operation and request.kind.kind must not be empty")
    if operation == "CREATE" and not pod:
        raise BadReview("request.object is missing")
    made = Review(
        uid=uid,
        operation=operation,
        namespace=_text(request, "namespace"),
        dry_run=request.get("dryRun") is True,
        pod=pod,
        old=_object(request, "oldObject"),
        kind=f"{group}/{name}" if group else name,
        sub_resource=_text(request, "subResource"),
    )
    _check(made)
    return made


def _check(made: Review) -> None:
    """Raise `BadReview` for an identity that no API server gives."""
    if not reading.is_uid(made.uid):
        raise BadReview(f"request.uid: found {shown(made.uid)}; give 1 to 128 printable characters")
    if made.operation not in _OPERATIONS:
        raise BadReview(f"request.operation: found {shown(made.operation)}; give one of {', '.join(_OPERATIONS)}")
    if len(made.kind) > _LONGEST_KIND or len(made.sub_resource) > _LONGEST_KIND:
        raise BadReview(f"request.kind or request.subResource has more than {_LONGEST_KIND} characters")
    of_a_pod = made.creates_pod or made.debugs_pod
    if (made.namespace or of_a_pod) and not reading.is_label(made.namespace):
        cure = "give the name of a namespace, at most 63 of a-z, 0-9 and -"
        raise BadReview(f"request.namespace: found {shown(made.namespace)}; {cure}")
    metadata = made.pod.get("metadata")
    own = metadata.get("namespace") if of_a_pod and isinstance(metadata, dict) else None
    if own and own != made.namespace:
        raise BadReview(f"request.object.metadata.namespace: found {shown(own)}; give request.namespace or nothing")


def _no_constant(word: str) -> NoReturn:
    """Refuses `NaN` and `Infinity`, which Python reads and JSON does not have (RFC 8259)."""
    raise ValueError(word)


def _object(parent: Mapping[str, Any], key: str) -> JSON:
    value = parent.get(key)
    if value is not None and not isinstance(value, dict):
        raise BadReview(f"{key} is not an object")
    return value or {}


def _text(parent: Mapping[str, Any], key: str) -> str:
    value = parent.get(key)
    if value is not None and not isinstance(value, str):
        raise BadReview(f"{key} is not text")
    return value or ""


def allowed(
    uid: str,
    *,
    before: JSON | None = None,
    after: JSON | None = None,
    warnings: Iterable[str] = (),
    audit: Mapping[str, str] = MappingProxyType({}),
) -> bytes:
    """
    The answer that admits the object, with the patch from `before` to `after` where both are given and differ.

    audit: what the API server's audit log notes of it, by key.
    """
    response: JSON = {"uid": uid, "allowed": True, **_noted(audit)}
    operations = patch(before, after) if before is not None and after is not None else []
    if operations:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(_dump(operations)).decode("ascii")
    lines = split_warnings(warnings)
    if lines:
        response["warnings"] = lines
    return _review(response)


def _noted(audit: Mapping[str, str]) -> JSON:
    notes = {key: plain(value, AUDIT_LENGTH) for key, value in audit.items() if value}
    return {"auditAnnotations": notes} if notes else {}


def denied(uid: str, message: str, *, code: int = INVALID, audit: Mapping[str, str] = MappingProxyType({})) -> bytes:
    """The answer that refuses the object. kubectl prints `message`; `code` is `INVALID` or `FORBIDDEN`."""
    words = plain(message, WARNINGS_LENGTH)
    status = {"status": "Failure", "code": code, "reason": _REASONS[code], "message": words}
    return _review({"uid": uid, "allowed": False, "status": status, **_noted(audit)})


def patch(before: JSON, after: JSON) -> list[JSON]:
    """
    JSON patch operations (RFC 6902) that make `after` of `before`.

    Admission changes a pod in few places, so equal parts are skipped. It adds to a list at the beginning or at the end,
    so lists are compared from both ends.
    """
    return list(_operations("", before, after))


def _operations(path: str, before: Any, after: Any) -> Iterator[JSON]:
    if before == after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before:
            if key not in after:
                yield {"op": "remove", "path": f"{path}/{escape(key)}"}
        for key, value in after.items():
            if key not in before:
                yield {"op": "add", "path": f"{path}/{escape(key)}", "value": value}
            elif before[key] is not value:
                yield from _operations(f"{path}/{escape(key)}", before[key], value)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _list_operations(path, before, after)
    else:
        yield {"op": "replace", "path": path, "value": after}


def _list_operations(path: str, before: list[Any], after: list[Any]) -> Iterator[JSON]:
    """Keeps the common beginning and end of both lists, and compares the items between them by position."""
    shorter = min(len(before), len(after))
    start = next((at for at in range(shorter) if before[at] != after[at]), shorter)
    end = next((at for at in range(shorter - start) if before[-1 - at] != after[-1 - at]), shorter - start)
    if max(len(before), len(after)) - start - end > _MOST_CHANGED:
        # The API server moves the rest of the list for each item that is added or removed.
        yield {"op": "replace", "path": path, "value": after}
        return
    for at in range(start, shorter - end):
        yield from _operations(f"{path}/{at}", before[at], after[at])
    for at in reversed(range(shorter - end, len(before) - end)):
        yield {"op": "remove", "path": f"{path}/{at}"}
    for at in range(shorter - end, len(after) - end):
        yield {"op": "add", "path": f"{path}/{at}", "value": after[at]}


def split_warnings(warnings: Iterable[str]) -> list[str]:
    """Warnings split at spaces into lines that Kubernetes keeps; lines beyond its limit for all are left out."""
    lines: list[str] = []
    room = WARNINGS_LENGTH
    for warning in warnings:
        for line in textwrap.wrap(plain(warning, WARNINGS_LENGTH), WARNING_LENGTH, break_on_hyphens=False):
            room -= len(line)
            if room < 0:
                return lines
            lines.append(line)
    return lines


def _review(response: JSON) -> bytes:
    return _dump({"apiVersion": API_VERSION, "kind": KIND, "response": response})


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


# -- the pod's structure ------------------------------------------------------------------------------------------
#
# An API server sends nothing else, but any client of the port can, and after this check no code of ours meets a string
# where it reads a list. Only fields that we read are checked: unknown fields and null are fine anywhere.

_Check = Callable[[Any], Refusal | None]
"""
Refuses the first part of a value that is wrong; None if all is right.

The refusal's field is the part's path within the value, so that paths are made only for errors: a pod may have a
hundred thousand parts.
"""

_TYPES = {
    dict: "an object",
    list: "a list",
    str: "text",
    bool: "true or false",
    int: "a number",
    float: "a number",
}


def structure_problem(pod: Mapping[str, Any]) -> Refusal | None:
    """The first part of the pod that has the wrong structure, or None."""
    found = _POD(pod)
    if found is not None:
        return replace(found, field=found.field.removeprefix(".") or "the pod")
    return _names_twice(pod.get("spec") or {})


def _names_twice(spec: Mapping[str, Any]) -> Refusal | None:
    """Containers are known by their names, so two of the same name could not be distinguished."""
    seen: set[str] = set()
    for kind in ("initContainers", "containers"):
        for position, container in enumerate(spec.get(kind) or []):
            name = container.get("name") or ""
            if not name or name in seen:
                return Refusal(f"spec.{kind}[{position}].name", shown(name), "give every container its own name")
            seen.add(name)
    return None


def _is(*kinds: type) -> _Check:
    wanted = " or ".join(dict.fromkeys(_TYPES[kind] for kind in kinds))

    def check(value: Any) -> Refusal | None:
        if type(value) in kinds or (isinstance(value, kinds) and not isinstance(value, bool)):
            return None
        return Refusal("", _TYPES.get(type(value), type(value).__name__), f"give {wanted}")

    return check


def _name(holds: Callable[[str], bool], cure: str) -> _Check:
    """Text that is empty, or a name as Kubernetes has them."""

    def check(value: Any) -> Refusal | None:
        if not isinstance(value, str):
            return _TEXT(value)
        return Refusal("", shown(value), f"give {cure}") if value and not holds(value) else None

    return check


def _fields(**fields: _Check) -> _Check:
    """An object; the fields that are named here and not null must pass their checks."""
    checks = tuple(fields.items())

    def check(value: Any) -> Refusal | None:
        if not isinstance(value, dict):
            return _OBJECT(value)
        for key, inner in checks:
            item = value.get(key)
            if item is not None and (found := inner(item)) is not None:
                return _within(f".{key}", found)
        return None

    return check


def _each(inner: _Check) -> _Check:
    """A list whose items all pass; null is no item."""

    def check(value: Any) -> Refusal | None:
        if not isinstance(value, list):
            return _LIST(value)
        for position, item in enumerate(value):
            found = inner(item)
            if found is not None:
                return _within(f"[{position}]", found)
        return None

    return check


def _values(inner: _Check) -> _Check:
    """An object whose values all pass."""

    def check(value: Any) -> Refusal | None:
        if not isinstance(value, dict):
            return _OBJECT(value)
        for key, item in value.items():
            found = inner(item)
            if found is not None:
                return _within(f"[{key if len(key) <= _LONGEST_KEY else shown(key)}]", found)
        return None

    return check


def _within(step: str, found: Refusal) -> Refusal:
    return replace(found, field=f"{step}{found.field}")


_LONGEST_KEY = 320
"""Characters of the longest key that Kubernetes has: a domain, a slash and a name."""
_OBJECT, _LIST, _TEXT = _is(dict), _is(list), _is(str)
_SUBDOMAIN = _name(reading.is_subdomain, "a name of at most 253 of a-z, 0-9, - and .")
_BEGINNING = _name(reading.is_beginning, "the beginning of a name, of a-z, 0-9, - and .")
_LABEL = _name(reading.is_label, "a name of at most 63 of a-z, 0-9 and -")
_TEXTS, _AMOUNTS = _values(_TEXT), _values(_is(str, int, float))
_EXPRESSIONS = _each(_fields(key=_TEXT, operator=_TEXT, values=_each(_TEXT)))
_NODE_TERM = _fields(matchExpressions=_EXPRESSIONS, matchFields=_EXPRESSIONS)
_NODE_SELECTOR = _fields(nodeSelectorTerms=_each(_NODE_TERM))
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_LABEL_SELECTOR = _fields(matchLabels=_TEXTS, matchExpressions=_EXPRESSIONS)
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_POD_TERM = _fields(
    topologyKey=_TEXT,
    labelSelector=_LABEL_SELECTOR,
    namespaces=_each(_TEXT),
    namespaceSelector=_LABEL_SELECTOR,
    matchLabelKeys=_each(_TEXT),
    mismatchLabelKeys=_each(_TEXT),
)
_POD_TERMS = _fields(
    **{_REQUIRED: _each(_POD_TERM), _PREFERRED: _each(_fields(weight=_is(int), podAffinityTerm=_POD_TERM))}
)
_NODE_TERMS = _fields(**{_REQUIRED: _NODE_SELECTOR, _PREFERRED: _each(_fields(weight=_is(int), preference=_NODE_TERM))})
_SPREAD = _each(
    _fields(
        topologyKey=_TEXT,
        whenUnsatisfiable=_TEXT,
        maxSkew=_is(int),
        minDomains=_is(int),
        labelSelector=_LABEL_SELECTOR,
        nodeAffinityPolicy=_TEXT,
        nodeTaintsPolicy=_TEXT,
        matchLabelKeys=_each(_TEXT),
    )
)
_VOLUMES = _each(
    _fields(
        name=_TEXT,
        persistentVolumeClaim=_fields(claimName=_TEXT),
        ephemeral=_OBJECT,
        gcePersistentDisk=_fields(pdName=_TEXT),
        awsElasticBlockStore=_fields(volumeID=_TEXT),
        iscsi=_fields(iqn=_TEXT),
        rbd=_fields(monitors=_each(_TEXT), pool=_TEXT, image=_TEXT),
    )
)
_RESOURCES = _fields(limits=_AMOUNTS, requests=_AMOUNTS)
_CONTAINERS = _each(
    _fields(
        name=_LABEL,
        restartPolicy=_TEXT,
        resources=_RESOURCES,
        env=_each(_fields(name=_TEXT)),
        volumeMounts=_each(_fields(name=_TEXT, mountPath=_TEXT)),
        ports=_each(_fields(hostPort=_is(int), containerPort=_is(int), hostIP=_TEXT, protocol=_TEXT)),
    )
)
_POD = _fields(
    metadata=_fields(
        name=_SUBDOMAIN,
        generateName=_BEGINNING,
        namespace=_LABEL,
        annotations=_TEXTS,
        labels=_TEXTS,
        ownerReferences=_each(_fields(apiVersion=_TEXT, kind=_TEXT, name=_TEXT, uid=_TEXT)),
    ),
    spec=_fields(
        nodeName=_SUBDOMAIN,
        nodeSelector=_TEXTS,
        schedulerName=_TEXT,
        hostNetwork=_is(bool),
        os=_fields(name=_TEXT),
        overhead=_AMOUNTS,
        affinity=_fields(nodeAffinity=_NODE_TERMS, podAffinity=_POD_TERMS, podAntiAffinity=_POD_TERMS),
        topologySpreadConstraints=_SPREAD,
        resourceClaims=_each(_fields(name=_TEXT, resourceClaimName=_TEXT, resourceClaimTemplateName=_TEXT)),
        resources=_RESOURCES,
        runtimeClassName=_TEXT,
        priority=_is(int),
        preemptionPolicy=_TEXT,
        tolerations=_each(_fields(key=_TEXT, operator=_TEXT, value=_TEXT, effect=_TEXT)),
        schedulingGates=_each(_fields(name=_TEXT)),
        volumes=_VOLUMES,
        initContainers=_CONTAINERS,
        ephemeralContainers=_CONTAINERS,
        containers=_CONTAINERS,
    ),
    status=_fields(phase=_TEXT, conditions=_each(_OBJECT)),
)
