"""The features of the simulation: a new one is a module of this folder and an entry here."""

from __future__ import annotations

from tests.simulation.enumeration import operations, strikes
from tests.simulation.feature import Feature
from tests.simulation.features import (
    admission,
    cards,
    checks,
    claims,
    clocks,
    controllers,
    crashes,
    election,
    etcd,
    fairness,
    machines,
    metering,
    namespaces,
    nodes,
    partitions,
    preemption,
    provisioning,
    requests,
    rest,
    rights,
    settings,
    watches,
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
    preemption.FEATURE,
    fairness.FEATURE,
    provisioning.FEATURE,
    metering.FEATURE,
    rest.FEATURE,
    requests.FEATURE,
    watches.FEATURE,
    partitions.FEATURE,
    clocks.FEATURE,
    etcd.FEATURE,
    admission.FEATURE,
    machines.FEATURE,
    rights.FEATURE,
    checks.FEATURE,
    operations.FEATURE,
    strikes.FEATURE,
)
