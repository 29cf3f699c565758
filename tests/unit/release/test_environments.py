"""
docs/environments.md is generated from the reports next to it, and a stranger's file changes nothing that it should not.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from kubectl_gpufraction.conformance import report
from kubectl_gpufraction.conformance.codes import ReportReason
from kubectl_gpufraction.conformance.report import ConformanceReport, Environment, Probe, because, passed
from release.environments.__main__ import FOLDER, PAGE, main, read
from release.environments.page import KNOWN_IMAGES, page

NODE = Environment(
    kubernetes="1.36.2",
    system="Ubuntu 24.04",
    kernel="6.8",
    architecture="amd64",
    cgroup="v2",
    runtime="containerd 2.1.4",
    operator="none",
    driver="570.86.15",
    cuda="12.8",
    models=("NVIDIA L4",),
    gpus=1,
    kernelModule=True,
    modes=("env-class-cdi",),
    levels=("mps",),
)
RESULTS = (
    passed("delivery", "env-class-cdi", seen=1, given=1),
    because(ReportReason.SEES_GPUS, "without-share", "unserved", seen=4),
    passed("memory", "mps", shareMiB=2048, tookMiB=1700),
    passed(
        "neighbour",
        aloneP50Microseconds=1000,
        aloneP99Microseconds=2000,
        besideP50Microseconds=1500,
        besideP99Microseconds=9000,
    ),
    because(ReportReason.NOT_ASKED, "restart-agent"),
)
REPORT = ConformanceReport("2026-11", "0.1.0", Probe("given"), NODE, RESULTS)
UBUNTU = (
    "| Ubuntu 24.04, kernel 6.8, cgroup v2, amd64 | containerd 2.1.4 | none | 570.86.15 | NVIDIA L4 "
    "| env-class-cdi passed | unserved **failed** (SeesGPUs) | mps passed | not tried | 1.5 times; 4.5 times "
    "| not tried | container not tried; agent not tried; kubelet not tried | [2026-11](environments/l4.json) |"
)


def rows(text: str) -> list[str]:
    """The rows of the table of nodes with a card."""
    part = text.split("## Nodes with a card")[1].split("## ")[0]
    return [line for line in part.splitlines() if line.startswith("| ")][2:]


def test_the_page_is_made_from_the_reports_in_the_repository() -> None:
    found, wrong = read(FOLDER.glob("*.json"))
    assert (wrong, PAGE.read_text(encoding="utf-8")) == ([], page(found))


def test_without_a_report_every_row_says_not_tried() -> None:
    found = rows(page({}))
    assert len(found) == sum(len(each.runtimes) for each in KNOWN_IMAGES)
    assert all(line.count("not tried") == 10 for line in found)


def test_a_report_takes_the_place_of_its_row() -> None:
    before, after = rows(page({})), rows(page({"l4.json": REPORT}))
    assert [line for line in after if line not in before] == [UBUNTU]
    assert len(after) == len(before)


def test_the_newest_of_reports_that_are_alike_counts() -> None:
    old = replace(REPORT, made="2026-01", results=())
    assert rows(page({"a-old.json": old, "l4.json": REPORT})) == rows(page({"l4.json": REPORT}))


def test_an_image_that_no_row_waits_for_gets_a_row() -> None:
    other = replace(REPORT, environment=replace(NODE, system="other", runtime="other"))
    assert len(rows(page({"x.json": other}))) == len(rows(page({}))) + 1


def test_a_name_that_begins_like_another_is_not_taken_for_it() -> None:
    """`Red Hat Enterprise Linux CoreOS` is not `Red Hat Enterprise Linux`."""
    coreos = replace(REPORT, environment=replace(NODE, system="Red Hat Enterprise Linux CoreOS 417.94"))
    left = [
        line for line in rows(page({"x.json": coreos})) if line.startswith("| Red Hat Enterprise Linux | containerd")
    ]
    assert len(left) == 1


def test_a_report_of_simulated_gpus_is_no_evidence_about_a_card() -> None:
    played = replace(REPORT, environment=replace(NODE, kernelModule=False))
    text = page({"l4.json": played})
    assert (rows(text), UBUNTU in text) == (rows(page({})), True)


BROKEN: dict[str, tuple[str, bytes]] = {
    "no report": ("x.json", b"{}"),
    "markup in a word": ("x.json", report.to_text(REPORT).replace("NVIDIA L4", "<script>").encode()),
    "a pipe in a word": ("x.json", report.to_text(REPORT).replace("NVIDIA L4", "NVIDIA | L4").encode()),
    "a name that is no name": ("X Y.json", report.to_text(REPORT).encode()),
    "too long": ("x.json", b" " * (report.MOST_BYTES + 1)),
}


@pytest.mark.parametrize(("name", "text"), BROKEN.values(), ids=BROKEN.keys())
def test_a_strangers_file_is_refused_by_its_name(name: str, text: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(text)
    found, wrong = read([tmp_path / name])
    assert (found, len(wrong), repr(name) in wrong[0]) == ({}, 1, True)


def test_the_command_checks_what_somebody_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad, before = tmp_path / "good.json", tmp_path / "bad.json", PAGE.read_bytes()
    good.write_text(report.to_text(REPORT))
    bad.write_text("[]")
    assert (main(["--check", str(good)]), main(["--check", str(good), str(bad)])) == (0, 1)
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == "good.json: Ubuntu 24.04, containerd 2.1.4, NVIDIA L4, 5 results"
    assert re.fullmatch(r"'bad\.json': report is \[\]; expected a map\n", err)
    assert PAGE.read_bytes() == before
