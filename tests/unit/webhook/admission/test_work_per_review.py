"""
The cost of a review, counted in executed lines of Python. For every family of names and values the number grows no
faster than the review's bytes, and is small for each kilobyte. Nothing here is timed.

`python -m benchmarks review` measures the same families in processor time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from allocator.engine import pinning
from benchmarks.admission import families
from benchmarks.admission.families import FAMILIES, filled
from contract.dialects import DIALECTS
from contract.dialects.spelling import MOST_COMPARED, MOST_LOOKED_AT, Spelling
from contract.encoding.protocol import Answer, Question, Wait, question_from_json, question_to_json
from contract.scheduling import needs
from contract.scheduling.needs import SchedulingRequest
from webhook.admission import review
from webhook.admission.admit import Configuration, admit

SIZES = (15 << 10, 60 << 10)
MOST_LINES = 3000
"""Lines for each KiB of the larger review, in the webhook and the allocator together. A line takes about 50 ns."""
GROWTH = 1.5
"""How many times more lines the larger review may take for each of its bytes than the smaller one."""


class Asked:
    """Answers that the pod waits, and keeps the question."""

    def __init__(self) -> None:
        self.questions: list[Question] = []

    def __call__(self, question: Question) -> Answer:
        self.questions.append(question)
        return Wait("NoRoom", "full", {fraction.container: 1 << 30 for fraction in question.request.containers})


def lines(work: Callable[[], object]) -> int:
    """How many lines run during this call. Each pass of a one-line loop counts."""
    count = 0

    def counted(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += 1
        return counted

    before = sys.gettrace()
    sys.settrace(counted)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def answered(body: bytes, configuration: Configuration) -> Question | None:
    """What the webhook does about a review. Returns the question that it asked."""
    ask = Asked()
    admit(review.decode(body), configuration, ask, lambda node: frozenset(), now_ns=0)
    return ask.questions[-1] if ask.questions else None


def judged(text: str) -> object:
    """What the allocator does about a question before it decides."""
    question = question_from_json(json.loads(text))
    return pinning.judged(question.pod, SchedulingRequest(question.request, needs.needs_of(question.pod)), "auto")


def work(body: bytes, configuration: Configuration) -> int:
    """The lines of one review in the webhook and in the allocator."""
    found: list[Question | None] = []
    total = lines(lambda: found.append(answered(body, configuration)))
    if found[0] is not None:
        text = json.dumps(question_to_json(found[0]))
        total += lines(lambda: judged(text))
    return total


@pytest.mark.parametrize("hides", [False, True], ids=["", "GPUs are hidden"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_work_for_a_review_grows_with_its_bytes_only(family: str, hides: bool) -> None:
    configuration = Configuration(hide_gpus=hides)
    empty = work(families.review(filled(family, 0)), configuration)
    bodies = [families.review(filled(family, size)) for size in SIZES]
    counts = [max(work(body, configuration) - empty, 1) for body in bodies]
    each = [count * 1024 / len(body) for count, body in zip(counts, bodies, strict=True)]
    print(f"{family:26s} {len(bodies[-1]) >> 10:4d} KiB {counts[-1]:7d} lines {each[-1]:6.1f} for each KiB")
    assert each[-1] <= MOST_LINES
    assert each[-1] <= max(each[0], 200) * GROWTH


def test_containers_added_to_a_large_request_are_not_each_compared_with_it() -> None:
    body = families.review(families.grown(4_000))
    assert work(body, Configuration()) * 1024 / len(body) <= MOST_LINES


@pytest.mark.parametrize("size", [60 << 10, 120 << 10], ids=lambda size: f"{size >> 10} KiB")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_bounded_number_of_names_is_compared(family: str, size: int) -> None:
    pod, spelling = filled(family, size), Spelling()
    if DIALECTS.read(pod, spelling=spelling) is None:
        DIALECTS.misspelt(pod, spelling)
    assert spelling.looked_at <= MOST_LOOKED_AT
    assert spelling.compared <= MOST_COMPARED
