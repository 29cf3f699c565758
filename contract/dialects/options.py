"""
What an administrator may choose about reading dialects, and the vGPU systems' own option names for the same.

4paradigm's scheduler and HAMi are configured by the values of a chart. `vgpu_options` reads those values under those
names, so that an administrator moves them as they are; two of our own stand beside them. `contract.nodes.pools` reads
the document around them. Pure. An unknown name is refused, since a misspelt limit is no limit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from contract.encoding import quantity
from contract.encoding.messages import shown
from contract.model import MOST_MEMORY, WHOLE

_QUALIFIED = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
"""An extended resource's name: a DNS name, a slash, and at most 63 characters (Kubernetes, qualified names)."""
OURS, VENDOR = "ours", "vendor"
WHOLE_GPUS = (OURS, VENDOR)
MIG_STRATEGIES = ("none", "single", "mixed")


@dataclass(frozen=True, slots=True)
class Options:
    """What the administrator may choose about reading dialects."""

    aliyun_unit: int = quantity.GIB
    """Bytes of one `aliyun.com/gpu-mem`: GiB as that system's default, MiB where it ran with `--memory-unit=MiB`."""
    default_memory: int = 0
    """Bytes on each GPU for `nvidia.com/gpu` with cores but no memory named; 0 takes the whole card's memory."""
    default_cores: int = 0
    """Cores in percent where HAMi's dialect names memory but no cores."""
    core_only_memory: int = 0
    """Bytes that an Elastic GPU share of cores alone reserves; 0 reserves memory in proportion to the cores."""
    whole_gpus: str = OURS
    """Who serves pods that name `nvidia.com/gpu` and no share: `ours`, as exclusive cards, or the `vendor`'s plugin."""
    resource_names: tuple[tuple[str, str], ...] = ()
    """(another name, the standard one) of resources that this cluster calls otherwise."""
    least_memory: int = quantity.MIB
    """Bytes on each GPU that a share by amount has at least."""
    least_percent: int = 1
    """Percent of each GPU that a share by percent has at least."""


DEFAULTS = Options()


class BadOption(ValueError):
    """An option that cannot be read. The message names it, what was found and what would work."""


@dataclass(frozen=True, slots=True)
class VgpuOptions:
    """The vGPU systems' options. None is what was not said, and leaves the programs' own settings as they are."""

    device_split_count: int | None = None
    """Pods on one GPU at most."""
    device_memory_scaling: float | None = None
    """How many times its memory a GPU may promise."""
    default_mem: int | None = None
    """Bytes on each GPU where no memory is named; 0 is the whole card's."""
    default_cores: int | None = None
    """Percent of cores where none are named."""
    disable_core_limit: bool | None = None
    """Whether cores are counted, but not enforced."""
    mig_strategy: str | None = None
    reserve: int | None = None
    """Bytes of each GPU that are given to nobody."""
    reserve_percent: int | None = None
    """The same in percent of the GPU's memory; the greater counts."""
    resource_names: tuple[tuple[str, str], ...] = ()

    @property
    def renamed(self) -> tuple[str, ...]:
        """What resources are called here besides their standard names."""
        return tuple(other for other, _ in self.resource_names)

    def over(self, base: VgpuOptions) -> VgpuOptions:
        """These, and where they say nothing, `base`."""
        said = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        names = (*base.resource_names, *self.resource_names)
        return replace(base, **{k: v for k, v in said.items() if v is not None} | {"resource_names": names})

    def of_nodes(self) -> tuple[tuple[str, str], ...]:
        """What concerns a node rather than the reading of pods, by the options' names, as a document would say it."""
        said = {
            "deviceMemoryScaling": self.device_memory_scaling,
            "deviceSplitCount": self.device_split_count,
            "disablecorelimit": self.disable_core_limit,
            "migStrategy": self.mig_strategy,
            "reserveMem": None if self.reserve is None else quantity.mib(self.reserve),
            "reserveMemPercentage": self.reserve_percent,
        }
        return tuple((name, str(value).lower()) for name, value in said.items() if value is not None)

    def reading(self, base: Options = DEFAULTS) -> Options:
        """The part that says how pods are read, over `base`."""
        return replace(
            base,
            default_memory=base.default_memory if self.default_mem is None else self.default_mem,
            default_cores=base.default_cores if self.default_cores is None else self.default_cores,
            resource_names=(*base.resource_names, *self.resource_names),
        )


