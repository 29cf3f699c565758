"""
A pod before any dialect reads it: its standard names, a replaced scheduler's name removed, or no pod of ours at all.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given

from contract.dialects import DIALECTS
from contract.dialects.base import Refusal
from contract.encoding.quantity import MIB
from contract.options import BadOption, Options, VgpuOptions, vgpu_options
from tests.builders import PodBuilder, pod
from tests.unit.contract.strategies import JSON

RENAMED = Options(resource_names=(("example.com/vgpu", "nvidia.com/gpu"), ("example.com/vmem", "nvidia.com/gpumem")))
VENDOR = Options(whole_gpus="vendor")
MINE = pod("p").asks("nvidia.com/gpu", 1).asks("nvidia.com/gpumem", 3000)
SCHEDULED = pod("p").annotated("gpu-fraction", "0.5")

STANDARD: dict[str, tuple[PodBuilder, Options, PodBuilder | None]] = {
    "a pod in standard names stays": (MINE, RENAMED, MINE),
    "other names become the standard ones": (
        pod("p").asks("example.com/vgpu", 1).asks("example.com/vmem", 3000),
        RENAMED,
        MINE,
    ),
    "whole cards are ours": (pod("p").asks("nvidia.com/gpu", 1), Options(), pod("p").asks("nvidia.com/gpu", 1)),
    "whole cards are the vendor's": (pod("p").asks("nvidia.com/gpu", 1), VENDOR, None),
    "a share of a card is ours all the same": (MINE, VENDOR, MINE),
    "whole cards under their own name are ours": (
        pod("p").asks("example.com/vgpu", 1),
        Options(whole_gpus="vendor", resource_names=RENAMED.resource_names),
        pod("p").asks("nvidia.com/gpu", 1),
    ),
    "another dialect is ours all the same": (
        pod("p").asks("nano-gpu/gpu-percent", 20),
        VENDOR,
        pod("p").asks("nano-gpu/gpu-percent", 20),
    ),
    "a scheduler that is gone": (
        SCHEDULED.spec(schedulerName="kai-scheduler"),
        Options(),
        SCHEDULED.spec(schedulerName="default-scheduler"),
    ),
    "a scheduler of somebody else": (
        SCHEDULED.spec(schedulerName="volcano"),
        Options(),
        SCHEDULED.spec(schedulerName="volcano"),
    ),
    "that scheduler's pods without a share": (
        pod("p").spec(schedulerName="kai-scheduler"),
        Options(),
        pod("p").spec(schedulerName="kai-scheduler"),
    ),
}


@pytest.mark.parametrize(("builder", "options", "wanted"), STANDARD.values(), ids=STANDARD.keys())
def test_standard(builder: PodBuilder, options: Options, wanted: PodBuilder | None) -> None:
    made = builder.json()
    before = copy.deepcopy(made)
    assert DIALECTS.normalise(made, options) == (None if wanted is None else wanted.json())
    assert made == before


def test_a_resource_under_both_names_is_not_guessed_at() -> None:
    both = pod("p").asks("nvidia.com/gpu", 1).asks("example.com/vgpu", 2).json()
    assert DIALECTS.normalise(both, RENAMED) == both


@given(JSON)
def test_whatever_stands_in_a_pods_place_is_left_as_it_is(value: Any) -> None:
    for made in ({"spec": value}, {"spec": {"containers": value}}, {"spec": {"containers": [{"resources": value}]}}):
        assert DIALECTS.normalise(made, RENAMED) == made


OPTIONS: dict[str, tuple[dict[str, Any], VgpuOptions]] = {
    "nothing": ({}, VgpuOptions()),
    "all, as a chart has them": (
        {
            "deviceSplitCount": 5,
            "deviceMemoryScaling": 1.5,
            "defaultMem": 5000,
            "defaultCores": 10,
            "disablecorelimit": "true",
            "migStrategy": "mixed",
            "resourceName": "example.com/vgpu",
            "resourceMem": "nvidia.com/gpumem",
        },
        VgpuOptions(
            5,
            1.5,
            5000 * MIB,
            10,
            True,
            "mixed",
            resource_names=(("example.com/vgpu", "nvidia.com/gpu"),),
        ),
    ),
    "all as text, as a ConfigMap has them": (
        {"deviceSplitCount": "5", "deviceMemoryScaling": "3.0", "disablecorelimit": "false"},
        VgpuOptions(5, 3.0, disable_core_limit=False),
    ),
    "a margin on each card": (
        {"reserveMem": 256, "reserveMemPercentage": "3"},
        VgpuOptions(reserve=256 * MIB, reserve_percent=3),
    ),
}


@pytest.mark.parametrize(("document", "wanted"), OPTIONS.values(), ids=OPTIONS.keys())
def test_options_by_the_names_of_the_older_charts(document: dict[str, Any], wanted: VgpuOptions) -> None:
    assert vgpu_options(document) == wanted


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a misspelt name": (
        {"deviceSplitcount": 5},
        "'deviceSplitcount': unknown; give one of aliyunUnit, coreOnlyMemory, defaultCores, defaultMem, ",
    ),
    "no sharers": ({"deviceSplitCount": 0}, "deviceSplitCount: found 0; give a whole number from 1 to 1024"),
    "cores beyond a card": ({"defaultCores": "101"}, "defaultCores: found '101'; give a whole number from 0 to 100"),
    "limits below the memory": ({"memoryLimitRatio": 0.5}, "found 0.5; give a number from 1 to 10"),
    "less memory than there is": ({"deviceMemoryScaling": 0.5}, "found 0.5; give a number from 1 to 10"),
    "no number": ({"deviceMemoryScaling": "much"}, "found 'much'; give a number from 1 to 10"),
    "neither true nor false": ({"disablecorelimit": "no"}, "found 'no'; give true or false"),
    "a strategy that is none": ({"migStrategy": "some"}, "found 'some'; give none, single, mixed"),
    "no name of a resource": (
        {"resourceName": "vgpu"},
        "found 'vgpu'; give a resource's name, such as nvidia.com/vgpu",
    ),
    "two resources of one name": ({"resourceName": "a/b", "resourceMem": "a/b"}, "give each its own name"),
}


@pytest.mark.parametrize(("document", "message"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_option_says_what_would_work(document: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption) as caught:
        vgpu_options(document)
    assert message in str(caught.value)


def test_the_part_that_is_about_reading() -> None:
    options = vgpu_options({"defaultMem": 5000, "defaultCores": 20, "resourceName": "example.com/vgpu"}).reading()
    assert options == Options(
        default_memory=5000 * MIB, default_cores=20, resource_names=(("example.com/vgpu", "nvidia.com/gpu"),)
    )
    made = DIALECTS.normalise(pod("p").asks("example.com/vgpu", 1).asks("nvidia.com/gpumem", "0.5").json(), options)
    assert isinstance(DIALECTS.read(made or {}, options), Refusal)
