"""
The node agent's metrics: the node's GPUs, what containers have of them, what limits them to it, and MPS.

Labels name pods here, since what a container uses is known on its node alone; a series ends with its container. Must
not: report what is booked on a GPU, which only the allocator does.
"""

from __future__ import annotations

from contract.isolation import ISOLATION, NO_LEVEL
from contract.metrics.spec import Program

PROGRAM = Program("nodeagent")

GPUS = PROGRAM.gauge(
    "gpufraction_gpus",
    "GPUs of a node, by health (healthy, unhealthy).",
    labels=("node", "health"),
)
GPU_MEMORY_TOTAL = PROGRAM.gauge(
    "gpufraction_gpu_memory_total_bytes",
    "Memory of the GPU.",
    labels=("node", "gpu", "model"),
)
GPU_MEMORY_USED = PROGRAM.gauge(
    "gpufraction_gpu_memory_used_bytes",
    "Memory in use on the GPU, as the driver reports it.",
    labels=("node", "gpu"),
)
GPU_MEMORY_PROMISED = PROGRAM.gauge(
    "gpufraction_gpu_memory_promised_bytes",
    "Memory that the GPU may promise to pods in total: its memory less the reserve, times its pool's oversubscription.",
    labels=("node", "gpu"),
)
GPU_UTILIZATION = PROGRAM.gauge(
    "gpufraction_gpu_utilization_ratio",
    "Fraction of the last sample period in which the GPU was busy.",
    labels=("node", "gpu"),
)
SHARE_MEMORY_USED = PROGRAM.gauge(
    "gpufraction_share_memory_used_bytes",
    "GPU memory that a container's processes use, on one of its GPUs.",
    labels=("namespace", "pod", "container", "gpu"),
)
SHARE_MEMORY_LIMIT = PROGRAM.gauge(
    "gpufraction_share_memory_limit_bytes",
    "GPU memory that a container may use, on one of its GPUs: its memory limit if that is above its request.",
    labels=("namespace", "pod", "container", "gpu"),
)
SHARE_MEMORY_REQUEST = PROGRAM.gauge(
    "gpufraction_share_memory_request_bytes",
    "GPU memory that is booked for a container, on one of its GPUs.",
    labels=("namespace", "pod", "container", "gpu"),
)
SHARE_CORES = PROGRAM.gauge(
    "gpufraction_share_cores_ratio",
    "Fraction of a GPU's cores that a container's share reserves; 0 reserves none.",
    labels=("namespace", "pod", "container", "gpu"),
)
SHARE_UTILIZATION = PROGRAM.gauge(
    "gpufraction_share_utilization_ratio",
    "Fraction of a GPU's multiprocessors that a container's processes kept busy at the last sample; absent if the "
    "driver does not report it.",
    labels=("namespace", "pod", "container", "gpu"),
)
SHARE_IDLE_SINCE = PROGRAM.gauge(
    "gpufraction_share_idle_since_timestamp_seconds",
    "Time since which none of the pod's containers has used its GPUs; absent while one does, in the first minute, and "
    "while it is unknown.",
    labels=("namespace", "pod"),
)
SHARE_ENFORCED = PROGRAM.gauge(
    "gpufraction_share_enforced",
    "1 for the strongest level that holds a container to its share of memory now "
    f"({', '.join(ISOLATION)}; {NO_LEVEL}).",
    labels=("namespace", "pod", "container", "gpu", "level"),
)
SHARE_VIOLATIONS = PROGRAM.gauge(
    "gpufraction_share_violations",
    "Warnings to the container for using more memory than its share, since the agent's start.",
    labels=("namespace", "pod", "container", "gpu"),
)
GPU_MEMORY_UNCLAIMED = PROGRAM.gauge(
    "gpufraction_gpu_memory_unclaimed_bytes",
    "GPU memory of processes that belong to no container with a share of the GPU.",
    labels=("node", "gpu"),
)
ISOLATION_PROOF = PROGRAM.gauge(
    "gpufraction_isolation_proof",
    "1 for the state of the proof of the limiting levels, with the component canary: held, due (held, and to be "
    "renewed), missing or failed. With missing and failed, no such level is published.",
    labels=("node", "state"),
)
GPU_XIDS = PROGRAM.counter(
    "gpufraction_gpu_xids_total",
    "XIDs that the driver reported, including ignored ones, since the agent's start.",
    labels=("node", "gpu", "xid"),
)
NODE_ISOLATION = PROGRAM.gauge(
    "gpufraction_node_isolation",
    f"1 for each level of isolation that is enforced on the node ({', '.join(ISOLATION)}), 0 for the others.",
    labels=("node", "level"),
)
MPS_SERVING = PROGRAM.gauge(
    "gpufraction_mps_serving",
    "1 if an MPS daemon serves the GPU and programs that bypass it fail, 0 if one should serve it and does not.",
    labels=("node", "gpu"),
)
MPS_CLIENTS = PROGRAM.gauge(
    "gpufraction_mps_clients",
    "Processes that are clients of the GPU's MPS servers.",
    labels=("node", "gpu"),
)
MPS_CLIENTS_LIMIT = PROGRAM.gauge(
    "gpufraction_mps_clients_limit",
    "Maximum number of processes that MPS serves on the GPU at once; further ones fail.",
    labels=("node", "gpu"),
)
MPS_STARTS = PROGRAM.gauge(
    "gpufraction_mps_daemon_starts",
    "Starts of the GPU's MPS daemon by the running supervisor; an adopted daemon does not count.",
    labels=("node", "gpu"),
)
AGENT_OPTIONS_REFUSED = PROGRAM.gauge(
    "gpufraction_agent_options_refused",
    "1 while the file of options cannot be read and the last good content stays in use, 0 otherwise.",
    labels=("node",),
)
