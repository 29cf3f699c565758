"""
The feature gates of kube-scheduler that are on, if its filters depend on them.

The version of the API server determines this, because each gate has a default in each version. The administrator sets
the differences of their kube-scheduler. Only gates that differ between 1.30 and 1.36 are here. The API server drops a
field whose gate is off when it stores an object, so most gates matter at admission only. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

Version = tuple[int, int]
"""Major and minor."""


class Gate(StrEnum):
    """A feature gate, by its name in Kubernetes."""

    MATCH_LABEL_KEYS_IN_POD_AFFINITY = "MatchLabelKeysInPodAffinity"
    IN_PLACE_RESIZE = "InPlacePodVerticalScaling"
    POD_LEVEL_RESOURCES = "PodLevelResources"
    CLAIMS = "DynamicResourceAllocation"
    DEVICE_STATUS = "DRAResourceClaimDeviceStatus"
    BINDING_CONDITIONS = "DRADeviceBindingConditions"
    EXTENDED_RESOURCES_BY_CLAIM = "DRAExtendedResource"
    DECLARED_FEATURES = "NodeDeclaredFeatures"
    TOLERATION_COMPARISON = "TaintTolerationComparisonOperators"


SINCE: Mapping[Gate, Version | None] = {
    Gate.MATCH_LABEL_KEYS_IN_POD_AFFINITY: (1, 31),
    Gate.IN_PLACE_RESIZE: (1, 33),
    Gate.POD_LEVEL_RESOURCES: (1, 34),
    Gate.CLAIMS: (1, 34),
    Gate.DEVICE_STATUS: (1, 33),
    Gate.BINDING_CONDITIONS: (1, 36),
    Gate.EXTENDED_RESOURCES_BY_CLAIM: (1, 36),
    Gate.DECLARED_FEATURES: (1, 36),
    Gate.TOLERATION_COMPARISON: None,
}
"""The first version in which each gate is on by default (pkg/features/kube_features.go); None: in none so far."""

Gates = frozenset[Gate]
"""Those that are on."""


def of_version(version: Version, overrides: Mapping[Gate, bool] | None = None) -> Gates:
    """The gates that are on in this version of Kubernetes, with the administrator's changes applied."""
    given = overrides or {}
    default = {gate: since is not None and version >= since for gate, since in SINCE.items()}
    return frozenset(gate for gate, on in {**default, **given}.items() if on)


NEWEST = of_version((1, 36))
"""The gates of the newest version that was compared with the original."""
STORED: Gates = frozenset(Gate)
"""
The gates for a stored pod: the API server has refused or dropped all fields whose gate is off.
"""


def read_overrides(items: Iterable[str]) -> Mapping[Gate, bool]:
    """
    Read `Name=true` and `Name=false`, as in kube-scheduler's own flag. Raises `ValueError` with the value found and one
    that works.
    """
    found = {}
    for item in items:
        name, _, value = item.strip().partition("=")
        if name not in SINCE or value not in ("true", "false"):
            known = ", ".join(sorted(SINCE))
            raise ValueError(f"{item[:80]!r} is not Name=true or Name=false with one of the names {known}")
        found[Gate(name)] = value == "true"
    return found
