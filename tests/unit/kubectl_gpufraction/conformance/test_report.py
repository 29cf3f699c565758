"""A report is read back as it was written, and a stranger's report is read only if all of its words are ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.encoding.reading import Malformed
from kubectl_gpufraction.conformance import report
from kubectl_gpufraction.conformance.checks import CHECKS, FIGURES
from kubectl_gpufraction.conformance.codes import FAILED, NOT_TRIED, ReportReason
from kubectl_gpufraction.conformance.report import ConformanceReport, Environment, Probe, Result, because, passed

JSON = dict[str, Any]
DIGEST = f"sha256:{'0' * 64}"
WHOLE = ConformanceReport(
    "2026-11",
    "0.1.0",
    Probe("given", DIGEST, DIGEST),
    Environment(
        "1.36.2",
        "Ubuntu 24.04",
        "6.8",
        "amd64",
        "v2",
        "containerd 2.1.4",
        "25.3.0",
        "570.86.15",
        "12.8",
        ("NVIDIA L4",),
        4,
        0,
        True,
        ("env-class-cdi",),
        ("mps", "watch"),
    ),
    (
        passed("delivery", "env-class-cdi", seen=1, given=1),
        because(ReportReason.NOT_HELD, "memory", "mps", shareMiB=2048, tookMiB=2112),
        because(ReportReason.NOT_ASKED, "restart-agent"),
    ),
)


def test_a_report_is_read_back_as_it_was_written() -> None:
    assert report.from_text(report.to_text(WHOLE).encode()) == WHOLE


def _changed(*path: Any, to: Any) -> JSON:
    document: Any = json.loads(report.to_text(WHOLE))
    part = document
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = to
    return dict(document)


REFUSED: dict[str, Callable[[], JSON]] = {
    "another schema": lambda: _changed("schema", to="x"),
    "a later version": lambda: _changed("version", to=2),
    "a version that is true": lambda: _changed("version", to=True),
    "a name as the system": lambda: _changed("environment", "system", to="acme image"),
    "a name after the system": lambda: _changed("environment", "system", to="Ubuntu 24.04 of acme"),
    "a name as the card": lambda: _changed("environment", "models", to=["acme L4"]),
    "a suffix of a version": lambda: _changed("environment", "driver", to="570.1-acme"),
    "an address as a version": lambda: _changed("environment", "kernel", to="10.0.0.7"),
    "a line break": lambda: _changed("environment", "kernel", to="6.8\n"),
    "too many models": lambda: _changed("environment", "models", to=["NVIDIA L4"] * 17),
    "an unfamiliar field": lambda: {**_changed("kit", to="0.1.0"), "cluster": "acme"},
    "an unfamiliar field of the node": lambda: _changed("environment", "node", to="acme"),
    "an unfamiliar check": lambda: _changed("results", 0, "check", to="acme"),
    "a variant of another check": lambda: _changed("results", 0, "variant", to="mps"),
    "a result that its reason is none of": lambda: _changed("results", 1, "result", to="passed"),
    "a reason of a check that passed": lambda: _changed("results", 0, "reason", to="NotAsked"),
    "a failure without a reason": lambda: _changed("results", 1, "reason", to=""),
    "an unfamiliar figure": lambda: _changed("results", 0, "figures", to={"acme": 1}),
    "a figure below zero": lambda: _changed("results", 0, "figures", to={"seen": -1}),
    "a figure that is a text": lambda: _changed("results", 0, "figures", to={"seen": "1"}),
    "a figure that is endless": lambda: _changed("results", 0, "figures", to={"seen": 10**400}),
    "a check twice": lambda: _changed("results", 1, to=json.loads(report.to_text(WHOLE))["results"][0]),
    "a registry as the image": lambda: _changed("probe", "image", to="registry.acme.com/x"),
    "a list": lambda: _changed("results", to={}),
}


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED.keys())
def test_a_report_with_a_wrong_part_is_refused(make: Callable[[], JSON]) -> None:
    with pytest.raises(Malformed):
        report.from_text(json.dumps(make()).encode())


@pytest.mark.parametrize(
    "text",
    [b"", b"\xff\xfe", b"[" * 100_000, b'{"schema": NaN}', b" " * (report.MOST_BYTES + 1), b"null", b'"x"'],
    ids=["empty", "no text", "deep", "no number", "long", "nothing", "a text"],
)
def test_what_is_no_report_is_refused_in_words(text: bytes) -> None:
    with pytest.raises(Malformed):
        report.from_text(text)


_RESULTS = st.sampled_from([(name, variant) for name, check in CHECKS.items() for variant in check.variants]).flatmap(
    lambda key: st.builds(
        lambda reason, figures: Result(
            *key, reason.result if reason else "passed", str(reason) if reason else "", figures
        ),
        st.sampled_from([None, *ReportReason]),
        st.dictionaries(st.sampled_from(sorted(FIGURES)), st.integers(0, 1 << 53), max_size=4),
    )
)


@given(st.lists(_RESULTS, max_size=20, unique_by=lambda each: (each.check, each.variant)))
def test_any_results_are_read_back(results: list[Result]) -> None:
    whole = ConformanceReport(WHOLE.made, WHOLE.kit, WHOLE.probe, WHOLE.environment, tuple(results))
    assert report.from_text(report.to_text(whole).encode()) == whole


def test_every_reason_is_a_failure_or_no_attempt_and_says_so() -> None:
    assert {reason.result for reason in ReportReason} == {FAILED, NOT_TRIED}
    assert [reason for reason in ReportReason if not reason.text or (reason.result == FAILED and not reason.cure)] == []
