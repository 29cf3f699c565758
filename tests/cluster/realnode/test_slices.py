"""
Slices of a card (MIG) on a real node, with the agent's own description: each container has the capabilities of its own
slice.

The driver's lists in /proc and its device files are files of the machine, with nothing behind them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from contract import names
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.cluster.realnode.cluster import JSON, UUIDS, RealNodeCluster, container
from tests.cluster.realnode.inside import Inside, trying
from tests.cluster.realnode.ways import DESCRIPTION, Way, install

pytestmark = [pytest.mark.realnode, pytest.mark.timeout(600)]
DRIVER = "/home/kubernetes/bin/nvidia"
FLAGS = ("--driver-folder", DRIVER, "--limiters-cdi", "/var/run/cdi")
MAJOR = 508
"""The number of no driver on this machine, so that a device which can be opened answers like a card."""
FIRST, SECOND, THIRD = (f"MIG-{number}0000000-0000-4000-8000-000000000000" for number in (1, 2, 3))
CAPABILITIES = {FIRST: (12, 13), SECOND: (21, 22), THIRD: (30, 31)}
"""The capabilities of a slice's GPU instance and of its compute instance."""
LISTED = (1, 2, *(minor for pair in CAPABILITIES.values() for minor in pair))
MINORS = "config 1\nmonitor 2\n" + "".join(
    f"gpu0/gi{number}/access {minors[0]}\ngpu0/gi{number}/ci0/access {minors[1]}\n"
    for number, minors in enumerate(CAPABILITIES.values(), 1)
)
PREPARE = f"""
mount -t tmpfs driver /proc/driver
mkdir -p /proc/driver/nvidia-caps /dev/nvidia-caps
cp /run/nvidia-test-minors /proc/driver/nvidia-caps/mig-minors
sed 's/^Block devices:/{MAJOR} nvidia-caps\\n&/' /proc/devices >/run/nvidia-test-devices
mount --bind /run/nvidia-test-devices /proc/devices
"""
UNDO = "umount /proc/driver; umount /proc/devices; rm -rf /dev/nvidia-caps /run/nvidia-test-*"


def make_files(node: RealNodeCluster, *minors: int) -> None:
    lines = (f"mknod -m 444 /dev/nvidia-caps/nvidia-cap{minor} c {MAJOR} {minor}" for minor in minors)
    done = node.node.machine.run(["sh", "-ec", "\n".join(lines)])
    assert done.returncode == 0, done.stdout


@pytest.fixture
def sliced(real: RealNodeCluster, way: Way, up: RealNodeCluster) -> Iterator[RealNodeCluster]:
    """The first card has three slices. The capabilities of the third slice have no files."""
    if not way.label:
        pytest.skip("another way of delivery")
    machine = real.node.machine
    machine.run(["rm", "-f", DESCRIPTION])
    machine.write(f"{DRIVER}/lib64/libnvidia-ml.so.1", "the driver's")
    machine.write("/run/nvidia-test-minors", MINORS)
    done = machine.run(["sh", "-ec", PREPARE])
    try:
        assert done.returncode == 0, done.stdout
        make_files(real, *(minor for minor in LISTED if minor not in CAPABILITIES[THIRD]))
        lines = [f"slice 0 {uuid} {4 << 30} A100 MIG 1g.5gb" for uuid in CAPABILITIES]
        lines += [f"instances 0 {uuid} {number} 0" for number, uuid in enumerate(CAPABILITIES, 1)]
        real.show_cards("mig 0 1", *lines)
        real.start_agent(*FLAGS, gpus=len(UUIDS) + len(CAPABILITIES))
        real.await_gpunode(lambda status: status["delivery"]["cdiKind"] == "gpufraction.io/card")
        yield real
        real.clear()
    finally:
        machine.run(["sh", "-c", UNDO])
        real.show_cards()
        install(way, real.assets, machine)
        real.start_agent()
        real.await_gpunode(lambda status: status.get("delivery") == way.delivery)


def submit(node: RealNodeCluster, name: str, *uuids: str, memory: str = "1Gi", count: int = 1) -> None:
    """A pod with a share of these slices or cards, which tries every capability."""
    made = container(command=("sh", "-c", trying(MAJOR, LISTED)), gpu_memory=memory, gpu_count=str(count))
    node.submit(name, made, annotations={names.USE_UUIDS: ",".join(uuids)})


def has(seen: Inside) -> tuple[set[str], tuple[int, ...], tuple[int, ...]]:
    """The device files of cards and capabilities, and which can be opened, also by a file of the container's."""
    common = {"/dev/nvidiactl", "/dev/nvidia-uvm"}
    assert common <= set(seen.devices)
    for file, numbers in seen.devices.items():
        if file.startswith("/dev/nvidia-caps/"):
            assert numbers == f"{MAJOR:x}:{int(file.rpartition('nvidia-cap')[2]):x}"
    return set(seen.devices) - common, seen.cards, seen.capabilities


def own(*uuids: str) -> tuple[set[str], tuple[int, ...], tuple[int, ...]]:
    minors = tuple(minor for uuid in uuids for minor in CAPABILITIES[uuid])
    return {"/dev/nvidia0", *(f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in minors)}, (0,), minors


def shown(node: RealNodeCluster, uuid: str) -> JSON:
    return next(gpu for gpu in node.gpunode()["gpus"] if gpu["uuid"] == uuid)


def named_by_condition(status: JSON, uuid: str) -> bool:
    """The condition says so once kubelet has registered the agent."""
    return any(each["type"] == "DeliversByClaim" and uuid in each["message"] for each in status["conditions"])


def test_each_container_has_the_capabilities_of_its_own_slices_only(sliced: RealNodeCluster) -> None:
    submit(sliced, "a", FIRST)
    submit(sliced, "b", SECOND)
    submit(sliced, "c", FIRST)
    submit(sliced, "both", FIRST, SECOND, count=2)
    submit(sliced, "whole", UUIDS[1])
    seen = {name: has(sliced.inside(name)) for name in ("a", "b", "c", "both", "whole")}
    assert seen == {
        "a": own(FIRST),
        "b": own(SECOND),
        "c": own(FIRST),
        "both": own(FIRST, SECOND),
        "whole": ({"/dev/nvidia1"}, (1,), ()),
    }


def test_a_slice_without_its_files_takes_no_pods_until_they_are_made(sliced: RealNodeCluster) -> None:
    found = shown(sliced, THIRD)
    assert found["health"] == "Unhealthy"
    assert "/dev/nvidia-caps/nvidia-cap30" in found["reason"]
    sliced.await_gpunode(lambda status: named_by_condition(status, THIRD))
    assert "nvidia-cap30" not in sliced.node.machine.read("/run/cdi/gpufraction.io-card.json")
    submit(sliced, "waits", THIRD)
    pod = sliced.waiting("waits")
    assert names.ALLOCATION not in pod["metadata"]["annotations"]
    make_files(sliced, *CAPABILITIES[THIRD])
    wait_for(lambda: shown(sliced, THIRD)["health"] == "Healthy", lambda: f"{shown(sliced, THIRD)}", 60, every=0.5)
    assert has(sliced.inside("waits")) == own(THIRD)
    assert pod["metadata"]["uid"] == sliced.kube.get(paths.pods("default", "waits"))["metadata"]["uid"]
