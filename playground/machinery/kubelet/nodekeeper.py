"""
Updates Node objects, as their kubelets do, and as the node controller does for nodes whose kubelet is silent.

A new node is made ready, its extended resources are copied from capacity to allocatable, and its heartbeat is written
periodically. A node that a test made fail no longer reports, and gets the condition and the taints of the node
controller. Owned by the kubelet's thread.
"""

import logging
from collections.abc import Callable

from playground.api.kinds.values import JSON, User
from playground.machinery.client.client import MERGE, NODES, STRATEGIC, Client, Refused
from playground.machinery.client.informer import version_of
from playground.machinery.objects import resources
from playground.machinery.objects.nodes import node_conditions

log = logging.getLogger(__name__)

UNREACHABLE = "node.kubernetes.io/unreachable"


def node_user(name: str) -> User:
    """The identity of a node's kubelet."""
    return User(f"system:node:{name}", ("system:nodes", "system:authenticated"))


class NodeKeeper:
    def __init__(self, *, client: Client, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._nodes: dict[str, JSON] = {}
        self._down: set[str] = set()

    def get(self, name: str) -> JSON | None:
        """The node, if its kubelet exists and works."""
        return None if name in self._down else self._nodes.get(name)

    def exists(self, name: str) -> bool:
        return name in self._nodes

    def address(self, name: str) -> str:
        """The node's internal address; empty where it has none."""
        addresses = (self._nodes.get(name, {}).get("status") or {}).get("addresses") or []
        return next((str(a["address"]) for a in addresses if a.get("type") == "InternalIP"), "")

    def changed(self, node: JSON) -> bool:
        """Apply a state of the node. Returns whether the node is new."""
        name = node["metadata"]["name"]
        new = name not in self._nodes
        self._know(node)
        if name in self._down:
            return False
        if not resources.is_ready(self._nodes[name]):
            self._report(name)
        extended = resources.with_extended(self._nodes[name])
        if extended:
            self._patch_status(name, {"allocatable": extended}, MERGE)
        return new

    def _know(self, node: JSON) -> None:
        """Keep the latest state: the response to our own write may be newer than the watch."""
        name = node["metadata"]["name"]
        known = self._nodes.get(name)
        if known is None or version_of(known) < version_of(node):
            self._nodes[name] = node

    def gone(self, name: str) -> None:
        self._nodes.pop(name, None)

    def heartbeat(self) -> None:
        for name in self._nodes:
            if name not in self._down:
                self._report(name)

    def fail(self, name: str) -> None:
        """Stop the node's heartbeats."""
        if name in self._nodes and name not in self._down:
            self._down.add(name)
            self._patch_status(name, {"conditions": node_conditions(self._clock(), ready=False)})
            taints = [{"key": UNREACHABLE, "effect": effect} for effect in ("NoSchedule", "NoExecute")]
            self._taint(name, taints)

    def restart(self, name: str) -> None:
        """Start the node again, or restart its kubelet."""
        self._down.discard(name)
        if name in self._nodes:
            self._report(name)
            self._taint(name, [])

    def _report(self, name: str) -> None:
        """Report that the node is ready. A condition that already held keeps the time of its transition."""
        old = {c["type"]: c for c in (self._nodes[name].get("status") or {}).get("conditions") or []}
        reported = node_conditions(self._clock())
        for condition in reported:
            before = old.get(condition["type"])
            if before is not None and before.get("status") == condition["status"]:
                condition["lastTransitionTime"] = before.get("lastTransitionTime")
        self._patch_status(name, {"conditions": reported})

    def _taint(self, name: str, ours: list[JSON]) -> None:
        theirs = [t for t in self._nodes[name].get("spec", {}).get("taints") or [] if t.get("key") != UNREACHABLE]
        patch = {"spec": {"taints": [*theirs, *ours] or None}}
        self._client.patch(NODES, self._nodes[name], patch, content_type=MERGE)

    def _patch_status(self, name: str, status: JSON, content_type: str = STRATEGIC) -> None:
        client, node = self._client.as_user(node_user(name)), self._nodes[name]
        answer = client.patch(NODES, node, {"status": status}, sub="status", content_type=content_type)
        if isinstance(answer, Refused):
            if not answer.gone:
                log.warning("node status refused", extra={"node": name, "said": answer.message})
        else:
            self._know(answer)
