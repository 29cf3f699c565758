"""Another user's mutating webhook, for pods with a label: it adds a container or a gate, refuses, or breaks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from playground.programs.otherwebhook import Respond, patching, serving
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube

JSON = dict[str, Any]
# The API server calls webhooks in the order of their configurations' names.
BEFORE, AFTER = "another", "zzz-another"
"""The name of a webhook that is called before ours, and of one that is called after."""


def adding_a_container(request: JSON) -> JSON:
    """As a service mesh does: adds a proxy to each pod that has none."""
    if any(c["name"] == "proxy" for c in request["object"]["spec"]["containers"]):
        return {"allowed": True}
    added = {"name": "proxy", "image": "registry.example/cuda-proxy:1"}
    return patching([{"op": "add", "path": "/spec/containers/-", "value": added}])


def adding_a_native_sidecar(request: JSON) -> JSON:
    """As newer meshes do: adds an init container that keeps running, before all others."""
    before = request["object"]["spec"].get("initContainers") or []
    if any(c["name"] == "proxy" for c in before):
        return {"allowed": True}
    added = {"name": "proxy", "image": "registry.example/cuda-proxy:1", "restartPolicy": "Always"}
    return patching([{"op": "add", "path": "/spec/initContainers", "value": [added, *before]}])


def adding_a_container_that_asks(resource: str, amount: str) -> Respond:
    """As a webhook that adds a proxy with its own GPU share."""

    def respond(request: JSON) -> JSON:
        if any(c["name"] == "proxy" for c in request["object"]["spec"]["containers"]):
            return {"allowed": True}
        resources = {"limits": {resource: amount}, "requests": {resource: amount}}
        added = {"name": "proxy", "image": "registry.example/cuda-proxy:1", "resources": resources}
        return patching([{"op": "add", "path": "/spec/containers/-", "value": added}])

    return respond


def refusing(request: JSON) -> JSON:
    """As a policy engine does."""
    return {"allowed": False, "status": {"code": 403, "message": "not today"}}


@contextlib.contextmanager
def registered(
    kube: Kube,
    respond: Respond = adding_a_container,
    *,
    label: str = "sidecar",
    name: str = AFTER,
    selector: JSON | None = None,
    kinds: Sequence[tuple[str, str]] = (("", "pods"),),
) -> Iterator[None]:
    """
    Serve and register the webhook, for new pods with the label `LABEL: yes`.

    `selector`: another selector of objects. `kinds`: API group and plural of kinds other than pods.
    """
    collection = paths.path("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations")
    with serving(respond) as client:
        kube.create(collection, _configuration(name, client, selector or {"matchLabels": {label: "yes"}}, kinds))
        try:
            yield
        finally:
            kube.delete(f"{collection}/{name}")


def _configuration(name: str, client: JSON, selector: JSON, kinds: Sequence[tuple[str, str]]) -> JSON:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [
            {
                "name": "another.example.org",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "timeoutSeconds": 30,
                "clientConfig": client,
                "objectSelector": selector,
                "rules": [
                    {"apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [plural]}
                    for group, plural in kinds
                ],
            }
        ],
    }
