"""
AdmissionReview v1 in and out: the only code that knows base64, `patchType` and status codes.

Formats: Kubernetes, "Dynamic Admission Control", request and response. Pure. A body that is not an AdmissionReview is
`BadReview`; what is inside the pod is for `webhook.admission.shape` and `webhook.admission.mutate` to judge.
"""

from __future__ import annotations

import base64
import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from jsonpointer import escape

from contract.encoding import reading
from contract.encoding.reading import shown

JSON = dict[str, Any]

API_VERSION, KIND = "admission.k8s.io/v1", "AdmissionReview"
INVALID, FORBIDDEN = 422, 403
"""Status of a denial: the pod as written cannot be served; it could be, but not here or not now."""
_REASONS = {INVALID: "Invalid", FORBIDDEN: "Forbidden"}

WARNING_LENGTH, WARNINGS_LENGTH = 120, 4096
"""Characters: what Kubernetes asks one warning to stay under, and what it keeps of all warnings together."""


_OPERATIONS = ("CREATE", "UPDATE", "DELETE", "CONNECT")
_LONGEST_KIND = 253


class BadReview(ValueError):
    """
    The body is not an AdmissionReview v1 as an API server sends it. The message names the part that is wrong, and
    repeats at most the beginning and the end of what is there.
    """


@dataclass(frozen=True, slots=True)
class Review:
    """One admission request. `pod` is the object as it will be stored, empty where the operation has none."""

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
    def debugs_pod(self) -> bool:
        """Whether the request puts ephemeral containers into a pod, as `kubectl debug` does."""
        return (self.operation, self.kind, self.sub_resource) == ("UPDATE", "Pod", "ephemeralcontainers")


def decode(body: bytes) -> Review:
    """
    Read the body of a request. Raises `BadReview`, also for what no API server sends: any client of the port can send
    anything, and names become keys, paths and lines of logs.
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
    """Python reads `NaN` and `Infinity`, which are no JSON (RFC 8259)."""
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


def allowed(uid: str, *, before: JSON | None = None, after: JSON | None = None, warnings: Iterable[str] = ()) -> bytes:
    """Let the object in; changed from `before` to `after` where both are given and differ."""
    response: JSON = {"uid": uid, "allowed": True}
    operations = patch(before, after) if before is not None and after is not None else []
    if operations:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(_dump(operations)).decode("ascii")
    lines = split_warnings(warnings)
    if lines:
        response["warnings"] = lines
    return _review(response)


def denied(uid: str, message: str, *, code: int = INVALID) -> bytes:
    """Refuse the object; `message` is what kubectl prints, `code` is `INVALID` or `FORBIDDEN`."""
    status = {"status": "Failure", "code": code, "reason": _REASONS[code], "message": message}
    return _review({"uid": uid, "allowed": False, "status": status})


def patch(before: JSON, after: JSON) -> list[JSON]:
    """
    JSON patch operations (RFC 6902) that make `after` of `before`.

    Whole pods differ in few places, so equal parts are passed over by value. A list is compared from both ends, since
    what admission adds stands before or behind what there was.
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
    """What both lists begin with and end with stays; between, places that both have are compared one by one."""
    shorter = min(len(before), len(after))
    start = next((at for at in range(shorter) if before[at] != after[at]), shorter)
    end = next((at for at in range(shorter - start) if before[-1 - at] != after[-1 - at]), shorter - start)
    for at in range(start, shorter - end):
        yield from _operations(f"{path}/{at}", before[at], after[at])
    for at in reversed(range(shorter - end, len(before) - end)):
        yield {"op": "remove", "path": f"{path}/{at}"}
    for at in range(shorter - end, len(after) - end):
        yield {"op": "add", "path": f"{path}/{at}", "value": after[at]}


def split_warnings(warnings: Iterable[str]) -> list[str]:
    """Warnings cut at spaces into pieces that Kubernetes keeps; what would pass the limit for all is left out."""
    lines: list[str] = []
    room = WARNINGS_LENGTH
    for warning in warnings:
        for line in textwrap.wrap(warning, WARNING_LENGTH, break_on_hyphens=False):
            room -= len(line)
            if room < 0:
                return lines
            lines.append(line)
    return lines


def _review(response: JSON) -> bytes:
    return _dump({"apiVersion": API_VERSION, "kind": KIND, "response": response})


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
