"""Whether the log records which pods got and lost which cards."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.settings import setting


@dataclass(frozen=True)
class AuditSettings:
    """Audit."""

    log: bool = setting(
        True,
        "Whether the leader logs a line for each share that a pod gets or loses: `share granted` and `share released`, "
        "by the logger `allocator.features.audit.lines`.",
    )
