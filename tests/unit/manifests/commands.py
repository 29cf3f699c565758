"""
The commands that pages show, each with its page, from blocks for a shell and from the text.

A block is a fence for a shell or without a language, or a paragraph that is indented by four columns. In a block with
prompts (`$ `), lines without a prompt are output.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from tests.unit.manifests.kube import ROOT

PROGRAMS = ("kubectl", "make", "python", ".venv/bin/python", "helm", "oc", "sed")
OTHERS = (
    *("aws", "az", "eksctl", "gcloud", "oci", "podman", "docker", "skopeo", "cosign", "git", "go", "curl", "jq", "tar"),
    *("openssl", "sha256sum", "sudo", "install", "kustomize", "nvidia-ctk", "nvidia-modprobe", "bash"),
)
"""Programs that the pages also use, which belong to neither Kubernetes nor this repository."""
SHELLS = ("", "console", "sh", "bash")
PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "playground").glob("*.md"))
    if not {"decisions", "zh"} & set(path.parts) and path.name not in ("CHANGELOG.md", "README_zh.md")
)


@dataclass(frozen=True, slots=True)
class Shown:
    """
    A command that a page shows.

    line: as typed, with its here document. words: the first line as a shell splits it, without comments, pipes and
    redirections.
    """

    page: str
    line: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {self.line[:70]}"


def blocks(text: str) -> Iterator[str]:
    """The typed text in each shell block of a page, without prompts and output."""
    for language, body in re.findall(r"^ *```(\w*)\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL):
        if language in SHELLS:
            yield _typed(textwrap.dedent(body))
    rest = re.sub(r"^( *```).*?^\1", "", text, flags=re.MULTILINE | re.DOTALL)
    for body in re.findall(r"(?:^ {4}.*\n(?:\n(?= {4}))?)+", rest, re.MULTILINE):
        yield _typed(re.sub(r"^ {4}", "", body, flags=re.MULTILINE))


def _typed(body: str) -> str:
    here_document = r"^\$ (.*<<'?(\w+)'?\n(?:.*\n)*?\2$|(?:.*\\\n)*.*)"
    prompts = [found[0] for found in re.findall(here_document, body, re.MULTILINE)]
    return "\n".join(prompts) if prompts else body


@cache
def in_blocks(programs: tuple[str, ...] = PROGRAMS) -> tuple[Shown, ...]:
    """The commands of these programs in the blocks of all pages."""
    return tuple(
        each
        for path in PAGES
        for block in blocks(path.read_text(encoding="utf-8"))
        for line in lines(block)
        for each in shown(str(path.relative_to(ROOT)), line, programs)
    )


def lines(block: str) -> Iterator[str]:
    """What is typed at once: a line with its continuation lines, or with its here document."""
    for found in re.finditer(r"^.*<<'?(\w+)'?\n(?:.*\n)*?\1$|^.*$", block.replace("\\\n", " "), re.MULTILINE):
        yield found[0].strip()


def in_text() -> Iterator[Shown]:
    """The commands in backticks in the text of all pages. A text that ends with dots is not a command."""
    for path in PAGES:
        text = re.sub(r"^( *```).*?^\1", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for line in re.findall(r"`([^`]+)`", text):
            if "..." not in line:
                yield from shown(str(path.relative_to(ROOT)), " ".join(line.replace(r"\|", "|").split()))


def shown(page: str, line: str, programs: tuple[str, ...] = PROGRAMS) -> Iterator[Shown]:
    """The line as a command, if it is one of the programs with arguments."""
    try:
        words = shlex.split(line.partition("\n")[0], comments=True)
    except ValueError:  # a part of a here document, or output that looks like a command
        return
    ends = [at for at, word in enumerate(words) if word in ("|", ">", ">>", "<<END", "<<EOF", "||", "&&", ";")]
    words = words[: ends[0] if ends else None]
    if len(words) > 1 and words[0] in programs:
        yield Shown(page, line, tuple(words))
