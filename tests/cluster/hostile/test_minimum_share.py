"""
B2: a share of almost nothing, in a tenant's own request annotation or in a dialect's format, takes no slot on a card.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

import pytest

from contract import names
from contract.encoding import codec
from contract.model import FractionRequest, PodRequest
from playground import scenarios
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeError, KubeInvalid
from tests.builders import PodBuilder, pod
from tests.cluster.hostile.attack import TENANT, Hostile
from tests.cluster.hostile.replicas import asking

pytestmark = pytest.mark.hostile
REFUSED = "the smallest share of a GPU here"
MEMORY = "requests.gpufraction.io/gpu-memory"


def forged(
    name: str, *fractions: FractionRequest, dialect: str = "native", resources: dict[str, str] | None = None
) -> PodBuilder:
    """A pod that claims to have been admitted, with resources that match."""
    made = pod(name).annotated(names.REQUEST, codec.request_to_text(PodRequest(dialect, fractions)))
    for fraction in fractions:
        made = made.init(fraction.container) if fraction.init else made.container(fraction.container)
        amounts = resources or {
            names.GPU_MEMORY: str(fraction.memory * fraction.count),
            names.GPU_CORES: str(fraction.cores * fraction.count),
        }
        for resource, amount in amounts.items():
            if amount != "0":
                made = made.asks(resource, amount)
    return made


BYTE = FractionRequest("main", memory=1)
FORGED: dict[str, PodBuilder] = {
    "a byte": forged("p", BYTE),
    "a byte that waits": forged("p", BYTE).gated(),
    "a byte on every card": forged("p", dataclasses.replace(BYTE, count=64)),
    "a byte and all cores": forged("p", dataclasses.replace(BYTE, cores=100, exclusive=True)),
    "a byte of an init container": forged("p", dataclasses.replace(BYTE, container="first", init=True), BYTE),
    "a byte beside a share": forged("p", FractionRequest("main", memory=1 << 30), FractionRequest("side", memory=1)),
    "in another dialect's name": forged("p", BYTE, dialect="hami"),
    "in nobody's name": forged("p", BYTE, dialect="nobodys"),
    "one byte less than the least": forged("p", FractionRequest("main", memory=(1 << 20) - 1)),
}
DAMAGED: dict[str, PodBuilder] = {
    "another amount than its resources": forged(
        "p", FractionRequest("main", memory=1 << 30), resources={names.GPU_MEMORY: "1"}
    ),
    "no amount": forged("p", FractionRequest("main", memory=0)).asks(names.GPU_MEMORY, "1"),
    "a negative amount": forged("p", FractionRequest("main", memory=-1)).asks(names.GPU_MEMORY, "1"),
    "cards without end": forged("p", dataclasses.replace(BYTE, count=1 << 40)),
    "one container twice": forged("p", BYTE, BYTE),
    "a container that is not there": pod("p")
    .annotated(
        names.REQUEST, codec.request_to_text(PodRequest("native", (BYTE, dataclasses.replace(BYTE, container="x"))))
    )
    .asks(names.GPU_MEMORY, "1"),
    "amounts beside a claim": pod("p")
    .annotated(
        names.REQUEST,
        json.dumps({"v": 1, "dialect": "claims", "claim": "c", "containers": [{"name": "main", "count": 1}]}),
    )
    .asks(names.GPU_MEMORY, "1"),
}


@pytest.mark.parametrize("leads", [True, False], ids=["the leader is asked", "a follower is asked"])
def test_a_forged_share_of_next_to_nothing_is_refused(hostile: Hostile, leads: bool) -> None:
    with asking(hostile, leads=leads):
        for made in FORGED.values():
            with pytest.raises(KubeInvalid, match=REFUSED):
                hostile.create(made)
        for made in DAMAGED.values():
            with pytest.raises(KubeError):
                hostile.create(made)
    assert hostile.pods() == []


def test_a_quota_of_a_kibibyte_gives_no_place_on_any_card(hostile: Hostile) -> None:
    path = paths.path("v1", "resourcequotas", TENANT)
    hostile.kube.create(path, {"metadata": {"name": "tiny"}, "spec": {"hard": {MEMORY: "1Ki"}}})
    try:
        for number in range(8):
            with pytest.raises(KubeInvalid, match=REFUSED):
                hostile.create(forged(f"sharer-{number}", BYTE))
        with pytest.raises(KubeError, match="exceeded quota"):
            hostile.create(pod("least").asks(names.GPU_MEMORY, "1Mi"))
    finally:
        hostile.kube.delete(f"{path}/tiny")


@pytest.fixture
def strict(hostile: Hostile) -> Iterator[Hostile]:
    """An administrator's options that allow no share below 512 MiB and 5 percent."""
    options(hostile, "minMemory: 512Mi\nminPercent: 5")
    wait_for(lambda: not any(taken(hostile)), "the webhooks do not know the least share")
    yield hostile
    options(hostile, "")
    wait_for(lambda: all(taken(hostile)), "the webhooks still have a least share")


def options(hostile: Hostile, text: str) -> None:
    path = paths.configmaps(names.NAMESPACE, names.OPTIONS)
    hostile.kube.patch_merge(path, {"data": {names.OPTIONS_FILE: text}})


def taken(hostile: Hostile) -> list[bool]:
    """Whether a share of 511 MiB is admitted, asked often enough that each replica's webhook answers."""
    return [_admitted(hostile) for _ in range(6)]


def _admitted(hostile: Hostile) -> bool:
    try:
        hostile.create(BELOW["native"], dry_run=True)
    except KubeInvalid:
        return False
    return True


BELOW: dict[str, PodBuilder] = {
    "native": pod("p").asks("gpufraction.io/gpu-memory", "511Mi"),
    "native percent": pod("p").asks("gpufraction.io/gpu-percent", 4),
    "native cores": pod("p").asks("gpufraction.io/gpu-cores", 4),
    "hami": pod("p").asks("nvidia.com/gpu", 1).asks("nvidia.com/gpumem", 1),
    "hami, a card alone": pod("p").asks("nvidia.com/gpumem", 1).asks("nvidia.com/gpucores", 100),
    "hami percent": pod("p").asks("nvidia.com/gpumem-percentage", 1),
    "elastic": pod("p").asks("elasticgpu.io/gpu-memory", 1),
    "elastic cores": pod("p").asks("elasticgpu.io/gpu-core", 1),
    "nano": pod("p").asks("nano-gpu/gpu-percent", 4),
    "kai": pod("p").annotated("gpu-memory", "1").container("main"),
    "kai fraction": pod("p").annotated("gpu-fraction", "0.01").container("main"),
    "forged": forged("p", FractionRequest("main", memory=1 << 20)),
    "forged percent": forged("p", FractionRequest("main", percent=1)).gated(),
}


def test_the_administrators_least_share_holds_in_every_dialect(strict: Hostile) -> None:
    for made in BELOW.values():
        with pytest.raises(KubeInvalid, match=REFUSED):
            strict.create(made)
    assert strict.pods() == []
    strict.create(pod("enough").asks("gpufraction.io/gpu-memory", "512Mi"))
    strict.create(pod("part").asks("nvidia.com/gpumem-percentage", 5))
    scenarios.settled(strict.kube, 2, running=2)
