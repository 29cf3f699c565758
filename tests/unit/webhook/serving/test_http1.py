"""HTTP/1.1 without a socket: how input is read, what is refused, and that the division into pieces does not matter."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.serving.http1 import (
    CONTINUE,
    MAX_HEAD,
    MAX_HEADERS,
    Head,
    RefusedRequest,
    RequestParser,
    WholeRequest,
    answer,
    patience,
    read_head,
    refusal,
)

LIMIT = 1000


def head(method: str = "GET", path: str = "/", query: str = "", length: int = 0, **more: object) -> Head:
    given: dict[str, object] = {"headers": {}, "keep": True, "waits": False, **more}
    return Head(method=method, path=path, query=query, length=length, **given)  # type: ignore[arg-type]


READ = {
    "the least": (b"GET / HTTP/1.1", head()),
    "a query": (b"POST /mutate?timeout=3s&a HTTP/1.1", head("POST", "/mutate", "timeout=3s&a")),
    "the older version ends the connection": (b"GET /x HTTP/1.0", head(path="/x", keep=False)),
    "names are alike in any case, and spaces around a value are not its own": (
        b"GET / HTTP/1.1\r\nHoSt: \t a b \t",
        head(headers={"host": "a b"}),
    ),
    "an empty value": (b"GET / HTTP/1.1\r\nX:", head(headers={"x": ""})),
    "one name twice": (b"GET / HTTP/1.1\r\nX: a\r\nx: b", head(headers={"x": "a,b"})),
    "a body": (b"GET / HTTP/1.1\r\nContent-Length: 7", head(length=7, headers={"content-length": "7"})),
    "the client wants to end": (
        b"GET / HTTP/1.1\r\nConnection: x, Close",
        head(keep=False, headers={"connection": "x, Close"}),
    ),
    "the client waits to be told": (
        b"GET / HTTP/1.1\r\nContent-Length: 1\r\nExpect: 100-Continue",
        head(length=1, waits=True, headers={"content-length": "1", "expect": "100-Continue"}),
    ),
    "and does not without a body": (
        b"GET / HTTP/1.1\r\nExpect: 100-continue",
        head(headers={"expect": "100-continue"}),
    ),
}


@pytest.mark.parametrize(("raw", "expected"), READ.values(), ids=READ.keys())
def test_a_head_is_read(raw: bytes, expected: Head) -> None:
    assert read_head(raw) == expected


REFUSED = {
    "nothing": (b"", 400),
    "words": (b"hello", 400),
    "another protocol": (b"GET / HTTP/2.0", 400),
    "an empty line first": (b"\r\nGET / HTTP/1.1", 400),
    "two spaces": (b"GET  / HTTP/1.1", 400),
    "a proxy's form": (b"GET http://a/ HTTP/1.1", 400),
    "a method in lower case": (b"get / HTTP/1.1", 400),
    "a control character in the path": (b"GET /\x01 HTTP/1.1", 400),
    "a line feed alone": (b"GET / HTTP/1.1\nX: y", 400),
    "a line feed in a header": (b"GET / HTTP/1.1\r\nX: y\nContent-Length: 5", 400),
    "a header without a colon": (b"GET / HTTP/1.1\r\nX", 400),
    "a space before the colon": (b"GET / HTTP/1.1\r\nContent-Length : 5", 400),
    "a folded header": (b"GET / HTTP/1.1\r\nX: a\r\n b", 400),
    "a zero byte": (b"GET / HTTP/1.1\r\nX: \x00", 400),
    "a length with a sign": (b"GET / HTTP/1.1\r\nContent-Length: +5", 400),
    "a length of digits that are no ASCII": (b"GET / HTTP/1.1\r\nContent-Length: \xb2", 400),
    "two lengths": (b"GET / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6", 400),
    "a length of any length": (b"GET / HTTP/1.1\r\nContent-Length: " + b"9" * 5000, 400),
    "parts": (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked", 411),
    "parts and a length": (b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked", 411),
    "another expectation": (b"POST / HTTP/1.1\r\nExpect: the-spanish-inquisition", 417),
    "a header too many": (b"GET / HTTP/1.1" + b"\r\nX: y" * (MAX_HEADERS + 1), 431),
}


@pytest.mark.parametrize(("raw", "status"), REFUSED.values(), ids=REFUSED.keys())
def test_a_head_is_refused(raw: bytes, status: int) -> None:
    found = read_head(raw)
    assert isinstance(found, RefusedRequest)
    assert found.status == status


@pytest.mark.timeout(5)
def test_no_header_takes_long_to_be_refused() -> None:
    for filling in (b" ", b"a ", b"\t\t", b"a"):
        assert isinstance(
            read_head(b"GET / HTTP/1.1\r\nX:" + filling * (MAX_HEAD // len(filling)) + b"\x00"), RefusedRequest
        )


REQUESTS = st.lists(
    st.builds(
        lambda path, body: (path, body),
        st.sampled_from(["/", "/mutate", "/mutate?a=b"]),
        st.one_of(st.binary(max_size=40), st.just(b"\r\n\r\n"), st.just(b"GET / HTTP/1.1\r\n\r\n")),
    ),
    max_size=4,
)


@given(REQUESTS, st.lists(st.integers(0, 400), max_size=12))
def test_however_the_bytes_are_cut_the_requests_are_the_same(wanted: list[tuple[str, bytes]], cuts: list[int]) -> None:
    raw = b"".join(b"POST %s HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (p.encode(), len(b), b) for p, b in wanted)
    places = sorted({0, len(raw), *(cut for cut in cuts if cut < len(raw))})
    reader, found = RequestParser(LIMIT), []
    for start, end in pairwise(places):
        reader.feed(raw[start:end])
        assert reader.held <= end
        while (each := reader.take()) is not None:
            assert isinstance(each, WholeRequest)
            found.append((each.head.path + ("?" + each.head.query) * bool(each.head.query), each.body))
    assert found == wanted
    assert (reader.held, reader.begun) == (0, False)


@given(st.binary(max_size=300))
def test_whatever_comes_is_a_request_a_refusal_or_not_enough(raw: bytes) -> None:
    reader = RequestParser(LIMIT)
    reader.feed(raw)
    assert reader.take() is None or reader.held <= len(raw)


def test_a_head_that_never_ends_is_refused_at_its_bound() -> None:
    reader = RequestParser(LIMIT)
    reader.feed(b"GET / HTTP/1.1\r\nX: " + b"x" * (MAX_HEAD - 40))
    assert reader.take() is None
    reader.feed(b"x" * MAX_HEAD)
    found = reader.take()
    assert isinstance(found, RefusedRequest)
    assert found.status == 431


@pytest.mark.parametrize(("length", "refused"), [(LIMIT, False), (LIMIT + 1, True), (10**15 - 1, True)])
def test_a_body_over_the_limit_is_refused_before_it_comes(length: int, refused: bool) -> None:
    reader = RequestParser(LIMIT)
    reader.feed(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % length)
    found = reader.take()
    assert (found is not None) == refused
    assert found is None or (isinstance(found, RefusedRequest) and found.status == 413)


def test_100_continue_is_sent_once_and_only_where_no_body_has_come() -> None:
    expects = b"POST / HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
    reader = RequestParser(LIMIT)
    for _ in range(2):
        reader.feed(expects)
        assert reader.take() is None
        assert [reader.must_continue() for _ in range(2)] == [True, False]
        reader.feed(b"ab")
        assert isinstance(reader.take(), WholeRequest)
    reader.feed(expects + b"a")
    assert reader.take() is None
    assert not reader.must_continue()


ANSWERS = {
    "kept": (
        answer("200 OK", [("X", "y")], b"ab", keep=True),
        b"HTTP/1.1 200 OK\r\nX: y\r\nContent-Length: 2\r\n\r\nab",
    ),
    "ended": (
        answer("404 Not Found", [("content-length", "9"), ("Connection", "keep-alive")], b"", keep=False),
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    ),
    "to HEAD": (
        answer("200 OK", [], b"abc", keep=True, bodiless=True),
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n",
    ),
    "a refusal": (
        refusal(RefusedRequest(411, "no")),
        b"HTTP/1.1 411 Length Required\r\nContent-Type: application/json\r\nContent-Length: 18\r\n"
        b'Connection: close\r\n\r\n{"message": "no"}\n',
    ),
    "go on": (CONTINUE, b"HTTP/1.1 100 Continue\r\n\r\n"),
}


@pytest.mark.parametrize(("made", "expected"), ANSWERS.values(), ids=ANSWERS.keys())
def test_answers(made: bytes, expected: bytes) -> None:
    assert made == expected


PATIENCE: dict[str, float | None] = {
    "": None,
    "timeout=3s": 3.0,
    "a=b&timeout=10s": 10.0,
    "timeout=1m0s": 60.0,
    "timeout=1.5s&timeout=9s": 1.5,
    "timeout=250ms": 0.25,
    "timeout=": None,
    "timeout=3": None,
    "timeout=-3s": None,
    "timeout=infs": None,
    "xtimeout=3s": None,
    "timeout=" + "1h" * 40: None,
}


@pytest.mark.parametrize(("query", "seconds"), PATIENCE.items())
def test_how_long_an_api_server_waits_is_in_its_query(query: str, seconds: float | None) -> None:
    assert patience(query) == seconds
