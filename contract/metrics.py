"""
Every metric of the three programs, as data.

Dashboards, alerts and other people's queries depend on these names and labels, so they are contract: they
are declared here and nowhere else, and `runtime.metrics` makes collectors of them. Names follow
https://prometheus.io/docs/practices/naming/ (base units, `_total` for counters, which is written out).

Must not: hold values, or import a metrics library.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PREFIX = "gpufraction_"
Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric: its full name, what it is, its label names, and its help text.

    buckets: upper bounds of a histogram in the metric's unit, ascending; empty for the other kinds.
    program: which of the programs exposes it.
    """

    name: str
    kind: Kind
    help: str
    program: Literal["webhook", "allocator", "nodeagent"]
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.name.startswith(PREFIX):
            raise ValueError(f"metric {self.name!r}: expected a name that starts with {PREFIX}")
        if (self.kind == "counter") != self.name.endswith("_total"):
            raise ValueError(f"metric {self.name!r}: a counter, and nothing else, ends in _total")
        if (self.kind == "histogram") != bool(self.buckets) or list(self.buckets) != sorted(set(self.buckets)):
            raise ValueError(f"metric {self.name!r}: a histogram, and nothing else, has ascending buckets")


# An admission is asked to take under 20 ms and may take 3 s at most (the webhook's timeoutSeconds).
_ADMISSION_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 3.0)
# A decision is asked to take under 5 ms at 1,000 nodes.
_DECISION_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5)

