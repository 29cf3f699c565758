"""Memory limits by the driver follow the containers."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from contract import names
from contract.encoding import codec
from contract.isolation import DRIVER
from contract.model import Allocation, ContainerAllocation, GpuShare
from nodeagent.gpus.library import MemoryLimit
from nodeagent.gpus.observation import Observation
from nodeagent.isolation.driver import (
    _NOWHERE,
    Group,
    LimitedByDriver,
    Limiter,
    container_groups,
    possible,
    wanted_limits,
)
from nodeagent.isolation.levels import MECHANISMS, Isolation
from nodeagent.isolation.mechanism import Handle, MechanismEntry
from nodeagent.sharing.residents import Resident, Residents
from runtime.kubernetes.watch import Put
from runtime.settings import NoSettings
from tests.unit.nodeagent.builders import BLIND, MIB, card
from tests.unit.nodeagent.sharing.test_usage_and_overuse import ONE, TWO, P, Q, pod

SHARE = 100 * MIB
THREE = "c" * 64
ALLOCATED = codec.allocation_to_text(
    Allocation("a", "n1", (ContainerAllocation("main", (GpuShare("GPU-0", 0, SHARE, 0, 1 << 34),)),))
)
POD_WITH_SHARE = {
    "metadata": {"name": "p", "namespace": "team", "uid": "uid-p", "annotations": {str(names.ALLOCATION): ALLOCATED}}
}


@dataclass
class Driver:
    """Accepts limits until it is told to refuse them."""

    refusal: str = ""
    limits: dict[tuple[str, str], int] = field(default_factory=dict)
    kept: dict[tuple[str, str], int] = field(default_factory=dict)
    calls: int = 0

    def limit_memory(self, uuid: str, group: str, limit: MemoryLimit | None) -> str:
        self.calls += 1
        if self.refusal:
            return self.refusal
        if limit is None:
            self.limits.pop((uuid, group), None)
            self.kept.pop((uuid, group), None)
        else:
            self.limits[uuid, group], self.kept[uuid, group] = limit.hard, limit.soft
        return ""


def test_limits_are_set_once_and_cleared_with_the_container() -> None:
    driver, groups = Driver(), {ONE: Group("uid-p", "/g/one")}
    limiter = Limiter(driver, lambda pods: groups)
    limiter.apply((P, Q))
    assert driver.limits == {("GPU-0", "/g/one"): SHARE, ("GPU-1", "/g/one"): SHARE}, "q has no group yet"
    groups[TWO] = Group("uid-q", "/g/two")
    limiter.apply((P, Q))
    limiter.apply((P, Q))
    assert (driver.calls, driver.limits["GPU-0", "/g/two"]) == (3, SHARE)
    limiter.apply((Q,))
    assert driver.limits == {("GPU-0", "/g/two"): SHARE}
    limiter.apply((pod("q", TWO, "GPU-0", mib=50),))
    assert driver.limits == {("GPU-0", "/g/two"): SHARE // 2}


def test_a_refusal_is_reported_and_retried() -> None:
    driver = Driver(refusal="no")
    limiter = Limiter(driver, lambda pods: {TWO: Group("uid-q", "/g/two")})
    limiter.apply((Q,))
    assert limiter.trouble == "no"
    driver.refusal = ""
    limiter.apply((Q,))
    assert (limiter.trouble, driver.limits) == ("", {("GPU-0", "/g/two"): SHARE})


def test_where_kubelet_has_its_groups_elsewhere_nothing_is_enforced() -> None:
    """The level must not be published then; a pod that has no groups yet causes no error."""
    driver = Driver()
    groups: list[dict[str, Group] | None] = [None, {}, {TWO: Group("uid-q", "/g/two")}]
    limiter, troubles = Limiter(driver, lambda pods: groups.pop(0)), []
    for here in ((), (Q,), (Q,)):
        limiter.apply(here)
        troubles.append(limiter.trouble)
    assert troubles == [_NOWHERE, "", ""]
    assert driver.limits == {("GPU-0", "/g/two"): SHARE}


def test_a_group_that_only_sounds_like_kubelets_holds_no_pods(tmp_path: Path) -> None:
    (tmp_path / f"user.slice/kubepods-mine/pod{POD}/{ONE}").mkdir(parents=True)
    (tmp_path / f"kubepods-mine/pod{POD}/{ONE}").mkdir(parents=True)
    assert container_groups(tmp_path, {POD}) is None
    (tmp_path / "kubepods.slice").mkdir()
    assert container_groups(tmp_path, {POD}) == {}


POSSIBLE = {
    "new enough": ("615.71.09", "v2", True),
    "an older driver": ("580.95.05", "v2", False),
    "no driver": ("", "v2", False),
    "the older groups": ("615.71.09", "v1", False),
}


@pytest.mark.parametrize(("driver", "cgroup", "want"), POSSIBLE.values(), ids=POSSIBLE.keys())
def test_where_the_driver_can(driver: str, cgroup: str, want: bool) -> None:
    assert (not possible(driver, cgroup)) == want


def test_a_limit_that_somebody_changed_is_set_again() -> None:
    driver = Driver()
    limiter = Limiter(driver, lambda pods: {TWO: Group("uid-q", "/g/two")})
    limiter.apply((Q,))
    driver.limits.clear()
    limiter.apply((Q,))
    assert driver.limits == {}
    limiter.apply((Q,), again=True)
    assert driver.limits == {("GPU-0", "/g/two"): SHARE}


def shares(*named: tuple[str, int]) -> Allocation:
    return Allocation(
        "a", "n1", tuple(ContainerAllocation(name, (GpuShare("GPU-0", 0, mib, 0, 100),)) for name, mib in named)
    )


def test_a_share_beyond_the_cards_memory_is_limited_to_that() -> None:
    """This applies if memory is oversubscribed. The driver refuses a limit above the card's memory."""
    pod = Resident("uid", "team", "p", shares(("main", 150)))
    assert wanted_limits((pod,), {ONE: Group("uid", "/one")}) == {("GPU-0", "/one"): MemoryLimit(100)}


