"""
The allocator's metrics: decisions, what became of their writes, the line, the ledger, and what repair found.

What is booked is told here, what cards have and use is the agent's to tell. Must not: name a pod in a label; they come
and go by the thousand, and each would be a series.
"""

from __future__ import annotations

from contract.metrics.spec import MetricSpec

# A decision is asked to take under 5 ms at 1,000 nodes.
_DECISION_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5)

DECISIONS = MetricSpec(
    "gpufraction_decisions_total",
    "counter",
    "Decisions at admission, by outcome (placed, waiting, impossible); what is placed from the line is a commit.",
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
    "Reservations given back before their pod was seen, by reason (expired, changed, replaced, denied, conflict, "
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
    "Pods behind our gate whose request annotation does not agree with their resources, so that nobody places them.",
    "allocator",
)
QUARANTINED_PODS = MetricSpec(
    "gpufraction_quarantined_pods",
    "gauge",
    "Pods that are left alone since an error of gpufraction came of them, until they change or for 10 min; each is "
    "told the id under which the log has the error.",
    "allocator",
)
FAULTS = MetricSpec(
    "gpufraction_faults_total",
    "counter",
    "Errors of gpufraction that stayed with one pod, node or claim, by place. Each is one line of the log, with an id "
    "and a traceback; any of them is a bug to be reported.",
    "allocator",
    labels=("place",),
)
WORKER_RESTARTS = MetricSpec(
    "gpufraction_worker_restarts_total",
    "counter",
    "Failures of a worker thread or of a step of one, which was then started again, by worker. One that goes on "
    "failing for a minute is told under /healthz.",
    "allocator",
    labels=("worker",),
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
LATE_PODS = MetricSpec(
    "gpufraction_late_pods_total",
    "counter",
    "Pods that were stored when their share had been given away, and were failed before they used it.",
    "allocator",
)
CLAIMS = MetricSpec(
    "gpufraction_claims",
    "gauge",
    "ElasticGPUClaims, by phase (Pending, Bound, Lost) and the reason that their status tells.",
    "allocator",
    labels=("phase", "reason"),
)
ELASTIC_GPUS = MetricSpec(
    "gpufraction_elasticgpus",
    "gauge",
    "ElasticGPUs, which hold the shares of claims, by phase; those that are Released until somebody deletes them.",
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

METRICS: tuple[MetricSpec, ...] = (
    DECISIONS,
    DECISION_SECONDS,
    COMMITS,
    LINE_SECONDS,
    EVICTIONS,
    RESERVATIONS,
    RESERVATIONS_FORGOTTEN,
    WAITING_PODS,
    UNREADABLE_PODS,
    QUARANTINED_PODS,
    FAULTS,
    WORKER_RESTARTS,
    KEPT_NODES,
    UNBOUND_PODS,
    OVERFULL_GPUS,
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
