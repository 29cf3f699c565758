"""
The pools that may get nodes, to find the one for a pod that fits on no existing node.

Pure. Must not: request a node, or say when one comes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from allocator.engine import reference
from allocator.engine.engine import Engine, NodeClasses
from allocator.engine.reference import DEFAULT_POLICY, Unschedulable
from contract.model import FractionRequest, GpuKind, NodeState
from contract.reasons.nodes import Code, Reason
from contract.scheduling.filters import Limits
from contract.scheduling.needs import SchedulingRequest

_LASTING = frozenset((Code.NO_GPUS, Code.DELIVERY, Code.ISOLATION, Code.TAINT, Code.SELECTOR, Code.MODEL))
"""Why a node does not serve a pod even when it is empty."""
_CAUTION = 8
"""The part of a declared GPU's memory that may be missing: the driver's own reserve, and rounding."""
_MOST_REMEMBERED = 4096


class DeclaredPools:
    """Empty nodes of the declared pools. Not thread-safe: one owner calls it."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.nodes: tuple[NodeState, ...] = ()
        """Each under its pool's name, in the order of the options."""
        self._learned: frozenset[str] = frozenset()
        self._sizes = self._exact = NodeClasses()
        self._serving: dict[tuple[SchedulingRequest, frozenset[str]], str] = {}

    def put(self, nodes: tuple[NodeState, ...], learned: Collection[str]) -> bool:
        """Set the empty nodes; `learned`: pools of which nodes were seen. True if anything changed."""
        if nodes == self.nodes and frozenset(learned) == self._learned:
            return False
        self.nodes = nodes
        self._learned = frozenset(learned)
        self._serving.clear()
        self._exact = NodeClasses()
        self._sizes = NodeClasses()
        for node in nodes:
            self._exact.put(node)
            self._sizes.put(node if node.name in self._learned else _smaller(node))
        return True

    def could_ever(self, ask: SchedulingRequest) -> bool:
        """Whether the GPUs of an empty node of some pool would serve the pod, regardless of other resources."""
        return bool(self.nodes) and self._exact.could_ever(ask, self._limits) is None

    def serving(self, ask: SchedulingRequest, closed: frozenset[str] = frozenset()) -> str:
        """
        The first pool on whose empty node the pod would fit; empty for none. `closed`: pools whose empty node other
        pods or volumes exclude.
        """
        found = self._serving.get((ask, closed))
        if found is None:
            if len(self._serving) >= _MOST_REMEMBERED:
                self._serving.clear()
            open_to_it = (node for node in self.nodes if node.name not in closed)
            found = self._serving[ask, closed] = next((n.name for n in open_to_it if self._takes(n, ask)), "")
        return found

    def only(
        self, ask: SchedulingRequest, decision: Unschedulable, engine: Engine, closed: frozenset[str] = frozenset()
    ) -> str:
        """The pool of `serving`, if no node of the engine would serve the pod even when empty; else empty."""
        pool = self.serving(ask, closed)
        if not pool:
            return ""
        lasting = all(found.code in _LASTING for found in decision.reasons)
        return pool if lasting or engine.could_ever(ask) is not None else ""

    def smallest_accepted(self, fraction: FractionRequest, engine: Engine) -> int:
        """
        Usable bytes of the smallest GPU that the share accepts, of the engine's nodes and of those that may come; 0
        if there is none.

        A GPU that was only declared counts for less than declared: what is counted for a pod cannot change once it is
        stored, and a kubelet refuses a pod for which more is counted than its node has.
        """
        sizes = (engine.smallest_accepted(fraction), self._sizes.smallest_accepted(fraction))
        return min((size for size in sizes if size), default=0)

    def cards(self, engine: Engine) -> set[GpuKind]:
        """The kinds of GPUs of the engine's nodes and of those that may come, sized as in `smallest_accepted`."""
        return engine.cards() | self._sizes.cards()

    def _takes(self, node: NodeState, ask: SchedulingRequest) -> bool:
        return not isinstance(reference.evaluate(node, ask, self._limits, DEFAULT_POLICY), Reason)


def _smaller(node: NodeState) -> NodeState:
    gpus = tuple(replace(gpu, usable=gpu.usable - gpu.usable // _CAUTION) for gpu in node.gpus)
    return replace(node, gpus=gpus)
