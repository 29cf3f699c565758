"""
Exponential backoff: how long to wait after a failure before the next try.

Pure, so it is in `contract`: the allocator's core, the MPS supervisor and the Kubernetes client all use it. The caller
counts the failures and, where many programs could wake together, brings the random number.
"""

from __future__ import annotations

_MOST_DOUBLINGS = 32


def backoff(failures: int, first: float, longest: float) -> float:
    """Seconds to wait after `failures` in a row: `first`, doubled with each further one, at most `longest`."""
    return min(first * 2.0 ** min(max(failures - 1, 0), _MOST_DOUBLINGS), longest)


def with_jitter(wait: float, chance: float) -> float:
    """Between half of `wait` and all of it, by `chance` from 0 to 1, so that programs do not retry together."""
    return wait * (0.5 + 0.5 * chance)
