"""
The server itself: parses requests, authorizes them, and passes them to the parts that do the work.

Every call goes through `Api.handle`, in process or over HTTPS. So a test without a socket has the same results as a
client over the network.
"""

import base64
import json
import random
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from playground.api.admission import authorization
from playground.api.admission.attributes import Plugin
from playground.api.admission.authorization import Authorizer, Question, Reviews
from playground.api.admission.builtin import (
    IMMORTAL,
    Chain,
    Defaulting,
    DefaultTolerations,
    NamespaceLifecycle,
    Priority,
    RuntimeClasses,
    ServiceAccountPlugin,
)
from playground.api.admission.limitranges import LimitRanger
from playground.api.admission.policies import Policies
from playground.api.admission.quota import Quotas
from playground.api.admission.webhookcaller import WebhookCaller
from playground.api.admission.webhookclient import WebhookClient
from playground.api.admission.webhooks import Webhooks
from playground.api.kinds import discovery, errors, openapi, requests
from playground.api.kinds.kinds import CRDS, NAMESPACES, PODS, QUOTAS, Kind, Kinds
from playground.api.kinds.requests import Request, Response
from playground.api.kinds.values import ADMIN, JSON, User, copy_json, dig
from playground.api.rules import decoding
from playground.api.rules.crds import Definitions
from playground.api.store.selection import Predicate, everything, field_selector, label_selector
from playground.api.store.store import Change, Snapshot, StaleRevision, Store, unobserved
from playground.api.store.watching import Watch, WatchOptions
from playground.api.verbs.removal import Remover
from playground.api.verbs.subresources import LogProvider, Subresources, TokenIssuer
from playground.api.verbs.writes import Writer

__all__ = ["ADMIN", "Api", "ApiError", "User", "Watch"]

ApiError = errors.ApiError
_CODES: Mapping[str, int] = {"create": 201}
SERVER_VERSION = "v1.34.0"
_VIEWS = ("", "status", "ephemeralcontainers")
"""Subresources that return the whole object, and whose updates may change a part of it."""
_OPTIONS: Mapping[str, str] = {
    "create": "CreateOptions",
    "update": "UpdateOptions",
    "patch": "PatchOptions",
    "delete": "DeleteOptions",
    "deletecollection": "DeleteOptions",
}


def bootstrap() -> Iterator[tuple[str, JSON]]:
    """The objects that a cluster starts with, each under the path that creates it."""
    for name in IMMORTAL:
        yield "/api/v1/namespaces", {"metadata": {"name": name}}
    yield from authorization.default_objects()
    ports = [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}]
    spec = {"type": "ClusterIP", "clusterIP": "10.96.0.1", "ports": ports}
    yield "/api/v1/namespaces/default/services", {"metadata": {"name": "kubernetes"}, "spec": spec}


