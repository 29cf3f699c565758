"""What the agent derives from the MPS daemons' report and from the preloaded library: levels, mounts, excluded GPUs."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from contract.metrics import metrics_of
from contract.model import (
    PARTITION_KIND,
    SHARE_KIND,
    Allocation,
    ContainerAllocation,
    Delivery,
    Gpu,
    GpuShare,
    Inventory,
)
from contract.reasons.gpunodes import GPUNodeReason
from nodeagent.agent import Agent
from nodeagent.conditions import Condition
from nodeagent.files import write_atomically
from nodeagent.gpus.observation import Observation
from nodeagent.isolation import cdi
from nodeagent.isolation.effects import judged, without_own
from nodeagent.isolation.levels import Isolation
from nodeagent.isolation.mechanism import DeliveryWay, Handle, LimiterSettings
from nodeagent.isolation.mps import MpsLimiterSettings, MpsState
from nodeagent.isolation.preload import Library, PreloadSettings
from nodeagent.isolation.probing import Prober, by_runtime
from nodeagent.machine import Machine
from nodeagent.mps.exchange import GpuReport, MpsPaths, Report, report_to_text, shares_from_text, wanted_from_text
from nodeagent.publishing.metrics import AgentGauges
from nodeagent.sharing.residents import Resident
from runtime.metrics import Metrics
from tests.unit.nodeagent.builders import MIB, card, observation
from tests.unit.nodeagent.cluster import Cluster
from tests.unit.nodeagent.publishing.test_metrics import series

SERVING = GpuReport("serving", True, True, "", (71,), 2, 48, 1)
BY_CDI = Delivery(("nvidia",), "k8s.device-plugin.nvidia.com/gpu")
PLAIN = Delivery(("",))
LIBRARY = b"\x7fELF\x02" + bytes(13) + (62).to_bytes(2, "little") + b"rest"
DIGEST = hashlib.sha256(LIBRARY).hexdigest()[:12]


def gpu(index: int = 0, **changes: object) -> Gpu:
    made = Gpu(f"GPU-{index}", index, "NVIDIA A10", 100 * MIB, 100 * MIB, capability="8.6")
    return replace(made, **changes)  # type: ignore[arg-type]


def inventory(*gpus: Gpu) -> Inventory:
    return Inventory("n1", gpus, driver="580.95.05")


def copied(folder: Path, content: bytes = LIBRARY, name: str = f"libvgpu.so.{DIGEST}") -> None:
    """What the init container leaves."""
    (folder / name).write_bytes(content)
    (folder / name).chmod(0o755)
    (folder / "current").write_text(f"{name}\n")
    (folder / "ld.so.preload").write_text("/usr/local/vgpu/libvgpu.so\n")


@dataclass
class Pods:
    """The pods of the node."""

    known: bool = True
    placed: list[Allocation] = field(default_factory=list)

    def all(self) -> tuple[Resident, ...]:
        return ()

    def allocations(self) -> tuple[Allocation, ...]:
        return tuple(self.placed)


class Node:
    """The folders, and an agent's isolation that uses them. `machine`: its architecture."""

    machine = "x86_64"

    def __init__(self, root: Path) -> None:
        for name in ("mps", "preload", "cdi"):
            (root / name).mkdir()
        self.places, self.preload, self.cdi = MpsPaths(root / "mps"), root / "preload", root / "cdi"
        self.root, self.now, self.pods = root, 1000.0, Pods()
        self.isolation = self.made()

    def made(
        self,
        *,
        mps: bool = True,
        preload: bool = True,
        cdi: bool = True,
        host_paths: bool = False,
        partitions: bool = False,
        ways: Iterable[DeliveryWay] = (),
    ) -> Isolation:
        handle = Handle(
            LimiterSettings(cdi=str(self.cdi) if cdi else "", host_paths=host_paths),
            self.pods,
            root=self.root,
            machine=self.machine,
            wall=lambda: self.now,
            chosen={
                "mps": MpsLimiterSettings(mps=str(self.places.root) if mps else "", partitions=partitions),
                "preload": PreloadSettings(preload=str(self.preload) if preload else ""),
            },
        )
        self.isolation = Isolation(handle, ways=ways)
        return self.isolation

    def reports(self, **gpus: GpuReport) -> None:
        named = {uuid.replace("_", "-"): found for uuid, found in gpus.items()}
        write_atomically(self.places.report, report_to_text(Report(self.now, named)))

    def round(self, delivery: Delivery | None, *gpus: Gpu) -> tuple[Delivery | None, tuple[str, ...]]:
        """What an agent does in one round."""
        self.isolation.look(Observation())
        return self.isolation.apply(inventory(*gpus), delivery), self.isolation.levels()

    def wanted(self) -> frozenset[str] | None:
        return wanted_from_text(self.places.wanted.read_text())

    def devices(self) -> dict[str, list[str]]:
        """The container paths that each device mounts."""
        text = json.loads((self.cdi / cdi.FILE).read_text())
        assert (text["cdiVersion"], text["kind"]) == ("0.5.0", SHARE_KIND)
        return {
            device["name"]: [mount["containerPath"] for mount in device["containerEdits"].get("mounts", ())]
            for device in text["devices"]
        }


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_level_is_published_once_containers_get_it_and_daemons_serve(node: Node) -> None:
    two = gpu(0), gpu(1)
    assert node.round(BY_CDI, *two) == (replace(BY_CDI, mounts="cdi"), ())
    assert node.wanted() == frozenset({"GPU-0", "GPU-1"})
    node.reports(GPU_0=SERVING, GPU_1=SERVING)
    assert node.round(BY_CDI, *two) == (replace(BY_CDI, mounts="cdi", single=True), ("mps",))
    assert node.devices() == {f"GPU-{n}": ["/tmp/nvidia-mps", "/dev/shm"] for n in range(2)}
    node.reports(GPU_0=SERVING, GPU_1=GpuReport("resting"))
    assert node.round(BY_CDI, *two)[1] == (), "one of them would be taken by pods that nothing holds"
    assert node.devices()["GPU-1"] == []


