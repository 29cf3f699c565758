"""
Annotations that look like ours and are none: a slip of the pen would otherwise go by unseen, and the wish with it.

They are told, not refused: a manifest may be written for a newer version than this one.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator

from contract import names
from contract.messages import shown

_ALL = tuple(str(key) for key in names.REGISTRY if key.on.startswith("Pod annotation"))
_OURS = f"{names.GROUP}/"
_TENANTS = tuple(
    str(key).removeprefix(_OURS) for key in names.REGISTRY if key.on == "Pod annotation" and key.writer == "tenant"
)
_LONGEST = 100
"""Characters that are compared; a name of Kubernetes' has 63, but admission comes before its validation."""
_RESOURCES = tuple(str(key) for key in (names.GPU_MEMORY, names.GPU_CORES, names.GPU_PERCENT, names.GPU_COUNT))
_PREFIXES = (*(name if name.endswith(".") else f"{name}." for name in _ALL), *names.DEVICE_ANNOTATION_PREFIXES)


def strange(annotations: Iterable[str]) -> Iterator[str]:
    """One line for each of a pod's annotations under our name that nothing reads."""
    for each in sorted(annotations):
        if each.startswith(_OURS) and each not in _ALL and not each.startswith(_PREFIXES):
            yield f"metadata.annotations[{shown(each)[1:-1]}]: nothing reads it; {_cure(each)}"


def _cure(name: str) -> str:
    if name in _RESOURCES:
        return "an amount goes under resources.limits of a container"
    near = difflib.get_close_matches(name.removeprefix(_OURS)[:_LONGEST], _TENANTS, n=1)
    return f"did you mean {_OURS}{near[0]}?" if near else "remove it"
