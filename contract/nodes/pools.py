"""
The administrator's document of options: for the whole cluster, and for pools of nodes.

    deviceSplitCount: 48            # for every node
    pools:
      - name: notebooks             # for nodes with these labels, over what stands above; the first that fits counts
        nodeSelector:
          matchLabels: {pool: notebooks}
        deviceMemoryScaling: 2

Names and units of the options are the vGPU systems' (`contract.dialects.options`), selectors are Kubernetes'. One wrong
word and nothing of the document counts: half of a change would be a third state that nobody chose.

Pure. Must not: read files, or know what a program does with an option.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from contract.dialects.options import SILENT, BadOption, Options, VgpuOptions, vgpu_options
from contract.encoding.messages import shown
from contract.model import NodeState
from contract.scheduling.needs import Requirement

_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
_SAYS_WHERE = ("In", "Exists")
"""Operators by which labels say where something is; by the others everything is everywhere else."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Options of the nodes with certain labels."""

    name: str
    selector: tuple[Requirement, ...]
    options: VgpuOptions = SILENT

    def has(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels is in the pool."""
        node = NodeState("", labels=dict(labels))
        return all(requirement.holds(node) for requirement in self.selector)

    def is_named_by(self, node_selector: Mapping[str, str]) -> bool:
        """Whether a pod with this `nodeSelector` can be on nodes of the pool only, as far as the selector tells."""
        return all(r.operator in _SAYS_WHERE for r in self.selector) and self.has(node_selector)


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """The whole document."""

    cluster: VgpuOptions = SILENT
    pools: tuple[Pool, ...] = ()

    def of_node(self, labels: Mapping[str, str]) -> tuple[str, VgpuOptions]:
        """The name of the node's pool, empty for none, and what counts there."""
        return self._first(pool for pool in self.pools if pool.has(labels))

    def of_pod(self, node_selector: Mapping[str, str]) -> tuple[str, VgpuOptions]:
        """The same for a pod by its `spec.nodeSelector`, since its node is not known when it is read."""
        return self._first(pool for pool in self.pools if pool.is_named_by(node_selector))

    def reading(self, pod: Mapping[str, Any], base: Options) -> Options:
        """How a pod is read, whatever JSON it is: its pool's options over the cluster's over `base`."""
        spec = pod.get("spec")
        selector = spec.get("nodeSelector") if isinstance(spec, Mapping) else None
        return self.of_pod(selector if isinstance(selector, Mapping) else {})[1].reading(base)

    def _first(self, pools: Iterator[Pool]) -> tuple[str, VgpuOptions]:
        pool = next(pools, None)
        return ("", self.cluster) if pool is None else (pool.name, pool.options.over(self.cluster))


NOTHING_SAID = PoolOptions()


def pool_options(document: object) -> PoolOptions:
    """Read a document; an absent one says nothing. Raises `BadOption`."""
    if document is None:
        return NOTHING_SAID
    if not isinstance(document, Mapping):
        raise BadOption(f"found {shown(document)}; give one `name: value` a line")
    rest = {key: value for key, value in document.items() if key != "pools"}
    listed = document.get("pools")
    if not isinstance(listed, list | None):
        raise BadOption(f"pools: found {shown(listed)}; give a list of pools, each with name and nodeSelector")
    pools = tuple(_pool(f"pools[{i}]", item) for i, item in enumerate(listed or ()))
    names = [pool.name for pool in pools]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadOption(f"pools: {shown(twice)} is there twice; give each pool a name of its own")
    return PoolOptions(vgpu_options(rest), pools)


def _pool(path: str, item: object) -> Pool:
    if not isinstance(item, Mapping):
        raise BadOption(f"{path}: found {shown(item)}; give a pool with name and nodeSelector")
    name = item.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= 63:
        raise BadOption(f"{path}.name: found {shown(name)}; give a name of 1 to 63 characters")
    rest = {key: value for key, value in item.items() if key not in ("name", "nodeSelector")}
    try:
        options = vgpu_options(rest, of_pool=True)
    except BadOption as error:
        raise BadOption(f"{path} ({shown(name)}): {error}") from error
    return Pool(name, _selector(f"{path}.nodeSelector", item.get("nodeSelector")), options)


def _selector(path: str, value: object) -> tuple[Requirement, ...]:
    if not isinstance(value, Mapping) or not value or not value.keys() <= {"matchLabels", "matchExpressions"}:
        # An empty one would be every node, which is what stands outside of pools.
        raise BadOption(f"{path}: found {shown(value)}; give matchLabels or matchExpressions, as in a label selector")
    labels, expressions = value.get("matchLabels") or {}, value.get("matchExpressions") or []
    if not isinstance(labels, Mapping) or not all(isinstance(text, str) for pair in labels.items() for text in pair):
        raise BadOption(f"{path}.matchLabels: found {shown(labels)}; give labels and values as text")
    if not isinstance(expressions, list):
        raise BadOption(f"{path}.matchExpressions: found {shown(expressions)}; give a list")
    made = [Requirement(key, "In", (text,)) for key, text in labels.items()]
    made += [_expression(f"{path}.matchExpressions[{i}]", item) for i, item in enumerate(expressions)]
    if not made:
        raise BadOption(f"{path}: selects by nothing; give a label")
    return tuple(made)


def _expression(path: str, item: object) -> Requirement:
    found: Mapping[Any, Any] = item if isinstance(item, Mapping) else {}
    key, operator, values = found.get("key"), found.get("operator"), found.get("values") or []
    if not isinstance(key, str) or operator not in _OPERATORS:
        raise BadOption(f"{path}: found {shown(item)}; give a key and an operator of {', '.join(_OPERATORS)}")
    given = isinstance(values, list) and all(isinstance(text, str) for text in values)
    if not given or bool(values) != (operator in ("In", "NotIn")):
        raise BadOption(f"{path}.values: found {shown(values)}; give texts for In and NotIn, none for the others")
    return Requirement(key, operator, tuple(values))
