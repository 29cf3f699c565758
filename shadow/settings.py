"""The recorder's settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from contract.encoding import quantity
from runtime.settings import setting


@dataclass(frozen=True)
class RecorderSettings:
    """The settings of `python -m shadow record`."""

    directory: Path = setting(Path("/var/lib/gpufraction-shadow"), "Folder in which the recording is written.")
    size: int = setting(
        256 * quantity.MIB,
        "Disk space that the recording may use. When it is full, its oldest part is removed. A thousand pods take "
        "about half a MiB, compressed a tenth of that.",
        unit="bytes",
        minimum=8 * quantity.MIB,
    )
    listen: str = setting("0.0.0.0:9406", "Address and port of /healthz and /readyz; empty serves none.")
    kubeconfig: str = setting("", "Path of a kubeconfig; empty: the service account, or the user's own kubeconfig.")
    log_format: Literal["text", "json"] = setting("text", "Format of log lines: for people or for machines.")
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "The lowest level that is logged.")
