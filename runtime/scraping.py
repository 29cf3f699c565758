"""
Lets clients read `/metrics` if the API server accepts their token and authorizes their user for the path.

    Authorization: Bearer TOKEN ──▶ what is remembered ──▶ TokenReview, SubjectAccessReview ──▶ a `ScrapeVerdict`

A series may name pods and namespaces of every team, so no client without a token reads it, even if something fails: a
refusal is 401, 403 or 503, and never an open port. The API server's answer is remembered for some time, by the token's
hash. While it is unavailable, an accepted token stays valid for `GRACE`, because metrics are needed most during an
outage.

Strangers reach the port. So there is a bound on what is remembered, on how often the API server is asked, for each
client and in all, and on how many wait for it. Accepted tokens are reviewed separately, so that a flood of bad ones
does not block a scraper.

Must not: keep or log a token, or ask the API server itself (`runtime.tokenreview` does; the webhook has no way to it).
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from runtime.httpserver import Handler, HttpError, Reply, Request, TlsOf

log = logging.getLogger(__name__)

ACCESS_SETTING = (
    "Who may read /metrics, which names pods and namespaces. token: over HTTPS, any client with a token that the API "
    "server allows to get the path /metrics, for example by the ClusterRole gpufraction-metrics-reader. open: "
    "everyone who reaches the port, without TLS."
)
CERTIFICATES_SETTING = (
    "Folder with tls.crt and tls.key for /metrics, reloaded when they change; empty: a self-signed certificate, which "
    "a scraper cannot verify."
)
METRICS_PATH = "/metrics"
FRESH, REFUSED_FRESH = 300.0, 30.0
"""Seconds for which the API server is not asked again about an accepted token, and about a refused one."""
GRACE = 900.0
"""Seconds after which an accepted token is no longer valid while the API server cannot be asked."""
_LONGEST = 8192
"""Characters of a token; a service account's has about 1,000."""
_MOST_LET_IN, _MOST_REFUSED, _MOST_CLIENTS = 64, 1024, 1024
_REVIEWS = 2
"""Concurrent reviews of new tokens, and as many of known ones; others get 503."""
_CLIENT_BURST, _CLIENT_EVERY = 5.0, 2.0
_ALL_BURST, _ALL_EVERY = 30.0, 0.2
"""Reviews of new tokens: how many at once, and then one in how many seconds, for one client and for all."""
_AGAIN = 5.0
"""Seconds until a known token is asked about again where the API server did not answer."""


class ScrapeVerdict(StrEnum):
    """The result of a scrape."""

    ALLOWED = "allowed"
    UNKNOWN = "unknown"
    """The token belongs to no user."""
    DENIED = "denied"
    """Its user may not read metrics."""
    UNAVAILABLE = "unavailable"
    """The API server was not asked, or did not answer."""


Review = Callable[[str], ScrapeVerdict]


@dataclass(slots=True)
class _LetIn:
    """A token that the API server accepted."""

    confirmed: float
    reviewed: float


@dataclass(slots=True)
class _Bucket:
    left: float
    at: float

    def take(self, now: float, burst: float, every: float) -> bool:
        self.left = min(burst, self.left + max(0.0, now - self.at) / every)
        self.at = now
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True


