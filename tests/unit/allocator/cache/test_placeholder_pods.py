"""A placeholder pod keeps its node for the pods that it was created for; no other pod can use the node."""

from __future__ import annotations

import pytest

from allocator.cache.podinfo import read_pod
from contract import names
from tests.builders import pod

POOL, OURS = str(names.POOL), str(names.NAMESPACE)
CASES = {
    "a placeholder takes its whole node": (OURS, {POOL: "t4"}, "n1", True),
    "one that is not bound takes what it asks for": (OURS, {POOL: "t4"}, "", False),
    "another pod of ours": (OURS, {"app": "gpufraction"}, "n1", False),
    "a tenant's pod with the label": ("default", {POOL: "t4"}, "n1", False),
}


@pytest.mark.parametrize(("namespace", "labels", "node", "whole"), CASES.values(), ids=CASES.keys())
def test_what_a_pod_takes_of_its_node(namespace: str, labels: dict[str, str], node: str, whole: bool) -> None:
    made = pod("p").container("main").needs(cpu="2", memory="1Gi").manifest()
    made["metadata"].update(namespace=namespace, labels=labels, uid="u")
    if node:
        made["spec"]["nodeName"] = node
    cpu = read_pod(made).compute.cpu
    assert cpu == 2_000 if not whole else cpu > 1_000_000
