"""
The capacity that this node needs beyond what its GPUs promise: what pods hold of GPUs that are gone or promise less.

The allocator counts that and writes it onto the GPUNode (`contract.nodes.capacity`). Until its figure is of what the
GPUs promise now, nothing is taken away: each GPU counts with the most that it has promised since. So a pod that is
placed on a new or healthy GPU is admitted by kubelet at once, whatever other pods still hold.

    the promise changes ──▶ the most of each GPU ──the allocator says what is held beyond it──▶ exact

Must not: count pods. A capacity that is too large for a while harms nobody: which GPU takes a pod is decided by GPU.
"""

from __future__ import annotations

from contract.nodes import capacity
from contract.nodes.capacity import NOTHING, Amounts, Beyond, Promises
from nodeagent.publishing.changes import published_gpus
from nodeagent.publishing.reconcile import Published
from nodeagent.publishing.status import Desired


class ExcessCapacity:
    """Remembers what each GPU promised since the allocator last counted. After a start what is published counts."""

    def __init__(self) -> None:
        self._most: dict[str, Amounts] | None = None
        self._beyond = NOTHING
        """What was held beyond the promise then."""

    def beyond(self, wanted: Desired, published: Published) -> Amounts:
        """What is to be in the capacity besides the promise."""
        promised = capacity.promises(wanted.inventory.gpus)
        found = published.gpunode
        counted = capacity.from_text(found.beyond) if found is not None else None
        if counted is not None and counted.of == capacity.digest(promised):
            self._most, self._beyond = dict(promised), counted.amounts
            return counted.amounts
        if self._most is None:
            before = promised if found is None else capacity.promises(published_gpus(found.status))
            self._begin(before, counted, _standing(published))
        most = self._most = _most(self._most or {}, promised)
        return (capacity.total(most.values()) + self._beyond).above(wanted.promised)

    def _begin(self, before: Promises, counted: Beyond | None, standing: Amounts) -> None:
        """After a start: `before` is what is published, and the Node's capacity covers whatever is held."""
        self._most = dict(before)
        if counted is not None and counted.of == capacity.digest(before):
            self._beyond = counted.amounts
        else:
            self._beyond = standing.above(capacity.total(before.values())).at_least(
                counted.amounts if counted else NOTHING
            )


def _most(before: Promises, now: Promises) -> dict[str, Amounts]:
    """Of each GPU the larger promise."""
    return {uuid: before.get(uuid, NOTHING).at_least(now.get(uuid, NOTHING)) for uuid in {**before, **now}}


def _standing(published: Published) -> Amounts:
    """The Node's capacity; what cannot be read is nothing."""
    found = published.node.capacity if published.node is not None else NOTHING
    return found.at_least(NOTHING)