class Api:
    """One cluster's API. Everything is ready when the constructor returns; there is nothing to start or stop."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        server_version: str = SERVER_VERSION,
        webhooks: Callable[[Store], WebhookCaller] = WebhookClient,
        observer: Callable[[Change], None] = unobserved,
        plugins: Sequence[Plugin] = (),
    ) -> None:
        """
        `clock`: seconds since the epoch. `monotonic`: seconds since some moment, for the ends of watches. `webhooks`
        makes the caller of webhooks. `observer`: see `Store`. `plugins`: admission plugins that run after all others.
        """
        self.clock = clock
        self.monotonic = monotonic
        self.server_version = server_version
        self.store = Store(committed=observer)
        self.kinds = Kinds()
        self.authorizer = Authorizer(self.store)
        ranger = LimitRanger(self.store)
        self.admission = Chain(
            [
                NamespaceLifecycle(self.store),
                ranger,
                ServiceAccountPlugin(self.store),
                Priority(self.store),
                DefaultTolerations(),
                RuntimeClasses(self.store),
                Defaulting(),
                Policies(store=self.store, kinds=self.kinds),
                Webhooks(store=self.store, caller=webhooks(self.store), again=ranger.mutate),
                *plugins,
            ]
        )
        self._quotas = Quotas(store=self.store, save=partial(self._save_status, QUOTAS))
        self._writer = Writer(
            store=self.store,
            clock=clock,
            admission=self.admission,
            decode=decoding.decode,
            committed=self._committed,
            hold=self._quotas.admit,
        )
        self._remover = Remover(
            store=self.store, kinds=self.kinds, clock=clock, writer=self._writer, admission=self.admission
        )
        self._definitions = Definitions(
            kinds=self.kinds,
            store=self.store,
            clock=clock,
            save=partial(self._save_status, CRDS),
            delete=lambda kind, key: self._remover.delete_by_system(kind.key, key, {}),
        )
        self._subresources = Subresources(
            store=self.store, writer=self._writer, remover=self._remover, admission=self.admission, clock=clock
        )
        self.authenticate: Callable[[str], User | None] = lambda token: None
        """The user of a token, for TokenReviews; set by the issuer of tokens."""
        self._reviews = Reviews(self.authorizer, lambda token: self.authenticate(token))
        for path, body in bootstrap():
            self.call("POST", path, body=body)

    def restore(self, state: Snapshot, *, bump: int = 0) -> None:
        """
        Go back to a state of the store, as a server that restarts with another etcd. See `Store.restore`.

        Requests in progress may see either state, or parts of both.
        """
        self.store.restore(state, bump=bump)
        self._definitions.reload()
        self._quotas.reload()

    @property
    def log_provider(self) -> LogProvider | None:
        """`(namespace, pod, container) -> text`, behind GET pods/<name>/log; None: logs are empty."""
        return self._subresources.log_provider

    @log_provider.setter
    def log_provider(self, provider: LogProvider | None) -> None:
        self._subresources.log_provider = provider

    def issue_tokens(self, issue: TokenIssuer) -> None:
        """Set the function that answers TokenRequests. Without it, they are refused."""
        self._subresources.issue = issue

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        user: User = ADMIN,
    ) -> tuple[int, JSON]:
        """One request; the status code and the object or Status that answers it, both the caller's own."""
        answer = self.handle(
            method, path, query=query or {}, body=copy_json(body), content_type=content_type, user=user
        )
        return answer.code, copy_json(answer.body)

    def handle(
        self, method: str, path: str, *, query: Mapping[str, str], body: Any, content_type: str, user: User
    ) -> Response:
        """Like `call`, but the server may change the given body, and callers must not change the returned one."""
        try:
            user = user.authenticated()
            if (answer := self._not_a_resource(method, path, user)) is not None:
                return answer
            request = requests.parse(
                self.kinds, method, path, query=query, user=user, body=body, content_type=content_type
            )
            self.authorizer.check(request)
            return self._dispatch(request)
        except ApiError as refusal:
            return Response(refusal.code, refusal.status())

    def _not_a_resource(self, method: str, path: str, user: User) -> Response | None:
        """Health, version, discovery and OpenAPI; None where the path is none of them."""
        if path.startswith("/api") and not discovery.is_discovery(path):
            return None
        if not self.authorizer.allows(user, Question(method.lower(), path=path)):
            raise errors.ApiError(
                403, "Forbidden", f'forbidden: User "{user.name}" cannot {method.lower()} path "{path}"'
            )
        if path in ("/healthz", "/readyz", "/livez"):
            return Response(200, "ok")
        if path == "/version":
            return Response(200, discovery.version(self.server_version))
        body: JSON | None = None
        if path == "/openapi/v2":
            body = openapi.swagger(self.server_version)
        elif path.startswith("/openapi/v3"):
            root = path.removeprefix("/openapi/v3").strip("/")
            kinds = self.kinds.all()
            body = openapi.document(root, kinds, self.server_version) if root else openapi.index(kinds)
        elif path.startswith("/api") and method == "GET":
            body = discovery.legacy(path, self.kinds.all())
        return None if body is None else Response(200, body)

    def watch(self, path: str, *, query: Mapping[str, str] | None = None, user: User = ADMIN) -> Watch:
        """Follow a collection. Raises `ApiError` when the request is refused; a stale revision is an ERROR event."""
        merged = {**(query or {}), "watch": "1"}
        return self.open_watch(requests.parse(self.kinds, "GET", path, query=merged, user=user.authenticated()))

    def open_watch(self, request: Request) -> Watch:
        self.authorizer.check(request)
        query, since = request.query, _revision(request)
        initial = query.get("sendInitialEvents", "") == "true"
        options = WatchOptions(
            kind=request.kind,
            namespace=request.namespace,
            selects=self._selector(request),
            since=None if initial or not since else since,
            not_before=since if initial else 0,
            bookmarks=query.get("allowWatchBookmarks", "") in ("true", "1"),
            initial_events_end=initial,
            seconds=float(query.get("timeoutSeconds") or random.uniform(1800, 3600)),
        )
        return Watch(self.store, options, lambda value: self._convert(request.kind, value), monotonic=self.monotonic)

    def _selector(self, request: Request) -> Predicate:
        tests = [
            test
            for test in (
                label_selector(request.query.get("labelSelector", "")),
                field_selector(request.query.get("fieldSelector", ""), request.kind),
            )
            if test is not None
        ]
        if request.name:
            tests.append(lambda value: value["metadata"]["name"] == request.name)
        if not tests:
            return everything
        return tests[0] if len(tests) == 1 else lambda value: all(test(value) for test in tests)

    def _dispatch(self, request: Request) -> Response:
        _check_dry_run(request)
        if self._reviews.serves(request.kind):
            return Response(201, self._reviews.answer(request))
        if request.kind.key == "bindings":
            return self._legacy_binding(request)
        if request.subresource not in _VIEWS:
            code, body = self._subresources.serve(request)
            return Response(code, body, None, _once(request.warnings))
        code, body = _CODES.get(request.verb, 200), self._serve(request)
        return Response(code, self._convert(request.kind, body), request.kind, _once(request.warnings))

    def _serve(self, request: Request) -> JSON:
        if request.subresource and request.verb not in ("get", "update", "patch"):
            raise errors.method_not_allowed()
        match request.verb:
            case "get":
                self._check_fresh(request)
                return self._writer.existing(request)
            case "list":
                self._check_fresh(request)
                return self._list(request)
            case "create":
                return self._writer.create(request)
            case "update":
                return self._writer.update(request)
            case "patch":
                return self._writer.patch(request)
            case "delete":
                return self._remover.delete(request)
            case "deletecollection":
                return self._remover.delete_all(request, self._selector(request))
        raise errors.method_not_allowed()

    def _check_fresh(self, request: Request) -> None:
        """A read that names a revision must not be answered from an older state. Raises 504."""
        wanted, current = _revision(request), self.store.revision
        if wanted > current:
            raise errors.too_large_revision(wanted, current)

    def _legacy_binding(self, request: Request) -> Response:
        """POST bindings: the pod is named in the body."""
        name = dig(request.body, "metadata", "name") or ""
        pod = Request("create", PODS, request.user, request.namespace, name, "binding", request.query, request.body)
        return Response(201, self._subresources.bind(pod))

    def _convert(self, kind: Kind, value: JSON) -> JSON:
        """A stored custom object in the version that was requested."""
        if kind.custom is None or value.get("kind") != kind.name or value["apiVersion"] == kind.api_version:
            return value
        return {**value, "apiVersion": kind.api_version}

    def _list(self, request: Request) -> JSON:
        kind, selects = request.kind, self._selector(request)
        limit, token = int(request.query.get("limit") or 0), request.query.get("continue", "")
        if token:
            items, revision, rest = self._continued(request, token)
        else:
            (items, revision), rest = self.store.ordered(kind.key, request.namespace), ("", "")
        items = items[bisect_right(items, rest, key=_key) :]
        if selects is not everything:
            items = [item for item in items if selects(item)]
        metadata: JSON = {"resourceVersion": str(revision)}
        items = _page(items, limit, metadata)
        return {
            "kind": kind.list_kind,
            "apiVersion": kind.api_version,
            "metadata": metadata,
            "items": [self._convert(kind, item) for item in items],
        }

    def _continued(self, request: Request, token: str) -> tuple[list[JSON], int, tuple[str, str]]:
        """The revision of the first page, and the last key of the previous page."""
        revision, after = _read_token(token)
        try:
            return self.store.ordered_at(request.kind.key, request.namespace, revision), revision, after
        except StaleRevision:
            raise errors.expired(
                "The provided continue parameter is too old to display a consistent list result. You can start a "
                "new list without the continue parameter."
            ) from None

    def _committed(self, kind: Kind, old: JSON | None, new: JSON | None) -> None:
        """React to a stored change, in the thread that stored it. In a real cluster, controllers do so later."""
        self._definitions.committed(kind, old, new)
        self._quotas.committed(kind, old, new)
        if kind is NAMESPACES and new is not None and old is None:
            path = f"/api/v1/namespaces/{new['metadata']['name']}/serviceaccounts"
            self.call("POST", path, body={"metadata": {"name": "default"}})
        self._remover.committed(kind, old, new)

    def _save_status(self, kind: Kind, value: JSON, status: JSON) -> None:
        """Store a status that the server computes itself. Retries if another writer changes the object meanwhile."""
        key = (value["metadata"].get("namespace", ""), value["metadata"]["name"])
        held: JSON | None = value
        while held is not None and held["metadata"]["uid"] == value["metadata"]["uid"]:
            if self._writer.store(kind, key, held, {**held, "status": status}) is not None:
                return
            held = self.store.get(kind.key, key)


