"""
`python -m nodeagent mps` and `mps-supervisor`: their settings, and what they start.

Must not: decide anything.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nodeagent.gpus.nvml import Nvml
from nodeagent.gpus.simulated import Simulated
from nodeagent.mps import keeper
from nodeagent.mps.daemon import PROGRAM
from nodeagent.mps.exchange import ROOT
from nodeagent.mps.supervisor import Supervisor
from runtime import logs
from runtime.process import Process
from runtime.settings import effective, setting

log = logging.getLogger("nodeagent.mps")

_ENDING = 50.0
"""Seconds that the daemons may take to end; the pod's grace period is longer."""


@dataclass(frozen=True)
class MpsSettings:
    """The settings of both commands."""

    root: str = setting(ROOT, "Folder of the daemons' files on the host; the same as the node agent's limiters.mps.")
    program: str = setting(PROGRAM, "The MPS control daemon: a path, or a name that is found on PATH.")
    multiuser: bool = setting(
        True,
        "One server for clients of all users (the daemon's -multiuser-server), with driver 555 and later. Without it, "
        "a container of another user waits until the earlier clients have ended.",
    )
    nvml_library: str = setting("", "Path of libnvidia-ml.so.1; empty: the linker's choice.")
    simulate: str = setting("", "Simulated GPUs, as for the agent; empty: the real ones.")
    node: str = setting("", "The node's name, from which simulated GPUs derive their UUIDs.")
    interval: float = setting(5.0, "Interval between checks of GPUs and daemons.", unit="duration", minimum=0.05)
    timeout: float = setting(5.0, "Time within which a daemon must answer.", unit="duration", minimum=0.1)
    log_format: Literal["text", "json"] = setting("text", "Format of log lines: for people or for machines.")
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "The lowest level that is logged.")


def keep(settings: MpsSettings, arguments: Sequence[str]) -> int:
    """Run the supervisor with these arguments, and restart it when it fails."""
    logs.setup(form=settings.log_format, level=settings.log_level, stream=sys.stderr)
    return keeper.keep((sys.executable, "-m", "nodeagent", "mps-supervisor", *arguments))


def supervise(settings: MpsSettings) -> int:
    """Run the daemons until a signal to stop. Then they also end, as their container does."""
    logs.setup(form=settings.log_format, level=settings.log_level, stream=sys.stderr)
    log.info("settings", extra={"settings": effective(settings)})
    library = (
        Simulated(settings.simulate, node=settings.node) if settings.simulate else Nvml(path=settings.nvml_library)
    )
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
    # Do not wait for a round that hangs in the driver.
    thread.join(settings.timeout)
    if code == 0 and not thread.is_alive():
        supervisor.end(within=_ENDING)
    return code
