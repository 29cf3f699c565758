"""
The allocator's metrics: decisions, bindings, the queue, the ledger, and what repair found.

These metrics show what is booked; the agent's show what cards have and use. Must not: name a pod in a label, since pods
come and go by the thousand and each would be a series.
"""

from __future__ import annotations

from contract.metrics.spec import MetricSpec

# A decision is asked to take under 5 ms at 1,000 nodes.
_DECISION_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5)

DECISIONS = MetricSpec(
    "gpufraction_decisions_total",
    "counter",
    "Decisions at admission, by outcome (placed, waiting, impossible). Placements from the queue count as bindings.",
    "allocator",
    labels=("outcome",),
)
DECISION_SECONDS = MetricSpec(
    "gpufraction_decision_duration_seconds",
    "histogram",
    "Time that one decision at admission took.",
    "allocator",
    buckets=_DECISION_SECONDS,
)
BINDINGS = MetricSpec(
    "gpufraction_bindings_total",
    "counter",
    "Placements of waiting pods, by the outcome of the write (succeeded, failed, unknown, fenced).",
    "allocator",
    labels=("outcome",),
)
SCHEDULING_CYCLE_SECONDS = MetricSpec(
    "gpufraction_scheduling_cycle_duration_seconds",
    "histogram",
    "Time of the decisions of one scheduling cycle over the queue, without its writes.",
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
    "Reservations released before their pod was seen, by reason (expired, changed, replaced, denied, conflict, "
    "refused, deleted, failed, fenced).",
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
    "Pods behind our gate whose request annotation does not agree with their resources, so they are never placed.",
    "allocator",
)
QUARANTINED_PODS = MetricSpec(
    "gpufraction_quarantined_pods",
    "gauge",
    "Pods that are not tried after an internal error of gpufraction, until they change or for 10 min. Each pod's "
    "condition has the id under which the log has the error.",
    "allocator",
)
FAULTS = MetricSpec(
    "gpufraction_faults_total",
    "counter",
    "Internal errors of gpufraction that affected one pod, node or claim, by place. The log has each with an id and a "
    "traceback; any of them is a bug to report.",
    "allocator",
    labels=("place",),
)
WORKER_RESTARTS = MetricSpec(
    "gpufraction_worker_restarts_total",
    "counter",
    "Failures of a worker thread or of one of its steps, which was then restarted, by worker. /healthz fails for a "
    "worker that keeps failing for a minute.",
    "allocator",
    labels=("worker",),
)
RESERVED_NODES = MetricSpec(
    "gpufraction_reserved_nodes",
    "gauge",
    "Nodes reserved for one pod, which has waited longer than starvation_timeout or for which others were evicted.",
    "allocator",
)
UNBOUND_PODS = MetricSpec(
    "gpufraction_unbound_pods",
    "gauge",
    "Pods that hold a share and that kube-scheduler has not been able to bind for longer than unbound_after.",
    "allocator",
)
OVERCOMMITTED_GPUS = MetricSpec(
    "gpufraction_overcommitted_gpus",
    "gauge",
    "GPUs whose pods hold more than the GPU has.",
    "allocator",
)
LATE_PODS = MetricSpec(
    "gpufraction_late_pods_total",
    "counter",
    "Pods that were stored after their share had been given to another pod, and were failed before they used it.",
    "allocator",
)
CLAIMS = MetricSpec(
    "gpufraction_claims",
    "gauge",
    "ElasticGPUClaims, by phase (Pending, Bound, Lost) and the reason in their status.",
    "allocator",
    labels=("phase", "reason"),
)
ELASTIC_GPUS = MetricSpec(
    "gpufraction_elasticgpus",
    "gauge",
    "ElasticGPUs, which hold the shares of claims, by phase. Released ones stay until somebody deletes them.",
    "allocator",
    labels=("phase",),
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
    "Pods on which ledger and API server differed, found and corrected by repair, by kind (gone: the ledger still had "
    "the pod; changed: the ledger had missed the pod or a change of it).",
    "allocator",
    labels=("kind",),
)
UNCOUNTED_PODS = MetricSpec(
    "gpufraction_uncounted_pods",
    "gauge",
    "Pods of served namespaces that request a share and have neither a share nor our gate, at the last repair pass.",
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
    "Lists and watches that ended with an error, by informer and reason.",
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

METRICS: tuple[MetricSpec, ...] = (
    DECISIONS,
    DECISION_SECONDS,
    BINDINGS,
    SCHEDULING_CYCLE_SECONDS,
    EVICTIONS,
    RESERVATIONS,
    RESERVATIONS_FORGOTTEN,
    WAITING_PODS,
    UNREADABLE_PODS,
    QUARANTINED_PODS,
    FAULTS,
    WORKER_RESTARTS,
    RESERVED_NODES,
    UNBOUND_PODS,
    OVERCOMMITTED_GPUS,
    LATE_PODS,
    CLAIMS,
    ELASTIC_GPUS,
    REPAIR_PASSES,
    LEDGER_DRIFT,
    UNCOUNTED_PODS,
    LEADER,
    WATCH_RESTARTS,
    GPU_MEMORY_ALLOCATED,
    GPU_CORES_ALLOCATED,
    GPU_SHARERS,
)
