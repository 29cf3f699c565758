"""A cluster for the agent's tests: the embedded API in process, with an unreliable network in front of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from playground.api.api import Api
from playground.api.kinds import Kind
from runtime.kube import JSON, Kube, KubeTimeout, KubeUnavailable, gpunodes, nodes
from runtime.kubepaths import customresourcedefinitions

CRD = Path(__file__).parents[2] / "manifests/base/gpunodes.crd.yaml"

REFUSED = "refused"
"""The connection could not be made: nothing was done."""
LOST = "lost"
"""The request was carried out and its answer lost."""
DROPPED = "dropped"
"""The request was lost under way, and the caller cannot tell."""


@dataclass
class Answer:
    status: int
    body: JSON
    headers: Mapping[str, str] = field(default_factory=dict)

    def read(self) -> bytes:
        return json.dumps(self.body).encode()

    def chunks(self) -> Iterator[bytes]:
        yield self.read()

    def close(self) -> None:
        return None


@dataclass
class Network:
    """A transport to `api`. `faults` happen to the next requests, one each; None lets a request through."""

    api: Api
    faults: list[str | None] = field(default_factory=list)
    down: bool = False
    writes: list[str] = field(default_factory=list)
    calls: list[tuple[str, str]] = field(default_factory=list)
    reads: int = 0

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes | None,
        timeout: float,
        stream: bool,
    ) -> Answer:
        self.calls.append((method, path))
        fault = REFUSED if self.down else self.faults.pop(0) if self.faults else None
        if fault == REFUSED:
            raise KubeUnavailable("connection refused")
        if fault == DROPPED:
            raise KubeTimeout("no answer")
        content_type = headers.get("Content-Type", "application/json")
        document = json.loads(body) if body else None
        status, answer = self.api.call(method, path, query=query, body=document, content_type=content_type)
        if method == "GET":
            self.reads += 1
        elif status < 300:
            self.writes.append(f"{method} {path.rsplit('/', 2)[-2]}/{path.rsplit('/', 1)[-1]}")
        if fault == LOST:
            raise KubeTimeout("no answer")
        return Answer(status, answer)


class Cluster:
    """The API with our CustomResourceDefinition, and a node."""

    def __init__(self, *node_names: str) -> None:
        self.api = Api()
        definition = yaml.safe_load(CRD.read_text())
        self.call("POST", customresourcedefinitions(), definition)
        version = definition["spec"]["versions"][0]
        gpunode = Kind("gpufraction.io", "v1alpha1", "gpunodes", "GPUNode", False, ("gpun",), True, custom=version)
        if self.api.kinds.find("gpufraction.io", "v1alpha1", "gpunodes") is None:
            self.api.kinds.replace_custom("gpufraction.io", "gpunodes", [gpunode])
        self.network = Network(self.api)
        self.kube = Kube(self.network)
        for name in node_names:
            self.add_node(name)

    def add_node(self, name: str) -> None:
        """A node as a kubelet registers it, of ordinary resources."""
        self.call("POST", nodes(), {"metadata": {"name": name}, "status": {"capacity": {"cpu": "8"}}})

    def call(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> JSON:
        """Somebody else's request, which nothing disturbs."""
        status, answer = self.api.call(method, path, body=body, content_type=content_type)
        assert status < 300, answer
        return answer

    def node(self, name: str) -> JSON:
        return self.call("GET", nodes(name))

    def gpunode(self, name: str) -> JSON:
        return self.call("GET", gpunodes(name))

    def merge(self, path: str, patch: JSON) -> JSON:
        return self.call("PATCH", path, patch, "application/merge-patch+json")

    def wipe_capacity(self, name: str) -> None:
        """What a kubelet does to extended resources that it does not know when it registers its node anew."""
        zero = {"gpufraction.io/gpu-memory": "0", "gpufraction.io/gpu-cores": "0"}
        self.merge(nodes(name, "status"), {"status": {"capacity": zero, "allocatable": zero}})
