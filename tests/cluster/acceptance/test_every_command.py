"""
A test types every command in a block of a page, or `UNTYPED` says why not.

The typed commands are read from the tests themselves. `tests/unit/manifests/test_commands_of_pages.py` checks commands
in running text.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from functools import cache

from tests.cluster.acceptance import guides, test_typed_pages, typed
from tests.cluster.acceptance.test_tutorial import FOLLOWED
from tests.cluster.shadow import test_switching_page
from tests.cluster.system import test_going_back, test_moving_to_upstream
from tests.unit.kubectl_gpufraction import test_page
from tests.unit.manifests import test_installing_for_real, test_pages, test_pod_security_for_real
from tests.unit.manifests.commands import OTHERS, PROGRAMS, Shown, in_blocks, lines, shown
from tests.unit.manifests.kube import ROOT
from tests.unit.release import test_chart_for_real

UNTYPED = {
    r"^(?:aws|az|eksctl|gcloud|oci) ": "a cloud's own program, which needs an account there",
    r"^helm .*(?:nvidia|uninstall gpu-operator)": "NVIDIA's operator is in a registry of NVIDIA's",
    r"^(?:podman|docker|skopeo|cosign) |^make image ": "needs a registry; tests/unit/release/test_image_steps.py",
    r"^make bundle |^tar ": "needs an image; tests/unit/release/test_bundle.py",
    r"^(?:sudo apt-get|sudo install|install|git clone|curl|bash) ": "it installs on the reader's machine",
    r"^(?:sha256sum|kustomize edit|kubectl krew) ": "needs a release; tests/unit/release/test_release.py",
    r"^nvidia-": "needs NVIDIA's driver",
    r"^go build |^kubectl kustomize [cm]|^helm template policies|^make -C ": "another project's sources",
    r"^git show .* COMMIT": "the reader's own commit",
    r"^python -m benchmarks\.": "hours, with a trace or a control plane; tests/unit/benchmarks",
    r"^python -m tests.simulation --table": "tests/unit/simulation_faults/test_the_table.py",
    r"^make bench-quality": "hours, with a trace; tests/unit/benchmarks",
    r"^make (?:chart|plugin|PYTHON=python3.12 plugin)\b": "`make release-files` of CI makes it",
    r"^helm install .*create-namespace$": "the same without an image; test_chart_for_real.py",
    r"^make (?:playground$|.* DIRECTORY=|demo KEEP)": "until Ctrl-C; test_playground_command.py, test_tutorial.py",
    r"^kubectl gpufraction ui --|port-forward": "until Ctrl-C; test_tutorial.py types it without flags",
    r"^make setup": "every other target makes it first",
    r"^make renew": "it downloads new versions; tests/unit/release/test_image_steps.py",
    r"^make (?:structure|recipes)\b": "tests/unit/structure runs the same",
    r"make (?:test-\w+|fuzz-coverage)\b": "it runs tests; CI and nights choose which",
    r"^python -m webhook conditions": "tests/unit/webhook/certificates/test_match_conditions.py",
    r"^kubectl create$": "a part of a drawing",
}
"""Commands that no test types, as patterns of their lines, with the reason."""
LISTED = {**test_typed_pages.CANNOT, **UNTYPED}


def plain(line: str) -> str:
    """A line without its comment and with single spaces."""
    try:
        return shlex.join(shlex.split(line, comments=True))
    except ValueError:
        return line


def typed_lines() -> Iterator[str]:
    """Each line that a test types, as the page has it."""
    for page in test_typed_pages.PAGES:
        yield from (each.line for each in test_typed_pages.typed(page) if not test_typed_pages.reason(each.line))
    for page in FOLLOWED:
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        yield from (each.command for each in typed.commands(text))
    for page in test_pages.TYPED:
        refused = tuple(test_pages.MISSING)
        yield from (each for each in test_pages.typed(page) if " edit " not in each and not each.startswith(refused))
    for step in guides.steps():
        yield from step.commands if step.tried.startswith(guides.RUN) else ()
    yield from (line for _, line in test_switching_page.commands())
    yield from (line for block in test_moving_to_upstream.typed() for line in block)
    yield from lines(test_going_back.commands())
    yield from test_installing_for_real.marks()
    yield from test_pod_security_for_real.former_agent()
    for page, heading in test_chart_for_real.SECTIONS:
        yield from test_chart_for_real.commands(page, heading)
    yield from (f"kubectl gpufraction {line}" for line in test_page.examples())
    yield from made()


def made() -> Iterator[str]:
    """The targets that CI makes, each as a command `make TARGET`."""
    for line in re.findall(r"^make (.*)", (ROOT / ".ci/run").read_text(encoding="utf-8"), re.MULTILINE):
        yield from (f"make {word}" for word in line.split() if re.fullmatch(r"[a-z][a-z-]+", word))


@cache
def known() -> set[str]:
    """The lines that a test types, without their comments."""
    return {plain(line) for line in typed_lines()}


def unaccounted(commands: Iterable[Shown]) -> list[str]:
    """The commands that no test types and that are not listed."""
    others = (each for each in commands if plain(each.line) not in known())
    return [str(each) for each in others if not any(re.search(pattern, each.line) for pattern in LISTED)]


def test_every_command_of_a_page_is_typed_or_listed() -> None:
    assert unaccounted(in_blocks((*PROGRAMS, *OTHERS))) == []


def test_a_command_that_is_neither_is_found() -> None:
    new = shown("docs/new.md", "kubectl get what-nobody-types")
    assert unaccounted(new) == ["docs/new.md: kubectl get what-nobody-types"]


def test_what_is_listed_is_on_a_page_and_not_typed() -> None:
    commands = [(each.line, plain(each.line) in known()) for each in in_blocks((*PROGRAMS, *OTHERS))]
    for pattern in UNTYPED:
        found = {is_typed for line, is_typed in commands if re.search(pattern, line)}
        assert found == {False}, pattern


def test_the_tests_that_the_table_names_exist() -> None:
    named = {name for why in LISTED.values() for name in re.findall(r"tests/[\w/]+(?:\.py)?|\btest_\w+\.py", why)}
    files = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert [name for name in sorted(named) if not ((ROOT / name).exists() or name in files)] == []