def test_without_cdi_a_daemon_is_wanted_only_where_pods_get_host_paths(node: Node) -> None:
    node.reports(GPU_0=SERVING)
    assert node.round(PLAIN, gpu()) == (replace(PLAIN, mounts="hostPath", single=True), ())
    condition, _ = node.isolation.conditions()
    assert (node.wanted(), condition.ready, condition.reason) == (frozenset(), False, "NeedsHostPath")
    assert not (node.cdi / cdi.FILE).exists()
    node.made(host_paths=True)
    assert node.round(PLAIN, gpu()) == (replace(PLAIN, mounts="hostPath", single=True), ("mps",))
    condition, _ = node.isolation.conditions()
    assert (node.wanted(), condition.ready, condition.reason) == (frozenset({"GPU-0"}), True, "ByHostPath")
    assert "the namespace must allow those" in condition.message


def test_what_a_serving_daemon_does_not_do_is_reported(node: Node) -> None:
    node.reports(GPU_0=replace(SERVING, why="old"), GPU_1=replace(SERVING, why="old"), GPU_2=SERVING)
    assert node.round(BY_CDI, gpu(0), gpu(1), gpu(2))[1] == ("mps",)
    assert node.isolation.conditions()[1] == Condition(False, GPUNodeReason.LIMITED, "old", "MpsDaemons")
    node.reports(GPU_0=SERVING, GPU_1=GpuReport("paused", taking=False, why="it ended"))
    node.isolation.look(Observation())
    assert [condition.kind for condition in node.isolation.conditions()] == [
        "LimitsReachContainers",
        "PreloadedLibrary",
    ]


def test_where_delivery_is_not_known_nothing_is_started(node: Node) -> None:
    assert node.round(None, gpu()) == (None, ())
    assert (node.wanted(), node.isolation.conditions()[0].reason) == (frozenset(), "DeliveryUnknown")


def test_devices_that_are_made_up_by_the_toolkit_bear_no_other_beside_them() -> None:
    found = [cdi.possible(d) for d in (None, PLAIN, BY_CDI, Delivery(("nvidia",), "runtime.nvidia.com/gpu"))]
    assert found == [False, False, True, False]


WANTED: dict[str, tuple[Gpu, bool]] = {
    "a card": (gpu(), True),
    "a sick one keeps its daemon, for those who are there": (gpu(healthy=False, reason="XID 79"), True),
    "a cordoned one": (gpu(healthy=False, withheld="Cordoned"), True),
    "one of the device plugin's": (gpu(healthy=False, withheld="NotShared"), False),
    "a card in MIG mode": (gpu(usable=0), False),
    "a slice": (gpu(parent="GPU-9"), False),
    "a card that MPS cannot limit": (gpu(capability="6.1"), False),
}


