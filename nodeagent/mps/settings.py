"""
The settings of `python -m nodeagent mps`, field by field.

Must not: open anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nodeagent.mps.daemon import PROGRAM
from nodeagent.mps.places import ROOT
from runtime.settings import setting


@dataclass(frozen=True)
class MpsSettings:
    """Everything that can be set."""

    root: str = setting(
        ROOT, "Folder of the daemons' files on the host; the node agent's limiters.mps is the same one."
    )
    program: str = setting(PROGRAM, "The MPS control daemon: a path, or a name that is found on PATH.")
    multiuser: bool = setting(
        True,
        "One server for clients of all users (the daemon's -multiuser-server), where the driver knows it (555 and on). "
        "Without it a container whose user is another one waits until the clients before it have ended.",
    )
    nvml_library: str = setting("", "Path of libnvidia-ml.so.1; empty: the linker's choice.")
    interval: float = setting(5.0, "Time between two looks at GPUs and daemons.", unit="duration", minimum=0.05)
    timeout: float = setting(5.0, "How long a daemon may take for one answer.", unit="duration", minimum=0.1)
    log_format: Literal["text", "json"] = setting("text", "Log lines for people or for machines.")
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "The least that is logged.")
