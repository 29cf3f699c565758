"""Fields that a later release adds to a text are ignored, wherever and whatever they are: docs/compatibility.md."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.encoding.codec import (
    allocation_from_text,
    allocation_to_text,
    request_from_text,
    request_to_text,
    texts_of,
)
from contract.encoding.protocol import (
    Answer,
    Question,
    answer_from_json,
    answer_to_json,
    question_from_json,
    question_to_json,
)
from contract.encoding.reading import Malformed
from contract.model import Allocation, Inventory, PodRequest
from contract.nodes.inventories import inventory_from_object, inventory_to_status
from contract.pods import unread_cards
from nodeagent.mps.exchange import GpuReport, Report, report_from_text, report_to_text
from tests.unit.contract.encoding.test_protocol import ANSWERS, QUESTIONS
from tests.unit.contract.strategies import ALLOCATIONS, JSON, REQUESTS, inventories

FREE = frozenset(("pod", "floor"))
"""Objects that may have any keys: a pod, and a map by container."""


def added(value: Any, more: Any, *, free: frozenset[str] = FREE) -> Any:
    """The document with an unknown field in each of its objects."""
    if isinstance(value, dict):
        inner = {key: each if key in free else added(each, more, free=free) for key, each in value.items()}
        return {**inner, "laterField": more}
    return [added(each, more, free=free) for each in value] if isinstance(value, list) else value


@given(REQUESTS, JSON)
def test_of_a_request(request_: PodRequest, more: Any) -> None:
    text = json.dumps(added(json.loads(request_to_text(request_)), more))
    assert request_from_text(text) == request_


@given(ALLOCATIONS, JSON)
def test_of_an_allocation(allocation: Allocation, more: Any) -> None:
    text = json.dumps(added(json.loads(allocation_to_text(allocation)), more))
    assert allocation_from_text(text) == allocation


@given(inventories(), JSON)
def test_of_a_gpunode(inventory: Inventory, more: Any) -> None:
    status = json.loads(json.dumps(inventory_to_status(inventory)))
    written = added({"metadata": {"name": inventory.node}, "status": status}, more)
    assert inventory_from_object(written) == inventory


@given(QUESTIONS, JSON)
def test_of_a_question(question: Question, more: Any) -> None:
    assert question_from_json(added(json.loads(json.dumps(question_to_json(question))), more)) == question


@given(ANSWERS, JSON)
def test_of_an_answer(answer: Answer, more: Any) -> None:
    assert answer_from_json(added(json.loads(json.dumps(answer_to_json(answer))), more)) == answer


@given(st.builds(GpuReport, st.sampled_from(("off", "serving")), st.booleans(), st.booleans()), JSON)
def test_of_a_report_of_mps_daemons(gpu: GpuReport, more: Any) -> None:
    document = json.loads(report_to_text(Report(5.0, {"GPU-1": gpu})))
    text = json.dumps(
        {
            **document,
            "laterField": more,
            "gpus": {key: {**each, "more": more} for key, each in document["gpus"].items()},
        }
    )
    assert report_from_text(text, now=5.0, patience=1.0) == Report(5.0, {"GPU-1": gpu})


@given(ALLOCATIONS, st.integers(2, 1000) | st.none() | st.text(max_size=5), JSON)
def test_cards_of_any_later_version_can_be_found(allocation: Allocation, version: Any, more: Any) -> None:
    """Cards are found by `node` and by UUIDs anywhere in the text, whatever it contains and calls its fields."""
    document = json.loads(allocation_to_text(allocation))
    shares = {share.uuid for container in allocation.containers for share in container.shares}
    moved = {"v": version, "node": allocation.node, "moved": added(document["containers"], more)}
    text = json.dumps(moved)
    with pytest.raises(Malformed):
        allocation_from_text(text)
    node, texts = texts_of(text)
    assert node == allocation.node
    assert shares <= unread_cards(texts, {*shares, "GPU-another"})
