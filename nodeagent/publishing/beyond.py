"""
The capacity that this node needs beyond what its GPUs promise: what pods hold of GPUs that were removed or promise
less.

The allocator counts it and writes it onto the GPUNode (`contract.nodes.capacity`). Until that figure refers to what the
GPUs promise now, no capacity is taken away: each GPU counts with the most that it has promised since. So kubelet admits
a pod on a new or healthy GPU at once, regardless of what other pods still hold.

    the promise changes ──▶ the most of each GPU ──the allocator's figure for this promise──▶ exact

Must not: count pods. A temporarily too large capacity does no harm: the allocator decides GPU by GPU.
"""

from __future__ import annotations

from contract.nodes import capacity
from contract.nodes.capacity import NOTHING, Amounts, Beyond, Promises
from nodeagent.publishing.changes import published_gpus
from nodeagent.publishing.reconcile import Published
from nodeagent.publishing.status import Desired


class ExcessCapacity:
    """Remembers what each GPU promised since the allocator's last count; after a start, what is published."""

    def __init__(self) -> None:
        self._most: dict[str, Amounts] | None = None
        self._beyond = NOTHING
        """What pods held beyond the promise at that count."""

    def beyond(self, wanted: Desired, published: Published) -> Amounts:
        """The capacity besides the promise."""
        promised = capacity.promises(wanted.inventory.gpus)
        found = published.gpunode
        counted = capacity.from_text(found.beyond) if found is not None else None
        if counted is not None and counted.of == capacity.digest(promised):
            self._most = dict(promised)
            self._beyond = counted.amounts
            return counted.amounts
        if self._most is None:
            before = promised if found is None else capacity.promises(published_gpus(found.status))
            self._begin(before, counted, published)
        most = self._most = _most(self._most or {}, promised)
        return (capacity.total(most.values()) + self._beyond).above(wanted.promised)

    def _begin(self, before: Promises, counted: Beyond | None, published: Published) -> None:
        """After a start: `before` is what the status promises, and the Node's capacity covers what pods hold."""
        self._most = dict(before)
        if counted is not None and counted.of == capacity.digest(before):
            self._beyond = counted.amounts
        else:
            # An unreadable capacity counts as nothing.
            present = (published.node.capacity if published.node is not None else NOTHING).at_least(NOTHING)
            least = counted.amounts if counted else NOTHING
            self._beyond = present.above(capacity.total(before.values())).at_least(least)


def _most(before: Promises, now: Promises) -> dict[str, Amounts]:
    """The larger promise of each GPU."""
    return {uuid: before.get(uuid, NOTHING).at_least(now.get(uuid, NOTHING)) for uuid in {**before, **now}}
