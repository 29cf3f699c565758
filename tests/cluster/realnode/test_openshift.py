"""
Row 35 of the older systems' checklist: CRI-O, whose default runtime sees no GPU, and restricted pods.

OpenShift's own admission and SELinux are not tested here. Pod Security at its Restricted level is, which corresponds to
OpenShift's default constraints (`restricted-v2`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from contract import names
from contract.model import SHARE_KIND
from nodeagent.isolation.cdi import ISOLATION_VARIABLE
from nodeagent.isolation.preload import LIBRARY_IN_CONTAINER, PRELOAD_IN_CONTAINER
from playground import scenarios
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeForbidden
from tests.cluster.realnode.assets import node_assets
from tests.cluster.realnode.cluster import JSON, RealNodeCluster, container
from tests.cluster.realnode.crio import Crio
from tests.cluster.realnode.inside import Inside
from tests.cluster.realnode.test_container_view import NOTHING, share
from tests.cluster.realnode.ways import WAYS
from tests.cluster.system import invariants

pytestmark = [pytest.mark.realnode, pytest.mark.timeout(600)]
_FOUND = node_assets(os.environ, Crio.needs)
if isinstance(_FOUND, str):
    pytestmark.append(pytest.mark.skip(reason=f"row 35: {_FOUND}"))
ALIYUN = "aliyun.com/gpu-mem"
MACHINES = {"x86_64": 62, "aarch64": 183}
_USR = "find /usr -xdev -printf '%p %y %s %m %U %T@\\n' | sort | sha256sum"
_PRELOAD = "/var/lib/gpufraction/preload"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNodeCluster]:
    """As in the OpenShift overlay: pods with a share get the RuntimeClass, and the agent may see its node."""
    assert not isinstance(_FOUND, str)
    settings = {"webhook": ["--runtime-class=nvidia"]}
    folder = tmp_path_factory.mktemp("openshift")
    way = replace(WAYS["cdi"], pod={})
    made = RealNodeCluster(_FOUND, Crio, folder, settings=settings, way=way)
    try:
        made.start()
        level = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
        made.kube.patch_merge(paths.path("v1", "namespaces", name="default"), level)
        yield made
    finally:
        made.stop()


@pytest.fixture
def node(up: RealNodeCluster) -> Iterator[RealNodeCluster]:
    """The node without pods. Afterwards they are removed, and no pod holds a share."""
    yield up
    up.clear()
    up.show_cards()
    invariants.check(up.cluster)


def restricted(amount: int, name: str = "c") -> JSON:
    """A container of the older system's manifest, as OpenShift's default constraints leave it."""
    made = container(name)
    made["resources"] = {"limits": {ALIYUN: amount}} if amount else {}
    made["securityContext"] = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "runAsUser": 1000700000,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return made


def sees(amount: int, card: int) -> Inside:
    """What such a container sees of a share. It cannot create a device file to try it."""
    return replace(share(amount * 1024, card), cards=())


def usr(node: RealNodeCluster) -> str:
    """A checksum over the names, sizes, modes, owners and times of all of the node's /usr."""
    done = node.node.machine.run(["sh", "-c", _USR], seconds=120)
    assert done.returncode == 0, done.stdout
    return done.stdout


def promised(node: RealNodeCluster) -> str:
    """The allocation that a pod would get now. The allocator learns about a GPUNode a moment after other clients."""
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "dry"}, "spec": {"containers": [restricted(4)]}}
    dry = node.kube.create(paths.pods("default"), body, {"dryRun": "All"})
    return str(dry["metadata"]["annotations"].get(names.ALLOCATION, ""))


def test_row_35_a_restricted_pod_gets_its_gpu_by_cdi_and_usr_is_unchanged(node: RealNodeCluster) -> None:
    before = usr(node)
    status = node.await_gpunode(lambda status: bool(status.get("delivery")))
    assert (status["delivery"]["modes"], status["delivery"]["runtimeClasses"]) == (["env-class-cdi"], ["nvidia"])
    wait_for(lambda: WAYS["cdi"].kind in promised(node), lambda: f"a pod is promised {promised(node)}")
    for name, amount in (("a", 10), ("b", 12), ("c", 4)):
        node.submit(name, restricted(amount))
        node.running(name)
    assert [node.inside(name) for name in "abc"] == [sees(10, 0), sees(12, 1), sees(4, 0)]
    assert {node.running(name)["spec"]["runtimeClassName"] for name in "abc"} == {"nvidia"}
    node.submit("none", restricted(0))
    assert (node.inside("none"), node.running("none")["spec"].get("runtimeClassName")) == (NOTHING, None)
    assert usr(node) == before


def test_what_restricted_means_is_the_api_servers(node: RealNodeCluster) -> None:
    """The same pod without its restrictions is refused, so the test above shows what it says."""
    with pytest.raises(KubeForbidden) as refused:
        node.submit("free", container())
    assert 'violates PodSecurity "restricted:latest"' in str(refused.value)


def test_what_a_container_uses_is_laid_to_it_and_its_pod_is_evicted(node: RealNodeCluster) -> None:
    node.start_agent("--overuse-grace", "0s", "--overuse-slack", "0", "--evict-overuse", "1s")
    for name in "ab":
        node.submit(name, restricted(4))
        node.running(name)
    greedy, modest = (node.node.process_of(node.running(name)) for name in "ab")
    node.show_cards(f"process 0 {greedy} {5 << 30}", f"process 0 {modest} {3 << 30}")
    node.await_deleted("a")
    reported = [line for line in node.events("a") if line.startswith("GPUMemoryOveruse")]
    assert any("container c uses 5120 MiB" in line and "1024 MiB more than its share" in line for line in reported), (
        reported
    )
    assert not any(line.startswith("GPUMemoryOveruse") for line in node.events("b"))
    assert scenarios.is_running(node.running("b"))
    node.start_agent()


def test_a_container_that_restarts_while_the_agent_is_down_keeps_gpu_and_limit(
    node: RealNodeCluster,
) -> None:
    """CRI-O finds the agent's CDI description without a restart, and the description outlives the agent and CRI-O."""
    elf = b"\x7fELF\x02" + bytes(13) + MACHINES[os.uname().machine].to_bytes(2, "little")
    name = f"libvgpu.so.{hashlib.sha256(elf).hexdigest()[:12]}"
    node.node.machine.write(f"{_PRELOAD}/{name}", elf)
    for file, text in (("current", name), ("ld.so.preload", LIBRARY_IN_CONTAINER)):
        node.node.machine.write(f"{_PRELOAD}/{file}", f"{text}\n")
    node.node.machine.run(["mkdir", "-p", "/run/cdi"])
    node.start_agent("--limiters-preload", _PRELOAD, "--limiters-cdi", "/run/cdi")
    node.await_gpunode(lambda status: "preload" in status["isolation"])
    wait_for(lambda: SHARE_KIND in promised(node), lambda: f"a pod is promised {promised(node)}")
    node.submit("a", restricted(4))
    wanted = sees(4, 0)
    wanted = replace(
        wanted,
        environment=dict(sorted({**wanted.environment, ISOLATION_VARIABLE: "preload"}.items())),
        files=tuple(sorted((*wanted.files, LIBRARY_IN_CONTAINER, PRELOAD_IN_CONTAINER))),
    )
    assert node.inside("a") == wanted
    node.stop_agent()
    node.node.runtime.restart()
    node.node.end(node.node.process_of(node.running("a")))
    assert node.inside("a", restart=1) == wanted
