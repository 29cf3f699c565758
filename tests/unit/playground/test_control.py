"""Requests to a running playground, here in the process that sends them."""

from __future__ import annotations

import fcntl
import io
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from playground.alone import Unusable, alone
from playground.operating import control
from playground.operating.control import Report


def _greet(about: str, report: Report) -> int:
    report(f"hello\n  {about}")
    return 3


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder of a playground that can greet."""
    before = signal.signal(control.SIGNAL, lambda *_: control.carry_out(tmp_path, {"greet": _greet}))
    try:
        with alone(tmp_path):
            yield tmp_path
    finally:
        signal.signal(control.SIGNAL, before)


def asked(folder: Path, what: str, about: str = "") -> tuple[int, str]:
    out = io.StringIO()
    return control.ask(folder, what, about, out), out.getvalue()


def test_a_request_is_answered_with_lines_and_a_status(folder: Path) -> None:
    assert asked(folder, "greet", "world") == (3, "hello world\n")
    assert asked(folder, "greet") == (3, "hello\n")


def test_a_request_that_is_not_known_is_refused(folder: Path) -> None:
    why = (
        "This playground was started by an older version, which does not support this request: end it, and "
        "start it again.\n"
    )
    assert asked(folder, "dance") == (1, why)


def test_a_second_request_at_the_same_time_is_refused(folder: Path) -> None:
    with (folder / "request").open("a+") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(Unusable, match="is handling another request; try again later"):
            asked(folder, "greet")


def test_a_signal_without_a_request_changes_nothing(folder: Path) -> None:
    control.carry_out(folder, {"greet": _greet})
    asked(folder, "greet")
    control.carry_out(folder, {"greet": _greet})
    assert (folder / "answer").read_text() == "hello\n\x043\n"
