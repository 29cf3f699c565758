"""
The clusters that the demo and the tests run on: nodes, and the GPUs that their agents find.

The demo's three nodes are those of the accounts in `samples/`: a node of two Tesla T4, one of two V100, and one of four
A10 behind the taint and the labels that managed clusters give their GPU pools.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from playground.machinery.objects.nodes import NodeSpec


@dataclass(frozen=True, slots=True)
class GpuNode:
    """A node, and its GPUs in the syntax of the agent's simulation, such as `2 x Tesla T4 15109MiB`."""

    spec: NodeSpec
    gpus: str


def gpu_node(
    name: str, gpus: str, *, labels: Mapping[str, str] | None = None, taints: tuple[str, ...] = (), address: str = ""
) -> GpuNode:
    """A GPU node with 32 CPUs and 256 GiB."""
    spec = NodeSpec(
        name=name,
        cpu="32",
        memory="256Gi",
        labels=labels or {},
        taints=taints,
        address=address or "10.0.0.1",
    )
    return GpuNode(spec, gpus)


def described_by_file(node: GpuNode, directory: Path) -> GpuNode:
    """The node, whose agent reads its GPUs from a file in this folder each time. `describe` can change them."""
    directory.mkdir(parents=True, exist_ok=True)
    describe(node, directory)
    return replace(node, gpus=f"@{_description(node, directory)}")


def describe(node: GpuNode, directory: Path, cards: Mapping[str, Mapping[str, Any]] | None = None) -> None:
    """Write the file of a node: its GPUs, and the changed properties of single cards by index."""
    path = _description(node, directory)
    written = path.with_suffix(".new")
    written.write_text(json.dumps({"gpus": node.gpus, "cards": cards or {}}))
    written.replace(path)


def _description(node: GpuNode, directory: Path) -> Path:
    return directory / f"gpus-{node.spec.name}.json"


DEMO = (
    gpu_node("t4", "2 x Tesla T4 15109MiB", labels={"gpushare": "true"}, address="10.0.0.11"),
    gpu_node("v100", "2 x Tesla V100-PCIE-32GB 32768MiB", labels={"gpu": "on"}, address="10.0.0.12"),
    gpu_node(
        "a10",
        "4 x NVIDIA A10 23028MiB",
        labels={"gpu-node": "true", "nvidia.com/gpu.present": "true"},
        taints=("nvidia.com/gpu=present:NoSchedule",),
        address="10.0.0.13",
    ),
)
