"""
The status of a GPUNode, from what the driver shows.

Pure. `contract.nodes.inventories.inventory_to_status` makes the part that programs read. The conditions, a summary for
`kubectl get`, and the time of the observation are added.

Must not: read a clock, or decide when anything is written (`nodeagent.publishing.reconcile` does).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from contract import names
from contract.encoding import moments
from contract.encoding.quantity import format_bytes
from contract.model import WITHHELD, Gpu, Inventory
from contract.nodes import capacity, heartbeat, idle, reports
from contract.nodes.capacity import NO_RESERVE, NOTHING, Amounts, Reserve
from contract.nodes.idle import IdleShare
from contract.nodes.inventories import inventory_to_status, sharing_of
from contract.nodes.reports import PodReport
from contract.reasons.gpunodes import GPUNodeReason
from nodeagent.conditions import Condition, listed
from nodeagent.gpus.library import Card
from nodeagent.gpus.observation import Observation
from nodeagent.isolation.host import UNKNOWN, HostSystem
from nodeagent.isolation.levels import Enforcement

JSON = dict[str, Any]

_TEXT_LIMIT = 1024
CORDONED, NOT_SHARED = WITHHELD


@dataclass(frozen=True, slots=True)
class Terms:
    """The inputs, besides the look at the GPUs, that decide what is published: settings, the machine, the Node."""

    reserve: Reserve = NO_RESERVE
    mig: str = "mixed"
    host: HostSystem = UNKNOWN
    cordoned: frozenset[str] = frozenset()
    """UUIDs that an administrator cordoned; a card's covers its slices."""
    shared: frozenset[str] | None = None
    """UUIDs that may be shared; None for all of them. A card's covers its slices."""
    not_shared: str = ""
    """Why the others may not be shared, as a sentence."""
    conditions: tuple[Condition, ...] = ()
    pool: str = ""
    options: tuple[tuple[str, str], ...] = ()
    """These two as in `contract.model.Inventory`."""
    startup_taint: bool = False
    """Whether the agent removes the startup taint from its Node."""
    startup_refused: str = ""
    """Why the API server refused that, as its message; empty if it did not."""

    def withheld(self, card: Card) -> tuple[str, str]:
        """One of `contract.model.WITHHELD` and the reason; both empty if the card is not withheld."""
        mine = {card.uuid, card.parent} - {""}
        if self.shared is not None and not mine & self.shared:
            return NOT_SHARED, self.not_shared
        if mine & self.cordoned:
            return CORDONED, f"cordoned by the annotation {names.CORDON} of its Node"
        return "", ""


DEFAULT_TERMS = Terms()


@dataclass(frozen=True, slots=True)
class Desired:
    """The wanted content of this node's objects."""

    inventory: Inventory
    condition: Condition
    others: tuple[Condition, ...] = ()
    """Further conditions, one of each kind. Others are removed from the status."""
    beyond: Amounts = NOTHING
    """What pods hold beyond the present promise: of GPUs that were removed or promise less."""
    idle: frozenset[IdleShare] = frozenset()
    """The shares that compute nothing."""
    reports: frozenset[PodReport] = frozenset()
    """What is wrong with pods here, for the allocator to act upon."""
    heartbeat: int = 0
    """Seconds within which the status is written again; 0: the status does not state it."""
    started: bool = False
    """Whether the startup taint is removed when this is published: the driver answers, and a GPU is shared."""

    def under(self, enforcement: Enforcement) -> Desired:
        """
        The same, with how containers get GPUs and are limited to their shares. A GPU that none can get is unhealthy.
        """
        unreachable = enforcement.unreachable
        gpus = tuple(
            replace(gpu, healthy=False, reason=_cut(unreachable[gpu.uuid]))
            if gpu.healthy and gpu.uuid in unreachable
            else gpu
            for gpu in self.inventory.gpus
        )
        inventory = replace(self.inventory, gpus=gpus, delivery=enforcement.delivery)
        inventory = replace(inventory, isolation=enforcement.levels, proof=enforcement.proof)
        return replace(self, inventory=inventory, others=(*self.others, *enforcement.conditions))

    @property
    def promised(self) -> Amounts:
        """The promise of the cards, without those of the vendor's device plugin."""
        return capacity.total(capacity.promises(self.inventory.gpus).values())

    @property
    def amounts(self) -> Amounts:
        """
        The node's capacity and, equal to it, its allocatable: every card, also an unhealthy one, but no card of the
        vendor's device plugin.

        The pods on a card that becomes unhealthy still hold their shares. Without that card in the sum, kube-scheduler
        and kubelet would count those shares against the healthy cards and refuse pods that have a share there (kubelet
        ends them after its restart). The allocator decides card by card, from the GPUNode, which one takes new pods.
        Capacity and allocatable cannot differ: kubelet sets allocatable to capacity for every extended resource without
        a device plugin.

        For the same reason what pods hold beyond the promise is added: the shares of a removed GPU must not count
        against the present ones.
        """
        return (self.promised + self.beyond).with_limits(self.inventory.gpus)


def usable(card: Card, reserve: Reserve) -> int:
    """Bytes of a card that pods may get."""
    return reserve.usable(card.memory_bytes, card.reserved_bytes)


