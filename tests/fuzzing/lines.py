"""Which lines of the tested modules a run reaches, by Python's own tracing."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

Arc = tuple[str, int, int]
"""A file, a line, and the previous line in the same function; 0 at the function's beginning."""


def executable(modules: Iterable[str]) -> dict[str, frozenset[int]]:
    """For each file of the modules, the lines of their functions, without the lines that an import runs."""
    found = {}
    for module in modules:
        file = importlib.import_module(module).__file__ or ""
        code = compile(Path(file).read_text(encoding="utf-8"), file, "exec")
        lines = (line for each in _functions(code) for _, _, line in each.co_lines() if line != each.co_firstlineno)
        found[file] = frozenset(line for line in lines if line)
    return found


def _functions(code: types.CodeType) -> Iterator[types.CodeType]:
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            if each.co_flags & 0x2:  # of a function; the body of a class runs at the import
                yield each
            yield from _functions(each)


def reached(files: Mapping[str, object], run: Callable[[], object]) -> set[Arc]:
    """The steps from line to line that `run` takes in these files."""
    found: set[Arc] = set()

    def entering(frame: types.FrameType, event: str, argument: Any) -> Any:
        file = frame.f_code.co_filename
        if file not in files:
            return None
        last = 0

        def inside(frame: types.FrameType, event: str, argument: Any) -> Any:
            nonlocal last
            if event == "line":
                found.add((file, last, frame.f_lineno))
                last = frame.f_lineno
            return inside

        return inside

    before = sys.gettrace()
    sys.settrace(entering)
    try:
        run()
    finally:
        sys.settrace(before)
    return found


def share(files: Mapping[str, frozenset[int]], arcs: Iterable[Arc]) -> tuple[int, int]:
    """How many of the files' lines were reached, and how many lines there are."""
    lines = {(file, line) for file, _, line in arcs}
    return sum((file, line) in lines for file in files for line in files[file]), sum(map(len, files.values()))
