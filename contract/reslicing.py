"""
The label that the MIG manager of NVIDIA's GPU operator writes on a Node while it repartitions the node's GPUs.

A share that is placed meanwhile would be on a slice that is about to be removed. The manager writes the label before it
begins, and again when it has ended. A node whose slicing failed is judged by what its agent sees.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

STATE_LABEL = "nvidia.com/mig.config.state"
UNDER_WAY = ("pending", "rebooting")
"""Its values from before the first card is changed until the last one is done."""


def reslices(labels: Mapping[str, str]) -> bool:
    """Whether the GPUs of a node with these labels are being repartitioned."""
    return labels.get(STATE_LABEL) in UNDER_WAY
