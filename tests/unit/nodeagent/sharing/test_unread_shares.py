"""A share that the agent cannot read holds its cards: no pod gets them, and no limit may use their memory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contract import kinds, names
from contract.encoding import codec
from contract.encoding.quantity import MIB
from contract.model import Allocation, ContainerAllocation, Delivery, Gpu, GpuShare, Inventory
from contract.pods import UnreadShare
from contract.reasons.gpunodes import GPUNodeReason
from nodeagent.conditions import Condition
from nodeagent.isolation.driver import Group, LimitedByDriver, Limiter
from nodeagent.isolation.levels import NO_LABELS, Isolation
from nodeagent.isolation.mechanism import Handle
from nodeagent.isolation.mps import MpsLimiterSettings
from nodeagent.mps.exchange import MpsPaths, shares_from_text, wanted_from_text, wanted_to_text
from nodeagent.publishing.status import desired, status_of
from nodeagent.sharing.overuse import OveruseMonitor, OveruseSettings
from nodeagent.sharing.residents import Resident, Residents, resident, trim
from nodeagent.sharing.unread import UnreadShares, unread_shares
from nodeagent.sharing.usage import measure
from runtime.kubernetes.watch import Put, Replaced
from tests.unit.nodeagent.builders import card, observation
from tests.unit.nodeagent.isolation.test_driver_limits import SHARE, Driver
from tests.unit.nodeagent.sharing.test_usage_and_overuse import ONE, TWO, P, groups

CARDS = ("GPU-0", "GPU-1")
SEEN = observation(card(0), card(1))
ALLOCATION, REQUEST = str(names.ALLOCATION), str(names.REQUEST)
WHY = "allocation has version 2, this program reads 1"
LATER = json.dumps({"v": 2, "node": "n1", "slices": [{"of": "GPU-0"}]})
READ = codec.allocation_to_text(
    Allocation("a", "n1", (ContainerAllocation("main", (GpuShare("GPU-0", 0, SHARE, 0, 1 << 34, burst=SHARE),)),))
)


def pod(text: str, name: str = "later", cid: str = TWO, **changes: Any) -> dict[str, Any]:
    """A running pod of this node whose allocation has this text."""
    statuses = [{"name": "main", "containerID": f"containerd://{cid}"}]
    return {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{name}",
            "annotations": {ALLOCATION: text, REQUEST: '{"v":2}'} | changes.pop("annotations", {}),
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "main"}]},
        "status": {"phase": "Running", "containerStatuses": statuses, **changes},
    }


def seen(found: dict[str, Any]) -> dict[str, Any]:
    """The pod as the agent's watch delivers it."""
    return trim(kinds.RESIDENTS.keep(found))


UNREAD = Resident(
    "uid-later",
    "team",
    "later",
    containers=((TWO, "main"),),
    unread=UnreadShare("n1", frozenset({"n1", "GPU-0"}), WHY),
)


def test_a_pod_with_such_a_share_is_a_resident() -> None:
    assert resident(seen(pod(LATER))) == UNREAD
    readable = resident(seen(pod(READ)))
    assert readable is not None
    assert (readable.unread, readable.allocation) == (None, codec.allocation_from_text(READ))


HARMLESS = {
    "a finished pod": pod(LATER, phase="Succeeded"),
    "a kubelet's mirror of a static pod": pod(LATER, annotations={"kubernetes.io/config.mirror": "x"}),
    "a pod that never passed admission": {
        **pod(LATER),
        "metadata": {"name": "p", "namespace": "team", "uid": "u", "annotations": {ALLOCATION: LATER}},
    },
}


@pytest.mark.parametrize("made", HARMLESS.values(), ids=HARMLESS.keys())
def test_pods_that_hold_nothing_are_no_residents(made: dict[str, Any]) -> None:
    assert resident(seen(made)) is None


CLOSED = {
    "the card that the text names": (LATER, {"GPU-0"}),
    "every card where it names none": ('{"v": 2}', {"GPU-0", "GPU-1"}),
    "every card where it is no JSON": ("\x00", {"GPU-0", "GPU-1"}),
    "every card where it names another node's": ('{"v": 2, "node": "n2", "of": "GPU-7"}', {"GPU-0", "GPU-1"}),
    "none where it can be read": (READ, set()),
}


@pytest.mark.parametrize(("text", "closed"), CLOSED.values(), ids=CLOSED.keys())
def test_its_cards_take_no_new_pods(text: str, closed: set[str]) -> None:
    found = resident(seen(pod(text)))
    assert found is not None
    assert set(unread_shares((found,), CARDS).closed) == closed


def published(residents: Residents) -> dict[str, Any]:
    isolation = Isolation(Handle(pods=residents))
    isolation.look(SEEN)
    wanted = desired("n1", SEEN)
    return status_of(wanted.under(isolation.enforce(wanted.inventory, 0.0, NO_LABELS)), previous={}, now=0.0)


def test_the_gpunode_shows_it_until_the_pod_ends() -> None:
    residents = Residents()
    residents.event(Replaced([seen(pod(LATER))]))
    why = "a pod on it has a share that the node agent cannot read; see the condition SharesRead"
    status = published(residents)
    assert [(gpu["uuid"], gpu["health"], gpu["reason"]) for gpu in status["gpus"]] == [
        ("GPU-0", "Unhealthy", why),
        ("GPU-1", "Healthy", ""),
    ]
    assert [item for item in status["conditions"] if item["type"] == "SharesRead"] == [
        {
            "type": "SharesRead",
            "status": "False",
            "reason": "ShareUnread",
            "message": f"1 pod has a share that this agent cannot read, so 1 of 2 GPUs accept no pods: {WHY}. Run an "
            "agent of the version that placed the pod, or a later one",
            "lastTransitionTime": "1970-01-01T00:00:00Z",
        }
    ]
    residents.event(Put(seen(pod(LATER, phase="Failed"))))
    status = published(residents)
    assert [gpu["health"] for gpu in status["gpus"]] == ["Healthy", "Healthy"]
    assert [item["type"] for item in status["conditions"]] == ["Ready"]


