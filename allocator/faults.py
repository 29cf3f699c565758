"""
Logs internal errors that affect only one pod, node or claim, under an id by which they are found.

Code that isolates such an error calls `Faulted` while it handles the exception. In a running allocator that writes the
traceback to the log under an id, counts it, and gives the id for the pod's message; in a test it raises, so that no
error hides behind its isolation. Pure; the log and the counter are `allocator.app`'s.
"""

from __future__ import annotations

from collections.abc import Callable

Faulted = Callable[[str, str], str]
"""Gets the place of the error, in one word, and the object (`namespace/name`, or another name); returns the fault's
id."""


def surfaced(place: str, about: str) -> str:
    """A `Faulted` that raises the exception again, for callers that must not continue."""
    raise
