"""How a large cluster's nodes are grouped by model and pool, and what limits the map."""

from __future__ import annotations

from typing import Any

import pytest

from contract.options import PoolOptions, pool_options
from kubectl_gpufraction.ui.groups import MOST_GROUPS, MOST_TILES, OTHERS, groups, model_of, pool_of, word

JSON = dict[str, Any]
OPTIONS = pool_options({"pools": [{"name": "notebooks", "nodeSelector": {"matchLabels": {"pool": "n"}}}]})


def gpu(used: int = 0, **other: Any) -> JSON:
    return {"model": "T4", "promisedMiB": 100, "memoryMiB": used, "freeMiB": 100 - used, "health": "Healthy", **other}


def row(name: str, *gpus: JSON, model: str = "T4", pool: str = "", is_open: bool = True) -> JSON:
    return {"name": name, "model": model, "pool": pool, "open": is_open, "gpus": list(gpus)}


def test_a_group_has_the_sums_of_its_nodes_and_a_tile_for_each() -> None:
    missing = gpu(50, health="Missing", promisedMiB=100, freeMiB=0)
    rows = [
        row("a", gpu(50), gpu(0, health="Unhealthy", freeMiB=0), pool="p"),
        row("b", gpu(20), missing, pool="p", is_open=False),
        row("c", gpu(10), model="A100 80GB"),
    ]
    assert groups(rows) == [
        {
            "model": "T4", "pool": "p", "filter": "model:t4/ pool:p/", "nodes": 2, "gpus": 4, "memoryMiB": 300,
            "usedMiB": 70, "out": 2, "largestMiB": 50, "tiles": [["a", 25, "unhealthy"], ["b", 35, "unhealthy"]],
        },
        {
            "model": "A100 80GB", "pool": "", "filter": "model:a100-80gb/", "nodes": 1, "gpus": 1, "memoryMiB": 100,
            "usedMiB": 10, "out": 0, "largestMiB": 90, "tiles": [["c", 10, "well"]],
        },
    ]  # fmt: skip


def test_groups_and_tiles_are_bounded_and_the_smallest_are_drawn_as_one() -> None:
    rows = [row(f"n{at}", gpu(), gpu(), model=f"M{at:03}") for at in range(100)]
    rows += [row(f"x{at}", gpu(), model="X") for at in range(3_000)]
    found = groups(rows)
    assert (len(found), found[0]["model"], found[-1]["model"]) == (MOST_GROUPS + 1, "X", OTHERS)
    assert sum(len(group["tiles"]) for group in found) == MOST_TILES
    assert sum(group["nodes"] for group in found) == 3_100
    assert found[-1]["filter"] == ""


@pytest.mark.parametrize(
    ("labels", "options", "want"),
    [
        ({"pool": "n", "agentpool": "azure"}, OPTIONS, "notebooks"),
        ({"pool": "other", "agentpool": "azure"}, OPTIONS, "azure"),
        ({"cloud.google.com/gke-nodepool": "g", "karpenter.sh/nodepool": "k"}, PoolOptions(), "g"),
        ({"eks.amazonaws.com/nodegroup": "e"}, PoolOptions(), "e"),
        ({}, OPTIONS, ""),
    ],
)
def test_a_pool_is_that_of_the_options_else_the_clouds(labels: dict[str, str], options: PoolOptions, want: str) -> None:
    assert pool_of(labels, options) == want


def test_a_node_of_several_models_is_in_a_group_of_its_own() -> None:
    assert model_of([gpu(model="T4"), gpu(model="A10"), gpu(model="T4"), gpu(model="")]) == "A10 and T4"
    assert model_of([gpu(model="")]) == "no model known"
    assert word("model", "A10 and T4") == "model:a10-and-t4/"
