"""A memory limit above the request: quotas count the request, and the limit has an annotation of its own."""

from __future__ import annotations

from typing import Any

from contract.model import FractionRequest, PodRequest
from webhook.admission.containers import rewrite

JSON = dict[str, Any]
GIB = 1 << 30
REQUEST = PodRequest(
    "native",
    (FractionRequest("bursts", memory=8 * GIB, limit=24 * GIB), FractionRequest("plain", memory=4 * GIB)),
)


def rewritten() -> dict[str, JSON]:
    limits = {"gpufraction.io/gpu-memory": "8Gi", "gpufraction.io/gpu-memory-limit": "24Gi"}
    spec: JSON = {
        "containers": [
            {"name": "bursts", "resources": {"limits": dict(limits), "requests": dict(limits)}},
            {"name": "plain", "resources": {"limits": {"gpufraction.io/gpu-memory": "4Gi"}}},
        ]
    }
    rewrite(spec, REQUEST, {"bursts": 8 * GIB, "plain": 4 * GIB})
    return {each["name"]: each for each in spec["containers"]}


def test_the_limit_is_counted_beside_what_is_booked() -> None:
    booked = {"gpufraction.io/gpu-memory": "8Gi", "gpufraction.io/gpu-memory-limit": "24Gi"}
    assert rewritten()["bursts"]["resources"] == {"limits": booked, "requests": booked}


def test_the_variables_read_the_request_and_the_limit() -> None:
    read = {
        (name, entry["name"]): entry["valueFrom"]["fieldRef"]["fieldPath"]
        for name, container in rewritten().items()
        for entry in container["env"]
        if entry["name"].startswith("NVIDIA_GPU_MEMORY_")
    }
    assert read == {
        ("bursts", "NVIDIA_GPU_MEMORY_REQUEST"): "metadata.annotations['gpufraction.io/memory-mib.bursts']",
        ("bursts", "NVIDIA_GPU_MEMORY_LIMIT"): "metadata.annotations['gpufraction.io/memory-limit-mib.bursts']",
        ("plain", "NVIDIA_GPU_MEMORY_REQUEST"): "metadata.annotations['gpufraction.io/memory-mib.plain']",
        ("plain", "NVIDIA_GPU_MEMORY_LIMIT"): "metadata.annotations['gpufraction.io/memory-mib.plain']",
    }
