"""A file that changes while a program runs, like a mounted ConfigMap: it is read again, and never in part."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from contract.options import NO_OPTIONS, PoolOptions, VgpuOptions, pool_options
from runtime.livefile import LiveFile, UnreadableContent, yaml_file
from tests.examples import examples


def number(text: str) -> int:
    if not text.isdecimal() and text:
        raise UnreadableContent(f"found {text!r}; give a number")
    return int(text or 0)


def swap(file: Path, text: str) -> None:
    """Replace the file in one step, as kubelet does."""
    fresh = file.with_name("fresh")
    fresh.write_text(text)
    fresh.replace(file)


def test_a_change_counts_and_a_wrong_one_leaves_what_was_good(tmp_path: Path) -> None:
    file = tmp_path / "number"
    live = LiveFile(file, number)
    assert (live.value(), live.trouble) == (0, "")
    swap(file, "5")
    assert (live.value(), live.trouble) == (5, "")
    swap(file, "many")
    assert (live.value(), live.trouble) == (5, f"{file}: found 'many'; give a number")
    swap(file, "6")
    assert (live.value(), live.trouble) == (6, "")
    file.unlink()
    assert (live.value(), live.trouble) == (0, "")


def test_what_was_never_good_is_nothing(tmp_path: Path) -> None:
    file = tmp_path / "number"
    file.write_bytes(b"\xff")
    live = LiveFile(file, number)
    assert (live.value(), "utf-8" in live.trouble) == (None, True)
    folder = LiveFile(tmp_path, number)
    assert (folder.value(), folder.trouble) == (None, f"{tmp_path}: Is a directory")


def test_it_is_read_once_as_long_as_it_stays(tmp_path: Path) -> None:
    file, reads = tmp_path / "number", count(1)
    swap(file, "5")
    live = LiveFile(file, lambda text: next(reads))
    assert [live.value() for _ in range(3)] == [1, 1, 1]
    swap(file, "5")
    assert live.value() == 2


class Editing(RuleBasedStateMachine):
    """
    For any sequence of edits, the last good content counts, and there is an error exactly while the last edit was bad.
    """

    folder: Path

    def __init__(self) -> None:
        super().__init__()
        self.file = self.folder / "edited"
        self.file.unlink(missing_ok=True)
        self.live, self.good, self.bad = LiveFile(self.file, number), 0, False

    @rule(text=st.sampled_from(("", "1", "22", "x", "3 3")))
    def edit(self, text: str) -> None:
        swap(self.file, text)
        self.bad = not text.isdecimal() and bool(text)
        self.good = self.good if self.bad else int(text or 0)

    @rule()
    def delete(self) -> None:
        self.file.unlink(missing_ok=True)
        self.good, self.bad = 0, False

    @invariant()
    def holds(self) -> None:
        # The test reads after every edit; a reader that reads seldom misses some.
        assert (self.live.value(), bool(self.live.trouble)) == (self.good, self.bad)


def test_any_sequence_of_edits(tmp_path: Path) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    made = type("EditingHere", (Editing,), {"folder": tmp_path})
    run_state_machine_as_test(made, settings=settings(max_examples=examples(20), stateful_step_count=8, deadline=None))


DOCUMENTS = {
    "no file": (None, NO_OPTIONS, ""),
    "all comments": ("# nothing\n", NO_OPTIONS, ""),
    "an option": ("deviceSplitCount: 5\n", PoolOptions(VgpuOptions(5)), ""),
    "an option that is none": ("split: 5\n", None, "'split': unknown; give one of aliyunUnit, coreOnlyMemory"),
    "no YAML": ("a: b: c\n", None, "line 1: mapping values are not allowed here; give YAML"),
    "a day that is none": ("deviceSplitCount: 2030-13-45\n", None, "neither YAML nor JSON; give YAML"),
    "a tag that does not fit": ("deviceSplitCount: !!timestamp x\n", None, "neither YAML nor JSON; give YAML"),
    "nested too deep": ("[" * 3000, None, "neither YAML nor JSON; give YAML"),
    "a tag of Python's": ("!!python/object:os.system {}\n", None, "line 1: "),
}


@pytest.mark.parametrize(("text", "want", "trouble"), DOCUMENTS.values(), ids=DOCUMENTS.keys())
def test_the_document_of_options(tmp_path: Path, text: str | None, want: PoolOptions | None, trouble: str) -> None:
    file = tmp_path / "options.yaml"
    if text is not None:
        file.write_text(text)
    live = yaml_file(file, pool_options)
    assert live.value() == want
    assert trouble in live.trouble
    assert bool(trouble) == bool(live.trouble)


def test_no_path_is_no_document() -> None:
    assert yaml_file(Path(), pool_options).value() == NO_OPTIONS
