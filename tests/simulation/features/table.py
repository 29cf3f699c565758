"""The features of the simulation: a new one is a module of this folder and an entry here."""

from __future__ import annotations

from tests.simulation.feature import Feature
from tests.simulation.features import (
    admission,
    cards,
    checks,
    clocks,
    crashes,
    election,
    etcd,
    machines,
    partitions,
    requests,
    rights,
    watches,
    workload,
)

FEATURES: tuple[Feature, ...] = (
    workload.FEATURE,
    cards.FEATURE,
    election.FEATURE,
    crashes.FEATURE,
    requests.FEATURE,
    watches.FEATURE,
    partitions.FEATURE,
    clocks.FEATURE,
    etcd.FEATURE,
    admission.FEATURE,
    machines.FEATURE,
    rights.FEATURE,
    checks.FEATURE,
)
