"""The page of programs is generated from the check's table, and its links exist."""

from __future__ import annotations

from contract import names
from kubectl_gpufraction.check.traps.table import PROGRAMS
from release import traps

_TOP = traps.FILE.parents[2]


def test_the_committed_page_is_made_from_the_table() -> None:
    assert traps.FILE.read_text(encoding="utf-8") == traps.page(), "run: python -m release.traps"


def test_the_pages_of_traps_are_there_and_their_names_are_ours() -> None:
    every = [trap for program in PROGRAMS for trap in program.traps]
    assert [trap.page for trap in every if not (_TOP / trap.page).is_file()] == []
    ours = {
        word.strip("`,:;") for trap in every for word in f"{trap.when} {trap.cure}".split() if "gpufraction.io/" in word
    }
    assert ours <= {str(each) for each in names.REGISTRY} | {names.GPU_MEMORY, names.GPU_CORES}
