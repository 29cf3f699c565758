"""The webhook that only names a node."""

from __future__ import annotations

import base64
import json

from benchmarks.throughput import emptywebhook
from playground.programs import installing


def test_it_is_called_for_the_pods_for_which_ours_is_called_in_its_namespace() -> None:
    (ours,) = [
        each
        for document in installing.documents(installing.BASE / "webhook.yaml")
        for each in document.get("webhooks", ())
    ]
    client = {"url": "https://localhost:1234/mutate"}
    (found,) = emptywebhook.configuration("tenant", client)["webhooks"]
    assert found["clientConfig"] == client
    assert found["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "tenant"}}
    for different in ("name", "clientConfig", "namespaceSelector"):
        del ours[different], found[different]
    assert found == ours


def test_the_pod_gets_its_node_and_nothing_else() -> None:
    answer = emptywebhook.naming("gpu-00001")
    patch = json.loads(base64.b64decode(answer.pop("patch")))
    assert patch == [{"op": "add", "path": "/spec/nodeName", "value": "gpu-00001"}]
    assert answer == {"allowed": True, "patchType": "JSONPatch"}
