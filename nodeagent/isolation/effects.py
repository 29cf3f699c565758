"""
What mechanisms do to the GPUs of this node apart from limiting containers, and what follows for each look.

Pure except for the faults that `Faults` remembers. Must not: know one mechanism.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import dataclass, field, replace

from contract.metrics.spec import MetricSpec
from contract.nodes.reports import PodReport
from contract.reasons.pods import PodEventReason
from nodeagent.gpus.observation import Observation
from nodeagent.sharing.residents import Resident


@dataclass(frozen=True, slots=True)
class Effects:
    """
    What a mechanism does to GPUs, which are named by UUID.

    `closed`: those that take no new pods, each with the reason. `own`: process ids of the mechanism itself, whose
    memory belongs to its clients. `faulted`: those on which every pod has a fault, each with the code of the report.
    `figures`: by metric, whose labels are node and GPU.
    """

    closed: MutableMapping[str, str] = field(default_factory=dict)
    own: frozenset[int] = frozenset()
    faulted: MutableMapping[str, PodEventReason] = field(default_factory=dict)
    figures: MutableMapping[MetricSpec, dict[str, float]] = field(default_factory=dict)


NO_EFFECTS = Effects()


def together(effects: Sequence[Effects]) -> Effects:
    """The effects of all mechanisms. Of two reasons for one GPU the first counts."""
    return Effects(
        ChainMap(*(each.closed for each in effects)),
        frozenset().union(*(each.own for each in effects)),
        ChainMap(*(each.faulted for each in effects)),
        ChainMap(*(each.figures for each in effects)),
    )


def judged(observation: Observation, effects: Effects) -> Observation:
    """The observation, with each GPU unhealthy that a mechanism closes to new pods."""
    return replace(
        observation,
        cards=tuple(
            replace(card, healthy=False, reason=why)
            if card.healthy and (why := effects.closed.get(card.uuid, ""))
            else card
            for card in observation.cards
        ),
    )


def without_own(observation: Observation, effects: Effects) -> Observation:
    """The observation without the mechanisms' own processes."""
    if not effects.own:
        return observation
    return replace(
        observation,
        cards=tuple(
            card
            if card.processes is None
            else replace(card, processes=tuple((pid, used) for pid, used in card.processes if pid not in effects.own))
            for card in observation.cards
        ),
    )


class Faults:
    """Finds the pods on a GPU with a fault, for as long as it lasts. One thread uses it."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], int] = {}
        """By the pod's uid and the GPU."""

    def reports(self, effects: Effects, residents: Iterable[Resident], now: float) -> frozenset[PodReport]:
        """One for each pod and GPU. `now`: seconds since 1970."""
        affected = {
            (resident.uid, share.uuid): place
            for resident in residents
            for place, container in enumerate(resident.allocation.containers if resident.allocation else ())
            for share in container.shares
            if share.uuid in effects.faulted
        }
        self._since = {key: self._since.get(key, int(now)) for key in affected}
        return frozenset(
            PodReport(self._since[uid, gpu], uid, effects.faulted[gpu], place, gpu)
            for (uid, gpu), place in affected.items()
        )
