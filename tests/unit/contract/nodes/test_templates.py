"""`pools[].node` of the options: what it means, and the message for one that cannot be read."""

from __future__ import annotations

from typing import Any

import pytest

from contract.encoding.quantity import GIB
from contract.model import Taint
from contract.nodes.templates import NodeTemplate
from contract.options import BadOption, Pool, pool_options

SELECTOR = {"matchLabels": {"pool": "a100"}}
FULL = {
    "gpus": 4,
    "model": "Tesla T4",
    "gpuMemory": "15Gi",
    "cpu": "15500m",
    "memory": "60Gi",
    "storage": "100Gi",
    "selector": {"cloud.example.com/pool": "a100"},
    "taints": [
        {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
        {"key": "a", "effect": "NoExecute"},
    ],
    "max": 10,
}


def pool(selector: Any = SELECTOR, **more: Any) -> dict[str, Any]:
    return {"name": "a100", "nodeSelector": selector, **more}


def document(**more: Any) -> dict[str, Any]:
    return {"pools": [pool(**more)]}


def node(**changes: Any) -> dict[str, Any]:
    """A document whose template is `FULL` with these changes; None leaves a field out."""
    return document(node={key: value for key, value in {**FULL, **changes}.items() if value is not None})


def read(found: Any) -> Pool:
    return pool_options(found).pools[0]


def test_a_template_says_what_an_empty_node_has() -> None:
    assert read(node()).node == NodeTemplate(
        gpus=4,
        model="Tesla T4",
        gpu_memory=15 * GIB,
        cpu=15_500,
        memory=60 * GIB,
        storage=100 * GIB,
        labels=(("cloud.example.com/pool", "a100"), ("pool", "a100")),
        taints=(Taint("nvidia.com/gpu", "present", "NoSchedule"), Taint("a", "", "NoExecute")),
        most=10,
    )


def test_a_template_may_leave_all_but_the_most_nodes_to_be_learned() -> None:
    assert read(document(node={"max": 3}, spare=2)) == Pool(
        "a100", read(document()).selector, node=NodeTemplate(labels=(("pool", "a100"),), most=3), spare=2
    )


def test_a_pool_without_a_template_brings_no_node() -> None:
    assert (read(document()).node, read(document()).spare) == (None, 0)


LABELS: dict[str, tuple[Any, Any, dict[str, str]]] = {
    "the pool's matchLabels": (SELECTOR, None, {"pool": "a100"}),
    "an expression with one value": (
        {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["a100"]}]},
        None,
        {"pool": "a100"},
    ),
    "an expression with several, of which the template has one": (
        {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["a", "b"]}]},
        {"pool": "b"},
        {"pool": "b"},
    ),
    "a label that only has to be there": (
        {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]},
        {"gpu": ""},
        {"gpu": ""},
    ),
}


@pytest.mark.parametrize(("selector", "given", "want"), LABELS.values(), ids=LABELS.keys())
def test_the_labels_of_a_new_node(selector: Any, given: Any, want: dict[str, str]) -> None:
    found = read({"pools": [pool(selector, node={"max": 1, "selector": given})]}).node
    assert found is not None
    assert dict(found.labels) == want


SEVERAL = {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["a", "b"]}]}
WRONG: dict[str, tuple[Any, str]] = {
    "a template that is none": (document(node=[4]), "pools[0] ('a100').node: found [4]; give what an empty node has"),
    "no most": (
        node(max=None),
        "pools[0] ('a100').node.max: missing; give how many nodes the pool may have, 1 to 1000",
    ),
    "a most of none": (node(max=0), "node.max: found 0; give a whole number from 1 to 1000"),
    "a misspelt field": (
        node(gpu=4),
        "pools[0] ('a100').node: 'gpu': unknown; give one of gpus, model, gpuMemory, cpu",
    ),
    "tolerations for taints": (node(tolerations=[]), "node: 'tolerations': unknown; give one of"),
    "more GPUs than a machine has": (node(gpus=100), "node.gpus: found 100; give a whole number from 1 to 64"),
    "memory without its unit": (
        node(gpuMemory=15),
        "node.gpuMemory: found 15; give an amount with its unit, such as 15Gi",
    ),
    "memory that is no amount": (node(memory="much"), "node.memory: found 'much'; give an amount with its unit"),
    "CPU that is no number": (node(cpu=True), "node.cpu: found True; give a number of CPUs, such as 16 or 15500m"),
    "a model that is no text": (node(model=4), "node.model: found 4; give the model as `nvidia-smi -L` shows it"),
    "GPUs without their memory": (
        node(gpuMemory=None),
        "node.gpuMemory: missing, while gpus is given; give gpus, gpuMemory, cpu, memory, or none of them",
    ),
    "GPUs without the node's CPU": (
        node(cpu=None),
        "node.cpu: missing, while gpus is given; give gpus, gpuMemory, cpu, memory",
    ),
    "labels that are no labels": (node(selector={"a b": "c"}), "node.selector: found 'a b': 'c'; give a label"),
    "labels that are no text": (node(selector={"a": True}), "node.selector: found 'a': True; give a label"),
    "a selector in its long form": (node(selector=["a"]), "node.selector: found ['a']; give at most 64 labels"),
    "no label at all": (
        {"pools": [pool({"matchExpressions": [{"key": "old", "operator": "DoesNotExist"}]}, node={"max": 1})]},
        "node.selector: nodes with {} are not in the pool by its nodeSelector; give labels that it selects",
    ),
    "expressions that leave the label open": (
        {"pools": [pool(SEVERAL, node={"max": 1})]},
        "node.selector: nodes with {} are not in the pool by its nodeSelector; give labels that it selects",
    ),
    "labels of other nodes": (
        node(selector={"pool": "t4"}),
        "node.selector: nodes with {'pool': 't4'} are not in the pool by its nodeSelector",
    ),
    "labels of an earlier pool": (
        {
            "pools": [
                pool({"matchLabels": {"gpu": "yes"}}),
                {**pool(node={"max": 1, "selector": {"gpu": "yes"}}), "name": "b"},
            ]
        },
        "pools[1] ('b').node.selector: nodes with these labels are in pool 'a100', which comes first; give labels",
    ),
    "taints that are no list": (
        node(taints={"a": 1}),
        "node.taints: found {'a': 1}; give a list of at most 100 taints",
    ),
    "a taint without an effect": (
        node(taints=[{"key": "a"}]),
        "node.taints[0]: found {'key': 'a'}; give key, value and",
    ),
    "a toleration": (
        node(taints=[{"key": "a", "operator": "Exists", "effect": "NoSchedule"}]),
        "give key, value and effect, one of NoSchedule, PreferNoSchedule, NoExecute",
    ),
    "spare nodes of which nothing is known": (
        document(spare=1),
        "pools[0] ('a100').spare: found 1 without node; give node, which describes an empty node",
    ),
    "too many spare nodes": (
        document(spare=101, node={"max": 1}),
        "spare: found 101; give a whole number from 0 to 100",
    ),
    "more spare nodes than the pool may have": (
        document(spare=2, node={"max": 1}),
        "pools[0] ('a100').spare: found 2; give at most node.max, which is 1",
    ),
}


@pytest.mark.parametrize(("found", "message"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_template_says_where_and_what_would_work(found: Any, message: str) -> None:
    with pytest.raises(BadOption) as caught:
        pool_options(found)
    assert message in str(caught.value)
