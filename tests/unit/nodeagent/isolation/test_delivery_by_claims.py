"""What a node publishes that should deliver by ResourceClaims: its label, kubelet's answer, what describes cards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from contract import names
from contract.model import Delivery, Inventory
from nodeagent.dra.delivery import ClaimDelivery
from nodeagent.isolation import delivery
from nodeagent.isolation.levels import Isolation
from nodeagent.isolation.mechanism import DeliveryWay, Handle
from nodeagent.isolation.probing import by_runtime

KIND = "nvidia.com/gpu"
BY_CLAIM = Delivery(("",), KIND, dra=True)
LABELS = {str(names.DELIVERY): names.BY_DRA}
SPEC = '{"kind": "%s", "devices": [{"name": "GPU-0"}]}'


@dataclass(frozen=True)
class Kubelet:
    registered: bool | None
    why: str = ""


@dataclass
class Found:
    """A prober that has found this."""

    found: Delivery | None
    kind: str | None = KIND

    def delivery(self, now: float) -> Delivery | None:
        return self.found


def enforced(found: Any, plugin: Kubelet | None, labels: dict[str, str] = LABELS) -> tuple[Delivery | None, list[str]]:
    """The published delivery, and the reasons of the conditions about it."""
    isolation = Isolation(Handle(), ways=[by_runtime(found), DeliveryWay(ClaimDelivery(plugin).conclude)])
    enforcement = isolation.enforce(Inventory("n"), 0.0, labels)
    return enforcement.delivery, [each.reason for each in enforcement.conditions if each.kind == delivery.CLAIMS]


@pytest.mark.parametrize(
    ("found", "plugin", "want", "reason"),
    [
        (Found(None), Kubelet(True), BY_CLAIM, "Registered"),
        (Found(None), Kubelet(None), BY_CLAIM, "NotRegisteredYet"),
        (Found(None), Kubelet(False, "too old"), delivery.NONE, "NotRegistered"),
        (Found(None), None, delivery.NONE, "NotRegistered"),
        (Found(None, None), Kubelet(True), delivery.NONE, "NoDescription"),
        (Found(Delivery(("nvidia",))), Kubelet(True), Delivery(("", "nvidia"), KIND, dra=True), "Registered"),
        (Found(delivery.NONE), Kubelet(True), BY_CLAIM, "Registered"),
    ],
)
def test_a_node_with_the_label(found: Found, plugin: Kubelet | None, want: Delivery, reason: str) -> None:
    assert enforced(found, plugin) == (want, [reason])


def test_the_condition_names_the_gpus_that_are_not_described() -> None:
    def message(*without: str) -> str:
        reasons = dict.fromkeys(without, "a file is missing")
        found, condition = delivery.by_claim(None, KIND, True, "", "", reasons)
        assert (found, condition.ready) == (BY_CLAIM, True)
        return condition.message

    assert message() == f"cards have the CDI kind {KIND}"
    assert message("MIG-2", "MIG-1") == (
        f"cards have the CDI kind {KIND}; MIG-1 is not described: a file is missing; "
        "MIG-2 is not described: a file is missing"
    )
    assert message(*(f"MIG-{n}" for n in range(7))).endswith("; 7 GPUs are not described in all")


@pytest.mark.parametrize("labels", [{}, {str(names.DELIVERY): "env"}])
def test_a_node_without_it_is_as_before(labels: dict[str, str]) -> None:
    assert enforced(Found(Delivery(("nvidia",))), Kubelet(True), labels) == (Delivery(("nvidia",)), [])


def test_the_setting_stands_for_the_label() -> None:
    override = delivery.parse(f"dra:{KIND}")
    assert override == BY_CLAIM
    assert enforced(Found(override), Kubelet(True), {}) == (BY_CLAIM, ["Registered"])


@pytest.mark.parametrize(
    ("kind", "usable"),
    [
        ("nvidia.com/gpu", "nvidia.com/gpu"),
        ("k8s.device-plugin.nvidia.com/gpu", "k8s.device-plugin.nvidia.com/gpu"),
        ("runtime.nvidia.com/gpu", None),
        ("management.nvidia.com/gpu", None),
    ],
)
def test_only_descriptions_that_any_runtime_can_use_count(kind: str, usable: str | None) -> None:
    assert delivery.described_kind({"etc/cdi/a.json": SPEC % kind}) == usable
