"""
Audit: a line in the log for each share that a pod got or lost, by whom and why.
"""

from __future__ import annotations

from allocator.features.audit.lines import write
from allocator.features.audit.part import AuditPart, Granted, Released
from allocator.features.audit.settings import AuditSettings
from allocator.features.base import Feature, Running, Shell


def _run(shell: Shell, chosen: AuditSettings, inside: AuditPart) -> Running:
    return Running(carries={Granted: write, Released: write})


FEATURE = Feature(
    name="audit",
    group="audit",
    settings=AuditSettings,
    inside=AuditPart,
    part=AuditPart.part,
    run=_run,
    enabled=lambda settings: settings.log,
)
