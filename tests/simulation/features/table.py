"""The features of the simulation: a new one is a module of this folder and an entry here."""

from __future__ import annotations

from tests.simulation.feature import Feature
from tests.simulation.features import cards, checks, crashes, election, workload

FEATURES: tuple[Feature, ...] = (workload.FEATURE, cards.FEATURE, election.FEATURE, crashes.FEATURE, checks.FEATURE)
