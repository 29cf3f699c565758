"""Annotations against scale-down at admission: added with the share, in every dialect, and removed with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from contract.encoding.protocol import Placed
from tests.unit.webhook.builders import NOW_NS, WAIT, container, placed, pod, share
from tests.unit.webhook.settling import ASKS, JSON, admitted, settled
from webhook.admission.admit import Admit

AUTOSCALER, KARPENTER = "cluster-autoscaler.kubernetes.io/safe-to-evict", "karpenter.sh/do-not-disrupt"
LIST = "gpufraction.io/protected"
OURS = {AUTOSCALER: "false", KARPENTER: "true", LIST: f"{AUTOSCALER},{KARPENTER}"}
DIALECTS = {
    "native": container(gpufraction_io__gpu_memory="5Gi"),
    "percent": container(gpufraction_io__gpu_percent="20"),
    "aliyun": container(aliyun_com__gpu_mem="5"),
    "hami": container(nvidia_com__gpu="1", nvidia_com__gpumem="5120"),
    "elastic": container(elasticgpu_io__gpu_memory="5120"),
    "nano": {**container(), "resources": {"limits": {"nano-gpu/gpu-percent": "20"}}},
}


def answer(pin: str = "nodeName", *, protects: bool = True) -> Placed:
    return replace(placed(pin, main=(share(),)), protects=protects)


def shown(made: JSON, *, ours: bool = True) -> JSON:
    found = made["metadata"]["annotations"]
    return {key: value for key, value in found.items() if (key in OURS) == ours}


@pytest.mark.parametrize("pin", ["nodeName", "affinity"])
@pytest.mark.parametrize("asks", DIALECTS.values(), ids=DIALECTS.keys())
def test_a_placed_pod_has_them_and_a_second_pass_changes_nothing(asks: JSON, pin: str) -> None:
    made = pod(asks)
    once = admitted(made, answer(pin))
    assert shown(once) == OURS
    assert settled(once, answer(pin), NOW_NS + 5) == Admit(once)
    without = admitted(made, answer(pin, protects=False))
    assert (shown(without), shown(without, ours=False)) == ({}, shown(once, ours=False))


def test_what_the_author_wrote_stays() -> None:
    made = pod(ASKS, annotations={AUTOSCALER: "true"})
    once = admitted(made, answer())
    assert shown(once) == {AUTOSCALER: "true", KARPENTER: "true", LIST: KARPENTER}
    assert shown(admitted(once, WAIT)) == {AUTOSCALER: "true"}


def test_a_pod_that_must_wait_has_none() -> None:
    assert shown(admitted(pod(ASKS), WAIT)) == {}


def test_a_share_that_is_given_back_takes_them_along() -> None:
    once = admitted(pod(ASKS), answer())
    assert shown(admitted(once, WAIT)) == {}


def test_the_setting_switched_off_between_two_passes_takes_them_off() -> None:
    once = admitted(pod(ASKS), answer())
    assert shown(admitted(once, answer(protects=False))) == {}


def test_a_list_that_the_author_wrote_is_replaced() -> None:
    made = pod(ASKS, annotations={LIST: f"example.com/a,{AUTOSCALER}", "example.com/a": "b"})
    once = admitted(made, answer())
    assert shown(once) == OURS
    assert once["metadata"]["annotations"]["example.com/a"] == "b"
