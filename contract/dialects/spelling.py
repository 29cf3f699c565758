"""
Names that look like ones that are read and are none: a slip of the pen would otherwise go by unseen.

A misspelt annotation is told, not refused: a manifest may be written for a newer version than this one. A misspelt
resource beside a share is refused by `contract.dialects.read`, since the share would not be what was meant.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator

from contract import names
from contract.encoding.reading import shown

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


# -- the older systems' names -------------------------------------------------------------------------------------

_SEPARATORS = re.compile(r"[-_.]")
_LONG = 5
"""Characters of a name, without separators, from which a letter may be wrong: short names are others' names soon."""
_SLIPS = 8
"""Characters from which two may be."""


def meant(name: str, known: Iterable[str]) -> str | None:
    """
    The known name that was meant by one that nothing reads; None where it is none's near miss, or known itself.

    Near: of the same domain, and either the same but for case and separators (`gpu-mem`, `gpuMem`), or one is the
    beginning of the other (`gpumemory`, `gpu-percentage`), or a letter or two are wrong. Another first letter is
    another name (`qgpu-core`, `vgpu`).
    """
    domain, plain = _plain(name[:_LONGEST])
    near = []
    for each in known:
        if each == name:
            return None
        its_domain, its_plain = _plain(each)
        if its_domain == domain and _near(plain, its_plain):
            near.append((-difflib.SequenceMatcher(None, plain, its_plain).ratio(), each))
    return min(near)[1] if near else None


def _plain(name: str) -> tuple[str, str]:
    domain, _, last = name.rpartition("/")
    return domain.lower(), _SEPARATORS.sub("", last.lower())


def _near(one: str, other: str) -> bool:
    if one == other or one in (f"{other}s", other[:-1] if other.endswith("s") else other):
        return True
    short = min(len(one), len(other))
    if short < _LONG or one[0] != other[0]:
        return False
    if one.startswith(other) or other.startswith(one):
        return True
    return _distance(one, other) <= (2 if short >= _SLIPS else 1)


def _distance(one: str, other: str) -> int:
    """Letters to put in, take out, change, or swap with the next, to make one of the other."""
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        row = [i]
        for j, its in enumerate(other, 1):
            least = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (letter != its))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == its:
                least = min(least, before[j - 2] + 1)
            row.append(least)
        before, last = last, row
    return last[-1]
