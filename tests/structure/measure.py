"""
Figures of the code's structure, counted from the code. `make structure` prints them, and fails if a bound is exceeded.

    modules     in each folder of production code, without `__init__` and `__main__`
    floors      the longest chain of imports between the modules and folders of a folder
    chain       the longest chain of our classes that inherit from each other, without exceptions
    twice       class names with more than one meaning
    parts       what `Controller.__init__` creates: calls of our classes, or of functions that create one
    lines       of code in each package: all except comments and blank lines, docstrings included
    names       the longest name of a test, in characters after `test_`
    path        the modules of the programs whose code runs for one review, one pod event, one placement of a waiting
                pod; those of the vocabulary and the plumbing (`contract`, `runtime`) are counted alongside them
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.structure import paths

PRODUCTION = ("contract", "runtime", "webhook", "allocator", "nodeagent", "kubectl_gpufraction", "shadow")
VOCABULARY = ("contract", "runtime")
TOOLS = ("playground", "benchmarks")
LINES = {
    "contract": 15_150,
    "runtime": 4_300,
    "webhook": 4_000,
    "allocator": 26_760,
    "nodeagent": 7_250,
    "kubectl_gpufraction": 11_800,
    "shadow": 3_320,
}
"""
The maximum number of lines of code for each package: a little more than it has. A change that needs more raises it, so
that growth is a decision. Record 125 says where the last ones came from.
"""
LINES_BEFORE = 47_863
"""The longest path of all, before features and mechanisms moved into tables."""
_ENTRY = ("__init__", "__main__")
_TOP = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Bound:
    """A figure of the code, and its maximum."""

    what: str
    found: int
    most: int
    which: str = ""
    """Where the figure comes from, for readers."""

    @property
    def kept(self) -> bool:
        return self.found <= self.most


def modules(packages: Iterable[str] = PRODUCTION, top: Path = _TOP) -> dict[str, ast.Module]:
    """The modules of these packages by dotted name, read but not imported."""
    found = {}
    for package in packages:
        for file in sorted((top / package).rglob("*.py")):
            parts = file.relative_to(top).with_suffix("").parts
            found[".".join(parts)] = ast.parse(file.read_text())
    return found


def side_by_side(names: Iterable[str]) -> dict[str, int]:
    """How many modules are in each folder."""
    count: dict[str, int] = defaultdict(int)
    for name in names:
        folder, _, last = name.rpartition(".")
        count[folder] += last not in _ENTRY
    return dict(count)


# -- imports ------------------------------------------------------------------------------------------------------


def imports(trees: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """For each module, our modules that it imports, including imports only for the type checker."""
    known = {name.removesuffix(".__init__"): name for name in trees}
    found: dict[str, set[str]] = {}
    for name, tree in trees.items():
        wanted = {known[each] for each in _imported(tree) if each in known}
        found[name] = wanted - {name}
    return found


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def floors(folder: str, graph: Mapping[str, set[str]]) -> int:
    """
    How many floors the modules and folders of a folder have: those that import each other in a circle count as one, and
    each is one floor above what it imports.
    """
    inside = f"{folder}."

    def thing(name: str) -> str | None:
        return name.removeprefix(inside).split(".")[0] if name.startswith(inside) else None

    edges: dict[str, set[str]] = defaultdict(set)
    for name, wanted in graph.items():
        here = thing(name)
        if here is not None and here != "__init__":
            edges[here] |= {there for each in wanted if (there := thing(each)) not in (None, here, "__init__")}
    return _longest(edges)


def _longest(edges: Mapping[str, set[str]]) -> int:
    """The number of nodes on the longest path; the nodes of a circle count as one."""
    circle = {name: _reached(name, edges) for name in edges}
    leader = {name: min({name, *(e for e in circle[name] if name in circle.get(e, ()))}) for name in edges}
    above = {leader[n]: {leader[e] for m in edges if leader[m] == leader[n] for e in edges[m]} for n in edges}
    height: dict[str, int] = {}

    def stand(name: str) -> int:
        if name not in height:
            height[name] = 1 + max((stand(each) for each in above.get(name, ()) if each != name), default=0)
        return height[name]

    return max(map(stand, above), default=0)


def _reached(start: str, edges: Mapping[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    left = list(edges[start])
    while left:
        name = left.pop()
        if name not in seen:
            seen.add(name)
            left.extend(edges.get(name, ()))
    return seen


# -- classes ------------------------------------------------------------------------------------------------------


def classes(trees: Mapping[str, ast.Module]) -> dict[str, list[tuple[str, tuple[str, ...]]]]:
    """Every class at the top of a module, by name: its module, and the names of its bases."""
    found: dict[str, list[tuple[str, tuple[str, ...]]]] = defaultdict(list)
    for module, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                bases = tuple(base.id for base in node.bases if isinstance(base, ast.Name))
                found[node.name].append((module, bases))
    return found


def chain(found: Mapping[str, list[tuple[str, tuple[str, ...]]]]) -> tuple[str, ...]:
    """The longest chain of classes that inherit from each other, starting with the subclass."""
    return max((_ancestry(name, found) for name in found), key=len, default=())


def _ancestry(name: str, found: Mapping[str, list[tuple[str, tuple[str, ...]]]]) -> tuple[str, ...]:
    bases = {base for _, each in found.get(name, ()) for base in each}
    if name not in found or any(base.endswith(("Error", "Exception")) for base in bases):
        return ()  # a tree of exceptions is what `except` reads
    longest = max((_ancestry(base, found) for base in bases if base != name), key=len, default=())
    return (name, *longest)


def twice(found: Mapping[str, list[tuple[str, tuple[str, ...]]]]) -> dict[str, tuple[str, ...]]:
    """Names of more than one class, without private ones, and where those classes are."""
    return {
        name: tuple(module for module, _ in places)
        for name, places in sorted(found.items())
        if len(places) > 1 and not name.startswith("_")
    }


# -- lines and parts ----------------------------------------------------------------------------------------------


_EMPTY = frozenset(
    (
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    )
)


def lines_of_code(text: str) -> int:
    """How many lines have code or a part of a text, docstrings included."""
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _EMPTY:
            found.update(range(token.start[0], token.end[0] + 1))
    return len(found)


def lines(package: str, top: Path = _TOP) -> int:
    """The lines of code of a package."""
    return sum(lines_of_code(file.read_text()) for file in (top / package).rglob("*.py"))


def made(tree: ast.Module, name: str) -> tuple[str, ...]:
    """The classes of which the constructor of the named class creates an instance, in order, without errors."""
    [found] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    [init] = [node for node in found.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    calls = (node.func for node in ast.walk(init) if isinstance(node, ast.Call))
    called = (each.value if isinstance(each, ast.Attribute) else each for each in calls)
    names = (each.id for each in called if isinstance(each, ast.Name))
    return tuple(each for each in names if each[0].isupper() and not each.endswith("Error"))


# -- tests --------------------------------------------------------------------------------------------------------


def longest_test(top: Path = _TOP) -> str:
    """The longest name of a test, without `test_`: one sentence that fits on a line of a report."""
    nodes = (node for tree in modules(("tests",), top).values() for node in ast.walk(tree))
    names = (node.name for node in nodes if isinstance(node, ast.FunctionDef))
    return max((name.removeprefix("test_") for name in names if name.startswith("test_")), key=len)


# -- the table ----------------------------------------------------------------------------------------------------


def bounds() -> list[Bound]:
    """Every figure with its maximum."""
    trees = modules()
    graph, found, folders = imports(trees), classes(trees), side_by_side(trees)
    fullest = max(folders, key=lambda folder: folders[folder])
    high = {folder: floors(folder, graph) for folder in folders}
    highest = max(high, key=lambda folder: high[folder])
    tools = side_by_side(modules(TOOLS))
    fullest_tool = max(tools, key=lambda folder: tools[folder])
    longest, names_twice, walked = chain(found), twice(found), paths.walked()
    parts = made(trees["allocator.scheduler.core"], "Controller")
    code = {package: lines(package) for package in LINES}
    test = longest_test()
    return [
        Bound("modules side by side", folders[fullest], 18, fullest),
        Bound("modules side by side in a tool", tools[fullest_tool], 12, fullest_tool),
        Bound("floors of imports", high[highest], 12, highest),
        Bound("classes in a chain", len(longest), 2, " < ".join(reversed(longest))),
        Bound("class names used twice", len(names_twice), 0, ", ".join(names_twice)),
        Bound("characters of a test's name", len(test), 70, test),
        *_passed("an AdmissionReview", walked.review, 25),
        *_passed("a pod event", walked.event, 14),
        *_passed("a placement", walked.placement, 20),
        Bound("parts that the controller makes", len(parts), 8, ", ".join(parts)),
        *(Bound(f"lines of code of {each}", code[each], most) for each, most in LINES.items()),
        Bound("lines of code of them all", sum(code.values()), sum(LINES.values()), f"{LINES_BEFORE:,} before"),
    ]


def _passed(what: str, modules: tuple[str, ...], most: int) -> Iterator[Bound]:
    """The programs' modules, which have a bound, and the vocabulary's, which are printed in addition."""
    words = sum(name.split(".")[0] in VOCABULARY for name in modules)
    yield Bound(f"modules that {what} passes", len(modules) - words, most, f"and {words} of {' and '.join(VOCABULARY)}")


def main(arguments: list[str]) -> int:
    """Print the table; with `--all` also all folders, names used twice and paths. 1 if a bound is exceeded."""
    if "--all" in arguments:
        _print_all()
    figures = bounds()
    for each in figures:
        too_many = "" if each.kept else "TOO MANY "
        print(f"{each.what:40} {each.found:6,}  at most {each.most:6,}  {too_many}{each.which[:60]}")
    return 0 if all(each.kept for each in figures) else 1


def _print_all() -> None:
    trees, both = modules(), modules((*PRODUCTION, *TOOLS))
    graph = imports(both)
    for folder, count in sorted(side_by_side(both).items()):
        print(f"{folder:32} {count:3} modules on {floors(folder, graph):2} floors")
    for name, where in twice(classes(trees)).items():
        print(f"{name:32} {', '.join(where)}")
    walked = paths.walked()
    for what, passed in (("review", walked.review), ("event", walked.event), ("placement", walked.placement)):
        print(f"{what:12} {', '.join(passed)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
