"""The real bindings with a fake library: loading, structures, error codes, old drivers, recovery."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contract.model import Allocation, ContainerAllocation, GpuShare
from nodeagent.gpus.library import Card
from nodeagent.gpus.observation import Observation
from nodeagent.sharing.idleness import computing_nothing
from nodeagent.sharing.residents import Resident
from nodeagent.sharing.usage import measure
from tests.unit.nodeagent.builders import MIB

FAKE = Path(__file__).parents[1] / "fake_nvml"
ROOT = Path(__file__).parents[4]
TWO = """\
driver 550.54.15
cuda 12040
gpu GPU-aaaa Tesla T4
gpu GPU-bbbb NVIDIA A10
memory 0 15842934784 471859200 104857600
memory 1 24146608128 0 0
busy 0 37
"""
T4 = Card(
    0,
    "GPU-aaaa",
    "Tesla T4",
    15109 * MIB,
    450 * MIB,
    used_bytes=100 * MIB,
    utilisation=37,
    processes=(),
    busy=(),
    active=(),
)
A10 = Card(1, "GPU-bbbb", "NVIDIA A10", 23028 * MIB, used_bytes=0, utilisation=0, processes=(), busy=(), active=())


def _pairs(listed: list[list[int]] | None) -> tuple[tuple[int, int], ...] | None:
    return None if listed is None else tuple((pid, used) for pid, used in listed)


def card_from_json(fields: dict[str, Any]) -> Card:
    """A card from JSON, which has lists instead of tuples."""
    return Card(
        **{
            **fields,
            "links": tuple(map(tuple, fields["links"])),
            "xids": tuple(fields["xids"]),
            "processes": _pairs(fields["processes"]),
            "busy": _pairs(fields["busy"]),
            "active": None if fields["active"] is None else tuple(fields["active"]),
            "instances": None if fields["instances"] is None else tuple(fields["instances"]),
        }
    )


class Machine:
    """A fake library, its script, and a process that reads it with the real bindings."""

    def __init__(self, library: Path, script: Path) -> None:
        self._script = script
        self.shows(TWO)
        environment = {**os.environ, "FAKE_NVML_SCRIPT": str(script), "PYTHONPATH": str(ROOT)}
        self._probe = subprocess.Popen(
            [sys.executable, str(FAKE / "probe.py"), str(library)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def shows(self, *lines: str) -> None:
        self._script.write_text("\n".join(lines) + "\n")

    def look(self) -> Observation:
        assert self._probe.stdin is not None
        assert self._probe.stdout is not None
        self._probe.stdin.write("look\n")
        self._probe.stdin.flush()
        seen = json.loads(self._probe.stdout.readline())
        return Observation(**{**seen, "cards": tuple(map(card_from_json, seen["cards"]))})

    def limit(self, uuid: str, group: str, limit: int, soft: int = 0) -> str:
        return str(self._say(f"limit {uuid} {group} {limit} {soft}"))

    def exclusive(self, uuid: str, wish: str = "") -> Any:
        return self._say(f"exclusive {uuid} {wish}")

    def _say(self, line: str) -> Any:
        assert self._probe.stdin is not None
        assert self._probe.stdout is not None
        self._probe.stdin.write(f"{line}\n")
        self._probe.stdin.flush()
        return json.loads(self._probe.stdout.readline())

    def close(self) -> None:
        self._probe.communicate(timeout=10)


@pytest.fixture
def machine(library: Path, tmp_path: Path) -> Iterator[Machine]:
    made = Machine(library, tmp_path / "script")
    yield made
    made.close()


def test_cards_are_read_whole(machine: Machine) -> None:
    assert machine.look() == Observation((T4, A10), "550.54.15", "12.4")


FATAL = {
    "the driver is not loaded": ("fail nvmlInitWithFlags * 9", "DriverGone", "the NVIDIA kernel driver is not loaded"),
    "the driver goes while it is asked": ("fail nvmlDeviceGetName 1 9", "DriverGone", "driver is not loaded"),
    "the driver was upgraded": ("fail nvmlInitWithFlags * 18", "LibraryOutdated", "restart the agent's pod"),
    "no permission": ("fail nvmlDeviceGetCount_v2 * 4", "NoPermission", "/dev/nvidiactl"),
    "an unknown code": ("fail nvmlDeviceGetCount_v2 * 999", "LibraryBroken", "NVML code 999"),
}


@pytest.mark.parametrize(("line", "reason", "words"), FATAL.values(), ids=FATAL.keys())
def test_a_failure_of_the_machine_is_reported_and_overcome(
    machine: Machine, line: str, reason: str, words: str
) -> None:
    machine.shows(TWO, line)
    seen = machine.look()
    assert (seen.cards, seen.reason) == ((), reason)
    assert words in seen.problem
    machine.shows(TWO)
    assert machine.look() == Observation((T4, A10), "550.54.15", "12.4")


def sick(reason: str, card: Card = T4) -> Card:
    return Card(card.index, card.uuid, card.model, card.memory_bytes, card.reserved_bytes, healthy=False, reason=reason)


LOST = "the GPU has fallen off the bus: GPU is lost (NVML code 15)"


def test_a_lost_card_keeps_its_name_and_the_others_stay_well(machine: Machine) -> None:
    machine.look()
    machine.shows(TWO, "fail nvmlDeviceGetHandleByIndex_v2 0 15")
    assert machine.look().cards == (sick(LOST), A10)
    machine.shows(TWO)
    assert machine.look().cards == (T4, A10)


def test_a_card_that_was_lost_before_the_start_has_no_name(machine: Machine) -> None:
    machine.shows(TWO, "fail nvmlDeviceGetUUID 0 15")
    assert machine.look().cards == (Card(0, "", "", 0, healthy=False, reason=LOST), A10)


def test_a_card_whose_index_went_to_another_is_not_reported_by_that_name(machine: Machine) -> None:
    machine.look()
    shifted = TWO.replace(
        "gpu GPU-aaaa Tesla T4\ngpu GPU-bbbb NVIDIA A10", "gpu GPU-bbbb NVIDIA A10\ngpu GPU-aaaa Tesla T4"
    )
    machine.shows(shifted, "fail nvmlDeviceGetHandleByIndex_v2 1 15")
    first, second = machine.look().cards
    assert (first.uuid, first.healthy) == ("GPU-bbbb", True)
    assert (second.uuid, second.healthy, second.reason) == ("", False, LOST)


def test_a_card_in_mig_mode_is_not_shared_as_a_whole(machine: Machine) -> None:
    machine.shows(TWO, "mig 0 1")
    (card, _) = machine.look().cards
    assert (card.healthy, card.sliced) == (False, True)
    assert card.reason == "the GPU is in MIG mode and cannot be shared as a whole"


def test_the_slices_of_a_card_follow_it(machine: Machine) -> None:
    slices = [f"slice 0 MIG-{name} {5 << 30} A100 MIG 1g.5gb" for name in "ab"]
    machine.shows(TWO, "mig 0 1", "capability 0 8 0", *slices)
    parent, first, second, other = machine.look().cards
    assert (parent.sliced, other) == (True, A10)
    want = Card(0, "MIG-a", "A100 MIG 1g.5gb", 5 << 30, used_bytes=0, processes=(), capability="8.0", parent="GPU-aaaa")
    assert (first, second) == (want, replace(want, uuid="MIG-b"))


def test_a_slice_tells_its_instances(machine: Machine) -> None:
    """The driver's own numbers, not the position among the slices. Both are needed; otherwise there are none."""
    slices = [f"slice 0 MIG-{name} {5 << 30} A100 MIG 1g.5gb" for name in "ab"]
    known = ("mig 0 1", *slices, "instances 0 MIG-a 9 0", "instances 0 MIG-b 2 1")
    machine.shows(TWO, *known)
    assert [card.instances for card in machine.look().cards] == [None, (9, 0), (2, 1), None]
    machine.shows(TWO, *known, "fail nvmlDeviceGetComputeInstanceId 0 3")
    assert [card.instances for card in machine.look().cards] == [None] * 4


