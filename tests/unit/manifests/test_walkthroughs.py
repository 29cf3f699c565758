"""
The commands of the pages on clouds and on isolation, which need a cloud or a card: a shell can parse them, their JSON
is valid, and the files and names in them exist.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from contract import names
from tests.unit.manifests.kube import MANIFESTS, ROOT

CLOUDS = sorted((ROOT / "docs" / "clouds").glob("[a-z]*.md"))
PAGES = [*CLOUDS, ROOT / "docs" / "isolation.md"]


def shown(text: str) -> list[str]:
    """The blocks without a language: commands and their output."""
    parts = re.split(r"^```(\w*)\n", text, flags=re.MULTILINE)
    # Fences open and close in turn, so every second one begins a block.
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


REMOVING = (
    "delete mutatingwebhookconfiguration zz-gpufraction-webhook",
    "delete -k manifests/policies",
    "delete -k ",
    "label namespace default gpufraction.io/inject-",
)
"""Our own part of a removal, without the client's name: the policies refuse pods that the webhook did not see."""
of_clouds = pytest.mark.parametrize("page", CLOUDS, ids=[page.stem for page in CLOUDS])


@of_clouds
def test_each_cloud_says_how_the_image_gets_there(page: Path) -> None:
    made = r"^make image IMAGE=(\S+/gpufraction:[0-9][0-9a-z.]*)\npodman push \1$"
    assert re.search(made, page.read_text(encoding="utf-8"), re.MULTILINE)


@of_clouds
def test_each_cloud_says_how_it_is_removed(page: Path) -> None:
    below = re.split(r"^#+ .*Remove it\n", page.read_text(encoding="utf-8"), maxsplit=1, flags=re.MULTILINE)[1]
    typed = [line.partition(" ")[2] for line in shown(below)[0].splitlines()]
    first = next(number for number, line in enumerate(typed) if line == REMOVING[0])
    ours = typed[first : first + len(REMOVING)]
    assert [line[: len(step)] for line, step in zip(ours, REMOVING, strict=True)] == list(REMOVING)


@of_clouds
def test_each_cloud_says_what_to_do_with_the_vendors_operator(page: Path) -> None:
    said = page.read_text(encoding="utf-8")
    assert "GPU operator" in said
    # On OpenShift it comes from OperatorHub.
    assert ("helm install gpu-operator nvidia/gpu-operator" in said) == (page.stem != "openshift")


def test_the_accounts_and_objects_that_the_pages_name_exist() -> None:
    made = "\n".join(path.read_text(encoding="utf-8") for path in MANIFESTS.rglob("*.yaml"))
    named = {name for _, block in TYPED for name in re.findall(r"(?<![\w.-])gpufraction-[a-z-]+\w", block)}
    assert named
    assert [name for name in sorted(named) if name not in made] == []
