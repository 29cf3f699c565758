"""A finding in each output format."""

from __future__ import annotations

from kubectl_gpufraction.check.findings import (
    FAIL,
    OK,
    UNKNOWN,
    WARN,
    Finding,
    Unseen,
    by_cause,
    first_to_fix,
    in_table,
    row,
    summary,
    unknown,
)


def test_a_table_has_one_line_a_finding_and_programs_have_the_cure_apart() -> None:
    fails = Finding(FAIL, "policies", "not there: x", "kubectl apply -k YOUR_KUSTOMIZATION")
    assert in_table(fails)["found"] == "not there: x; cure: kubectl apply -k YOUR_KUSTOMIZATION"
    assert row(fails) == {
        "result": "FAIL",
        "check": "policies",
        "found": "not there: x",
        "cure": "kubectl apply -k YOUR_KUSTOMIZATION",
    }


def test_of_several_failures_the_cause_comes_first() -> None:
    effects = [
        Finding(FAIL, "dry-run", "no answer", "see"),
        Finding(OK, "leader", "a leads"),
        Finding(FAIL, "gpus", "none"),
    ]
    cause = Finding(FAIL, "certificates", "the authority has expired", "kubectl logs x")
    found = [Finding(WARN, "image", "local"), *effects, cause]
    assert [each.check for each in by_cause(found)] == ["certificates", "dry-run", "gpus", "image", "leader"]
    first = "Fix this one first, since it may cause others: certificates: the authority has expired"
    assert first_to_fix(found) == [first, "    kubectl logs x", ""]
    assert first_to_fix([cause]) == [], "of one failure there is nothing to choose"


def test_what_is_well_has_a_next_step_and_no_cure() -> None:
    assert in_table(Finding(OK, "installation", "not yet", "kubectl apply"))["found"] == "not yet; next: kubectl apply"
    assert in_table(Finding(OK, "leader", "a leads"))["found"] == "a leads"
    assert row(Finding(OK, "leader", "a leads"))["cure"] is None


def test_the_summary_begins_with_what_is_worst() -> None:
    levels = (OK, OK, WARN, UNKNOWN, FAIL)
    assert summary([Finding(level, "x", "") for level in levels]) == "1 FAIL, 1 WARN, 1 UNKNOWN, 2 OK"
    assert summary([Finding(OK, "x", "")]) == "1 OK"


def test_the_first_fact_that_is_unseen_makes_a_finding_unknown() -> None:
    assert unknown("x", (), Unseen("you may not list nodes"), Unseen("other")) == Finding(
        UNKNOWN, "x", "unknown: you may not list nodes"
    )
    assert unknown("x", (), None, {}) is None
