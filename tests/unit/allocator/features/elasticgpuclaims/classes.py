"""Claims of two classes on a bench, and helpers to inspect them."""

from __future__ import annotations

from typing import Any

from allocator.features.elasticgpuclaims import ClaimSettings, objects
from contract import names
from contract.encoding import codec
from contract.model import Usage
from tests.builders import node
from tests.unit.allocator.features.elasticgpuclaims.harness import ON, Bench

NODES = (node("a").gpus(2, mib=16384).labelled("disk", "fast"), node("b").gpus(1, mib=16384))


def bench(*nodes: Any, by_claims: bool = False, claiming: ClaimSettings = ON) -> Bench:
    """A cluster with two classes: one binds immediately and deletes, the other waits for a pod and retains."""
    made = Bench(*(nodes or NODES), by_claims=by_claims, claiming=claiming)
    made.a_class("now")
    made.a_class("later", egpuBindingMode=objects.FIRST_CONSUMER, reclaimPolicy=objects.RETAIN)
    return made


def taken(on: Bench) -> dict[str, Usage]:
    """What the leader has allocated, on the GPUs that are not free."""
    found = {g.uuid: u for n in on.harness.controller.nodes() for g, u in zip(n.gpus, n.usage, strict=True)}
    return {uuid: usage for uuid, usage in found.items() if usage != Usage()}


def status(on: Bench, claim: str) -> tuple[str, str]:
    """A claim's phase, and the reason."""
    found = on.get(objects.CLAIMS, claim)["status"]
    return found["phase"], found["reason"]


def of_pod(on: Bench, name: str) -> dict[str, int]:
    """Bytes by GPU of a pod's allocation."""
    text = on.get("pods", name)["metadata"]["annotations"][names.ALLOCATION]
    containers = codec.allocation_from_text(text).containers
    return {share.uuid: share.memory for container in containers for share in container.shares}
