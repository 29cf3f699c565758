"""Evictions (`policy/v1`): a pod ends if its PodDisruptionBudgets allow it."""

from __future__ import annotations

from collections.abc import Mapping

from runtime.kubernetes.client import Kube
from runtime.kubernetes.paths import pods


def evict(
    kube: Kube,
    namespace: str,
    name: str,
    *,
    uid: str,
    version: int | None = None,
    dry_run: bool = False,
    annotations: Mapping[str, str] | None = None,
) -> None:
    """
    Evict the pod with this `uid`, at this resourceVersion if one is given. A dry run asks whether it is allowed.
    `annotations`: of the request, for the API server's audit log; nothing stores them.

    Raises `KubeNotFound` if there is no such pod, `KubeConflict` if it has another uid or version,
    `KubeTooManyRequests` if a PodDisruptionBudget forbids it now, and any other `KubeError` of a write.
    """
    # The caller judged this pod, not a newer one of the same name.
    preconditions = {"uid": uid} if version is None else {"uid": uid, "resourceVersion": str(version)}
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {
            "name": name,
            "namespace": namespace,
            **({"annotations": dict(annotations)} if annotations else {}),
        },
        "deleteOptions": {"preconditions": preconditions},
    }
    kube.create(pods(namespace, name, "eviction"), body, {"dryRun": "All"} if dry_run else None)
