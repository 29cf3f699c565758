"""
A node moves to upstream's driver and back while pods run, with the commands that docs/upstream.md gives an
administrator.

The driver itself is simulated: its DeviceClass and ResourceSlice are written here. On the real control plane
kube-scheduler allocates upstream's claim. The embedded one has no ResourceSlices and allocates nothing, so there the
test allocates the claim.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from contract import names, pods
from contract.encoding import resourceclaims
from playground import scenarios
from playground.cluster import Cluster
from playground.realapi.real import Real
from playground.shapes import gpu_node
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeNotFound
from tests.cluster.acceptance.guides import ROOT, Reader
from tests.cluster.system import invariants
from tests.clusters import allow_claims, control_planes

JSON = dict[str, Any]
pytestmark = [pytest.mark.system, pytest.mark.kubectl, pytest.mark.timeout(600)]
PAGE = (ROOT / "docs" / "upstream.md").read_text(encoding="utf-8")
SECTION = PAGE.split("### Move a pool to upstream's driver")[1].split("### ")[0]
LEAVES, STAYS = "leaves", "stays"
NODES = tuple(
    gpu_node(name, "1 x Tesla T4 15109MiB", labels={"pool": name}, address=f"10.0.0.1{at}")
    for at, name in enumerate((LEAVES, STAYS))
)
CLASS = "gpu.nvidia.com"
SHARE = {"deviceClassName": str(names.SHARE_CLASS), "capacity": {"requests": {"memory": "5Gi"}}}


@pytest.fixture(scope="module", params=control_planes(long=True, version="v1.36.2"))
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl on PATH")
    directory = tmp_path_factory.mktemp("upstream")
    with Cluster(
        directory=directory, nodes=NODES, components=("resourceclaims",), control_plane=request.param
    ) as running:
        allow_claims(running.kube)
        template(running, "share", SHARE)
        yield running


def typed() -> list[list[str]]:
    """The commands of the section, one list for each block."""
    blocks = re.findall(r"```console\n(.*?)```", SECTION, re.DOTALL)
    return [[line[2:] for line in block.splitlines()] for block in blocks]


def template(cluster: Cluster, name: str, exactly: JSON) -> None:
    body = {
        "apiVersion": resourceclaims.API,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}},
    }
    cluster.kube.create(paths.resourceclaimtemplates("default"), body)


def create(cluster: Cluster, name: str, of: str, pool: str = "") -> JSON:
    container = {"name": "main", "image": "cuda", "resources": {"claims": [{"name": "gpu"}]}}
    spec: JSON = {
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": of}],
        "containers": [container],
        **({"nodeSelector": {"pool": pool}} if pool else {}),
    }
    body: JSON = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    return cluster.kube.create(paths.pods("default"), body, timeout=60)


def found(cluster: Cluster, name: str) -> JSON:
    return cluster.kube.get(paths.pods("default", name))


def run(cluster: Cluster, name: str) -> JSON:
    wait_for(lambda: scenarios.is_running(found(cluster, name)), lambda: f"{found(cluster, name)['status']}", 60)
    return found(cluster, name)


def driver_starts(cluster: Cluster, node: str) -> None:
    """Write what upstream's driver publishes about a node's card, as NVIDIA's driver does in its mode `memory`."""
    selector = {"cel": {"expression": f"device.driver == '{CLASS}'"}}
    about = {"apiVersion": resourceclaims.API, "kind": "DeviceClass", "metadata": {"name": CLASS}}
    cluster.kube.create(paths.path(resourceclaims.API, "deviceclasses"), {**about, "spec": {"selectors": [selector]}})
    device = {"name": "gpu-0", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "15Gi"}}}
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    cluster.kube.create(
        paths.path(resourceclaims.API, "resourceslices"),
        {
            "apiVersion": resourceclaims.API,
            "kind": "ResourceSlice",
            "metadata": {"name": f"{node}-gpus"},
            "spec": {"driver": CLASS, "nodeName": node, "pool": pool, "devices": [device]},
        },
    )


