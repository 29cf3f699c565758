"""
The administrator's options: the document that has them, and what they mean for reading a pod.

    deviceSplitCount: 48            # for every node
    pools:
      - name: notebooks             # overrides the above for nodes with these labels; the first matching pool counts
        nodeSelector:
          matchLabels: {pool: notebooks}
        deviceMemoryScaling: 2
        memoryLimitRatio: 3         # a memory limit is at most three times its request; absent: at most the request
        node: {gpus: 4, gpuMemory: 15Gi, cpu: 16, memory: 60Gi, max: 10}    # what a new node has: nodes.templates
        spare: 1                    # empty nodes that are kept
    aliyunUnit: MiB                 # how pods of every node are read; the names of `_READING`
    minMemory: 512Mi
    schedulerProfiles: [...]        # arguments of kube-scheduler's profiles: contract.scheduling.profiles

`pool_options` reads the whole document into `PoolOptions`; `vgpu_options` reads the options of the cluster or of one
pool. Names and units are those of the older vGPU systems (the chart values of 4paradigm's scheduler and HAMi), so that
an administrator can move them as they are; the others are our own, and have quantities with units. Selectors are
Kubernetes'. `Options` is what applies when one pod is read, by the webhook as by the allocator.

A document with one error is refused as a whole: half of a change would be a state that nobody chose, and a misspelt
limit would not limit anything. Pure. Must not: read files, or know what a program does with an option.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from contract.encoding import quantity
from contract.encoding.reading import Malformed, shown
from contract.model import MOST_MEMORY, WHOLE, NodeState
from contract.nodes import templates
from contract.nodes.capacity import MOST_LIMIT_RATIO
from contract.nodes.templates import NodeTemplate
from contract.scheduling import profiles
from contract.scheduling.clusterfilters.objects import Profile
from contract.scheduling.needs import Requirement

_QUALIFIED = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
"""An extended resource's name: a DNS name, a slash, and at most 63 characters (Kubernetes, qualified names)."""
_NAMES_OBJECTS = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")
"""A pool's name that can begin the names of objects, which have at most 63 characters (RFC 1123, label)."""
OURS, VENDOR = "ours", "vendor"
MIG_STRATEGIES = ("none", "single", "mixed")
OPTIONS_SETTING = (
    "YAML file with the options of the cluster and its node pools, under the names that the vGPU systems use; for "
    "example a mounted ConfigMap. It is reloaded when it changes. Empty: no options."
)
"""The documentation of each program's setting `options`."""


IN_OPTIONS = "give {} in the document of options, which all programs read"
"""The cure for a setting that has become an option."""
MOVED_TO_OPTIONS: Mapping[str, str] = {
    former: IN_OPTIONS.format(name)
    for name, formers in {
        "aliyunUnit": ("dialects.aliyun_unit", "fits.aliyun_unit"),
        "defaultMem": ("dialects.default_memory", "fits.default_memory"),
        "defaultCores": ("dialects.default_cores", "fits.default_cores"),
        "coreOnlyMemory": ("dialects.core_only_memory", "fits.core_only_memory"),
        "wholeGPUs": ("dialects.whole_gpus", "whole_gpus"),
        "minMemory": ("sharing.min_memory", "fits.min_memory"),
        "minPercent": ("sharing.min_percent", "fits.min_percent"),
    }.items()
    for former in formers
}
"""Settings of webhook and allocator that have become options, each with its replacement."""


