"""
The table of the allocator's features. A new one gets a folder here and its line below.
"""

from __future__ import annotations

from typing import Any

from allocator.features import (
    audit,
    canary,
    defragmentation,
    delivery,
    elasticgpuclaims,
    estimates,
    gangs,
    idle,
    kueue,
    metering,
    provisioning,
    resourceclaims,
    servicelevels,
    starts,
)
from allocator.features.base import Feature

FEATURES: tuple[Feature[Any, Any], ...] = (
    elasticgpuclaims.FEATURE,
    kueue.FEATURE,
    delivery.FEATURE,
    metering.FEATURE,
    provisioning.FEATURE,
    idle.FEATURE,
    defragmentation.FEATURE,
    canary.FEATURE,
    servicelevels.FEATURE,
    estimates.FEATURE,
    audit.FEATURE,
    gangs.FEATURE,
    resourceclaims.FEATURE,
    starts.FEATURE,
)
