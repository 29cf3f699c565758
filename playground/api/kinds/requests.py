"""
A request after its method, path and query were parsed; and the response.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from playground.api.kinds.errors import method_not_allowed, no_such_path
from playground.api.kinds.kinds import NAMESPACES, Kind, Kinds
from playground.api.kinds.values import JSON, User

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"


@dataclass(slots=True)
class Request:
    """One call on one resource."""

    verb: str
    kind: Kind
    user: User
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    query: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    content_type: str = "application/json"
    warnings: list[str] = field(default_factory=list)

    @property
    def dry_run(self) -> bool:
        return "All" in self.query.get("dryRun", "")


@dataclass(slots=True)
class Response:
    """A status code and a body, which may be a stored snapshot and must then not be changed."""

    code: int
    body: Any
    kind: Kind | None = None
    warnings: list[str] = field(default_factory=list)


def parse(
    kinds: Kinds,
    method: str,
    path: str,
    *,
    query: Mapping[str, str],
    user: User,
    body: Any = None,
    content_type: str = "application/json",
) -> Request:
    """Understand the path of a resource. Raises `ApiError` 404 or 405."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    group, version, rest = _split(parts)
    namespace, rest = _namespace(group, rest)
    plural, name, subresource = (*rest, "", "", "")[:3]
    kind = kinds.find(group, version, plural)
    if kind is None or len(rest) > 3 or (namespace and not kind.namespaced) or "" in rest:
        raise no_such_path()
    if subresource and not _has(kind, subresource):
        raise no_such_path()
    verb = _verb(method, name, query)
    if not subresource and verb not in kind.verbs:
        raise method_not_allowed()
    if kind.namespaced and not namespace and (name or verb == "create"):
        raise method_not_allowed() if verb == "create" else no_such_path()
    return Request(verb, kind, user, namespace, name, subresource, query, body, content_type)


def _split(parts: list[str]) -> tuple[str, str, list[str]]:
    if len(parts) >= 3 and parts[0] == "api":
        return "", parts[1], parts[2:]
    if len(parts) >= 4 and parts[0] == "apis":
        return parts[1], parts[2], parts[3:]
    raise no_such_path()


def _namespace(group: str, rest: list[str]) -> tuple[str, list[str]]:
    """Remove the prefix `namespaces/<ns>`, unless the path names the namespace itself."""
    if rest[0] != NAMESPACES.plural or len(rest) < 3:
        return "", rest
    if not group and len(rest) == 3 and rest[2] == "status":
        return "", rest
    return rest[1], rest[2:]


def _has(kind: Kind, subresource: str) -> bool:
    return subresource in kind.subresources or (kind.status and subresource == "status")


def is_watch(method: str, query: Mapping[str, str]) -> bool:
    """Whether the answer is a stream of events."""
    return method.upper() == "GET" and query.get("watch", "").lower() in ("1", "true")


def _verb(method: str, name: str, query: Mapping[str, str]) -> str:
    match method.upper():
        case "GET":
            if is_watch(method, query):
                return "watch"
            return "get" if name else "list"
        case "POST":
            return "create"
        case "PUT" if name:
            return "update"
        case "PATCH" if name:
            return "patch"
        case "DELETE":
            return "delete" if name else "deletecollection"
    raise method_not_allowed()


def status_success(kind: Kind, name: str, uid: str) -> JSON:
    """The Status that answers a delete."""
    details = {"name": name, "group": kind.group, "kind": kind.plural, "uid": uid}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {key: value for key, value in details.items() if value},
    }
