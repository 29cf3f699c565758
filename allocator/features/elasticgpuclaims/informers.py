"""
Watch events of `elasticgpu.io` into the controller.

A cluster lacks these kinds if an administrator removed them. Then there are no claims, and nothing waits for their
lists.
"""

from __future__ import annotations

from allocator.features.elasticgpuclaims import objects, writer
from allocator.features.elasticgpuclaims.changes import ClaimChanged, ClaimDeleted, ClaimsListed
from allocator.scheduler.core import Controller
from allocator.workers.informers import FollowedCollection
from contract import kinds
from runtime.kubernetes.watch import Deleted, Event, Put, Replaced


def followed(controller: Controller) -> tuple[FollowedCollection, ...]:
    """The kinds. Bookings are stored only on ElasticGPUs, which are listed again for each leadership."""
    read = {
        objects.CLAIMS: kinds.ELASTICGPUCLAIMS,
        objects.CLASSES: kinds.ELASTICGPUCLASSES,
        objects.SHARES: kinds.ELASTICGPUS,
    }
    return tuple(
        FollowedCollection(
            plural, writer.path(plural), of, _Handler(controller, plural), booked=plural == objects.SHARES
        )
        for plural, of in read.items()
    )


class _Handler:
    def __init__(self, controller: Controller, plural: str) -> None:
        self._controller = controller
        self._plural = plural

    def __call__(self, event: Event, term: int | None) -> None:
        """Handle one event. `term`: the leadership in which the list was requested, after it began."""
        match event:
            case Replaced(items):
                self._controller.handle(ClaimsListed(self._plural, tuple(items), term))
            case Put(document):
                self._controller.handle(ClaimChanged(self._plural, document))
            case Deleted(document):
                self._controller.handle(ClaimDeleted(self._plural, document))
