"""
Runs the fuzzer over all targets in turn, and prints the results: `python -m tests.fuzzing.campaign --seconds 3600`.

Inputs that reach something new stay below `build/fuzz`, so that a later run continues from there. `--keep` adds to the
repository's corpus the inputs that reach more lines, or reach them in another way. Exits with 1 on a finding.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import logging
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.fuzzing import judge, lines, table
from tests.fuzzing.judge import Finding, Target

WORK = Path("build/fuzz")
MOST_KEPT = 24 << 10
"""The maximum number of bytes of one target's corpus in the repository."""
LONGEST_KEPT = 4 << 10
"""The maximum number of bytes of one of its inputs."""
_MOST_RESTARTS = 50
_COVERED = re.compile(r"cov: (\d+) ft: (\d+)")
_EXECUTED = re.compile(r"stat::number_of_executed_units: (\d+)")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one target's part of the run."""

    target: Target
    executions: int
    edges: int
    lines: int
    of_lines: int
    inputs: int
    findings: dict[str, str]


def main(arguments: Sequence[str]) -> int:
    """Fuzz and print the results. The exit status says whether anything was found."""
    parser = argparse.ArgumentParser(prog="campaign", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="for all targets together")
    parser.add_argument("--target", action="append", default=[], help="one target; all of them without it")
    parser.add_argument("--work", type=Path, default=WORK, help="where inputs and findings are kept")
    parser.add_argument("--keep", action="store_true", help="take new inputs into the corpus of the repository")
    parser.add_argument("--summary", action="store_true", help="fuzz nothing, print what there is")
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    try:
        targets = [table.target_named(name) for name in options.target] or list(table.TARGETS)
    except KeyError as error:
        parser.error(f"there is no target {error}; give one of {', '.join(each.name for each in table.TARGETS)}")
    weight = sum(target.weight for target in targets)
    outcomes = []
    began = time.monotonic()
    print(_HEAD, flush=True)
    for target in targets:
        seconds = 0.0 if options.summary else options.seconds * target.weight / weight
        outcomes.append(_fuzz(target, options.work, seconds))
        print(_row(outcomes[-1]), flush=True)
        if options.keep:
            keep(target, options.work)
    print(_sum(outcomes, time.monotonic() - began), flush=True)
    for each in outcomes:
        for message in each.findings.values():
            print(f"{each.target.name}: {message}")
    return 1 if any(each.findings for each in outcomes) else 0


def _fuzz(target: Target, work: Path, seconds: float) -> Outcome:
    """Fuzz for the target's part of the time. A process that libFuzzer stops after a minute on one input restarts."""
    folder = work / target.name
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds()):
        (folder / f"seed-{number}").write_bytes(seed)
    for file in table.corpus_of(target):
        (folder / file.name).write_bytes(file.read_bytes())
    log, until = work / f"{target.name}.log", time.monotonic() + seconds
    for _ in range(_MOST_RESTARTS):
        left = int(until - time.monotonic())
        if left < 1:
            break
        with log.open("a", encoding="utf-8") as output:
            ended = subprocess.run(
                [sys.executable, "-m", "tests.fuzzing.fuzzer", target.name, str(folder), str(left)],
                stdout=output, stderr=output, check=False, timeout=seconds + 600,
            )  # fmt: skip
        if ended.returncode == 0:
            break
        _note_crash(target, folder, ended.returncode)
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    covered = _COVERED.findall(text)
    files = lines.executable(target.covered)
    inputs = sorted(folder.glob("*"))
    found = lines.reached(files, lambda: [_breaks(target, file.read_bytes()) for file in inputs])
    reached, of = lines.share(files, found)
    return Outcome(
        target=target,
        executions=sum(map(int, _EXECUTED.findall(text))),
        edges=max((int(edges) for edges, _ in covered), default=0),
        lines=reached,
        of_lines=of,
        inputs=len(inputs),
        findings=findings(folder),
    )


def _note_crash(target: Target, folder: Path, code: int) -> None:
    """Note a process that ended without one of our findings, such as one that libFuzzer stopped after its timeout."""
    note(
        folder, Finding(f"the process ended with {code}: see {target.name}.log", f"the process ended with {code}"), b""
    )


def finding_file(folder: Path) -> Path:
    """The file of a target's findings, one on each line, next to the folder of its inputs."""
    return folder.parent / f"{folder.name}.findings"


def note(folder: Path, found: Finding, data: bytes) -> None:
    """Write a finding to the file."""
    text = {"kind": found.kind, "message": str(found), "input": repr(data)}
    with finding_file(folder).open("a", encoding="utf-8") as file:
        file.write(json.dumps(text) + "\n")


def findings(folder: Path) -> dict[str, str]:
    """The target's findings so far: the first message of each kind."""
    file = finding_file(folder)
    written = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    found: dict[str, str] = {}
    for each in map(json.loads, written):
        found.setdefault(each["kind"], each["message"])
    return found


def keep(target: Target, work: Path, corpus: Path = table.CORPUS) -> None:
    """
    Choose the target's corpus for the repository: the smallest inputs that together take every step from line to line
    that short inputs take, as far as there is room. Inputs of findings are included once they no longer break anything.
    """
    files = lines.executable(target.covered)
    found = {file.read_bytes() for file in (*table.corpus_of(target, corpus), *(work / target.name).glob("*"))}
    found |= {data for data in _inputs_of_findings(work / target.name) if not _breaks(target, data)}
    inputs = sorted(found, key=lambda data: (len(data), data))
    kept: dict[str, bytes] = {}
    seen: set[lines.Arc] = set()
    for data in inputs:
        if not data or len(data) > LONGEST_KEPT or sum(map(len, kept.values())) + len(data) > MOST_KEPT:
            continue
        if _breaks(target, data):
            continue
        arcs = lines.reached(files, lambda data=data: _breaks(target, data))  # type: ignore[misc]
        if arcs - seen:
            seen |= arcs
            kept[hashlib.sha256(data).hexdigest()[:12]] = data
    folder = corpus / target.name
    folder.mkdir(parents=True, exist_ok=True)
    for file in table.corpus_of(target, corpus):
        if file.name not in kept:
            file.unlink()
    for name, data in kept.items():
        (folder / name).write_bytes(data)


def _breaks(target: Target, data: bytes) -> bool:
    try:
        judge.judge(target, data)
    except Finding:
        return True
    return False


def _inputs_of_findings(folder: Path) -> set[bytes]:
    file = finding_file(folder)
    written = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return {ast.literal_eval(json.loads(each)["input"]) for each in written}


_HEAD = f"{'target':24}{'executions':>12}{'edges':>8}{'lines':>18}{'inputs':>8}{'findings':>10}"


def _row(each: Outcome) -> str:
    share = f"{each.lines}/{each.of_lines} {100 * each.lines // max(1, each.of_lines):3} %"
    figures = f"{each.executions:>12,}{each.edges:>8,}{share:>18}{each.inputs:>8,}{len(each.findings):>10}"
    return f"{each.target.name:24}{figures}"


def _sum(outcomes: Sequence[Outcome], seconds: float) -> str:
    executions, found = sum(each.executions for each in outcomes), sum(len(each.findings) for each in outcomes)
    return f"{len(outcomes)} targets, {executions:,} executions in {seconds / 60:.0f} min, {found} findings"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
