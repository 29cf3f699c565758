"""
Changing a MutatingWebhookConfiguration that others change too.

Replicas write at the same time, and so may an administrator, so a write counts only on the version that was read. What
is to change is decided by whoever asks, from the configuration as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from runtime.kubernetes.errors import KubeConflict, KubeInvalid
from runtime.kubernetes.paths import mutatingwebhookconfigurations

JSON = dict[str, Any]
_ATTEMPTS = 8


class ConfigurationApi(Protocol):
    """The part of `runtime.kubernetes.client.Kube` that is needed."""

    def get(self, path: str) -> JSON: ...
    def patch_json(self, path: str, ops: list[JSON]) -> JSON: ...


def change(kube: ConfigurationApi, configuration: str, wanted: Callable[[JSON], list[JSON]]) -> int:
    """
    Apply the JSON patch operations that are `wanted` of the named configuration as it is; how many there were.

    Raises `KubeError`, also where other writers were faster several times in a row.
    """
    path = mutatingwebhookconfigurations(configuration)
    for attempt in range(1, _ATTEMPTS + 1):
        found = kube.get(path)
        changes = wanted(found)
        if not changes:
            return 0
        version = {"op": "test", "path": "/metadata/resourceVersion", "value": found["metadata"]["resourceVersion"]}
        try:
            kube.patch_json(path, [version, *changes])
        except (KubeConflict, KubeInvalid):
            # Most likely somebody wrote in between; reading again tells what is left to do.
            if attempt == _ATTEMPTS:
                raise
            continue
        return len(changes)
    raise AssertionError("the last attempt returns or raises")
