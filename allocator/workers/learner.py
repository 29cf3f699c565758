"""
Learning beside the decisions: the requests seen become tables on a thread of their own, and the engine gets them whole.

`see` is called wherever a pod asks for the first time, and only counts. Making tables takes from tens of milliseconds
to a second, so decisions go on by the old ones meanwhile. A leader that has just started learns from the pods that it
lists, so nothing has to be kept anywhere. Where the policy does not learn there is no lesson.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from allocator.engine.reference import LEARNED
from allocator.scoring import estimator
from allocator.scoring.classes import Supply, supply_of
from allocator.scoring.estimator import Learner
from allocator.scoring.tables import Tables
from contract.model import NodeState, PodRequest
from contract.scheduling.filters import Limits

_LOOK_EVERY = 30.0
"""Seconds between two looks at what the cluster has, which the tables may not know."""


class LearningWorker:
    """What was asked for, and the tables of it. `see` may be called by any thread."""

    def __init__(self, *, policy: str, limits: Limits) -> None:
        self._policy, self._limits = policy, limits
        self._lock = threading.Lock()  # guards the learner
        self._learner = Learner()
        self._due = threading.Event()
        self._last: Tables | None = None
        self._taught: Supply | None = None
        """What the cluster had when the last tables were made."""

    def see(self, request: PodRequest, cpu: int) -> None:
        """A pod asked, for the first time; `cpu` in thousandths of a core."""
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
        One lesson, if it is due or the cluster has changed: it has kinds of card that the tables do not know, or some
        kinds are scarce and much was taken or given back since.
        """
        supply = supply_of({node.name: node for node in nodes}, self._limits)
        if not due and not self._news(supply):
            return
        with self._lock:
            target = self._learner.target()
        made = estimator.make(self._policy, target, supply)
        if made is not None:
            self._last, self._taught = made, supply
            adopt(made)

    def _news(self, supply: Supply) -> bool:
        if self._last is None or self._taught is None:
            return False
        if not supply.stocks.keys() <= self._last.kinds.keys():
            return True
        return bool(self._last.scarcity.any()) and estimator.filled(self._taught, supply)
