"""
A page for many people, each with their own rights: the API server authenticates each viewer, who reads as themselves.

    browser ──▶ a proxy that knows its users ──▶ the page ──▶ the API server, as the viewer

There are two ways, depending on what the proxy passes on. `token`: the viewer's own token, with which the page reads.
`proxy`: the proxy's token and the viewer's name; the page impersonates the viewer, and its account then needs the
powerful right to impersonate.

Nothing of one viewer is in an answer to another: each has a reader, a picture and kept answers of their own. They are
bounded in number, and the least recently used one is dropped first. A token is not kept longer than its viewer, and
never logged.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from runtime.httpserver import Handler, HttpError, Reply, Request, Routes
from runtime.kubernetes.client import Kube, KubeError
from runtime.kubernetes.paths import path as path_of

MOST_VIEWERS = 32
"""Viewers whose pictures are kept; each has a thread, and a picture of what they may see."""
REVIEWED = 60.0
"""Seconds for which a token that was good is not reviewed again."""
_IDLE = 300.0
"""Seconds after which a viewer who sends no request is forgotten."""
_TIMEOUT = 5.0
_LONGEST_TOKEN, _LONGEST_NAME, _MOST_GROUPS = 16_384, 253, 64
_TOKEN_REVIEWS = path_of("authentication.k8s.io/v1", "tokenreviews")
_SYSTEM, _EVERYBODY = "system:", "system:authenticated"


@dataclass(frozen=True, slots=True)
class Viewer:
    """The viewer: identified by their own token, or by the name that the proxy gave."""

    name: str
    groups: tuple[str, ...] = ()
    token: str = ""

    def __repr__(self) -> str:
        return f"Viewer({self.name!r})"


class Identify(Protocol):
    """The sender of a request."""

    def __call__(self, request: Request) -> Viewer:
        """Raises HttpError 401, 403 or 503."""


@dataclass(slots=True)
class _Reviewed:
    name: str
    groups: tuple[str, ...]
    at: float


class Tokens:
    """The user of a token, from the API server. Only answers are kept, by the token's digest. Thread-safe."""

    def __init__(self, kube: Kube, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube = kube
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, _Reviewed] = OrderedDict()

    def owner(self, request: Request) -> tuple[str, tuple[str, ...], str]:
        """The name and the groups of the request's token, and the token. Raises HttpError 401 or 503."""
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        token = token.strip()
        if kind.lower() != "bearer" or not token or len(token) > _LONGEST_TOKEN or not token.isascii():
            raise HttpError(401, "log in: this page reads with your rights, and the request has no bearer token")
        digest, now = hashlib.sha256(token.encode()).digest(), self._clock()
        with self._lock:
            known = self._known.get(digest)
        if known is None or now - known.at > REVIEWED:
            known = self._review(token, now)
            with self._lock:
                self._known[digest] = known
                self._known.move_to_end(digest)
                while len(self._known) > MOST_VIEWERS:
                    self._known.popitem(last=False)
        return known.name, known.groups, token

    def _review(self, token: str, now: float) -> _Reviewed:
        try:
            answer = self._kube.create(_TOKEN_REVIEWS, {"spec": {"token": token}}, timeout=_TIMEOUT)
        except KubeError as error:
            raise HttpError(503, f"your token could not be reviewed: {type(error).__name__}") from None
        status = answer.get("status")
        user = status.get("user") if isinstance(status, Mapping) and status.get("authenticated") is True else None
        name = user.get("username") if isinstance(user, Mapping) else None
        if not isinstance(user, Mapping) or not isinstance(name, str) or not name:
            raise HttpError(401, "the API server does not know this token; log in again")
        groups = user.get("groups")
        listed = tuple(str(each) for each in groups) if isinstance(groups, Sequence) else ()
        return _Reviewed(name, listed, now)


def by_token(tokens: Tokens) -> Identify:
    """The viewer's own token comes with each request."""

    def identify(request: Request) -> Viewer:
        name, groups, token = tokens.owner(request)
        return Viewer(name, groups, token)

    return identify


def by_proxy(tokens: Tokens, account: str) -> Identify:
    """
    The token is that of the proxy, a service account `namespace/name`, and headers have the viewer's name and groups.

    Names of the system are never impersonated: a compromised proxy does not become a cluster administrator.
    """
    namespace, _, name = account.partition("/")
    proxy = f"system:serviceaccount:{namespace}:{name}"

    def identify(request: Request) -> Viewer:
        owner, _, _ = tokens.owner(request)
        if owner != proxy:
            raise HttpError(403, "only the proxy named by --proxy-account may use this page")
        user = request.headers.get("x-forwarded-user", "").strip()
        groups = [each.strip() for each in request.headers.get("x-forwarded-groups", "").split(",")]
        groups = [each for each in groups if each and each != _EVERYBODY]
        wrong = not user or len(groups) > _MOST_GROUPS
        if wrong or any(len(each) > _LONGEST_NAME or not each.isprintable() for each in (user, *groups)):
            raise HttpError(401, "the proxy did not say who you are: X-Forwarded-User, X-Forwarded-Groups")
        if any(each.startswith(_SYSTEM) for each in (user, *groups)):
            raise HttpError(403, "this page never acts as a user or group of the system")
        return Viewer(user, (*dict.fromkeys(groups), _EVERYBODY))

    return identify


@dataclass(slots=True)
class _Open:
    routes: Routes
    close: Callable[[], None]
    used: float


class Viewers:
    """
    The page's routes for each viewer. `make` returns one viewer's routes, with their rights, and how to end them.
    Thread-safe.
    """

    def __init__(
        self,
        identify: Identify,
        make: Callable[[Viewer], tuple[Routes, Callable[[], None]]],
        *,
        most: int = MOST_VIEWERS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._identify = identify
        self._make = make
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        self._open: OrderedDict[Viewer, _Open] = OrderedDict()

    def answering(self, key: tuple[str, str]) -> Handler:
        """The handler that answers a method and path by the viewer's own routes."""

        def answer(request: Request) -> Reply:
            reply = self._of(self._identify(request))[key](request)
            return Reply(reply.status, reply.body, reply.content_type, {**reply.headers, "Vary": "Authorization"})

        return answer

    def _of(self, viewer: Viewer) -> Routes:
        now = self._clock()
        with self._lock:
            found = self._open.get(viewer)
            if found is None:
                found = self._open[viewer] = _Open(*self._make(viewer), now)
            found.used = now
            self._open.move_to_end(viewer)
            old = [each for each, one in self._open.items() if now - one.used > _IDLE]
            ended = [self._open.pop(each) for each in old]
            while len(self._open) > self._most:
                ended.append(self._open.popitem(last=False)[1])
        for one in ended:
            one.close()
        return found.routes

    def close(self) -> None:
        """End all."""
        with self._lock:
            ended = list(self._open.values())
            self._open.clear()
        for one in ended:
            one.close()
