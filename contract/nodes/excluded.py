"""
The cards that an administrator of Aliyun gpushare excludes: the ConfigMap `unhealthy-gpu-<node>` of kube-system.

Its `gpus` is a comma list of cards by index; UUIDs are read too, since an index changes with the machine. That system's
scheduler read an unreadable entry as card 0. Here a list with such an entry excludes every card of its node, and says
so: it was written to keep pods away from a card, but it is unknown which one. An empty list excludes none.

Pure. Must not: know how the cards are excluded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from contract.encoding.reading import shown, words
from contract.model import WITHHELD, Gpu

NAMESPACE = "kube-system"
PREFIX = "unhealthy-gpu-"
_KEY = "gpus"
_SHOWN = 3
_CORDONED = WITHHELD[0]


@dataclass(frozen=True, slots=True)
class KeptOut:
    """One node's list: indexes and UUIDs as text. `wrong`: why it cannot be read; empty if it can."""

    node: str
    cards: frozenset[str] = frozenset()
    wrong: str = ""
    uid: str = field(default="", compare=False)
    """The uid of the ConfigMap."""

    def covers(self, gpu: Gpu) -> bool:
        """Whether the list has this card, or the card of which it is a slice."""
        return bool(self.wrong) or bool(self.cards & ({str(gpu.index), gpu.uuid, gpu.parent} - {""}))

    def strangers(self, gpus: tuple[Gpu, ...]) -> str:
        """A message about entries that name none of these cards, and what would; empty without such entries."""
        known = {word for gpu in gpus for word in (str(gpu.index), gpu.uuid, gpu.parent)}
        found = sorted(self.cards - known)
        if not found or not gpus:
            return ""
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        here = ", ".join(sorted({str(gpu.index) for gpu in gpus if not gpu.parent}))
        return (
            f"data.{_KEY}: found {', '.join(shown(word) for word in found[:_SHOWN])}{more}, which is not a GPU of "
            f"node {self.node} and excludes nothing; give indexes ({here}) or UUIDs separated by commas"
        )

    def without(self, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
        """The cards, with the listed ones closed to new pods; the same tuple if none is listed."""
        if not any(gpu.healthy and self.covers(gpu) for gpu in gpus):
            return gpus
        why = f"named in the ConfigMap {NAMESPACE}/{PREFIX}{self.node}"
        return tuple(
            replace(gpu, healthy=False, reason=why, withheld=_CORDONED) if gpu.healthy and self.covers(gpu) else gpu
            for gpu in gpus
        )


def read(configmap: Mapping[str, Any]) -> KeptOut | None:
    """The list in a ConfigMap; None for any other ConfigMap."""
    metadata = configmap.get("metadata") or {}
    name, uid = str(metadata.get("name") or ""), str(metadata.get("uid") or "")
    if not name.startswith(PREFIX):
        return None
    found = words((configmap.get("data") or {}).get(_KEY))
    wrong = next((word for word in found if not _is_card(word)), None)
    if wrong is not None:
        cure = "give indexes or UUIDs separated by commas, such as 0,2"
        return KeptOut(name.removeprefix(PREFIX), wrong=f"data.{_KEY}: found {shown(wrong)}; {cure}", uid=uid)
    cards = frozenset(str(int(word)) if word.isdecimal() else word for word in found)
    return KeptOut(name.removeprefix(PREFIX), cards, uid=uid)


def _is_card(word: str) -> bool:
    return (word.isascii() and word.isdecimal() and len(word) <= 4) or word.startswith(("GPU-", "MIG-"))


def trim(configmap: dict[str, Any]) -> dict[str, Any]:
    """The fields that `read` needs: other ConfigMaps may be large, and secret."""
    metadata = {k: v for k, v in (configmap.get("metadata") or {}).items() if k in ("name", "resourceVersion", "uid")}
    ours = str(metadata.get("name") or "").startswith(PREFIX)
    data = (configmap.get("data") or {}) if ours else {}
    return {"metadata": metadata, "data": {key: value for key, value in data.items() if key == _KEY}}