def claim_of(cluster: Cluster, name: str) -> JSON | None:
    uid, listed = pods.uid(found(cluster, name)), cluster.kube.list(paths.resourceclaims("default")).items
    return next((each for each in listed if resourceclaims.owner_uid(each) == uid), None)


def allocate(cluster: Cluster, name: str, node: str) -> None:
    """Replaces kube-scheduler's allocator, which the embedded scheduler does not have."""
    wait_for(lambda: claim_of(cluster, name) is not None, "no claim is made", 30)
    claim = claim_of(cluster, name)
    assert claim is not None
    there = {"key": "metadata.name", "operator": "In", "values": [node]}
    result = {"request": "gpu", "driver": CLASS, "pool": node, "device": "gpu-0"}
    status = {
        "allocation": {
            "devices": {"results": [result]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [there]}]},
        },
        "reservedFor": [{"resource": "pods", "name": name, "uid": pods.uid(found(cluster, name))}],
    }
    path = paths.resourceclaims("default", claim["metadata"]["name"], "status")
    cluster.kube.patch_merge(path, {"status": status})


def gone(cluster: Cluster, name: str) -> bool:
    try:
        found(cluster, name)
    except KubeNotFound:
        return True
    return False


def end(cluster: Cluster, name: str) -> None:
    cluster.kube.delete(paths.pods("default", name), {"gracePeriodSeconds": 0})
    wait_for(lambda: gone(cluster, name), f"{name} does not end", 60)


def test_a_node_goes_to_upstreams_driver_and_back_while_pods_run(cluster: Cluster, tmp_path: Path) -> None:
    reader = Reader(cluster.kubeconfig, tmp_path, node=LEAVES)
    (cordon, look, label), back = typed()
    for pool in (LEAVES, STAYS):
        create(cluster, f"on-{pool}", "share", pool)
    running = [run(cluster, f"on-{pool}") for pool in (LEAVES, STAYS)]
    reader.types(cordon)

    def cordoned() -> bool:
        node = cluster.kube.get(paths.gpunodes(LEAVES))
        return "Cordoned" in str(node["status"]["gpus"])

    wait_for(cordoned, "the agent does not see it", 30)
    assert "on-leaves" in reader.types(look)
    create(cluster, "later", "share")
    assert run(cluster, "later")["spec"]["nodeName"] == STAYS
    for before in running:
        after = found(cluster, before["metadata"]["name"])
        assert (pods.uid(after), scenarios.is_running(after)) == (pods.uid(before), True)
    invariants.check(cluster)

    end(cluster, "on-leaves")
    wait_for(lambda: "on-leaves" not in reader.types(look), "the card is not empty", 180)
    reader.types(label)
    if isinstance(cluster.control_plane, Real):
        driver_starts(cluster, LEAVES)
    (written,) = re.findall(r"```yaml\n(.*?)```", SECTION, re.DOTALL)
    cluster.kube.create(paths.resourceclaimtemplates("default"), yaml.safe_load(written))
    stored = create(cluster, "upstream", "gpu-8gi-upstream")
    assert not stored["spec"].get("schedulingGates")
    assert "limits" not in stored["spec"]["containers"][0]["resources"]
    if not isinstance(cluster.control_plane, Real):
        allocate(cluster, "upstream", LEAVES)
    wait_for(lambda: found(cluster, "upstream")["spec"].get("nodeName") == LEAVES, "it is not bound", 60)
    claim = claim_of(cluster, "upstream")
    assert claim is not None
    assert [each["driver"] for each in claim["status"]["allocation"]["devices"]["results"]] == [CLASS]
    assert scenarios.is_running(found(cluster, "on-stays"))

    create(cluster, "waits", "share", LEAVES)
    wait_for(lambda: scenarios.waits(found(cluster, "waits")), "it does not wait", 30)
    end(cluster, "upstream")
    for command in back:
        reader.types(command)
    assert run(cluster, "waits")["spec"]["nodeName"] == LEAVES
    invariants.check(cluster)
