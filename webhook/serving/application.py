"""
The webhook as a Flask application: three routes around the pure parts, nothing at import.

It holds no state, so every replica serves every review. Status codes: 400 for a body that is no AdmissionReview, 413
over the size limit, 500 for a fault of ours, so that the failurePolicy decides; everything else is 200 with a verdict
inside. Neither pods nor errors' texts are logged, since environments hold secrets: a fault's log line has its traceback
and an id that the caller is told.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from typing import Any

from flask import Flask, Response, abort, jsonify, request
from werkzeug.exceptions import HTTPException

from contract import pods
from contract.dialects import Options, dialect_named, standard
from contract.encoding.protocol import NOT_LEADING, Answer, Placed, Question, Wait
from contract.metrics.webhook import ADMISSION_REQUESTS, ADMISSION_SECONDS, QUESTIONS
from contract.options import NOTHING_SAID, PoolOptions
from runtime.logs import REASON
from runtime.metrics import Metrics
from webhook.admission import containers, hiding, mutate, review, shape
from webhook.admission import limiters as volumes
from webhook.admission.review import BadReview, Review
from webhook.serving.asking import Asker, NoAnswer, Offers, nothing_offered

MAX_BODY = 3 << 20
"""Bytes. An API server takes no larger request, and stores half as much; a review may carry an old and a new pod."""
MAX_VALUES = 200_000
"""In a body, by its commas and brackets. Read, each takes up to 100 bytes; a pod has a few hundred."""

log = logging.getLogger(__name__)


def create_app(
    *,
    ask: Asker,
    offers: Offers = nothing_offered,
    metrics: Metrics,
    options: Options,
    ready: Callable[[], str | None],
    hide_gpus: bool = False,
    runtime_class: str = "",
    pools: Callable[[], PoolOptions] = lambda: NOTHING_SAID,
    unread: Callable[[], str] = lambda: "",
    trouble: Callable[[], str] = lambda: "",
    limiters: volumes.Given = volumes.NOTHING,
    clock: Callable[[], float] = time.monotonic,
    now_ns: Callable[[], int] = time.time_ns,
) -> Flask:
    """
    The application. `options` are those of the settings, `pools` gives the administrator's document over them, `unread`
    a warning for whoever creates a pod while there is none that could be read, `trouble` what is wrong with it, which
    keeps nobody from being served. `ready` gives the reason why this process cannot serve now, or None. `hide_gpus`:
    from pods that ask for none; `offers` then says which GPUs a node's own plugin hands out. `runtime_class`: what pods
    with a share get that name none. `limiters`: volumes that they all get.

    `clock` measures durations in seconds; `now_ns` is the time in nanoseconds since 1970, for stamps.
    """
    app = Flask("webhook")
    # One more than allowed: a body without a declared length is cut at this limit instead of being refused.
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY + 1
    admission = _Admission(
        ask=ask,
        offers=offers,
        metrics=metrics,
        options=options,
        pools=pools,
        unread=unread,
        hide_gpus=hide_gpus,
        runtime_class=runtime_class,
        limiters=limiters,
        clock=clock,
        now_ns=now_ns,
    )

    @app.post("/mutate")
    def mutate_() -> Response:
        body = request.get_data()
        if len(body) > MAX_BODY:
            abort(413)
        if len(body) > MAX_VALUES and sum(map(body.count, (b",", b"[", b"{"))) > MAX_VALUES:
            abort(413, f"the review has more than {MAX_VALUES} values")
        return admission.serve(body)

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


class _Admission:
    """One review's way through: decode, plan, ask, settle, encode; counted and timed at one place."""

    def __init__(
        self,
        *,
        ask: Asker,
        offers: Offers,
        metrics: Metrics,
        options: Options,
        pools: Callable[[], PoolOptions],
        unread: Callable[[], str],
        hide_gpus: bool,
        runtime_class: str,
        limiters: volumes.Given,
        clock: Callable[[], float],
        now_ns: Callable[[], int],
    ) -> None:
        self._ask, self._options, self._clock, self._now_ns = ask, options, clock, now_ns
        self._pools, self._unread = pools, unread
        self._offers = offers
        self._hide_gpus, self._runtime_class = hide_gpus, runtime_class
        self._limiters = limiters
        self._reviews = metrics.counter(ADMISSION_REQUESTS)
        self._seconds = metrics.histogram(ADMISSION_SECONDS)
        self._questions = metrics.counter(QUESTIONS)

    def serve(self, body: bytes) -> Response:
        started = self._clock()
        response, outcome, dialect = self._guarded(body)
        self._reviews.labels(outcome, dialect).inc()
        self._seconds.labels(outcome).observe(self._clock() - started)
        return response

    def _guarded(self, body: bytes) -> tuple[Response, str, str]:
        try:
            encoded, outcome, dialect = self._answered(review.decode(body))
        except BadReview as error:
            return _message(str(error), 400), "malformed", ""
        except RecursionError:
            return _message("the object is nested too deep", 400), "malformed", ""
        except Exception as error:
            fault = secrets.token_hex(4)
            log.error("fault", extra={"fault": fault, "kind": type(error).__name__}, exc_info=_without_text(error))
            return _message(f"internal error, logged as fault {fault}", 500), "error", ""
        return Response(encoded, content_type="application/json"), outcome, dialect

    def _answered(self, asked: Review) -> tuple[bytes, str, str]:
        """The body of the response, and for the metric its outcome and the request's dialect."""
        if self._hide_gpus and asked.debugs_pod:
            return self._debugged(asked)
        options = self._pools().reading(asked.pod, self._options)
        pod = standard(asked.pod, options) if asked.creates_pod else None
        if pod is None:
            return self._vendors(asked)
        # Before the question: on which nodes a GPU reaches the pod depends on its class.
        pod = containers.in_class(pod, self._runtime_class)
        plan = mutate.plan(pod, options)
        match plan:
            case mutate.Pass(beyond_reach, told):
                if self._hide_gpus and not beyond_reach:
                    return self._hidden(asked, whole=False, told=told)
                return review.allowed(asked.uid, warnings=told), "untouched", ""
            case mutate.Deny(message, code):
                self._give_back(asked, pod)
                return review.denied(asked.uid, message, code=code), "denied", ""
            case mutate.KeepGated():
                answer: Answer | NoAnswer | None = None
            case mutate.Allocate():
                answer = self._put(asked, plan)
        dialect = plan.request.dialect if dialect_named(plan.request.dialect) else "unknown"
        answer = None if isinstance(answer, NoAnswer) else answer
        settled = mutate.settle(pod, plan, answer, now_ns=self._now_ns())
        if isinstance(settled, mutate.Deny):
            return review.denied(asked.uid, settled.message, code=settled.code), "denied", dialect
        sharing = {fraction.container for fraction in plan.request.containers}
        after = volumes.given(settled.pod, sharing, self._limiters)
        unread = self._unread()
        warnings = (*settled.warnings, unread) if unread else settled.warnings
        encoded = review.allowed(asked.uid, before=asked.pod, after=after, warnings=warnings)
        return encoded, "placed" if isinstance(answer, Placed) else "gated", dialect

    def _vendors(self, asked: Review) -> tuple[bytes, str, str]:
        """A pod that NVIDIA's own plugin serves, or a review that is about nothing of ours."""
        if not (self._hide_gpus and asked.creates_pod):
            return review.allowed(asked.uid), "untouched", ""
        return self._hidden(asked, whole=True)

    def _hidden(self, asked: Review, *, whole: bool, told: tuple[str, ...] = ()) -> tuple[bytes, str, str]:
        wrong = shape.problem(asked.pod)
        if wrong is not None:
            return review.denied(asked.uid, str(wrong)), "denied", ""
        if pods.MIRROR in pods.annotations_of(asked.pod):
            return review.allowed(asked.uid), "untouched", ""
        wanted = hiding.asked_of_vendor(asked.pod, whole=whole)
        node = (asked.pod.get("spec") or {}).get("nodeName")
        believed = wanted & self._offers(node) if node and wanted else wanted
        warnings = (*told, hiding.unbelieved(node or "", wanted - believed))
        after = hiding.hidden(asked.pod, believed)
        return review.allowed(asked.uid, before=asked.pod, after=after, warnings=warnings), "hidden", ""

    def _debugged(self, asked: Review) -> tuple[bytes, str, str]:
        wrong = shape.problem(asked.pod) or shape.problem(asked.old)
        if wrong is not None:
            return review.denied(asked.uid, str(wrong)), "denied", ""
        return review.allowed(asked.uid, before=asked.pod, after=hiding.debugged(asked.pod, asked.old)), "hidden", ""

    def _give_back(self, asked: Review, pod: dict[str, Any]) -> None:
        """The pod is refused. Had an earlier pass given it a share, the allocator need not wait for the pod."""
        held = None if asked.dry_run or shape.problem(pod) is not None else mutate.held_by(pod)
        if held is None:
            return
        metadata = {key: pod["metadata"][key] for key in ("name", "generateName") if key in pod["metadata"]}
        question = Question(asked.uid, asked.namespace, held[0], {"metadata": metadata}, held=held[1], refused=True)
        answer = self._ask(question)
        if isinstance(answer, NoAnswer):
            log.info("a refused pod's share was not given back", extra={REASON: answer.code, "detail": answer.detail})

    def _put(self, asked: Review, plan: mutate.Allocate) -> Answer | NoAnswer:
        answer = self._ask(
            Question(
                uid=asked.uid,
                namespace=asked.namespace,
                request=plan.request,
                pod=plan.pod,
                dry_run=asked.dry_run,
                held=plan.held,
            )
        )
        if isinstance(answer, NoAnswer):
            self._questions.labels(answer.code).inc()
            log.info("the allocator gave no answer", extra={REASON: answer.code, "detail": answer.detail})
            return answer
        self._questions.labels(_answer_label(answer)).inc()
        return answer


def _answer_label(answer: Answer) -> str:
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
