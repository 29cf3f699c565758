"""`python -m benchmarks what-if` is the command of shadow mode."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.__main__ import main
from tests.unit.shadow.test_report import cluster


def test_a_recording_is_replayed_with_the_change_and_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "recording.jsonl"
    path.write_text("".join(cluster().lines()))
    assert main(["what-if", "--recording", str(path), "--cards", "A100=4"]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.split() == ["without", "the", "change", "with", "it"]
    assert second.split()[-2:] == ["4.0", "8.0"]
