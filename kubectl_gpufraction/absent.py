"""
Why a pod has no share to be explained, as its object tells it.

Pure. It says what to do about it, since the user expected a share.
"""

from __future__ import annotations

from typing import Any

from contract import dialects, names, pods

JSON = dict[str, Any]
_WEBHOOK = f"the label {names.INJECT_LABEL}={names.INJECT_ENABLED}"


def why(pod: JSON) -> str:
    """One sentence about a pod that neither waits for a share nor has one."""
    phase = str((pod.get("status") or {}).get("phase", ""))
    if pods.finished(pod):
        return f"it has finished ({phase}) and no longer holds a share"
    if names.GATE in pods.gates(pod):
        return "its request annotation contradicts its resources, so it is never placed; delete it"
    asked = dialects.asked(pod)
    if not asked:
        return "it asks for no GPU share"
    return (
        f"it asks for one ({', '.join(dialect.title for dialect in asked)}), and admission did not see it: it was "
        f"created before its namespace had {_WEBHOOK}, or while the webhook was not configured; create it again"
    )
