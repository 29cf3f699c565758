"""
Errors of ours that stay with one pod, node or claim: where they are logged, and by what name they are found again.

Code that isolates such an error calls `Faulted` while it handles the exception. In a running allocator that writes the
traceback to the log under an id, counts it, and gives the id for the pod's message; in a test it raises, so that no
error hides behind its isolation. Pure; the log and the counter are `allocator.app`'s.
"""

from __future__ import annotations

from collections.abc import Callable

Faulted = Callable[[str, str], str]
"""Gets where the error came up, in a word, and of whom (`namespace/name`, or another name); gives the fault's id."""


def surfaced(place: str, about: str) -> str:
    """A `Faulted` that lets the exception go on, for where nobody else is to go on."""
    raise