MIG = ("mig 0 1", f"slice 0 MIG-a {5 << 30} A100 MIG 1g.5gb")
SLICES_LOST = {
    "with its card": ("fail nvmlDeviceGetUUID 0 15", LOST, LOST),
    "between two questions": (
        "fail nvmlDeviceGetMaxMigDeviceCount 0 15",
        "the GPU is in MIG mode and cannot be shared as a whole",
        LOST,
    ),
    "by a row of its card that waits for a reset": (
        "rows 0 1 0",
        "a row of the GPU's memory waits to be replaced; the GPU needs a reset",
        "a row of the GPU's memory waits to be replaced; the GPU needs a reset",
    ),
}


@pytest.mark.parametrize(("line", "card", "part"), SLICES_LOST.values(), ids=SLICES_LOST.keys())
def test_a_slice_is_unwell_with_its_card_and_the_others_stay_well(
    machine: Machine, line: str, card: str, part: str
) -> None:
    machine.shows(TWO, *MIG)
    before = machine.look().cards
    assert [(one.uuid, one.healthy) for one in before] == [("GPU-aaaa", False), ("MIG-a", True), ("GPU-bbbb", True)]
    machine.shows(TWO, *MIG, line)
    shown = [(one.uuid, one.healthy, one.reason) for one in machine.look().cards]
    assert shown == [("GPU-aaaa", False, card), ("MIG-a", False, part), ("GPU-bbbb", True, "")]
    machine.shows(TWO, *MIG)
    assert machine.look().cards == before


