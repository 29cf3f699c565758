"""The check of words finds each planted pattern, and finds nothing in code and nothing in the tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.structure import words
from tests.structure.words import RULES, Rule

EACH = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.instead)


def tree(top: Path, **files: str) -> Path:
    """A tree with these files; `__` in a name separates folders."""
    for name, text in files.items():
        path = top / (name.replace("__", "/") + (".py" if name.startswith("runtime") else ".md"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return top


@EACH
def test_a_planted_pattern_is_found_in_a_page_and_a_message(rule: Rule, tmp_path: Path) -> None:
    top = tree(tmp_path, docs__page=f"# Page\n\n{rule.example}\n", runtime__x=f"TEXT = {rule.example!r} + 'a b'\n")
    places = {(each.file, each.line) for each in words.in_tree(top) if each.instead == rule.instead}
    assert places == {("docs/page.md", 3), ("runtime/x.py", 1)}


@EACH
def test_what_to_write_instead_is_not_found(rule: Rule) -> None:
    assert list(words.found(rule.better)) == []


def test_code_names_and_addresses_of_links_are_not_looked_at(tmp_path: Path) -> None:
    page = "`beside`\n\n```\nbeside\n```\n\n    beside\n\n[a link](beside.md#whoever)\n\n`over\ntwo beside lines`\n"
    module = '"""Beside a docstring."""\n\nTEXT = "the flag `--beside` is given"\nNAME = "beside"\n# beside\n'
    assert words.in_tree(tree(tmp_path, docs__page=page, runtime__x=module)) == []


def test_lines_are_counted_below_code(tmp_path: Path) -> None:
    top = tree(tmp_path, docs__page="a\n\n```\nb\nc\n```\n\n`d\ne` and beside\n")
    assert [str(each) for each in words.in_tree(top)] == [
        "docs/page.md:9: 'beside'; write: alongside, next to, in addition to"
    ]


def test_records_notes_of_releases_and_translations_keep_their_words(tmp_path: Path) -> None:
    files = {"docs__decisions__0001-a": "beside\n", "CHANGELOG": "beside\n", "docs__zh__a": "beside\n"}
    assert words.in_tree(tree(tmp_path, **files)) == []


def test_words_are_counted_as_wc_does() -> None:
    assert words.counted({"b.md": "| a | b |\n", "a.md": "one two\n"}) == {"a.md": 2, "b.md": 5}


def test_the_tree_has_none() -> None:
    assert [str(each) for each in words.in_tree()] == []


def test_the_rules_of_language_name_the_check() -> None:
    page = (words.TOP / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = page.partition("| instead of | write |\n|---|---|\n")[2].partition("\n\n")[0].splitlines()
    assert len(table) >= 10
    assert "tests/structure/words.py" in page
