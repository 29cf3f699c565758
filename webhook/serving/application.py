"""
The webhook as a Flask application: three routes around `webhook.admission.admit`, which decides.

It holds no state, so every replica serves every review. Status codes: 400 for a body that is no AdmissionReview, 413
over the size limit, 500 for a fault of ours, so that the failurePolicy decides; everything else is 200 with a verdict
inside. Neither pods nor errors' texts are logged, since environments hold secrets: a fault's log line has its traceback
and an id, which the answer repeats.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable

from flask import Flask, Response, abort, jsonify, request
from werkzeug.exceptions import HTTPException

from contract.encoding.protocol import NOT_LEADING, Answer, Question, Wait
from contract.metrics.webhook import ADMISSION_REQUESTS, ADMISSION_SECONDS, QUESTIONS
from runtime.metrics import Metrics
from webhook.admission import review
from webhook.admission.admit import Ask, Configuration, Reviewed, admit
from webhook.admission.review import BadReview
from webhook.serving.asking import Allocator, NoAnswer

MAX_BODY = 3 << 20
"""Bytes. An API server takes no larger request, and stores half as much; a review may carry an old and a new pod."""
MAX_VALUES = 200_000
"""In a body, by its commas and brackets. Read, each takes up to 100 bytes; a pod has a few hundred."""

log = logging.getLogger(__name__)


def create_app(
    configuration: Callable[[], Configuration],
    allocator: Allocator,
    metrics: Metrics,
    *,
    ready: Callable[[], str | None],
    trouble: Callable[[], str] = lambda: "",
    clock: Callable[[], float] = time.monotonic,
    now_ns: Callable[[], int] = time.time_ns,
) -> Flask:
    """
    The application. `configuration` is asked for each review.

    `ready` gives the reason why this process cannot serve now, or None; `trouble` what is wrong that keeps nobody from
    being served, or empty. `clock` measures durations in seconds; `now_ns` is the time in nanoseconds since 1970.
    """
    app = Flask("webhook")
    # One more than allowed: a body without a declared length is cut at this limit instead of being refused.
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY + 1
    reviews, seconds = metrics.counter(ADMISSION_REQUESTS), metrics.histogram(ADMISSION_SECONDS)
    ask = _counted(allocator, metrics)

    @app.post("/mutate")
    def mutate() -> Response:
        body = request.get_data()
        if len(body) > MAX_BODY:
            abort(413)
        if len(body) > MAX_VALUES and sum(map(body.count, (b",", b"[", b"{"))) > MAX_VALUES:
            abort(413, f"the review has more than {MAX_VALUES} values")
        started = clock()
        response, outcome, dialect = _guarded(
            lambda: admit(review.decode(body), configuration(), ask, allocator.offers, now_ns=now_ns())
        )
        reviews.labels(outcome, dialect).inc()
        seconds.labels(outcome).observe(clock() - started)
        return response

    @app.get("/healthz")
    def healthz() -> Response:
        return _plain("ok")

    @app.get("/readyz")
    def readyz() -> Response:
        reason, beside = ready(), trouble()
        return _plain(reason, 503) if reason else _plain(f"ok; {beside}" if beside else "ok")

    @app.errorhandler(HTTPException)
    def refused(error: HTTPException) -> tuple[Response, int]:
        return jsonify(message=error.description), error.code or 500

    return app


def _guarded(answer: Callable[[], Reviewed]) -> tuple[Response, str, str]:
    """The response to a review, whatever comes of answering it; its outcome and dialect for the metric."""
    try:
        reviewed = answer()
    except BadReview as error:
        return _message(str(error), 400), "malformed", ""
    except RecursionError:
        return _message("the object is nested too deep", 400), "malformed", ""
    except Exception as error:
        fault = secrets.token_hex(4)
        log.error("fault", extra={"fault": fault, "kind": type(error).__name__}, exc_info=_without_text(error))
        return _message(f"internal error, logged as fault {fault}", 500), "error", ""
    return Response(reviewed.body, content_type="application/json"), reviewed.outcome, reviewed.dialect


def _counted(allocator: Allocator, metrics: Metrics) -> Ask:
    """How admission asks the allocator: answers are counted, and what prevented one is logged."""
    questions = metrics.counter(QUESTIONS)

    def ask(question: Question) -> Answer | None:
        answer = allocator.ask(question)
        if not question.refused:
            questions.labels(_answer_label(answer)).inc()
        if isinstance(answer, NoAnswer):
            what = "the share of a refused pod was not released" if question.refused else "the allocator gave no answer"
            log.info(what, extra={"reason": answer.code, "detail": answer.detail})
            return None
        return answer

    return ask


def _answer_label(answer: Answer | NoAnswer) -> str:
    if isinstance(answer, NoAnswer):
        return answer.code
    elsewhere = isinstance(answer, Wait) and answer.code == NOT_LEADING
    return "not-leading" if elsewhere else type(answer).__name__.lower()


def _without_text(error: Exception) -> BaseException:
    """The error with its traceback but without its text, which may quote the pod."""
    return Exception(type(error).__name__).with_traceback(error.__traceback__)


def _message(text: str, status: int) -> Response:
    response = jsonify(message=text)
    response.status_code = status
    return response


def _plain(text: str, status: int = 200) -> Response:
    return Response(text + "\n", status, content_type="text/plain; charset=utf-8")
