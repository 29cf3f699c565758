"""
What an administrator chooses of nodes that are requested.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from contract import names
from runtime.settings import setting


@dataclass(frozen=True)
class ProvisioningSettings:
    """Nodes that are requested while pods wait."""

    REMOVED: ClassVar[Mapping[str, str]] = {
        "namespace": f"the requests for nodes are in {names.NAMESPACE}",
        "image": "placeholder pods have the image of the allocator's own pods, which nodes can pull",
    }
    enabled: bool = setting(
        False,
        "Ask an autoscaler for nodes of the pools of the options that declare `node`; needs the rights of "
        "manifests/components/node-provisioning, which sets it.",
    )
    requests: bool = setting(
        True,
        "Ask by ProvisioningRequests where the cluster serves that kind. Off: by placeholder pods alone, for an "
        "autoscaler that serves the kind and not its class best-effort-atomic-scale-up.",
    )
    placeholders: bool = setting(
        False,
        "Ask by placeholder pods where the cluster serves no ProvisioningRequests; needs the rights of "
        "manifests/components/node-placeholders, which sets it.",
    )
    after: float = setting(
        15.0,
        "How long a pod waits until a node is asked for, so that pods that come together are served together.",
        unit="duration",
        minimum=0,
    )
    patience: float = setting(
        900.0,
        "How long a node may take until its GPUs are published. Then its request is given up, and the pool is asked "
        "again after a pause that doubles from 1 min to 30 min.",
        unit="duration",
        minimum=10,
    )
