"""
The text of an estimate for a waiting pod. A pod of another namespace is never named, and no other team's history is
shown beyond the time itself. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from allocator.features.estimates.forecast import Estimate, Forecast, NoEstimate

STEP = 300
"""Times are rounded to five minutes: estimates are not more exact, and each new time costs a write of the condition."""
_WHY: Mapping[NoEstimate, str] = {
    NoEstimate.HISTORY: "too little is known of how long the pods on these GPUs run",
    NoEstimate.NO_ROOM: "the end of no single running pod makes room for it",
    NoEstimate.TOO_FAR: "too many pods are ahead of it",
    NoEstimate.RULES: "its start depends on more than free GPUs",
}


def rounded(by: float) -> int:
    """The displayed form of the time."""
    return math.ceil(by / STEP) * STEP


def said(found: Forecast, namespace: str, at: str) -> str:
    """The text for a pod of this namespace. at: the displayed time of an estimate."""
    if isinstance(found, NoEstimate):
        return f"no estimate of its start: {_WHY[found]}"
    return f"probably starts {at} or sooner{_cause(found, namespace)}"


def _cause(found: Estimate, namespace: str) -> str:
    whose, _, name = found.key.partition("/")
    if not found.key:
        return ""
    return f", when pod {name} ends" if whose == namespace else ", when a pod of another namespace ends"
