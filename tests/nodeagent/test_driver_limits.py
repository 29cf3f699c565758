"""Memory limits by the driver follow the containers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from nodeagent.driverlimits import Limiter, container_groups, possible
from nodeagent.isolation import Isolation, sees_host_processes
from nodeagent.residents import Residents
from nodeagent.status import Sight
from tests.nodeagent.builders import BLIND, MIB, card
from tests.nodeagent.test_usage_and_watch import ONE, TWO, P, Q, pod

SHARE = 100 * MIB


@dataclass
class Driver:
    """Takes limits, until told to refuse."""

    refusal: str = ""
    limits: dict[tuple[str, str], int] = field(default_factory=dict)
    calls: int = 0

    def limit_memory(self, uuid: str, group: str, limit: int | None) -> str:
        self.calls += 1
        if self.refusal:
            return self.refusal
        if limit is None:
            self.limits.pop((uuid, group), None)
        else:
            self.limits[uuid, group] = limit
        return ""


def test_limits_are_set_once_and_cleared_with_the_container() -> None:
    driver, groups = Driver(), {ONE: "/g/one"}
    limiter = Limiter(driver, lambda: groups)
    limiter.apply((P, Q))
    assert driver.limits == {("GPU-0", "/g/one"): SHARE, ("GPU-1", "/g/one"): SHARE}, "q has no group yet"
    groups[TWO] = "/g/two"
    limiter.apply((P, Q))
    limiter.apply((P, Q))
    assert (driver.calls, driver.limits["GPU-0", "/g/two"]) == (3, SHARE)
    limiter.apply((Q,))
    assert driver.limits == {("GPU-0", "/g/two"): SHARE}
    limiter.apply((pod("q", TWO, "GPU-0", mib=50),))
    assert driver.limits == {("GPU-0", "/g/two"): SHARE // 2}


def test_a_refusal_is_told_and_tried_again() -> None:
    driver = Driver(refusal="no")
    limiter = Limiter(driver, lambda: {TWO: "/g/two"})
    limiter.apply((Q,))
    assert limiter.trouble == "no"
    driver.refusal = ""
    limiter.apply((Q,))
    assert (limiter.trouble, driver.limits) == ("", {("GPU-0", "/g/two"): SHARE})


POSSIBLE = {
    "new enough": ("615.71.09", "v2", True),
    "an older driver": ("580.95.05", "v2", False),
    "no driver": ("", "v2", False),
    "the older groups": ("615.71.09", "v1", False),
}


@pytest.mark.parametrize(("driver", "cgroup", "want"), POSSIBLE.values(), ids=POSSIBLE.keys())
def test_where_the_driver_can(driver: str, cgroup: str, want: bool) -> None:
    assert (not possible(driver, cgroup)) == want


def test_the_groups_of_containers_are_found_below_kubernetes_only(tmp_path: Path) -> None:
    slices = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice"
    for folder in (f"{slices}/cri-containerd-{ONE}.scope/inner/{TWO}", f"system.slice/docker-{TWO}.scope"):
        (tmp_path / folder).mkdir(parents=True)
    assert container_groups(tmp_path) == {ONE: f"/sys/fs/cgroup/{slices}/cri-containerd-{ONE}.scope"}


def test_only_what_was_seen_to_work_counts_as_enforced() -> None:
    driver, residents = Driver(), Residents()
    isolation = Isolation(residents, Limiter(driver, dict), cgroup="v2", watches=True)
    new = Sight((card(0),), driver="615.71.09")
    seen = []
    for look in (new, replace(new, driver="580.1"), BLIND):
        isolation.enforce(look)
        seen.append(isolation.levels())
    assert seen == [("driver", "watch"), ("watch",), ("watch",)]
    assert Isolation(residents, None, cgroup="v2", watches=False).levels() == ()


def test_host_processes_are_known_by_the_kernels_own() -> None:
    assert [sees_host_processes({2: name}.__getitem__) for name in ("kthreadd", "python")] == [True, False]
