"""
The node agent's metrics: the node's GPUs, what containers have of them, what holds them to it, and MPS.

Labels name pods here, since what a container uses is known on its node alone; a series ends with its container. Must
not: tell what is booked on a GPU, which is the allocator's to tell.
"""

from __future__ import annotations

from contract.metrics.spec import MetricSpec

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
    "1 while the file of options cannot be read and the last good content stays in use, 0 otherwise.",
    "nodeagent",
    labels=("node",),
)

METRICS: tuple[MetricSpec, ...] = (
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