def _once(warnings: list[str]) -> list[str]:
    """Each warning once, as an API server sends them: a write that is retried after a conflict is reviewed again."""
    return list(dict.fromkeys(warnings))


def _check_dry_run(request: Request) -> None:
    """`dryRun` has one valid value. Raises 422 for another, because the server must not store such a request."""
    asked, name = request.query.get("dryRun"), _OPTIONS.get(request.verb)
    if asked is not None and asked != "All" and name is not None:
        problem = errors.unsupported("dryRun", [asked], ("All",))
        about = {"group": "meta.k8s.io", "kind": name, "causes": [problem.cause()]}
        raise errors.ApiError(422, "Invalid", f'{name}.meta.k8s.io "" is invalid: {problem}', about)


def _revision(request: Request) -> int:
    """The `resourceVersion` that a read names, 0 for none. Raises 400."""
    text = request.query.get("resourceVersion", "")
    if text and not text.isdigit():
        raise errors.bad_request(f'Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax')
    return int(text or 0)


def _page(items: list[JSON], limit: int, metadata: JSON) -> list[JSON]:
    """The first `limit` of the items, 0 for all; the list's metadata says how to get the rest."""
    if not limit or len(items) <= limit:
        return items
    metadata["remainingItemCount"] = len(items) - limit
    items = items[:limit]
    text = json.dumps([int(metadata["resourceVersion"]), *_key(items[-1])])
    metadata["continue"] = base64.urlsafe_b64encode(text.encode()).decode()
    return items


def _key(item: JSON) -> tuple[str, str]:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


def _read_token(token: str) -> tuple[int, tuple[str, str]]:
    try:
        revision, namespace, name = json.loads(base64.urlsafe_b64decode(token))
        return int(revision), (str(namespace), str(name))
    except (ValueError, TypeError):
        raise errors.bad_request(f"continue key is not valid: {token}") from None
