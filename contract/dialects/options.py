"""
What an administrator may choose about reading dialects, and the vGPU systems' own option names for the same.

4paradigm's scheduler and HAMi are configured by the values of a chart. `vgpu_options` reads those values under those
names from one document, so that an administrator moves them as they are. Pure: the document is read from a file or a
ConfigMap by the program that needs it. An unknown name is refused, since a misspelt limit is no limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from contract import quantity
from contract.messages import shown
from contract.model import WHOLE

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


DEFAULTS = Options()


class BadOption(ValueError):
    """An option that cannot be read. The message names it, what was found and what would work."""


@dataclass(frozen=True, slots=True)
class VgpuOptions:
    """The vGPU systems' options with their defaults; what each does here is in the documentation of settings."""

    device_split_count: int = 10
    """Pods on one GPU at most."""
    device_memory_scaling: float = 1.0
    """How many times its memory a GPU may promise."""
    default_mem: int = 0
    """Bytes on each GPU where no memory is named; 0 is the whole card's."""
    default_cores: int = 0
    """Percent of cores where none are named."""
    disable_core_limit: bool = False
    """Whether cores are counted, but not enforced."""
    mig_strategy: str = "none"
    resource_names: tuple[tuple[str, str], ...] = ()

    def reading(self, base: Options = DEFAULTS) -> Options:
        """The part that says how pods are read, over `base`."""
        return replace(
            base,
            default_memory=self.default_mem or base.default_memory,
            default_cores=self.default_cores or base.default_cores,
            resource_names=(*base.resource_names, *self.resource_names),
        )


def vgpu_options(document: Mapping[str, Any]) -> VgpuOptions:
    """The options of a document with the systems' own names. Raises `BadOption`."""
    found: dict[str, Any] = {}
    renamed: list[tuple[str, str]] = []
    for name, value in document.items():
        if name in _STANDARD_NAMES:
            renamed.append((_resource(name, value), _STANDARD_NAMES[name]))
        elif name in _FIELDS:
            field, reader = _FIELDS[name]
            found[field] = reader(name, value)
        else:
            raise BadOption(f"{name}: unknown; give one of {', '.join(sorted((*_FIELDS, *_STANDARD_NAMES)))}")
    names = [(other, standard) for other, standard in renamed if other != standard]
    if len({other for other, _ in renamed}) < len(renamed):
        raise BadOption("two resources have one name: give each a name of its own")
    return VgpuOptions(**found, resource_names=tuple(sorted(names)))


def _resource(name: str, value: object) -> str:
    if not isinstance(value, str) or not all(value.partition("/")):
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
    return _number(name, value, 0, 1 << 30) * quantity.MIB


def _percent(name: str, value: object) -> int:
    return _number(name, value, 0, WHOLE)


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
}
_STANDARD_NAMES: Mapping[str, str] = {
    "resourceName": "nvidia.com/gpu",
    "resourceMem": "nvidia.com/gpumem",
    "resourceMemPercentage": "nvidia.com/gpumem-percentage",
    "resourceCores": "nvidia.com/gpucores",
    "resourcePriority": "nvidia.com/priority",
}
