"""Annotations that look like ours: an annotation that nothing reads is reported, with the intended name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract import names
from contract.dialects import DIALECTS
from contract.dialects.base import Refusal
from contract.dialects.spelling import Known, Spelling
from contract.dialects.unread import unread_annotations
from contract.model import PodRequest
from tests.builders import PodBuilder, pod

KNOWN = Known(DIALECTS.resources)
CASES: dict[str, tuple[str, str]] = {
    "a letter too few": ("gpufraction.io/gpu-model", "did you mean gpufraction.io/gpu-models?"),
    "a letter too many": ("gpufraction.io/node-policyy", "did you mean gpufraction.io/node-policy?"),
    "nothing near": ("gpufraction.io/x", "remove it"),
    "a resource": ("gpufraction.io/gpu-memory", "put the amount under resources.limits of a container"),
}
READ = (
    "gpufraction.io/gpu-models",
    "gpufraction.io/gpu-models.main",
    "gpufraction.io/placement",
    "gpufraction.io/allocation",
    "gpufraction.io/devices.main",
    "example.com/gpu-model",
    "gpufraction.io.example.com/x",
)


@pytest.mark.parametrize(("annotation", "cure"), CASES.values(), ids=CASES.keys())
def test_what_nothing_reads_is_reported(annotation: str, cure: str) -> None:
    assert list(unread_annotations([annotation])) == [f"metadata.annotations[{annotation}]: nothing reads it; {cure}"]


def test_what_is_read_or_not_ours_is_not_reported() -> None:
    assert list(unread_annotations(READ)) == []


@pytest.mark.parametrize(
    ("resource", "amount"),
    [("gpufraction.io/gpu-memory", "8Gi"), ("aliyun.com/gpu-mem", 8), ("nano-gpu/gpu-percent", 8)],
)
def test_it_is_reported_in_every_dialect(resource: str, amount: str | int) -> None:
    request = DIALECTS.read(pod("p").asks(resource, amount).annotated("gpufraction.io/gpu-model", "V100").json())
    assert isinstance(request, PodRequest)
    assert request.warnings == tuple(unread_annotations(["gpufraction.io/gpu-model"]))


def test_a_name_of_megabytes_is_not_repeated() -> None:
    (warnings,) = unread_annotations([f"{names.GROUP}/{'x' * 2_000_000}"])
    assert len(warnings) < 200


# -- the older systems' names -------------------------------------------------------------------------------------

MEANT = {
    "nvidia.com/gpu-mem": "nvidia.com/gpumem",
    "nvidia.com/gpuMem": "nvidia.com/gpumem",
    "nvidia.com/gpumemory": "nvidia.com/gpumem",
    "nvidia.com/gpu-memory": "nvidia.com/gpumem",
    "nvidia.com/gpumen": "nvidia.com/gpumem",
    "nvidia.com/gpu-mem-percentage": "nvidia.com/gpumem-percentage",
    "nvidia.com/gpumem-precentage": "nvidia.com/gpumem-percentage",
    "nvidia.com/gpu-cores": "nvidia.com/gpucores",
    "nvidia.com/gpucore": "nvidia.com/gpucores",
    "nvidia.com/gpus": "nvidia.com/gpu",
    "nvidia.com/GPU": "nvidia.com/gpu",
    "aliyun.com/gpumem": "aliyun.com/gpu-mem",
    "aliyun.com/gpu-memory": "aliyun.com/gpu-mem",
    "aliyun.com/gpu_count": "aliyun.com/gpu-count",
    "aliyun.com/gpu-core": "aliyun.com/gpu-core.percentage",
    "elasticgpu.io/gpu-cores": "elasticgpu.io/gpu-core",
    "elasticgpu.com/gpu-mem": "elasticgpu.com/gpu-memory",
    "nano-gpu/gpu-percentage": "nano-gpu/gpu-percent",
    "nano-gpu/gpu-pecrent": "nano-gpu/gpu-percent",
    "elastic-gpu/gpupercent": "elastic-gpu/gpu-percent",
    "gpufraction.io/gpu-mem": "gpufraction.io/gpu-memory",
    "gpufraction.io/gpu-percentage": "gpufraction.io/gpu-percent",
}
OTHERS = (
    "cpu",
    "memory",
    "hugepages-2Mi",
    "ephemeral-storage",
    "amd.com/gpu",
    "intel.com/gpu",
    "gpu.intel.com/i915",
    "nvidia.com/gpu.shared",
    "nvidia.com/mig-1g.5gb",
    "nvidia.com/mig-3g.40gb",
    "nvidia.com/pgpu",
    "nvidia.com/vgpu",
    "nvidia.com/GRID_T4-1B",
    "nvidia.com/GP102GL_Tesla_P40",
    "nvidia.com/rdma_shared_device_a",
    "aliyun.com/ppu",
    "aliyun.com/gpu",
    "aliyun/eni",
    "elasticgpu.io/pgpu",
    "elasticgpu.io/qgpu-core",
    "elasticgpu.io/qgpu-memory",
    "tencent.com/vcuda-core",
    "huawei.com/Ascend910",
    "rdma/hca",
    "x" * 2_000_000,
    "nvidia.com/" + "g" * 2_000_000,
)


@pytest.mark.parametrize(("name", "wanted"), MEANT.items())
def test_a_near_miss_is_the_resource_that_was_meant(name: str, wanted: str) -> None:
    assert Spelling().suggest(name, KNOWN) == wanted


@pytest.mark.parametrize("name", sorted([*DIALECTS.resources, *OTHERS]), ids=lambda name: name[:40])
def test_known_names_and_other_vendors_are_no_near_misses(name: str) -> None:
    assert Spelling().suggest(name, KNOWN) is None


def unknown(resource: str, near: str) -> Refusal:
    return Refusal(f"spec.containers[0].resources.limits[{resource}]", "an unknown resource", f"did you mean {near}?")


BESIDE = {
    "a whole card would be held": (
        pod("p").asks("nvidia.com/gpu", 1).asks("nvidia.com/gpu-mem", 3000),
        unknown("nvidia.com/gpu-mem", "nvidia.com/gpumem"),
    ),
    "of another system": (
        pod("p").asks("nvidia.com/gpu", 1).asks("nano-gpu/gpu-percentage", 20),
        unknown("nano-gpu/gpu-percentage", "nano-gpu/gpu-percent"),
    ),
    "before the dialect misses it": (
        pod("p").asks("aliyun.com/gpu-count", 1).asks("aliyun.com/gpumem", 5),
        unknown("aliyun.com/gpumem", "aliyun.com/gpu-mem"),
    ),
    "in our own words": (
        pod("p").asks("gpufraction.io/gpu-count", 1).asks("gpufraction.io/gpu-mem", "8Gi"),
        unknown("gpufraction.io/gpu-mem", "gpufraction.io/gpu-memory"),
    ),
    "in our own words, near nothing": (
        pod("p").asks("gpufraction.io/gpu-count", 1).asks("gpufraction.io/x", "8Gi"),
        Refusal(
            "spec.containers[0].resources.limits[gpufraction.io/x]",
            "an unknown resource",
            "give one of gpufraction.io/gpu-memory, gpufraction.io/gpu-percent, gpufraction.io/gpu-cores, "
            "gpufraction.io/gpu-count, gpufraction.io/gpu-memory-limit, gpufraction.io/gpu-percent-limit",
        ),
    ),
}


@pytest.mark.parametrize(("made", "wanted"), BESIDE.values(), ids=BESIDE.keys())
def test_a_misspelt_resource_beside_a_share_is_refused(made: PodBuilder, wanted: Refusal) -> None:
    assert DIALECTS.read(made.json()) == wanted


def test_only_the_misspelt_resource_is_reported() -> None:
    made = pod("p").asks("nvidia.com/gpu-mem", 3000)
    assert DIALECTS.read(made.json()) is None
    assert DIALECTS.misspelt(made.json()) == (unknown("nvidia.com/gpu-mem", "nvidia.com/gpumem"),)
    assert DIALECTS.misspelt(pod("p").asks("nvidia.com/mig-1g.5gb", 1).json()) == ()


ELSEWHERE = {
    "an annotation of HAMi's": ("annotations", "nvidia.com/use-gpu-type", "did you mean nvidia.com/use-gputype?"),
    "another": ("annotations", "nvidia.com/use-gputypes", "did you mean nvidia.com/use-gputype?"),
    "a policy": ("annotations", "hami.io/gpu-schedule-policy", "did you mean hami.io/gpu-scheduler-policy?"),
    "a resource as an annotation": (
        "annotations",
        "nvidia.com/gpumem",
        "put the amount under resources.limits of a container",
    ),
    "a label of Aliyun's": ("labels", "aliyun.com/gpucount", "did you mean aliyun.com/gpu-count?"),
}


@pytest.mark.parametrize(("what", "key", "cure"), ELSEWHERE.values(), ids=ELSEWHERE.keys())
def test_a_misspelt_annotation_or_label_is_reported(what: str, key: str, cure: str) -> None:
    builder = pod("p").asks("nvidia.com/gpumem", 3000)
    builder = builder.annotated(key, "1") if what == "annotations" else builder.labelled(key, "1")
    request = DIALECTS.read(builder.json())
    assert isinstance(request, PodRequest)
    assert request.warnings == (f"metadata.{what}[{key}]: nothing reads it; {cure}",)


def test_annotations_that_others_write_are_not_reported() -> None:
    made = pod("p").asks("nvidia.com/gpumem", 3000)
    for key in ("hami.io/vgpu-node", "hami.io/bind-phase", "nvidia.com/vgpu-mode", "ALIYUN_COM_GPU_MEM_IDX", "team"):
        made = made.annotated(key, "1")
    request = DIALECTS.read(made.json())
    assert isinstance(request, PodRequest)
    assert request.warnings == ()


def test_a_share_with_too_many_unknown_resources_to_compare_is_refused() -> None:
    made = pod("p").asks("nvidia.com/gpu", 1)
    for number in range(100):
        made = made.asks(f"nvidia.com/g{number:03}mem", 1)
    refusal = DIALECTS.read(made.json())
    assert isinstance(refusal, Refusal)
    assert refusal.field == "spec.containers[].resources"


def test_of_very_many_unread_annotations_the_rest_is_counted() -> None:
    warnings = list(unread_annotations([f"{names.GROUP}/x{number:03}" for number in range(100)]))
    assert (len(warnings), warnings[-1]) == (
        17,
        "metadata.annotations: nothing reads 84 more of gpufraction.io; remove them",
    )


SLIPS = st.builds(
    lambda name, at, letter: name[: at % len(name)] + letter + name[at % len(name) + 1 :],
    st.sampled_from(sorted(KNOWN.names)),
    st.integers(0, 60),
    st.sampled_from(["", "q", "-", "/"]),
)


@given(st.lists(SLIPS | st.sampled_from(OTHERS), max_size=30), st.integers(0, 8), st.integers(0, 8))
def test_the_bounds_on_a_pods_names_hold_and_change_no_suggestion(made: list[str], looked_at: int, pairs: int) -> None:
    bounded, free = Spelling(most_names=looked_at, most_pairs=pairs), Spelling(most_names=999, most_pairs=9_999)
    for name in made:
        found = bounded.suggest(name, KNOWN)
        assert found == (None if bounded.exhausted else free.suggest(name, KNOWN))
        assert (bounded.looked_at <= looked_at, bounded.compared <= pairs) == (True, True)
