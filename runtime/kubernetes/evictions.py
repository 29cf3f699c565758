"""
Evictions (`policy/v1`), by which a pod ends as its PodDisruptionBudgets allow.
"""

from __future__ import annotations

from runtime.kubernetes.client import Kube
from runtime.kubernetes.paths import pods


def evict(
    kube: Kube, namespace: str, name: str, *, uid: str, version: int | None = None, dry_run: bool = False
) -> None:
    """
    Evict the pod with this `uid`, at this resourceVersion if one is given; a dry run asks whether that is allowed now.

    Raises `KubeNotFound` if there is no such pod, `KubeConflict` if it has another uid or version,
    `KubeTooManyRequests` if a PodDisruptionBudget forbids it now, and any other `KubeError` of a write.
    """
    # A pod of the same name that was created since is not the one that the caller judged.
    preconditions = {"uid": uid} if version is None else {"uid": uid, "resourceVersion": str(version)}
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": {"preconditions": preconditions},
    }
    kube.create(pods(namespace, name, "eviction"), body, {"dryRun": "All"} if dry_run else None)
