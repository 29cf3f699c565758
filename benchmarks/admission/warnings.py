"""
The time that the policy with warnings about mistakes in manifests adds to an apply, on a real API server.

Each manifest is created as a dry run in a namespace for which the policy is bound and in one for which it is not, by
turns. The API server is alone: no webhook, no controller.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.figures import MILLISECOND, Spread, machine_line, table
from benchmarks.progress import say
from contract import names
from contract.dialects import hami
from playground.api.kinds.values import ADMIN
from playground.programs import installing
from playground.realapi.components import assets_of
from playground.realapi.server import RealServer
from playground.waiting import wait_for
from runtime.kubernetes.transport import HttpRequest, Transport, connect_transport

JSON = dict[str, Any]
_TIMES = 200
_BOUND, _FREE = "bound", "free"
_POLICY = installing.BASE.parent / "policies" / "warnings.yaml"
_CONTAINERS, _RESOURCES, _ANNOTATIONS = 16, 16, 64
"""The most parts that the policy examines."""
_NO_GPU = {"cpu": "1"}
_MISSPELT = {"gpufracton.io/gpu-memory": "8Gi"}


def warnings(environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """On the API server of KUBEBUILDER_ASSETS."""
    assets = assets_of(environment)
    if isinstance(assets, str):
        yield f"What warnings of manifests cost was not measured: {assets}"
        return
    # Without controllers, the account that the plugin needs in every namespace is not created.
    with RealServer(assets, disabled=("ServiceAccount",)) as server:
        for namespace in (_BOUND, _FREE):
            installing.apply(server.kube(), {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        for made in installing.documents(_POLICY):
            if made["kind"].endswith("Binding"):
                selected = {"matchLabels": {"kubernetes.io/metadata.name": _BOUND}}
                made["spec"]["matchResources"] = {"namespaceSelector": selected}
            installing.apply(server.kube(), made)
        transport = connect_transport(kubeconfig=str(server.certified(ADMIN)), context=None, user_agent="benchmark")
        wait_for(lambda: bool(_create(transport, _BOUND, _deployment(_MISSPELT))), "the policy does not warn")
        version = ".".join(map(str, server.kube().version()))
        yield from _measured(transport, f"a real API server, Kubernetes {version}")


@dataclass(frozen=True, slots=True)
class _Manifest:
    """The applied manifest, its names for people and for programs, and how often it is applied."""

    title: str
    key: str
    body: JSON
    times: int = _TIMES


def _manifests() -> Iterator[_Manifest]:
    share = {str(names.GPU_MEMORY): "8Gi"}
    yield _Manifest("Deployment without a GPU", "plain", _deployment(_NO_GPU))
    yield _Manifest("Deployment with a share", "share", _deployment(share))
    yield _Manifest("Deployment with a misspelt share", "misspelt", _deployment(_MISSPELT))
    yield _Manifest("Deployment with the maximum that is read", "large", _large(), _TIMES // 10)
    yield _Manifest("pod without a GPU", "pod", _pod(_NO_GPU))
    yield _Manifest("pod of a controller, without a GPU", "controlled", _pod(_NO_GPU, owned=True))
    yield _Manifest("pod of a controller, with a share", "controlled_share", _pod({hami.MEM: "8192"}, owned=True))


def _measured(transport: Transport, where: str) -> Iterator[str]:
    say(f"applying manifests with and without the policy that warns, on {where}")
    rows, figures = [], {}
    for manifest in _manifests():
        took: dict[str, list[int]] = {_FREE: [], _BOUND: []}
        for _ in range(manifest.times):
            for namespace, times in took.items():
                before = time.perf_counter_ns()
                _create(transport, namespace, manifest.body)
                times.append(time.perf_counter_ns() - before)
        free, bound = (Spread.of(times).p50 / MILLISECOND for times in took.values())
        rows.append((manifest.title, f"{free:.2f}", f"{bound:.2f}", f"{bound - free:+.2f} ms"))
        figures[f"{manifest.key}_added_p50_ms"] = f"{bound - free:.2f}"
    yield table(
        f"Applying a manifest as a dry run on {where}, {_TIMES} each, alternating",
        ("manifest", "without the policy, p50 ms", "with it, p50 ms", "added at p50"),
        rows,
    )
    yield machine_line("warnings", figures)


def _create(transport: Transport, namespace: str, made: JSON) -> str:
    """The warnings of a dry run."""
    version, plural = made["apiVersion"], f"{made['kind'].lower()}s"
    path = f"/{'apis' if '/' in version else 'api'}/{version}/namespaces/{namespace}/{plural}"
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    request = HttpRequest("POST", path, {"dryRun": "All"}, headers, json.dumps(made).encode(), 60.0)
    response = transport.request(request)
    text = response.read()
    if response.status >= 300:
        raise RuntimeError(text.decode(errors="replace"))
    return response.headers.get("warning", "")


def _spec(*limits: JSON) -> JSON:
    made = [{"name": f"c{i}", "image": "x", "resources": {"limits": each}} for i, each in enumerate(limits)]
    return {"containers": made}


def _deployment(*limits: JSON) -> JSON:
    labels = {"app": "a"}
    template = {"metadata": {"labels": labels, "annotations": {"prometheus.io/scrape": "true"}}, "spec": _spec(*limits)}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec}


def _large() -> JSON:
    """As many containers, resources and annotations as are looked at, none of which is known."""
    limits = {f"example.com/resource-{number:02}": "1" for number in range(_RESOURCES)}
    made = _deployment(*[limits] * _CONTAINERS)
    annotations = {f"example.com/annotation-{number:02}": "1" for number in range(_ANNOTATIONS)}
    made["metadata"]["annotations"] = made["spec"]["template"]["metadata"]["annotations"] = annotations
    return made


def _pod(limits: JSON, *, owned: bool = False) -> JSON:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "1", "controller": True}
    metadata: JSON = {"name": "p", **({"ownerReferences": [owner]} if owned else {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": _spec(limits)}
