"""
The interface between the core and the features: what a feature's part may use of the core, and what it adds.

The shell makes the parts and calls them under its lock; the core knows none of them by name. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from allocator.cache.declared_pools import DeclaredPools
from allocator.cache.podinfo import PodInfo
from allocator.cache.reserved import HeldNode
from allocator.faults import Faulted
from allocator.queue.queue import QueuedPodInfo, Rounds
from allocator.queue.records import Binding, Eviction
from allocator.scheduler.events import TickPhase
from allocator.scheduler.leadership import SchedulerState
from allocator.scheduler.reservations import Preemptor, VictimKind
from contract.model import Allocation
from contract.reasons.base import ReasonName
from contract.reasons.claims import PodOfClaim
from contract.reasons.nodes import NodeCode

Handler = Callable[[Any, float], None]
"""Takes in an event, at a time of the core's clock."""
Tick = Callable[[float], Iterable[object]]
"""Gives the effects that are due, each once."""
_OFF = (
    "ElasticGPUClaims are not enabled in this cluster; request the share in the resources of a container, or have the "
    "administrator add the component claims"
)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a pod waits: a code of the registry and a sentence. `warns`: the pod gets an Event about it too."""

    code: ReasonName
    text: str
    warns: bool = False


class ClaimedShares(Protocol):
    """Shares that pods get by naming a claim."""

    def exist(self) -> bool:
        """Whether there are claims, which are looked at in rounds."""

    def waits(self, namespace: str, name: str) -> Explanation:
        """The state of a claim, as a reason for a pod that names it."""

    def begin_pass(self) -> None:
        """The queue is about to be tried."""

    def place(self, entry: QueuedPodInfo) -> Allocation | Explanation:
        """The share of the claim that a pod of the queue names, or why the pod waits."""

    def bind_the_rest(self) -> None:
        """The queue was tried: bind the claims that wait for no pod."""


class NoClaims:
    """There are no claims. A pod that names one waits, with a message."""

    def exist(self) -> bool:
        """Never."""
        return False

    def waits(self, namespace: str, name: str) -> Explanation:
        """Why every such pod waits."""
        return Explanation(PodOfClaim.OFF, _OFF)

    def begin_pass(self) -> None:
        """Nothing."""

    def place(self, entry: QueuedPodInfo) -> Explanation:
        """The same for a pod of the queue."""
        return self.waits("", "")

    def bind_the_rest(self) -> None:
        """Nothing."""


NO_CLAIMS = NoClaims()


@dataclass(frozen=True, slots=True)
class Together:
    """The shares of pods that start together. The first is written first, with the plan of all of them on it."""

    members: tuple[tuple[QueuedPodInfo, Allocation], ...]
    plan: str


@dataclass(frozen=True, slots=True)
class GangWaits:
    """
    Why a gang waits; an empty text is not shown. `codes`: of all nodes, of the pod that does not fit; none if no
    event of nodes helps.
    """

    code: ReasonName
    text: str
    codes: frozenset[NodeCode]


class Gangs(Protocol):
    """Pods that start together or not at all."""

    def see(self, pod: PodInfo) -> None:
        """A pod is new or changed."""

    def drop(self, uid: str) -> None:
        """A pod was deleted."""

    def begin_round(self) -> None:
        """The queue is about to be tried."""

    def is_completing(self) -> bool:
        """Whether pods are about to get shares that were decided for them before."""

    def due(self, now: float) -> Iterable[tuple[QueuedPodInfo, Allocation]]:
        """The pods to bind before anything is decided, each with its share, assumed or not."""

    def held(self, entry: QueuedPodInfo, now: float) -> tuple[HeldNode, ...] | None:
        """The nodes to reserve for the starving pod's whole gang; None if it is placed by itself."""

    def known(self, entry: QueuedPodInfo, shape: Callable[[QueuedPodInfo], Hashable], now: float) -> GangWaits | None:
        """Why the pod's gang waits, if that needs no decision. `shape`: what decides about a pod."""

    def place(
        self, entry: QueuedPodInfo, shape: Callable[[QueuedPodInfo], Hashable], now: float
    ) -> Together | Allocation | GangWaits | None:
        """
        The shares of the pod's whole gang, or of the pod alone, or why it waits; None if it is placed like any other.
        Called where nothing is `known` of the gang.
        """

    def opening(self, first: Binding, others: Sequence[Binding]) -> None:
        """The shares of a gang are assumed; the first binding is given out, and the others wait for its outcome."""

    def succeeded(self, binding: Binding) -> None:
        """A binding took effect."""

    def keeps(self, binding: Binding) -> bool:
        """A binding did not take effect and its pod waits: whether its share stays assumed, to be written again."""

    def failed(self, binding: Binding) -> None:
        """A binding did not take effect, and its share was given back."""