def test_a_long_reason_of_a_tenant_fits_into_the_condition() -> None:
    texts = [pod(json.dumps({"v": "x" * 10_000 + str(number)}), f"p{number}") for number in range(200)]
    found = [each for each in map(resident, map(trim, texts)) if each is not None]
    (condition,) = unread_shares(found, CARDS).conditions
    assert isinstance(condition, Condition)
    assert (condition.reason, len(condition.message) < 1024) == (GPUNodeReason.SHARE_UNREAD, True)
    assert unread_shares((), CARDS) == UnreadShares()


# -- limits by the driver -----------------------------------------------------------------------------------------


def test_nobody_beside_it_may_burst_and_its_own_limits_stay() -> None:
    """A pod is placed, and a later version rewrites its annotation while it runs."""
    driver = Driver()
    burster, other = resident(seen(pod(READ, "burster", ONE))), resident(seen(pod(READ, "later", TWO)))
    assert burster is not None
    assert other is not None
    groups = {ONE: Group("uid-burster", "/one"), TWO: Group("uid-later", "/two")}
    limiter = Limiter(driver, lambda pods: {cid: group for cid, group in groups.items() if group.pod in pods})
    limiter.cards = frozenset(CARDS)
    limiter.apply((burster, other))
    both = {("GPU-0", "/one"): 2 * SHARE, ("GPU-0", "/two"): 2 * SHARE}
    assert driver.limits == both
    for _ in range(2):
        limiter.apply((burster, UNREAD))
        assert driver.limits == both | {("GPU-0", "/one"): SHARE}, "what the other booked may be anything"
        assert driver.kept["GPU-0", "/one"] == SHARE
    driver.limits.clear()
    limiter.apply((burster, UNREAD), again=True)
    assert driver.limits == both | {("GPU-0", "/one"): SHARE}
    limiter.apply((burster,))
    assert driver.limits == {("GPU-0", "/one"): 2 * SHARE}


def test_an_agent_that_starts_beside_it_lets_no_neighbour_burst() -> None:
    """After a rollback: what the later agent had set stays in the driver."""
    driver = Driver(limits={("GPU-0", "/two"): 7})
    burster = resident(seen(pod(READ, "burster", ONE)))
    assert burster is not None
    residents = Residents()
    residents.event(Replaced([seen(pod(READ, "burster", ONE)), seen(pod(LATER))]))
    found = {ONE: Group("uid-burster", "/one"), TWO: Group("uid-later", "/two")}
    by_driver = LimitedByDriver(Limiter(driver, lambda pods: found), residents, cgroup="v2")
    by_driver.look(replace(SEEN, driver="615.71.09"))
    by_driver.round()
    assert driver.limits == {("GPU-0", "/one"): SHARE, ("GPU-0", "/two"): 7}


def test_a_share_on_another_card_may_burst() -> None:
    driver = Driver()
    text = READ.replace("GPU-0", "GPU-1")
    burster = resident(seen(pod(text, "burster", ONE)))
    assert burster is not None
    limiter = Limiter(driver, lambda pods: {ONE: Group("uid-burster", "/one")})
    limiter.cards = frozenset(CARDS)
    limiter.apply((burster, UNREAD))
    assert driver.limits == {("GPU-1", "/one"): 2 * SHARE}


# -- MPS ----------------------------------------------------------------------------------------------------------


def test_its_daemon_and_its_partition_stay(tmp_path: Path) -> None:
    """A pod that names no partition, or a removed one, fails under a daemon that assigns partitions."""
    paths = MpsPaths(tmp_path)
    paths.wanted.write_text(wanted_to_text(["GPU-0"], {"GPU-0": {"later": 50}}))
    residents = Residents()
    residents.event(Replaced([seen(pod(LATER))]))
    chosen = {"mps": MpsLimiterSettings(mps=str(tmp_path), partitions=True)}
    isolation = Isolation(Handle(pods=residents, chosen=chosen))
    gpus = tuple(
        Gpu(uuid, index, "A10", 1000 * MIB, 1000 * MIB, withheld="NotShared", healthy=False, capability="8.6")
        for index, uuid in enumerate(CARDS)
    )

    def wanted() -> tuple[Any, Any]:
        isolation.apply(Inventory("n1", gpus, "580.95.05"), Delivery(("nvidia",), "nvidia.com/gpu"))
        text = paths.wanted.read_text()
        return wanted_from_text(text), shares_from_text(text)

    assert wanted() == ({"GPU-0"}, {"GPU-0": {"later": 50}})
    residents.event(Replaced([]))
    assert wanted() == (frozenset(), {})


# -- what uses too much -------------------------------------------------------------------------------------------


def test_its_memory_is_nobody_elses_and_it_is_not_reported() -> None:
    cards = (card(0, processes=((1, 5), (3, 7 << 30))), card(1, processes=()))
    usage = measure(cards, (P, UNREAD), groups)
    assert [(use.resident, use.gpu, use.used) for use in usage.uses] == [(P, "GPU-0", 5), (P, "GPU-1", 0)]
    assert usage.strangers == (("GPU-0", 7 << 30), ("GPU-1", 0))
    monitor = OveruseMonitor(OveruseSettings(overuse_grace=0, evict_overuse=1, evict_unhealthy=1))
    assert monitor.judge(usage, cards, 0.0) == monitor.judge(usage, cards, 1000.0) == frozenset()
