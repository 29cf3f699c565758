"""The administrator's pages: what they name exists, and their commands work on a real API server."""

from __future__ import annotations

import configparser
import functools
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from contract.metrics import METRICS
from contract.options import MOVED_TO_OPTIONS, pool_options
from nodeagent.settings import HoldSettings
from playground.waiting import wait_for
from release.chart.settings import PROGRAMS
from runtime.settings import SettingsError, every_setting, load, removed
from tests.unit.manifests.kube import ROOT, built
from tests.unit.manifests.realcluster import REAL, running
from webhook.settings import CertsSettings, ConditionsSettings

DOCS = ROOT / "docs"
PAGES = sorted(str(path.relative_to(ROOT)) for path in (*DOCS.rglob("*.md"), *ROOT.glob("README*.md")))
TYPED = ("installing.md", "troubleshooting.md", "operations.md", "operations-reference.md")


def text(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def test_the_pool_of_the_page_on_autoscaling_can_be_read() -> None:
    (block,) = re.findall(r"```yaml\n(apiVersion: v1\nkind: ConfigMap\n.*?)```", text("autoscaling.md"), re.DOTALL)
    options = yaml.safe_load(block)["data"]["options.yaml"]
    (pool,) = pool_options(yaml.safe_load(options)).pools
    assert pool.node is not None
    assert pool.node.gpus == 4


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", (ROOT / page).read_text(encoding="utf-8"))
    folder = (ROOT / page).parent
    assert [link for link in links if not link.startswith("http") and not (folder / link).exists()] == []


@functools.cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as the repository's website forms them: in lowercase, without punctuation."""
    lines = re.sub(r"^( *```).*?^\1", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", lines, re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_headings_that_exist(page: str) -> None:
    here = ROOT / page
    links = re.findall(r"\]\(([^)#:]*)#([^)]+)\)", here.read_text(encoding="utf-8"))
    pages = [(here.parent / path if path else here, heading) for path, heading in links]
    assert [f"{path}#{name}" for path, name in pages if path.suffix == ".md" and name not in anchors(path)] == []


def linked(page: Path) -> set[Path]:
    """The pages of docs/ that a page links to."""
    links = re.findall(r"\]\(([^)#:]+\.md)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    found = {(page.parent / link).resolve() for link in links}
    return {path for path in found if path.is_relative_to(DOCS)}


def test_the_index_names_every_page_and_the_readme_the_index() -> None:
    index = DOCS / "README.md"
    written = {path for path in DOCS.rglob("*.md") if "decisions" not in path.parts} - {index}
    found = linked(index)
    assert sorted(str(path) for path in written - found) == []
    assert DOCS / "decisions" / "README.md" in found
    assert index in linked(ROOT / "README.md")
    assert index in linked(ROOT / "README_zh.md")


def test_the_tests_that_show_an_invariant_exist() -> None:
    named = set(re.findall(r"`(tests/[^`]+)`", text("architecture.md")))
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


def test_the_modules_of_a_pods_way_exist() -> None:
    programs = "contract|runtime|webhook|allocator|nodeagent|kubectl_gpufraction|playground|shadow|benchmarks"
    named = set(re.findall(rf"(?<![\w/])((?:{programs})/[\w/]+(?:\.py|/))(?!\w)", text("architecture.md")))
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_the_index_of_decisions_has_every_record_under_its_title() -> None:
    index = (DOCS / "decisions" / "README.md").read_text(encoding="utf-8")
    records = {
        path.name: path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        for path in (DOCS / "decisions").glob("[0-9]*.md")
    }
    assert {file: title for title, file in re.findall(r"^- \[(.+)\]\((.+)\)$", index, re.MULTILINE)} == records


def test_the_layers_are_those_that_are_checked() -> None:
    linter = configparser.ConfigParser()
    linter.read(ROOT / ".importlinter")
    checked = linter["importlinter:contract:top-layers"]["layers"].strip().splitlines()
    rows = re.findall(
        r"^\| (?:publishing|measurements|shadow mode|programs|plumbing|vocabulary) \| ([^:|]+)",
        text("architecture.md"),
        re.MULTILINE,
    )
    assert [set(re.findall(r"`(\w+)`", row)) for row in rows] == [{n.strip() for n in c.split("|")} for c in checked]


def test_every_rule_about_imports_is_documented() -> None:
    linter = configparser.ConfigParser()
    linter.read(ROOT / ".importlinter")
    rules = {section["name"] for section in linter.values() if "name" in section}
    assert rules == set(re.findall(r"^- \*([^*]+)\*", text("architecture.md"), re.MULTILINE))


def test_the_table_of_renamed_settings_is_what_the_programs_say() -> None:
    rows = re.findall(r"^\| (\w+) \| `(\w+)` \| `(\w+)` \|$", text("migrating.md"), re.MULTILINE)
    for program, old, new in rows:
        flag, successor = (f"--{name.replace('_', '-')}" for name in (old, new))
        with pytest.raises(SettingsError) as caught:
            load(PROGRAMS[program], file=None, env={}, argv=[flag, "1"])
        assert f"flag {flag}: renamed to {successor}" in caught.value.errors
    renamed = [
        (program, leaf.former.name, leaf.name)
        for program, settings in PROGRAMS.items()
        for leaf in every_setting(settings)
        if leaf.former
    ]
    assert sorted(rows) == sorted(renamed)


def test_the_table_of_removed_settings_is_what_the_programs_say() -> None:
    commands = {**PROGRAMS, "certs": CertsSettings, "conditions": ConditionsSettings, "hold": HoldSettings}
    part = text("migrating.md").partition("| program | removed settings |\n")[2].partition("\n\n")[0]
    rows = {
        program: re.findall(r"`([\w.]+)`", cell) for program, cell in re.findall(r"^\| (\w+) \| (.+) \|$", part, re.M)
    }
    gone = {
        program: [leaf.name for leaf in removed(settings) if leaf.name not in MOVED_TO_OPTIONS]
        for program, settings in commands.items()
    }
    assert rows == {program: names for program, names in gone.items() if names}


def test_the_table_of_renamed_metrics_names_metrics_that_are_and_that_were() -> None:
    rows = re.findall(r"^\| `(gpufraction_\w+)`[^|]*\| `(gpufraction_\w+)`", text("migrating.md"), re.MULTILINE)
    names = {spec.name for spec in METRICS}
    assert rows
    assert [new for _, new in rows if new not in names] == []
    assert [old for old, _ in rows if old in names] == []


SIDES = {
    "time slicing": "`time-slicing`",
    "gpufraction, bound by name": "we, by nodeName",
    "gpufraction, bound by kube-scheduler": "we, by affinity",
    "DRA": "`dra`",
    "KAI": "`kai`",
    "HAMi": "`hami`, of 200",
}
POLICIES = {
    "gpufraction, by default": "value",
    "FGD, the best published rule, which knows the trace": "fragmentation (FGD)",
    "DRA, kube-scheduler's default profile": "DRA, default profile",
    "HAMi, by default": "HAMi's defaults",
    "KAI, by default": "KAI's defaults",
    "DRA, packed profile": "DRA, packed profile",
}


def rows(page: str, heading: str) -> dict[str, list[str]]:
    """
    The rows of the first table below a heading, by their first cell and their number among rows with the same cell.
    """
    lines = text(page).partition(f"\n{heading}\n")[2].partition("\n| ")[2].partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
    found = dict[str, list[str]]()
    for name, *others in cells:
        found[name if name not in found else f"{name}, again"] = others
    return found


def test_what_the_comparison_says_of_costs_was_measured() -> None:
    page = text("benchmarks.md").partition("This is the table")[2].partition("At 5,000 nodes")[0]
    measured = {line.split("|")[1].strip(): line.split("|")[2:] for line in page.splitlines() if line.startswith("| ")}
    compared = rows("why.md", "## What does a pod cost?")
    for name, (_, cost, rate, own) in compared.items():
        side = f"{SIDES[name.removesuffix(', again')]}{', in that run' if name.endswith(', again') else ''}"
        _, by_second, milliseconds, _, added, *_ = (cell.strip() for cell in measured[side])
        memory = f"{added} MiB" if added != "0" else "0"
        assert [cost, rate, own] == [f"{milliseconds} ms", str(round(float(by_second))), memory]
    assert {name.removesuffix(", again") for name in compared} == SIDES.keys()


def test_what_the_comparison_says_of_placement_was_measured() -> None:
    measured = rows("benchmarks.md", "### The default list")
    compared = {name: cells[0] for name, cells in rows("why.md", "## How full do the cards get?").items()}
    assert compared.pop("MPS, MIG, time slicing") == "not measured"
    assert compared == {name: f"{measured[policy][3]} %" for name, policy in POLICIES.items()}


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_makes_is_a_target(page: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    blocks = re.findall(
        r"^```(?:console)?\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    named = {name for block in blocks for name in re.findall(r"^(?:\$ )?make ([a-z-]+)(?: |$)", block, re.MULTILINE)}
    assert named <= targets


def typed(page: str) -> list[str]:
    """The commands that a page tells readers to type, without the prompt."""
    blocks = re.findall(r"^```console\n(.*?)^```$", text(page), re.MULTILINE | re.DOTALL)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]


MISSING = {
    "kubectl -n team-a apply -f samples/check.yaml": "failed calling webhook",
    "kubectl -n team-a get pod gpu-check": "not found",
    "kubectl -n team-a describe pod gpu-check": "not found",
    "kubectl -n team-a logs gpu-check": "not found",
    "kubectl -n team-a delete pod gpu-check": "not found",
    "kubectl -n team-a describe pod trainer": "not found",
    "kubectl -n team-a get pod trainer": "not found",
    "kubectl -n team-a wait pod trainer": "not found",
    "kubectl gpufraction": "unknown command",
    "kubectl -n gpufraction-system get lease gpufraction-allocator": "not found",
}
"""Commands that need our programs, which nothing starts here: how such a command begins, and how it is refused."""


@pytest.fixture(scope="module")
def config() -> Iterator[Path]:
    built()  # skips without kubectl
    with running() as cluster:
        yield cluster.kubeconfig


def reason_of(line: str, ran: list[subprocess.CompletedProcess[str]]) -> str:
    return f"`{line}` does not work: {ran}"


@pytest.mark.realcluster
@pytest.mark.timeout(400)
@REAL
def test_commands_in_the_pages_work(config: Path) -> None:
    """Types the pages from top to bottom, as a reader would. Only `edit` is left out, because it waits for a person."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(config.parent), "KUBECONFIG": str(config)}
    for line in [line for page in TYPED for line in typed(page) if " edit " not in line]:
        ran: list[subprocess.CompletedProcess[str]] = []

        def works(line: str = line, ran: list[subprocess.CompletedProcess[str]] = ran) -> bool:
            done = subprocess.run(
                shlex.split(line), cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
            )
            ran[:] = [done]
            wanted = next((reason for start, reason in MISSING.items() if line.startswith(start)), None)
            if wanted is not None:
                return wanted in done.stderr
            return done.returncode == 0 or (line.startswith("kubectl diff") and done.returncode == 1)

        # A new cluster serves new definitions and configurations a moment after they are written.
        wait_for(works, functools.partial(reason_of, line, ran))


def test_every_attack_of_the_matrix_is_tried_by_a_test_that_exists() -> None:
    named = set(re.findall(r"`((?:\w+/)+test_\w+\.py)(?:::(\w+))?`", text("security.md")))
    assert named
    missing = {
        f"{file}::{test}"
        for file, test in named
        if not (ROOT / "tests" / file).is_file() or (test and f"def {test}(" not in (ROOT / "tests" / file).read_text())
    }
    assert missing == set()
    tried = {path.name for path in (ROOT / "tests" / "cluster" / "hostile").glob("test_*.py")}
    assert sorted(tried - {file.rpartition("/")[2] for file, _ in named}) == []
