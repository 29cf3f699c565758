"""Manifests and calls that many tests share."""

from typing import Any

from playground.api.api import Api

JSON = dict[str, Any]
PODS = "/api/v1/namespaces/default/pods"
EVERY_POD = "/api/v1/pods"
STRATEGIC = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"


def pod(name: str = "web", *, labels: JSON | None = None, resources: JSON | None = None, **spec: Any) -> JSON:
    container: JSON = {"name": "main", "image": "example.com/app:1"}
    if resources is not None:
        container["resources"] = resources
    metadata: JSON = {"name": name}
    if labels is not None:
        metadata["labels"] = labels
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"automountServiceAccountToken": False, "containers": [container], **spec},
    }


def deployment(name: str = "web", replicas: int = 2) -> JSON:
    labels = {"app": name}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "main", "image": "example.com/app:1"}]},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
    }


def ok(answer: tuple[int, JSON]) -> JSON:
    """The body of an answer that must be a success."""
    code, body = answer
    assert code < 300, body
    return body


def refusal(answer: tuple[int, JSON]) -> tuple[int, str, str]:
    """Code, reason and message of an answer that must be a refusal."""
    code, body = answer
    assert (body["kind"], body["status"], body["code"]) == ("Status", "Failure", code)
    return code, body.get("reason", ""), body["message"]


def create_pod(api: Api, **about: Any) -> JSON:
    return ok(api.call("POST", PODS, body=pod(**about)))


def names(listed: JSON) -> list[str]:
    return [item["metadata"]["name"] for item in listed["items"]]
