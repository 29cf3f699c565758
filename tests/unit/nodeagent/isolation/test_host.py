"""What the agent reads from the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.isolation.host import cgroup_mode, enforced_label, sees_host_processes

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


def test_a_label_counts_where_selinux_enforces(tmp_path: Path) -> None:
    def label(file: Path, name: str) -> bytes:
        assert (file, name) == (tmp_path / "x", "security.selinux")
        return b"system_u:object_r:container_file_t:s0\0"

    def found() -> str:
        return enforced_label(tmp_path, tmp_path / "x", attribute=label)

    assert found() == "", "the kernel has none of it"
    enforce = tmp_path / "sys/fs/selinux/enforce"
    enforce.parent.mkdir(parents=True)
    enforce.write_text("0")
    assert found() == ""
    enforce.write_text("1")
    assert found() == "system_u:object_r:container_file_t:s0"
    assert enforced_label(tmp_path, tmp_path / "not there") == "system_u:object_r:unlabeled_t:s0"


def test_host_processes_are_known_by_the_kernels_own() -> None:
    assert [sees_host_processes({2: name}.__getitem__) for name in ("kthreadd", "python")] == [True, False]
