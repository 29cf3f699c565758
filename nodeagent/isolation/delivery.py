"""
How a GPU reaches a container on this node without a device plugin.

The container's NVIDIA runtime reads `NVIDIA_VISIBLE_DEVICES`, which our webhook sets. Clusters differ in whether that
runtime is installed, whether it heeds the variable, and by which names it knows the cards. It is concluded from the
files that configure it:

    container toolkit   config.toml: the runtime's mode, and whether it heeds the variable of unprivileged containers
    containerd, CRI-O   the default runtime, which every pod without a runtime class gets
    CRI-O               the toolkit's hook, which works under any runtime
    CDI                 the names under which devices were described (/var/run/cdi, /etc/cdi)
    RuntimeClasses      the classes whose handler is NVIDIA's

Without the toolkit's configuration the delivery is unknown (`None`), which differs from `NONE`: there is none.

Pure: files in, conclusion out. Must not: open anything (`nodeagent.isolation.host` does).
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from contract import names
from contract.model import Delivery
from contract.reasons.gpunodes import GPUNodeReason
from nodeagent.conditions import Condition

TOOLKIT = (
    "usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml",
    "etc/nvidia-container-runtime/config.toml",
)
"""Below the host's root. The GPU operator's copy comes first: where it exists, the operator set the runtime up."""
CONTAINERD = "etc/containerd"
CRIO = "etc/crio"
HOOKS = ("usr/share/containers/oci/hooks.d", "run/containers/oci/hooks.d", "etc/containers/oci/hooks.d")
CDI = ("var/run/cdi", "run/cdi", "etc/cdi")
_DEFAULT_HOOKS = ("/usr/share/containers/oci/hooks.d",)
"""Where CRI-O looks for hooks by default."""
_KINDS = ("k8s.device-plugin.nvidia.com/gpu", "nvidia.com/gpu", "runtime.nvidia.com/gpu")
"""CDI kinds whose devices may have a UUID as name, the preferred first; `management.nvidia.com` has only `all`."""
_ACCEPTS = "accept-nvidia-visible-devices-envvar-when-unprivileged"
NONE = Delivery()
NO_GPUS: Mapping[str, str] = {}
_MOST_NAMED = 3
"""GPUs that a condition names; each has its reason in the GPUNode too."""
CLAIMS = "DeliversByClaim"
"""The condition for whether GPUs reach containers by ResourceClaims, on a node that must deliver this way."""
HANDLERS = ("nvidia", "nvidia-container-runtime")
"""
The toolkit's name and AKS's. The toolkit's others (`nvidia-cdi`, `nvidia-legacy`) have a mode of their own, regardless
of the configuration.
"""


class BadOverride(ValueError):
    """The setting does not describe a delivery. The message says what would."""


def conclude(
    files: Mapping[str, str], classes: Mapping[str, str], handlers: Collection[str] = HANDLERS
) -> Delivery | None:
    """
    The delivery that works, `NONE` if none does, or None if it is unknown.

    `files`: content by path below the host's root, without a leading slash. `classes`: handler by RuntimeClass.
    `handlers`: the names under which NVIDIA's runtime is configured.
    """
    toolkit = next((files[path] for path in TOOLKIT if path in files), None)
    if toolkit is None:
        return None
    configured = _toml(toolkit)
    runtime = configured.get("nvidia-container-runtime")
    mode = str(runtime.get("mode", "auto")) if isinstance(runtime, dict) else "auto"
    if configured.get(_ACCEPTS) is False:
        # The runtime ignores the variable, with a line in its log.
        return NONE
    usable = tuple(sorted(name for name, handler in classes.items() if handler in handlers))
    default = _default(files, handlers)
    if mode == "cdi":
        kind = _kind(files)
        if kind is None:
            return NONE
        return Delivery((("",) if default else ()) + usable, kind)
    return Delivery((("",) if default or _hooked(files) else ()) + usable)


def parse(text: str) -> Delivery:
    """
    A delivery from the setting that overrides the conclusion: `none`, `env-plain`, `env-class:<class>`,
    `env-class-cdi:<class>=<kind>`, `nri:<kind>` or `dra:<kind>`. Raises `BadOverride`.
    """
    mode, _, rest = text.partition(":")
    if text == "none":
        return NONE
    if text == "env-plain":
        return Delivery(("",))
    if mode == "env-class" and rest:
        return Delivery((rest,))
    if mode == "nri" and "/" in rest:
        return Delivery(("",), rest, nri=True)
    if mode == names.BY_DRA and "/" in rest:
        return Delivery(("",), rest, dra=True)
    name, _, kind = rest.partition("=")
    if mode == "env-class-cdi" and name and "/" in kind:
        return Delivery((name,), kind)
    raise BadOverride(
        f"delivery is {text!r}; give none, env-plain, env-class:nvidia, "
        "env-class-cdi:nvidia=k8s.device-plugin.nvidia.com/gpu, nri:k8s.device-plugin.nvidia.com/gpu, or "
        "dra:k8s.device-plugin.nvidia.com/gpu"
    )


def by_claim(
    concluded: Delivery | None,
    kind: str | None,
    registered: bool | None,
    why: str,
    missing: str = "",
    without: Mapping[str, str] = NO_GPUS,
) -> tuple[Delivery, Condition]:
    """
    The delivery of a node that must deliver by ResourceClaims, and the condition that reports it.

    `concluded`: the other way that works there, whose runtime classes stay usable. `kind`: the CDI kind of the cards.
    `registered`: whether kubelet has registered the agent as its plugin; None before it answered, which excludes no
    pods: a pod that comes too early starts when the plugin is there. `why`: kubelet's reason. `missing`: why the agent
    has not described the cards, if it must. `without`: the GPUs that it could not describe alongside others, by UUID,
    each with the reason.
    """
    if registered is False:
        message = f"kubelet has not registered the plugin: {why}"
        return NONE, Condition(False, GPUNodeReason.NOT_REGISTERED, message, CLAIMS)
    if kind is None:
        message = missing or "no CDI description of this node's GPUs by UUID was found; see docs/dra.md"
        return NONE, Condition(False, GPUNodeReason.NO_DESCRIPTION, message, CLAIMS)
    classes = concluded.classes if concluded is not None else ()
    found = Delivery(tuple(sorted({"", *classes})), kind, dra=True)
    if registered is None:
        message = "kubelet has not registered the plugin yet"
        return found, Condition(False, GPUNodeReason.NOT_REGISTERED_YET, message, CLAIMS)
    reasons = "; ".join(f"{uuid} is not described: {reason}" for uuid, reason in sorted(without.items())[:_MOST_NAMED])
    more = f"; {len(without)} GPUs are not described in all" if len(without) > _MOST_NAMED else ""
    message = f"cards have the CDI kind {kind}{reasons and f'; {reasons}'}{more}"
    return found, Condition(True, GPUNodeReason.REGISTERED, message, CLAIMS)


def described_kind(files: Mapping[str, str]) -> str | None:
    """The CDI kind that describes cards by UUID and that any container runtime can use; None where there is none."""
    return _kind(files, _KINDS[:2])


def _kind(files: Mapping[str, str], kinds: Iterable[str] = _KINDS) -> str | None:
    """The preferred kind that describes a device by its UUID."""
    found = set()
    for path, text in files.items():
        if path.startswith(CDI):
            spec = _spec(text)
            devices = spec.get("devices")
            names = [d.get("name") for d in devices if isinstance(d, dict)] if isinstance(devices, list) else []
            if any(str(name).startswith(("GPU-", "MIG-")) for name in names):
                found.add(spec.get("kind"))
    return next((kind for kind in kinds if kind in found), None)


def _spec(text: str) -> Mapping[str, Any]:
    """A CDI specification, JSON or YAML; empty if it is neither."""
    try:
        spec = json.loads(text)
    except ValueError:
        import yaml

        try:
            spec = yaml.safe_load(text)
        except yaml.YAMLError:
            return {}
    return spec if isinstance(spec, dict) else {}


def _default(files: Mapping[str, str], handlers: Collection[str]) -> bool:
    """Whether pods without a runtime class get NVIDIA's runtime."""
    if str(_crio(files, "default_runtime", "")) in handlers:
        return True
    return any(
        path.startswith(CONTAINERD) and any(v in handlers for v in _values(_toml(text), "default_runtime_name"))
        for path, text in files.items()
    )


def _hooked(files: Mapping[str, str]) -> bool:
    """
    Whether CRI-O has the toolkit's hook, which serves containers of every runtime; in mode `cdi` it is not installed.

    A package may have left the hook's file on a node with another runtime, so CRI-O's own folders count.
    """
    if not any(path.startswith(f"{CRIO}/") for path in files):
        return False
    read = _crio(files, "hooks_dir", _DEFAULT_HOOKS)
    folders = [str(folder).strip("/").removeprefix("var/") for folder in read] if isinstance(read, Iterable) else []
    return any(path.rpartition("/")[0] in folders and "nvidia-container" in text for path, text in files.items())


def _crio(files: Mapping[str, str], key: str, default: object) -> object:
    """A value of CRI-O's configuration: its file, then the files of its folder by name; the last one counts."""
    places = (f"{CRIO}/crio.conf", *sorted(path for path in files if path.startswith(f"{CRIO}/crio.conf.d/")))
    found = [value for path in places if path in files for value in _values(_toml(files[path]), key)]
    return found[-1] if found else default


def _toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return {}


def _values(value: object, key: str) -> Iterable[object]:
    """Every value of `key` at any depth, since configurations of different versions differ in its place."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == key:
                yield inner
            yield from _values(inner, key)
