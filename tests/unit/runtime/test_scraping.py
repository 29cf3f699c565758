"""Which clients may read metrics: those that the API server allows. Strangers neither flood nor block the server."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.httpserver import HttpError, Reply, Request
from runtime.kubernetes.client import Kube
from runtime.scraping import FRESH, GRACE, REFUSED_FRESH, ScrapeGate, ScrapeVerdict, bearer, guarded
from runtime.tokenreview import kube_review
from tests.wires import Answer, Script, status_body

ALLOWED, UNKNOWN, DENIED, UNAVAILABLE = (
    ScrapeVerdict.ALLOWED,
    ScrapeVerdict.UNKNOWN,
    ScrapeVerdict.DENIED,
    ScrapeVerdict.UNAVAILABLE,
)


@dataclass
class Reviewed:
    """An API server that knows these tokens, a gate in front of it, and a clock."""

    says: dict[str, ScrapeVerdict] = field(default_factory=lambda: {"prometheus": ALLOWED, "tenant": DENIED})
    away: bool = False
    now: float = 1000.0
    reviews: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.gate = ScrapeGate(self.review, clock=lambda: self.now)

    def review(self, token: str) -> ScrapeVerdict:
        self.reviews[token] += 1
        return UNAVAILABLE if self.away else self.says.get(token, UNKNOWN)

    def check(self, token: str, client: str = "10.0.0.1", after: float = 0.0) -> ScrapeVerdict:
        self.now += after
        return self.gate.check(token, client)


def test_who_is_let_in_and_who_is_not() -> None:
    server = Reviewed()
    assert [server.check(token) for token in ("prometheus", "tenant", "forged", "")] == [
        ALLOWED,
        DENIED,
        UNKNOWN,
        UNKNOWN,
    ]


def test_an_answer_is_remembered_for_a_while() -> None:
    server = Reviewed()
    for token in ("prometheus", "tenant"):
        server.check(token)
        server.check(token, after=REFUSED_FRESH - 1)
    assert server.reviews == {"prometheus": 1, "tenant": 1}
    server.check("tenant", after=2)
    server.check("prometheus", after=FRESH)
    assert server.reviews == {"prometheus": 2, "tenant": 2}


def test_a_token_that_is_taken_back_is_refused_before_long() -> None:
    server = Reviewed()
    server.check("prometheus")
    server.says["prometheus"] = DENIED
    assert server.check("prometheus", after=FRESH + 1) == DENIED


def test_an_outage_lets_in_who_was_let_in_before_for_a_while() -> None:
    server = Reviewed()
    server.check("prometheus")
    server.check("tenant")
    server.away = True
    assert server.check("prometheus", after=FRESH + 1) == ALLOWED
    assert [server.check(token) for token in ("tenant", "forged")] == [UNAVAILABLE, UNAVAILABLE]
    assert server.check("prometheus", after=GRACE) == UNAVAILABLE
    server.away = False
    assert server.check("prometheus", after=10) == ALLOWED


def test_during_an_outage_not_every_scrape_is_reviewed() -> None:
    server = Reviewed()
    server.check("prometheus")
    server.away = True
    server.now += FRESH
    for _ in range(50):
        server.check("prometheus", after=0.1)
    assert server.reviews["prometheus"] <= 3


def test_a_flood_of_bad_tokens_reaches_the_api_server_in_drops() -> None:
    server = Reviewed()
    server.check("prometheus", "10.0.0.9")
    for number in range(10_000):
        assert server.check(f"forged-{number}", after=0.01) in (UNKNOWN, UNAVAILABLE)
        if number % 1000 == 0:
            assert server.check("prometheus", "10.0.0.9") == ALLOWED
    assert sum(server.reviews.values()) <= 1 + 5 + 100 / 2 + 1, "100 s, one client"


def test_one_strangers_flood_does_not_keep_a_new_scraper_out() -> None:
    server = Reviewed()
    for number in range(1000):
        server.check(f"forged-{number}", "10.0.0.66")
    assert server.check("prometheus", "10.0.0.9") == ALLOWED


def test_many_strangers_neither_fill_the_memory_nor_put_a_scraper_out() -> None:
    server = Reviewed()
    server.check("prometheus", "10.0.0.9")
    for number in range(5000):
        server.check(f"forged-{number}", f"10.1.{number % 3000}", after=0.3)
        server.check("prometheus", "10.0.0.9")
    kept = [len(table) for table in (server.gate._let_in, server.gate._refused, server.gate._clients)]
    assert kept[0] == 1
    assert max(kept) <= 1024
    assert server.check("prometheus", "10.0.0.9") == ALLOWED


def test_reviews_that_hang_hold_few_threads_and_others_fail_at_once() -> None:
    started, go = threading.Semaphore(0), threading.Event()

    def hangs(token: str) -> ScrapeVerdict:
        started.release()
        go.wait(10)
        return UNKNOWN

    gate = ScrapeGate(hangs)
    threads = [threading.Thread(target=gate.check, args=(f"t{n}", f"10.0.0.{n}")) for n in range(2)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert started.acquire(timeout=5)
    assert [gate.check(f"more-{n}", f"10.0.1.{n}") for n in range(20)] == [UNAVAILABLE] * 20
    go.set()
    for thread in threads:
        thread.join(5)


def test_a_review_that_fails_lets_nobody_in() -> None:
    def fails(token: str) -> ScrapeVerdict:
        raise RuntimeError("internal")

    assert ScrapeGate(fails).check("prometheus", "10.0.0.1") == UNAVAILABLE


@given(st.text(max_size=40) | st.sampled_from(["a" * 9000, "x\ny", "\ud800", "token\x00"]))
def test_whatever_is_shown_as_a_token_raises_nothing(token: str) -> None:
    server = Reviewed()
    assert server.check(token) in (UNKNOWN, UNAVAILABLE)


histories = st.lists(
    st.tuples(
        st.sampled_from(["prometheus", "tenant", "forged"]),
        st.sampled_from([0.0, 1.0, 31.0, 301.0, 901.0]),
        st.booleans(),
        st.sampled_from([ALLOWED, DENIED]),
    ),
    max_size=30,
)


@given(histories)
def test_nobody_is_let_in_whom_the_api_server_did_not_let_in_lately(
    history: list[tuple[str, float, bool, Any]],
) -> None:
    server, confirmed = Reviewed(), dict[str, float]()
    for token, after, away, prometheus in history:
        server.away, server.says["prometheus"] = away, prometheus
        before = server.reviews[token]
        verdict = server.check(token, after=after)
        if server.reviews[token] > before and not away:
            confirmed.pop(token, None)
            if server.says.get(token) is ALLOWED:
                confirmed[token] = server.now
        if verdict is ALLOWED:
            assert server.now - confirmed[token] < GRACE


# -- what the API server is asked --------------------------------------------------------------------------------

USER = {"username": "system:serviceaccount:m:p", "uid": "u", "groups": ["g"], "extra": {"k": ["v"]}}
KNOWN = {"status": {"authenticated": True, "user": USER}}


def reviewed(*answers: Answer) -> tuple[ScrapeVerdict, list[Any]]:
    script = Script(*answers, holds=True)
    verdict = kube_review(Kube(script))("secret-token")
    return verdict, [(sent.path, sent.body) for sent in script.sent]


def answer(body: Any) -> Answer:
    return Answer(201, body)


def test_a_tokens_user_is_reviewed_as_the_api_server_names_it() -> None:
    verdict, reviews = reviewed(answer(KNOWN), answer({"status": {"allowed": True}}))
    assert verdict == ALLOWED
    assert reviews == [
        ("/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": "secret-token"}}),
        (
            "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            {
                "spec": {
                    "user": USER["username"],
                    "groups": ["g"],
                    "uid": "u",
                    "extra": {"k": ["v"]},
                    "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
                }
            },
        ),
    ]


ANSWERS: dict[str, tuple[tuple[Answer, ...], ScrapeVerdict]] = {
    "nobody's token": ((answer({"status": {"authenticated": False, "user": {}}}),), UNKNOWN),
    "no status": ((answer({}),), UNKNOWN),
    "a user without a name": ((answer({"status": {"authenticated": True, "user": {}}}),), UNKNOWN),
    "authenticated in words": ((answer({"status": {"authenticated": "true", "user": USER}}),), UNKNOWN),
    "not allowed": ((answer(KNOWN), answer({"status": {"allowed": False}})), DENIED),
    "no answer to the second": ((answer(KNOWN), answer({})), DENIED),
    "allowed and denied": ((answer(KNOWN), answer({"status": {"allowed": True, "denied": True}})), DENIED),
    "allowed in words": ((answer(KNOWN), answer({"status": {"allowed": "true"}})), DENIED),
    "no right to ask": ((Answer(403, status_body(403, "Forbidden", "no")),), UNAVAILABLE),
    "an error of the server's": ((Answer(500, status_body(500, "InternalError", "no")),), UNAVAILABLE),
    "an error at the second": ((answer(KNOWN), Answer(500, status_body(500, "InternalError", "no"))), UNAVAILABLE),
}


@pytest.mark.parametrize(("answers", "want"), ANSWERS.values(), ids=ANSWERS.keys())
def test_only_a_clear_yes_lets_somebody_in(answers: tuple[Answer, ...], want: ScrapeVerdict) -> None:
    assert reviewed(*answers)[0] == want


# -- at the port --------------------------------------------------------------------------------------------------


def scraped(header: str, *, secure: bool = True, verdict: ScrapeVerdict = ALLOWED) -> tuple[int, list[str]]:
    seen: list[str] = []

    def check(token: str, client: str) -> ScrapeVerdict:
        seen.append(token)
        return verdict

    handler: Callable[[Request], Reply] = guarded(check)(lambda request: Reply(200, b"figures"))
    request = Request("GET", "/metrics", "", {"authorization": header} if header else {}, b"", "10.0.0.1", secure)
    try:
        return handler(request).status, seen
    except HttpError as refusal:
        return refusal.status, seen


def test_each_verdict_has_its_status() -> None:
    found = [scraped("Bearer t0", verdict=verdict)[0] for verdict in (ALLOWED, UNKNOWN, DENIED, UNAVAILABLE)]
    assert found == [200, 401, 403, 503]


def test_without_tls_no_token_is_reviewed() -> None:
    assert scraped("Bearer t0", secure=False) == (403, [])


def test_the_token_of_a_header() -> None:
    headers = ("Bearer t0", "bearer  t0 ", "Basic dDA6", "t0", "", "Bearer")
    assert [bearer(header) for header in headers] == ["t0", "t0", "", "", "", ""]