def test_where_a_card_sits_and_how_it_reaches_the_others(machine: Machine) -> None:
    machine.shows(
        TWO, "pci 0 00000000:3b:00.0", "capability 0 7 5", "numa 0 1", "nvlinks 0 4", "path 0 1 30 1", "ecc 0 2"
    )
    here = replace(T4, pci="00000000:3B:00.0", capability="7.5", numa=1, nvlinks=4, ecc=2)
    assert machine.look().cards[0] == replace(here, links=(("GPU-bbbb", "NVLink"),))
    machine.shows(TWO.replace("bbbb", "cccc"), "path 0 1 30 0")
    assert machine.look().cards[0].links == (("GPU-cccc", "HostBridge"),)


ROWS = {
    "a row that waits for a reset": ("rows 0 1 0", "the GPU needs a reset"),
    "a row that cannot be replaced": ("rows 0 1 1", "the card must be"),
}


@pytest.mark.parametrize(("line", "words"), ROWS.values(), ids=ROWS.keys())
def test_broken_memory_makes_a_card_sick_for_as_long_as_it_lasts(machine: Machine, line: str, words: str) -> None:
    machine.shows(TWO, line)
    (card, other) = machine.look().cards
    assert (card.healthy, words in card.reason, other) == (False, True, A10)
    machine.shows(TWO)
    assert machine.look().cards == (T4, A10)


def test_the_processes_of_a_card_with_their_memory(machine: Machine) -> None:
    machine.shows(TWO, "process 0 4711 1048576", "process 0 42 5", "process 1 42 7")
    assert [card.processes for card in machine.look().cards] == [((42, 5), (4711, MIB)), ((42, 7),)]


def test_what_part_of_a_card_each_process_keeps_busy(machine: Machine) -> None:
    machine.shows(TWO, "process 0 4711 1048576", "process 0 42 5", "load 0 4711 30", "load 0 42 0", "process 1 42 7")
    assert [card.busy for card in machine.look().cards] == [((42, 5), (4711, 35)), ()]


def test_a_process_that_uses_any_engine_of_a_card_is_active(machine: Machine) -> None:
    """A process that only has memory there is not active."""
    machine.shows(TWO, *(f"process 0 {pid} 5" for pid in (7, 8, 9)), "load 0 7 0", "video 0 8 5", "process 1 9 7")
    assert [card.active for card in machine.look().cards] == [(7, 8), ()]


