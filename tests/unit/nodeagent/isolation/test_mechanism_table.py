"""An unknown mechanism and an unknown way of delivery: one entry in a table each, and no other edit."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from contract.encoding import codec
from contract.isolation import LEVELS, PRELOAD, Level
from contract.metrics import metrics_of
from contract.metrics import nodeagent as specs
from contract.model import BY_CDI, Allocation, ContainerAllocation, Delivery, Gpu, GpuShare, Inventory
from contract.nodes.reports import UNHEALTHY, PodReport
from contract.reasons.gpunodes import GPUNodeReason
from nodeagent.conditions import Condition
from nodeagent.gpus.observation import Observation
from nodeagent.isolation import cdi
from nodeagent.isolation.cdi import Edits
from nodeagent.isolation.effects import Effects, judged
from nodeagent.isolation.levels import MECHANISMS, Isolation
from nodeagent.isolation.mechanism import (
    Delivered,
    DeliveryWay,
    Demands,
    Handle,
    LimiterSettings,
    Mechanism,
    MechanismEntry,
    MechanismTable,
    Reached,
)
from nodeagent.isolation.preload import PreloadSettings
from nodeagent.publishing.metrics import AgentGauges
from nodeagent.publishing.status import desired, status_of
from nodeagent.settings import settings_type
from nodeagent.sharing.residents import Residents
from runtime.kubernetes.watch import Replaced
from runtime.metrics import Metrics
from runtime.settings import SettingsError, effective, load, setting
from tests.unit.nodeagent.builders import MIB, card, observation
from tests.unit.nodeagent.isolation.test_limiters import copied
from tests.unit.nodeagent.publishing.test_metrics import series

QUOTA = Level("quota")
PLUGGED = Delivery(("",), "vendor.example/gpu")
MOUNT = {"hostPath": "/opt/quota", "containerPath": "/quota"}
CONDITION = Condition(True, GPUNodeReason.LIMITED, "quotas are set", "Quotas")


class Quota:
    """Limits whole cards through a folder in the container, needs one GPU for each container, and closes GPU-9."""

    def __init__(self) -> None:
        self.reached = Reached()

    def look(self, observation: Observation) -> Effects:
        return Effects(
            closed={"GPU-9": "no quota there"},
            faulted={"GPU-0": UNHEALTHY},
            figures={specs.MPS_CLIENTS: {"GPU-0": 7.0}},
        )

    def limits(self, gpus: Sequence[Gpu]) -> bool:
        return not any(gpu.parent for gpu in gpus)

    def edits(self, uuid: str, key: str | None) -> Edits | None:
        return None if uuid.startswith("MIG-") else Edits(("QUOTA=/quota",), (MOUNT,))

    def apply(self, inventory: Inventory, reached: Reached) -> Demands:
        self.reached = reached
        return Demands(single=True)

    def conditions(self) -> tuple[Condition, ...]:
        return (CONDITION,)

    def run(self, stopping: threading.Event) -> None:
        stopping.wait()


@dataclass(frozen=True)
class QuotaSettings:
    quota: bool = setting(False, "Whether quotas limit containers.")


def quota(handle: Handle, chosen: QuotaSettings) -> Mechanism | None:
    made = Quota()
    if not chosen.quota:
        return None
    return Mechanism(made.limits, made.look, made.edits, made.apply, made.conditions, {"quotas": made.run})


def plugged(found: Delivered, inventory: Inventory, now: float, labels: Mapping[str, str]) -> Delivered:
    """A way of delivery that works on nodes with a label."""
    if "plugged" not in labels:
        return found
    return replace(found, delivery=PLUGGED, unreachable={gpu.uuid: "unplugged" for gpu in inventory.gpus[1:]})


ENTRY = MechanismEntry(quota, QuotaSettings)
TABLE: MechanismTable = {QUOTA: ENTRY, **MECHANISMS}
WAY = DeliveryWay(plugged)
NO_FOLDERS = {"mps": "", "partitions": False, "preload": ""}


@pytest.fixture
def handle(tmp_path: Path) -> Handle:
    for name in ("cdi", "preload"):
        (tmp_path / name).mkdir()
    copied(tmp_path / "preload")
    return Handle(
        LimiterSettings(cdi=str(tmp_path / "cdi")),
        Residents(known=True),
        root=tmp_path,
        machine="x86_64",
        sees_processes=True,
        chosen={"quota": QuotaSettings(quota=True), "preload": PreloadSettings(preload=str(tmp_path / "preload"))},
    )


def gpu(uuid: str, parent: str = "") -> Gpu:
    return Gpu(uuid, 0, "NVIDIA A10", 100 * MIB, 100 * MIB, parent=parent)


def inventory(*gpus: Gpu) -> Inventory:
    return Inventory("n1", gpus)


def devices(handle: Handle) -> dict[str, dict[str, object]]:
    """What a container gets with each device."""
    text = json.loads((Path(handle.settings.cdi) / cdi.FILE).read_text())
    return {device["name"]: device["containerEdits"] for device in text["devices"]}


def test_the_table_has_every_level_in_the_order_of_the_contract() -> None:
    assert tuple(MECHANISMS) == LEVELS


def test_its_settings_are_the_agents() -> None:
    flags = ["--node=n1", "--limiters-quota"]
    given = load(settings_type(TABLE), file=None, env={}, argv=flags)
    assert effective(given)["limiters"] == {"cdi": "", "host_paths": False, "quota": True} | NO_FOLDERS
    with pytest.raises(SettingsError, match="flag --limiters-quota: unknown"):
        load(settings_type(), file=None, env={}, argv=flags)


def test_its_level_condition_delivery_and_reachability_are_on_the_gpunode(handle: Handle) -> None:
    isolation = Isolation(handle, TABLE, [WAY])
    seen = observation(card(0), card(1))
    isolation.look(seen)
    wanted = desired("n1", judged(seen, isolation.effects))
    enforced = isolation.enforce(wanted.inventory, 0.0, {"plugged": "yes"})
    status = status_of(wanted.under(enforced), previous={}, now=0.0)
    delivery = status["delivery"]
    assert status["isolation"] == ["quota", "watch"], "a container has one of quota and the library: the first"
    assert (delivery["mounts"], delivery["oneGpuPerContainer"]) == (BY_CDI, True)
    assert [(each["health"], each["reason"]) for each in status["gpus"]] == [
        ("Healthy", ""),
        ("Unhealthy", "unplugged"),
    ]
    kinds = {each["type"]: each["message"] for each in status["conditions"]}
    assert kinds["Quotas"] == "quotas are set"
    assert set(kinds) == {"Ready", "LimitsReachContainers", "Quotas", "PreloadedLibrary"}


def test_its_edits_are_in_the_cdi_description_and_others_serve_the_rest(handle: Handle) -> None:
    isolation = Isolation(handle, TABLE)
    isolation.look(Observation())
    isolation.apply(inventory(gpu("GPU-0"), gpu("MIG-1")), PLUGGED)
    assert devices(handle) == {
        "GPU-0": {"env": ["GPUFRACTION_ISOLATION=quota", "QUOTA=/quota"], "mounts": [MOUNT]},
        "MIG-1": {"env": ["GPUFRACTION_ISOLATION=none"]},
    }
    Isolation(handle, {PRELOAD: MECHANISMS[PRELOAD], QUOTA: ENTRY}).apply(inventory(gpu("GPU-0")), PLUGGED)
    assert devices(handle)["GPU-0"]["env"] == ["GPUFRACTION_ISOLATION=quota", "QUOTA=/quota"], "nothing was looked at"


@pytest.mark.parametrize(
    ("delivery", "gpus", "levels"),
    [
        (PLUGGED, [gpu("GPU-0")], ("quota", "watch")),
        (PLUGGED, [gpu("GPU-0"), gpu("MIG-1", parent="GPU-0")], ("watch",)),
        (Delivery(("",)), [gpu("GPU-0")], ("watch",)),
        (PLUGGED, [], ("watch",)),
        (None, [gpu("GPU-0")], ("watch",)),
    ],
    ids=["limited", "one GPU is not", "edits reach nobody", "no GPU takes pods", "delivery unknown"],
)
def test_its_level_counts_where_it_limits_every_gpu_that_takes_pods(
    handle: Handle, delivery: Delivery | None, gpus: list[Gpu], levels: tuple[str, ...]
) -> None:
    isolation = Isolation(handle, TABLE)
    isolation.look(Observation())
    isolation.apply(inventory(*gpus), delivery)
    assert isolation.levels() == levels


def test_its_effects_are_in_metrics_reports_and_looks(handle: Handle) -> None:
    residents = Residents()
    allocation = Allocation("a", "n1", (ContainerAllocation("main", (GpuShare("GPU-0", 0, MIB, 0, 100 * MIB),)),))
    annotations = {"gpufraction.io/allocation": codec.allocation_to_text(allocation)}
    pod = {"metadata": {"namespace": "team", "name": "p", "uid": "uid-p", "annotations": annotations}}
    residents.event(Replaced([pod]))
    isolation, metrics = Isolation(replace(handle, pods=residents), TABLE), Metrics(metrics_of("nodeagent"))
    isolation.look(Observation())
    assert isolation.reports(5.0) == frozenset({PodReport(5, "uid-p", UNHEALTHY, 0, "GPU-0")})
    cards = judged(observation(card(0), card(9)), isolation.effects).cards
    assert cards == (card(0), card(9, healthy=False, reason="no quota there"))
    assert list(isolation.workers) == ["quotas"]
    gauges = AgentGauges(metrics, node="n1")
    gauges.show_mechanisms(isolation.effects)
    gauges.show_isolation(isolation.enforced())
    shown = {name: value for name, value in series(metrics).items() if value}
    assert shown == {
        'gpufraction_mps_clients{gpu="GPU-0",node="n1"}': 7,
        'gpufraction_node_isolation{level="watch",node="n1"}': 1,
    }
    assert 'gpufraction_node_isolation{level="quota",node="n1"}' in series(metrics)
    gauges.show_mechanisms(Effects())
    assert not any("clients" in name for name in series(metrics))
