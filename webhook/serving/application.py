"""
The webhook as a Flask application: four routes around `webhook.admission.admit`, which decides.

It has no state, so every replica answers every review. Status codes: 400 for a body that is not an AdmissionReview, 413
over the size limit, 503 where the client stops waiting before the answer is there, and 500 for a fault of ours, so that
the failurePolicy decides; otherwise 200 with a verdict inside. Pods and the texts of errors are not logged, since
environments hold secrets: the log line of a fault has a traceback and an id, and the answer has the same id.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable

from flask import Flask, Response, abort, jsonify, request
from werkzeug.exceptions import HTTPException

from contract.encoding.protocol import Answer, Question, Wait
from contract.metrics.webhook import ADMISSION_REQUESTS, ADMISSION_SECONDS, DEPRECATED_NAMES, QUESTIONS
from contract.reasons.pods import UNANSWERED, AnswerReason
from runtime.httpserver import Reply
from runtime.metrics import Metrics
from webhook.admission import review
from webhook.admission.admit import Configuration, OnTime, Reserve, Reviewed, TooLate, admit, admit_claims
from webhook.admission.review import BadReview
from webhook.serving.asking import Allocator, NoAnswer
from webhook.serving.health import Health
from webhook.serving.workers import ANSWER_BY

MAX_BODY = 3 << 20
"""Bytes. An API server accepts no larger request, and stores half as much; a review may have an old and a new pod."""
MAX_VALUES = 200_000
"""In a body, counted by its commas and brackets. A parsed value takes up to 100 bytes; a pod has a few hundred."""

_LATE = "the review arrived too late to be answered in time; try again"

log = logging.getLogger(__name__)


def create_app(
    configuration: Callable[[], Configuration],
    allocator: Allocator,
    metrics: Metrics,
    *,
    health: Health,
    clock: Callable[[], float] = time.monotonic,
    now_ns: Callable[[], int] = time.time_ns,
) -> Flask:
    """
    The application. It calls `configuration` for each review.

    `clock` measures durations in seconds, and is the clock of `ANSWER_BY`; `now_ns` returns the time in
    nanoseconds since 1970.
    """
    app = Flask("webhook")
    # One more than allowed: Flask cuts a body without a declared length at this limit instead of refusing it.
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY + 1
    reviews, seconds = metrics.counter(ADMISSION_REQUESTS), metrics.histogram(ADMISSION_SECONDS)
    deprecated, counted = metrics.counter(DEPRECATED_NAMES), _counted(allocator, metrics)

    @app.post("/mutate")
    def mutate() -> Response:
        return answered(
            lambda body, reserve, answer_by, on_time: admit(
                review.decode(body), configuration(), reserve, allocator.offers, now_ns=now_ns(), on_time=on_time
            )
        )

    @app.post("/mutate/claims")
    def mutate_claims() -> Response:
        return answered(
            lambda body, reserve, answer_by, on_time: admit_claims(
                review.decode(body),
                configuration(),
                reserve,
                lambda question: allocator.claims(question, answer_by - clock()),
                now_ns=now_ns(),
                on_time=on_time,
            )
        )

    def answered(judge: Callable[[bytes, Reserve, float, OnTime], Reviewed]) -> Response:
        """The answer to the request at hand."""
        body = _body()
        started, answer_by = clock(), request.environ.get(ANSWER_BY, float("inf"))
        if started >= answer_by:
            reviews.labels("late", "").inc()
            return _message(_LATE, 503)

        def on_time() -> None:
            if clock() >= answer_by:
                raise TooLate

        def reserve(question: Question) -> Answer | None:
            return counted(question, answer_by - clock())

        response, reviewed = _guarded(lambda: judge(body, reserve, answer_by, on_time))
        reviews.labels(reviewed.outcome, reviewed.dialect).inc()
        seconds.labels(reviewed.outcome).observe(clock() - started)
        for name in reviewed.deprecated:
            deprecated.labels(name).inc()
        return response

    @app.get("/healthz")
    def healthz() -> Response:
        return _response(health.healthz())

    @app.get("/readyz")
    def readyz() -> Response:
        return _response(health.readyz())

    @app.errorhandler(HTTPException)
    def refused(error: HTTPException) -> tuple[Response, int]:
        return jsonify(message=error.description), error.code or 500

    return app


def _body() -> bytes:
    """The body of the request, within its bounds."""
    body = request.get_data()
    if len(body) > MAX_BODY:
        abort(413)
    if len(body) > MAX_VALUES and sum(map(body.count, (b",", b"[", b"{"))) > MAX_VALUES:
        abort(413, f"the review has more than {MAX_VALUES} values")
    return body


def _guarded(answer: Callable[[], Reviewed]) -> tuple[Response, Reviewed]:
    """The response to a review, also where answering it fails; and what the metrics count of it."""
    try:
        reviewed = answer()
    except BadReview as error:
        return _message(str(error), 400), Reviewed(b"", "malformed")
    except TooLate:
        return _message(_LATE, 503), Reviewed(b"", "late")
    except RecursionError:
        return _message("the object is nested too deeply", 400), Reviewed(b"", "malformed")
    except Exception as error:
        fault = secrets.token_hex(4)
        log.error("fault", extra={"fault": fault, "kind": type(error).__name__}, exc_info=_without_text(error))
        return _message(f"internal error, logged as fault {fault}", 500), Reviewed(b"", "error")
    return Response(reviewed.body, content_type="application/json"), reviewed


def _counted(allocator: Allocator, metrics: Metrics) -> Callable[[Question, float], Answer | None]:
    """
    The question to the allocator, with the seconds that the answer may take at most. It counts the answers and logs why
    there is none.
    """
    questions = metrics.counter(QUESTIONS)

    def reserve(question: Question, within: float) -> Answer | None:
        answer = allocator.reserve(question, within)
        if not question.refused:
            questions.labels(_answer_label(answer)).inc()
        if isinstance(answer, NoAnswer):
            what = "the share of a refused pod was not released" if question.refused else "the allocator gave no answer"
            log.info(what, extra={"reason": answer.code, "detail": answer.detail})
            return _counted_without(question, allocator)
        return answer

    return reserve


def _counted_without(question: Question, allocator: Allocator) -> Answer | None:
    """The result for a pod without an answer of the allocator: it waits, counted by what was last known."""
    known = None if question.refused else allocator.floor(question.request)
    return Wait(AnswerReason.UNANSWERED, UNANSWERED, known) if known is not None else None


def _answer_label(answer: Answer | NoAnswer) -> str:
    if isinstance(answer, NoAnswer):
        return answer.code
    elsewhere = isinstance(answer, Wait) and answer.code == AnswerReason.NOT_LEADING
    return "not-leading" if elsewhere else type(answer).__name__.lower()


def _without_text(error: Exception) -> BaseException:
    """The error with its traceback but without its text, which may quote the pod."""
    return Exception(type(error).__name__).with_traceback(error.__traceback__)


def _message(text: str, status: int) -> Response:
    response = jsonify(message=text)
    response.status_code = status
    return response


def _response(reply: Reply) -> Response:
    return Response(reply.body, reply.status, content_type=reply.content_type)
