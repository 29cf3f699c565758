"""Drives a cluster as a user does, and waits for the promised results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from playground.api.api import Api
from playground.api.kinds.values import JSON
from playground.machinery.cluster import Machinery
from playground.machinery.objects.nodes import NodeSpec
from playground.machinery.objects.resources import allocatable_of, requests_of
from playground.waiting import wait_for

MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
DEADLINE = 10.0
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
PODS = "/api/v1/namespaces/default/pods"


class Cluster:
    def __init__(self, make: Callable[[Api], Machinery]) -> None:
        self.api = Api()
        self._make = make
        self.machinery = make(self.api)
        self.machinery.start()

    def restart(self) -> None:
        """Stop every component and start new ones on the same API."""
        self.machinery.stop()
        self.machinery = self._make(self.api)
        self.machinery.start()

    def nodes(self, *names: str, **spec: Any) -> None:
        for name in names:
            self.machinery.add_node(NodeSpec(name, **spec))

    def do(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> JSON:
        code, answer = self.api.call(method, path, body=body, content_type=content_type)
        assert code < 300, answer
        return answer

    def merge(self, path: str, patch: JSON) -> JSON:
        return self.do("PATCH", path, patch, MERGE)

    def get(self, path: str) -> JSON | None:
        code, answer = self.api.call("GET", path)
        return answer if code == 200 else None

    def pods(self) -> list[JSON]:
        items: list[JSON] = self.do("GET", PODS)["items"]
        return items

    def pod(self, name: str) -> JSON:
        return self.do("GET", f"{PODS}/{name}")

    def events(self, reason: str) -> list[str]:
        events = self.do("GET", "/api/v1/events")["items"]
        return [event["message"] for event in events if event["reason"] == reason]

    def wait(self, what: Callable[[], Any], why: str = "") -> Any:
        """The first truthy value of `what`, within the deadline."""
        return wait_for(what, lambda: f"{why or what}; pods: {self._overview()}", DEADLINE, every=0.005)

    def phase(self, name: str, phase: str) -> JSON:
        """The pod, once it is in this phase."""

        def there() -> JSON | None:
            found = self.get(f"{PODS}/{name}")
            return found if found is not None and found["status"].get("phase") == phase else None

        found: JSON = self.wait(there, f"{name} {phase}")
        return found

    def condition(self, path: str, type_: str, status: str = "True") -> JSON:
        """The object's condition, once it has this status."""

        def there() -> JSON | None:
            entries = ((self.get(path) or {}).get("status") or {}).get("conditions") or []
            return next((c for c in entries if (c["type"], c["status"]) == (type_, status)), None)

        found: JSON = self.wait(there, f"{path} {type_}={status}")
        return found

    def running(self, count: int) -> list[JSON]:
        """The Running pods, once there are exactly this many and no other pod exists."""

        def there() -> list[JSON] | None:
            found = self.pods()
            ready = [pod for pod in found if pod["status"].get("phase") == "Running" and not _leaving(pod)]
            return found or [{}] if len(ready) == len(found) == count else None

        found: list[JSON] = self.wait(there, f"{count} running")
        return found if count else []

    def overcommitted(self) -> list[str]:
        """Nodes whose pods request more than the node has; this must never happen with any scheduler."""
        taken: dict[str, dict[str, int]] = {}
        for pod in self.do("GET", "/api/v1/pods")["items"]:
            if pod["spec"].get("nodeName") and pod["status"].get("phase") not in ("Succeeded", "Failed"):
                used = taken.setdefault(pod["spec"]["nodeName"], {})
                for name, much in requests_of(pod).items():
                    used[name] = used.get(name, 0) + much
        nodes = {node["metadata"]["name"]: allocatable_of(node) for node in self.do("GET", "/api/v1/nodes")["items"]}
        return [
            f"{node}: {name}"
            for node, used in taken.items()
            for name, much in used.items()
            if much > nodes.get(node, {}).get(name, 0)
        ]

    def _overview(self) -> list[tuple[str, Any, Any]]:
        return [(p["metadata"]["name"], p["spec"].get("nodeName"), p["status"].get("phase")) for p in self.pods()]


def _leaving(pod: JSON) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def container(image: str = "busybox", **limits: str) -> JSON:
    return {"name": "main", "image": image, "resources": {"limits": limits}}


def pod(name: str, *, limits: dict[str, str] | None = None, image: str = "busybox", **spec: Any) -> JSON:
    metadata: JSON = {"name": name, "annotations": spec.pop("annotations", {})}
    first = {**container(image, **(limits or {})), "env": spec.pop("env", [])}
    return {"metadata": metadata, "spec": {"containers": [first], **spec}}


def deployment(name: str, count: int, *, limits: dict[str, str] | None = None, **spec: Any) -> JSON:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container(**(limits or {}))]}}
    return {
        "metadata": {"name": name},
        "spec": {"replicas": count, "selector": {"matchLabels": labels}, "template": template, **spec},
    }


def job(name: str, *, seconds: str, exit_code: str = "0", **spec: Any) -> JSON:
    annotations = {"gpufraction-playground/run-seconds": seconds, "gpufraction-playground/exit-code": exit_code}
    inner = {"restartPolicy": "Never", "containers": [container()]}
    template = {"metadata": {"annotations": annotations}, "spec": inner}
    return {"metadata": {"name": name}, "spec": {"template": template, **spec}}
