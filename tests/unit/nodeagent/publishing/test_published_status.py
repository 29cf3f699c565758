"""What is published for each observation."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from contract.encoding import moments
from contract.model import Gpu, Inventory
from contract.nodes.capacity import Amounts, Reserve
from contract.nodes.inventories import inventory_from_object
from contract.reasons.gpunodes import GPUNodeReason
from nodeagent.conditions import Condition
from nodeagent.gpus.library import Card, DriverGone, GpuLibraryError
from nodeagent.gpus.observation import Observation, look
from nodeagent.isolation.host import HostSystem
from nodeagent.isolation.levels import Enforcement
from nodeagent.publishing.status import Terms, desired, status_of, usable
from tests.unit.nodeagent.builders import BLIND, MIB, T4, card, observation

HOUR = 3600.0
TERMS = Terms(reserve=Reserve(256 * MIB), host=HostSystem("6.8.0-45-generic", "v2"))


def test_a_status_is_complete_and_the_allocator_reads_back_what_was_meant() -> None:
    wanted = desired("n1", observation(card(0), card(1, healthy=False, reason="XID 79")), terms=TERMS)
    wanted = replace(wanted, heartbeat=130)
    status = status_of(wanted, previous={}, now=1_000_000_000.9)
    assert status == {
        "driverVersion": "550.54.15",
        "cudaVersion": "12.4",
        "problem": "",
        "kernelVersion": "6.8.0-45-generic",
        "cgroupMode": "v2",
        "delivery": None,
        "isolation": [],
        "isolationProof": None,
        "pool": "",
        "options": [],
        "heartbeatSeconds": 130,
        "idle": None,
        "reports": None,
        "observedAt": "2001-09-09T01:46:40Z",
        "gpus": [
            {
                "uuid": "GPU-0",
                "index": 0,
                "model": "Tesla T4",
                "memoryBytes": T4,
                "usableBytes": T4 - 256 * MIB,
                "health": "Healthy",
                "reason": "",
            },
            {
                "uuid": "GPU-1",
                "index": 1,
                "model": "Tesla T4",
                "memoryBytes": T4,
                "usableBytes": T4 - 256 * MIB,
                "health": "Unhealthy",
                "reason": "XID 79",
            },
        ],
        "summary": {"gpus": 2, "healthy": 1, "models": "Tesla T4", "memory": "29706Mi"},
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "SomeGPUsUnhealthy",
                "message": "1 of 2 GPUs are healthy; GPU 1: XID 79",
                "lastTransitionTime": "2001-09-09T01:46:40Z",
            }
        ],
    }
    assert inventory_from_object({"metadata": {"name": "n1"}, "status": status}) == wanted.inventory


@dataclass(frozen=True)
class Seen:
    observation: Observation
    gpus: tuple[Gpu, ...]
    condition: Condition
    amounts: Amounts
    problem: str = ""


def gpu(index: int, **changes: object) -> Gpu:
    return Gpu(**{"uuid": f"GPU-{index}", "index": index, "model": "Tesla T4", "memory": T4, "usable": T4, **changes})  # type: ignore[arg-type]


LOOKS = {
    "well cards are published in the order of their index": Seen(
        observation(card(1), card(0)),
        (gpu(0), gpu(1)),
        Condition(True, GPUNodeReason.ALL_HEALTHY, "2 of 2 GPUs are healthy"),
        Amounts(2 * T4, 200),
    ),
    "a sick card keeps its part of the capacity, because pods still hold shares of it": Seen(
        observation(card(0), card(1, healthy=False, reason="lost")),
        (gpu(0), gpu(1, healthy=False, reason="lost")),
        Condition(True, GPUNodeReason.SOME_UNHEALTHY, "1 of 2 GPUs are healthy; GPU 1: lost"),
        Amounts(2 * T4, 200),
    ),
    "no well card at all is not ready": Seen(
        observation(card(0, healthy=False, reason="lost")),
        (gpu(0, healthy=False, reason="lost"),),
        Condition(False, GPUNodeReason.NONE_HEALTHY, "0 of 1 GPUs are healthy; GPU 0: lost"),
        Amounts(T4, 100),
    ),
    "a card without a name is told of and given to nobody": Seen(
        observation(card(0), card(1, uuid="")),
        (gpu(0),),
        Condition(True, GPUNodeReason.SOME_UNHEALTHY, "1 of 2 GPUs are healthy; GPU 1: has no UUID of its own"),
        Amounts(T4, 100),
    ),
    "a machine without a driver has nothing, and says why": Seen(
        BLIND,
        (),
        Condition(False, GPUNodeReason.DRIVER_GONE, "the NVIDIA kernel driver is not loaded"),
        Amounts(0, 0),
        "the NVIDIA kernel driver is not loaded",
    ),
}


@pytest.mark.parametrize("case", LOOKS.values(), ids=LOOKS.keys())
def test_what_is_published_of_a_look(case: Seen) -> None:
    wanted = desired("n1", case.observation)
    driver, cuda = case.observation.driver, case.observation.cuda
    assert wanted.inventory == Inventory("n1", case.gpus, driver, cuda, case.problem)
    assert (wanted.condition, wanted.amounts) == (case.condition, case.amounts)


def test_two_cards_of_one_name_are_published_once() -> None:
    assert desired("n1", observation(card(0), card(1, uuid="GPU-0"))).inventory.gpus == (gpu(0),)


def test_a_text_is_cut_to_what_the_schema_takes() -> None:
    wanted = desired("n1", observation(card(0, healthy=False, reason="x" * 5000)))
    assert wanted.inventory.gpus[0].reason == "x" * 1023 + "…"


RESERVES = {
    "nothing kept back gives all away": (Reserve(), 0, 16 * MIB),
    "the reserve is kept back": (Reserve(4 * MIB), 0, 12 * MIB),
    "percent of the card are kept back": (Reserve(percent=50), 0, 8 * MIB),
    "the greater of bytes and percent counts": (Reserve(4 * MIB, 50), 0, 8 * MIB),
    "the driver's own share counts towards the reserve": (Reserve(4 * MIB), 3, 12 * MIB),
    "what the driver keeps cannot be given away, whatever the reserve": (Reserve(4 * MIB), 5, 11 * MIB),
    "a card smaller than the reserve gives nothing": (Reserve(99 * MIB), 0, 0),
}


@pytest.mark.parametrize(("reserve", "driver", "want"), RESERVES.values(), ids=RESERVES.keys())
def test_usable_memory(reserve: Reserve, driver: int, want: int) -> None:
    assert usable(card(memory_bytes=16 * MIB, reserved_bytes=driver * MIB), reserve) == want


def slices(*models: str) -> list[Card]:
    return [card(0, uuid=f"MIG-{n}", model=m, memory_bytes=5 * MIB, parent="GPU-0") for n, m in enumerate(models)]


CUT = card(0, sliced=True, healthy=False, reason="in MIG mode")
STRATEGIES = {
    "mixed publishes every slice beside its card": (
        "mixed",
        [CUT, *slices("a", "b"), card(1)],
        [0, 5 * MIB, 5 * MIB, T4],
    ),
    "none publishes no slice": ("none", [CUT, *slices("a", "b"), card(1)], [0, T4]),
    "single refuses cards that are not cut": ("single", [CUT, *slices("a", "a"), card(1)], [0, T4]),
    "single refuses slices of several kinds": ("single", [CUT, *slices("a", "b")], [0]),
    "single publishes slices of one kind": ("single", [CUT, *slices("a", "a")], [0, 5 * MIB, 5 * MIB]),
}


@pytest.mark.parametrize(("mig", "cards", "want"), STRATEGIES.values(), ids=STRATEGIES.keys())
def test_slices_are_published_by_strategy(mig: str, cards: list[Card], want: list[int]) -> None:
    wanted = desired("n1", observation(*cards), terms=Terms(mig=mig))
    assert [gpu.usable for gpu in wanted.inventory.gpus] == want
    assert wanted.condition.reason == "AllGPUsHealthy"


def test_a_cordoned_card_takes_no_new_pods_and_stays_in_the_sum() -> None:
    wanted = desired("n1", observation(card(0), card(1)), terms=Terms(cordoned=frozenset({"GPU-1"})))
    message = "cordoned by the annotation gpufraction.io/cordon of its Node"
    assert wanted.inventory.gpus == (gpu(0), gpu(1, healthy=False, withheld="Cordoned", reason=message))
    assert (wanted.amounts, wanted.condition.reason) == (Amounts(2 * T4, 200), "AllGPUsHealthy")


def test_a_gpu_that_no_container_can_get_takes_no_new_pods_and_stays_in_the_sum() -> None:
    held = Enforcement(unreachable={"GPU-1": "its device file is missing", "GPU-gone": "never seen"})
    wanted = desired("n1", observation(card(0), card(1))).under(held)
    assert wanted.inventory.gpus == (gpu(0), gpu(1, healthy=False, reason="its device file is missing"))
    assert (wanted.amounts, wanted.condition.reason) == (Amounts(2 * T4, 200), "AllGPUsHealthy")


def test_a_gpu_that_is_unhealthy_itself_keeps_its_reason() -> None:
    sick = card(1, healthy=False)
    wanted = desired("n1", observation(card(0), sick))
    assert wanted.under(Enforcement(unreachable={"GPU-1": "no file"})).inventory.gpus == wanted.inventory.gpus


def test_a_card_that_is_not_ours_is_published_and_not_in_the_sum() -> None:
    terms = Terms(shared=frozenset({"GPU-1"}), not_shared="it is the device plugin's")
    wanted = desired("n1", observation(card(0), card(1)), terms=terms)
    message = gpu(0, healthy=False, withheld="NotShared", reason="it is the device plugin's")
    assert (wanted.inventory.gpus, wanted.amounts) == ((message, gpu(1)), Amounts(T4, 100))


def test_a_condition_keeps_its_transition_time_while_its_status_stays() -> None:
    well, sick = (
        desired("n1", observation(card(0), card(1))),
        desired("n1", observation(card(0), card(1, healthy=False))),
    )
    first = status_of(well, previous={}, now=0)
    second = status_of(sick, previous=first, now=HOUR)
    third = status_of(desired("n1", BLIND), previous=second, now=2 * HOUR)
    times = [status["conditions"][0]["lastTransitionTime"] for status in (first, second, third)]
    assert times == [moments.stamp(0), moments.stamp(0), moments.stamp(2 * HOUR)]


class Machine:
    """A library that shows what it is given."""

    def __init__(self, cards: tuple[Card, ...] = (), error: GpuLibraryError | None = None) -> None:
        self._cards, self._error = cards, error

    def driver_version(self) -> str:
        return "550.54.15"

    def cuda_version(self) -> str:
        return "12.4"

    def gpus(self) -> tuple[Card, ...]:
        if self._error:
            raise self._error
        return self._cards


SIGHTS = {
    "cards": (Machine((card(0),)), observation(card(0))),
    "a driver without cards": (
        Machine(),
        Observation((), "550.54.15", "12.4", "the driver works but reports no GPU", GPUNodeReason.NO_GPU),
    ),
    "no driver": (Machine(error=DriverGone("gone")), Observation(problem="gone", reason=GPUNodeReason.DRIVER_GONE)),
}


@pytest.mark.parametrize(("machine", "want"), SIGHTS.values(), ids=SIGHTS.keys())
def test_a_look_never_fails(machine: Machine, want: Observation) -> None:
    assert look(machine) == want
