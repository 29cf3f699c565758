"""How many examples a property test takes if the profile's number does not suit it."""

from __future__ import annotations

import os

EXPLORING = os.environ.get("HYPOTHESIS_PROFILE") == "explore"


def examples(number: int) -> int:
    """
    This many examples in `make test`, which takes the same ones each time, and ten times as many in `make explore`.
    """
    return number * 10 if EXPLORING else number
