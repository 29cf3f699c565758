"""The nodes of a large cluster in groups of one model and pool, with their sums and a tile for each node. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from contract.model import WHOLE
from contract.options import PoolOptions
from kubectl_gpufraction.cluster.state import MISSING

JSON = dict[str, Any]
MOST_TILES = 2_000
"""Nodes on the map."""
MOST_GROUPS = 24
"""Groups that are drawn by themselves; the smallest are drawn as one."""
POOL_LABELS = (
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
    "agentpool",
    "karpenter.sh/nodepool",
    "node.kubernetes.io/pool",
)
"""The labels by which clouds and provisioners name a node's pool, the most usual first."""
OTHERS = "other models and pools"


def pool_of(labels: Mapping[str, str], options: PoolOptions) -> str:
    """The pool of a node with these labels: that of the administrator's options, else the cloud's; or empty."""
    named, _ = options.of_node(labels)
    return named or next((str(labels[key]) for key in POOL_LABELS if labels.get(key)), "")


def model_of(gpus: Sequence[JSON]) -> str:
    """The models of a node's GPUs, each once."""
    return " and ".join(sorted({str(gpu["model"]) for gpu in gpus if gpu["model"]})) or "no model known"


def word(kind: str, text: str) -> str:
    """The word by which a filter finds exactly one model, pool or namespace: `pool:a100/`."""
    return f"{kind}:{'-'.join(text.lower().split())}/"


def groups(rows: Sequence[JSON]) -> list[JSON]:
    """The groups of these nodes, those with most GPUs first. A row has the keys of `pages.nodes`."""
    by_key: dict[tuple[str, str], list[JSON]] = {}
    for row in rows:
        by_key.setdefault((row["model"], row["pool"]), []).append(row)
    ordered = sorted(by_key.items(), key=lambda item: (-sum(len(row["gpus"]) for row in item[1]), item[0]))
    drawn, rest = ordered[:MOST_GROUPS], ordered[MOST_GROUPS:]
    found = [_group(model, pool, here) for (model, pool), here in drawn]
    if rest:
        found.append(_group(OTHERS, "", [row for _, here in rest for row in here], filtered=False))
    left = MOST_TILES
    for group in found:
        group["tiles"] = group["tiles"][:left]
        left -= len(group["tiles"])
    return found


def _group(model: str, pool: str, rows: Sequence[JSON], *, filtered: bool = True) -> JSON:
    gpus = [gpu for row in rows for gpu in row["gpus"]]
    words = [word("model", model), *([word("pool", pool)] if pool else [])] if filtered else []
    return {
        "model": model,
        "pool": pool,
        "filter": " ".join(words),
        "nodes": len(rows),
        "gpus": len(gpus),
        "memoryMiB": sum(gpu["promisedMiB"] for gpu in gpus if gpu["health"] != MISSING),
        "usedMiB": sum(gpu["memoryMiB"] for gpu in gpus if gpu["health"] != MISSING),
        "out": sum(gpu["health"] != "Healthy" for gpu in gpus),
        "largestMiB": max((gpu["freeMiB"] for row in rows if row["open"] for gpu in row["gpus"]), default=0),
        "tiles": [tile(row) for row in rows],
    }


def tile(row: JSON) -> list[Any]:
    """One node on the map: its name, how full its memory is in percent, and what is wrong with it."""
    total, used = sum(gpu["promisedMiB"] for gpu in row["gpus"]), sum(gpu["memoryMiB"] for gpu in row["gpus"])
    matter = "closed" if not row["open"] else "well"
    if any(gpu["health"] in ("Unhealthy", MISSING) for gpu in row["gpus"]):
        matter = "unhealthy"
    return [row["name"], min(WHOLE, round(WHOLE * used / total)) if total else 0, matter]
