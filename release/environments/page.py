"""
The matrix of environments, as docs/environments.md has it: a row for each node image that people run, from reports.

Pure: reports in, Markdown out. Every word of a report comes from a table of ours, so none is quoted here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kubectl_gpufraction.conformance import checks
from kubectl_gpufraction.conformance.checks import CHECKS
from kubectl_gpufraction.conformance.codes import BY_CODE, FAILED, NOT_TRIED, PASSED, ReportReason
from kubectl_gpufraction.conformance.report import ConformanceReport, Environment, Result

MADE = "<!-- Made by `python -m release.environments`; change the code or the reports, not this page. -->"


@dataclass(frozen=True, slots=True)
class KnownImage:
    """A node image that people run: its name, how `osImage` begins in a report, and which runtimes it comes with."""

    name: str
    system: str
    runtimes: tuple[str, ...] = ("containerd",)


KNOWN_IMAGES = (
    KnownImage("Oracle Linux (OKE)", "Oracle Linux Server", ("cri-o",)),
    KnownImage("Red Hat Enterprise Linux CoreOS (OpenShift)", "Red Hat Enterprise Linux CoreOS", ("cri-o",)),
    KnownImage("Red Hat Enterprise Linux", "Red Hat Enterprise Linux"),
    KnownImage("Amazon Linux (EKS)", "Amazon Linux"),
    KnownImage("Bottlerocket (EKS)", "Bottlerocket OS"),
    KnownImage("Container-Optimized OS (GKE)", "Container-Optimized OS"),
    KnownImage("Ubuntu (AKS, GKE, EKS, your own)", "Ubuntu", ("containerd", "cri-o")),
    KnownImage("Azure Linux (AKS)", "Azure Linux"),
    KnownImage("Debian", "Debian GNU/Linux", ("containerd", "cri-o")),
    KnownImage("Rocky Linux", "Rocky Linux"),
    KnownImage("SUSE Linux Enterprise Server (RKE2)", "SUSE Linux Enterprise Server"),
    KnownImage("Flatcar Container Linux", "Flatcar Container Linux"),
    KnownImage("Talos", "Talos"),
)
"""The rows that stay "not tried" until a report arrives."""

_INTRO = f"""\
# Tested environments

{MADE}

The node images, runtimes, drivers and GPUs on which somebody has run the conformance kit. Add yours:

    kubectl gpufraction conformance --node NODE --report report.json

The report contains no names of tenants, nodes or clusters: only words from a table, and digits. Put it into
`docs/environments/`, run `python -m release.environments`, and open a pull request.
[Conformance](kubectl.md#conformance) describes what the command runs and needs.

"passed" and "failed" are from the newest report. "not tried" means that there is no report, or that the check cannot
run there.
"""
_HEAD = (
    "node image",
    "runtime",
    "operator",
    "driver",
    "GPU",
    "delivery",
    "hidden without a share",
    "memory",
    "cores",
    "neighbour, p50 and p99",
    "MIG",
    "restarts",
    "report",
)


def page(reports: Mapping[str, ConformanceReport]) -> str:
    """The page. `reports`: by the names of their files."""
    ordered = sorted(reports.items(), key=lambda item: (item[1].made, item[0]), reverse=True)
    real = [(name, each) for name, each in ordered if each.environment.kernelModule]
    played = [(name, each) for name, each in ordered if not each.environment.kernelModule]
    return "\n".join(
        (
            _INTRO,
            "## Nodes with a card",
            "",
            *table(_HEAD, _rows(real)),
            "",
            "## Nodes with simulated GPUs",
            "",
            "A test simulates the driver and the limits of these nodes. The reports show that the kit finds what it",
            "should. They are no evidence about a card.",
            "",
            *table(_HEAD, (_row(each, name) for name, each in played)),
            "",
            "## What the checks ask",
            "",
            *table(("check", "question", "tried for"), _questions()),
            "",
            "## Why a check failed, or was not tried",
            "",
            *table(("reason", "result", "meaning", "what to do"), (_reason(each) for each in ReportReason)),
            "",
        )
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table of Markdown."""
    return [_line(head), _line(["---"] * len(head)), *map(_line, rows)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _rows(real: Sequence[tuple[str, ConformanceReport]]) -> list[list[str]]:
    """Each known image with its newest report, or "not tried"; then reports of other node images."""
    rows, used = [], set[str]()
    for known in KNOWN_IMAGES:
        for runtime in known.runtimes:
            found = [(name, each) for name, each in real if _is(each.environment, known, runtime)]
            used |= {name for name, _ in found}
            if not found:
                rows.append([known.name, runtime, *[NOT_TRIED] * (len(_HEAD) - 3), ""])
            shown = dict[tuple[str, ...], list[str]]()
            for name, each in found:
                row = _row(each, name)
                shown.setdefault(tuple(row[:5]), row)  # the newest of those that are alike
            rows += shown.values()
    return [*rows, *(_row(each, name) for name, each in real if name not in used)]


def _is(found: Environment, known: KnownImage, runtime: str) -> bool:
    if not found.system.startswith(known.system) or not found.runtime.startswith(f"{runtime} "):
        return False
    longer = (
        each.system for each in KNOWN_IMAGES if each.system != known.system and each.system.startswith(known.system)
    )
    return not any(found.system.startswith(each) for each in longer)


def _row(report: ConformanceReport, name: str) -> list[str]:
    of = report.environment
    restarts = [
        *(_named("container", report, checks.CONTAINER), _named("agent", report, checks.AGENT)),
        _named("kubelet", report, checks.KUBELET),
    ]
    return [
        f"{of.system}, kernel {of.kernel}, cgroup {of.cgroup}, {of.architecture}",
        of.runtime,
        of.operator,
        of.driver,
        ", ".join(of.models) or "none",
        _each(report, checks.DELIVERY),
        _each(report, checks.HIDDEN),
        _each(report, checks.MEMORY),
        _each(report, checks.CORES),
        _neighbour(report),
        _named("", report, checks.SLICES),
        "; ".join(restarts),
        f"[{report.made}](environments/{name})",
    ]


def _results(report: ConformanceReport, check: str) -> list[Result]:
    return [each for each in report.results if each.check == check]


def _each(report: ConformanceReport, check: str) -> str:
    """The variants that were tried, each with its result."""
    tried = [each for each in _results(report, check) if each.result != NOT_TRIED]
    return "; ".join(f"{each.variant} {_result(each)}" for each in tried) or NOT_TRIED


def _named(word: str, report: ConformanceReport, check: str) -> str:
    found = next(iter(_results(report, check)), None)
    return f"{word} {_result(found) if found is not None else NOT_TRIED}".strip()


def _result(found: Result) -> str:
    return f"**{FAILED}** ({found.reason})" if found.result == FAILED else found.result


def _neighbour(report: ConformanceReport) -> str:
    found = next(iter(_results(report, checks.NEIGHBOUR)), None)
    if found is None or found.result != PASSED:
        return _result(found) if found is not None else NOT_TRIED
    return "; ".join(_slowdown(found, part) for part in ("P50", "P99"))


def _slowdown(found: Result, part: str) -> str:
    beside, alone = (found.figures.get(f"{word}{part}Microseconds", 0) for word in ("beside", "alone"))
    return f"{beside / max(alone, 1):.1f} times"


def _questions() -> list[list[str]]:
    return [
        [f"`{name}`", check.question, ", ".join(f"`{each}`" for each in check.variants if each)]
        for name, check in CHECKS.items()
    ]


def _reason(reason: ReportReason) -> list[str]:
    return [f"`{reason}`", BY_CODE[reason].result, reason.text, reason.cure]
