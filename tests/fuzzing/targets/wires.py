"""What arrives over connections: reviews, both ends of the unix socket, HTTP, the API server, kubelet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from contract.dialects import DIALECTS
from contract.encoding import codec, protocol
from contract.encoding.protocol import ClaimsAnswer, ClaimsQuestion, Never, Placed, Question, Wait
from contract.encoding.quantity import BadQuantity
from contract.encoding.reading import Malformed
from contract.model import Alternative, ClaimEntry, Constraint, DeviceRequest
from kubectl_gpufraction.cluster import targets as pods_named
from kubectl_gpufraction.cluster.targets import BadTarget
from kubectl_gpufraction.ui import server as page
from nodeagent.dra import wire as dra
from nodeagent.mps import exchange
from runtime.httpserver import HttpError
from runtime.kubernetes import errors, wire
from runtime.kubernetes.errors import KubeError, KubeMalformed
from runtime.unixhttp import Answer, BadAnswer, Unanswered, UnixClient
from tests.fuzzing.judge import LONGEST_INPUT, Finding, NotJson, Target, bounded, document, presentable, same
from tests.fuzzing.targets.annotations import ALLOCATIONS, REQUESTS
from tests.unit.webhook.admission.test_made_up_pods import ANSWERS
from tests.unit.webhook.builders import container, pod, review
from webhook.admission import review as reviews
from webhook.admission.admit import Configuration, admit
from webhook.admission.review import BadReview
from webhook.serving import http1
from webhook.serving.asking import NoAnswer
from webhook.serving.http1 import Head, RefusedRequest, RequestParser

JSON = dict[str, Any]
_MESSAGE = 64 << 10
"""The maximum number of characters of a denial's message, which its author sees; warnings have their own bound."""


# -- reviews ------------------------------------------------------------------------------------------------------


def _review_seeds() -> tuple[bytes, ...]:
    found = [review(pod(container(nvidia_com__gpu="1", nvidia_com__gpumem="3000"), container("b")))]
    for dialect in DIALECTS:
        for each in dialect.examples[:4]:
            made = pod(container(), annotations=dict(each.annotations))
            made["metadata"]["labels"] |= dict(each.labels)
            made["spec"]["containers"][0]["resources"] = {"limits": dict(each.limits)}
            found.append(review(made))
    request = codec.request_to_text(REQUESTS[0])
    again = pod(
        container(gpufraction_io__gpu_memory="16Gi", gpufraction_io__gpu_cores="60"),
        annotations={
            "gpufraction.io/request": request,
            "gpufraction.io/allocation": codec.allocation_to_text(ALLOCATIONS[0]),
        },
        schedulingGates=[{"name": "gpufraction.io/allocation"}],
        affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}},
        tolerations=[{"key": "a", "operator": "Exists"}],
    )
    found.append(review(again))
    found.append(review(pod(container()), operation="UPDATE", subResource="ephemeralcontainers", oldObject=pod()))
    return tuple(json.dumps(each).encode() for each in found)


_CONFIGURATIONS = (Configuration(), Configuration(hide_gpus=True, runtime_class="nvidia", dra=True, warning="warned"))


def _review(data: bytes) -> None:
    """A review through admission, with each of the possible answers of an allocator."""
    asked = reviews.decode(data)
    for position, name in enumerate(sorted(ANSWERS)):
        configuration = _CONFIGURATIONS[position % 2]

        def ask(question: Question, name: str = name) -> Any:
            found = ANSWERS[name](question)
            return None if isinstance(found, NoAnswer) else found

        try:
            reviewed = admit(asked, configuration, ask, lambda node: frozenset({"nvidia.com/gpu"}), now_ns=1)
        except RecursionError:
            continue  # the application answers 400
        bounded(len(reviewed.body), len(data), "the answer", times=16, more=64 << 10)
        response = json.loads(reviewed.body)["response"]
        for warning in response.get("warnings", ()):
            presentable(warning, "a warning", most=4096)
        if not response["allowed"]:
            message = response["status"]["message"]
            presentable(message, "the denial", most=_MESSAGE)
        presentable(reviewed.dialect, "the dialect's label", most=64)


# -- the unix socket ----------------------------------------------------------------------------------------------


