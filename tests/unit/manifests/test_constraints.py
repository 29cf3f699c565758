"""The pages of constraints and of the strict profile: each row names a test that exists, or says that there is none."""

from __future__ import annotations

import ast
import ipaddress
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.manifests.kube import MANIFESTS, ROOT, documents, texts

PROGRAMS = ("contract", "runtime", "webhook", "allocator", "nodeagent", "kubectl_gpufraction")
TEST = re.compile(r"`((?:\w+/)+test_\w+\.py)(?:::(\w+))?`")


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table after the heading."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").partition(heading)[2]
    table = re.search(r"^\|.*\|$(?:\n^\|.*\|$)+", text, re.MULTILINE)
    assert table is not None
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table[0].splitlines()[2:]]


def marks(node: ast.FunctionDef) -> str:
    return " ".join(ast.unparse(each) for each in node.decorator_list)


def missing(cell: str) -> Iterator[str]:
    """The tests of a cell that do not exist, or that never run."""
    for file, name in TEST.findall(cell):
        path = ROOT / "tests" / file
        if not path.is_file():
            yield file
            continue
        functions = {
            node.name: node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)
        }
        if name and name not in functions:
            yield f"{file}::{name}"
        elif name and re.search(r"mark\.(skip|xfail)\(", marks(functions[name])):
            yield f"{file}::{name} is never run"


PAGES = {"what the profile stops": ("multitenant.md", "## What it stops"), "constraints": ("constraints.md", "# ")}


@pytest.mark.parametrize(("page", "heading"), PAGES.values(), ids=PAGES)
def test_every_test_that_a_row_names_is_there_and_runs(page: str, heading: str) -> None:
    assert [found for row in rows(page, heading) for found in missing(row[-1])] == []


def test_every_line_of_what_the_profile_stops_has_a_test() -> None:
    assert [row[0] for row in rows(*PAGES["what the profile stops"]) if not TEST.search(row[-1])] == []


def test_every_constraint_is_tested_or_says_that_it_is_not() -> None:
    wrong = [
        row[0]
        for row in rows(*PAGES["constraints"])
        if bool(TEST.search(row[-1])) != row[1].startswith("tested")
        or not row[1].startswith(("tested", "no:", "no ", "not tested"))
    ]
    assert wrong == []


def test_no_object_names_an_ip_family_or_an_address() -> None:
    """This gives Services the cluster's own family, and makes policies hold in both."""
    found = set()
    for path in sorted(MANIFESTS.rglob("*.yaml")):
        for item in documents(path):
            found |= {text for text in texts(item) if text in ("ipFamilies", "ipFamilyPolicy") or is_address(text)}
    assert found == set()


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return not text.isdecimal()


HASHES = frozenset(("md5", "sha1", "sha224", "blake2b", "blake2s", "new", "uuid3", "uuid5", "MD5", "SHA1"))
OTHER_HASHES = {
    # Order among equal nodes, which must differ from node to node and protects nothing.
    ("allocator/table.py", "blake2s"),
    # Generated UUIDs of simulated cards.
    ("nodeagent/gpus/simulated.py", "uuid5"),
}


def test_programs_use_no_hash_but_sha256() -> None:
    found = {
        (str(path.relative_to(ROOT)), node.attr)
        for program in PROGRAMS
        for path in sorted(Path(ROOT / program).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and node.attr in HASHES
        and isinstance(node.value, ast.Name)
        and node.value.id in ("hashlib", "hashes", "uuid")
    }
    assert found == OTHER_HASHES
