"""Requests for nodes of a pool that Karpenter serves, which accepts no rule about a node's name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from allocator.features.provisioning import objects, pools
from allocator.features.provisioning.objects import RequestForm
from contract import names
from contract.nodes.attributes import NodeFacts
from contract.options import pool_options
from tests.builders import node

JSON = dict[str, Any]
EMPTY = node("new").gpus(1).state()
OPTIONS = pool_options({"pools": [{"name": "a", "nodeSelector": {"matchLabels": {"pool": "a"}}, "node": {"max": 2}}]})
HOSTNAME = "kubernetes.io/hostname"


def facts(name: str, **labels: str) -> NodeFacts:
    return NodeFacts(name, labels=labels)


def affinity(off: tuple[str, ...], *, karpenter: bool) -> JSON:
    form = RequestForm("a-x", "a", EMPTY, {"pool": "a"}, off, karpenter=karpenter)
    return dict(objects.placeholder(form)["spec"]["affinity"])


@pytest.mark.parametrize(
    ("nodes", "karpenter"),
    [
        ((), False),
        ((facts("n1", pool="a"),), False),
        ((facts("n1", pool="a"), facts("n2", pool="a", **{"karpenter.sh/nodepool": "gpus"})), True),
        ((facts("n1", pool="a"), facts("n2", **{"karpenter.sh/nodepool": "system"})), True),
    ],
    ids=["no node", "another autoscaler's", "one of Karpenter's", "Karpenter's in no pool"],
)
def test_karpenter_is_there_by_the_label_of_any_node(nodes: tuple[NodeFacts, ...], karpenter: bool) -> None:
    (view,) = pools.views(OPTIONS, {"a": EMPTY}, nodes, {}, ())
    assert view.karpenter is karpenter


def test_a_placeholder_is_kept_off_nodes_by_their_names() -> None:
    rule = affinity(("n1", "n2"), karpenter=False)["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    term = {"key": HOSTNAME, "operator": "NotIn", "values": ["n1", "n2"]}
    assert rule == {"nodeSelectorTerms": [{"matchExpressions": [term]}]}


def test_one_for_karpenter_is_kept_off_nodes_by_the_pods_of_tenants() -> None:
    made = affinity(("n1", "n2"), karpenter=True)
    alike, tenants = made["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert "nodeAffinity" not in made
    assert "n1" not in json.dumps(made)
    assert alike["labelSelector"] == {"matchLabels": {str(names.POOL): "a"}}
    assert tenants["namespaceSelector"] == {"matchLabels": {str(names.INJECT_LABEL): names.INJECT_ENABLED}}
    assert alike["topologyKey"] == tenants["topologyKey"] == HOSTNAME


@pytest.mark.parametrize(("off", "karpenter"), [(("n1",), True), (("n1",), False), ((), True)])
def test_only_one_that_keeps_tenants_off_is_there_before_the_startup_taint_goes(
    off: tuple[str, ...], karpenter: bool
) -> None:
    form = RequestForm("a-x", "a", EMPTY, {"pool": "a"}, off, karpenter=karpenter)
    tolerated = [each["key"] for each in objects.placeholder(form)["spec"]["tolerations"]]
    assert tolerated == ([str(names.STARTUP_TAINT)] if off and karpenter else [])


@pytest.mark.parametrize("karpenter", [True, False])
def test_a_placeholder_for_the_first_node_is_only_apart_from_its_like(karpenter: bool) -> None:
    made = affinity((), karpenter=karpenter)
    assert made.keys() == {"podAntiAffinity"}
    assert len(made["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]) == 1
