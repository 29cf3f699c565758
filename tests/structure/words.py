"""
Checks the words of pages and messages: `make check` fails if one of `RULES` finds something.

    python -m tests.structure.words                   what is found, with the page and line, and what to write instead
    python -m tests.structure.words --count main      how many words each page has, and had in the commit `main`

A rule is here only if it has no false alarms. Code, blocks of code, addresses of links and names in backticks are not
checked.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
PACKAGES = (
    "contract",
    "runtime",
    "webhook",
    "allocator",
    "nodeagent",
    "kubectl_gpufraction",
    "shadow",
    "playground",
    "release",
)


@dataclass(frozen=True, slots=True)
class Rule:
    """
    A pattern that no page may contain, and what to write instead.

    example: a text in which it finds something. better: the corrected text, in which no rule finds anything.
    """

    pattern: str
    instead: str
    example: str
    better: str


RULES = (
    Rule(
        r"\bWith this page\b",
        "begin with what the reader does",
        "With this page you choose what limits containers to their shares.",
        "Choose how containers are limited to their shares.",
    ),
    Rule(
        r"\bbeside\b",
        "alongside, next to, in addition to",
        "Kueue runs beside gpufraction.",
        "Kueue runs alongside gpufraction.",
    ),
    Rule(r"\bwhoever\b", "anyone who, the user who", "Whoever reaches the port.", "Any client that reaches the port."),
    Rule(r"\banew\b", "again", "The agent reads it anew.", "The agent reads it again."),
    Rule(
        r"\b(?:is|are|was|were|be|being) ill\b|\bill (?:GPU|card|node)s?\b",
        "unhealthy",
        "The card is ill.",
        "The card is unhealthy.",
    ),
    Rule(r"\bshall\b", "must, should, can", "Pods that shall wait.", "Pods that must wait."),
    Rule(
        r"\bwhat (?:came|comes|became|becomes|become) of\b",
        "the result of, what happens to",
        "It counts what came of each estimate.",
        "It counts the result of each estimate.",
    ),
    Rule(r"\bfor ever\b", "forever", "The pod waits for ever.", "The pod waits forever."),
    Rule(r"\bto be had\b", "available", "No card is to be had.", "No card is available."),
    Rule(
        r"\bin the words of\b",
        "in the format of",
        "A request in the words of HAMi.",
        "A request in HAMi's format.",
    ),
    Rule(
        r"\b(?:needs?|knows?|has|have|sees?|reads?) nothing of\b",
        "needs no access to, does not know, does not have",
        "It needs nothing of a managed control plane.",
        "It needs no access to the control plane.",
    ),
    Rule(
        r"(?:^|[.:] )So (?:it|they) (?:is|are) (?:for|with|in|on|until|where|when)\b",
        "the same applies to, this lasts",
        "So it is for 15 s after a leader's end.",
        "This lasts 15 s after a leader's end.",
    ),
    Rule(
        r"(?:^|[.:] )That one\b",
        "name the thing",
        "The pod is bound by a scheduler. That one may refuse the node.",
        "The pod is bound by a scheduler, which may refuse the node.",
    ),
    Rule(r"\b(?:lately|of late)\b", "recently", "Requests of late.", "Recent requests."),
    Rule(
        r"\b(?:whilst|amongst|upon|whereof|thereof|therein|wherein|hereby|whereby|wherefrom)\b",
        "while, among, on, by which",
        "Once upon a node.",
        "Once on a node.",
    ),
    Rule(r"\be\.g\.|\bi\.e\.|\betc\.|\bvia\b", "for example, that is, and so on, through", "via MPS", "through MPS"),
    Rule(
        r"\b(?:simply|obviously|of course|easily)\b",
        "leave it out",
        "You can simply delete the pod.",
        "Delete the pod.",
    ),
    Rule(
        r"\bmend(?:s|ed|ing)\b",
        "repair",
        "Nothing has to be mended.",
        "Nothing has to be repaired.",
    ),
    Rule(
        r"\bplayed (?:API|kubelets?|drivers?|cards?|GPUs?|CUDA|Kueue|nodes?|daemons?)\b",
        "simulated",
        "Tested with a played driver.",
        "Tested with a simulated driver.",
    ),
    Rule(
        r"\b(?:stood|stands?) (?:above|below|beside|behind|there|on the page|in the table)\b",
        "is",
        "The reason stands in the table.",
        "The reason is in the table.",
    ),
)
"""From the project's rules of language in CONTRIBUTING.md. Letter case does not matter."""
_FOUND = tuple(re.compile(rule.pattern, re.IGNORECASE | re.MULTILINE) for rule in RULES)
_QUIET = ("docs/decisions/", "docs/zh/", "CHANGELOG.md", "README_zh.md", "CONTRIBUTING.md")
"""Records and notes of releases keep the words of their time, and CONTRIBUTING.md quotes what to avoid."""
_KUBERNETES = ("playground/api/rules/",)
"""Modules that answer with Kubernetes' own messages."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A place where a rule finds something. line: counted from 1."""

    file: str
    line: int
    text: str
    instead: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text!r}; write: {self.instead}"


