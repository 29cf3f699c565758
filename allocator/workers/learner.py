"""
Learning alongside the decisions, on threads of its own: the requests seen become tables, and the engine gets them
whole; the nodes seen, and the options, become empty nodes of the declared pools.

`see` is called wherever a pod requests the first time, and only counts. Making tables takes from tens of milliseconds
to a second, so decisions use the old ones meanwhile. A new leader learns from the pods that it lists, so nothing must
be stored. If the policy does not learn, nothing is done.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

from allocator.cache import templates
from allocator.engine.reference import LEARNED
from allocator.scheduler.events import PoolsDeclared
from allocator.scoring import estimator
from allocator.scoring.classes import Supply, supply_of
from allocator.scoring.estimator import Learner
from allocator.scoring.tables import Tables
from contract.model import NodeState, PodRequest
from contract.options import NO_OPTIONS, PoolOptions
from contract.scheduling.filters import Limits

log = logging.getLogger(__name__)
JSON = dict[str, Any]

_LOOK_EVERY = 30.0
"""Seconds between two looks at the cluster, which may have something unknown to the tables."""
_POOLS_EVERY = 5.0
"""Seconds between two looks at the options and the nodes of declared pools."""


class LearningWorker:
    """The requests seen, and their tables. Any thread may call `see`."""

    def __init__(self, *, policy: str, limits: Limits) -> None:
        self._policy = policy
        self._limits = limits
        self._lock = threading.Lock()  # guards the learner
        self._learner = Learner()
        self._due = threading.Event()
        self._last: Tables | None = None
        self._taught: Supply | None = None
        """The cluster's amounts when the last tables were computed."""

    def see(self, request: PodRequest, cpu: int) -> None:
        """Count a new pod's request; `cpu` in thousandths of a core."""
        if self._policy in LEARNED:
            with self._lock:
                if self._learner.see(request, cpu):
                    self._due.set()

    def run(
        self,
        nodes: Callable[[], Iterable[NodeState]],
        adopt: Callable[[Tables], None],
        stop: threading.Event,
    ) -> None:
        """Until stopped: make tables when they are due, and `adopt` them. `nodes` gives the cluster as it is now."""
        while not stop.is_set():
            due = self._due.wait(1.0 if self._last is None else _LOOK_EVERY)
            if stop.is_set():
                return
            self._due.clear()
            self.once(nodes(), adopt, due=due)

    def once(self, nodes: Iterable[NodeState], adopt: Callable[[Tables], None], *, due: bool) -> None:
        """
        One lesson, if it is due or the cluster has changed: it has kinds of card that the tables do not know, its
        largest node has another number of cards, or some kinds are scarce and much was taken or given back since.
        """
        supply = supply_of({node.name: node for node in nodes}, self._limits)
        if not due and not self._news(supply):
            return
        with self._lock:
            target = self._learner.target()
        made = estimator.make(self._policy, target, supply)
        if made is not None:
            self._last = made
            self._taught = supply
            adopt(made)

    def _news(self, supply: Supply) -> bool:
        if self._last is None or self._taught is None:
            return False
        if supply.largest != self._taught.largest or not supply.stocks.keys() <= self._last.kinds.keys():
            return True
        return self._last.limited and estimator.filled(self._taught, supply)


class PoolWatcher:
    """
    What empty nodes of the declared pools look like: by the options, which may change at any time, and by the nodes
    that were seen. What was learned about a pool that shrinks to no node is kept while this process runs.
    """

    def __init__(
        self,
        options: Callable[[], PoolOptions | None],
        *,
        idle: Callable[[], Iterable[NodeState]],
        declare: Callable[[PoolsDeclared], None],
        limits: Limits,
    ) -> None:
        """`idle` gives every node as it is without pods; `declare` is called with what changed."""
        self._options = options
        self._idle = idle
        self._declare = declare
        self._limits = limits
        self._seen: dict[str, list[NodeState]] = {}
        """The last known nodes of each declared pool."""
        self._last = PoolsDeclared(())

    def run(self, stop: threading.Event) -> None:
        """Until stopped."""
        while not stop.wait(_POOLS_EVERY):
            self.once()

    def once(self) -> None:
        """One look."""
        options = self._options() or NO_OPTIONS
        declared = [pool.name for pool in options.pools if pool.node is not None]
        found: dict[str, list[NodeState]] = {}
        for node in self._idle() if declared else ():
            if templates.is_known(node):
                found.setdefault(options.of_node(node.labels)[0], []).append(node)
        self._seen = {name: nodes for name in declared if (nodes := found.get(name) or self._seen.get(name, []))}
        seen = [node for nodes in self._seen.values() for node in nodes]
        empty = templates.empty_nodes(options, seen, self._limits.max_sharers)
        unseen = templates.empty_nodes(options, (), self._limits.max_sharers)
        announced = PoolsDeclared(
            empty, frozenset(node.name for node in empty if node.name in self._seen and node not in unseen)
        )
        if announced != self._last:
            self._last = announced
            self._declare(announced)
