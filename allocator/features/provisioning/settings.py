"""
The administrator's settings of requested nodes.
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
        "Request nodes from an autoscaler, for the pools of the options that declare `node`; needs the rights of "
        "manifests/components/node-provisioning, which sets it.",
    )
    requests: bool = setting(
        True,
        "Request nodes by ProvisioningRequests if the cluster serves that kind. Off: only by placeholder pods, for an "
        "autoscaler that serves the kind but not its class best-effort-atomic-scale-up.",
    )
    placeholders: bool = setting(
        False,
        "Request nodes by placeholder pods if the cluster serves no ProvisioningRequests; needs the rights of "
        "manifests/components/node-placeholders, which sets it.",
    )
    after: float = setting(
        15.0,
        "Time that a pod waits until a node is requested, so that pods created together are served together.",
        unit="duration",
        minimum=0,
    )
    patience: float = setting(
        900.0,
        "Time within which a requested node must publish its GPUs. After that, the request is withdrawn, and the next "
        "one for the pool follows after a pause that doubles from 1 min to 30 min.",
        unit="duration",
        minimum=10,
    )
