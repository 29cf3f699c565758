"""
Stores finished runs in a file, so that a benchmark of half an hour can continue after an interruption.

One line of JSON per run, written as soon as the run ends. A line is valid only for the rules of its run: it has a
digest of the modules that decide, so a figure of older rules is never used for newer ones.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

from allocator.engine import reference
from allocator.scoring import classes, estimator, pricing, tables
from allocator.scoring import reference as plain_scoring
from benchmarks.placement import baselines, families, peers, replaying, trace
from benchmarks.placement.replaying import Run
from contract.scheduling import fit

_DECIDE = (
    reference,
    fit,
    classes,
    estimator,
    plain_scoring,
    pricing,
    tables,
    baselines,
    families,
    peers,
    replaying,
    trace,
)
"""The specification; the fast engine gives the same answers."""

Key = tuple[str, int, str, int]
"""List or family, seed, policy, half-life."""


class Results:
    """The runs in one file; without a file, nothing is remembered."""

    def __init__(self, file: Path | None, rules: str | None = None) -> None:
        self._file = file
        self._rules = digest() if rules is None else rules
        self._runs: dict[Key, Run] = {}
        if file is not None and file.is_file():
            for line in file.read_text().splitlines():
                self._read(line)

    def _read(self, line: str) -> None:
        try:
            known = json.loads(line)
            name, seed, policy, half_life = known["of"]
            if known["rules"] == self._rules:
                curve = {int(load): part for load, part in known["run"].pop("curve").items()}
                self._runs[name, seed, policy, half_life] = Run(curve, **known["run"])
        except (ValueError, KeyError, TypeError):
            return  # the last line of a run that was cut off while it was written

    def named(self, variant: str) -> Results:
        """The same file for rules that differ from these in one thing."""
        return Results(self._file, f"{self._rules} {variant}")

    def get(self, key: Key) -> Run | None:
        """The run under this key, if these rules made it before."""
        return self._runs.get(key)

    def put(self, key: Key, run: Run) -> None:
        """Remember it, in the file at once."""
        self._runs[key] = run
        if self._file is not None:
            with self._file.open("a") as file:
                print(json.dumps({"of": key, "rules": self._rules, "run": asdict(run)}), file=file)


def digest(modules: tuple[ModuleType, ...] = _DECIDE) -> str:
    """The digest of these rules' source, which distinguishes them from others."""
    found = hashlib.blake2s(digest_size=8)
    for module in modules:
        assert module.__file__ is not None
        found.update(Path(module.__file__).read_bytes())
    return found.hexdigest()
