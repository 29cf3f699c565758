"""What kube-scheduler refused is remembered for later pods, for a limited time and up to a limited number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.cache.refusals import LASTS, MOST, MOST_IN_ALL, Refusals, family_of, words
from contract.reasons.nodes import Code, Reason, of_one
from contract.scheduling.clusterfilters.objects import NO_RULES, PodRules, PodVolume

FAMILIES = {
    "a controller's pods": ("ns/web-1", "rs", NO_RULES, "ns/rs"),
    "a pod that somebody creates again by its name": ("ns/web", "", NO_RULES, "ns/web"),
    "neither a name nor a controller": ("ns/", "", NO_RULES, ""),
    "each claim of a StatefulSet for itself": ("ns/db-0", "sts", PodRules(volumes=(PodVolume("data-db-0"),)), None),
    "a volume made for each pod": ("ns/web-1", "rs", PodRules(volumes=(PodVolume("web-1-tmp", True),)), "ns/rs"),
}
WORDS = {
    "what is said of the pinned node": (
        "0/3 nodes are available: 1 Insufficient example.com/fpga, 2 node(s) didn't match Pod's node affinity/selector"
        ". preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.",
        "1 Insufficient example.com/fpga",
    ),
    "newer words of the pin": (
        "0/2 nodes are available: 1 node(s) need a licence, 1 node(s) didn't satisfy plugin(s) [NodeAffinity].",
        "1 node(s) need a licence",
    ),
    "a reason of all nodes alike": (
        "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found",
        "pod has unbound immediate PersistentVolumeClaims",
    ),
    "nothing but the pin": (
        "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.",
        "1 node(s) didn't match Pod's node affinity/selector",
    ),
    "another scheduler's words": ("queue research is closed", "queue research is closed"),
    "no words": ("", ""),
}


@pytest.mark.parametrize("case", FAMILIES.values(), ids=FAMILIES.keys())
def test_pods_of_one_family(case: tuple[str, str, PodRules, str | None]) -> None:
    key, owner, rules, want = case
    assert family_of(key, owner, rules) == ("ns/sts/data-db-0" if want is None else want)


@pytest.mark.parametrize("case", WORDS.values(), ids=WORDS.keys())
def test_the_words_of_the_one_node(case: tuple[str, str]) -> None:
    assert words(case[0]) == case[1]


@given(st.text(max_size=200))
def test_words_are_one_bounded_line_for_any_message(message: str) -> None:
    found = words(message)
    assert len(found.encode()) <= 120
    assert found.isprintable()


def test_a_refusal_is_of_one_family_and_node_and_expires() -> None:
    known = Refusals()
    known.learn("ns/rs", "n1", "queue full", 100.0)
    known.learn("", "n1", "queue full", 100.0)
    want = {"n1": Reason(Code.REFUSED_BY_SCHEDULER, what="queue full")}
    assert (known.of("ns/rs"), known.of("ns/other"), known.of("")) == (want, {}, {})
    assert of_one(want["n1"]) == "that kube-scheduler refused (queue full)"
    assert (known.expire(100.0 + LASTS - 1), len(known)) == (False, 1)
    assert (known.expire(100.0 + LASTS), len(known), known.of("ns/rs")) == (True, 0, {})


def test_what_is_refused_again_counts_from_then_on() -> None:
    known = Refusals()
    known.learn("ns/rs", "n1", "before", 100.0)
    known.learn("ns/rs", "n1", "after", 200.0)
    known.expire(100.0 + LASTS)
    assert known.of("ns/rs") == {"n1": Reason(Code.REFUSED_BY_SCHEDULER, what="after")}


def test_a_namespace_forgets_its_own_oldest_and_nobody_elses() -> None:
    known = Refusals()
    known.learn("other/rs", "n", "x", 0.0)
    for number in range(MOST + 1):
        known.learn(f"ns/{number}", "n", "x", 1.0 + number)
    assert (known.of("ns/0"), len(known)) == ({}, MOST + 1)
    assert all(known.of(f"ns/{number}") for number in range(1, MOST + 1))
    assert known.of("other/rs")


def test_all_namespaces_together_are_bounded() -> None:
    known = Refusals()
    for number in range(MOST_IN_ALL + 10):
        known.learn(f"ns-{number}/rs", "n", "x", float(number))
    assert (len(known), known.of("ns-9/rs"), bool(known.of("ns-10/rs"))) == (MOST_IN_ALL, {}, True)
