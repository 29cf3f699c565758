"""Question and answer cross the socket unchanged, and anything else is `Malformed`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.encoding.protocol import (
    RESERVE_PATH,
    Answer,
    Never,
    Placed,
    Question,
    Wait,
    answer_from_json,
    answer_to_json,
    question_from_json,
    question_to_json,
)
from contract.encoding.reading import Malformed
from contract.model import FractionRequest, PodRequest
from tests.builders import pod
from tests.unit.contract.strategies import ALLOCATIONS, BYTES, JSON, NAMES, REQUESTS, TEXT

IDS = st.from_regex(r"[!-~]{1,40}", fullmatch=True)
PODS = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.fixed_dictionaries(
            {}, optional={"name": NAMES, "generateName": NAMES, "annotations": st.dictionaries(TEXT, TEXT, max_size=2)}
        ),
        "status": JSON,
    },
)
QUESTIONS = st.builds(
    Question,
    uid=IDS,
    namespace=NAMES,
    request=REQUESTS,
    pod=PODS,
    dry_run=st.booleans(),
    held=st.just("") | IDS,
    refused=st.booleans(),
)
ANSWERS = st.one_of(
    st.builds(Placed, ALLOCATIONS, st.sampled_from(["nodeName", "affinity"])),
    st.builds(Wait, TEXT, TEXT, st.dictionaries(NAMES, BYTES, max_size=2)),
    st.builds(Never, TEXT, TEXT),
)


def over_the_socket(document: object) -> object:
    return json.loads(json.dumps(document))


@given(QUESTIONS)
def test_questions_come_through(question: Question) -> None:
    assert question_from_json(over_the_socket(question_to_json(question))) == question


@given(ANSWERS)
def test_answers_come_through(answer: Answer) -> None:
    assert answer_from_json(over_the_socket(answer_to_json(answer))) == answer


def test_the_question_on_the_wire() -> None:
    request = PodRequest("aliyun", (FractionRequest("main", memory=5 << 30),), unit=1 << 30)
    question = Question("u1", "team", request, pod("train").manifest())
    assert RESERVE_PATH == "/v1/reserve"
    assert question_to_json(question) == {
        "uid": "u1",
        "namespace": "team",
        "request": {
            "v": 1,
            "dialect": "aliyun",
            "unit": 1 << 30,
            "containers": [{"name": "main", "count": 1, "memory": 5 << 30}],
        },
        "pod": pod("train").manifest(),
        "dryRun": False,
        "held": "",
        "refused": False,
    }


ANSWERED = {
    "room later": (
        Wait("memory", "no room", {"main": 5}),
        {"verdict": "wait", "code": "memory", "reason": "no room", "floor": {"main": 5}},
    ),
    "no room ever": (Never("memory", "too large"), {"verdict": "never", "code": "memory", "reason": "too large"}),
}


@pytest.mark.parametrize(("answer", "wanted"), ANSWERED.values(), ids=ANSWERED.keys())
def test_answers_on_the_wire(answer: Answer, wanted: dict[str, Any]) -> None:
    assert answer_to_json(answer) == wanted


WRONG_ANSWERS: dict[str, object] = {
    "nothing": None,
    "a list": [],
    "no verdict": {},
    "an unknown verdict": {"verdict": "perhaps"},
    "placed without an allocation": {"verdict": "placed", "pin": "nodeName"},
    "placed with an unknown pin": {"verdict": "placed", "pin": "hope"},
    "placed with a pin of the wrong kind": {"verdict": "placed", "pin": ["nodeName"]},
    "waiting without a reason": {"verdict": "wait", "code": "memory", "floor": {}},
    "waiting without a floor": {"verdict": "wait", "code": "memory", "reason": "r"},
    "a floor in words": {"verdict": "wait", "code": "memory", "reason": "r", "floor": {"main": "5Gi"}},
    "a floor below nothing": {"verdict": "wait", "code": "memory", "reason": "r", "floor": {"main": -1}},
    "a floor that is true": {"verdict": "wait", "code": "memory", "reason": "r", "floor": {"main": True}},
    "never without a reason": {"verdict": "never", "code": "memory"},
}


@pytest.mark.parametrize("document", WRONG_ANSWERS.values(), ids=WRONG_ANSWERS.keys())
def test_wrong_answers_are_malformed(document: object) -> None:
    with pytest.raises(Malformed):
        answer_from_json(document)


@given(JSON)
def test_any_json_is_malformed(document: object) -> None:
    for read in (answer_from_json, question_from_json):
        with pytest.raises(Malformed):
            read(document)


@given(
    QUESTIONS, st.sampled_from(["uid", "namespace", "request", "pod", "held"]), st.none() | st.integers() | st.just([])
)
def test_a_question_with_a_wrong_part_is_malformed(question: Question, key: str, value: object) -> None:
    with pytest.raises(Malformed):
        question_from_json({**question_to_json(question), key: value})
