"""What a log record looks like when it is written."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.logs import LONGEST, JsonLines, TextLines


def record(message: str, **fields: Any) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "allocator.workers.loop", "levelname": "INFO", "msg": message, **fields})
    made.created, made.msecs = 1893456000.25, 250.0
    return made


TEXT = {
    "plain fields": ({"pod": "ns/p", "gpu": 3}, " pod=ns/p gpu=3"),
    "a field with spaces is quoted": ({"said": "a b"}, ' said="a b"'),
    "a field cannot bring a line break": ({"said": "a\nb"}, ' said="a\\nb"'),
    "an empty field is visible": ({"holder": ""}, ' holder=""'),
    "a field that is not there is left out": ({"node": None}, ""),
    "a long text is cut in its middle": (
        {"said": "a" * 2_000 + "z" * 2_000},
        f" said={'a' * 489}...(3000 left out)...{'z' * 489}".replace("said=", 'said="') + '"',
    ),
    "a value that is long as text is cut too": (
        {"said": ["a" * 2_000]},
        f" said=\"['{'a' * 487}...(1004 left out)...{'a' * 487}']\"",
    ),
    "a number that Python does not print is said to be one": ({"said": 10**5000}, ' said="<int: ValueError>"'),
}


@pytest.mark.parametrize(("fields", "want"), TEXT.values(), ids=TEXT.keys())
def test_text(fields: dict[str, Any], want: str) -> None:
    line = TextLines().format(record("placed", **fields))
    assert line == f"2030-01-01T00:00:00.250Z INFO allocator.workers.loop: placed{want}"


@pytest.mark.parametrize("formatter", [TextLines(), JsonLines()], ids=["text", "json"])
def test_no_line_is_much_longer_than_its_bound(formatter: logging.Formatter) -> None:
    line = formatter.format(record("\n" * 1_000_000, **{"k" * 100_000: "v" * 1_000_000}, text={"a": "\n" * 1_000_000}))
    assert len(line) < 10 * LONGEST


def test_json() -> None:
    assert json.loads(JsonLines().format(record("placed", pod="ns/p", cycle=7, level="mine"))) == {
        "time": "2030-01-01T00:00:00.250Z",
        "level": "info",
        "logger": "allocator.workers.loop",
        "message": "placed",
        "pod": "ns/p",
        "cycle": 7,
    }


@pytest.mark.parametrize("formatter", [TextLines(), JsonLines()], ids=["text", "json"])
def test_a_traceback_stays_on_the_line(formatter: logging.Formatter) -> None:
    try:
        raise ValueError("wrong")
    except ValueError:
        line = formatter.format(record("failed", exc_info=sys.exc_info()))
    assert "\n" not in line
    assert "ValueError: wrong" in line


@pytest.mark.parametrize("formatter", [TextLines(), JsonLines()], ids=["text", "json"])
@given(text=st.text(st.characters() | st.sampled_from("\ud800\x1b\x00\n\x7f\x9b\u202e")))
def test_whatever_is_logged_is_one_line_that_no_terminal_obeys(formatter: logging.Formatter, text: str) -> None:
    line = formatter.format(record(text, text=text, inside={"key": text}))
    assert line.isprintable()
    assert line.encode().decode() == line
