"""Cards that an administrator's list excludes take no new pods at once, and no running pod is moved."""

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


def first(harness: SchedulerHarness) -> NodeState:
    return harness.controller.nodes()[0]


def open_cards(harness: SchedulerHarness) -> list[int]:
    return [gpu.index for gpu in first(harness).gpus if gpu.healthy]


def test_a_card_is_kept_out_and_let_in_again_while_everything_runs() -> None:
    harness = SchedulerHarness([T4])
    harness.controller.handle(ExcludedGpusChanged("t4", KeptOut("t4", frozenset({"0"}))))
    placed = harness.controller.reserve(question(ASKS))
    assert isinstance(placed, Placed)
    assert [s.index for c in placed.allocation.containers for s in c.shares] == [1]
    refused = harness.controller.reserve(question(ASKS, uid="review-2"))
    assert isinstance(refused, Wait)
    assert "short of memory" in refused.reason
    harness.controller.handle(ExcludedGpusChanged("t4", None))
    assert isinstance(harness.controller.reserve(question(ASKS, uid="review-3")), Placed)
    harness.controller.check_invariants()


def test_the_list_outlives_what_the_agent_publishes() -> None:
    harness = SchedulerHarness([T4])
    harness.controller.handle(ExcludedGpusListed((KeptOut("t4", frozenset({"1"})), KeptOut("other", frozenset({"0"})))))
    assert open_cards(harness) == [0]
    harness.controller.handle(InventoryChanged(node("t4").gpus(3).inventory()))
    assert open_cards(harness) == [0, 2]
    harness.controller.handle(InventoriesListed((T4.inventory(),)))
    assert open_cards(harness) == [0]
    harness.controller.handle(InventoryDeleted("t4"))
    harness.controller.handle(ExcludedGpusChanged("t4", None))
    harness.controller.handle(InventoryChanged(T4.inventory()))
    assert open_cards(harness) == [0, 1]
    harness.controller.handle(ExcludedGpusListed((KeptOut("t4", wrong="data.gpus: found 'x'"),)))
    assert open_cards(harness) == []
    harness.controller.handle(ExcludedGpusListed(()))
    assert open_cards(harness) == [0, 1]
    harness.controller.check_invariants()


def test_a_list_that_names_no_card_is_reported_once_while_it_lasts() -> None:
    harness = SchedulerHarness([T4])

    def messages() -> list[str]:
        return [each.code for each in harness.controller.schedule_pending()[1] if isinstance(each, EventRecord)]

    harness.controller.handle(ExcludedGpusChanged("t4", KeptOut("t4", frozenset({"7"}))))
    assert messages() == ["ListNamesNoGPU"]
    assert open_cards(harness) == [0, 1]
    harness.controller.handle(InventoryChanged(node("t4").gpus(3).inventory()))
    assert messages() == ["ListNamesNoGPU"], "what would work is another sentence now"
    harness.controller.handle(InventoryChanged(node("t4").gpus(3).broken("the driver is away").inventory()))
    harness.controller.handle(InventoryChanged(node("t4").gpus(3).inventory()))
    assert messages() == []
    harness.controller.handle(InventoryChanged(node("t4").gpus(8).inventory()))
    assert (messages(), open_cards(harness)) == ([], [0, 1, 2, 3, 4, 5, 6])
    harness.controller.handle(InventoryChanged(node("t4").gpus(7).inventory()))
    assert messages() == ["ListNamesNoGPU"]
    harness.controller.handle(ExcludedGpusChanged("t4", None))
    assert messages() == []


def test_nothing_is_decided_before_the_lists_are_known() -> None:
    harness = SchedulerHarness([T4], synced=False)
    harness.controller.handle(InventoriesListed((T4.inventory(),)))
    harness.controller.handle(pods_listed([]))
    assert "configmaps" in harness.controller.ready()