SILENT = VgpuOptions()


def vgpu_options(document: Mapping[str, Any], *, of_pool: bool = False) -> VgpuOptions:
    """
    The options of a document with the systems' own names. Raises `BadOption`.

    `of_pool`: they are one pool's, which cannot have names of resources to itself.
    """
    found: dict[str, Any] = {}
    renamed: list[tuple[str, str]] = []
    known = tuple(sorted(_FIELDS if of_pool else (*_FIELDS, *_STANDARD_NAMES)))
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
        raise BadOption("two resources have one name: give each a name of its own")
    return VgpuOptions(**found, resource_names=tuple(sorted(names)))


def _resource(name: str, value: object) -> str:
    if not isinstance(value, str) or not _QUALIFIED.fullmatch(value):
        raise BadOption(f"{name}: found {shown(value)}; give a resource's name, such as nvidia.com/vgpu")
    return value


def _number(name: str, value: object, least: int, most: int) -> int:
    try:
        number = quantity.integer(value)
    except quantity.BadQuantity:
        number = least - 1
    if not least <= number <= most:
        raise BadOption(f"{name}: found {shown(value)}; give a whole number from {least} to {most}")
    return number


def _split(name: str, value: object) -> int:
    return _number(name, value, 1, 1024)


def _mebibytes(name: str, value: object) -> int:
    return _number(name, value, 0, quantity.mib(MOST_MEMORY)) * quantity.MIB


def _percent(name: str, value: object) -> int:
    return _number(name, value, 0, WHOLE)


def _half(name: str, value: object) -> int:
    return _number(name, value, 0, WHOLE // 2)


def _factor(name: str, value: object) -> float:
    try:
        factor = quantity.parse(value)
    except quantity.BadQuantity:
        factor = quantity.parse(0)
    if not 1 <= factor <= 10:
        raise BadOption(f"{name}: found {shown(value)}; give a number from 1 to 10")
    return float(factor)


def _flag(name: str, value: object) -> bool:
    text = value.lower() if isinstance(value, str) else value
    if text in (True, "true"):
        return True
    if text in (False, "false"):
        return False
    raise BadOption(f"{name}: found {shown(value)}; give true or false")


def _strategy(name: str, value: object) -> str:
    if value not in MIG_STRATEGIES:
        raise BadOption(f"{name}: found {shown(value)}; give {', '.join(MIG_STRATEGIES)}")
    return str(value)


_FIELDS: Mapping[str, tuple[str, Callable[[str, object], object]]] = {
    "deviceSplitCount": ("device_split_count", _split),
    "deviceMemoryScaling": ("device_memory_scaling", _factor),
    "defaultMem": ("default_mem", _mebibytes),
    "defaultCores": ("default_cores", _percent),
    "disablecorelimit": ("disable_core_limit", _flag),
    "migStrategy": ("mig_strategy", _strategy),
    "reserveMem": ("reserve", _mebibytes),
    "reserveMemPercentage": ("reserve_percent", _half),
}
_STANDARD_NAMES: Mapping[str, str] = {
    "resourceName": "nvidia.com/gpu",
    "resourceMem": "nvidia.com/gpumem",
    "resourceMemPercentage": "nvidia.com/gpumem-percentage",
    "resourceCores": "nvidia.com/gpucores",
    "resourcePriority": "nvidia.com/priority",
}
