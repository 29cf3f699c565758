"""
How many files each recipe of `docs/recipes.md` touches: `make recipes` prints the numbers, and fails if one is too
large. Pages that `make docs` writes are not counted.

The page lists the files, and this reads the page. Two checks keep the page true. Each file exists; if its path has a
placeholder, at least one does. A file that names every entry of a table is on the page, because it must name the next
entry too.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from allocator.features import FEATURES
from contract.dialects import DIALECTS
from contract.dialects.base import Dialect
from contract.isolation import LEVELS
from contract.reasons.nodes import Code

_TOP = Path(__file__).resolve().parents[2]
PAGE = _TOP / "docs" / "recipes.md"
_STEP = re.compile(r"^\d+\. `([^`]+)`", re.M)
_PLACEHOLDER = re.compile(r"<\w+>")
_FOLDERS = (
    "contract",
    "runtime",
    "webhook",
    "allocator",
    "nodeagent",
    "kubectl_gpufraction",
    "playground",
    "manifests",
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """`what` it adds, as in the page's table and headings, and the maximum number of files that it may touch."""

    what: str
    most: int
    entries: Mapping[str, str] = field(default_factory=dict)
    """For each entry of its table, a pattern of the texts that name the entry."""


def _of_dialect(dialect: Dialect) -> str:
    words = (*dialect.resources, *dialect.annotations, *dialect.annotation_prefixes)
    return "|".join((*map(re.escape, words), rf"\b{dialect.name}\.DIALECT\b"))


RECIPES = (
    Recipe("a dialect", 8, {each.name: _of_dialect(each) for each in DIALECTS}),
    Recipe("a reason why a node does not fit", 5, {each.name: rf"\b({each.name}|{each.word})\b" for each in Code}),
    Recipe("a setting of the allocator", 4),
    Recipe("a feature of the allocator", 4, {each.name: rf"\b{each.name}\.FEATURE\b" for each in FEATURES}),
    Recipe("a component", 8),
    Recipe("a mechanism", 8, {each.name: rf"\b{each.name.upper()}\b|[\\[ ]{each.name}[\\],]" for each in LEVELS}),
    Recipe("a way of delivery", 8),
)


def steps(page: str, recipe: Recipe) -> tuple[str, ...]:
    """The files of a recipe: those at the beginning of its numbered steps."""
    [section] = [each for each in page.split("\n## ")[1:] if each.startswith(f"Add {recipe.what}\n")]
    return tuple(_STEP.findall(section))


def missing(files: Iterable[str], top: Path = _TOP) -> list[str]:
    """Those of the files that do not exist."""
    return [file for file in files if not any(top.glob(_PLACEHOLDER.sub("*", file)))]


def naming_all(recipe: Recipe, top: Path = _TOP) -> list[str]:
    """
    The files of programs and manifests that name every entry of the recipe's table; none if it has no table. Files that
    are generated from the table are not counted.
    """
    patterns = [re.compile(pattern) for pattern in recipe.entries.values()]
    found = (file for folder in _FOLDERS for file in sorted((top / folder).rglob("*")) if patterns)
    texts = ((file, file.read_text()) for file in found if file.suffix in (".py", ".yaml"))
    written = ((file, text) for file, text in texts if not text.startswith("# Made by `python -m "))
    return [str(file.relative_to(top)) for file, text in written if all(each.search(text) for each in patterns)]


def main() -> int:
    """Print the files of each recipe. Returns 1 if one touches too many."""
    page, kept = PAGE.read_text(), True
    for recipe in RECIPES:
        found = steps(page, recipe)
        kept &= len(found) <= recipe.most
        print(f"{recipe.what:36} {len(found):2}  at most {recipe.most}", *found, sep="\n    ")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