def test_what_is_booked_is_kept_for_all_on_a_gpu_where_one_may_burst() -> None:
    driver = Driver()
    bursting = GpuShare("GPU-0", 0, SHARE, 30, 1 << 34, burst=2 * SHARE)
    allocation = Allocation("a", "n1", (ContainerAllocation("main", (bursting,)),))
    burster = Resident("uid-r", "team", "r", allocation, containers=((THREE, "main"),))
    groups = {ONE: Group("uid-p", "/one"), TWO: Group("uid-q", "/two"), THREE: Group("uid-r", "/three")}
    limiter = Limiter(driver, lambda pods: groups)
    limiter.apply((P, Q, burster))
    on_first = {("GPU-0", "/one"): SHARE, ("GPU-0", "/two"): SHARE, ("GPU-0", "/three"): SHARE}
    assert driver.limits == {**on_first, ("GPU-0", "/three"): 3 * SHARE, ("GPU-1", "/one"): SHARE}
    assert driver.kept == {**on_first, ("GPU-1", "/one"): 0}
    limiter.apply((P, Q))
    assert set(driver.kept.values()) == {0}


UNNAMED: dict[str, tuple[tuple[tuple[str, str], ...], dict[str, int]]] = {
    "nobody is named yet: each has the least": ((), {"/one": 10, "/two": 10, "/three": 10}),
    "one is named: the others have the least of the rest": (
        ((ONE, "small"),),
        {"/one": 10, "/two": 20, "/three": 20},
    ),
    "one without a share is named": (((THREE, "sidecar"),), {"/one": 10, "/two": 10}),
    "one is named by an id whose group is gone: kubelet restarted it": (
        ((ONE, "small"), ("d" * 64, "big"), (THREE, "sidecar")),
        {"/one": 10, "/two": 20},
    ),
    "all are named": (((ONE, "small"), (TWO, "big"), (THREE, "sidecar")), {"/one": 10, "/two": 20}),
}


@pytest.mark.parametrize(("named", "want"), UNNAMED.values(), ids=UNNAMED.keys())
def test_a_group_is_limited_before_its_container_is_named(
    named: tuple[tuple[str, str], ...], want: dict[str, int]
) -> None:
    pod = Resident("uid", "team", "p", shares(("small", 10), ("big", 20)), containers=named)
    groups = {cid: Group("uid", path) for cid, path in ((ONE, "/one"), (TWO, "/two"), (THREE, "/three"))}
    groups["e" * 64] = Group("another pod", "/four")
    assert wanted_limits((pod,), groups) == {("GPU-0", path): MemoryLimit(limit) for path, limit in want.items()}


