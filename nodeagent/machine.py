"""
The machine that the agent runs on: `observe` reads it, `enforce` limits containers on it.

Must not: talk to the API server, or decide what is published.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from contract import names
from contract.model import Inventory
from contract.nodes.idle import IdleShare
from contract.nodes.reports import PodReport
from contract.options import NO_OPTIONS
from nodeagent.gpus.observation import Observation
from nodeagent.isolation.levels import NO_LABELS, NO_PUBLISHED, Enforcement, Isolation, PublishedLevels
from nodeagent.isolation.mechanism import Handle
from nodeagent.publishing.terms import NodeReport, PoolDocument
from nodeagent.sharing.ownership import HOLDING
from nodeagent.sharing.residents import Residents

_PODS_NOT_READ = (
    f"the Node is labelled {names.OWNERSHIP}={HOLDING}, but this agent does not read its pods; add the component "
    f"holders, which runs holder pods and allows that"
)


class Machine:
    """
    `look` returns the latest look at the GPUs, None before the first. `residents` are this node's pods, `options` reads
    the administrator's document, `published_soon` is called with each inventory that is about to be published,
    `idle` gives the shares that compute nothing, `reports` what is wrong with pods here, and `waits` why nothing may be
    written now.
    """

    def __init__(
        self,
        look: Callable[[], Observation | None],
        *,
        residents: Residents | None = None,
        isolation: Isolation | None = None,
        options: Callable[[], PoolDocument] = lambda: PoolDocument(NO_OPTIONS),
        published_soon: Callable[[Inventory], None] = lambda inventory: None,
        idle: Callable[[], frozenset[IdleShare]] = frozenset,
        reports: Callable[[], frozenset[PodReport]] = frozenset,
        waits: Callable[[], str] = str,
    ) -> None:
        self._look = look
        self._options = options
        self._published_soon = published_soon
        self._idle = idle
        self._reports = reports
        self._waits = waits
        self._residents = residents or Residents(known=True)
        self._isolation = isolation or Isolation(Handle(pods=self._residents))

    def observe(self) -> NodeReport | None:
        """The present state of the machine; None before the first look at the GPUs has ended."""
        observation = self._look()
        if observation is None:
            return None
        unknown = ""
        if not self._residents.known:
            unknown = "the pods of this node are not listed yet" if self._residents.followed else _PODS_NOT_READ
        idle, reports = frozenset[IdleShare](), frozenset[PodReport]()
        if not observation.problem:  # otherwise the usage of each pod is unknown
            idle, reports = self._idle(), self._reports()
        held = self._residents.held()
        return NodeReport(observation, self._options(), held, unknown, idle, reports, self._waits())

    def enforce(
        self,
        inventory: Inventory,
        now: float,
        labels: Mapping[str, str] = NO_LABELS,
        published: PublishedLevels = NO_PUBLISHED,
    ) -> Enforcement:
        """Limit containers to their shares of this inventory, and report what is enforced. `labels`: the Node's."""
        self._published_soon(inventory)
        return self._isolation.enforce(inventory, now, labels, published)
