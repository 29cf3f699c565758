"""
The table of mechanisms, and the levels of `contract.isolation` that this node enforces by them.

    look ──▶ effects: which GPUs take no pods, metrics, reports
    inventory, delivery ──▶ enforce: writes what containers get, for each mechanism what it needs
                              └──▶ levels, conditions: what is enforced, and why the rest is not

Must not: report a level because it is switched on; the agent must have seen it work. Or know a mechanism by name,
except in the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from contract.isolation import DRIVER, MPS, PRELOAD, WATCH
from contract.model import Delivery, Inventory
from contract.nodes.proofs import Proof
from contract.nodes.reports import PodReport
from nodeagent.conditions import Condition
from nodeagent.gpus.observation import Observation
from nodeagent.isolation import driver, mps, preload
from nodeagent.isolation.cdi import NOTHING, Edits
from nodeagent.isolation.effects import NO_EFFECTS, Faults, together
from nodeagent.isolation.mechanism import Delivered, DeliveryWay, Handle, Mechanism, MechanismEntry, MechanismTable, Run
from nodeagent.isolation.proof import Proofs
from nodeagent.isolation.reach import Reach
from nodeagent.sharing.unread import unread_shares
from runtime.settings import NoSettings

NO_LABELS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class PublishedLevels:
    """What the GPUNode has until now: its levels, and what the last canary found."""

    levels: tuple[str, ...] = ()
    proof: Proof | None = None


NO_PUBLISHED = PublishedLevels()


def watch(handle: Handle, chosen: NoSettings) -> Mechanism | None:
    """Watching the use of GPUs, where the agent can tell the container of a process."""
    return Mechanism(limits=lambda gpus: True) if handle.sees_processes else None


MECHANISMS: MechanismTable = {
    DRIVER: driver.ENTRY,
    MPS: mps.ENTRY,
    PRELOAD: preload.ENTRY,
    WATCH: MechanismEntry(watch, NoSettings),
}
"""All mechanisms, the strongest first."""


@dataclass(frozen=True, slots=True)
class Enforcement:
    """How GPUs reach containers (None: unknown), which levels are enforced, and the conditions that report it."""

    delivery: Delivery | None = None
    levels: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()
    unreachable: Mapping[str, str] = field(default_factory=dict)
    """GPUs that no new container can or may get, by UUID, each with the reason."""
    proof: str | None = None
    """As in `Inventory`."""


class Isolation:
    """
    Enforces what this node can, and reports it. The observer's thread calls `look`, the publishing thread `enforce`.

    `table`: the mechanisms, the strongest first. `ways`: those of delivery, in the order in which they conclude.
    `proven_within`: seconds for which a proof of the levels that limit counts; 0: they need none.
    """

    def __init__(
        self,
        handle: Handle,
        table: MechanismTable = MECHANISMS,
        ways: Iterable[DeliveryWay] = (),
        *,
        proven_within: float = 0.0,
    ) -> None:
        built = {level.name: entry.built(handle, level.name) for level, entry in table.items()}
        self._names = tuple(built)
        self._ways = tuple(ways)
        self._mechanisms = {name: each for name, each in built.items() if each is not None}
        self._inside = {name: each.edits for name, each in self._mechanisms.items() if each.edits is not None}
        self._pods = handle.pods
        self._faults = Faults()
        self._proofs = Proofs(proven_within)
        self._reach = Reach(handle, self._edits, needed=bool(self._inside))
        self._inventory: Inventory | None = None
        self.effects = NO_EFFECTS
        """Of the last look."""

    @property
    def workers(self) -> Mapping[str, Run]:
        """The threads of mechanisms and ways, by name."""
        parts: tuple[Mechanism | DeliveryWay, ...] = (*self._mechanisms.values(), *self._ways)
        return {name: run for part in parts for name, run in part.workers.items()}

    def look(self, observation: Observation) -> None:
        """A new look at the GPUs: read the state of the mechanisms."""
        self.effects = together([each.look(observation) for each in self._mechanisms.values()])
        for way in self._ways:
            way.looked()

    def enforce(
        self,
        inventory: Inventory,
        now: float,
        labels: Mapping[str, str] = NO_LABELS,
        published: PublishedLevels = NO_PUBLISHED,
    ) -> Enforcement:
        """
        Write what containers get with the inventory that is about to be published, and report what is enforced.

        `labels`: the Node's. `now`: seconds since 1970.
        """
        found = Delivered()
        for way in self._ways:
            found = way.conclude(found, inventory, now, labels)
        delivery = self.apply(inventory, found.delivery)
        unread = unread_shares(self._pods.all(), [gpu.uuid for gpu in inventory.gpus])
        works = [level for level, each in self._works().items() if each]
        gate = self._proofs.judge(works, published.proof, inventory.driver, now, published.levels)
        conditions = (*found.conditions, *self.conditions(), *unread.conditions, *gate.conditions)
        unreachable = {**unread.closed, **found.unreachable}
        return Enforcement(delivery, tuple(filter(gate.lets, works)), conditions, unreachable, gate.state or None)

    def apply(self, inventory: Inventory, delivery: Delivery | None) -> Delivery | None:
        """The node's delivery with what limits containers; None if it is unknown. Writes what they get."""
        self._inventory = inventory
        reached = self._reach.apply(inventory, delivery)
        demands = [each.apply(inventory, reached) for each in self._mechanisms.values()]
        if delivery is None:
            return None
        return replace(
            delivery,
            mounts=reached.mounts,
            single=any(each.single for each in demands),
            partitions=any(each.partitions for each in demands),
        )

    def conditions(self) -> tuple[Condition, ...]:
        """The GPUNode's conditions about mechanisms and how they reach containers."""
        own = (condition for each in self._mechanisms.values() for condition in each.conditions())
        return (*self._reach.conditions(), *own)

    def enforced(self) -> Mapping[str, bool]:
        """Whether each level of the table is enforced now, the strongest first. From any thread."""
        gate = self._proofs.gate
        return {level: works and gate.lets(level) for level, works in self._works().items()}

    def proof(self) -> str:
        """The state of the proof of the levels that limit; empty if none is needed. From any thread."""
        return self._proofs.gate.state

    def _works(self) -> dict[str, bool]:
        """Whether each level works now, proven or not."""
        taking = [gpu for gpu in self._inventory.gpus if gpu.healthy] if self._inventory else []
        found, free = dict.fromkeys(self._names, False), bool(taking) and self._reach.reached.really
        for name, each in self._mechanisms.items():
            inside = name in self._inside
            found[name] = (free or not inside) and each.limits(taking)
            # A container has the edits of one mechanism.
            free = free and not (inside and found[name])
        return found

    def levels(self) -> tuple[str, ...]:
        """The levels that are enforced now, the strongest first. From any thread."""
        return tuple(name for name, works in self.enforced().items() if works)

    def reports(self, now: float) -> frozenset[PodReport]:
        """What mechanisms report about pods here. `now`: seconds since 1970. One thread calls it."""
        return self._faults.reports(self.effects, self._pods.all(), now)

    def _edits(self, uuid: str, key: str | None) -> tuple[str, Edits]:
        found = ((name, edits(uuid, key)) for name, edits in self._inside.items())
        return next(((name, edits) for name, edits in found if edits is not None), NOTHING)