def found(text: str, file: str = "", first_line: int = 1) -> Iterator[Finding]:
    """The findings in a text whose first line has this number in the file, in the order of the rules."""
    for rule, pattern in zip(RULES, _FOUND, strict=True):
        for match in pattern.finditer(text):
            line = first_line + text.count("\n", 0, match.start())
            yield Finding(file, line, match[0].strip(" .:"), rule.instead)


def prose(page: str) -> str:
    """The text of a page with the same number of lines, without code, names in backticks and addresses of links."""
    text = re.sub(r"^( *```).*?^\1", lambda block: "\n" * block[0].count("\n"), page, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^ {4}.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`]*`", lambda code: "`" + "\n" * code[0].count("\n") + "`", text)
    return re.sub(r"\]\([^)]*\)", "]", text)


def messages(source: str) -> Iterator[tuple[int, str]]:
    """Texts of several words in a module that are not docstrings, each with its first line."""
    tree = ast.parse(source)
    documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in documented and " " in (text := str(node.value)):
            yield node.lineno, re.sub(r"`[^`]*`", "``", text)


def pages(top: Path = TOP) -> list[str]:
    """The pages that are checked and counted, by their paths below `top`."""
    written = [*top.glob("*.md"), *(top / "docs").rglob("*.md"), *(top / "playground").glob("*.md")]
    return sorted(name for path in written if not (name := str(path.relative_to(top))).startswith(_QUIET))


def modules(top: Path = TOP) -> list[str]:
    """The modules whose messages are checked."""
    found_in = (path for package in PACKAGES for path in (top / package).rglob("*.py"))
    return sorted(name for path in found_in if not (name := str(path.relative_to(top))).startswith(_KUBERNETES))


def in_tree(top: Path = TOP) -> list[Finding]:
    """What is found in all pages and messages."""
    findings = list[Finding]()
    for page in pages(top):
        findings += found(prose((top / page).read_text(encoding="utf-8")), page)
    for module in modules(top):
        for line, text in messages((top / module).read_text(encoding="utf-8")):
            findings += found(text, module, line)
    return findings


_TOP_OF_PAGE = 400
"""Characters within which a page says that a program makes it."""


def counted(texts: Mapping[str, str]) -> dict[str, int]:
    """The words of each page, as `wc -w` counts them."""
    return {page: len(text.split()) for page, text in sorted(texts.items())}


def _texts() -> dict[str, str]:
    return {page: (TOP / page).read_text(encoding="utf-8") for page in [*pages(), "CONTRIBUTING.md"]}


def _texts_of(commit: str) -> dict[str, str]:
    """The same pages in a commit. Raises `CalledProcessError` if git does not know the commit."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=TOP, capture_output=True, text=True, check=True).stdout

    names = git("ls-tree", "-r", "--name-only", commit).splitlines()
    wanted = [n for n in names if n.endswith(".md") and (n.startswith("docs/") or n.count("/") == 0)]
    wanted += [n for n in names if re.fullmatch(r"playground/[^/]+\.md", n)]
    kept = [n for n in wanted if n == "CONTRIBUTING.md" or not n.startswith(_QUIET)]
    return {name: git("show", f"{commit}:{name}") for name in kept}


def main(arguments: list[str]) -> int:
    """Print the findings, and return 1 if there are any; or with `--count [COMMIT]` print the words of each page."""
    if "--count" in arguments:
        _print_counts(arguments[arguments.index("--count") + 1 :])
        return 0
    findings = in_tree()
    for each in findings:
        print(each)
    looked = f"{len(pages())} pages and {len(modules())} modules"
    print(f"words: {len(findings)} found in {looked}")
    return 1 if findings else 0


def _is_made(text: str) -> bool:
    """Whether a program makes the page, which says so at its top."""
    return "<!-- Made by" in text[:_TOP_OF_PAGE]


def _print_counts(commits: list[str]) -> None:
    columns = [*(_texts_of(commit) for commit in commits[:1]), _texts()]
    words = [counted(texts) for texts in columns]
    for page in sorted(set().union(*words)):
        _print_row(page, [found.get(page, 0) for found in words])
    made = [sum(len(text.split()) for text in texts.values() if _is_made(text)) for texts in columns]
    totals = [sum(found.values()) for found in words]
    _print_row("pages that programs make", made)
    _print_row("all other pages", [total - part for total, part in zip(totals, made, strict=True)])
    _print_row("all pages", totals)


def _print_row(what: str, figures: list[int]) -> None:
    print(f"{what:40} {' '.join(f'{figure:7,}' for figure in figures)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
