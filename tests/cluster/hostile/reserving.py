"""
Does only what Kueue does around an admission check: reserves quota for a Workload with the check pending, and reads the
answer. Its kinds are defined without their schemas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from contract import names
from playground.programs import installing
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError
from tests.builders import PodBuilder

JSON = dict[str, Any]
GROUP = "kueue.x-k8s.io"
KINDS = {"workloads": "Workload", "admissionchecks": "AdmissionCheck", "resourceflavors": "ResourceFlavor"}
CHECK, OTHER = "gpus", "another"


def definition(plural: str, versions: Sequence[str]) -> JSON:
    """The CRD of one kind; the first version is the stored one."""
    kind = KINDS[plural]
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    listed = [
        {"name": name, "served": True, "storage": name == versions[0], "schema": schema, "subresources": {"status": {}}}
        for name in versions
    ]
    spec = {
        "group": GROUP,
        "scope": "Namespaced" if plural == "workloads" else "Cluster",
        "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
        "versions": listed,
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": spec,
    }


def stamp() -> str:
    """The current time, as Kubernetes writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class Reserving:
    """A queueing system of one version that has quota for everything."""

    kube: Kube
    version: str = "v1beta2"

    def install(self) -> None:
        """Install its kinds, our check, and a flavor for every node."""
        for plural in KINDS:
            installing.apply(self.kube, definition(plural, (self.version,)))
        wait_for(self._is_served, "its kinds are not served", 30)
        self.create("admissionchecks", CHECK, {"spec": {"controllerName": str(names.FITS)}})
        self.create("resourceflavors", "any", {"spec": {}})

    def remove(self) -> None:
        """Remove its kinds, with all objects."""
        for plural in KINDS:
            self.kube.delete(paths.customresourcedefinitions(f"{plural}.{GROUP}"))

    def _is_served(self) -> bool:
        try:
            for plural in KINDS:
                self.kube.list(self.path(plural))
        except KubeError:
            return False
        return True

    def path(self, plural: str, name: str | None = None, sub: str | None = None) -> str:
        namespace = "default" if plural == "workloads" and name is not None else None
        return paths.path(f"{GROUP}/{self.version}", plural, namespace, name, sub)

    def create(self, plural: str, name: str, document: JSON) -> JSON:
        """Create an object of its kinds."""
        about = {"apiVersion": f"{GROUP}/{self.version}", "kind": KINDS[plural], "metadata": {"name": name}}
        namespace = "default" if plural == "workloads" else None
        where = paths.path(f"{GROUP}/{self.version}", plural, namespace)
        return self.kube.create(where, {**about, **document})

    def is_active(self) -> bool:
        """Whether a program answers the check."""
        conditions = (self.kube.get(self.path("admissionchecks", CHECK)).get("status") or {}).get("conditions") or ()
        return any(each["type"] == "Active" and each["status"] == "True" for each in conditions)

    def reserve(self, name: str, *pod_sets: tuple[str, int, PodBuilder], spec: JSON | None = None) -> None:
        """A new Workload, with quota reserved and the check pending."""
        listed = [
            {"name": n, "count": count, "template": {"spec": made.manifest()["spec"]}} for n, count, made in pod_sets
        ]
        self.create("workloads", name, {"spec": {"podSets": listed, "queueName": "team", **(spec or {})}})
        self.reserve_again(name)

    def reserve_again(self, name: str) -> None:
        """Reserve quota for an existing Workload, with the check pending."""
        pod_sets = self.kube.get(self.path("workloads", name))["spec"]["podSets"]
        assignments = [{"name": each["name"], "flavors": {"cpu": "any"}, "count": each["count"]} for each in pod_sets]
        now = {"lastTransitionTime": stamp(), "message": ""}
        status = {
            "conditions": [{"type": "QuotaReserved", "status": "True", "reason": "QuotaReserved", **now}],
            "admission": {"clusterQueue": "team", "podSetAssignments": assignments},
            "admissionChecks": [
                {"name": OTHER, "state": "Pending", **now},
                {"name": CHECK, "state": "Pending", **now},
            ],
        }
        self.kube.patch_merge(self.path("workloads", name, "status"), {"status": status})

    def evict(self, name: str) -> None:
        """The Workload loses its quota, as after Retry."""
        status = {
            "conditions": [{"type": "Evicted", "status": "True", "lastTransitionTime": stamp()}],
            "admission": None,
        }
        self.kube.patch_merge(self.path("workloads", name, "status"), {"status": status})

    def answer(self, name: str) -> JSON:
        """The state of our check."""
        (found,) = (
            each
            for each in self.kube.get(self.path("workloads", name))["status"]["admissionChecks"]
            if each["name"] == CHECK
        )
        return dict(found)

    def starts(self, name: str, timeout: float = 30) -> JSON:
        """Wait for the answer Ready. After each Retry it reserves quota again, as Kueue does."""

        def ready() -> JSON | None:
            self.reserve_again(name)
            wait_for(lambda: self.answer(name)["state"] != "Pending", f"{name} is not answered")
            found = self.answer(name)
            return found if found["state"] == "Ready" else None

        return wait_for(ready, lambda: f"{name} does not start: {self.answer(name)}", timeout) or {}

    def answered(self, name: str, state: str, timeout: float = 20) -> JSON:
        """Wait for the answer, which must be of this state."""
        wait_for(lambda: self.answer(name)["state"] != "Pending", f"{name} is not answered", timeout)
        found = self.answer(name)
        assert found["state"] == state, found
        return found
