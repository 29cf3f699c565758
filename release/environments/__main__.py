"""
`python -m release.environments`: writes docs/environments.md from the reports in docs/environments.

    python -m release.environments                    # write the page; fails where a report cannot be read
    python -m release.environments --check FILE ...    # read reports that somebody sent, and describe them

Reports come from strangers: `kubectl_gpufraction.conformance.report` reads each within its bounds, or refuses it.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from contract.encoding.reading import Malformed, shown
from kubectl_gpufraction.conformance import report
from kubectl_gpufraction.conformance.report import ConformanceReport
from release.environments.page import page

_ROOT = Path(__file__).resolve().parents[2]
FOLDER, PAGE = _ROOT / "docs" / "environments", _ROOT / "docs" / "environments.md"
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}\.json")
_MOST_FILES = 500


def read(files: Iterable[Path]) -> tuple[dict[str, ConformanceReport], list[str]]:
    """The reports by the names of their files, and a line for each invalid file."""
    found, wrong = dict[str, ConformanceReport](), list[str]()
    for file in sorted(files)[:_MOST_FILES]:
        try:
            if not _NAME.fullmatch(file.name):
                raise Malformed("the file's name is not of small letters, digits, '.' and '-', ending in .json")
            with file.open("rb") as opened:
                found[file.name] = report.from_text(opened.read(report.MOST_BYTES + 1))
        except Malformed as error:
            wrong.append(f"{shown(file.name)}: {error}")
        except OSError as error:
            wrong.append(f"{shown(file.name)}: {error.strerror}")
    return found, wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or check files; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m release.environments", description=__doc__)
    parser.add_argument("--check", nargs="+", type=Path, metavar="FILE", help="only read these reports")
    given = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    found, wrong = read(given.check if given.check else FOLDER.glob("*.json"))
    for name, each in found.items():
        of = each.environment
        print(f"{name}: {of.system}, {of.runtime}, {', '.join(of.models) or 'no GPU'}, {len(each.results)} results")
    for line in wrong:
        print(line, file=sys.stderr)
    if not given.check and not wrong:
        PAGE.write_text(page(found), encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
