"""
The processor time of a review for each of its kilobytes, for every family of names and values that a tenant can put
into a pod by the thousand (`benchmarks.admission.families`).

The webhook's part is everything between the body and the response. The allocator's part is reading the question, before
it decides. Another section measures decisions. It starts no process, and nothing waits.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from allocator.engine import pinning
from benchmarks.admission.families import FAMILIES, filled, review
from benchmarks.figures import machine_line, table
from benchmarks.progress import say
from contract.encoding.protocol import (
    MOST_QUESTION,
    Answer,
    Question,
    Wait,
    question_from_json,
    question_to_json,
)
from contract.scheduling import needs
from contract.scheduling.needs import SchedulingRequest
from webhook.admission import review as reviews
from webhook.admission.admit import Configuration, admit

T = TypeVar("T")
SIZES = (60 << 10, 650 << 10, 2900 << 10)
_TIMES = 3


def costs() -> Iterator[str]:
    """Microseconds for each KiB, at three sizes."""
    rows, most = [], 0.0
    for family in FAMILIES:
        say(family)
        cells: list[str] = []
        questions = 0.0
        for size in SIZES:
            body = review(filled(family, size))
            parsing, answering, judging = (each / (len(body) / 1024) for each in _microseconds(body))
            most, questions = max(most, answering), max(questions, judging)
            cells += [f"{parsing:.0f}", f"{answering:.0f}"]
        rows.append((family, *cells, f"{questions:.0f}"))
    header = ("family", *(f"{what} {size >> 10}K" for size in SIZES for what in ("json", "web")), "allocator")
    yield table("Processor time of a review, in microseconds for each KiB", header, rows)
    yield machine_line("review", {"families": len(rows), "most_us_per_kib": f"{most:.0f}"})


def _microseconds(body: bytes) -> tuple[float, float, float]:
    """Of parsing the body as JSON alone, of the whole review in the webhook, and of the question in the allocator."""
    questions: list[Question] = []

    def ask(question: Question) -> Answer:
        questions.append(question)
        return Wait("NoRoom", "full", {fraction.container: 1 << 30 for fraction in question.request.containers})

    parsing = _least(lambda: json.loads(body))
    answering = _least(lambda: admit(reviews.decode(body), Configuration(), ask, lambda node: frozenset(), now_ns=0))
    text = json.dumps(question_to_json(questions[-1])) if questions else ""
    judging = _least(lambda: _judged(text)) if 0 < len(text) <= MOST_QUESTION else 0.0
    return parsing, answering, judging


def _judged(text: str) -> object:
    question = question_from_json(json.loads(text))
    return pinning.judged(question.pod, SchedulingRequest(question.request, needs.needs_of(question.pod)), "auto")


def _least(work: Callable[[], T]) -> float:
    """The processor time of the fastest of a few runs, in microseconds."""
    found = []
    for _ in range(_TIMES):
        started = time.process_time_ns()
        work()
        found.append(time.process_time_ns() - started)
    return min(found) / 1e3
