"""Cards that an administrator's list keeps out: no new pods, live, and nobody who is there is moved."""

from __future__ import annotations

from allocator.queue.records import EventRecord
from allocator.scheduler.events import (
    ExcludedGpusChanged,
    ExcludedGpusListed,
    InventoriesListed,
    InventoryChanged,
    InventoryDeleted,
    pods_listed,
)
from contract.encoding.protocol import Placed, Wait
from contract.model import NodeState
from contract.nodes.excluded import KeptOut
from tests.builders import node, pod
from tests.unit.allocator.harness import SchedulerHarness, question

T4 = node("t4").gpus(2)
ASKS = pod("p").generated("p-").asks("aliyun.com/gpu-mem", 8)


def first(desk: SchedulerHarness) -> NodeState:
    return desk.controller.nodes()[0]


def open_cards(desk: SchedulerHarness) -> list[int]:
    return [gpu.index for gpu in first(desk).gpus if gpu.healthy]


def test_a_card_is_kept_out_and_let_in_again_while_everything_runs() -> None:
    desk = SchedulerHarness([T4])
    desk.controller.handle(ExcludedGpusChanged("t4", KeptOut("t4", frozenset({"0"}))))
    placed = desk.controller.reserve(question(ASKS))
    assert isinstance(placed, Placed)
    assert [s.index for c in placed.allocation.containers for s in c.shares] == [1]
    refused = desk.controller.reserve(question(ASKS, uid="review-2"))
    assert isinstance(refused, Wait)
    assert "short of memory" in refused.reason
    desk.controller.handle(ExcludedGpusChanged("t4", None))
    assert isinstance(desk.controller.reserve(question(ASKS, uid="review-3")), Placed)
    desk.controller.check_invariants()


def test_the_list_outlives_what_the_agent_publishes() -> None:
    desk = SchedulerHarness([T4])
    desk.controller.handle(ExcludedGpusListed((KeptOut("t4", frozenset({"1"})), KeptOut("other", frozenset({"0"})))))
    assert open_cards(desk) == [0]
    desk.controller.handle(InventoryChanged(node("t4").gpus(3).inventory()))
    assert open_cards(desk) == [0, 2]
    desk.controller.handle(InventoriesListed((T4.inventory(),)))
    assert open_cards(desk) == [0]
    desk.controller.handle(InventoryDeleted("t4"))
    desk.controller.handle(ExcludedGpusChanged("t4", None))
    desk.controller.handle(InventoryChanged(T4.inventory()))
    assert open_cards(desk) == [0, 1]
    desk.controller.handle(ExcludedGpusListed((KeptOut("t4", wrong="data.gpus: found 'x'"),)))
    assert open_cards(desk) == []
    desk.controller.handle(ExcludedGpusListed(()))
    assert open_cards(desk) == [0, 1]
    desk.controller.check_invariants()


def test_a_list_that_names_no_card_is_told_once_for_as_long_as_it_lasts() -> None:
    desk = SchedulerHarness([T4])

    def told() -> list[str]:
        return [each.code for each in desk.controller.schedule_pending()[1] if isinstance(each, EventRecord)]

    desk.controller.handle(ExcludedGpusChanged("t4", KeptOut("t4", frozenset({"7"}))))
    assert told() == ["ListNamesNoGPU"]
    assert open_cards(desk) == [0, 1]
    desk.controller.handle(InventoryChanged(node("t4").gpus(3).inventory()))
    assert told() == ["ListNamesNoGPU"], "what would work is another sentence now"
    desk.controller.handle(InventoryChanged(node("t4").gpus(3).broken("the driver is away").inventory()))
    desk.controller.handle(InventoryChanged(node("t4").gpus(3).inventory()))
    assert told() == []
    desk.controller.handle(InventoryChanged(node("t4").gpus(8).inventory()))
    assert (told(), open_cards(desk)) == ([], [0, 1, 2, 3, 4, 5, 6])
    desk.controller.handle(InventoryChanged(node("t4").gpus(7).inventory()))
    assert told() == ["ListNamesNoGPU"]
    desk.controller.handle(ExcludedGpusChanged("t4", None))
    assert told() == []


def test_nothing_is_decided_before_the_lists_are_known() -> None:
    desk = SchedulerHarness([T4], synced=False)
    desk.controller.handle(InventoriesListed((T4.inventory(),)))
    desk.controller.handle(pods_listed([]))
    assert "configmaps" in desk.controller.ready()