CONTAINERS = {pid: f"0::/kubepods/pod{pid}/{digit * 64}" for pid, digit in ((7, "a"), (8, "b"))}
QUIET = {
    "nobody computes, and the card does not": (("busy 0 0",), {"seven", "eight"}),
    "one computes": (("load 0 7 30",), {"eight"}),
    "one decodes video": (("busy 0 0", "video 0 8 5"), {"seven"}),
    "the card computes, and the driver does not say for whom": ((), set()),
    "somebody else computes": (("process 0 9 5", "load 0 9 1"), set()),
    "the driver does not tell": (("busy 0 0", "fail nvmlDeviceGetProcessUtilization 0 4"), set()),
    "the card is lost": (("fail nvmlDeviceGetHandleByIndex_v2 0 15",), set()),
}


@pytest.mark.parametrize("case", QUIET.values(), ids=QUIET.keys())
def test_from_the_library_to_the_pods_that_compute_nothing(
    machine: Machine, case: tuple[tuple[str, ...], set[str]]
) -> None:
    """Two pods share the first card; each has a process with memory there."""
    lines, quiet = case
    machine.look()
    machine.shows(TWO, "process 0 7 5", "process 0 8 5", *lines)
    share = (ContainerAllocation("main", (GpuShare("GPU-aaaa", 0, MIB, 0, MIB),)),)
    pods = [
        Resident(name, "team", name, Allocation(name, "n1", share), containers=((digit * 64, "main"),))
        for name, digit in (("seven", "a"), ("eight", "b"))
    ]
    usage = measure(machine.look().cards, pods, lambda pid: CONTAINERS.get(pid, "0::/system.slice/sshd.service"))
    assert set(computing_nothing(usage)) == quiet


REFUSED = (
    "nvmlDeviceGetProcessUtilization",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceGetRemappedRows",
)


@pytest.mark.parametrize("function", REFUSED)
def test_to_be_refused_one_figure_costs_that_figure_only(machine: Machine, function: str) -> None:
    machine.shows(TWO, f"fail {function} 0 4")
    (card, other) = machine.look().cards
    assert (replace(card, processes=(), busy=(), active=()), other) == (T4, A10)
    assert None in (card.processes, card.busy) or function not in (REFUSED[0], REFUSED[1])


GROUP = "/sys/fs/cgroup/kubepods.slice/cri-containerd-a.scope"


def test_memory_is_limited_per_group_and_read_back(machine: Machine) -> None:
    assert [machine.limit("GPU-aaaa", GROUP, limit) for limit in (2 << 30, 1 << 30, 0)] == ["", "", ""]
    assert machine.limit("GPU-aaaa", GROUP, 2 << 30, 1 << 30) == ""


NOT_LIMITED = {
    "a GPU that is not here": ("GPU-zzzz", "", "(NVML code 6)"),
    "a card in MIG mode": ("GPU-aaaa", "mig 0 1", "(NVML code 3)"),
    "no right to": ("GPU-aaaa", "fail nvmlDeviceSetMemoryLimits_v1 0 4", "(NVML code 4)"),
    "no driver": ("GPU-aaaa", "fail nvmlDeviceSetMemoryLimits_v1 0 9", "not loaded"),
    "more than the card has": ("GPU-aaaa", "memory 0 1000000000 0 0", "(NVML code 2)"),
}


@pytest.mark.parametrize(("uuid", "line", "words"), NOT_LIMITED.values(), ids=NOT_LIMITED.keys())
def test_a_limit_that_was_not_set_is_reported(machine: Machine, uuid: str, line: str, words: str) -> None:
    machine.shows(TWO, line)
    assert words in machine.limit(uuid, GROUP, 1 << 30)


def test_a_driver_that_knows_no_limits_says_so(build: Callable[[Sequence[str]], Path], tmp_path: Path) -> None:
    machine = Machine(build(["nvmlDeviceSetMemoryLimits_v1"]), tmp_path / "script")
    assert "(NVML code 13)" in machine.limit("GPU-aaaa", GROUP, 1 << 30)
    machine.close()


