"""
The API server is unreachable, and kubelet restarts a container: the container keeps its GPU and its limits. When the
API server is back, the agent reports once, however long that took.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from contract.encoding.protocol import Placed
from contract.model import Allocation, ContainerAllocation, GpuShare
from contract.nodes.inventories import inventory_from_object
from contract.options import Options
from nodeagent.agent import Agent
from nodeagent.isolation.driver import Limiter, container_groups
from nodeagent.machine import Machine
from nodeagent.settings import PaceSettings
from nodeagent.sharing.residents import Residents, trim
from playground.machinery.kubelet.environment import Surroundings, resolve
from runtime.kubernetes.watch import Put, Replaced
from tests.builders import pod
from tests.unit.nodeagent.builders import MIB, T4, card, observation
from tests.unit.nodeagent.cluster import Cluster
from tests.unit.nodeagent.isolation.test_driver_limits import Driver
from webhook.admission import admit

JSON = dict[str, Any]
UID = "0a1b2c3d-0000-4000-8000-00000000000a"
BEFORE, AFTER = "a" * 64, "b" * 64


def admitted() -> JSON:
    """A pod with a share of GPU-0, as the webhook admitted it and kubelet stores it."""
    made = pod("camera").uid(UID).asks("gpufraction.io/gpu-memory", "3Gi").asks("gpufraction.io/gpu-cores", 30).json()
    planned = admit.plan(made, Options())
    assert isinstance(planned, admit.Allocate)
    share = GpuShare("GPU-0", 0, 3072 * MIB, 30, T4)
    answer = Placed(Allocation("id", "edge", (ContainerAllocation("main", (share,)),)), "nodeName")
    settled = admit.settle(made, planned, answer, now_ns=0)
    assert isinstance(settled, admit.Admit)
    return {**settled.pod, "status": status(BEFORE)}


def status(container: str) -> JSON:
    return {"phase": "Running", "containerStatuses": [{"name": "main", "containerID": f"containerd://{container}"}]}


def start(root: Path, container: str) -> Path:
    """What containerd creates on the host when kubelet starts a container."""
    group = root / f"kubepods/burstable/pod{UID}/{container}"
    group.mkdir(parents=True)
    return group


def test_a_container_restarted_during_an_outage_keeps_its_gpu_and_its_limits(tmp_path: Path) -> None:
    cluster, residents, driver, here, now = Cluster("edge"), Residents(), Driver(), admitted(), [1_000_000.0]
    seen = [observation(card(0), card(1))]
    agent = Agent(
        cluster.kube,
        Machine(lambda: seen[0], residents=residents),
        "edge",
        PaceSettings(heartbeat=60),
        clock=lambda: now[0],
    )
    limiter = Limiter(driver, lambda uids: container_groups(tmp_path, uids))

    def step(*, after: float) -> None:
        """One look and one round of the agent, this many seconds later."""
        now[0] += after
        limiter.apply(residents.all())
        agent.step()

    residents.event(Replaced([trim(here)]))
    group = start(tmp_path, BEFORE)
    step(after=0)
    environment = resolve(here, here["spec"]["containers"][0], Surroundings())
    limited = {("GPU-0", f"/sys/fs/cgroup/kubepods/burstable/pod{UID}/{BEFORE}"): 3072 * MIB}
    assert driver.limits == limited

    cluster.network.down = "unreachable"
    cluster.network.writes.clear()
    group.rmdir()
    start(tmp_path, AFTER)
    for _ in range(30):  # many heartbeats are missed
        step(after=60)
    assert driver.limits == {("GPU-0", f"/sys/fs/cgroup/kubepods/burstable/pod{UID}/{AFTER}"): 3072 * MIB}
    # Kubelet builds the environment from what it has: the pod's own annotations, and nothing that is elsewhere.
    assert resolve(here, here["spec"]["containers"][0], Surroundings()) == environment
    assert isinstance(environment, dict)
    assert (environment["NVIDIA_VISIBLE_DEVICES"], environment["CUDA_DEVICE_MEMORY_LIMIT"]) == ("GPU-0", "3072m")
    assert cluster.network.writes == []

    cluster.network.down, cluster.network.reads = None, 0
    step(after=60)
    assert (cluster.network.reads, cluster.network.writes) == (2, ["PATCH edge/status"]), "one report, not thirty"
    residents.event(Put(trim({**here, "status": status(AFTER)})))
    calls = driver.calls
    step(after=1)
    assert (driver.calls, cluster.network.writes) == (calls, ["PATCH edge/status"])
    assert inventory_from_object(cluster.gpunode("edge")).gpus[0].healthy
