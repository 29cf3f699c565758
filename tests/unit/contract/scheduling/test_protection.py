"""The annotations against scale-down: ours come with a share and are removed with it, and the author's stay."""

from __future__ import annotations

import pytest

from contract.scheduling import protection

AUTOSCALER, KARPENTER = "cluster-autoscaler.kubernetes.io/safe-to-evict", "karpenter.sh/do-not-disrupt"
LIST = "gpufraction.io/protected"
BOTH = {AUTOSCALER: "false", KARPENTER: "true"}
CASES = {
    "none is there": ({}, {**BOTH, LIST: f"{AUTOSCALER},{KARPENTER}"}),
    "the author lets Cluster Autoscaler evict": ({AUTOSCALER: "true"}, {KARPENTER: "true", LIST: KARPENTER}),
    "the author wrote what we would": ({AUTOSCALER: "false"}, {KARPENTER: "true", LIST: KARPENTER}),
    "the author protects for an hour": ({KARPENTER: "1h"}, {AUTOSCALER: "false", LIST: AUTOSCALER}),
    "the author wrote both": ({AUTOSCALER: "on-completion", KARPENTER: "false"}, {}),
}


@pytest.mark.parametrize(("before", "want"), CASES.values(), ids=CASES.keys())
def test_what_is_written(before: dict[str, str], want: dict[str, str]) -> None:
    assert protection.added(before) == want


@pytest.mark.parametrize(("before", "want"), CASES.values(), ids=CASES.keys())
def test_a_second_pass_writes_the_same_and_the_end_leaves_what_was_there(
    before: dict[str, str], want: dict[str, str]
) -> None:
    both = {"team": "a", **before, **want}
    assert protection.added(both) == want
    assert protection.without(both) == {"team": "a", **before}


def test_one_that_was_changed_since_is_the_changers() -> None:
    changed = {**BOTH, LIST: f"{AUTOSCALER},{KARPENTER}", AUTOSCALER: "true"}
    assert protection.without(changed) == {AUTOSCALER: "true"}
    assert protection.added(changed) == {KARPENTER: "true", LIST: KARPENTER}


def test_a_forged_list_names_nothing_but_these_two() -> None:
    forged = {LIST: "example.com/important, gpufraction.io/allocation", "example.com/important": "x", **BOTH}
    assert protection.written(forged) == (LIST,)
    assert protection.without(forged) == {"example.com/important": "x", **BOTH}