def test_each_xid_is_reported_once_for_its_card(machine: Machine) -> None:
    machine.look()
    events = ["xid 0 13", "xid 1 79", "xid 0 48"]
    machine.shows(TWO, *events)
    assert [card.xids for card in machine.look().cards] == [(13, 48), (79,)]
    assert [card.xids for card in machine.look().cards] == [(), ()]
    machine.shows(TWO, *events, "xid - 95")
    assert [card.xids for card in machine.look().cards] == [(95,), (95,)], "an event of no card is one of every card"


def test_a_driver_without_events_still_tells_figures(build: Callable[[Sequence[str]], Path], tmp_path: Path) -> None:
    machine = Machine(
        build(["nvmlEventSetCreate", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetNumaNodeId"]), tmp_path / "script"
    )
    machine.shows(TWO, "xid 0 79")
    assert machine.look().cards == (T4, A10)
    machine.close()


def test_a_card_without_memory_of_its_own_is_not_shared(machine: Machine) -> None:
    machine.shows(TWO, "fail nvmlDeviceGetMemoryInfo_v2 0 3", "fail nvmlDeviceGetMemoryInfo 0 3")
    (card, _) = machine.look().cards
    reason = "the driver does not report how much memory this GPU has"
    assert card == Card(
        0, "GPU-aaaa", "Tesla T4", 0, healthy=False, reason=reason, utilisation=37, processes=(), busy=(), active=()
    )


def test_text_that_is_not_utf8_is_a_fault_of_that_card(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "script").write_bytes(TWO.encode().replace(b"Tesla T4", b"Tesla \xff"))
    (card, other) = machine.look().cards
    assert (card.healthy, other) == (False, A10)
    assert "nvmlDeviceGetName returned text that is not UTF-8" in card.reason


def test_a_machine_without_cards(machine: Machine) -> None:
    machine.shows("driver 550.54.15")
    assert (machine.look().reason, machine.look().driver) == ("NoGPU", "550.54.15")


OLD = {
    "before 510: the driver's reserve counts as used": (
        ["nvmlDeviceGetMemoryInfo_v2"],
        Card(
            *(0, "GPU-aaaa", "Tesla T4", 15109 * MIB),
            used_bytes=550 * MIB,
            utilisation=37,
            processes=(),
            busy=(),
            active=(),
        ),
    ),
    "no utilisation and no MIG": (
        ["nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMigMode", "nvmlDeviceGetProcessUtilization"],
        Card(0, "GPU-aaaa", "Tesla T4", 15109 * MIB, 450 * MIB, used_bytes=100 * MIB, processes=()),
    ),
}


@pytest.mark.parametrize(("without", "want"), OLD.values(), ids=OLD.keys())
def test_what_an_old_driver_lacks_costs_that_figure_only(
    build: Callable[[Sequence[str]], Path], tmp_path: Path, without: list[str], want: Card
) -> None:
    machine = Machine(build(without), tmp_path / "script")
    assert machine.look().cards[0] == want
    machine.close()


def test_a_library_that_is_not_there(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "none.so", tmp_path / "script")
    seen = machine.look()
    machine.close()
    assert (seen.reason, seen.problem.startswith(f"{tmp_path}/none.so cannot be loaded")) == ("LibraryMissing", True)


def test_the_compute_mode_is_read_set_and_put_back(machine: Machine) -> None:
    assert machine.exclusive("GPU-aaaa") is False
    answers = [machine.exclusive("GPU-aaaa", wish) for wish in ("yes", "", "no", "")]
    assert answers == ["", True, "", False]
    machine.shows(TWO, "mode 0 3", "fail nvmlDeviceSetComputeMode 1 4")
    assert machine.exclusive("GPU-bbbb", "yes").startswith("the driver did not change the compute mode of GPU-bbbb")
    assert (machine.exclusive("GPU-bbbb"), machine.exclusive("GPU-gone")) == (False, None)
    machine.shows(TWO, "fail nvmlInitWithFlags * 9", "fail nvmlDeviceGetHandleByUUID * 9")
    assert (machine.exclusive("GPU-aaaa"), "not loaded" in machine.exclusive("GPU-aaaa", "yes")) == (None, True)
