"""
The administrator's declaration of an empty node of a pool, before any node of the pool was seen.

    pools:
      - name: a100
        nodeSelector: {matchLabels: {pool: a100}}
        node:
          gpus: 8                   # what an empty node has; leave these out where a node of the pool was always seen
          model: NVIDIA A100-SXM4-80GB
          gpuMemory: 80Gi           # of each GPU
          cpu: 90                   # what pods may use: allocatable less the requests of DaemonSets
          memory: 1000Gi
          storage: 100Gi            # for pods that request ephemeral storage
          selector: {pool: a100}    # labels that every node of the pool gets
          taints: [{key: nvidia.com/gpu, value: present, effect: NoSchedule}]
          max: 10                   # nodes of the pool at most, existing ones included
        spare: 1

`template` reads `node`. The template lists the taints that a new node has. It lists no tolerations: the allocator
derives them from the taints for the pods by which it requests a node. A waiting pod that does not tolerate the taints
would not run on such a node, so no node is requested for it.

Pure. Must not: know which nodes exist.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from contract.encoding import quantity
from contract.encoding.reading import Malformed, shown
from contract.model import LONGEST_WORD, MOST_COMPUTE, MOST_GPUS, MOST_MEMORY, Taint
from contract.nodes.attributes import MOST_TAINTS

MOST_NODES = 1_000
MOST_SPARE = 100
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_MOST_LABELS = 64
_PART = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_KEY = re.compile(rf"([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_PART}")
"""The key of a label or a taint (Kubernetes, "Labels and Selectors")."""
_VALUE = re.compile(rf"({_PART})?")
_TOGETHER = ("gpus", "gpuMemory", "cpu", "memory")


@dataclass(frozen=True, slots=True)
class NodeTemplate:
    """
    The administrator's declaration of an empty node of a pool.

    0 or empty: not declared, and learned from nodes of the pool once one was seen.
    """

    gpus: int = 0
    model: str = ""
    gpu_memory: int = 0
    """Bytes of each GPU, as the driver shows it."""
    cpu: int = 0
    """Thousandths that pods may use: allocatable less what DaemonSets request."""
    memory: int = 0
    """The same in bytes of memory."""
    storage: int = 0
    """The same in bytes of ephemeral storage; 0 serves no pod that requests some."""
    labels: tuple[tuple[str, str], ...] = ()
    """Labels that each node of the pool gets, sorted; those by which the pool selects its nodes are among them."""
    taints: tuple[Taint, ...] = ()
    most: int = MOST_NODES
    """Nodes of the pool, existing ones included."""


def template(value: object, implied: Mapping[str, str]) -> NodeTemplate:
    """
    Read `pools[].node`. `implied`: labels that the pool's nodeSelector names with one value.

    Raises `Malformed`, whose message begins with the field's path below the pool.
    """
    if not isinstance(value, Mapping):
        raise Malformed(f"node: found {shown(value)}; give what an empty node has, at least max")
    known = (*_FIELDS, "selector", "taints")
    for name in value:
        if name not in known:
            raise Malformed(f"node: {shown(name)}: unknown; give one of {', '.join(known)}")
    found: dict[str, Any] = {}
    for name, (field, reader) in _FIELDS.items():
        if value.get(name) is not None:
            found[field] = reader(f"node.{name}", value[name])
    if "most" not in found:
        raise Malformed(f"node.max: missing; give how many nodes the pool may have, 1 to {MOST_NODES}")
    given = [name for name in _TOGETHER if value.get(name) is not None]
    if given and len(given) < len(_TOGETHER):
        lacking = next(name for name in _TOGETHER if name not in given)
        raise Malformed(
            f"node.{lacking}: missing, while {given[0]} is given; give {', '.join(_TOGETHER)}, or none of them where "
            f"nodes of "
            "the pool exist to learn from"
        )
    labels = {**implied, **_labels("node.selector", value.get("selector") or {})}
    return NodeTemplate(**found, labels=tuple(sorted(labels.items())), taints=_taints(value.get("taints") or []))


def spare(value: object) -> int:
    """Read `pools[].spare`: how many empty nodes are kept. Raises `Malformed`."""
    return _count(0, MOST_SPARE)("spare", 0 if value is None else value)


def _labels(path: str, value: object) -> dict[str, str]:
    if not isinstance(value, Mapping) or len(value) > _MOST_LABELS:
        raise Malformed(f"{path}: found {shown(value)}; give at most {_MOST_LABELS} labels and their values")
    for key, text in value.items():
        if not (isinstance(key, str) and _KEY.fullmatch(key) and isinstance(text, str) and _VALUE.fullmatch(text)):
            raise Malformed(f"{path}: found {shown(key)}: {shown(text)}; give a label and its value as text")
    return dict(value)


def _taints(value: object) -> tuple[Taint, ...]:
    if not isinstance(value, list) or len(value) > MOST_TAINTS:
        raise Malformed(f"node.taints: found {shown(value)}; give a list of at most {MOST_TAINTS} taints")
    return tuple(_taint(f"node.taints[{i}]", item) for i, item in enumerate(value))


def _taint(path: str, item: object) -> Taint:
    found: Mapping[Any, Any] = item if isinstance(item, Mapping) else {}
    key, value, effect = found.get("key"), found.get("value") or "", found.get("effect")
    if not found.keys() <= {"key", "value", "effect"} or effect not in EFFECTS:
        raise Malformed(f"{path}: found {shown(item)}; give key, value and effect, one of {', '.join(EFFECTS)}")
    if not (isinstance(key, str) and _KEY.fullmatch(key) and isinstance(value, str) and _VALUE.fullmatch(value)):
        raise Malformed(f"{path}: found {shown(item)}; give a taint's key, and its value as text")
    return Taint(key, value, str(effect))


def _count(least: int, most: int) -> Callable[[str, object], int]:
    """A reader of whole numbers."""

    def read(path: str, value: object) -> int:
        number = quantity.integer_or(value, least - 1)
        if not least <= number <= most:
            raise Malformed(f"{path}: found {shown(value)}; give a whole number from {least} to {most}")
        return number

    return read


def _amount(most: int, example: str) -> Callable[[str, object], int]:
    """A reader of bytes. Less than a mebibyte is a number without its unit."""

    def read(path: str, value: object) -> int:
        number = quantity.integer_or(value, 0)
        if not quantity.MIB <= number <= most:
            raise Malformed(f"{path}: found {shown(value)}; give an amount with its unit, such as {example}")
        return number

    return read


def _cpu(path: str, value: object) -> int:
    try:
        number = quantity.milli(value)
    except quantity.BadQuantity:
        number = 0
    if not 0 < number <= MOST_COMPUTE:
        raise Malformed(f"{path}: found {shown(value)}; give a number of CPUs, such as 16 or 15500m")
    return number


def _model(path: str, value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_WORD or not value.isprintable():
        raise Malformed(f"{path}: found {shown(value)}; give the model as `nvidia-smi -L` shows it, such as Tesla T4")
    return value


_FIELDS: Mapping[str, tuple[str, Callable[[str, object], Any]]] = {
    "gpus": ("gpus", _count(1, MOST_GPUS)),
    "model": ("model", _model),
    "gpuMemory": ("gpu_memory", _amount(MOST_MEMORY, "15Gi")),
    "cpu": ("cpu", _cpu),
    "memory": ("memory", _amount(MOST_COMPUTE, "60Gi")),
    "storage": ("storage", _amount(MOST_COMPUTE, "100Gi")),
    "max": ("most", _count(1, MOST_NODES)),
}
