"""
The refusals of the API, each with the code, reason and wording that a real API server gives.

Inside the server a refusal is raised as `ApiError`, because it ends a request from any depth; at the edge it becomes an
ordinary value, the kind Status. Field errors are values: validation returns all of them at once.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from playground.api.kinds.kinds import Kind
from playground.api.kinds.values import JSON


class ApiError(Exception):
    """A request that ends with a Status of failure."""

    def __init__(self, code: int, reason: str, message: str, details: JSON | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details

    def status(self) -> JSON:
        body: JSON = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            **({"reason": self.reason} if self.reason else {}),
            "code": self.code,
        }
        if self.details:
            body["details"] = self.details
        return body


@dataclass(frozen=True, slots=True)
class FieldError:
    """One complaint about one field, in the types of k8s.io/apimachinery `field.Error`."""

    type: str
    field: str
    detail: str = ""
    value: Any = None

    def __str__(self) -> str:
        return f"{self.field}: {self.body()}"

    def body(self) -> str:
        match self.type:
            case "Required":
                head = "Required value"
            case "Forbidden":
                head = "Forbidden"
            case "TooLong":
                head = "Too long"
            case "InternalError":
                head = "Internal error"
            case kind:
                words = {
                    "Invalid": "Invalid value",
                    "NotSupported": "Unsupported value",
                    "Duplicate": "Duplicate value",
                    "NotFound": "Not found",
                    "TypeInvalid": "Invalid value",
                    "TooMany": "Too many",
                }
                head = f"{words[kind]}: {_shown(self.value)}"
        return f"{head}: {self.detail}" if self.detail else head

    def cause(self) -> JSON:
        return {"reason": f"FieldValue{self.type}", "message": self.body(), "field": self.field}


def _shown(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def required(field: str, detail: str = "") -> FieldError:
    return FieldError("Required", field, detail)


def forbidden_field(field: str, detail: str) -> FieldError:
    return FieldError("Forbidden", field, detail)


def invalid_field(field: str, value: Any, detail: str) -> FieldError:
    return FieldError("Invalid", field, detail, value)


def duplicate(field: str, value: Any) -> FieldError:
    return FieldError("Duplicate", field, "", value)


def unsupported(field: str, value: Any, choices: Sequence[str]) -> FieldError:
    listed = ", ".join(f'"{choice}"' for choice in choices)
    return FieldError("NotSupported", field, f"supported values: {listed}", value)


def _about(kind: Kind, name: str) -> JSON:
    about = {"name": name, "group": kind.group, "kind": kind.plural}
    return {key: value for key, value in about.items() if value}


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def unauthorized() -> ApiError:
    return ApiError(401, "Unauthorized", "Unauthorized")


def forbidden(kind: Kind, name: str, why: str) -> ApiError:
    subject = f'{kind.key} "{name}"' if name else kind.key
    return ApiError(403, "Forbidden", f"{subject} is forbidden: {why}", _about(kind, name))


def not_found(kind: Kind, name: str) -> ApiError:
    return ApiError(404, "NotFound", f'{kind.key} "{name}" not found', _about(kind, name))


def no_such_path() -> ApiError:
    return ApiError(404, "NotFound", "the server could not find the requested resource", {})


def method_not_allowed() -> ApiError:
    message = "the server does not allow this method on the requested resource"
    return ApiError(405, "MethodNotAllowed", message, {})


def already_exists(kind: Kind, name: str) -> ApiError:
    return ApiError(409, "AlreadyExists", f'{kind.key} "{name}" already exists', _about(kind, name))


def conflict(kind: Kind, name: str, why: str) -> ApiError:
    message = f'Operation cannot be fulfilled on {kind.key} "{name}": {why}'
    return ApiError(409, "Conflict", message, _about(kind, name))


def other_object(kind: Kind, name: str, why: str) -> ApiError:
    """409 for a delete whose precondition does not hold. It names the kind, where other conflicts name the resource."""
    details = {"name": name, "kind": kind.name, **({"group": kind.group} if kind.group else {})}
    return ApiError(409, "Conflict", f'Operation cannot be fulfilled on {kind.name} "{name}": {why}', details)


def modified(kind: Kind, name: str) -> ApiError:
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(kind, name, why)


def unspecific(message: str) -> ApiError:
    """500 without a reason: a real API server's response to a mistake for which it has no specific error."""
    return ApiError(500, "", message)


def patched_to_nonsense(value: JSON, why: str) -> ApiError:
    """422 for a patch whose result is not an object of the kind. As on a real server, the message names neither."""
    problem = invalid_field("patch", json.dumps(value, separators=(",", ":"), ensure_ascii=False), why)
    details = {"causes": [problem.cause()]}
    return ApiError(422, "Invalid", f' "" is invalid: {problem}', details)


def expired(message: str) -> ApiError:
    return ApiError(410, "Expired", message)


def too_large_revision(wanted: int, current: int) -> ApiError:
    """504 for a future resourceVersion. A real API server first waits three seconds for it."""
    causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
    message = f"Timeout: Too large resource version: {wanted}, current: {current}"
    return ApiError(504, "Timeout", message, {"causes": causes, "retryAfterSeconds": 1})


def unsupported_media_type(accepted: Sequence[str]) -> ApiError:
    message = "the body of the request was in an unknown format - accepted media types include: " + ", ".join(accepted)
    return ApiError(415, "UnsupportedMediaType", message, {})


UNHANDLED = " cannot be handled as a "


def unhandled(kind: Kind, found: str, why: str) -> ApiError:
    """400 for a body that is not a valid object of the kind."""
    return bad_request(f'{found} in version "{kind.version}"{UNHANDLED}{kind.name}: {why}')


def invalid(kind: Kind, name: str, errors: Sequence[FieldError], *, resource: bool = False) -> ApiError:
    """422 with every field error as a cause. For a few kinds, the message names the resource instead of the kind."""
    texts = [str(error) for error in errors]
    listed = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    subject = f"{kind.name}.{kind.group}" if kind.group else kind.name
    if resource:
        subject = kind.key
    details: JSON = {"kind": kind.name, "causes": [error.cause() for error in errors]}
    if name:
        details["name"] = name
    if kind.group:
        details["group"] = kind.group
    return ApiError(422, "Invalid", f'{subject} "{name}" is invalid: {listed}', details)


def internal(message: str) -> ApiError:
    details = {"causes": [{"message": message}]}
    return ApiError(500, "InternalError", f"Internal error occurred: {message}", details)
