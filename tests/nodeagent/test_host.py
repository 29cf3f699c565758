"""What is read of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.host import cgroup_mode

MODES = {
    "the unified hierarchy": (["cgroup.controllers"], "v2"),
    "one hierarchy for each controller": (["memory/", "cpu/"], "v1"),
    "nothing that is known": ([], ""),
}


@pytest.mark.parametrize(("there", "want"), MODES.values(), ids=MODES.keys())
def test_the_mode_of_control_groups(tmp_path: Path, there: list[str], want: str) -> None:
    for name in there:
        (tmp_path / name).mkdir() if name.endswith("/") else (tmp_path / name).touch()
    assert cgroup_mode(tmp_path) == want
