"""How the running allocator follows the declared pools: by the current options, and by the nodes that it has seen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from allocator.scheduler.events import PoolsDeclared
from allocator.workers.learner import PoolWatcher
from contract.model import NodeState
from contract.options import PoolOptions, pool_options
from contract.scheduling.filters import Limits
from tests.builders import node

DECLARED = {"gpus": 1, "gpuMemory": "15Gi", "cpu": 4, "memory": "8Gi", "max": 3}
T4 = node("n1").labelled("pool", "t4").gpus(2).state()


def document(template: dict[str, Any] | None = None) -> PoolOptions:
    pool: dict[str, Any] = {"name": "t4", "nodeSelector": {"matchLabels": {"pool": "t4"}}}
    return pool_options({"pools": [{**pool, "node": template} if template else pool]})


@dataclass
class Followed:
    """A watcher, what it reads, and what it reported."""

    options: PoolOptions | None = None
    nodes: list[NodeState] = field(default_factory=list)
    looks: int = 0
    declared: list[PoolsDeclared] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.watcher = PoolWatcher(
            lambda: self.options, idle=self._idle, declare=self.declared.append, limits=Limits(max_sharers=7)
        )

    def _idle(self) -> list[NodeState]:
        self.looks += 1
        return self.nodes

    def gpus(self) -> tuple[list[int], frozenset[str]]:
        """Look once. Returns how many GPUs the empty node of each pool has, and which pools are learnt."""
        self.watcher.once()
        return [len(each.gpus) for each in self.declared[-1].nodes], self.declared[-1].learned


def test_a_declared_node_is_reported_and_then_what_was_seen() -> None:
    followed = Followed(document(DECLARED))
    assert followed.gpus() == ([1], frozenset())
    followed.nodes = [T4]
    assert followed.gpus() == ([2], frozenset(("t4",)))
    assert {gpu.sharing.max_sharers for gpu in followed.declared[-1].nodes[0].gpus} == {7}


def test_what_was_learned_stays_when_the_pool_shrinks_to_no_node() -> None:
    followed = Followed(document(DECLARED), [T4])
    followed.watcher.once()
    followed.nodes = []
    assert followed.gpus() == ([2], frozenset(("t4",)))
    assert len(followed.declared) == 1, "nothing changed"


def test_a_pool_that_is_taken_out_of_the_options_is_forgotten() -> None:
    followed = Followed(document(DECLARED), [T4])
    followed.watcher.once()
    followed.options, followed.nodes = document(), []
    assert followed.gpus() == ([], frozenset())
    followed.options = document(DECLARED)
    assert followed.gpus() == ([1], frozenset())


def test_nobody_looks_at_the_nodes_while_no_pool_declares_any() -> None:
    for options in (None, document()):
        followed = Followed(options, [T4])
        followed.watcher.once()
        assert (followed.declared, followed.looks) == ([], 0)
