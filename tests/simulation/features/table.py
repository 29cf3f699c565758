"""The features of the simulation: a new one is a module of this folder and an entry here."""

from __future__ import annotations

from tests.simulation.feature import Feature
from tests.simulation.features import (
    cards,
    claims,
    controllers,
    crashes,
    election,
    namespaces,
    nodes,
    rest,
    settings,
    workload,
)

FEATURES: tuple[Feature, ...] = (
    workload.FEATURE,
    cards.FEATURE,
    election.FEATURE,
    crashes.FEATURE,
    controllers.FEATURE,
    claims.FEATURE,
    nodes.FEATURE,
    namespaces.FEATURE,
    settings.FEATURE,
    rest.FEATURE,
)
