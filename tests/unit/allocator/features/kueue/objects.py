"""Kueue's objects as Kueue writes them, with the fields that the check reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from contract import names
from tests.builders import PodBuilder

JSON = dict[str, Any]
CHECK = "fits"
SINCE = "2026-01-05T08:00:00Z"


def pod_set(name: str, count: int, made: PodBuilder) -> JSON:
    """Pods of one template."""
    template = made.manifest()
    metadata = {part: template["metadata"][part] for part in ("labels", "annotations") if part in template["metadata"]}
    return {"name": name, "count": count, "template": {"metadata": metadata, "spec": template["spec"]}}


def workload(
    name: str,
    *pod_sets: JSON,
    flavors: Sequence[str] = (),
    counts: Mapping[str, int] | None = None,
    state: str = "Pending",
    conditions: Mapping[str, str] | None = None,
    since: str = SINCE,
    version: str = "1",
    updates: Sequence[JSON] = (),
    **fields: JSON,
) -> JSON:
    """A Workload with quota for which our check and another one have these states."""
    counts = counts or {}
    assignments = [
        {
            "name": each["name"],
            "flavors": {f"resource-{n}": flavor for n, flavor in enumerate(flavors)},
            "count": counts.get(each["name"], each["count"]),
        }
        for each in pod_sets
    ]
    all_of_them = {"QuotaReserved": "True", **(conditions or {})}
    entry = {"lastTransitionTime": since, "message": ""}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "resourceVersion": version,
            **fields.get("metadata", {}),
        },
        "spec": {"podSets": list(pod_sets), "queueName": "team", **fields.get("spec", {})},
        "status": {
            "conditions": [
                {"type": kind, "status": status, "lastTransitionTime": since} for kind, status in all_of_them.items()
            ],
            "admission": {"clusterQueue": "team", "podSetAssignments": assignments},
            "admissionChecks": [
                {"name": "another", "state": "Ready", "podSetUpdates": list(updates), **entry},
                {"name": CHECK, "state": state, **entry},
            ],
            **fields.get("status", {}),
        },
    }


def check(name: str = CHECK, controller: str = names.FITS, *, active: bool = True) -> JSON:
    """An AdmissionCheck."""
    conditions = [{"type": "Active", "status": "True"}] if active else []
    return {
        "metadata": {"name": name, "resourceVersion": "1", "generation": 1},
        "spec": {"controllerName": controller},
        **({"status": {"conditions": conditions}} if active else {}),
    }


def flavor(name: str, labels: Mapping[str, str], tolerations: Sequence[JSON] = ()) -> JSON:
    """A ResourceFlavor."""
    return {"metadata": {"name": name}, "spec": {"nodeLabels": dict(labels), "tolerations": list(tolerations)}}