ADMISSION_REQUESTS = MetricSpec(
    "gpufraction_admission_requests_total",
    "counter",
    "Admission reviews answered, by outcome (placed, gated, denied, hidden, untouched, malformed, error) and "
    "request dialect.",
    "webhook",
    labels=("outcome", "dialect"),
)
ADMISSION_SECONDS = MetricSpec(
    "gpufraction_admission_duration_seconds",
    "histogram",
    "Time from reading an admission review to its answer.",
    "webhook",
    labels=("outcome",),
    buckets=_ADMISSION_SECONDS,
)
QUESTIONS = MetricSpec(
    "gpufraction_allocator_questions_total",
    "counter",
    "Questions to the allocator, by its answer (placed, wait, never) or why there was none (unreachable, late, "
    "not-leading, refused, malformed).",
    "webhook",
    labels=("answer",),
)
CERTIFICATE_EXPIRY = MetricSpec(
    "gpufraction_certificate_expiry_timestamp_seconds",
    "gauge",
    "When the webhook's serving certificate ends, in seconds since 1970.",
    "webhook",
)
WEBHOOK_OPTIONS_REFUSED = MetricSpec(
    "gpufraction_webhook_options_refused",
    "gauge",
    "1 while the file of options cannot be read and what was read last goes on counting, 0 otherwise.",
    "webhook",
)
DECISIONS = MetricSpec(
    "gpufraction_decisions_total",
    "counter",
    "Placement decisions, by outcome (placed, waiting, impossible).",
    "allocator",
    labels=("outcome",),
)
DECISION_SECONDS = MetricSpec(
    "gpufraction_decision_duration_seconds",
    "histogram",
    "Time that one placement decision took.",
    "allocator",
    buckets=_DECISION_SECONDS,
)
COMMITS = MetricSpec(
    "gpufraction_commits_total",
    "counter",
    "Placements of waiting pods written, by what became of the write (done, not-done, unknown, fenced).",
    "allocator",
    labels=("outcome",),
)
LINE_SECONDS = MetricSpec(
    "gpufraction_line_pass_duration_seconds",
    "histogram",
    "Time that one pass down the line of waiting pods took to decide, its writes aside.",
    "allocator",
    buckets=_DECISION_SECONDS,
)
EVICTIONS = MetricSpec(
    "gpufraction_evictions_total",
    "counter",
    "Evictions asked for, by cause (unbound, repair, preemption) and outcome (evicted, gone, budget, failed).",
    "allocator",
    labels=("cause", "outcome"),
)
RESERVATIONS = MetricSpec(
    "gpufraction_reservations",
    "gauge",
    "Shares in the ledger, by state (assumed, confirmed).",
    "allocator",
    labels=("state",),
)
RESERVATIONS_FORGOTTEN = MetricSpec(
    "gpufraction_reservations_forgotten_total",
    "counter",
    "Reservations given back before their pod was seen, by reason (expired, conflict, refused, deleted, fenced).",
    "allocator",
    labels=("reason",),
)
WAITING_PODS = MetricSpec(
    "gpufraction_waiting_pods",
    "gauge",
    "Gated pods that wait for a share.",
    "allocator",
)
UNREADABLE_PODS = MetricSpec(
    "gpufraction_unreadable_pods",
    "gauge",
    "Pods behind our gate whose request annotation does not agree with their resources, so that nobody places them.",
    "allocator",
)
KEPT_NODES = MetricSpec(
    "gpufraction_kept_nodes",
    "gauge",
    "Nodes that are kept for one pod, which has waited past keep_after or for which others were evicted.",
    "allocator",
)
UNBOUND_PODS = MetricSpec(
    "gpufraction_unbound_pods",
    "gauge",
    "Pods that hold a share and that kube-scheduler has not been able to bind for longer than unbound_after.",
    "allocator",
)
OVERFULL_GPUS = MetricSpec(
    "gpufraction_overfull_gpus",
    "gauge",
    "GPUs on which the pods carry more than there is.",
    "allocator",
)
REPAIR_PASSES = MetricSpec(
    "gpufraction_repair_passes_total",
    "counter",
    "Comparisons of the ledger with a fresh list of pods, by outcome (clean, mended, failed).",
    "allocator",
    labels=("outcome",),
)
LEDGER_DRIFT = MetricSpec(
    "gpufraction_ledger_drift_total",
    "counter",
    "Pods that the ledger knew otherwise than the API server, found and mended by repair, by kind (gone: it still knew "
    "the pod; changed: it had missed the pod, or what became of it).",
    "allocator",
    labels=("kind",),
)
UNCOUNTED_PODS = MetricSpec(
    "gpufraction_uncounted_pods",
    "gauge",
    "Pods of served namespaces that ask for a share and have neither a share nor our gate, at the last repair pass.",
    "allocator",
)
LEADER = MetricSpec(
    "gpufraction_leader",
    "gauge",
    "1 while this replica decides, 0 otherwise.",
    "allocator",
)
WATCH_RESTARTS = MetricSpec(
    "gpufraction_watch_restarts_total",
    "counter",
    "Lists and watches that did not end in good order, by informer and reason.",
    "allocator",
    labels=("informer", "reason"),
)
GPU_MEMORY_ALLOCATED = MetricSpec(
    "gpufraction_gpu_memory_allocated_bytes",
    "gauge",
    "GPU memory held by shares.",
    "allocator",
    labels=("node", "gpu"),
)
GPU_CORES_ALLOCATED = MetricSpec(
    "gpufraction_gpu_cores_allocated_ratio",
    "gauge",
    "Part of a GPU's cores held by shares; 1 is the whole GPU.",
    "allocator",
    labels=("node", "gpu"),
)
GPU_SHARERS = MetricSpec(
    "gpufraction_gpu_sharers",
    "gauge",
    "Pods that hold a share of the GPU.",
    "allocator",
    labels=("node", "gpu"),
)
GPUS = MetricSpec(
    "gpufraction_gpus",
    "gauge",
    "GPUs of a node, by health (healthy, unhealthy).",
    "nodeagent",
    labels=("node", "health"),
)
GPU_MEMORY_TOTAL = MetricSpec(
    "gpufraction_gpu_memory_total_bytes",
    "gauge",
    "Memory of the GPU.",
    "nodeagent",
    labels=("node", "gpu", "model"),
)
GPU_MEMORY_USED = MetricSpec(
    "gpufraction_gpu_memory_used_bytes",
    "gauge",
    "Memory in use on the GPU, as the driver reports it.",
    "nodeagent",
    labels=("node", "gpu"),
)
GPU_MEMORY_PROMISED = MetricSpec(
    "gpufraction_gpu_memory_promised_bytes",
    "gauge",
    "What the GPU may promise to pods in all: its memory less the reserve, times its pool's oversubscription.",
    "nodeagent",
    labels=("node", "gpu"),
)
GPU_UTILIZATION = MetricSpec(
    "gpufraction_gpu_utilization_ratio",
    "gauge",
    "Part of the last sample period in which the GPU was busy.",
    "nodeagent",
    labels=("node", "gpu"),
)
SHARE_MEMORY_USED = MetricSpec(
    "gpufraction_share_memory_used_bytes",
    "gauge",
    "GPU memory that a container's processes have, on one of its GPUs.",
    "nodeagent",
    labels=("namespace", "pod", "container", "gpu"),
)
SHARE_MEMORY_LIMIT = MetricSpec(
    "gpufraction_share_memory_limit_bytes",
    "gauge",
    "GPU memory that a container's share gives it, on one of its GPUs.",
    "nodeagent",
    labels=("namespace", "pod", "container", "gpu"),
)
SHARE_CORES = MetricSpec(
    "gpufraction_share_cores_ratio",
    "gauge",
    "Part of a GPU's cores that a container's share reserves; 0 reserves none.",
    "nodeagent",
    labels=("namespace", "pod", "container", "gpu"),
)
SHARE_UTILIZATION = MetricSpec(
    "gpufraction_share_utilization_ratio",
    "gauge",
    "Part of a GPU's multiprocessors that a container's processes kept busy at the last look; absent where the driver "
    "does not tell it.",
    "nodeagent",
    labels=("namespace", "pod", "container", "gpu"),
)
SHARE_ENFORCED = MetricSpec(
    "gpufraction_share_enforced",
    "gauge",
    "1 with the strongest level that holds a container to its share of memory now (driver, mps, preload, watch; none).",
    "nodeagent",
    labels=("namespace", "pod", "container", "gpu", "level"),
)
SHARE_VIOLATIONS = MetricSpec(
    "gpufraction_share_violations",
    "gauge",
    "How often the container was warned for using more memory than its share, since the agent's start.",
    "nodeagent",
    labels=("namespace", "pod", "container", "gpu"),
)
GPU_MEMORY_UNCLAIMED = MetricSpec(
    "gpufraction_gpu_memory_unclaimed_bytes",
    "gauge",
    "GPU memory of processes that belong to no container with a share of the GPU.",
    "nodeagent",
    labels=("node", "gpu"),
)
GPU_XIDS = MetricSpec(
    "gpufraction_gpu_xids_total",
    "counter",
    "XIDs that the driver reported, the ignored ones too, since the agent's start.",
    "nodeagent",
    labels=("node", "gpu", "xid"),
)
NODE_ISOLATION = MetricSpec(
    "gpufraction_node_isolation",
    "gauge",
    "1 for each level of isolation that is enforced on the node (driver, mps, preload, watch), 0 for the others.",
    "nodeagent",
    labels=("node", "level"),
)
MPS_SERVING = MetricSpec(
    "gpufraction_mps_serving",
    "gauge",
    "1 where an MPS daemon serves the GPU and programs past it fail, 0 where one is to and does not.",
    "nodeagent",
    labels=("node", "gpu"),
)
MPS_CLIENTS = MetricSpec(
    "gpufraction_mps_clients",
    "gauge",
    "Processes that the GPU's MPS servers have as clients.",
    "nodeagent",
    labels=("node", "gpu"),
)
MPS_CLIENTS_LIMIT = MetricSpec(
    "gpufraction_mps_clients_limit",
    "gauge",
    "The most processes that MPS serves on the GPU at once; further ones fail.",
    "nodeagent",
    labels=("node", "gpu"),
)
MPS_STARTS = MetricSpec(
    "gpufraction_mps_daemon_starts",
    "gauge",
    "Starts of the GPU's MPS daemon by the supervisor that runs now; an adopted daemon counts as none.",
    "nodeagent",
    labels=("node", "gpu"),
)
AGENT_OPTIONS_REFUSED = MetricSpec(
    "gpufraction_agent_options_refused",
    "gauge",
    "1 while the file of options cannot be read and what was read last goes on counting, 0 otherwise.",
    "nodeagent",
    labels=("node",),
)

