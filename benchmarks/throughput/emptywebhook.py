"""
A mutating webhook that does nothing but name a node, registered with our own webhook's rules and match conditions.

A pod's cost through it is the least for any webhook that gives pods their nodes. It works in the benchmark's own
process, so that its time is not counted: only the API server's, for calling it.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from playground.programs import installing
from playground.programs.otherwebhook import patching, serving
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube

JSON = dict[str, Any]
_NAME = "bench-empty-webhook"
_CONFIGURATIONS = paths.path("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations")


@contextlib.contextmanager
def registered(kube: Kube, namespace: str, nodes: Sequence[str]) -> Iterator[None]:
    """Meanwhile it serves and is registered for the pods of a namespace, and names these nodes by turns."""
    turns = itertools.cycle(nodes)
    with serving(lambda request: naming(next(turns))) as client:
        kube.create(_CONFIGURATIONS, configuration(namespace, client))
        try:
            yield
        finally:
            kube.delete(f"{_CONFIGURATIONS}/{_NAME}")


def naming(node: str) -> JSON:
    """The pod goes to this node, and nothing else changes."""
    return patching([{"op": "add", "path": "/spec/nodeName", "value": node}])


def configuration(namespace: str, client: JSON) -> JSON:
    """Our own webhook's, but for where it is called and for whose pods."""
    webhook: JSON
    (webhook,) = (
        each
        for document in installing.documents(installing.BASE / "webhook.yaml")
        for each in document.get("webhooks", ())
    )
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": _NAME},
        "webhooks": [{**webhook, "name": "empty.bench.example", "clientConfig": client, "namespaceSelector": selector}],
    }
