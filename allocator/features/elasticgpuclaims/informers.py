"""
Watch events of `elasticgpu.io` into the controller.

A cluster may lack these kinds, where an administrator took them out. Then there are no claims, and nothing waits for
them to be listed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from allocator.features.elasticgpuclaims import objects, writer
from allocator.scheduler.core import Controller
from allocator.scheduler.events import ClaimChanged, ClaimDeleted, ClaimsListed
from contract import kinds
from runtime.kubernetes.client import Kube
from runtime.kubernetes.watch import Event, Gone, Informer, Put, Replaced
from runtime.supervision import Workers

JSON = dict[str, Any]
_READ = {
    objects.CLAIMS: kinds.ELASTICGPUCLAIMS,
    objects.CLASSES: kinds.ELASTICGPUCLASSES,
    objects.SHARES: kinds.ELASTICGPUS,
}
KINDS = (objects.CLAIMS, objects.CLASSES)
"""Those that need no new list for a new leadership: what is booked stands on ElasticGPUs alone."""


def handle(controller: Controller, plural: str, event: Event, term: int | None = None) -> None:
    """One event. `term`: the list was asked for in this leadership, after it began."""
    match event:
        case Replaced(items):
            controller.handle(ClaimsListed(plural, tuple(items), term))
        case Put(document):
            controller.handle(ClaimChanged(plural, document))
        case Gone(document):
            controller.handle(ClaimDeleted(plural, document))


def informer(
    kube: Kube,
    plural: str,
    handler: Callable[[Event], None],
    on_restart: Callable[[str], None],
    workers: Workers | None,
) -> Informer:
    """The informer of one kind."""
    return Informer(
        kube,
        writer.path(plural),
        handler,
        name=plural,
        of=_READ[plural],
        on_restart=on_restart,
        optional=True,
        workers=workers,
    )
