"""
The OpenAPI that kubectl needs to leave validation to the server: paths that take `fieldValidation`, without schemas.

kubectl looks a kind up among the PATCH operations. Where it finds the parameter it leaves validation to the server;
where it finds no schema for a strategic merge patch it uses the Go types that it was built with, which are the same.
"""

from collections.abc import Iterable, Iterator

from playground.api.kinds.kinds import Kind
from playground.api.kinds.requests import JSON_PATCH, MERGE_PATCH
from playground.api.kinds.values import JSON

_PARAMETERS = [
    {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
    for name in ("dryRun", "fieldManager", "fieldValidation")
]


def index(kinds: Iterable[Kind]) -> JSON:
    """/openapi/v3: where each group version's document is. The hash is constant: clients cache by it only on disk."""
    roots = dict.fromkeys(kind.root.lstrip("/") for kind in kinds)
    return {"paths": {root: {"serverRelativeURL": f"/openapi/v3/{root}"} for root in roots}}


def document(root: str, kinds: Iterable[Kind], server_version: str) -> JSON | None:
    """/openapi/v3/<root>; None where nothing is served."""
    served = [kind for kind in kinds if kind.root == f"/{root}"]
    if not served:
        return None
    paths = {path: item for kind in served for path, item in _paths(kind)}
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": server_version},
        "paths": paths,
        "components": {"schemas": {}},
    }


def _paths(kind: Kind) -> Iterator[tuple[str, JSON]]:
    scope = "/namespaces/{namespace}" if kind.namespaced else ""
    collection = f"{kind.root}{scope}/{kind.plural}"
    gvk = {"group": kind.group, "version": kind.version, "kind": kind.name}
    yield collection, {"post": _operation("post", gvk)}
    if "patch" in kind.verbs:
        yield f"{collection}/{{name}}", {"put": _operation("put", gvk), "patch": _operation("patch", gvk)}


def _operation(action: str, gvk: JSON) -> JSON:
    types = (JSON_PATCH, MERGE_PATCH) if action == "patch" else ("application/json",)
    return {
        "parameters": _PARAMETERS,
        "requestBody": {"content": {media: {"schema": {"type": "object"}} for media in types}},
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": gvk,
    }


def swagger(server_version: str) -> JSON:
    """/openapi/v2 for clients that ask for it first; it is as small as a document may be."""
    return {
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": server_version},
        "paths": {},
        "definitions": {},
    }
