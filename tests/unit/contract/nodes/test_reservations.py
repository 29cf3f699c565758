"""The reserved nodes on the leader's Lease are read back as written; invalid entries count as absent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract import names
from contract.nodes.reservations import annotation, reserved_nodes
from tests.odd import VALUES

KEY = str(names.RESERVED_NODES)
PAIRS = st.lists(
    st.tuples(st.text("abc-", min_size=1, max_size=5), st.text("0123", min_size=1, max_size=4)), max_size=9
)


def lease(annotations: Mapping[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": names.LEASE, "annotations": annotations}}


@given(PAIRS)
def test_what_is_written_is_read_back(pairs: list[tuple[str, str]]) -> None:
    found = reserved_nodes(lease(annotation(pairs)))
    assert {(node, uid) for node, uids in found.items() for uid in uids} == set(pairs)


def test_without_reservations_there_is_no_annotation() -> None:
    assert annotation([]) == {}
    assert annotation([("b", "2"), ("a", "1"), ("b", "1")]) == {KEY: '{"a":["1"],"b":["1","2"]}'}


def test_the_annotation_is_bounded() -> None:
    many = annotation((f"n{number:03}", "u") for number in range(500))
    assert len(json.loads(many[KEY])) == 64


ODD: dict[str, object] = {
    "no object": None,
    "no annotations": {"metadata": {}},
    "no text": lease({KEY: 5}),
    "no JSON": lease({KEY: "{"}),
    "a list": lease({KEY: "[1]"}),
    "deep": lease({KEY: "[" * 20_000}),
    "long": lease({KEY: json.dumps({"n": ["u" * 70_000]})}),
    "odd uids": lease({KEY: '{"n": 5}'}),
}


@pytest.mark.parametrize("found", ODD.values(), ids=ODD.keys())
def test_what_is_odd_counts_as_absent(found: object) -> None:
    assert reserved_nodes(found) == {}


@given(VALUES)
def test_nothing_ends_the_reader(value: Any) -> None:
    assert isinstance(reserved_nodes(lease({KEY: value})), dict)
    assert isinstance(reserved_nodes(value), dict)


def test_uids_that_are_no_text_are_left_out() -> None:
    assert reserved_nodes(lease({KEY: '{"n": ["u", 5, null]}'})) == {"n": ("u",)}
