"""Other webhooks after ours: what they add sees no GPU, and what they refuse leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from contract import names
from playground import scenarios
from playground.cluster import Cluster
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeError
from tests.builders import PodBuilder, pod
from tests.cluster.system import another, invariants

pytestmark = pytest.mark.system


@pytest.mark.parametrize("pin", ["auto", "affinity"])
def test_a_container_that_another_webhook_adds_sees_no_gpu(cluster: Cluster, pin: str) -> None:
    builder = pod("meshed").labelled("sidecar", "yes").asks("nano-gpu/gpu-percent", 20).annotated(names.PLACEMENT, pin)
    with another.registered(cluster.kube):
        # It takes a moment until every API server calls a new configuration.
        wait_for(
            lambda: len(_create(cluster, builder, dry_run=True)["spec"]["containers"]) == 2,
            "the other webhook is not called",
        )
        _create(cluster, builder)
    (found,) = scenarios.settled(cluster.kube, 1)
    assert [c["name"] for c in found["spec"]["containers"]] == ["main", "proxy"]
    assert len(scenarios.held(found)) == 1
    assert "GPU 0: Tesla T4" in scenarios.printed(cluster.kube, found, "main")
    proxy = scenarios.printed(cluster.kube, found, "proxy")
    assert f"NVIDIA_VISIBLE_DEVICES={names.NO_DEVICES}" in proxy.splitlines()
    assert "UUID" not in proxy


@pytest.mark.parametrize("pin", ["auto", "affinity"])
def test_a_native_sidecar_that_another_webhook_adds_sees_no_gpu(cluster: Cluster, pin: str) -> None:
    builder = pod("meshed").labelled("native", "yes").asks("aliyun.com/gpu-mem", 2).annotated(names.PLACEMENT, pin)
    with another.registered(cluster.kube, another.adding_a_native_sidecar, label="native"):
        wait_for(
            lambda: "initContainers" in _create(cluster, builder, dry_run=True)["spec"],
            "the other webhook is not called",
        )
        _create(cluster, builder)
    (found,) = scenarios.settled(cluster.kube, 1)
    assert [c["name"] for c in found["spec"]["initContainers"]] == ["proxy"]
    assert len(scenarios.held(found)) == 1
    env = {each["name"]: each.get("value") for each in found["spec"]["initContainers"][0]["env"]}
    assert env[names.VISIBLE_DEVICES] == names.NO_DEVICES
    assert "GPU 0: Tesla T4" in scenarios.printed(cluster.kube, found, "main")
    invariants.check(cluster)


@pytest.mark.parametrize("pin", ["auto", "affinity"])
def test_a_container_that_another_webhook_adds_in_the_same_dialect_gets_a_share(cluster: Cluster, pin: str) -> None:
    builder = pod("both").labelled("asking", "yes").asks("aliyun.com/gpu-mem", 2).annotated(names.PLACEMENT, pin)
    with another.registered(
        cluster.kube, another.adding_a_container_that_asks("aliyun.com/gpu-mem", "1"), label="asking"
    ):
        wait_for(
            lambda: len(_create(cluster, builder, dry_run=True)["spec"]["containers"]) == 2,
            "the other webhook is not called",
        )
        _create(cluster, builder)
    (found,) = scenarios.settled(cluster.kube, 1, running=1)
    limits = {each["name"]: each["resources"]["limits"]["gpufraction.io/gpu-memory"] for each in _containers(found)}
    assert limits == {"main": "2Gi", "proxy": "1Gi"}
    assert len(scenarios.held(found)) == 1
    invariants.check(cluster)


def test_one_that_asks_in_another_dialect_is_refused_with_both_names(cluster: Cluster) -> None:
    builder = pod("both").labelled("asking", "yes").asks("aliyun.com/gpu-mem", 2)
    with another.registered(cluster.kube, another.adding_a_container_that_asks("nvidia.com/gpu", "1"), label="asking"):
        wait_for(
            lambda: (
                "found HAMi (nvidia.com/gpu) of container proxy, together with Aliyun gpushare of container main"
                in _refusal(cluster, builder, dry_run=True)
            ),
            lambda: _refusal(cluster, builder, dry_run=True),
        )
        assert "use one dialect" in _refusal(cluster, builder)
    invariants.check(cluster)


def _containers(found: dict[str, Any]) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = found["spec"]["containers"]
    return listed


@pytest.fixture
def refusing(cluster: Cluster) -> Iterator[None]:
    """A policy that refuses labelled pods after we have reserved a share for them."""
    with another.registered(cluster.kube, another.refusing, label="refused"):
        wait_for(
            lambda: "not today" in _refusal(cluster, refused("probe"), dry_run=True),
            "the other webhook is not called",
        )
        yield


@pytest.mark.usefixtures("refusing")
def test_what_another_webhook_refuses_holds_its_share_for_a_moment_only(cluster: Cluster) -> None:
    taken = [_refusal(cluster, refused(f"refused-{number}")) for number in range(4)]
    assert ["not today" in message for message in taken] == [True] * 4
    # There is room for two, reserved by refused pods: these wait until that has expired.
    for number in range(2):
        _create(cluster, t4(f"taken-{number}"))
    found = scenarios.settled(cluster.kube, 2, running=2)
    assert len({uuid for each in found for uuid in scenarios.held(each)}) == 2
    invariants.check(cluster)


def test_nor_does_it_where_the_other_webhook_is_not_there(cluster: Cluster) -> None:
    def expired(request: dict[str, Any]) -> dict[str, Any]:
        raise ConnectionAbortedError

    with another.registered(cluster.kube, expired, label="refused"):
        wait_for(
            lambda: "failed calling webhook" in _refusal(cluster, refused("probe"), dry_run=True),
            "the other webhook is not called",
        )
        for number in range(2):
            assert "failed calling webhook" in _refusal(cluster, refused(f"refused-{number}"))
    for number in range(2):
        _create(cluster, t4(f"taken-{number}"))
    scenarios.settled(cluster.kube, 2, running=2)
    invariants.check(cluster)


def t4(name: str) -> PodBuilder:
    """A pod that goes to the T4 node and takes more than half of one of its two cards."""
    return pod(name).asks("gpufraction.io/gpu-memory", "10000Mi").spec(nodeSelector={"gpushare": "true"})


def refused(name: str) -> PodBuilder:
    """The same pod, which the other webhook refuses."""
    return t4(name).labelled("refused", "yes")


def _refusal(cluster: Cluster, builder: PodBuilder, *, dry_run: bool = False) -> str:
    """Why it was refused; empty if it was created."""
    try:
        _create(cluster, builder, dry_run=dry_run)
    except KubeError as error:
        return str(error)
    return ""


def _create(cluster: Cluster, builder: PodBuilder, *, dry_run: bool = False) -> dict[str, Any]:
    manifest = builder.manifest()
    return cluster.kube.create(paths.pods("default"), manifest, {"dryRun": "All"} if dry_run else None)
