"""
The allocator's metrics: decisions, bindings, the queue, the ledger, and what repair found.

These metrics show what is booked; the agent's show what cards have and use. Must not: name a pod in a label, since pods
come and go by the thousand and each would be a series.
"""

from __future__ import annotations

from contract.metrics.spec import Program

PROGRAM = Program("allocator")

# The goal for a decision is under 5 ms at 1,000 nodes.
_DECISION_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5)

DECISIONS = PROGRAM.counter(
    "gpufraction_decisions_total",
    "Decisions at admission, by outcome (placed, waiting, impossible). Placements from the queue count as bindings.",
    labels=("outcome",),
)
DECISION_SECONDS = PROGRAM.histogram(
    "gpufraction_decision_duration_seconds",
    "Duration of one decision at admission.",
    buckets=_DECISION_SECONDS,
)
BINDINGS = PROGRAM.counter(
    "gpufraction_bindings_total",
    "Placements of waiting pods, by the outcome of the write (succeeded, failed, unknown, fenced).",
    labels=("outcome",),
)
SCHEDULING_CYCLE_SECONDS = PROGRAM.histogram(
    "gpufraction_scheduling_cycle_duration_seconds",
    "Duration of the decisions of one scheduling cycle over the queue, without its writes.",
    buckets=_DECISION_SECONDS,
)
EVICTIONS = PROGRAM.counter(
    "gpufraction_evictions_total",
    "Evictions requested, by cause (unbound, repair, preemption, idle, defragmentation, overuse, unhealthy) and "
    "outcome (evicted, gone, budget, failed).",
    labels=("cause", "outcome"),
)
CANARIES = PROGRAM.counter(
    "gpufraction_canaries_total",
    "Canaries that have ended, by outcome: held and exceeded are verdicts; no-verdict, too-long and gave-way are not.",
    labels=("outcome",),
)
GANGS = PROGRAM.gauge(
    "gpufraction_gangs",
    "Gangs of pods that start together, by state: waiting, or begun (a pod of the gang has its share).",
    labels=("state",),
)
STARTING_PODS = PROGRAM.gauge(
    "gpufraction_starting_pods",
    "Pods that start alone on their GPU and are not ready, by state: starting, while they close the GPU to other such "
    "pods, or overdue, when that has lasted longer than `starts.within`.",
    labels=("state",),
)
IDLE_PODS = PROGRAM.gauge(
    "gpufraction_idle_pods",
    "Pods whose share is idle, as far as agents know, by whether they or their namespaces consented to eviction (yes, "
    "no), however long they have been idle. Namespaces are read only if `idle.evict` is on.",
    labels=("agreed",),
)
IDLE_WARNINGS = PROGRAM.counter(
    "gpufraction_idle_warnings_total",
    "Warnings to idle pods that consented to eviction, by outcome (warned, gone, budget, failed).",
    labels=("outcome",),
)
RESERVATIONS = PROGRAM.gauge(
    "gpufraction_reservations",
    "Shares in the ledger, by state (assumed, confirmed).",
    labels=("state",),
)
RESERVATIONS_FORGOTTEN = PROGRAM.counter(
    "gpufraction_reservations_forgotten_total",
    "Reservations released before their pod was seen, by reason (expired, changed, replaced, denied, conflict, "
    "refused, deleted, failed, fenced).",
    labels=("reason",),
)
ALLOCATOR_OPTIONS_REFUSED = PROGRAM.gauge(
    "gpufraction_allocator_options_refused",
    "1 while the file of options cannot be read and the last good content stays in use, 0 otherwise.",
)
NODES_WANTED = PROGRAM.gauge(
    "gpufraction_nodes_wanted",
    "Nodes of a pool that pods wait for: requested, or joined and not ready yet. Reported by the leader.",
    labels=("pool",),
)
SPARE_NODES = PROGRAM.gauge(
    "gpufraction_spare_nodes",
    "Spare nodes of a pool that an autoscaler is requested to keep; 0 while the cluster serves no CapacityBuffers.",
    labels=("pool",),
)
NODES_REQUESTED = PROGRAM.counter(
    "gpufraction_nodes_requested_total",
    "Nodes of a pool that were requested.",
    labels=("pool",),
)
NODE_REQUESTS_ENDED = PROGRAM.counter(
    "gpufraction_node_requests_ended_total",
    "Nodes of a pool whose request ended, by outcome (brought, without-gpus, too-late, refused, withdrawn).",
    labels=("pool", "outcome"),
)
POOL_BLOCKED = PROGRAM.gauge(
    "gpufraction_pool_blocked",
    "1 while a pod waits that a node of the pool could serve, but no node is requested; 0 otherwise. By reason: "
    "not-asked, paused, full, idle-node. The reason unknown is 1 while the pool's declaration is incomplete, even if "
    "no pod waits. Reported by the leader only.",
    labels=("pool", "reason"),
)
POOL_FAILURES = PROGRAM.gauge(
    "gpufraction_pool_failures",
    "Consecutive requests for nodes of a pool that brought no node. A new leader counts from 0.",
    labels=("pool",),
)
WAITING_PODS = PROGRAM.gauge(
    "gpufraction_waiting_pods",
    "Gated pods that wait for a share.",
)
TIME_TO_SHARE = PROGRAM.histogram(
    "gpufraction_time_to_share_seconds",
    "Time until a pod had its share, from its creation or from the removal of other systems' gates; 0 for a pod that "
    "was placed at admission. By namespace, for the first 100 of them, and by priority: low (below 0), normal (0), "
    "high, system (Kubernetes' own classes). Reported by the replica that led; sum over the replicas.",
    labels=("namespace", "priority"),
    buckets=(1.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 24 * 3600.0),
)
SHARES_DUE = PROGRAM.counter(
    "gpufraction_shares_due_total",
    "Pods that got their share within service_levels.start_within (in-time), and pods that did not (late), whether "
    "they got one later or not. Each pod counts once.",
    labels=("verdict",),
)
START_ESTIMATES = PROGRAM.counter(
    "gpufraction_start_estimates_total",
    "Pods that got a share after an estimate of their start was shown, by how the first estimate turned out: by-then, "
    "sooner (before half of that time had passed), later.",
    labels=("outcome",),
)
PARKED_PODS = PROGRAM.gauge(
    "gpufraction_parked_pods",
    "Waiting pods of which only the name is kept, since their namespace's memory budget (queue.memory) is used up. "
    "They are read again when their turn comes.",
)
UNREADABLE_PODS = PROGRAM.gauge(
    "gpufraction_unreadable_pods",
    "Pods behind gpufraction's gate whose request annotation contradicts their resources, so they are never placed.",
)
UNREAD_SHARES = PROGRAM.gauge(
    "gpufraction_unread_shares",
    "Pods and ElasticGPUs whose share cannot be read, such as one that a later version wrote. Their GPUs accept no "
    "other pods.",
)
QUARANTINED_PODS = PROGRAM.gauge(
    "gpufraction_quarantined_pods",
    "Pods that are not tried after an internal error of gpufraction, until they change or for 10 min. Each pod's "
    "condition has the id of the error in the log.",
)
FAULTS = PROGRAM.counter(
    "gpufraction_faults_total",
    "Internal errors of gpufraction that affected one pod, node or claim, by place. The log has each of them with an "
    "id and a traceback; each is a bug to report.",
    labels=("place",),
)
WORKER_RESTARTS = PROGRAM.counter(
    "gpufraction_worker_restarts_total",
    "Failures of a worker thread or of one of its steps, which was then restarted, by worker. /healthz fails for a "
    "worker that keeps failing for a minute.",
    labels=("worker",),
)
RESERVED_NODES = PROGRAM.gauge(
    "gpufraction_reserved_nodes",
    "Nodes reserved for one pod that has waited longer than starvation_timeout or for which others were evicted.",
)
UNBOUND_PODS = PROGRAM.gauge(
    "gpufraction_unbound_pods",
    "Pods that hold a share and that kube-scheduler has not been able to bind for longer than unbound_after.",
)
NOT_EVALUATED_PODS = PROGRAM.gauge(
    "gpufraction_pods_not_evaluated",
    "Pods that hold a share and are subject to rules that gpufraction does not evaluate, by kind: scheduler (another "
    "schedulerName), claims (devices of ResourceClaims of other drivers), and unknown: kube-scheduler does not bind "
    "the pod, and neither of these explains it, such as with an extender.",
    labels=("what",),
)
OVERCOMMITTED_GPUS = PROGRAM.gauge(
    "gpufraction_overcommitted_gpus",
    "GPUs whose pods hold more than the GPU has.",
)
AGENT_SILENT = PROGRAM.gauge(
    "gpufraction_agent_silent",
    "1 for each node that accepts no new pods because its agent has not reported for longer than agent_silence, as "
    "the leader sees it; no series for any other node.",
    labels=("node",),
)
LATE_PODS = PROGRAM.counter(
    "gpufraction_late_pods_total",
    "Pods that were stored after their share had been given to another pod, and were marked as failed before they "
    "could use it.",
)
CLAIMS = PROGRAM.gauge(
    "gpufraction_claims",
    "ElasticGPUClaims, by phase (Pending, Bound, Lost) and the reason in their status.",
    labels=("phase", "reason"),
)
ELASTIC_GPUS = PROGRAM.gauge(
    "gpufraction_elasticgpus",
    "ElasticGPUs, which hold the shares of claims, by phase. Released ones stay until somebody deletes them.",
    labels=("phase",),
)
REPAIR_PASSES = PROGRAM.counter(
    "gpufraction_repair_passes_total",
    "Comparisons of the ledger with a fresh list of pods, by outcome (`clean`, `mended`, `failed`).",
    labels=("outcome",),
)
LEDGER_DRIFT = PROGRAM.counter(
    "gpufraction_ledger_drift_total",
    "Pods for which ledger and API server differed and that repair corrected, by kind (gone: the ledger still had the "
    "pod; changed: the ledger had missed the pod or a change of it).",
    labels=("kind",),
)
UNCOUNTED_PODS = PROGRAM.gauge(
    "gpufraction_uncounted_pods",
    "Pods of served namespaces that request a share and have neither a share nor our gate, at the last repair pass.",
)
LEADER = PROGRAM.gauge(
    "gpufraction_leader",
    "1 while this replica decides, 0 otherwise.",
)
WATCH_RESTARTS = PROGRAM.counter(
    "gpufraction_watch_restarts_total",
    "Lists and watches that ended with an error, by informer and reason.",
    labels=("informer", "reason"),
)
GPU_MEMORY_ALLOCATED = PROGRAM.gauge(
    "gpufraction_gpu_memory_allocated_bytes",
    "GPU memory held by shares.",
    labels=("node", "gpu"),
)
GPU_MEMORY_LIMITS = PROGRAM.gauge(
    "gpufraction_gpu_memory_limits_bytes",
    "Sum of the memory limits of a GPU's pods; equal to the allocated memory if no pod has a limit above its request.",
    labels=("node", "gpu"),
)
GPU_CORES_ALLOCATED = PROGRAM.gauge(
    "gpufraction_gpu_cores_allocated_ratio",
    "Fraction of a GPU's cores held by shares; 1 is the whole GPU.",
    labels=("node", "gpu"),
)
GPU_SHARERS = PROGRAM.gauge(
    "gpufraction_gpu_sharers",
    "Pods that hold a share of the GPU.",
    labels=("node", "gpu"),
)
SHARE_HELD_SECONDS = PROGRAM.counter(
    "gpufraction_share_held_seconds_total",
    "Seconds times the fraction of a GPU that shares held: the larger of its memory fraction and its cores fraction. "
    "Reported by the replica that led; sum over the replicas. Held and free seconds together are the GPUs' time.",
    labels=("namespace", "model", "dialect"),
)
SHARE_IDLE_SECONDS = PROGRAM.counter(
    "gpufraction_share_idle_seconds_total",
    "The part of gpufraction_share_held_seconds_total that was held while the share was idle, where that is known.",
    labels=("namespace", "model", "dialect"),
)
GPU_FREE_SECONDS = PROGRAM.counter(
    "gpufraction_gpu_free_seconds_total",
    "Seconds times the fraction of a GPU that no share held, by whether the GPU accepted new pods (open) or not "
    "(closed: unhealthy, cordoned or not shared). Reported by the replica that led.",
    labels=("model", "state"),
)
KUEUE_ANSWERS = PROGRAM.counter(
    "gpufraction_kueue_answers_total",
    "Answers to Kueue's check gpufraction.io/fits that were written, by state (Ready, Retry, Rejected).",
    labels=("state",),
)