class NoGangs:
    """Every pod is placed by itself."""

    def see(self, pod: PodInfo) -> None:
        """Nothing."""

    def drop(self, uid: str) -> None:
        """Nothing."""

    def begin_round(self) -> None:
        """Nothing."""

    def is_completing(self) -> bool:
        """Never."""
        return False

    def due(self, now: float) -> Iterable[tuple[QueuedPodInfo, Allocation]]:
        """None."""
        return ()

    def held(self, entry: QueuedPodInfo, now: float) -> tuple[HeldNode, ...] | None:
        """By itself."""
        return None

    def known(self, entry: QueuedPodInfo, shape: Callable[[QueuedPodInfo], Hashable], now: float) -> GangWaits | None:
        """Nothing is known."""
        return None

    def place(
        self, entry: QueuedPodInfo, shape: Callable[[QueuedPodInfo], Hashable], now: float
    ) -> Together | Allocation | GangWaits | None:
        """By itself."""
        return None

    def opening(self, first: Binding, others: Sequence[Binding]) -> None:
        """Never called."""

    def succeeded(self, binding: Binding) -> None:
        """Nothing."""

    def keeps(self, binding: Binding) -> bool:
        """Never."""
        return False

    def failed(self, binding: Binding) -> None:
        """Nothing."""


NO_GANGS = NoGangs()


class Search(Protocol):
    """A search for pods to evict, over frozen values: `run` is called without the lock."""

    @property
    def pod(self) -> QueuedPodInfo:
        """The pod for which room is sought."""

    def run(self) -> Callable[[], list[Eviction] | None]:
        """
        Search, and return a function that concludes: called under the lock, it checks the result against the present,
        and returns the pods to evict; None if evictions do not help.
        """


@dataclass(frozen=True, slots=True)
class Core:
    """The parts of the core that a feature may use, under the lock."""

    state: SchedulerState
    preemptor: Preemptor
    pools: DeclaredPools
    rounds: Rounds
    clock: Callable[[], float]
    wall: Callable[[], float]
    new_id: Callable[[], str]
    synced: Callable[[str, int | None], None]
    """A whole collection was taken in, which had to be listed in the leadership of this number."""
    faulted: Faulted
    by_claims: bool = False
    """Whether pods name ResourceClaims, by which some nodes deliver."""


@dataclass(frozen=True, slots=True)
class FeaturePart:
    """What a feature adds to the core."""

    handlers: Mapping[type, Handler] = field(default_factory=dict)
    """The events that it takes in, by type."""
    ticks: Mapping[TickPhase, Tick] = field(default_factory=dict)
    """Its work in a tick."""
    lists: frozenset[str] = frozenset()
    """The collections that it must have seen before anything is decided."""
    booked: frozenset[str] = frozenset()
    """Those of them by which shares are booked: they are listed again for each leadership."""
    claims: ClaimedShares | None = None
    gangs: Gangs | None = None
    explains: Callable[[str], Explanation | None] | None = None
    """The addition to the reason why a pod waits, by its uid."""
    adds: Callable[[str], str] | None = None
    """The text after every reason why a pod waits, by its uid; empty for none. It changes no code."""
    victims: tuple[VictimKind, ...] = ()
    """Kinds of pods that may be evicted for a waiting one, if pods of lower priority make no room for it."""
    searches: Callable[[], Iterable[Search]] | None = None
    """
    The searches for pods to evict that are worth their time now. Asked in the order of the table, and only where those
    before them make no room.
    """
    evicted: Callable[[Eviction, str, float], None] | None = None
    """Called for each eviction that was granted, with the controller of the pod."""
