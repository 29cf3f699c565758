"""
`python -m nodeagent mps` and `mps-supervisor`: wiring of what this package has.

Must not: decide anything.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from nodeagent.gpus.nvml import Nvml
from nodeagent.mps import keeper
from nodeagent.mps.settings import MpsSettings
from nodeagent.mps.supervisor import Supervisor
from runtime import logs
from runtime.process import Process
from runtime.settings import effective

log = logging.getLogger("nodeagent.mps")

_ENDING = 50.0
"""Seconds in which the daemons are to end; the pod's grace period is longer."""


def keep(settings: MpsSettings, arguments: Sequence[str]) -> int:
    """Keep a supervisor with these arguments running."""
    logs.setup(form=settings.log_format, level=settings.log_level, stream=sys.stderr)
    return keeper.keep(keeper.supervisor_command(arguments))


def supervise(settings: MpsSettings) -> int:
    """Keep the daemons, until a signal to stop: then they end too, since their container does."""
    logs.setup(form=settings.log_format, level=settings.log_level, stream=sys.stderr)
    log.info("settings", extra={"settings": effective(settings)})
    library = Nvml(path=settings.nvml_library)
    supervisor = Supervisor(
        library,
        Path(settings.root),
        command=(settings.program,),
        multiuser=settings.multiuser,
        timeout=settings.timeout,
    )
    process = Process()
    process.handle_signals()
    process.watch_threads()
    thread = process.spawn("mps", lambda: supervisor.run(process.stop, interval=settings.interval))
    code = process.wait()
    # A round that hangs in the driver is not waited for: the daemons' end is asked without it.
    thread.join(settings.timeout)
    if code == 0 and not thread.is_alive():
        supervisor.end(within=_ENDING)
    return code
