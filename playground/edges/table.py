"""
Who may write what, where it arrives, what bounds it and which test shows that: `docs/edges.md`.

An edge is a name on an object, a dialect, a right of one of our roles, a route of one of our servers, a field of one of
our kinds, or a path of the host. A test compares the edges that the rows here cover with those that the code and the
manifests have, so a new one without a row fails, and so does a row whose edge was removed.

    name gpufraction.io/request             a name of `contract.names`
    dialect hami                            the names of one dialect
    right gpufraction-allocator patch pods  a verb and a resource of a role
    route webhook POST /mutate              a method and a path of a server
    field GPUNode status.pool               a field of a CustomResourceDefinition
    path /run/gpufraction/mps               a folder of the host that a pod of ours has
"""

from __future__ import annotations

from collections.abc import Iterator

from playground.edges.edge import FeatureEdges
from playground.edges.features import (
    DELIVERY,
    ELASTIC,
    FAIR_ORDER,
    IDLE,
    KUEUE,
    LIMITS,
    METERING,
    MOVING,
    NODES,
    PAGE,
    SHARES_BY_CLAIMS,
)
from playground.edges.groups import CONFORMANCE, GANGS, STARTS
from playground.edges.programs import ADMISSION, PLACEMENT
from playground.edges.shadow import SHADOW

FEATURES: tuple[FeatureEdges, ...] = (
    ADMISSION,
    PLACEMENT,
    FAIR_ORDER,
    IDLE,
    LIMITS,
    METERING,
    MOVING,
    DELIVERY,
    SHARES_BY_CLAIMS,
    ELASTIC,
    KUEUE,
    NODES,
    PAGE,
    GANGS,
    STARTS,
    CONFORMANCE,
    SHADOW,
)


def covered() -> Iterator[str]:
    """The edges of all rows."""
    for feature in FEATURES:
        for row in feature.rows:
            yield from row.covers
