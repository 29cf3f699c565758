"""
`python -m benchmarks [SECTION ...]`: the figures of `docs/benchmarks.md`, measured on this machine.

Tables and machine-readable lines go to standard output, progress to standard error. Nothing is asserted, because
figures depend on the machine.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from benchmarks.admission import cost, creation, latency, warnings
from benchmarks.decisions import neighbours, report, scale, waiting
from benchmarks.latencies import coldstart, freed, large, nodes, stored_first
from benchmarks.progress import say
from shadow import __main__ as shadow

SECTIONS: Mapping[str, Callable[[], Iterator[str]]] = {
    "decision": report.decisions,
    "neighbours": neighbours.neighbours,
    "waiting": waiting.waiting,
    "admission": latency.admission,
    "review": cost.costs,
    "creation": creation.real,
    "warnings": warnings.warnings,
    "stored": stored_first.stored_first,
    "freed": freed.freed,
    "nodes": nodes.nodes,
    "coldstart": coldstart.coldstart,
    "scale": scale.scale,
    "large": large.large,
}
_ON_REQUEST = frozenset({"scale", "large"})
"""Sections that take as long as all the others."""
_WHAT_IF = "what-if"
"""A recording of shadow mode with a change and without it (`shadow.__main__`)."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sections requested, or `what-if` with its own flags; the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == [_WHAT_IF]:
        return shadow.main(words)
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure on this machine.")
    parser.add_argument(
        "sections",
        nargs="*",
        metavar="SECTION",
        help=f"{', '.join(SECTIONS)}; without any all but {', '.join(_ON_REQUEST)}; {_WHAT_IF} has flags of its own",
    )
    given = parser.parse_args(words).sections or [name for name in SECTIONS if name not in _ON_REQUEST]
    unknown = [name for name in given if name not in SECTIONS]
    if unknown:
        parser.error(f"no section {unknown[0]!r}; there are {', '.join(SECTIONS)}")
    started = time.monotonic()
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}, load before: {os.getloadavg()[0]:.1f}\n")
    lines: list[str] = []
    for name in given:
        for text in SECTIONS[name]():
            if text.startswith(("bench ", "scale ")):
                lines.append(text)
            else:
                print(f"{text}\n", flush=True)
    say(f"{time.monotonic() - started:.0f} s in all")
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
