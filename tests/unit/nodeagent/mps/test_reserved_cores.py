"""Agent, supervisor and a daemon's process together: cores become a partition, and the container gets its name."""

from __future__ import annotations

import json
from pathlib import Path

from contract.encoding import codec
from contract.model import Allocation, ContainerAllocation, Delivery, Gpu, GpuShare, Inventory
from nodeagent.gpus.observation import Observation
from nodeagent.isolation import cdi
from nodeagent.isolation.levels import Isolation
from nodeagent.isolation.mechanism import Handle, LimiterSettings
from nodeagent.isolation.mps import MpsLimiterSettings
from playground.waiting import wait_for
from tests.unit.nodeagent.isolation.test_limiters import Pods
from tests.unit.nodeagent.mps.conftest import UUID, Node

MIB = 1 << 20
BY_CDI = Delivery(("nvidia",), "nvidia.com/gpu")
INVENTORY = Inventory("n1", (Gpu(UUID, 0, "NVIDIA A10", 1000 * MIB, 1000 * MIB, capability="8.6"),), "580.95.05")


class Machine:
    """A node's two programs, round by round. `pods`: those with shares."""

    def __init__(self, node: Node, folder: Path) -> None:
        self.node, self.cdi, self.pods = node, folder, Pods()
        chosen = {"mps": MpsLimiterSettings(mps=str(node.root), partitions=True)}
        settings = LimiterSettings(cdi=str(folder))
        self.isolation = Isolation(Handle(settings, self.pods, wall=lambda: 1000.0 + node.now, chosen=chosen))
        self.delivery: Delivery | None = None

    def round(self) -> None:
        self.isolation.look(Observation())
        self.delivery = self.isolation.apply(INVENTORY, BY_CDI)
        self.node.look()

    def place(self, name: str, cores: int) -> str:
        """
        A pod arrives, placed by what the node has published. Returns the device of ours that its container requests.
        """
        assert self.delivery is not None
        share = GpuShare(UUID, 0, 100 * MIB, cores, 1000 * MIB, cdi=self.delivery.kinds)
        made = Allocation(name, "n1", (ContainerAllocation("main", (share,)),))
        self.pods.placed.append(made)
        return codec.container_annotations(made)["gpufraction.io/devices.main"].split(",")[1]

    def starts(self, device: str) -> dict[str, str]:
        """The variables that the container gets. The runtime refuses to start it while its device is missing."""
        kind, _, name = device.partition("=")

        def found() -> dict[str, str]:
            self.round()
            file = self.cdi / f"{kind.replace('/', '-')}.json"
            devices = json.loads(file.read_text())["devices"] if file.exists() else []
            entries: list[str] = next((each["containerEdits"]["env"] for each in devices if each["name"] == name), [])
            return dict(entry.split("=", 1) for entry in entries)

        return wait_for(found, lambda: f"there is no device {device}")


def test_each_pod_has_its_own_partition_until_it_ends(node: Node, tmp_path: Path) -> None:
    (tmp_path / "cdi").mkdir()
    machine = Machine(node, tmp_path / "cdi")
    node.wants()

    def partitioned() -> bool:
        machine.round()
        return machine.delivery is not None and machine.delivery.partitions

    wait_for(partitioned, "no daemon gives out partitions")
    devices = {name: machine.place(name, cores) for name, cores in (("a", 50), ("b", 25), ("c", 0), ("d", 0))}
    assert devices["a"] == f"gpufraction.io/partition={UUID}.a"
    env = {name: machine.starts(device) for name, device in devices.items()}
    given = {name: found["CUDA_MPS_SM_PARTITION"] for name, found in env.items()}
    assert {found["CUDA_MPS_PIPE_DIRECTORY"] for found in env.values()} == {"/tmp/nvidia-mps"}
    assert all(name.startswith(f"{UUID}/D/x") for name in given.values())
    assert (len({given["a"], given["b"], given["c"]}), given["c"]) == (3, given["d"])
    condition = next(each for each in machine.isolation.conditions() if each.kind == "CoresReserved")
    assert condition.ready
    assert condition.message.endswith("rounded down to whole chunks: 25% is 2 of 10 chunks")
    node.restart()
    assert machine.starts(devices["a"])["CUDA_MPS_SM_PARTITION"] == given["a"], "a new supervisor knows it again"
    machine.pods.placed = machine.pods.placed[1:]

    def two() -> bool:
        machine.round()
        return len(node.supervisor.report.gpus[UUID].partitions) == 2

    wait_for(two, "the partition of a pod that has ended stays")
    late = machine.place("late", 50)
    assert machine.starts(late)["CUDA_MPS_SM_PARTITION"]
    assert cdi.PARTITION_FILE in {path.name for path in machine.cdi.iterdir()}
