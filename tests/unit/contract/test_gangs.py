"""Which pods start together, in the formats of other programs and of gpufraction; hostile text makes no gang."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract import gangs, names
from contract.dialects.base import Refusal
from contract.encoding import gangplans
from contract.encoding.reading import Malformed
from contract.gangs import GangKey, Membership, NoGang
from contract.model import Allocation, ContainerAllocation, GpuShare
from tests.builders import PodBuilder, pod

LWS = "leaderworkerset.sigs.k8s.io"
NAME, MINIMUM = str(names.GANG), str(names.GANG_MINIMUM)
WANTED = "a whole number from 1 to 256: how many pods of the gang start together"
NAMELESS = "nothing names the gang; add the annotation gpufraction.io/gang, or have a controller create the pods"


def worker() -> PodBuilder:
    return pod("w", "team")


def of(source: str, name: str, minimum: int) -> Membership:
    return Membership(GangKey("team", source, name), minimum)


READ: dict[str, tuple[PodBuilder, Membership | NoGang | None]] = {
    "a pod without any": (worker().labelled("app", "x"), None),
    "our own": (worker().annotated(NAME, "train").annotated(MINIMUM, "8"), of("annotation", "train", 8)),
    "our own goes before others": (
        worker().annotated(NAME, "train").annotated(MINIMUM, "8").labelled("jobset.sigs.k8s.io/jobset-name", "js"),
        of("annotation", "train", 8),
    ),
    "none": (
        worker().annotated(NAME, "none").labelled(f"{LWS}/name", "l").labelled(f"{LWS}/group-index", "0"),
        None,
    ),
    "one pod starts alone": (worker().annotated(NAME, "train").annotated(MINIMUM, "1"), None),
    "a pod group of Kubernetes": (
        worker().spec(schedulingGroup={"podGroupName": "pg"}).annotated(MINIMUM, "4"),
        of("schedulingGroup", "pg", 4),
    ),
    "a pod group of coscheduling": (
        worker().labelled("scheduling.x-k8s.io/pod-group", "pg").annotated(MINIMUM, "4"),
        of("pod-group", "pg", 4),
    ),
    "its older label": (
        worker()
        .labelled("pod-group.scheduling.sigs.k8s.io/name", "pg")
        .labelled("pod-group.scheduling.sigs.k8s.io/min-available", "3"),
        of("pod-group", "pg", 3),
    ),
    "a LeaderWorkerSet": (
        worker().labelled(f"{LWS}/name", "l").labelled(f"{LWS}/group-index", "2").annotated(f"{LWS}/size", "4"),
        of("LeaderWorkerSet", "l-2", 4),
    ),
    "the leader of a LeaderWorkerSet": (
        worker()
        .labelled(f"{LWS}/name", "l")
        .labelled(f"{LWS}/group-index", "2")
        .labelled(f"{LWS}/worker-index", "0")
        .annotated(f"{LWS}/size", "4"),
        Membership(GangKey("team", "LeaderWorkerSet", "l-2"), 4, leads=True),
    ),
    "the leader of a LeaderWorkerSet with a number of our own": (
        worker()
        .labelled(f"{LWS}/name", "l")
        .labelled(f"{LWS}/group-index", "2")
        .labelled(f"{LWS}/worker-index", "0")
        .annotated(MINIMUM, "4"),
        of("LeaderWorkerSet", "l-2", 4),
    ),
    "a JobSet": (
        worker().labelled("jobset.sigs.k8s.io/jobset-name", "js").annotated(MINIMUM, "4"),
        of("JobSet", "js", 4),
    ),
    "the pods of a Job": (worker().owned("Job", "j", "uid-j").annotated(MINIMUM, "4"), of("Job", "uid-j", 4)),
    "a JobSet without a number": (
        worker().labelled("jobset.sigs.k8s.io/jobset-name", "js"),
        NoGang("JobSet 'js' does not say how many pods start together; set gpufraction.io/gang-minimum"),
    ),
    "a size that is none": (
        worker().labelled(f"{LWS}/name", "l").labelled(f"{LWS}/group-index", "0").annotated(f"{LWS}/size", "1e9"),
        NoGang(f"metadata.annotations[{LWS}/size]: found '1e9'; {WANTED}"),
    ),
    "a number and no name": (
        worker().annotated(MINIMUM, "4"),
        NoGang(f"metadata.annotations[gpufraction.io/gang-minimum]: {NAMELESS}"),
    ),
}


@pytest.mark.parametrize(("written", "expected"), READ.values(), ids=READ.keys())
def test_a_gang_is_read_from_what_pods_have(written: PodBuilder, expected: Membership | NoGang | None) -> None:
    assert gangs.read(written.json()) == expected


REFUSED: dict[str, tuple[PodBuilder, Refusal | None]] = {
    "all is well": (worker().annotated(NAME, "train").annotated(MINIMUM, "8"), None),
    "another program's number is not ours to refuse": (
        worker().labelled(f"{LWS}/name", "l").labelled(f"{LWS}/group-index", "0").annotated(f"{LWS}/size", "no"),
        None,
    ),
    "a name that is none": (
        worker().annotated(NAME, "a/b").annotated(MINIMUM, "8"),
        Refusal(
            f"metadata.annotations[{NAME}]",
            "'a/b'",
            "a name of at most 63 of a-z, 0-9, - and ., the same for all pods of the gang; or none",
        ),
    ),
    "too many": (
        worker().annotated(NAME, "train").annotated(MINIMUM, "257"),
        Refusal(f"metadata.annotations[{MINIMUM}]", "'257'", WANTED),
    ),
    "a name without a number": (
        worker().annotated(NAME, "train"),
        Refusal(f"metadata.annotations[{MINIMUM}]", "nothing", WANTED),
    ),
    "a number without a name": (
        worker().annotated(MINIMUM, "2"),
        Refusal(f"metadata.annotations[{MINIMUM}]", "'2'", NAMELESS),
    ),
}


@pytest.mark.parametrize(("written", "expected"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_wrong_in_our_own_annotations_is_refused(written: PodBuilder, expected: Refusal | None) -> None:
    assert gangs.refused(written.json()) == expected


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)
WORDS = (NAME, MINIMUM, f"{LWS}/name", f"{LWS}/group-index", f"{LWS}/size", "scheduling.x-k8s.io/pod-group")


@given(values=st.dictionaries(st.sampled_from(WORDS), st.text(max_size=400), max_size=6), group=ANYTHING)
def test_no_text_makes_a_gang_beyond_the_bounds(values: dict[str, str], group: Any) -> None:
    metadata = {"namespace": "team", "annotations": values, "labels": values}
    found = gangs.read({"metadata": metadata, "spec": {"schedulingGroup": group}})
    if isinstance(found, Membership):
        assert found.key.namespace == "team"
        assert 2 <= found.minimum <= 256
        assert 0 < len(found.key.name) <= 70
        assert "/" not in found.key.name


SHARE = ContainerAllocation("main", (GpuShare("GPU-1", 0, 1 << 30, 10, 1 << 34),))


def test_a_plan_is_read_as_it_was_written() -> None:
    plan = {"uid-a": Allocation("id-1", "n1", (SHARE,)), "uid-b": Allocation("id-2", "n2", (SHARE,))}
    assert gangplans.from_text(gangplans.to_text(plan)) == plan


def test_a_plan_that_is_too_long_keeps_who_is_in_it() -> None:
    many = ContainerAllocation("main", tuple(GpuShare(f"GPU-{i:036}", i, 1 << 30, 10, 1 << 34) for i in range(16)))
    plan = {f"uid-{i}": Allocation(f"id-{i}", "n" * 200, (many,)) for i in range(200)}
    assert gangplans.from_text(gangplans.to_text(plan)) == dict.fromkeys(plan)


@given(text=st.text(max_size=100) | ANYTHING)
def test_any_other_text_is_malformed(text: object) -> None:
    with pytest.raises(Malformed):
        gangplans.from_text(text)