@pytest.mark.parametrize(("found", "want"), WANTED.values(), ids=WANTED.keys())
def test_which_gpus_are_to_have_a_daemon(node: Node, found: Gpu, want: bool) -> None:
    node.round(BY_CDI, found)
    assert node.wanted() == (frozenset({"GPU-0"}) if want else frozenset())


def test_a_daemon_that_is_there_stays_while_delivery_is_not_clear(node: Node) -> None:
    node.round(BY_CDI, gpu(0))
    for unclear in (None, Delivery(), PLAIN):
        node.round(unclear, gpu(0), gpu(1))
        assert node.wanted() == frozenset({"GPU-0"}), unclear
    node.round(BY_CDI, gpu(0), gpu(1))
    assert node.wanted() == frozenset({"GPU-0", "GPU-1"})


def test_a_gpu_that_leaves_sharing_keeps_its_daemon_while_a_share_exists(node: Node) -> None:
    node.round(BY_CDI, gpu())
    share = GpuShare("GPU-0", 0, MIB, 0, MIB)
    node.pods.placed = [Allocation("x", "n1", (ContainerAllocation("main", (share,)),))]
    out = gpu(healthy=False, withheld="NotShared")
    node.round(BY_CDI, out)
    assert node.wanted() == frozenset({"GPU-0"})
    node.pods.placed = []
    node.round(BY_CDI, out)
    assert node.wanted() == frozenset()


def test_while_nothing_can_be_observed_wanted_daemons_stay(node: Node) -> None:
    node.round(BY_CDI, gpu())
    node.isolation.apply(Inventory("n1", problem="the driver is gone"), BY_CDI)
    assert node.wanted() == frozenset({"GPU-0"})


def test_a_supervisor_that_falls_silent_holds_nobody_any_more(node: Node) -> None:
    node.reports(GPU_0=SERVING, GPU_1=GpuReport("off"))
    node.now += 31.0
    node.isolation.look(Observation())
    cards = judged(observation(card(0), card(1)), node.isolation.effects).cards
    message = "the supervisor of the MPS daemons does not report"
    assert cards == (card(0, healthy=False, reason=message), card(1))
    assert node.round(BY_CDI, gpu())[1] == ()


AWAY: dict[str, tuple[GpuReport, str]] = {
    "serving": (SERVING, ""),
    "off": (GpuReport("off"), ""),
    "given up": (GpuReport("resting", why="it crashed"), ""),
    "starting": (GpuReport("starting", taking=False), "MPS is starting"),
    "faulted": (GpuReport("faulted", taking=False, why="a client did it"), "MPS is faulted: a client did it"),
}


@pytest.mark.parametrize(("report", "why"), AWAY.values(), ids=AWAY.keys())
def test_a_gpu_whose_daemon_is_away_takes_no_new_pods(report: GpuReport, why: str) -> None:
    found = MpsState(Report(0.0, {"GPU-0": report}))
    want = card(0, healthy=False, reason=why) if why else card(0)
    assert judged(observation(card(0), card(1)), found.effects).cards == (want, card(1))
    ill = card(0, healthy=False, reason="XID 79")
    assert judged(observation(ill), found.effects).cards == (ill,), "what the card itself has comes first"


def test_the_servers_memory_is_nobodys_offence() -> None:
    seen = observation(card(0, processes=((71, 5), (72, 6))), card(1))
    found = MpsState(Report(0.0, {"GPU-0": SERVING}))
    assert without_own(seen, found.effects).cards == (card(0, processes=((72, 6),)), card(1))
    assert without_own(seen, MpsState().effects) is seen