class ScrapeGate:
    """Remembers the API server's answers about tokens. `review` queries it, may take seconds, and must not raise."""

    def __init__(self, review: Review, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._review = review
        self._clock = clock
        self._lock = threading.Lock()  # guards everything below
        self._let_in: OrderedDict[bytes, _LetIn] = OrderedDict()
        self._refused: OrderedDict[bytes, tuple[ScrapeVerdict, float]] = OrderedDict()
        self._clients: OrderedDict[str, _Bucket] = OrderedDict()
        self._all = _Bucket(_ALL_BURST, clock())
        self._under_way = {True: 0, False: 0}
        """Reviews, of known tokens and of new ones."""

    def check(self, token: str, client: str) -> ScrapeVerdict:
        """The verdict on a scrape with this token from this address. Never raises."""
        if not token or len(token) > _LONGEST or not token.isascii() or not token.isprintable():
            return ScrapeVerdict.UNKNOWN
        # Tokens must not be readable in the process's own memory.
        key = hashlib.sha256(token.encode()).digest()
        with self._lock:
            found = self._remembered(key, client)
            if found is not None:
                return found
            known = key in self._let_in
            self._under_way[known] += 1
        try:
            verdict = self._review(token)
        except Exception:
            log.exception("scraper's token not reviewed")
            verdict = ScrapeVerdict.UNAVAILABLE
        with self._lock:
            self._under_way[known] -= 1
            return self._take_in(key, verdict)

    def _remembered(self, key: bytes, client: str) -> ScrapeVerdict | None:
        """What is remembered of the token, or why the API server is not asked now; None if it must be asked."""
        now, known, refused = self._clock(), self._let_in.get(key), self._refused.get(key)
        if known is not None:
            if now - known.confirmed < FRESH:
                return ScrapeVerdict.ALLOWED
            if now - known.reviewed < _AGAIN or self._under_way[True] >= _REVIEWS:
                return self._meanwhile(key, now)
            known.reviewed = now
            return None
        if refused is not None and now - refused[1] < REFUSED_FRESH:
            return refused[0]
        if self._under_way[False] >= _REVIEWS or not self._may_ask(client, now):
            return ScrapeVerdict.UNAVAILABLE
        return None

    def _may_ask(self, client: str, now: float) -> bool:
        bucket = self._clients.setdefault(client, _Bucket(_CLIENT_BURST, now))
        self._clients.move_to_end(client)
        while len(self._clients) > _MOST_CLIENTS:
            self._clients.popitem(last=False)
        return bucket.take(now, _CLIENT_BURST, _CLIENT_EVERY) and self._all.take(now, _ALL_BURST, _ALL_EVERY)

    def _meanwhile(self, key: bytes, now: float) -> ScrapeVerdict:
        """For a formerly accepted token, while the API server cannot say whether it still is."""
        if now - self._let_in[key].confirmed < GRACE:
            return ScrapeVerdict.ALLOWED
        return ScrapeVerdict.UNAVAILABLE

    def _take_in(self, key: bytes, verdict: ScrapeVerdict) -> ScrapeVerdict:
        now = self._clock()
        if verdict is ScrapeVerdict.UNAVAILABLE:
            return self._meanwhile(key, now) if key in self._let_in else verdict
        self._let_in.pop(key, None)
        self._refused.pop(key, None)
        if verdict is ScrapeVerdict.ALLOWED:
            self._let_in[key] = _LetIn(now, now)
            while len(self._let_in) > _MOST_LET_IN:
                self._let_in.popitem(last=False)
            return verdict
        self._refused[key] = (verdict, now)
        while len(self._refused) > _MOST_REFUSED:
            self._refused.popitem(last=False)
        return verdict


# -- at the port --------------------------------------------------------------------------------------------------

_STATUS = {
    ScrapeVerdict.UNKNOWN: (401, "send the token of an account that may get the path /metrics"),
    ScrapeVerdict.DENIED: (403, "this account may not get the path /metrics; bind it to gpufraction-metrics-reader"),
    ScrapeVerdict.UNAVAILABLE: (503, "the API server did not answer whose token this is; try again"),
}


def guarded(check: Callable[[str, str], ScrapeVerdict]) -> Callable[[Handler], Handler]:
    """A handler that answers only clients that may read metrics. `check` takes the token and the client's address."""

    def guard(handler: Handler) -> Handler:
        def answer(request: Request) -> Reply:
            if not request.secure:
                # Anyone who listens has the token now, so the administrator must know.
                raise HttpError(403, "metrics are served only over https, since a scraper sends its token")
            verdict = check(bearer(request.headers.get("authorization", "")), request.client)
            if verdict is ScrapeVerdict.ALLOWED:
                return handler(request)
            status, words = _STATUS[verdict]
            raise HttpError(status, words)

        return answer

    return guard


@dataclass(frozen=True, slots=True)
class Scraping:
    """What `serve_probes` needs of this module."""

    guard: Callable[[Handler], Handler] = lambda handler: handler
    tls: TlsOf | None = None


def scraping(access: str, certificates: Path | None, review: Review) -> Scraping:
    """
    By the settings `metrics_access` and `metrics_certificates`. Raises `OSError` for a folder without a certificate.
    """
    if access == "open":
        log.warning("metrics are open to everyone who reaches the port, and name pods and namespaces")
        return Scraping()
    # It takes about 9 MiB of memory, which a program whose metrics are open does not need.
    from runtime.tls import MetricsTls

    return Scraping(guarded(ScrapeGate(review).check), MetricsTls(certificates).current)


def bearer(header: str) -> str:
    """The token of an `Authorization` header; empty if it has none."""
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
