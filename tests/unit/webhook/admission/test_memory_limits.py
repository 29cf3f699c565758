"""A memory limit above the request: quotas count the request, and the limit has its own annotation."""

from __future__ import annotations

import json
from typing import Any

from contract.metrics import metrics_of
from contract.model import FractionRequest, PodRequest
from runtime.metrics import Metrics
from tests.unit.webhook.builders import container, patched, pod, review
from webhook.admission.containers import rewrite
from webhook.serving.application import create_app
from webhook.serving.asking import UNREACHABLE, Allocator, NoAnswer
from webhook.serving.health import Health
from webhook.settings import ServeSettings

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


def test_the_toolkits_variables_are_there_only_where_the_administrator_says_so() -> None:
    asking = pod(
        container(gpufraction_io__gpu_memory="8Gi", gpufraction_io__gpu_memory_limit="24Gi"), container("side")
    )
    found = {setting: by_toolkit(asking, toolkit_limits=setting) for setting in (False, True)}
    read = {
        "NVIDIA_GPU_MEMORY_REQUEST": "metadata.annotations['gpufraction.io/memory-mib.main']",
        "NVIDIA_GPU_MEMORY_LIMIT": "metadata.annotations['gpufraction.io/memory-limit-mib.main']",
    }
    assert found == {False: {"main": {}, "side": {}}, True: {"main": read, "side": {}}}


def by_toolkit(document: JSON, *, toolkit_limits: bool) -> dict[str, dict[str, str]]:
    """What the toolkit's variables read in the pod as the webhook stores it, by container."""
    app = create_app(
        ServeSettings(toolkit_limits=toolkit_limits).configuration,
        Allocator(lambda question, within: NoAnswer(UNREACHABLE)),
        Metrics(metrics_of("webhook")),
        health=Health(ready=lambda: None),
    )
    response = json.loads(app.test_client().post("/mutate", data=json.dumps(review(document))).data)["response"]
    stored = patched(document, response)
    return {
        each["name"]: {
            entry["name"]: entry["valueFrom"]["fieldRef"]["fieldPath"]
            for entry in each["env"]
            if entry["name"].startswith("NVIDIA_GPU_MEMORY_")
        }
        for each in stored["spec"]["containers"]
    }


def test_the_variables_read_the_request_and_the_limit() -> None:
    read = {
        (name, entry["name"]): entry["valueFrom"]["fieldRef"]["fieldPath"]
        for name, container in rewritten().items()
        for entry in container["env"]
        if entry["name"].startswith(("GPUFRACTION_MEMORY_MIB", "GPUFRACTION_MEMORY_LIMIT"))
    }
    assert read == {
        ("bursts", "GPUFRACTION_MEMORY_MIB"): "metadata.annotations['gpufraction.io/memory-mib.bursts']",
        ("bursts", "GPUFRACTION_MEMORY_LIMIT_MIB"): "metadata.annotations['gpufraction.io/memory-limit-mib.bursts']",
        ("plain", "GPUFRACTION_MEMORY_MIB"): "metadata.annotations['gpufraction.io/memory-mib.plain']",
        ("plain", "GPUFRACTION_MEMORY_LIMIT_MIB"): "metadata.annotations['gpufraction.io/memory-mib.plain']",
    }
