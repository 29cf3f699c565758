"""
How monitors find out which container has which card: from the agent's figures, and from kubelet's PodResources.

dcgm-exporter reads the second. The first exists for every way of delivering cards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from contract import names
from contract.encoding import resourceclaims
from contract.metrics import nodeagent as specs
from playground.programs import scraping
from playground.programs.probes import free_port
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.cluster.realnode.cluster import NODE, UUIDS, RealNodeCluster, container
from tests.cluster.realnode.podresources import SOCKET, ContainerDevices, pod_resources
from tests.cluster.realnode.ways import Way

pytestmark = [pytest.mark.realnode, pytest.mark.timeout(600)]
SHARERS = (("two", "first"), ("two", "second"), ("mate", "c"))


@pytest.fixture
def sharing(real: RealNodeCluster, way: Way) -> RealNodeCluster:
    """A pod whose containers have shares of different cards, a pod that shares one of them, a pod without a share."""
    real.submit("two", container("first", gpu_memory="9Gi"), container("second", gpu_memory="9Gi"), container("none"))
    real.running("two")
    real.submit("mate", container(gpu_memory="4Gi"))
    real.submit("other", container())
    for name in ("mate", "other"):
        real.running(name)
    return real


@pytest.fixture
def figures(real: RealNodeCluster, way: Way) -> Iterator[Callable[[], str]]:
    """Reads the agent's figures. Afterwards the agent is as it was."""
    port = free_port()
    real.start_agent("--listen", f"127.0.0.1:{port}")
    yield lambda: scraping.scrape(port, real.cluster.scraper_token(), timeout=10)
    real.start_agent()


def cards(node: RealNodeCluster) -> dict[tuple[str, str], str]:
    """The card of each container that has one, from the container's own view."""
    found = {(pod, name): UUIDS[card] for pod, name in SHARERS for card in node.inside(pod, name).cards}
    assert found["two", "first"] != found["two", "second"]
    return found


def listed(node: RealNodeCluster) -> dict[tuple[str, str], ContainerDevices]:
    """What kubelet lists for the pods of this namespace."""
    link = node.folder / "pod-resources.sock"
    link.unlink(missing_ok=True)
    link.symlink_to(node.node.machine.path(SOCKET))
    return {key[1:]: value for key, value in pod_resources(Path(link)).items() if key[0] == "default"}


def shares(figures: Callable[[], str]) -> dict[tuple[str, str], str]:
    """The card of each container that has a share, from the agent's figures, with the card's UUID as DCGM writes it."""
    samples = (sample for family in text_string_to_metric_families(figures()) for sample in family.samples)
    return {
        (sample.labels["pod"], sample.labels["container"]): sample.labels["gpu"]
        for sample in samples
        if sample.name == specs.SHARE_MEMORY_REQUEST.name and sample.labels["namespace"] == "default"
    }


def test_monitors_find_the_card_of_each_container(
    figures: Callable[[], str], sharing: RealNodeCluster, way: Way
) -> None:
    """
    The agent's figures always show it. Kubelet lists devices of our driver or none, and never a device plugin's. It
    lists all devices of a claim for each container that uses a part of it, so it shows only the cards of a pod.
    """
    wanted = cards(sharing)
    wait_for(lambda: shares(figures) == wanted, lambda: f"{shares(figures)} in place of {wanted}")
    found = listed(sharing)
    assert {pod for pod, _ in found} == {"two", "mate", "other"}
    assert not any(devices.plugins for devices in found.values())
    if not way.label:
        assert not any(devices.claims for devices in found.values())
        return
    owners = {
        owner["name"]: claim["metadata"]["name"]
        for claim in sharing.kube.list(paths.resourceclaims()).items
        for owner in claim["metadata"]["ownerReferences"]
    }
    for pod, name in SHARERS:
        devices = found[pod, name].claims
        assert {(each.claim_namespace, each.claim) for each in devices} == {("default", owners[pod])}
        of_pod = {uuid for (owner, _), uuid in wanted.items() if owner == pod}
        assert {(each.driver, each.pool, each.device) for each in devices} == {
            (names.GROUP, NODE, resourceclaims.device_name(uuid)) for uuid in of_pod
        }
        assert {f"{way.kind}={uuid}" for uuid in of_pod} <= {cdi for each in devices for cdi in each.cdi}
    assert found["two", "none"] == found["other", "c"] == ContainerDevices()
