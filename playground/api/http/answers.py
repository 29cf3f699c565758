"""
Decodes the bodies of requests, and encodes those of responses in a form that the client accepts.

There is no connection here: the bytes can travel by a socket or in one program, and clients see the same.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from playground.api.api import Api
from playground.api.http import protobuf
from playground.api.kinds import discovery, errors, requests
from playground.api.kinds.requests import Request, Response
from playground.api.kinds.values import JSON, User
from playground.api.store.watching import Watch, WatchEvent
from playground.api.tables import tables

JSON_MEDIA = "application/json"
_READABLE = (JSON_MEDIA, "application/yaml", protobuf.MEDIA)


def value_of(raw: bytes, content_type: str, *, method: str) -> Any:
    """The value that a request's body encodes, None for an empty one. Raises `ApiError` 400 or 415."""
    if not raw:
        return None
    if method in ("POST", "PUT") and content_type.partition(";")[0].strip() not in _READABLE:
        raise errors.unsupported_media_type(_READABLE)
    if protobuf.MEDIA in content_type:
        return protobuf.decode(raw)
    try:
        return yaml.safe_load(raw) if "yaml" in content_type else json.loads(raw)
    except (ValueError, yaml.YAMLError) as problem:
        if "json" in content_type or "yaml" in content_type:
            raise errors.bad_request(f"the object provided is unrecognized: {problem}") from None
        raise errors.unsupported_media_type([JSON_MEDIA, "application/yaml"]) from None


def answer(
    api: Api,
    method: str,
    path: str,
    *,
    query: Mapping[str, str],
    body: Any,
    content_type: str,
    accept: str,
    user: User,
) -> Response:
    """Serve any request except a watch. A refusal is a response too. The server may change the given body."""
    if method == "GET" and path.rstrip("/") in ("/api", "/apis") and "APIGroupDiscoveryList" in accept:
        return Response(200, discovery.aggregated(path, api.kinds.all()))
    found = api.handle(method, path, query=query, body=body, content_type=content_type, user=user)
    if found.kind is not None and found.code < 300 and isinstance(found.body, dict):
        found.body = _formed(api, found, query, accept)
    return found


def _formed(api: Api, found: Response, query: Mapping[str, str], accept: str) -> JSON:
    assert found.kind is not None
    if found.body.get("kind") not in (found.kind.name, found.kind.list_kind):
        return dict(found.body)
    match tables.wanted_form(accept):
        case "Table":
            include = query.get("includeObject", "Metadata")
            return tables.table(found.kind, found.body, api.clock(), include)
        case "PartialObjectMetadata":
            return tables.partial(found.body)
    return dict(found.body)


def content_of(found: Response) -> tuple[bytes, str]:
    """An answer's body as bytes, and their media type."""
    if isinstance(found.body, str):
        return found.body.encode(), "text/plain; charset=utf-8"
    media = discovery.AGGREGATED if found.body.get("kind") == "APIGroupDiscoveryList" else JSON_MEDIA
    return json.dumps(found.body, separators=(",", ":")).encode(), media


def open_watch(
    api: Api, path: str, *, query: Mapping[str, str], accept: str, user: User
) -> tuple[Watch, Iterator[bytes]]:
    """
    Follow a collection or one object: the watch, for its `close`, and its events, each a line of JSON.

    Raises `ApiError` where the request is refused. `query` says that it is a watch, see `requests.is_watch`.
    """
    request = requests.parse(api.kinds, "GET", path, query=query, user=user.authenticated())
    watch = api.open_watch(request)
    return watch, _lines(api, request, watch, tables.wanted_form(accept))


def _lines(api: Api, request: Request, watch: Watch, form: str) -> Iterator[bytes]:
    first = True
    for event in watch.events():
        yield _encoded(api, request, event, form, first=first)
        first = first and event.type == "BOOKMARK"


def _encoded(api: Api, request: Request, event: WatchEvent, form: str, *, first: bool) -> bytes:
    if form and event.type != "ERROR":
        return _event_line(event.type, _shaped(api, request, event, form, first=first))
    if event.change is None:
        return _event_line(event.type, event.object)
    key = f"{event.type} {event.object['apiVersion']}"
    if (line := event.change.wire.get(key)) is None:
        line = event.change.wire[key] = _event_line(event.type, event.object)
    return line


def _shaped(api: Api, request: Request, event: WatchEvent, form: str, *, first: bool) -> JSON:
    if form != "Table":
        return tables.partial(event.object)
    if event.type == "BOOKMARK":
        empty = {"kind": request.kind.list_kind, "items": [], "metadata": event.object["metadata"]}
        return tables.table(request.kind, empty, 0.0, header=False)
    include = request.query.get("includeObject", "Metadata")
    return tables.table(request.kind, event.object, api.clock(), include, header=first)


def _event_line(event: str, value: JSON) -> bytes:
    return json.dumps({"type": event, "object": value}, separators=(",", ":")).encode() + b"\n"