def test_the_library_is_published_and_given_where_no_daemon_serves(node: Node) -> None:
    copied(node.preload)
    node.made(mps=False)
    assert node.round(BY_CDI, gpu()) == (replace(BY_CDI, mounts="cdi"), ("preload",))
    assert node.devices() == {"GPU-0": ["/usr/local/vgpu/libvgpu.so", "/etc/ld.so.preload", "/var/lib/gpufraction"]}
    slices = gpu(0, usable=0, healthy=False), gpu(1, uuid="MIG-0", parent="GPU-0")
    assert node.round(BY_CDI, *slices)[1] == ()
    assert node.devices()["MIG-0"] == []


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing was copied": (lambda folder: (folder / "current").unlink(), "points to no library"),
    "another name": (lambda folder: (folder / "current").write_text("../../etc/passwd"), "points to no library"),
    "a name without a file": (lambda folder: (folder / "current").write_text("libvgpu.so." + "0" * 12), "No such file"),
    "half a file": (lambda folder: (folder / f"libvgpu.so.{DIGEST}").write_bytes(LIBRARY[:-1]), "copied completely"),
    "another preload file": (lambda folder: (folder / "ld.so.preload").write_text("/evil.so"), "does not contain"),
    "writable by everybody": (lambda folder: (folder / f"libvgpu.so.{DIGEST}").chmod(0o777), "writable by other users"),
}


@pytest.mark.parametrize(("spoil", "words"), WRONG.values(), ids=WRONG.keys())
def test_a_library_that_is_not_right_is_given_to_nobody(
    tmp_path: Path, spoil: Callable[[Path], object], words: str
) -> None:
    copied(tmp_path)
    library = Library(tmp_path, machine="x86_64")
    assert (library.look() is not None, library.trouble) == (True, "")
    spoil(tmp_path)
    assert (library.look(), words in library.trouble) == (None, True), library.trouble
    copied(tmp_path)
    assert library.look() is not None


def test_why_no_container_gets_the_library_is_reported(node: Node) -> None:
    node.round(BY_CDI, gpu())
    _, library = node.isolation.conditions()
    assert (library.kind, library.ready, library.reason) == ("PreloadedLibrary", False, "LibraryNotUsable")
    assert "did the init container copy it?" in library.message
    copied(node.preload)
    node.round(BY_CDI, gpu())
    assert node.isolation.conditions()[1] == Condition(True, GPUNodeReason.LIBRARY_READY, "", "PreloadedLibrary")


def test_a_library_for_another_machine(tmp_path: Path) -> None:
    copied(tmp_path)
    library = Library(tmp_path, machine="aarch64")
    assert (library.look(), "not a library for aarch64" in library.trouble) == (None, True)


LABELS = {
    "nothing is enforced": ("", True),
    "for every container": ("system_u:object_r:container_file_t:s0", True),
    "of the host": ("system_u:object_r:var_lib_t:s0", False),
    "of one pod": ("system_u:object_r:container_file_t:s0:c1,c2", False),
    "none that can be read": ("nonsense", False),
}


@pytest.mark.parametrize(("label", "given"), LABELS.values(), ids=LABELS.keys())
def test_a_library_that_selinux_keeps_from_containers_holds_none(tmp_path: Path, label: str, given: bool) -> None:
    copied(tmp_path)
    library = Library(tmp_path, machine="x86_64", label_of=lambda file: label)
    assert (library.look() is not None, library.trouble == "") == (given, given)
    assert given or f"label {label}, which containers may not read" in library.trouble
    assert given or "chcon -R -t container_file_t -l s0" in library.trouble


def test_the_description_stays_for_as_long_as_a_pod_needs_it(node: Node) -> None:
    node.round(BY_CDI, gpu())
    share = GpuShare("GPU-0", 0, MIB, 0, MIB, cdi=f"nvidia.com/gpu,{SHARE_KIND}")
    node.pods.placed = [Allocation("x", "n1", (ContainerAllocation("main", (share,)),))]
    node.made(mps=False, preload=False)
    node.round(BY_CDI, gpu(1))
    assert node.devices() == {"GPU-0": [], "GPU-1": []}, "it can start again, with nothing that limits it"
    node.pods.placed = []
    node.round(BY_CDI, gpu(1))
    assert not (node.cdi / cdi.FILE).exists()


def test_a_new_agent_that_has_seen_nothing_leaves_the_description(node: Node) -> None:
    node.round(BY_CDI, gpu())
    before = node.devices()
    node.made()
    node.isolation.apply(Inventory("n1", problem="the driver is gone"), BY_CDI)
    assert (node.devices(), list(before)) == (before, ["GPU-0"])