_CLAIMS = protocol.claims_question_to_json(
    ClaimsQuestion("team-a", (ClaimEntry("gpu", template="t"), ClaimEntry("own", claim="c")))
)
SELECTING = DeviceRequest(
    "b",
    1,
    1 << 30,
    selectors=("true",),
    alternatives=(Alternative("x"),),
    constraints=(Constraint("numa", ("a", "b")),),
)
_READINGS = protocol.claims_answer_to_json(
    ClaimsAnswer({"gpu": (DeviceRequest("a", 2, 1 << 30, 30, 2 << 30, "mps"), SELECTING), "own": ()})
)


def _question_seeds() -> tuple[bytes, ...]:
    asked = pod(container(nvidia_com__gpu="1"), annotations={"a": "b"}, schedulingGates=[{"name": "g"}])
    found = [
        protocol.question_to_json(Question("u-1", "team-a", request, asked, dry_run=True, held="id"))
        for request in REQUESTS
    ]
    return tuple(json.dumps(each).encode() for each in (*found, protocol.node_to_json("n1"), _CLAIMS))


def _question(data: bytes) -> None:
    found = document(data)
    for read in (protocol.node_from_json, protocol.token_from_json, protocol.claims_question_from_json):
        try:
            read(found)
        except Malformed as error:
            presentable(str(error), "the message")
    question = protocol.question_from_json(found)
    again = protocol.question_from_json(protocol.question_to_json(question))
    same(again, question, "reading a question that was written")


def _answer_seeds() -> tuple[bytes, ...]:
    answers: list[Placed | Wait | Never] = [Placed(each, "nodeName", True) for each in ALLOCATIONS]
    answers += [Wait("NoRoom", "full", {"a": 1 << 30}), Never("TooLarge", "too large")]
    listed = [protocol.answer_to_json(each) for each in answers]
    others = protocol.offered_to_json(frozenset({"nvidia.com/gpu"})), _READINGS
    return tuple(json.dumps(each).encode() for each in (*listed, *others))


def _answer(data: bytes) -> None:
    """The webhook's side: the body of an answer, as JSON and as its meaning."""
    try:
        found = Answer(200, data).json()
    except RecursionError:
        return  # documented at `answer_from_json`: both callers catch it
    for read in (
        protocol.offered_from_json,
        protocol.cards_from_json,
        protocol.verdict_from_json,
        protocol.claims_answer_from_json,
    ):
        try:
            read(found)
        except Malformed as error:
            presentable(str(error), "the message")
    answer = protocol.answer_from_json(found)
    same(protocol.answer_from_json(protocol.answer_to_json(answer)), answer, "reading an answer that was written")


class _Pieces:
    """A connection that delivers the input in pieces."""

    def __init__(self, data: bytes) -> None:
        self._pieces = [data[at : at + 97] for at in range(0, len(data), 97)]

    def settimeout(self, seconds: float) -> None:
        """Does nothing: nothing waits."""

    def recv(self, most: int) -> bytes:
        """The next piece."""
        return self._pieces.pop(0) if self._pieces else b""


def _http_answer(data: bytes) -> None:
    client = UnixClient(Path("/nowhere"), max_answer=1 << 16)
    answer, _ = client._receive(_Pieces(data), bytearray(), float("inf"))  # type: ignore[arg-type]
    bounded(len(answer.body), len(data), "the body", times=1, more=0)


# -- HTTP ---------------------------------------------------------------------------------------------------------

_HTTP = (
    b"POST /mutate?timeout=10s HTTP/1.1\r\nHost: a:9443\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n{}",
    b"GET /healthz HTTP/1.0\r\nConnection: close\r\n\r\n",
    b"GET / HTTP/1.1\r\nA: b\r\nA: c\r\nConnection: keep-alive\r\n\r\nGET / HTTP/1.1\r\n\r\n",
)


def _http(data: bytes) -> None:
    """The requests of a connection are the same, however the bytes are divided into pieces."""
    whole, split = RequestParser(1 << 12), RequestParser(1 << 12)
    whole.feed(data)
    found = _taken(whole)
    pieces: list[Any] = []
    for at in range(0, len(data), 13):
        split.feed(data[at : at + 13])
        pieces += _taken(split)
        if pieces and isinstance(pieces[-1], RefusedRequest):
            break
    same(pieces, found, "the requests that came in pieces")
    for each in found:
        if isinstance(each, RefusedRequest):
            presentable(each.message, "the refusal", most=300)
            http1.refusal(each)
        else:
            for value in each.head.headers.values():
                if "\n" in value or "\r" in value or "\x00" in value:
                    raise Finding("a header has a line break")
            bounded(len(each.body), len(data), "the body", times=1, more=0)
    read = http1.read_head(data[: http1.MAX_HEAD])
    if isinstance(read, Head) and read.length < 0:
        raise Finding("a body of negative length")


