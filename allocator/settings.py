"""
The allocator's settings: what an administrator may choose, each with its meaning, unit and the reason for its default.
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
        "How a pod is tied to its node. auto: nodeName where the allocator has checked everything that kube-scheduler "
        "would, else affinity. nodeName counts as affinity where only a scheduler can judge the pod or bind its "
        "claims.",
    )
    when: Literal["admission", "stored"] = setting(
        "admission",
        "When a pod gets its share. admission: in the call that creates it, before quotas are checked, so a pod that "
        "is refused may hold a share for some seconds. stored: a moment after it was stored, so refused creations hold "
        "nothing; every pod is gated first, which costs one more write.",
    )
    node_policy: NodePreference = setting(
        "value",
        "Which nodes are preferred. value (what could still be placed on the node) and fragmentation (what no pod "
        "could use of it) learn from the requests and choose the GPUs of the node too. For the first 64 requests they "
        "place as binpack does, which keeps whole nodes free.",
    )
    gpu_policy: Preference = setting(
        "binpack",
        "Which GPUs of a node are preferred; binpack keeps whole GPUs free. Used only where node_policy is binpack or "
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
        "Which pods get the condition gpufraction.io/Allocated when they have their share. waited: those that had it "
        "with another status before, because they waited or something was wrong. always: also pods that are placed at "
        "once, for tools that wait for the condition; that costs one more write per pod, and an Event where our "
        "webhook binds it. Without it, the annotation gpufraction.io/allocation says where the share is.",
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
        "Which of the waiting pods of equal priority come first. age: those that were created first. fair: those of "
        "the namespace that holds the smallest part of the cluster's GPU memory or cores, whichever part is larger, "
        "divided by its weight (the namespace's label gpufraction.io/queue-weight, 1 by default); within a namespace "
        "by age.",
    )
    memory: int = setting(
        32 * quantity.MIB,
        "What the waiting pods of one namespace may take of the allocator's memory. Further ones are parked: only "
        "their names are kept, and they are read again when their turn comes. An ordinary pod takes about 10 KiB.",
        unit="bytes",
        minimum=8 * quantity.MIB,
    )
    memory_total: int = setting(
        192 * quantity.MIB,
        "What the waiting pods of all namespaces may take together; where it is used up, those of the namespace that "
        "uses most are parked. The default is a quarter of the memory limit in the manifests.",
        unit="bytes",
        minimum=32 * quantity.MIB,
    )


@dataclass(frozen=True)
class SharingSettings:
    """Bounds on shares."""

    REMOVED: ClassVar[Mapping[str, str]] = {"max_sharers": IN_OPTIONS.format("deviceSplitCount")}
    max_unconfirmed: int = setting(
        64,
        "Shares that one namespace may hold for pods that were admitted and are not stored yet, beside a quarter of "
        "the cluster's GPUs; further pods get theirs once they are stored. 0: no bound.",
        minimum=0,
    )


@dataclass(frozen=True)
class ElectionSettings:
    """Which of several replicas decides."""

    REMOVED: ClassVar[Mapping[str, str]] = {
        "enabled": "replicas always elect a leader, because an upgrade runs two at a time",
        "namespace": f"the Lease is in {names.NAMESPACE}",
        "name": f"the Lease is {names.LEASE}",
        "renew": "it is two thirds of election.lease",
        "retry": "it is two fifteenths of election.lease",
    }
    identity: str = setting("", "This replica's name in the Lease, usually the pod's; empty takes the host's.")
    lease: float = setting(
        15.0,
        "How long after a leader's last renewal another replica may take over; pods wait meanwhile. A shorter lease "
        "takes over faster and costs more requests. A new installation waits as long for its first leader, and so does "
        "one whose Lease somebody deleted or edited.",
        unit="duration",
        minimum=1,
        maximum=300,
    )


@dataclass(frozen=True)
class Settings:
    """What `python -m allocator run` can be told of the core; `allocator.app` adds the features' settings."""

    REMOVED: ClassVar[Mapping[str, str]] = MOVED_TO_OPTIONS
    socket: Path = setting(Path("/run/gpufraction/socket/allocator.sock"), "Unix socket on which the webhook asks.")
    listen: str = setting("[::]:9402", "Address and port of /metrics, /healthz and /readyz; empty serves none.")
    metrics_access: Literal["token", "open"] = setting("token", ACCESS_SETTING)
    metrics_certificates: Path | None = setting(None, CERTIFICATES_SETTING)
    options: Path = setting(Path(), OPTIONS_SETTING)
    kubeconfig: str = setting("", "Path of a kubeconfig; empty takes the service account, or the user's own.")
    assume_ttl: float = setting(
        40.0,
        "The longest time that a share stays reserved for a pod that was admitted and has not appeared. It must be "
        "longer than a creation takes in the API server (34 s at most, other webhooks included): a pod that appears "
        "later has lost its share. Where pods appear sooner, the reservation lasts four times as long as the slowest "
        "recent pod took, and at least 5 s.",
        unit="duration",
        minimum=1,
    )
    starvation_timeout: float = setting(
        300.0,
        "How long a pod waits until a node is reserved for it, so that smaller pods do not starve it; 0 reserves none.",
        unit="duration",
        minimum=0,
        formerly="keep_after",
    )
    starvation_reservation_limit: float = setting(
        3600.0,
        "How long nodes are reserved for starving pods of one namespace while none of them is placed. Then the "
        "namespace gets no reservation for as long, the next time for twice as long, up to eight times. 0: no limit.",
        unit="duration",
        minimum=0,
        formerly="keep_for",
    )
    unbound: Literal["release", "keep", "delete"] = setting(
        "release",
        "What happens to a pod that holds a share and that kube-scheduler cannot bind. Its condition and an Event "
        "quote kube-scheduler in every case. release: the share goes back to other pods, and the pod can only run "
        "without a GPU. delete: the pod is also evicted then if a controller will create another, which needs the "
        "component allocator-eviction. keep: the share stays the pod's.",
    )
    unbound_after: float = setting(
        300.0,
        "How long kube-scheduler must have failed to bind it.",
        unit="duration",
        minimum=1,
        maximum=86400,
    )
    dra: bool = setting(
        False,
        "Look after the ResourceClaims by which GPUs reach containers on nodes with Dynamic Resource Allocation "
        "(Kubernetes 1.34 and later); needs the right of manifests/components/delivery-dra, which sets it.",
    )
    agent_silence: float = setting(
        PATIENCE,
        "How long a node's agent may be silent until the node takes no new pods; running pods stay. Should be longer "
        "than a node takes to pull the image of a new version, so that a roll-out closes no node. With agents whose "
        "`heartbeat` is longer, it is two and a quarter heartbeats. 0: a node takes pods by what its agent wrote last, "
        "however long ago.",
        unit="duration",
        minimum=0,
        maximum=86400,
    )
    unhealthy_lists: bool = setting(
        False,
        "Place no pods on the cards that Aliyun gpushare's ConfigMaps `unhealthy-gpu-NODE` of kube-system name; needs "
        "the right of manifests/components/unhealthy-lists, which sets it.",
        formerly="kept_out_lists",
    )
    repair_every: float = setting(
        300.0,
        "Time between two comparisons of the ledger with a fresh list of pods; 0 makes none.",
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
        "Whether a waiting pod may have pods of lower priority evicted that hold shares, the fewest that make room; it "
        "needs the component allocator-eviction.",
    )
    scheduler_feature_gates: tuple[str, ...] = setting(
        (),
        "Feature gates with which kube-scheduler was started, such as `NodeDeclaredFeatures=false`, where they are not "
        "the defaults of the API server's version: the allocator judges nodes as kube-scheduler does. Known: "
        f"{', '.join(sorted(SINCE))}.",
    )
    log_format: Literal["text", "json"] = setting("text", "Log lines for people or for machines.")
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "The least that is logged.")
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
