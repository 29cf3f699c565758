"""A cluster for the agent's tests: the embedded API in this process, behind an unreliable network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from contract.model import Usage
from contract.nodes import capacity
from contract.nodes.inventories import inventory_from_object
from playground.api.api import Api
from playground.api.kinds.kinds import Kind
from runtime.kubernetes.client import JSON, Kube
from runtime.kubernetes.paths import customresourcedefinitions, gpunodes, nodes
from tests.wires import Wire

CRD = Path(__file__).parents[3] / "manifests/base/gpunodes.crd.yaml"


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
        self.network = Wire(self.api)
        self.kube = Kube(self.network)
        for name in node_names:
            self.add_node(name)

    def add_node(self, name: str) -> None:
        """Add a node as a kubelet registers it, with ordinary resources."""
        self.call("POST", nodes(), {"metadata": {"name": name}, "status": {"capacity": {"cpu": "8"}}})

    def call(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> JSON:
        """Another client's request, which nothing disturbs."""
        status, answer = self.api.call(method, path, body=body, content_type=content_type)
        assert status < 300, answer
        return answer

    def node(self, name: str) -> JSON:
        return self.call("GET", nodes(name))

    def gpunode(self, name: str) -> JSON:
        return self.call("GET", gpunodes(name))

    def merge(self, path: str, patch: JSON) -> JSON:
        return self.call("PATCH", path, patch, "application/merge-patch+json")

    def says_beyond(self, name: str, **held: int) -> None:
        """
        What the allocator does once it has seen what a node's GPUs promise: it writes what pods hold beyond that.
        `held`: bytes by GPU; the UUIDs have `_` instead of `-`.
        """
        promised = capacity.promises(inventory_from_object(self.gpunode(name)).gpus)
        used = {uuid.replace("_", "-"): Usage(memory=memory) for uuid, memory in held.items()}
        annotation = capacity.to_text(capacity.beyond(promised, used))
        self.merge(gpunodes(name), {"metadata": {"annotations": {"gpufraction.io/held-beyond": annotation}}})

    def wipe_capacity(self, name: str) -> None:
        """What a kubelet does to unknown extended resources when it registers its node again."""
        zero = {"gpufraction.io/gpu-memory": "0", "gpufraction.io/gpu-cores": "0"}
        self.merge(nodes(name, "status"), {"status": {"capacity": zero, "allocatable": zero}})
