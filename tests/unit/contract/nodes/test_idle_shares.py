"""The idle shares in the status of a GPUNode: written and read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.nodes.idle import MOST_IDLE, NO_REPORT, IdleReport, IdleShare, idle_from_object, idle_to_status

SHARES = (IdleShare(1_700_000_060, "uid-b"), IdleShare(1_700_000_000, "uid-a"))


def test_those_that_have_been_idle_longest_come_first_and_are_read_back() -> None:
    written = idle_to_status(SHARES)
    assert written == [
        {"pod": "uid-a", "since": "2023-11-14T22:13:20Z"},
        {"pod": "uid-b", "since": "2023-11-14T22:14:20Z"},
    ]
    found = idle_from_object({"status": {"idle": written, "observedAt": "2023-11-14T22:23:20Z"}})
    assert found == IdleReport({"uid-a": 1_700_000_000, "uid-b": 1_700_000_060}, 1_700_000_600)
    assert (found.lasted("uid-a"), found.lasted("uid-b"), found.lasted("uid-c")) == (600, 540, None)


def test_nobody_idle_is_no_field_and_too_many_are_cut() -> None:
    assert idle_to_status(()) is None
    many = idle_to_status(IdleShare(number, f"uid-{number}") for number in reversed(range(MOST_IDLE + 9)))
    assert many is not None
    assert (len(many), many[0]["pod"], many[-1]["pod"]) == (MOST_IDLE, "uid-0", f"uid-{MOST_IDLE - 1}")


DAMAGED = {
    "no status": {},
    "a status that is text": {"status": "idle"},
    "no list": {"status": {"idle": {"pod": "a"}}},
    "no objects": {"status": {"idle": ["a", None, 3]}},
    "a time that is none": {"status": {"idle": [{"pod": "a", "since": "yesterday"}]}},
    "a uid that is none": {"status": {"idle": [{"pod": "a b", "since": "2023-11-14T22:13:20Z"}, {"since": 1}]}},
}


@pytest.mark.parametrize("gpunode", DAMAGED.values(), ids=DAMAGED.keys())
def test_nobody_is_idle_by_what_cannot_be_read(gpunode: dict[str, object]) -> None:
    assert idle_from_object(gpunode) == NO_REPORT


def test_without_the_time_of_the_look_nobody_knows_for_how_long() -> None:
    found = idle_from_object({"status": {"idle": [{"pod": "a", "since": "2023-11-14T22:13:20Z"}]}})
    assert (found.shares, found.lasted("a")) == ({"a": 1_700_000_000}, None)


_JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=9),
    lambda x: st.lists(x) | st.dictionaries(st.sampled_from(("pod", "since", "idle")), x),
)


@given(_JSON, _JSON)
def test_reading_never_raises(idle: object, observed: object) -> None:
    idle_from_object({"status": {"idle": idle, "observedAt": observed}})