@dataclass(frozen=True, slots=True)
class Options:
    """How dialects are read."""

    aliyun_unit: int = quantity.GIB
    """Bytes of one `aliyun.com/gpu-mem`: GiB as that system's default, MiB where it ran with `--memory-unit=MiB`."""
    default_memory: int = 0
    """Bytes on each GPU for `nvidia.com/gpu` with cores but no memory named; 0 takes the whole card's memory."""
    default_cores: int = 0
    """Cores in percent where HAMi's dialect names memory but no cores."""
    core_only_memory: int = 0
    """Bytes that an Elastic GPU share of cores alone reserves; 0 reserves memory in proportion to the cores."""
    whole_gpus: str = OURS
    """Which plugin serves pods that name `nvidia.com/gpu` and no share: `ours` (as exclusive GPUs) or the `vendor`'s.
    """
    resource_names: tuple[tuple[str, str], ...] = ()
    """(this cluster's name, the standard name) of renamed resources."""
    least_memory: int = quantity.MIB
    """Bytes on each GPU that a share by amount has at least."""
    least_percent: int = 1
    """Percent of each GPU that a share by percent has at least."""


DEFAULTS = Options()


class BadOption(ValueError):
    """An option that cannot be read. The message names it, what was found and what would work."""


@dataclass(frozen=True, slots=True)
class VgpuOptions:
    """The vGPU systems' options. None: absent, so the defaults apply."""

    device_split_count: int | None = None
    """Pods on one GPU at most."""
    device_memory_scaling: float | None = None
    """The factor of its memory that a GPU may promise."""
    default_mem: int | None = None
    """Bytes on each GPU where no memory is named; 0 is the whole card's."""
    default_cores: int | None = None
    """Percent of cores where none are named."""
    disable_core_limit: bool | None = None
    """Whether cores are counted and not enforced."""
    mig_strategy: str | None = None
    reserve: int | None = None
    """Bytes of each GPU that no pod gets."""
    reserve_percent: int | None = None
    """The same in percent of the GPU's memory; the greater of the two counts."""
    resource_names: tuple[tuple[str, str], ...] = ()
    memory_limit_ratio: float | None = None
    """
    How many times its own request a container's memory limit may be, and how many times its memory the limits of a
    GPU's pods may add up to for one more that has such a limit. None: no limit is above its request.
    """

    @property
    def renamed(self) -> tuple[str, ...]:
        """The cluster's own names of resources."""
        return tuple(other for other, _ in self.resource_names)

    def over(self, base: VgpuOptions) -> VgpuOptions:
        """These options, with `base` for the absent ones."""
        given = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        names = (*base.resource_names, *self.resource_names)
        return replace(base, **{k: v for k, v in given.items() if v is not None} | {"resource_names": names})

    def of_nodes(self) -> tuple[tuple[str, str], ...]:
        """The options about nodes rather than the reading of pods, with the names and values of a document."""
        given = {
            "deviceMemoryScaling": self.device_memory_scaling,
            "deviceSplitCount": self.device_split_count,
            "disablecorelimit": self.disable_core_limit,
            "memoryLimitRatio": self.memory_limit_ratio,
            "migStrategy": self.mig_strategy,
            "reserveMem": None if self.reserve is None else quantity.mib(self.reserve),
            "reserveMemPercentage": self.reserve_percent,
        }
        return tuple((name, str(value).lower()) for name, value in given.items() if value is not None)

    def reading(self, base: Options = DEFAULTS) -> Options:
        """`base`, overridden by the options about the reading of pods."""
        return replace(
            base,
            default_memory=base.default_memory if self.default_mem is None else self.default_mem,
            default_cores=base.default_cores if self.default_cores is None else self.default_cores,
            resource_names=(*base.resource_names, *self.resource_names),
        )


SILENT = VgpuOptions()