POD = "0a1b2c3d-0000-4000-8000-00000000000a"
OTHER = "0a1b2c3d-0000-4000-8000-00000000000b"
SYSTEMD = f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD.replace('-', '_')}.slice"
FOLDERS = {
    "systemd, burstable": (f"{SYSTEMD}/cri-containerd-{ONE}.scope", f"inner/{TWO}"),
    "systemd, guaranteed": (f"kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/crio-{ONE}.scope", "container"),
    "cgroupfs, CRI-O": (f"kubepods/burstable/pod{POD}/crio-{ONE}", "container"),
    "cgroupfs, besteffort": (f"kubepods/besteffort/pod{POD}/{ONE}", "init.scope"),
    "cgroupfs, guaranteed": (f"kubepods/pod{POD}/{ONE}", "init.scope"),
    "systemd, with a root of kubelet's own, as kind has it": (
        f"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/"
        f"kubelet-kubepods-besteffort-pod{POD.replace('-', '_')}.slice/cri-containerd-{ONE}.scope",
        "init.scope",
    ),
    "cgroupfs, with a root of kubelet's own": (f"kubelet/kubepods/pod{POD}/{ONE}", "init.scope"),
}


@pytest.mark.parametrize(("folder", "inner"), FOLDERS.values(), ids=FOLDERS.keys())
def test_the_groups_of_a_pods_containers_are_found(tmp_path: Path, folder: str, inner: str) -> None:
    beside = Path(folder).parts[: 1 if folder.startswith("kubepods") else 2]
    for path in (f"{folder}/{inner}", f"system.slice/docker-{TWO}.scope", f"{'/'.join(beside)}/pod{OTHER}/{TWO}"):
        (tmp_path / path).mkdir(parents=True)
    assert container_groups(tmp_path, {POD}) == {ONE: Group(POD, f"/sys/fs/cgroup/{folder}")}
    assert (container_groups(tmp_path, ()), container_groups(tmp_path / "none", {POD})) == ({}, None)


@pytest.mark.parametrize("digit", "0f")
def test_the_group_of_crios_monitor_is_not_its_containers(tmp_path: Path, digit: str) -> None:
    folder, cid = f"kubepods/pod{POD}", digit * 64
    for name in (f"crio-{cid}", f"crio-conmon-{cid}"):
        (tmp_path / folder / name).mkdir(parents=True)
    assert container_groups(tmp_path, {POD}) == {cid: Group(POD, f"/sys/fs/cgroup/{folder}/crio-{cid}")}


def test_only_what_was_seen_to_work_counts_as_enforced() -> None:
    driver, residents = Driver(), Residents()
    by_driver = LimitedByDriver(Limiter(driver, lambda pods: {}), residents, cgroup="v2")
    table = {**MECHANISMS, DRIVER: MechanismEntry(lambda handle, chosen: by_driver.mechanism, NoSettings)}
    isolation = Isolation(Handle(pods=residents, sees_processes=True), table)
    new = Observation((card(0),), driver="615.71.09")
    levels = [isolation.levels()]
    for look in (new, replace(new, driver="580.1"), BLIND):
        isolation.look(look)
        by_driver.round()
        levels.append(isolation.levels())
    assert levels == [("watch",), ("driver", "watch"), ("watch",), ("watch",)]
    assert Isolation(Handle(pods=residents)).levels() == ()


def test_limits_are_kept_until_the_end() -> None:
    driver, residents, stopping = Driver(), Residents(), threading.Event()
    residents.event(Put(POD_WITH_SHARE))
    looked = []

    def groups(pods: Collection[str]) -> dict[str, Group]:
        looked.append(frozenset(pods))
        if len(looked) == 3:
            stopping.set()
        return {ONE: Group("uid-p", "/g/one")} if len(looked) > 1 else {}

    by_driver = LimitedByDriver(Limiter(driver, groups), residents, cgroup="v2")
    by_driver.look(Observation((card(0),), driver="615.71.09"))
    by_driver.run(stopping, pause=0.0)
    assert (looked, driver.limits) == ([frozenset({"uid-p"})] * 3, {("GPU-0", "/g/one"): SHARE})
    assert driver.calls == 1
