"""
Prints the progress to standard error, so that standard output has the figures only.
"""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """One line, at once."""
    print(f"  ... {text}", file=sys.stderr, flush=True)
