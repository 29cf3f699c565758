"""
The agent's settings, field by field; `runtime.settings` reads them from a file, the environment and flags.

Must not: open anything. What a setting means for the rest of the agent is made in `nodeagent.__main__`.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Literal

from contract.names import NAMESPACE
from contract.options import OPTIONS_SETTING
from nodeagent.gpus.health import IGNORED_XIDS
from nodeagent.isolation import delivery
from nodeagent.isolation.delivery import HANDLERS
from nodeagent.isolation.limiters import LimiterSettings
from runtime.settings import parse_address, setting


@dataclass(frozen=True)
class AgentSettings:
    """Everything that can be set, whatever the command."""

    node: str = setting(MISSING, "Name of the Node that this machine is; `spec.nodeName` of the agent's own pod.")
    kubeconfig: str = setting("", "How to reach the API server; empty: the pod's service account, or the user's own.")
    simulate: str = setting(
        "",
        "GPUs to pretend instead of asking a driver, such as `2 x Tesla T4 15109MiB`, or `@` and the path of a file, "
        "which is read again at every look; empty: the real ones.",
    )
    nvml_library: str = setting(
        "",
        "Path of libnvidia-ml.so.1 where the dynamic linker would not find it, such as below a driver container's "
        "root; empty: the linker's choice.",
    )
    options: Path = setting(Path(), OPTIONS_SETTING)
    interval: float = setting(10.0, "Time between two readings of the GPUs.", unit="duration", minimum=0.1)
    driver_timeout: float = setting(
        60.0,
        "How long a call into the driver may take before its earlier answer counts as outdated. Drivers are known to "
        "need tens of seconds while one of several GPUs fails.",
        unit="duration",
        minimum=1.0,
        formerly="patience",
    )
    heartbeat: float = setting(
        300.0,
        "Time between two writes of a status that stays the same, 10 % more or less by the node's name. 5,000 nodes "
        "then cause 17 writes a second.",
        unit="duration",
        minimum=10.0,
    )
    reserve: int = setting(
        0,
        "Memory of each GPU that no pod gets. The driver's own reserve counts towards it and is always kept back, so "
        "that 0 offers exactly what can be allocated. 256Mi with a reserve_percent of 3 is a margin for nodes on which "
        "nothing enforces limits.",
        unit="bytes",
        minimum=0,
    )
    reserve_percent: int = setting(
        0, "The same in percent of each GPU's memory; the greater of the two counts.", minimum=0, maximum=50
    )
    mig: Literal["none", "single", "mixed"] = setting(
        "mixed",
        "Slices of cards in MIG mode: `mixed` publishes each as a GPU of its own, `single` only where all cards are "
        "cut into slices of one kind, `none` not at all.",
    )
    xid_ignore: tuple[str, ...] = setting(
        tuple(map(str, IGNORED_XIDS)),
        "The driver's error numbers that are a program's fault and not the GPU's; by default those that NVIDIA's "
        "device plugin ignores.",
    )
    xid_quiet: float = setting(
        600.0,
        "How long a GPU takes no new pods after such an error or a memory error that could not be corrected.",
        unit="duration",
        minimum=1.0,
    )
    pods: bool = setting(
        False,
        "Read this node's pods: what holder pods report, whose processes use a GPU, who is held to which share. Needs "
        "the right of manifests/components/holders or node-access, which set it.",
    )
    host_root: str = setting(
        "",
        "Where the host's /etc, /run, /var/run and /usr are mounted, as far as they set up container runtimes: from "
        "them is concluded how GPUs reach containers here. Empty: nothing is concluded, and pods are placed as if "
        "every way worked.",
    )
    delivery: str = setting(
        "",
        "How GPUs reach containers here, instead of the conclusion: `none`, `env-plain`, `env-class:CLASS`, "
        "`env-class-cdi:CLASS=KIND`, or `nri:KIND` where the toolkit's NRI plugin is on, which is not concluded.",
    )
    runtime_handlers: tuple[str, ...] = setting(
        HANDLERS,
        "Names under which NVIDIA's runtime is configured in containerd or CRI-O, in the mode of its config.toml: the "
        "handlers of RuntimeClasses, and of the node's default.",
    )
    overuse_slack: int = setting(
        512 << 20,
        "GPU memory that a container may use beyond its share before that counts as overuse: every CUDA context needs "
        "some that its program did not request.",
        unit="bytes",
        minimum=0,
    )
    overuse_grace: float = setting(
        30.0,
        "How long a container may use more memory than its share before its pod is warned by an Event.",
        unit="duration",
        minimum=0,
        formerly="overuse_patience",
    )
    evict_overuse: float = setting(
        0.0, "How long after that warning the pod is evicted if it is still over; 0: never.", unit="duration", minimum=0
    )
    evict_unhealthy: float = setting(
        0.0, "How long a GPU may be unhealthy before the pods on it are evicted; 0: never.", unit="duration", minimum=0
    )
    driver_limits: bool = setting(
        False,
        "Have the driver (615 and later, cgroup v2) hold each container to its share of memory. The agent must run as "
        "root and see the host's control groups below host_root. Not tried on a card by us, hence off.",
    )
    limiters: LimiterSettings = LimiterSettings()
    listen: str = setting("0.0.0.0:9445", "Address and port of /metrics, /healthz and /readyz; empty: none.")
    log_format: Literal["text", "json"] = setting("text", "Log lines for people or for machines.")
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "The least that is logged.")

    def __post_init__(self) -> None:
        if not self.node:
            raise ValueError("node is empty; give the name of the Node that this machine is")
        if self.simulate and self.nvml_library:
            raise ValueError("simulate and nvml_library are both set; give one of them")
        if self.listen:
            address(self.listen)
        if self.delivery:
            delivery.parse(self.delivery)
        strangers = [text for text in self.xid_ignore if not (text.isascii() and text.isdecimal())]
        if strangers:
            raise ValueError(f"xid_ignore has {strangers[0]!r}; give numbers such as 13,31")


@dataclass(frozen=True)
class HoldSettings:
    """`python -m nodeagent hold`."""

    pod: str = setting(MISSING, "Name of the holder's own pod.")
    namespace: str = setting(NAMESPACE, "Namespace of that pod; the agent counts holders of its own namespace only.")
    kubeconfig: str = setting("", "How to reach the API server; empty: the pod's service account, or the user's own.")
    simulate: str = setting("", "GPUs to pretend, as for the agent; empty: the real ones.")
    interval: float = setting(60.0, "Time between two readings of the GPUs.", unit="duration", minimum=0.1)
    log_format: Literal["text", "json"] = setting("text", "Log lines for people or for machines.")
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "The least that is logged.")


def address(text: str) -> tuple[str, int]:
    """Host and port of the setting `listen`. Raises ValueError."""
    return parse_address(text, "listen", "0.0.0.0:9445")
