"""
The commands of the pages on clouds and on enforcement, which need a cloud or a card: a shell can read them, their
JSON is JSON, and the files and names in them exist.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest

from contract import names
from tests.unit.manifests.kube import MANIFESTS, ROOT

PAGES = [*sorted((ROOT / "docs" / "clouds").glob("[a-z]*.md")), ROOT / "docs" / "enforcement.md"]


def shown(text: str) -> list[str]:
    """The blocks that name no language: commands, and what they print."""
    parts = re.split(r"^```(\w*)\n", text, flags=re.MULTILINE)
    # Fences open and close in turn, so each second one begins a block.
    return [body for language, body in list(zip(parts[1::2], parts[2::2], strict=True))[::2] if not language]


BLOCKS = [(page.stem, block) for page in PAGES for block in shown(page.read_text(encoding="utf-8"))]
TYPED = [(page, block) for page, block in BLOCKS if not block.startswith("|")]
each = pytest.mark.parametrize(("page", "block"), TYPED, ids=[f"{page} {i}" for i, (page, _) in enumerate(TYPED)])


def test_each_page_has_commands() -> None:
    assert {page for page, _ in TYPED} == {page.stem for page in PAGES}


@each
def test_a_shell_can_read_it(page: str, block: str) -> None:
    shell = shutil.which("bash")
    if shell is None:
        pytest.skip("bash is not on PATH")
    read = subprocess.run([shell, "-n"], input=block, capture_output=True, text=True, timeout=30, check=False)
    assert (read.returncode, read.stderr) == (0, "")


@each
def test_its_json_is_json(page: str, block: str) -> None:
    for text in re.findall(r"'([\[{].*?[\]}])'(?=\s|$)", block, re.DOTALL):
        json.loads(text.replace("'$RANGE'", "10.0.0.0/24"))


@each
def test_the_files_that_it_applies_exist(page: str, block: str) -> None:
    for name in re.findall(r"(?:-f|-k) ((?:samples|manifests)/\S+)", block):
        assert (ROOT / name).exists(), name


@each
def test_names_of_ours_are_registered(page: str, block: str) -> None:
    used = set(re.findall(rf"(?<![\w.-]){re.escape(names.GROUP)}/[a-z-]+\w", block))
    assert used <= {str(key) for key in names.REGISTRY}


def test_the_accounts_and_objects_that_the_pages_name_exist() -> None:
    made = "\n".join(path.read_text(encoding="utf-8") for path in MANIFESTS.rglob("*.yaml"))
    named = {name for _, block in TYPED for name in re.findall(r"(?<![\w.-])gpufraction-[a-z-]+\w", block)}
    assert named
    assert [name for name in sorted(named) if name not in made] == []
