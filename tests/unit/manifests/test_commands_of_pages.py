"""Every command on a page can be parsed by the program that it names, even if no test can run it."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kubectl_gpufraction import commandline
from kubectl_gpufraction.__main__ import parser
from tests.unit.manifests.commands import PAGES, Shown, blocks, in_blocks, in_text, shown
from tests.unit.manifests.kube import ROOT

COMMANDS = sorted({each.line: each for each in (*in_blocks(), *in_text())}.values(), key=str)
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def of(*start: str) -> list[Shown]:
    """The commands that begin like this."""
    found = [each for each in COMMANDS if each.words[: len(start)] == start]
    assert found, f"no page has a command {start}"
    return found


def each_of(*start: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("command", of(*start), ids=str)


@each_of("kubectl", "gpufraction")
def test_the_plugin_reads_its_command(command: Shown) -> None:
    """A command without arguments is a name in the text; words in brackets are its form."""
    words = [word for word in command.words[2:] if not word.startswith("[")]
    if len(words) < 2 or words[0] == "help":
        with pytest.raises(SystemExit):
            commandline.parsed(parser(), [*[word for word in words if word.islower()][-1:], "--help"])
    else:
        commandline.parsed(parser(), words)


@each_of("python", "-m")
def test_a_module_that_is_run_exists(command: Shown) -> None:
    assert importlib.util.find_spec(command.words[2]) is not None


@each_of("make")
def test_what_is_made_is_a_target_and_takes_its_variables(command: Shown) -> None:
    if "-C" in command.words:
        pytest.skip("another project's Makefile")
    targets = [word for word in command.words[1:] if not re.match(r"[A-Z_]+=|-", word)]
    assert [name for name in targets if not re.search(rf"^{re.escape(name)}:", MAKEFILE, re.MULTILINE)] == []
    variables = [word.partition("=")[0] for word in command.words[1:] if re.match(r"[A-Z_]+=", word)]
    used = (rf"\$\({name}\)|\$\(\w+ {name}\)|\b{name} \?=|,\$\({name}\)" for name in variables)
    assert [pattern for pattern in used if not re.search(pattern, MAKEFILE)] == []


@each_of("kubectl")
def test_the_files_that_a_command_names_exist(command: Shown) -> None:
    given = re.findall(r"(?:^| )(?:-f|-k|--filename|--kustomize)[ =]?((?:samples|manifests)/\S+)", command.line)
    assert [path for path in given if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_shell_reads_the_blocks_that_have_commands(page: Path) -> None:
    shell = shutil.which("bash")
    if shell is None:
        pytest.skip("bash is not on PATH")
    text = page.read_text(encoding="utf-8")
    typed = [block for block in blocks(text) if any(True for line in block.splitlines() for _ in shown("", line))]
    joined = "\n".join(f"block_{at}() {{\n{block}\n}}" for at, block in enumerate(typed))
    read = subprocess.run([shell, "-n"], input=joined, capture_output=True, text=True, timeout=30, check=False)
    assert (read.returncode, read.stderr) == (0, "")
