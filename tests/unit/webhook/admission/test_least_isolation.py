"""
Pods with a share accept no weaker level of isolation than the administrator's minimum, whatever their author wrote.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from contract import names
from contract.encoding.protocol import Question
from contract.metrics import metrics_of
from contract.scheduling.needs import needs_of
from runtime.metrics import Metrics
from tests.unit.webhook.builders import container, patched, pod, review
from webhook.admission.admit import Configuration
from webhook.serving.application import create_app
from webhook.serving.asking import UNREACHABLE, Allocator, NoAnswer
from webhook.serving.health import Health

JSON = dict[str, Any]


def asks(level: str = "", *, share: bool = True) -> JSON:
    made = pod(container(gpufraction_io__gpu_memory="1Gi") if share else container())
    if level:
        made["metadata"].setdefault("annotations", {})[str(names.ISOLATION)] = level
    return made


CASES = {
    "a pod that says nothing gets the least": (asks(), "watch", "watch"),
    "a weaker level becomes the least": (asks("watch"), "mps", "mps"),
    "the same level stays": (asks("mps"), "mps", "mps"),
    "a stronger level stays": (asks("driver"), "watch", "driver"),
    "without a least the pod's level counts": (asks("preload"), "", "preload"),
    "without a least nothing is written": (asks(), "", None),
    "a pod without a share is left alone": (asks(share=False), "watch", None),
}


@pytest.mark.parametrize(("made", "setting", "want"), CASES.values(), ids=CASES.keys())
def test_the_level_that_a_pod_goes_in_with(made: JSON, setting: str, want: str | None) -> None:
    questions: list[Question] = []

    def ask(question: Question, within: float) -> NoAnswer:
        questions.append(question)
        return NoAnswer(UNREACHABLE)

    app = create_app(
        lambda: Configuration(least_isolation=setting),
        Allocator(ask),
        Metrics(metrics_of("webhook")),
        health=Health(ready=lambda: None),
    )
    response = json.loads(app.test_client().post("/mutate", data=json.dumps(review(made))).data)["response"]
    after = patched(made, response) if "patch" in response else made
    assert (after["metadata"].get("annotations") or {}).get(str(names.ISOLATION)) == want
    assert [needs_of(question.pod).isolation for question in questions] == [want or ""] * len(questions)
    assert len(questions) == int("resources" in made["spec"]["containers"][0])


def test_a_level_that_does_not_exist_is_refused_as_it_is() -> None:
    app = create_app(
        lambda: Configuration(least_isolation="watch"),
        Allocator(lambda question, within: NoAnswer(UNREACHABLE)),
        Metrics(metrics_of("webhook")),
        health=Health(ready=lambda: None),
    )
    answer = app.test_client().post("/mutate", data=json.dumps(review(asks("steel")))).data
    response = json.loads(answer)["response"]
    assert (response["allowed"], "steel" in response["status"]["message"]) == (False, True)
