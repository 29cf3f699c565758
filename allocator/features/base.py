"""
A feature of the allocator: a value with its settings, its part of the core, and its threads alongside the core.

`allocator.features` has the table. The shell composes them in the table's order and knows none by name; features do not
import each other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from allocator.faults import Faulted
from allocator.scheduler.core import Controller
from allocator.scheduler.parts import Core, FeaturePart
from allocator.settings import Settings
from allocator.workers.binder import EventRecorder
from allocator.workers.claim_reader import ClaimReader
from allocator.workers.informers import FollowedCollection
from allocator.workers.namespaces import NamespaceLabel
from contract.dialects.table import Dialects
from contract.metrics.spec import MetricSpec
from contract.options import PoolOptions
from contract.scheduling.filters import Limits
from runtime.httpserver import Routes
from runtime.kubernetes.client import Kube
from runtime.kubernetes.lease import Covered
from runtime.metrics import Metrics
from runtime.supervision import Workers

JSON = dict[str, Any]
S = TypeVar("S")
I = TypeVar("I")  # noqa: E741 - what a feature has in the core
Thread = Callable[[threading.Event], None]
"""Runs until stopped, on a thread of its own."""


@dataclass(frozen=True, slots=True)
class Shell:
    """The services that a feature may use alongside the core."""

    kube: Kube
    controller: Controller
    settings: Settings
    dialects: Dialects
    limits: Limits
    metrics: Metrics
    options: Callable[[], PoolOptions]
    """The options that apply now."""
    recorder: EventRecorder
    leading: Callable[[], bool]
    covered: Callable[[], Covered | None] | None
    """The part of the time in which this replica answers; None if it always answers."""
    by_claims: bool
    """Whether pods name ResourceClaims, by which some nodes deliver."""
    claims: ClaimReader | None
    """Reads the ResourceClaims that pods name; None if pods do not request shares by them."""
    new_nodes_within: float | None
    """Seconds that a new node of a declared pool may take; None if no nodes are requested."""
    write_timeout: float
    """Seconds that one write may take."""
    restarted: Callable[[str, str], None]
    """Called with the name of an informer that restarts, and the reason."""
    workers: Workers
    faulted: Faulted


@dataclass(frozen=True, slots=True)
class Running:
    """The parts of a feature that run alongside the core."""

    threads: Mapping[str, Thread] = field(default_factory=dict)
    """By the names that the metric of restarts has."""
    follows: tuple[FollowedCollection, ...] = ()
    labels: tuple[NamespaceLabel, ...] = ()
    seen: Callable[[JSON], None] | None = None
    """Called with every new or changed pod."""
    decided: Callable[[], None] | None = None
    """Called after each scheduling cycle."""
    routes: Routes = field(default_factory=dict)
    """Its routes for the webhook, on the socket."""
    carries: Mapping[type, Callable[[Any], None]] = field(default_factory=dict)
    """Carries out the effects of its part, by type."""


@dataclass(frozen=True, slots=True)
class Feature(Generic[S, I]):
    """
    A feature. `settings`: its group, a dataclass that `setting` fills, whose settings are named below `group`, or at
    the top where that is empty. `inside`: makes what it has in the core, and `part` what that adds there. `run`: makes
    what runs alongside the core; nothing starts before all have been made.
    """

    name: str
    settings: type[S]
    inside: Callable[[Core, S], I]
    run: Callable[[Shell, S, I], Running]
    part: Callable[[I], FeaturePart] = lambda inside: FeaturePart()
    enabled: Callable[[S], bool] = lambda settings: True
    group: str = ""
    metrics: tuple[MetricSpec, ...] = ()
    """Its metrics that `contract.metrics` does not have."""
    serves_claims: bool = False
    """Whether pods may request shares by ResourceClaims if it is on."""
    nodes_within: Callable[[S], float] | None = None
    """Seconds that a node requested by the feature may take; None if it requests none."""

    def chosen(self, settings: Settings) -> S:
        """Its group in the settings."""
        found = getattr(settings, self.name)
        assert isinstance(found, self.settings)
        return found

    def is_on(self, settings: Settings) -> bool:
        """Whether the administrator has turned it on."""
        return self.enabled(self.chosen(settings))


def nothing(core: Core, settings: object) -> None:
    """The empty part, for a feature that has no code in the core."""


@dataclass(slots=True)
class Built:
    """A feature that is on, and its part of the core once it exists."""

    feature: Feature[Any, Any]
    chosen: Any
    inside: Any = None

    def make(self, core: Core) -> FeaturePart:
        """Create its part of the core."""
        self.inside = self.feature.inside(core, self.chosen)
        return self.feature.part(self.inside)

    def run(self, shell: Shell) -> Running:
        """Create the parts that run alongside the core."""
        return self.feature.run(shell, self.chosen, self.inside)


def built(features: tuple[Feature[Any, Any], ...], settings: Settings) -> tuple[Built, ...]:
    """The features that are on."""
    return tuple(Built(each, each.chosen(settings)) for each in features if each.is_on(settings))