def vgpu_options(document: Mapping[str, Any], *, of_pool: bool = False) -> VgpuOptions:
    """
    Read options with the systems' own names. Raises `BadOption`.

    `of_pool`: they are one pool's, which cannot rename resources.
    """
    found: dict[str, Any] = {}
    renamed: list[tuple[str, str]] = []
    known = tuple(sorted(_FIELDS if of_pool else (*_FIELDS, *_STANDARD_NAMES, *_READING, *_PARTS)))
    for name, value in document.items():
        if name not in known:
            raise BadOption(f"{shown(name)}: unknown{' in a pool' if of_pool else ''}; give one of {', '.join(known)}")
        if name in _STANDARD_NAMES:
            renamed.append((_resource(name, value), _STANDARD_NAMES[name]))
        else:
            field, reader = _FIELDS[name]
            found[field] = reader(name, value)
    names = [(other, standard) for other, standard in renamed if other != standard]
    if len({other for other, _ in renamed}) < len(renamed):
        raise BadOption("two resources have the same name: give each its own name")
    return VgpuOptions(**found, resource_names=tuple(sorted(names)))


def _resource(name: str, value: object) -> str:
    if not isinstance(value, str) or not _QUALIFIED.fullmatch(value):
        raise BadOption(f"{name}: found {shown(value)}; give a resource's name, such as nvidia.com/vgpu")
    return value


def _number(least: int, most: int, unit: int = 1) -> Callable[[str, object], int]:
    """A reader of whole numbers of `unit`."""

    def read(name: str, value: object) -> int:
        number = quantity.integer_or(value, least - 1)
        if not least <= number <= most:
            raise BadOption(f"{name}: found {shown(value)}; give a whole number from {least} to {most}")
        return number * unit

    return read


def _factor(name: str, value: object) -> float:
    try:
        factor = quantity.parse(value)
    except quantity.BadQuantity:
        factor = quantity.parse(0)
    if not 1 <= factor <= MOST_LIMIT_RATIO:
        raise BadOption(f"{name}: found {shown(value)}; give a number from 1 to 10")
    return float(factor)


def _flag(name: str, value: object) -> bool:
    text = value.lower() if isinstance(value, str) else value
    if text in (True, "true"):
        return True
    if text in (False, "false"):
        return False
    raise BadOption(f"{name}: found {shown(value)}; give true or false")


def _choice(*choices: str) -> Callable[[str, object], str]:
    """A reader of one of some words."""

    def read(name: str, value: object) -> str:
        if value not in choices:
            raise BadOption(f"{name}: found {shown(value)}; give {', '.join(choices)}")
        return str(value)

    return read


def _unit(name: str, value: object) -> int:
    return _UNITS[_choice(*_UNITS)(name, value)]


def _amount(least: int) -> Callable[[str, object], int]:
    """A reader of bytes, written as a quantity."""

    def read(name: str, value: object) -> int:
        number = quantity.integer_or(value, -1)
        if not least <= number <= MOST_MEMORY:
            example = f"at least {quantity.format_bytes(least)}" if least else "bytes"
            raise BadOption(f"{name}: found {shown(value)}; give {example}, such as 512Mi")
        return number

    return read