def test_an_unwritable_description_promises_nothing_and_is_logged_once(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.cdi.rmdir()
    node.reports(GPU_0=SERVING)
    for _ in range(3):
        found, levels = node.round(BY_CDI, gpu())
        assert (found, levels) == (replace(BY_CDI, single=True), ())
        assert node.isolation.conditions()[0].reason == "NotWritten"
    assert [record.getMessage() for record in caplog.records] == ["file not written"]
    node.cdi.mkdir()
    assert node.round(BY_CDI, gpu()) == (replace(BY_CDI, mounts="cdi", single=True), ("mps",))
    shutil.rmtree(node.cdi)
    node.round(BY_CDI, gpu())
    assert len(caplog.records) == 2, "another time is told again"


def test_without_settings_nothing_is_reported_or_written(node: Node) -> None:
    node.made(mps=False, preload=False, cdi=False)
    assert node.round(BY_CDI, gpu()) == (BY_CDI, ())
    assert (node.isolation.conditions(), list(node.cdi.iterdir()), list(node.places.root.iterdir())) == ((), [], [])


def test_metrics_tell_how_the_daemons_are() -> None:
    metrics = Metrics(metrics_of("nodeagent"))
    gauges = AgentGauges(metrics, node="n1")
    gauges.show_mechanisms(MpsState(Report(0.0, {"GPU-0": SERVING, "GPU-1": GpuReport("paused", starts=3)})).effects)
    shown = series(metrics)
    assert [
        (shown[f'gpufraction_mps_{name}{{gpu="GPU-{n}",node="n1"}}'])
        for name in ("serving", "clients", "clients_limit", "daemon_starts")
        for n in range(2)
    ] == [1, 0, 2, 0, 48, 0, 1, 3]
    gauges.show_mechanisms(MpsState(Report(0.0, {"GPU-0": SERVING, "GPU-1": GpuReport("off")}), stale=True).effects)
    shown = series(metrics)
    assert (shown['gpufraction_mps_serving{gpu="GPU-0",node="n1"}'], len(shown)) == (0, 4)


def test_it_is_all_on_the_gpunode_after_one_round(node: Node) -> None:
    cluster = Cluster("n1")
    node.reports(GPU_0=SERVING, GPU_1=GpuReport("starting", taking=False))
    seen = replace(observation(card(0, capability="8.6"), card(1, capability="8.6")), driver="580.95.05")
    prober = Prober(cluster.kube, root=None, override=BY_CDI)
    isolation = node.made(ways=[by_runtime(prober)])
    isolation.look(seen)
    agent = Agent(
        cluster.kube,
        Machine(lambda: judged(seen, isolation.effects), isolation=isolation),
        "n1",
    )
    agent.step()
    status = cluster.gpunode("n1")["status"]
    assert (status["isolation"], status["delivery"]["mounts"], status["delivery"]["oneGpuPerContainer"]) == (
        ["mps"],
        "cdi",
        True,
    )
    assert [(gpu["health"], gpu["reason"]) for gpu in status["gpus"]] == [
        ("Healthy", ""),
        ("Unhealthy", "MPS is starting"),
    ]
    assert {item["type"]: item["reason"] for item in status["conditions"]}["LimitsReachContainers"] == "ByCDI"
    writes = len(cluster.network.writes)
    agent.step()
    assert len(cluster.network.writes) == writes, "what stands as it should is left alone"


# -- reserved cores ---------------------------------------------------------------------------------------------------


PARTITIONED = replace(SERVING, partitioned=True, chunks=10)
OWN = replace(BY_CDI, mounts="cdi", partitions=True).kinds


def pod(name: str, cores: int, *, cdi: str = OWN, gpu: str = "GPU-0", claim: str = "") -> Allocation:
    share = GpuShare(gpu, 0, MIB, cores, 100 * MIB, cdi=cdi)
    return Allocation(name, "n1", (ContainerAllocation("main", (share,)),), claim)


def reserving(node: Node) -> Isolation:
    return node.made(partitions=True)


def own_devices(node: Node) -> dict[str, str]:
    """The partition that each pod's device names; empty for none."""
    text = json.loads((node.cdi / cdi.PARTITION_FILE).read_text())
    assert text["kind"] == PARTITION_KIND
    found = {device["name"]: device["containerEdits"]["env"] for device in text["devices"]}
    return {
        name: dict(each.split("=", 1) for each in env).get("CUDA_MPS_SM_PARTITION", "") for name, env in found.items()
    }


def shares(node: Node) -> dict[str, dict[str, int]]:
    return {uuid: dict(keys) for uuid, keys in shares_from_text(node.places.wanted.read_text()).items()}


def test_a_pod_gets_the_device_of_its_own_partition_once_the_daemon_has_made_it(node: Node) -> None:
    isolation = reserving(node)
    assert node.round(BY_CDI, gpu())[0] == replace(BY_CDI, mounts="cdi"), "no daemon gives out partitions yet"
    assert shares(node) == {"GPU-0": {}}
    node.reports(GPU_0=PARTITIONED)
    delivery, levels = node.round(BY_CDI, gpu())
    assert (delivery, levels) == (replace(BY_CDI, mounts="cdi", single=True, partitions=True), ("mps",))
    node.pods.placed = [pod("a", 50), pod("b", 0)]
    node.round(BY_CDI, gpu())
    assert shares(node) == {"GPU-0": {"GPU-0.a": 50, "": 0}}
    assert own_devices(node) == {}, "a container without its device does not start"
    node.reports(GPU_0=replace(PARTITIONED, partitions={"GPU-0.a": "D/x1", "": "D/x2"}))
    node.round(BY_CDI, gpu())
    assert own_devices(node) == {"GPU-0.a": "GPU-0/D/x1", "GPU-0.b": "GPU-0/D/x2"}
    assert isolation.conditions()[-1].kind == "PreloadedLibrary"
    assert [each for each in isolation.conditions() if each.kind == "CoresReserved"] == [
        Condition(
            True,
            GPUNodeReason.PARTITIONED,
            "each GPU has 10 chunks of multiprocessors; a pod has whole chunks to itself",
            "CoresReserved",
        )
    ]
    node.pods.placed = []
    node.round(BY_CDI, gpu())
    assert (shares(node), (node.cdi / cdi.PARTITION_FILE).exists()) == ({"GPU-0": {}}, False)


def test_a_gpu_with_pods_keeps_its_mode_until_they_end(node: Node) -> None:
    node.pods.placed = [pod("old", 50, cdi=replace(BY_CDI, mounts="cdi").kinds)]
    node.reports(GPU_0=SERVING)
    isolation = reserving(node)
    node.round(BY_CDI, gpu())
    assert shares(node) == {}
    condition = next(each for each in isolation.conditions() if each.kind == "CoresReserved")
    assert (condition.ready, condition.reason) == (False, "Capped")
    node.pods.placed = []
    node.round(BY_CDI, gpu())
    assert shares(node) == {"GPU-0": {}}
    node.pods.placed = [pod("a", 50)]
    node.round(BY_CDI, gpu())
    node.made()
    node.round(BY_CDI, gpu())
    assert shares(node) == {"GPU-0": {"GPU-0.a": 50}}, "switched off, and a pod still has its partition"
    node.pods.placed = []
    node.round(BY_CDI, gpu())
    assert shares(node) == {}


def test_a_pod_with_its_own_device_starts_also_where_its_gpu_has_no_partitions(node: Node) -> None:
    reserving(node)
    node.reports(GPU_0=PARTITIONED, GPU_1=SERVING)
    node.pods.placed = [pod("a", 50, gpu="GPU-1")]
    node.round(BY_CDI, gpu(0), gpu(1))
    assert own_devices(node) == {"GPU-1.a": ""}


def test_all_pods_of_a_claim_have_one_partition(node: Node) -> None:
    reserving(node)
    node.round(BY_CDI, gpu())
    node.pods.placed = [pod("a", 50, claim="share-x"), pod("b", 50, claim="share-x")]
    node.round(BY_CDI, gpu())
    assert shares(node) == {"GPU-0": {"GPU-0.share-x": 50}}


def test_while_the_pods_are_not_known_partitions_stay(node: Node) -> None:
    reserving(node)
    node.round(BY_CDI, gpu())
    node.pods.placed = [pod("a", 50)]
    node.round(BY_CDI, gpu())
    node.pods.known, node.pods.placed = False, []
    node.round(BY_CDI, gpu())
    assert shares(node) == {"GPU-0": {"GPU-0.a": 50}}


def test_where_gpus_come_without_cdi_cores_are_capped(node: Node) -> None:
    isolation = reserving(node)
    node.round(PLAIN, gpu())
    condition = next(each for each in isolation.conditions() if each.kind == "CoresReserved")
    assert (shares(node), condition.reason) == ({}, "NeedsCDI")
