"""
The cluster that the decision benchmark runs against: the allocator's own state, filled without an API server.

It is the production `Cache` with the production engine. Only its nodes and pods are synthetic.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from allocator.cache.cache import Cache
from allocator.cache.ledger import Reservation, ReservationState
from allocator.engine.engine import Engine
from allocator.engine.reference import Placement, Policy
from allocator.scoring import estimator
from allocator.scoring.classes import supply_of
from allocator.scoring.estimator import Learner
from allocator.scoring.tables import Tables
from benchmarks.decisions import mix
from contract.encoding.quantity import MIB
from contract.model import Allocation, Compute, ContainerAllocation, FractionRequest, GpuShare, Inventory, PodRequest
from contract.scheduling.needs import SchedulingRequest

_NEEDS = Compute(100, 1 << 30, 0, 1)


class World:
    """A cluster of `nodes` x 8 GPUs with `sharers` pods on them, and the moves that a benchmark makes on it."""

    def __init__(self, *, nodes: int, sharers: int, rng: random.Random, policy: str = "binpack") -> None:
        self.nodes = nodes
        self.cluster = Cache(engine=Engine(policy=Policy(policy)))
        self._learner = Learner()
        self._rng = rng
        self._ids = 0
        self._live: list[str] = []
        self._fill(sharers)

    def _fill(self, sharers: int) -> None:
        """
        Pods first: while a node is unknown nothing is computed of it, so its state is made once and not per pod.

        The first pod of each GPU never leaves, so that no GPU is ever empty.
        """
        inventories = [mix.inventory(number) for number in range(self.nodes)]
        for holding in self._holdings(inventories, sharers):
            self.cluster.assume(holding)
        del self._live[: self.nodes * mix.GPUS]
        for number, found in enumerate(inventories):
            self.cluster.put_node(mix.facts(number))
            self.cluster.put_inventory(found)

    def _holdings(self, inventories: list[Inventory], sharers: int) -> Iterator[Reservation]:
        """Shares spread at random over the GPUs, between a twentieth and a tenth of a card each."""
        gpus = [(found.node, gpu) for found in inventories for gpu in found.gpus]
        for number in range(sharers):
            if number % len(gpus) == 0:
                self._rng.shuffle(gpus)
            node, gpu = gpus[number % len(gpus)]
            memory = self._rng.randrange(gpu.usable // 20, gpu.usable // 10) // MIB * MIB
            cores = self._rng.choice((0, 2, 5))
            request = PodRequest("native", (FractionRequest("main", memory=memory, cores=cores),))
            share = GpuShare(gpu.uuid, gpu.index, memory, cores, gpu.memory)
            yield self._holding(request, node, (ContainerAllocation("main", (share,)),), _NEEDS)

    def _holding(
        self, request: PodRequest, node: str, containers: tuple[ContainerAllocation, ...], compute: Compute
    ) -> Reservation:
        self._ids += 1
        allocation = Allocation(f"{self._ids:08}", node, containers)
        self._live.append(allocation.id)
        return Reservation(
            allocation.id, f"bench/{self._ids}", request, allocation, compute, ReservationState.ASSUMED, 0.0
        )

    def lesson_due(self, ask: SchedulingRequest) -> bool:
        """The pod's first request; True if tables must be made."""
        learned = self.cluster.engine.policy.learned
        return self._learner.see(ask.request, ask.needs.compute.cpu) and learned

    def lesson(self) -> Tables | None:
        """Tables of what was requested so far, which production makes on a thread of its own."""
        engine = self.cluster.engine
        supply = supply_of(self.cluster.snapshot, engine.limits)
        return estimator.make(engine.policy.node, self._learner.target(), supply)

    def book(self, ask: SchedulingRequest, chosen: Placement) -> None:
        """Reserve the decided placement."""
        self.cluster.assume(self._holding(ask.request, chosen.node, chosen.containers, ask.needs.compute))

    def release_one(self) -> None:
        """A pod picked at random gives its share back."""
        at = self._rng.randrange(len(self._live))
        self._live[at], self._live[-1] = self._live[-1], self._live[at]
        self.cluster.forget(self._live.pop())

    def update_a_node(self) -> None:
        """A node picked at random is cordoned or not, moves to another pool, or has a sick GPU or none."""
        number = self._rng.randrange(self.nodes)
        if self._rng.random() < 0.5:
            pool = self._rng.choice(("", "training"))
            self.cluster.put_node(mix.facts(number, cordoned=self._rng.random() < 0.2, pool=pool))
        else:
            self.cluster.put_inventory(mix.inventory(number, sick=self._rng.choice((-1, -1, 0, 7))))

    def replace_a_node(self) -> None:
        """A node leaves and returns unnoticed by its pods, as an autoscaler does to the engine."""
        number = self._rng.randrange(self.nodes)
        self.cluster.drop_node(mix.node_name(number))
        self.cluster.put_node(mix.facts(number))