def desired(node: str, observation: Observation, *, terms: Terms = DEFAULT_TERMS) -> Desired:
    """The content to publish after a look."""
    named: dict[str, Card] = {}
    for card in _offered(observation.cards, terms.mig):
        # A card without a UUID cannot be given to a container; only the condition counts it.
        if card.uuid:
            named.setdefault(card.uuid, card)
    inventory = Inventory(
        node=node,
        gpus=tuple(_gpu(card, terms) for card in sorted(named.values(), key=lambda card: card.index)),
        driver=observation.driver,
        cuda=observation.cuda,
        problem=_cut(observation.problem),
        kernel=terms.host.kernel,
        cgroup=terms.host.cgroup,
        pool=terms.pool,
        options=terms.options,
    )
    condition = _condition(observation)
    shared = any(gpu.withheld != NOT_SHARED for gpu in inventory.gpus)
    started = terms.startup_taint and condition.ready and shared
    return Desired(inventory, condition, terms.conditions, started=started)


def _offered(cards: tuple[Card, ...], mig: str) -> list[Card]:
    """
    The cards that are published under a MIG strategy (the words are those of NVIDIA's device plugin).

    `none`: no slices. `mixed`: every slice as a GPU of its own. `single`: the same where all cards are cut into slices
    of one model, else none of them. A card in MIG mode stands alongside its slices and takes no pods.
    """
    slices = [card for card in cards if card.parent]
    whole = [card for card in cards if not card.parent]
    alike = all(card.sliced for card in whole) and len({card.model for card in slices}) == 1
    if mig == "none" or (mig == "single" and not alike):
        return whole
    return [*whole, *slices]


def _gpu(card: Card, terms: Terms) -> Gpu:
    withheld, why = terms.withheld(card) if card.healthy else ("", "")
    return Gpu(
        uuid=card.uuid,
        index=card.index,
        model=card.model,
        memory=card.memory_bytes,
        # The memory belongs to its slices.
        usable=0 if card.sliced else usable(card, terms.reserve),
        healthy=card.healthy and not withheld,
        reason=_cut(card.reason or why),
        withheld=withheld,
        pci=card.pci,
        capability=card.capability,
        numa=card.numa,
        nvlinks=card.nvlinks,
        links=card.links,
        parent=card.parent,
        sharing=sharing_of(dict(terms.options)),
    )


def _cut(text: str) -> str:
    """The text as the CustomResourceDefinition accepts it; the API server would refuse a status with a longer one."""
    return text if len(text) <= _TEXT_LIMIT else text[: _TEXT_LIMIT - 1] + "…"


def _condition(observation: Observation) -> Condition:
    if observation.problem:
        return Condition(False, observation.reason or GPUNodeReason.LIBRARY_BROKEN, _cut(observation.problem))
    whole = [card for card in observation.cards if not card.parent]
    # A card in MIG mode is not faulty: pods use its slices.
    sick = [card for card in whole if (not card.healthy and not card.sliced) or not card.uuid]
    total = len(whole)
    if not sick:
        return Condition(True, GPUNodeReason.ALL_HEALTHY, f"{total} of {total} GPUs are healthy")
    reasons = "; ".join(f"GPU {card.index}: {_cut(card.reason) or 'has no UUID of its own'}" for card in sick)
    message = f"{total - len(sick)} of {total} GPUs are healthy; {reasons}"
    if len(sick) == total:
        return Condition(False, GPUNodeReason.NONE_HEALTHY, message)
    return Condition(True, GPUNodeReason.SOME_UNHEALTHY, message)


def status_of(wanted: Desired, *, previous: JSON, now: float) -> JSON:
    """The whole status at `now` (seconds since the epoch); an unchanged condition keeps its transition time."""
    return {
        **content_of(wanted),
        "observedAt": moments.stamp(now),
        "conditions": [_condition_to_json(item, previous, now) for item in (wanted.condition, *wanted.others)],
    }


def content_of(wanted: Desired) -> JSON:
    """The part of the status without times, by which two statuses are compared."""
    gpus = wanted.inventory.gpus
    return {
        **inventory_to_status(wanted.inventory),
        heartbeat.FIELD: wanted.heartbeat or None,
        idle.FIELD: idle.idle_to_status(wanted.idle),
        reports.FIELD: reports.reports_to_status(wanted.reports),
        "summary": {
            "gpus": len(gpus),
            "healthy": sum(gpu.healthy for gpu in gpus),
            "models": ", ".join(dict.fromkeys(gpu.model for gpu in gpus)),
            "memory": format_bytes(wanted.promised.memory),
        },
    }


def says(published: JSON, wanted: Desired) -> bool:
    """Whether a published status already has this content, apart from times."""
    content = content_of(wanted)
    conditions = {each.kind: _stated(each) for each in (wanted.condition, *wanted.others)}
    stated = {kind: _read(item) for kind, item in listed(published).items()}
    return {key: published.get(key) for key in content} == content and stated == conditions


def _condition_to_json(condition: Condition, previous: JSON, now: float) -> JSON:
    before = listed(previous).get(condition.kind, {})
    status = "True" if condition.ready else "False"
    stays = before.get("status") == status and moments.seconds(before.get("lastTransitionTime")) is not None
    return {
        "type": condition.kind,
        "status": status,
        "reason": condition.reason,
        "message": condition.message,
        "lastTransitionTime": before["lastTransitionTime"] if stays else moments.stamp(now),
    }


def _stated(condition: Condition) -> tuple[object, ...]:
    return ("True" if condition.ready else "False", condition.reason, condition.message)


def _read(published: JSON) -> tuple[object, ...]:
    """The content of a published condition; it may be of another version or damaged, and then differs."""
    return tuple(published.get(key) for key in ("status", "reason", "message"))
