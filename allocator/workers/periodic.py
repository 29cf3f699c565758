"""
Runs the leader's work at the start of its leadership and then periodically, in a separate thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from runtime.kubernetes.client import KubeError

log = logging.getLogger(__name__)


def while_leading(
    look: Callable[[], object],
    stop: threading.Event,
    leading: Callable[[], bool],
    *,
    every: float,
    pause: float = 1.0,
    missed: str,
) -> None:
    """
    Call `look` at once when this replica begins to lead, and then repeatedly, until stopped.

    `every`: seconds between two calls. `pause`: how often leadership is looked at. `missed`: the log's message if the
    API server gave no answer; the call is made again after `every`.
    """
    waited = every
    while not stop.wait(pause):
        waited = waited + pause if leading() else every
        if leading() and waited >= every:
            waited = 0.0
            try:
                look()
            except KubeError as error:
                log.info(missed, extra={"reason": str(error)})
