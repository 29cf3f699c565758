"""Asking the allocator: every way in which there can be no answer."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from contract.encoding.protocol import RESERVE_PATH, Never, Question, answer_to_json, question_from_json
from contract.options import Options
from runtime import unixhttp
from runtime.httpserver import Reply, Request, json_reply, serve_http
from tests.unit.webhook.builders import WAIT, container, placed, pod, share
from webhook.admission.admit import Allocate, plan
from webhook.serving.asking import NoAnswer, reserving


def question(**spec: Any) -> Question:
    decided = plan(pod(container(gpufraction_io__gpu_memory="5Gi"), **spec), Options())
    assert isinstance(decided, Allocate)
    return Question("u", "team-a", decided.request, decided.pod)


class Scripted:
    """A client that gives one answer or fails in one way, and keeps the requests."""

    def __init__(self, outcome: unixhttp.Answer | Exception) -> None:
        self._outcome = outcome
        self.requests: list[tuple[str, Any, float]] = []

    def post(self, target: str, document: Any, *, timeout: float) -> unixhttp.Answer:
        self.requests.append((target, document, timeout))
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome


def ok(document: Any) -> unixhttp.Answer:
    return unixhttp.Answer(200, json.dumps(document).encode())


def test_the_question_goes_out_once_with_the_bound_on_the_wait() -> None:
    client = Scripted(ok(answer_to_json(WAIT)))
    assert reserving(client, patience=0.3)(question(), 1.0) == WAIT
    ((target, document, timeout),) = client.requests
    assert (target, timeout) == (RESERVE_PATH, 0.3)
    assert question_from_json(json.loads(json.dumps(document))) == question()


ANSWERS = {"placed": placed(), "wait": WAIT, "never": Never("TooLarge", "too large")}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
def test_answers_come_through(answer: Any) -> None:
    assert reserving(Scripted(ok(answer_to_json(answer))))(question(), 1.0) == answer


SILENCES = {
    "no socket": (unixhttp.Unreachable("/run/x: no such file"), NoAnswer("unreachable", "/run/x: no such file")),
    "late": (unixhttp.TimedOut("no answer in time"), NoAnswer("late", "no answer in time")),
    "cut off": (unixhttp.Unanswered("closed"), NoAnswer("malformed", "closed")),
    "no HTTP": (unixhttp.BadAnswer("garbage"), NoAnswer("malformed", "garbage")),
    "it has not seen the cluster": (unixhttp.Answer(503, b""), NoAnswer("not-ready")),
    "refused": (unixhttp.Answer(400, b""), NoAnswer("refused", "HTTP 400")),
    "no JSON": (unixhttp.Answer(200, b"{"), NoAnswer("malformed", "200: body is not JSON")),
    "no verdict": (ok({}), NoAnswer("malformed", "answer.verdict is missing; give 'placed' or 'wait' or 'never'")),
    "other containers": (
        ok(answer_to_json(placed(other=(share(),)))),
        NoAnswer("malformed", "asked for [('main', 1)], allocated [('other', 1)]"),
    ),
    "more GPUs than asked": (
        ok(answer_to_json(placed(main=(share("GPU-a"), share("GPU-b"))))),
        NoAnswer("malformed", "asked for [('main', 1)], allocated [('main', 2)]"),
    ),
}


@pytest.mark.parametrize(("outcome", "want"), SILENCES.values(), ids=SILENCES.keys())
def test_no_usable_answer_is_a_silence_with_a_reason(outcome: Any, want: NoAnswer) -> None:
    assert reserving(Scripted(outcome))(question(), 1.0) == want


def test_an_allocation_on_another_node_than_the_pods_own_is_not_used() -> None:
    assert reserving(Scripted(ok(answer_to_json(placed()))))(question(nodeName="gpu-7"), 1.0) == NoAnswer(
        "malformed", "asked for node 'gpu-7', allocated on 'gpu-1'"
    )


def test_over_a_real_socket(tmp_path: Path) -> None:
    """Before the allocator listens, while it answers, has not seen the cluster or is slow, and after its end."""
    path = tmp_path / "allocator.sock"
    ask = reserving(unixhttp.UnixClient(path), patience=0.3)
    script: list[Any] = [placed(), WAIT, None, "slow"]
    release = threading.Event()

    def reserve(request: Request) -> Reply:
        assert question_from_json(request.json()) == question()
        step = script.pop(0)
        if step is None:
            return json_reply({}, 503)
        if step == "slow":
            release.wait(10)
            return json_reply({})
        return json_reply(answer_to_json(step))

    before = ask(question(), 1.0)
    server = serve_http({("POST", RESERVE_PATH): reserve}, path, name="allocator")
    try:
        answers = [ask(question(), 1.0) for _ in range(4)]
    finally:
        release.set()
        server.close()
    after = ask(question(), 1.0)
    assert answers[:3] == [placed(), WAIT, NoAnswer("not-ready")]
    assert [silence.code for silence in (before, answers[3], after) if isinstance(silence, NoAnswer)] == [
        "unreachable",
        "late",
        "unreachable",
    ]
