"""
The agent's settings, field by field; `runtime.settings` reads them from a file, the environment and flags.

Must not: open anything. What a setting means for the rest of the agent is made in `nodeagent.app`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import ClassVar, Literal

from contract.names import BY_DRA, DELIVERY, NAMESPACE, OPTIONS, STARTUP_TAINT
from contract.options import IN_OPTIONS, OPTIONS_SETTING
from nodeagent.gpus.health import IGNORED_XIDS
from nodeagent.isolation import delivery
from nodeagent.isolation.cards import IN_CONTAINER
from nodeagent.isolation.delivery import HANDLERS
from nodeagent.isolation.levels import MECHANISMS
from nodeagent.isolation.mechanism import LimiterSettings, MechanismTable
from nodeagent.sharing.overuse import OveruseSettings
from runtime.scraping import ACCESS_SETTING, CERTIFICATES_SETTING
from runtime.settings import composed, grouped, parse_address, setting


@dataclass(frozen=True)
class PaceSettings:
    """How often the agent looks and writes."""

    interval: float = setting(10.0, "Interval at which the GPUs are read.", unit="duration", minimum=0.1)
    heartbeat: float = setting(
        120.0,
        "Interval at which an unchanged status is written, 10 % more or less depending on the node's name. 5,000 "
        "nodes then write 42 times a second. A node whose agent misses two writes accepts no new pods (the "
        "allocator's setting `agent_silence`).",
        unit="duration",
        minimum=10.0,
        maximum=43200.0,
    )


@dataclass(frozen=True)
class AgentSettings:
    """The settings of `run` and `inventory` that no mechanism brings; `settings_type` adds those."""

    REMOVED: ClassVar[Mapping[str, str]] = {
        "driver_timeout": "a call into the driver may take a minute",
        "patience": "a call into the driver may take a minute",
        "reserve": IN_OPTIONS.format("reserveMem (MiB)"),
        "reserve_percent": IN_OPTIONS.format("reserveMemPercentage"),
        "mig": IN_OPTIONS.format("migStrategy"),
    }
    node: str = setting(MISSING, "Name of the Node that this machine is; `spec.nodeName` of the agent's own pod.")
    kubeconfig: str = setting("", "How to reach the API server; empty: the pod's service account, or the user's own.")
    simulate: str = setting(
        "",
        "Simulated GPUs instead of a driver's, such as `2 x Tesla T4 15109MiB`, or `@` and the path of a file, which "
        "is reloaded each time; empty: the real GPUs.",
    )
    nvml_library: str = setting(
        "",
        "Path of libnvidia-ml.so.1 if the dynamic linker does not find it, for example under a driver container's "
        "root; empty: the linker's choice.",
    )
    options: Path = setting(Path(), OPTIONS_SETTING)
    options_by_api: bool = setting(
        False,
        f"Follow the ConfigMap {OPTIONS} of {NAMESPACE} by the API instead of the file. For an agent in another "
        "namespace, which cannot mount it; needs the right that the base grants to such an agent. "
        "manifests/components/node-access sets it.",
    )
    pace: PaceSettings = grouped(PaceSettings, at="")
    xid_ignore: tuple[str, ...] = setting(
        tuple(map(str, IGNORED_XIDS)),
        "The driver's error numbers for faults of a program, not of the GPU; the default is that of NVIDIA's device "
        "plugin.",
    )
    xid_quiet: float = setting(
        600.0,
        "Time for which a GPU accepts no new pods after any other such error, or after an uncorrectable memory error.",
        unit="duration",
        minimum=1.0,
    )
    pods: bool = setting(
        False,
        "Read this node's pods, to learn the GPUs of holder pods, and each container's share and use of a GPU. Needs "
        "the right of manifests/components/holders or node-access, which set it.",
    )
    host_root: str = setting(
        "",
        "Where the host's /etc, /run, /var/run and /usr are mounted, with the files that configure container runtimes. "
        "From them the agent detects how GPUs reach containers here. Empty: this is unknown, and pods are placed as "
        "if every way worked.",
    )
    delivery: str = setting(
        "",
        "How GPUs reach containers here, instead of what the agent detects: `none`, `env-plain`, `env-class:CLASS`, "
        "`env-class-cdi:CLASS=KIND`, `nri:KIND` if the toolkit's NRI plugin is enabled, which the agent cannot see, or "
        "`dra:KIND`.",
    )
    kubelet: str = setting(
        "",
        "The kubelet's folder on the host, mounted here under the same path: the agent is then a kubelet plugin, for "
        f"nodes with the label {DELIVERY}={BY_DRA}. It needs gRPC, which the package's extra `dra` brings; "
        "manifests/components/delivery-dra sets it. Empty: the agent is not a kubelet plugin.",
    )
    driver_folder: str = setting(
        "",
        "Folder of the driver's libraries and programs on the host, such as /home/kubernetes/bin/nvidia on Google's "
        "image. On nodes that deliver by ResourceClaims the agent then describes the cards itself, and containers find "
        f"the folder as {IN_CONTAINER}. Empty: another program describes the GPUs. Needs limiters.cdi and host_root.",
    )
    runtime_handlers: tuple[str, ...] = setting(
        HANDLERS,
        "Names of NVIDIA's runtime in containerd or CRI-O, in the mode of its config.toml: the handlers of "
        "RuntimeClasses, and of the node's default.",
    )
    overuse: OveruseSettings = grouped(OveruseSettings, at="")
    idle_least: float = setting(
        60.0,
        "Time without use after which the GPUNode lists a share as idle. Needs `pods`. Each sample covers the last 20 "
        "s, so with a longer `interval` some use is missed.",
        unit="duration",
        minimum=1.0,
    )
    startup_taint: bool = setting(
        False,
        f"Remove the taint {STARTUP_TAINT} from this Node when its GPUs are published. Needs the right of "
        "manifests/components/startup-taint, which sets it.",
    )
    limiters: LimiterSettings = grouped(LimiterSettings)
    proven_within: float = setting(
        0.0,
        "Time for which the proof of a canary is valid. Limiting levels are published only with a valid proof; "
        "manifests/components/canary sets this and creates canaries. 0: no proof is needed.",
        unit="duration",
        minimum=0,
        maximum=2592000.0,
    )
    listen: str = setting("[::]:9445", "Address and port of /metrics, /healthz and /readyz; empty: none.")
    metrics_access: Literal["token", "open"] = setting("token", ACCESS_SETTING)
    metrics_certificates: Path | None = setting(None, CERTIFICATES_SETTING)
    log_format: Literal["text", "json"] = setting("text", "Format of log lines: for people or for machines.")
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "The lowest level that is logged.")

    def __post_init__(self) -> None:
        if not self.node:
            raise ValueError("node is empty; give the name of the Node that this machine is")
        if self.simulate and self.nvml_library:
            raise ValueError("simulate and nvml_library are both set; give one of them")
        if self.listen:
            address(self.listen)
        if self.delivery and delivery.parse(self.delivery).dra and not self.kubelet:
            raise ValueError(f"delivery is {self.delivery!r}; set kubelet too, the kubelet's folder")
        if self.driver_folder and not (self.limiters.cdi and self.host_root):
            raise ValueError("driver_folder is set; set limiters.cdi and host_root too")
        strangers = [text for text in self.xid_ignore if not (text.isascii() and text.isdecimal())]
        if strangers:
            raise ValueError(f"xid_ignore has {strangers[0]!r}; give numbers such as 13,31")


@dataclass(frozen=True)
class HoldSettings:
    """`python -m nodeagent hold`."""

    REMOVED: ClassVar[Mapping[str, str]] = {
        "namespace": f"holders run in {NAMESPACE}, where the agent counts them",
        "kubeconfig": "a holder uses the service account of its pod",
        "simulate": "a holder reports the GPUs that a device plugin allocated to its pod",
        "interval": "the GPUs are read once a minute",
    }
    pod: str = setting(MISSING, "Name of the holder's own pod.")
    log_format: Literal["text", "json"] = setting("text", "Format of log lines: for people or for machines.")
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "The lowest level that is logged.")


def settings_type(table: MechanismTable = MECHANISMS) -> type[AgentSettings]:
    """The agent's settings with those of these mechanisms, each in a field with the name of its level."""
    return composed(AgentSettings, ((level.name, entry.group, entry.settings) for level, entry in table.items()))


def address(text: str) -> tuple[str, int]:
    """Host and port of the setting `listen`. Raises ValueError."""
    return parse_address(text, "listen", "[::]:9445")