def _taken(parser: RequestParser) -> list[Any]:
    found: list[Any] = []
    while (each := parser.take()) is not None:
        found.append(each)
        if isinstance(each, RefusedRequest):
            break
        if len(found) > LONGEST_INPUT:
            raise Finding("requests without end")
    return found


# -- the API server's answers -----------------------------------------------------------------------------------


def _api(data: bytes) -> None:
    for line in wire.lines(iter([data[: len(data) // 2], data[len(data) // 2 :]])):
        try:
            found = wire.event(line, "/api/v1/pods")
        except KubeMalformed as error:
            presentable(str(error), "the message")
        else:
            if found.get("type") == "ERROR":
                _refused(errors.error_from_status(_code(found["object"]), found["object"], what="watch"))
    for status in (403, 429, 500, 504):
        _refused(wire.refusal(status, data, {"retry-after": data[:20].decode("latin-1")}, "GET /x", "/x"))
    wire.document(data, 200, "GET /x")


def _page(data: bytes) -> None:
    """A page of a list is read object by object; each object has its own length within the text."""
    lengths: list[int] = []

    def take(found: JSON, length: int) -> None:
        if not isinstance(found, dict):
            raise Finding("a listed object that is none")
        lengths.append(length)

    meta = wire.page(data, "/x", take)
    if not isinstance(meta, dict) or sum(lengths) > len(data):
        raise Finding("a page without metadata, or objects that are longer than the page")


def _code(found: JSON) -> int:
    code = found.get("code")
    return code if isinstance(code, int) and 100 <= code < 600 else 500


def _refused(error: KubeError) -> None:
    presentable(str(error), "the API server's refusal", most=2000)


_API = (
    b'{"type":"ADDED","object":{"kind":"Pod","metadata":{"name":"p","resourceVersion":"5"}}}\n'
    b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}\n',
    b'{"kind":"PodList","metadata":{"resourceVersion":"5","continue":"x"},"items":[{"metadata":{"name":"p"}}]}',
    b'{"kind":"Status","status":"Failure","message":"denied","reason":"Forbidden","details":{"retryAfterSeconds":5},"code":403}',
)

_PAGES = (
    _API[2],
    b'{"items":[],"metadata":{"resourceVersion":"5"},"kind":"PodList"}',
    b'{"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}}],"metadata":{"continue":"token"}}',
)


# -- the page and the plugin --------------------------------------------------------------------------------------


def _query(data: bytes) -> None:
    text = data.decode("latin-1")
    found = page.wanted_of(text)
    bounded(len(found.filter), len(data), "the filter", times=1, more=0)
    found.of([{"a": str(number)} for number in range(50)], lambda row: str(row["a"]))


def _host(data: bytes) -> None:
    text = data.decode("latin-1")
    page.named_rightly(text, frozenset({"localhost"}))


def _pod_named(data: bytes) -> None:
    text = data.decode(errors="replace")
    found = pods_named.read(text, "default")
    same("/" in found.name or "/" in found.namespace, False, "a slash in a name")


# -- kubelet and the MPS daemons ----------------------------------------------------------------------------------


def _dra_seeds() -> tuple[bytes, ...]:
    claim = dra._text(1, "team-a") + dra._text(2, "u-1") + dra._text(3, "claim")
    registered = dra._number(1, 1) + dra._text(2, "")
    return (dra._bytes(1, claim) + dra._bytes(1, claim), registered, dra._bytes(9, b"x") + bytes([0x0D, 1, 2, 3, 4]))


def _dra(data: bytes) -> None:
    try:
        registered = dra.registration(data)
    except dra.BadMessage as error:
        presentable(str(error), "the message")
    else:
        same(isinstance(registered[0], bool), True, "whether we are registered")
    found = dra.claims(data)
    written = b"".join(
        dra._bytes(1, dra._text(1, each.namespace) + dra._text(2, each.uid) + dra._text(3, each.name)) for each in found
    )
    same(dra.claims(written), found, "reading claims that were written")
    bounded(len(dra.prepared({each.uid: "why not" for each in found})), len(data), "the answer", times=16)


def _exchange_seeds() -> tuple[bytes, ...]:
    gpu = exchange.GpuReport("Serving", True, True, "", (12,), 1, 48, 1, True, {"k": "p"}, 8, "")
    report = exchange.report_to_text(exchange.Report(100.0, {"GPU-1": gpu}))
    wanted = exchange.wanted_to_text(["GPU-1"], {"GPU-1": {"k": 50}})
    return (report.encode(), wanted.encode(), exchange.partitions_to_text(7, {"k": "p"}).encode())


def _exchange(data: bytes) -> None:
    text = data.decode(errors="replace")
    report = exchange.report_from_text(text, now=100.0, patience=30.0)
    if report is not None:
        again = exchange.report_from_text(exchange.report_to_text(report), now=100.0, patience=30.0)
        same(again, report, "reading a report that was written")
    wanted, shares = exchange.wanted_from_text(text), exchange.shares_from_text(text)
    if wanted is not None:
        written = exchange.wanted_to_text(wanted, shares)
        same(exchange.wanted_from_text(written), wanted, "reading what is wanted, written")
        same(dict(exchange.shares_from_text(written)), dict(shares), "reading shares that were written")
    exchange.partitions_from_text(text, 7)


TARGETS = (
    Target(
        "review",
        _review,
        ("webhook.admission.review:decode",),
        _review_seeds,
        (BadReview,),
        modules=("webhook.admission.admit", "webhook.admission.containers", "contract.dialects", "contract.bounds"),
        seconds=3.0,
        weight=6,
    ),
    Target(
        "socket-question",
        _question,
        tuple(f"contract.encoding.protocol:{each}_from_json" for each in ("question", "node", "token")),
        _question_seeds,
        (Malformed, BadQuantity, NotJson),
        modules=("contract.encoding.codec", "contract.encoding.wire"),
    ),
    Target(
        "socket-answer",
        _answer,
        tuple(f"contract.encoding.protocol:{each}_from_json" for each in ("answer", "offered", "cards", "verdict")),
        _answer_seeds,
        (Malformed, BadAnswer),
        modules=("contract.encoding.codec",),
    ),
    Target(
        "socket-http",
        _http_answer,
        ("runtime.unixhttp:UnixClient",),
        lambda: (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",),
        (Unanswered,),
        form="bytes",
    ),
    Target("http", _http, ("webhook.serving.http1:read_head",), lambda: _HTTP, form="bytes"),
    Target(
        "api-server",
        _api,
        (
            "runtime.kubernetes.wire:event",
            "runtime.kubernetes.wire:document",
            "runtime.kubernetes.errors:error_from_status",
        ),
        lambda: _API,
        (KubeMalformed,),
    ),
    Target("api-page", _page, ("runtime.kubernetes.wire:page",), lambda: _PAGES, (KubeMalformed,)),
    Target(
        "page-query",
        _query,
        ("kubectl_gpufraction.ui.server:wanted_of",),
        lambda: (b"filter=a+b&from=0&count=50", b"namespace=team-a&name=p", b"filter=%ff%00&from=-1", b"count=1_0"),
        (HttpError,),
        form="text",
    ),
    Target(
        "page-host",
        _host,
        ("kubectl_gpufraction.ui.server:named_rightly",),
        lambda: (b"localhost:8080", b"[::1]:80", b"127.0.0.1", b"Localhost.", b"[fe80::1%25eth0]:1"),
        form="text",
    ),
    Target(
        "pod-named",
        _pod_named,
        ("kubectl_gpufraction.cluster.targets:read",),
        lambda: (b"p", b"team-a/p", b"deployment/x", b"team-a/deploy.apps/x"),
        (BadTarget,),
        form="text",
    ),
    Target(
        "dra-messages",
        _dra,
        ("nodeagent.dra.wire:claims", "nodeagent.dra.wire:registration"),
        _dra_seeds,
        (dra.BadMessage,),
        form="bytes",
    ),
    Target(
        "mps-exchange",
        _exchange,
        (
            "nodeagent.mps.exchange:report_from_text",
            "nodeagent.mps.exchange:wanted_from_text",
            "nodeagent.mps.exchange:shares_from_text",
            "nodeagent.mps.exchange:partitions_from_text",
        ),
        _exchange_seeds,
    ),
)
