"""The published status of pools is read as it was written, even by a plugin of another version."""

from __future__ import annotations

import json

import pytest

from contract.encoding.reading import Malformed
from contract.nodes.pool_status import PoolsStatus, PoolStatus, document, read

STATUS = PoolsStatus(
    1_767_600_000.5,
    (
        PoolStatus("t4", 10, 1, ready=2, coming=1, asked=3, since=1_767_599_960.0, state="asked"),
        PoolStatus("a100", 4, state="paused", waits=True, failures=2, until=1.0, outcome="refused", why="Expired: no"),
    ),
    "no such kind",
)


def test_what_was_written_is_read() -> None:
    assert read(document(STATUS)) == STATUS


def test_fields_of_a_later_version_are_left_out() -> None:
    later = json.loads(document(STATUS))
    later["pools"][0]["colour"] = "green"
    assert read(json.dumps(later)) == STATUS


WRONG = (
    "",
    "[]",
    "{}",
    '{"at": 1, "pools": [{"most": 1}]}',
    '{"at": 1, "pools": [{"name": "a", "most": 1, "state": "x"}]}',
)


@pytest.mark.parametrize("text", WRONG)
def test_what_cannot_be_read_is_named(text: str) -> None:
    with pytest.raises(Malformed, match="only the allocator writes it"):
        read(text)
