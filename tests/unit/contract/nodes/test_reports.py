"""What an agent reports about pods is read back as it was written; damaged or forged reports count as absent."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from contract.encoding.reading import is_uid
from contract.model import Allocation, ContainerAllocation, GpuShare
from contract.nodes.reports import (
    CODES,
    EVICTING,
    FIELD,
    MOST_REPORTS,
    PodReport,
    reports_from_object,
    reports_to_status,
    words,
)
from contract.reasons.pods import PodEventReason

MIB = 1 << 20
ONE = PodReport(1_700_000_000, "uid-1", PodEventReason.MEMORY_OVERUSE, 0, "GPU-1", 110 * MIB, evict=True)
SHARE = GpuShare("GPU-1", 0, 100 * MIB, 0, 1 << 34)
ALLOCATION = Allocation("a", "n1", (ContainerAllocation("main", (SHARE,)), ContainerAllocation("side", ())))

codes = st.sampled_from(CODES)
reported = st.builds(
    PodReport,
    since=st.integers(0, 4_000_000_000),
    pod=st.from_regex(r"[a-f0-9]{8}", fullmatch=True),
    code=codes,
    container=st.integers(0, 8),
    gpu=st.from_regex(r"GPU-[a-f0-9]{4}", fullmatch=True),
    used=st.integers(0, 1 << 40),
    others=st.integers(0, 1 << 40),
    evict_after=st.integers(0, 1 << 20),
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | codes,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)
fields = st.sampled_from(("pod", "code", "container", "gpu", "since", "usedBytes", "evict", "evictAfterSeconds"))


def published(found: Any) -> dict[str, Any]:
    return {"metadata": {"name": "n1"}, "status": {FIELD: found}}


@given(st.frozensets(reported, max_size=12))
def test_reports_are_read_as_they_were_written(reports: frozenset[PodReport]) -> None:
    unique = {(each.pod, each.code, each.container, each.gpu): each for each in sorted(reports, reverse=True)}
    document = published(json.loads(json.dumps(reports_to_status(unique.values()))))
    assert reports_from_object(document) == tuple(sorted(unique.values()))


@given(anything | st.lists(anything), st.lists(st.dictionaries(fields, anything), max_size=6))
def test_no_text_of_an_agent_is_read_as_anything_but_a_report(noise: Any, forged: Any) -> None:
    for document in (noise, {"status": noise}, published(noise), published(forged)):
        for each in reports_from_object(document):
            assert each.code in CODES
            assert is_uid(each.pod)
            assert each.code in EVICTING or not each.evict


def test_a_node_reports_so_many_pods_and_each_once() -> None:
    many = [replace(ONE, pod=f"uid-{number}") for number in range(MOST_REPORTS + 50)]
    found = reports_to_status(many)
    assert found is not None
    assert (len(found), len(reports_from_object(published([*found, *found])))) == (MOST_REPORTS, MOST_REPORTS)


FORGED: dict[str, dict[str, Any]] = {
    "a reason of its own": {"code": "Evicted"},
    "an eviction for a fault that has none": {"code": "MPSFault", "evict": True},
    "a pod's name in place of its uid": {"pod": "team/p\n"},
    "more memory than there is": {"usedBytes": 1 << 60},
    "no container": {"container": -1},
    "a list of GPUs": {"gpu": "GPU-1,GPU-2"},
    "all GPUs": {"gpu": "all"},
    "no time": {"since": "now"},
}


def test_a_forged_field_makes_the_report_absent() -> None:
    [document] = reports_to_status([ONE]) or []
    assert reports_from_object(published([document])) == (ONE,)
    assert {why: reports_from_object(published([{**document, **forged}])) for why, forged in FORGED.items()} == (
        dict.fromkeys(FORGED, ())
    )


USES = "container main uses 110 MiB of GPU GPU-1"
THEN = "; the pod is evicted as soon as its disruption budgets allow it"


def test_the_words_have_the_allocations_figures() -> None:
    limited = replace(SHARE, memory=20 * MIB, burst=80 * MIB)
    threat = replace(ONE, evict=False, evict_after=60)
    assert [
        words(ONE, "main", SHARE),
        words(threat, "main", SHARE),
        words(replace(ONE, evict=False, others=10 * MIB), "main", limited),
        words(replace(ONE, code=PodEventReason.MEMORY_PRESSURE, used=90 * MIB, evict=False), "main", limited),
        words(replace(ONE, code=PodEventReason.UNHEALTHY), "main", SHARE),
        words(replace(ONE, used=0, evict=False), "main", SHARE),
    ] == [
        f"{USES}, 10 MiB more than its share of 100 MiB{THEN}",
        f"{USES}, 10 MiB more than its share of 100 MiB; the pod is evicted if this continues for 60 s",
        f"{USES} and the others of its claim 10 MiB, 20 MiB more than its memory limit of 100 MiB",
        "container main uses 90 MiB of GPU GPU-1, 70 MiB more than its booked 20 MiB, and the GPU is full "
        "while other pods on it have less than they booked",
        f"GPU GPU-1 is unhealthy, as the agent of its node reports{THEN}",
        "container main uses 0 MiB of GPU GPU-1, 0 MiB more than its share of 100 MiB",
    ]


def test_a_report_is_about_a_share_of_the_allocation_or_about_none() -> None:
    about = [ONE, replace(ONE, container=1), replace(ONE, container=7), replace(ONE, gpu="GPU-2")]
    assert [each.share(ALLOCATION) for each in about] == [SHARE, None, None, None]
