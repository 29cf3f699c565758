"""A tenant's own limiter is not loaded in addition to the node's."""

from __future__ import annotations

from typing import Any

import pytest

from contract.model import PodRequest
from webhook.admission.containers import rewrite

JSON = dict[str, Any]
VOID = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}

PRELOADED: dict[str, tuple[JSON, list[JSON]]] = {
    "the limiter alone goes with its variable": (
        {"name": "LD_PRELOAD", "value": "/usr/local/vgpu/libvgpu.so"},
        [],
    ),
    "beside others it alone goes, whatever stands between them": (
        {"name": "LD_PRELOAD", "value": "/lib/libjemalloc.so.2:/k8s-vgpu/libvgpu.so.v0.0.1 /lib/trace.so"},
        [{"name": "LD_PRELOAD", "value": "/lib/libjemalloc.so.2:/lib/trace.so"}],
    ),
    "others alone stay as they are": (
        {"name": "LD_PRELOAD", "value": "/lib/a.so /lib/b.so"},
        [{"name": "LD_PRELOAD", "value": "/lib/a.so /lib/b.so"}],
    ),
    "what another object says is not known here": (
        {"name": "LD_PRELOAD", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
        [{"name": "LD_PRELOAD", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}],
    ),
    "elsewhere the name means nothing": (
        {"name": "NOTE", "value": "libvgpu.so"},
        [{"name": "NOTE", "value": "libvgpu.so"}],
    ),
}


@pytest.mark.parametrize(("entry", "kept"), PRELOADED.values(), ids=PRELOADED.keys())
def test_a_tenants_own_limiter(entry: JSON, kept: list[JSON]) -> None:
    spec: JSON = {"containers": [{"name": "main", "env": [dict(entry)]}]}
    rewrite(spec, PodRequest(dialect="native", containers=()), {})
    assert spec["containers"][0]["env"] == [VOID, *kept]
