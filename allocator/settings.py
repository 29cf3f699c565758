"""
The allocator's settings, each with its meaning, unit and the reason for its default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from contract import names
from contract.encoding import quantity
from contract.nodes.heartbeat import PATIENCE
from contract.options import IN_OPTIONS, MOVED_TO_OPTIONS, OPTIONS_SETTING
from contract.scheduling.gates import SINCE, read_overrides
from runtime.scraping import ACCESS_SETTING, CERTIFICATES_SETTING
from runtime.settings import grouped, parse_address, setting

Preference = Literal["binpack", "spread"]
NodePreference = Literal["binpack", "spread", "fragmentation", "value"]


@dataclass(frozen=True)
class PlacementSettings:
    """How pods are placed."""

    pin: Literal["auto", "nodeName", "affinity"] = setting(
        "auto",
        "How a pod is tied to its node. auto: nodeName if the allocator has checked everything that kube-scheduler "
        "would, otherwise affinity. nodeName counts as affinity if only a scheduler can evaluate the pod or bind its "
        "claims.",
    )
    when: Literal["admission", "stored"] = setting(
        "admission",
        "When a pod gets its share. admission: in the call that creates it, before quotas are checked, so a refused "
        "pod may hold a share for some seconds. stored: a moment after the pod is stored, so refused pods hold "
        "nothing; every pod is gated first, which costs one more write.",
    )
    node_policy: NodePreference = setting(
        "value",
        "Which nodes are preferred. value (what could still be placed on the node) and fragmentation (what no pod "
        "could use of it) learn from the requests and also choose the GPUs of the node. For the first 64 requests, "
        "they place as binpack does, which keeps whole nodes free.",
    )
    gpu_policy: Preference = setting(
        "binpack",
        "Which GPUs of a node are preferred; binpack keeps whole GPUs free. Used only if node_policy is binpack or "
        "spread.",
    )
    scale_down: Literal["allow", "block"] = setting(
        "allow",
        "Whether autoscalers may empty a node by moving pods that have a share. block: such pods get "
        'cluster-autoscaler.kubernetes.io/safe-to-evict: "false" and karpenter.sh/do-not-disrupt: "true" with their '
        "share, unless their author wrote these annotations.",
    )
    condition: Literal["waited", "always"] = setting(
        "waited",
        "Which pods get the condition gpufraction.io/Allocated when they have their share. waited: pods that had the "
        "condition with another status before, because they waited or something was wrong. always: also pods that are "
        "placed at once, for tools that wait for the condition; this costs one more write per pod, and an Event if "
        "the webhook binds it. Without the condition, the annotation gpufraction.io/allocation says where the share "
        "is.",
    )
    unsatisfiable: Literal["deny", "wait"] = setting(
        "deny",
        "What happens to a request that no GPU of the cluster, or of a pool declared in the options, could ever serve.",
    )


@dataclass(frozen=True)
class QueueSettings:
    """Pods that wait."""

    order: Literal["age", "fair"] = setting(
        "age",
        "Which waiting pods of equal priority come first. age: the oldest. fair: those of the namespace with the "
        "smallest share of the cluster, which is its fraction of all GPU memory or of all cores, whichever is larger, "
        "divided by its weight (the namespace's label gpufraction.io/queue-weight, 1 by default); within a namespace, "
        "the oldest.",
    )
    memory: int = setting(
        32 * quantity.MIB,
        "Memory of the allocator that the waiting pods of one namespace may use. Further pods are parked: only their "
        "names are kept, and they are read again when their turn comes. An ordinary pod takes about 10 KiB.",
        unit="bytes",
        minimum=8 * quantity.MIB,
    )
    memory_total: int = setting(
        192 * quantity.MIB,
        "Memory that the waiting pods of all namespaces may use together; when it is used up, pods of the namespace "
        "that uses most are parked. The default is a quarter of the memory limit in the manifests.",
        unit="bytes",
        minimum=32 * quantity.MIB,
    )


@dataclass(frozen=True)
class SharingSettings:
    """Bounds on shares."""

    REMOVED: ClassVar[Mapping[str, str]] = {"max_sharers": IN_OPTIONS.format("deviceSplitCount")}
    max_unconfirmed: int = setting(
        64,
        "Shares that one namespace may hold for pods that are admitted but not stored yet, in addition to a quarter "
        "of the cluster's GPUs; further pods get their shares when they are stored. 0: no limit.",
        minimum=0,
    )


@dataclass(frozen=True)
class ElectionSettings:
    """The election of the deciding replica."""

    REMOVED: ClassVar[Mapping[str, str]] = {
        "enabled": "replicas always elect a leader, because an upgrade runs two at a time",
        "namespace": f"the Lease is in {names.NAMESPACE}",
        "name": f"the Lease is {names.LEASE}",
        "renew": "it is two thirds of election.lease",
        "retry": "it is two fifteenths of election.lease",
    }
    identity: str = setting("", "This replica's name in the Lease, usually the pod's name; empty: the host's name.")
    lease: float = setting(
        15.0,
        "How long after a leader's last renewal another replica may take over; pods wait meanwhile. A shorter lease "
        "takes over faster and costs more requests. A new installation waits this long for its first leader, and so "
        "does one whose Lease was deleted or edited.",
        unit="duration",
        minimum=1,
        maximum=300,
    )


@dataclass(frozen=True)
class Settings:
    """The settings of the core for `python -m allocator run`; `allocator.app` adds the features' settings."""

    REMOVED: ClassVar[Mapping[str, str]] = MOVED_TO_OPTIONS
    socket: Path = setting(Path("/run/gpufraction/socket/allocator.sock"), "Unix socket for the webhook's requests.")
    listen: str = setting("[::]:9402", "Address and port of /metrics, /healthz and /readyz; empty serves none.")
    metrics_access: Literal["token", "open"] = setting("token", ACCESS_SETTING)
    metrics_certificates: Path | None = setting(None, CERTIFICATES_SETTING)
    options: Path = setting(Path(), OPTIONS_SETTING)
    kubeconfig: str = setting("", "Path of a kubeconfig; empty: the service account, or the user's own kubeconfig.")
    assume_ttl: float = setting(
        40.0,
        "Maximum time that a share stays reserved for a pod that was admitted and has not appeared. It must be longer "
        "than a creation takes in the API server (34 s at most, including other webhooks): a pod that appears later "
        "has lost its share. If pods appear sooner, the reservation lasts four times as long as the slowest recent "
        "pod took, and at least 5 s.",
        unit="duration",
        minimum=1,
    )
    starvation_timeout: float = setting(
        300.0,
        "Time that a pod waits until a node is reserved for it, so that smaller pods do not starve it; 0: no node is "
        "reserved.",
        unit="duration",
        minimum=0,
        formerly="keep_after",
    )
    starvation_reservation_limit: float = setting(
        3600.0,
        "Time for which nodes are reserved for starving pods of one namespace while none of them is placed. After "
        "that, the namespace gets no reservation for the same time, next for twice that time, up to eight times. 0: "
        "no limit.",
        unit="duration",
        minimum=0,
        formerly="keep_for",
    )
    unbound: Literal["release", "keep", "delete"] = setting(
        "release",
        "What happens to a pod that holds a share but that kube-scheduler cannot bind. In every case, its condition "
        "and an Event quote kube-scheduler. release: the share is released, and the pod can only run without a GPU. "
        "delete: the pod is also evicted if a controller will create another, which needs the component "
        "allocator-eviction. keep: the pod keeps the share.",
    )
    unbound_after: float = setting(
        300.0,
        "Time for which kube-scheduler must have failed to bind the pod.",
        unit="duration",
        minimum=1,
        maximum=86400,
    )
    dra: bool = setting(
        False,
        "Maintain the ResourceClaims by which GPUs reach containers on nodes with Dynamic Resource Allocation "
        "(Kubernetes 1.34 and later); needs the right of manifests/components/delivery-dra, which sets it.",
    )
    agent_silence: float = setting(
        PATIENCE,
        "Time without a report of a node's agent after which the node accepts no new pods; running pods stay. It "
        "should be longer than a node takes to pull the image of a new version, so that a rollout closes no node. For "
        "agents with a longer `heartbeat`, it is two and a quarter heartbeats. 0: nodes accept pods according to the "
        "agent's last report, however old it is.",
        unit="duration",
        minimum=0,
        maximum=86400,
    )
    unhealthy_lists: bool = setting(
        False,
        "Place no pods on the GPUs that Aliyun gpushare's ConfigMaps `unhealthy-gpu-NODE` in kube-system name; needs "
        "the right of manifests/components/unhealthy-lists, which sets it.",
        formerly="kept_out_lists",
    )
    repair_every: float = setting(
        300.0,
        "Interval between comparisons of the ledger with a fresh list of pods; 0: no comparisons.",
        unit="duration",
        minimum=0,
    )
    repair: Literal["report", "evict"] = setting(
        "report",
        "What happens to the youngest pod on an overcommitted GPU: report writes an Event; evict also evicts the pod, "
        "which needs the component allocator-eviction.",
    )
    preemption: bool = setting(
        False,
        "Whether pods of lower priority that hold shares may be evicted for a waiting pod, as few as make room; needs "
        "the component allocator-eviction.",
    )
    scheduler_feature_gates: tuple[str, ...] = setting(
        (),
        "Feature gates with which kube-scheduler was started, such as `NodeDeclaredFeatures=false`, if they differ "
        "from the defaults of the API server's version: the allocator evaluates nodes as kube-scheduler does. Known: "
        f"{', '.join(sorted(SINCE))}.",
    )
    log_format: Literal["text", "json"] = setting("text", "Format of log lines: for people or for machines.")
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "The lowest level that is logged.")
    placement: PlacementSettings = grouped(PlacementSettings)
    queue: QueueSettings = grouped(QueueSettings)
    sharing: SharingSettings = grouped(SharingSettings)
    election: ElectionSettings = grouped(ElectionSettings)

    def __post_init__(self) -> None:
        try:
            read_overrides(self.scheduler_feature_gates)
        except ValueError as error:
            raise ValueError(f"scheduler_feature_gates: {error}") from error
        if self.listen:
            address(self.listen)


def address(text: str) -> tuple[str, int]:
    """Host and port of the setting `listen`. Raises ValueError."""
    return parse_address(text, "listen", "[::]:9402")