_UNITS = {"GiB": quantity.GIB, "MiB": quantity.MIB}
_MEBIBYTES = _number(0, quantity.mib(MOST_MEMORY), quantity.MIB)
_FIELDS: Mapping[str, tuple[str, Callable[[str, object], object]]] = {
    "deviceSplitCount": ("device_split_count", _number(1, 1024)),
    "deviceMemoryScaling": ("device_memory_scaling", _factor),
    "memoryLimitRatio": ("memory_limit_ratio", _factor),
    "defaultMem": ("default_mem", _MEBIBYTES),
    "defaultCores": ("default_cores", _number(0, WHOLE)),
    "disablecorelimit": ("disable_core_limit", _flag),
    "migStrategy": ("mig_strategy", _choice(*MIG_STRATEGIES)),
    "reserveMem": ("reserve", _MEBIBYTES),
    "reserveMemPercentage": ("reserve_percent", _number(0, WHOLE // 2)),
}
_READING: Mapping[str, tuple[str, Callable[[str, object], object]]] = {
    "aliyunUnit": ("aliyun_unit", _unit),
    "coreOnlyMemory": ("core_only_memory", _amount(0)),
    "wholeGPUs": ("whole_gpus", _choice(OURS, VENDOR)),
    "minMemory": ("least_memory", _amount(quantity.MIB)),
    "minPercent": ("least_percent", _number(1, WHOLE)),
}
"""The options that define how pods are read on all nodes: the field of `Options`, and its readers."""
_PARTS = ("pools", "schedulerProfiles")
"""Options with their own format."""
_STANDARD_NAMES: Mapping[str, str] = {
    "resourceName": "nvidia.com/gpu",
    "resourceMem": "nvidia.com/gpumem",
    "resourceMemPercentage": "nvidia.com/gpumem-percentage",
    "resourceCores": "nvidia.com/gpucores",
    "resourcePriority": "nvidia.com/priority",
}


# -- the document: the cluster's options, and those of pools of nodes ------------------------------------------------

_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
_SAYS_WHERE = ("In", "Exists")
"""Operators by which a nodeSelector can imply a pool; the others hold for almost every node."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Options of the nodes with certain labels."""

    name: str
    selector: tuple[Requirement, ...]
    options: VgpuOptions = SILENT
    node: NodeTemplate | None = None
    """The resources of an empty node of the pool; None: no node of it is requested."""
    spare: int = 0
    """The number of empty nodes to keep."""

    def has(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels is in the pool."""
        node = NodeState("", labels=dict(labels))
        return all(requirement.holds(node) for requirement in self.selector)

    def is_named_by(self, node_selector: Mapping[str, str]) -> bool:
        """Whether a pod with this `nodeSelector` can only be on nodes of the pool, by the selector alone."""
        return all(r.operator in _SAYS_WHERE for r in self.selector) and self.has(node_selector)


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """The whole document."""

    cluster: VgpuOptions = SILENT
    pools: tuple[Pool, ...] = ()
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    """The administrator's settings of kube-scheduler's profiles, by `schedulerName`."""
    base: Options = DEFAULTS
    """How pods are read if the options of the cluster and of pools do not define it."""

    def of_node(self, labels: Mapping[str, str]) -> tuple[str, VgpuOptions]:
        """The name of the node's pool, empty for none, and the options that apply there."""
        return self._first(pool for pool in self.pools if pool.has(labels))

    def of_pod(self, node_selector: Mapping[str, str]) -> tuple[str, VgpuOptions]:
        """The same for a pod, by its `spec.nodeSelector`, since its node is not known when it is read."""
        return self._first(pool for pool in self.pools if pool.is_named_by(node_selector))

    def reading(self, pod: Mapping[str, Any]) -> Options:
        """How a pod is read: its pool's options over the cluster's over `base`. The pod may be any JSON."""
        spec = pod.get("spec")
        selector = spec.get("nodeSelector") if isinstance(spec, Mapping) else None
        return self.of_pod(selector if isinstance(selector, Mapping) else {})[1].reading(self.base)

    def _first(self, pools: Iterator[Pool]) -> tuple[str, VgpuOptions]:
        pool = next(pools, None)
        return ("", self.cluster) if pool is None else (pool.name, pool.options.over(self.cluster))


NO_OPTIONS = PoolOptions()


def pool_options(document: object) -> PoolOptions:
    """Read a document; an absent one has no options. Raises `BadOption`."""
    if document is None:
        return NO_OPTIONS
    if not isinstance(document, Mapping):
        raise BadOption(f"found {shown(document)}; give one `name: value` per line")
    rest = {key: value for key, value in document.items() if key not in (*_PARTS, *_READING)}
    listed = document.get("pools")
    if not isinstance(listed, list | None):
        raise BadOption(f"pools: found {shown(listed)}; give a list of pools, each with name and nodeSelector")
    pools = tuple(_pool(f"pools[{i}]", item) for i, item in enumerate(listed or ()))
    names = [pool.name for pool in pools]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadOption(f"pools: {shown(twice)} is given twice; give each pool its own name")
    try:
        profile = profiles.profiles(document.get("schedulerProfiles"))
        found = PoolOptions(vgpu_options(rest), pools, profile, _base(document))
    except Malformed as error:
        raise BadOption(str(error)) from error
    for i, pool in enumerate(pools):
        first = found.of_node(dict(pool.node.labels))[0] if pool.node is not None else pool.name
        if first != pool.name:
            raise BadOption(
                f"pools[{i}] ({shown(pool.name)}).node.selector: nodes with these labels are in pool {shown(first)}, "
                f"which comes first; give labels that the earlier pools do not select"
            )
    return found


def _base(document: Mapping[Any, Any]) -> Options:
    """How pods are read on all nodes. Raises `BadOption`."""
    given: dict[str, Any] = {}
    for name in document.keys() & _READING.keys():
        field, reader = _READING[name]
        given[field] = reader(name, document[name])
    return replace(DEFAULTS, **given)


def _pool(path: str, item: object) -> Pool:
    if not isinstance(item, Mapping):
        raise BadOption(f"{path}: found {shown(item)}; give a pool with name and nodeSelector")
    name = item.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= 63:
        raise BadOption(f"{path}.name: found {shown(name)}; give a name of 1 to 63 characters")
    rest = {key: value for key, value in item.items() if key not in ("name", "nodeSelector", "node", "spare")}
    try:
        options = vgpu_options(rest, of_pool=True)
    except BadOption as error:
        raise BadOption(f"{path} ({shown(name)}): {error}") from error
    pool = Pool(name, _selector(f"{path}.nodeSelector", item.get("nodeSelector")), options)
    try:
        return _with_node(pool, item.get("node"), item.get("spare"))
    except Malformed as error:
        raise BadOption(f"{path} ({shown(name)}).{error}") from error


def _with_node(pool: Pool, node: object, spare: object) -> Pool:
    """The pool with what an empty node of it has. Raises `Malformed`."""
    kept = templates.spare(spare)
    if node is None:
        if kept:
            raise Malformed(f"spare: found {kept} without node; give node, which describes an empty node")
        return pool
    if not _NAMES_OBJECTS.fullmatch(pool.name):
        raise Malformed(
            f"name: found {shown(pool.name)}; requests for nodes are named after the pool, so give at most 40 small "
            "letters, digits and hyphens, beginning and ending with a letter or a digit"
        )
    implied = {r.key: r.values[0] for r in pool.selector if r.operator == "In" and len(r.values) == 1}
    found = templates.template(node, implied)
    if kept > found.most:
        raise Malformed(f"spare: found {kept}; give at most node.max, which is {found.most}")
    if not found.labels or not pool.has(dict(found.labels)):
        raise Malformed(
            f"node.selector: nodes with {shown(dict(found.labels))} are not in the pool by its nodeSelector; "
            "give labels that it selects"
        )
    return replace(pool, node=found, spare=kept)


def _selector(path: str, value: object) -> tuple[Requirement, ...]:
    if not isinstance(value, Mapping) or not value or not value.keys() <= {"matchLabels", "matchExpressions"}:
        # An empty selector would match every node; the options outside of pools are for that.
        raise BadOption(f"{path}: found {shown(value)}; give matchLabels or matchExpressions, as in a label selector")
    labels, expressions = value.get("matchLabels") or {}, value.get("matchExpressions") or []
    if not isinstance(labels, Mapping) or not all(isinstance(text, str) for pair in labels.items() for text in pair):
        raise BadOption(f"{path}.matchLabels: found {shown(labels)}; give labels and values as text")
    if not isinstance(expressions, list):
        raise BadOption(f"{path}.matchExpressions: found {shown(expressions)}; give a list")
    made = [Requirement(key, "In", (text,)) for key, text in labels.items()]
    made += [_expression(f"{path}.matchExpressions[{i}]", item) for i, item in enumerate(expressions)]
    if not made:
        raise BadOption(f"{path}: selects nothing; give a label")
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