METRICS: tuple[MetricSpec, ...] = (
    ADMISSION_REQUESTS,
    ADMISSION_SECONDS,
    QUESTIONS,
    CERTIFICATE_EXPIRY,
    WEBHOOK_OPTIONS_REFUSED,
    DECISIONS,
    DECISION_SECONDS,
    COMMITS,
    LINE_SECONDS,
    EVICTIONS,
    RESERVATIONS,
    RESERVATIONS_FORGOTTEN,
    WAITING_PODS,
    UNREADABLE_PODS,
    KEPT_NODES,
    UNBOUND_PODS,
    OVERFULL_GPUS,
    REPAIR_PASSES,
    LEDGER_DRIFT,
    UNCOUNTED_PODS,
    LEADER,
    WATCH_RESTARTS,
    GPU_MEMORY_ALLOCATED,
    GPU_CORES_ALLOCATED,
    GPU_SHARERS,
    GPUS,
    GPU_MEMORY_TOTAL,
    GPU_MEMORY_USED,
    GPU_MEMORY_PROMISED,
    GPU_UTILIZATION,
    SHARE_MEMORY_USED,
    SHARE_MEMORY_LIMIT,
    SHARE_CORES,
    SHARE_UTILIZATION,
    SHARE_ENFORCED,
    SHARE_VIOLATIONS,
    GPU_MEMORY_UNCLAIMED,
    GPU_XIDS,
    NODE_ISOLATION,
    MPS_SERVING,
    MPS_CLIENTS,
    MPS_CLIENTS_LIMIT,
    MPS_STARTS,
    AGENT_OPTIONS_REFUSED,
)


def metrics_of(program: str) -> tuple[MetricSpec, ...]:
    """The metrics that one program exposes."""
    return tuple(spec for spec in METRICS if spec.program == program)
