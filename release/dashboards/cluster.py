"""The dashboard of the whole cluster: its GPUs, what shares hold, the waiting pods, and the requested nodes."""

from __future__ import annotations

from contract.metrics import allocator, nodeagent, webhook
from release.dashboards.model import RED, YELLOW, Dashboard, Panel, PanelRow, Query
from release.dashboards.promql import hours, increase, over, quantile, rate, series

_TOTAL = over("sum", nodeagent.GPU_MEMORY_TOTAL)
_PROMISED = over("sum", nodeagent.GPU_MEMORY_PROMISED)
_ALLOCATED = over("sum", allocator.GPU_MEMORY_ALLOCATED)
_FREE = (
    f"{over('max', nodeagent.GPU_MEMORY_PROMISED, 'node', 'gpu')} - on (cluster, node, gpu) "
    f"{over('max', allocator.GPU_MEMORY_ALLOCATED, 'node', 'gpu')}"
)

_NOW = PanelRow(
    "Now",
    (
        Panel(
            "GPUs",
            "GPUs that node agents report. If the number falls, look for stopped agents on the node dashboard.",
            "short",
            (Query(over("sum", nodeagent.GPUS)),),
            kind="stat",
            width=4,
            height=4,
        ),
        Panel(
            "Unhealthy GPUs",
            "GPUs that accept no new pods. If this is not 0, `kubectl get gpunode NODE -o yaml` says which and why.",
            "short",
            (Query(over("sum", nodeagent.GPUS, where='health="unhealthy"')),),
            kind="stat",
            width=4,
            height=4,
            thresholds=((1, RED),),
        ),
        Panel(
            "Memory allocated",
            "The fraction of the offered memory that shares hold. Above 0.9, large shares wait: add nodes, or look in "
            "the namespace dashboard for shares that hold more than they use.",
            "percentunit",
            (Query(f"{_ALLOCATED} / {_PROMISED}"),),
            kind="stat",
            width=4,
            height=4,
            thresholds=((0.9, YELLOW), (1, RED)),
            most=1,
        ),
        Panel(
            "Cores allocated",
            "The mean fraction of a GPU's cores that shares reserve. Near 1, shares that reserve cores wait and "
            "shares without cores are slow: add nodes.",
            "percentunit",
            (Query(over("avg", allocator.GPU_CORES_ALLOCATED)),),
            kind="stat",
            width=4,
            height=4,
            thresholds=((0.9, YELLOW),),
            most=1,
        ),
        Panel(
            "Waiting pods",
            "Pods behind the gate. If this stays above 0, `kubectl gpufraction waiting` prints the reason of each.",
            "short",
            (Query(over("max", allocator.WAITING_PODS)),),
            kind="stat",
            width=4,
            height=4,
            thresholds=((1, YELLOW),),
        ),
        Panel(
            "Sharers per used GPU",
            "Mean number of pods on GPUs that have at least one. Near 1, GPUs are not shared: request less per pod, "
            "or check whether cores or exclusive requests keep other pods away.",
            "short",
            (Query(f"avg by (cluster) ({series(allocator.GPU_SHARERS)} > 0)"),),
            kind="stat",
            width=4,
            height=4,
        ),
    ),
)

_ROOM = PanelRow(
    "Room",
    (
        Panel(
            "GPU memory of the cluster",
            "Total, offered, allocated and used memory. If used is far below allocated, shares are too large: see the "
            "namespace dashboard. If allocated is near offered, add nodes.",
            "bytes",
            (
                Query(_TOTAL, "there is"),
                Query(_PROMISED, "offered"),
                Query(_ALLOCATED, "allocated"),
                Query(over("sum", nodeagent.GPU_MEMORY_USED), "used"),
            ),
        ),
        Panel(
            "Free pieces",
            "The largest free memory on one GPU, and the median. If the largest is below what pods request, they wait "
            "although the sum would be enough: wait until a pod ends, or evict one of lower priority.",
            "bytes",
            (Query(f"max by (cluster) ({_FREE})", "largest"), Query(f"quantile by (cluster) (0.5, {_FREE})", "median")),
        ),
        Panel(
            "GPUs by number of sharers",
            "Number of GPUs with no pod, one pod, or several. If many have one pod while pods wait, the shares do not "
            "fit together: check their sizes in the namespace dashboard.",
            "short",
            (
                Query(f"count by (cluster) ({series(allocator.GPU_SHARERS)} == 0)", "no pod"),
                Query(f"count by (cluster) ({series(allocator.GPU_SHARERS)} == 1)", "one pod"),
                Query(f"count by (cluster) ({series(allocator.GPU_SHARERS)} > 1)", "several pods"),
            ),
            stacked=True,
        ),
        Panel(
            "Use of cores",
            "How busy GPUs are, and the fraction of their cores that shares reserve. If busy is above reserved, "
            "shares without cores use the rest. If it is far below, core reservations can be smaller.",
            "percentunit",
            (
                Query(over("avg", nodeagent.GPU_UTILIZATION), "busy"),
                Query(over("avg", allocator.GPU_CORES_ALLOCATED), "reserved"),
            ),
            most=1,
        ),
        Panel(
            "Fullest nodes",
            "Memory that shares hold, by node. If one node is full and others are empty, check whether node selectors "
            "or taints keep the pods there: `kubectl gpufraction explain POD`.",
            "bytes",
            (Query(f"topk(20, {over('sum', allocator.GPU_MEMORY_ALLOCATED, 'node')})", "{{node}}"),),
            kind="bargauge",
        ),
        Panel(
            "Isolation by level",
            "Nodes on which each level is enforced. If preload or mps falls, read the log of that component on the "
            "nodes that lack it.",
            "short",
            (Query(over("sum", nodeagent.NODE_ISOLATION, "level"), "{{level}}"),),
        ),
        Panel(
            "Gangs, starts and deprecated names",
            "Waiting gangs, and gangs that have begun; pods that start alone and are not ready; pods with names that "
            "a later release does not read. If a gang stays begun for minutes, read the leader's log. Before you "
            "upgrade, read docs/deprecations.md.",
            "short",
            (
                Query(over("sum", allocator.GANGS, "state"), "gangs: {{state}}"),
                Query(over("sum", allocator.STARTING_PODS, "state"), "start alone: {{state}}"),
                Query(increase(webhook.DEPRECATED_NAMES, "name"), "deprecated: {{name}}"),
            ),
        ),
        Panel(
            "Canaries and proofs",
            "With the component canary: the results of canaries, and nodes by the state of their proof. If exceeded "
            "or failed is above 0, see the runbook of GpufractionIsolationNotHeld.",
            "short",
            (
                Query(increase(allocator.CANARIES, "outcome"), "canaries: {{outcome}}"),
                Query(over("sum", nodeagent.ISOLATION_PROOF, "state"), "nodes: {{state}}"),
            ),
        ),
    ),
)

_HOURS = PanelRow(
    "Card hours",
    (
        Panel(
            "Cards held and free",
            "All shares as a number of whole GPUs, each by the larger of its memory and its cores; the idle part of "
            "them; and what no share held. If much is idle, see the namespace dashboard for its owners. If little is "
            "free and pods wait, add nodes.",
            "short",
            (
                Query(rate(allocator.SHARE_HELD_SECONDS), "held"),
                Query(rate(allocator.SHARE_IDLE_SECONDS), "held and idle"),
                Query(rate(allocator.GPU_FREE_SECONDS, where='state="open"'), "free"),
                Query(rate(allocator.GPU_FREE_SECONDS, where='state="closed"'), "free, and closed to new pods"),
            ),
        ),
        Panel(
            "GPU hours in the time range, by namespace",
            "GPU hours that each team held. If one team holds most of them, give it a quota. The page on tenants "
            "explains how to bill them.",
            "h",
            (Query(f"topk(20, {hours(allocator.SHARE_HELD_SECONDS, 'namespace')})", "{{namespace}}"),),
            kind="bargauge",
        ),
        Panel(
            "Free GPU hours in the time range, by model",
            "If one model is mostly free while pods wait for another, check whether they really need the other one.",
            "h",
            (Query(hours(allocator.GPU_FREE_SECONDS, "model"), "{{model}}"),),
            kind="bargauge",
            height=6,
        ),
        Panel(
            "GPU hours in the time range, by dialect",
            "The dialects of the pods that hold GPUs. If one stays at 0, nobody needs its names any more.",
            "h",
            (Query(hours(allocator.SHARE_HELD_SECONDS, "dialect"), "{{dialect}}"),),
            kind="bargauge",
            height=6,
        ),
    ),
)

_PODS = PanelRow(
    "Pods and their placement",
    (
        Panel(
            "Pods in the queue",
            "Waiting pods, parked pods, nodes reserved for one of them, and pods that hold a share but are not bound, "
            "or are subject to rules that gpufraction does not evaluate. If pods stay unbound, kube-scheduler refuses "
            "them: `kubectl describe pod` says why.",
            "short",
            (
                Query(over("max", allocator.WAITING_PODS), "waiting"),
                Query(over("max", allocator.PARKED_PODS), "parked"),
                Query(over("max", allocator.RESERVED_NODES), "nodes reserved"),
                Query(over("max", allocator.UNBOUND_PODS), "placed, not bound"),
                Query(over("max", allocator.NOT_EVALUATED_PODS, "what"), "not evaluated: {{what}}"),
            ),
        ),
        Panel(
            "Decisions at admission",
            "Pods that were placed at once, that wait, or that no node can ever serve. If impossible grows, the "
            "message in the condition of those pods names what no node has.",
            "ops",
            (Query(rate(allocator.DECISIONS, "outcome"), "{{outcome}}"),),
            stacked=True,
        ),
        Panel(
            "Placements from the queue",
            "Writes of placements. If failed or unknown grows, the API server refuses them or does not answer: read "
            "the allocator's log.",
            "ops",
            (Query(rate(allocator.BINDINGS, "outcome"), "{{outcome}}"),),
            stacked=True,
        ),
        Panel(
            "Evictions",
            "Pods that were evicted for another pod, or to repair an allocation. If failed or budget grows, a "
            "PodDisruptionBudget or a missing right keeps a pod of higher priority waiting.",
            "short",
            (Query(increase(allocator.EVICTIONS, "cause", "outcome"), "{{cause}}: {{outcome}}"),),
        ),
        Panel(
            "Idle pods",
            "Pods with an idle share, by whether they consented to eviction, and the warnings before evictions. If "
            "many have not consented while others wait, ask their owners: `kubectl gpufraction idle -A`.",
            "short",
            (
                Query(over("max", allocator.IDLE_PODS, "agreed"), "agreed: {{agreed}}"),
                Query(increase(allocator.IDLE_WARNINGS, "outcome"), "warnings: {{outcome}}"),
            ),
        ),
        Panel(
            "Admissions by dialect",
            "The dialects that pods use. If a dialect that you wanted to retire still appears, look for its names in "
            "the manifests.",
            "ops",
            (Query(rate(webhook.ADMISSION_REQUESTS, "dialect"), "{{dialect}}"),),
            stacked=True,
        ),
        Panel(
            "Time of a decision",
            "The 99th percentile of decisions at admission, and of scheduling cycles over the queue. If it is above "
            "50 ms, read the page on benchmarks: the cluster is larger than any measured one, or the leader has too "
            "little CPU.",
            "s",
            (
                Query(quantile(0.99, allocator.DECISION_SECONDS), "decision"),
                Query(quantile(0.99, allocator.SCHEDULING_CYCLE_SECONDS), "scheduling cycle"),
            ),
            thresholds=((0.05, YELLOW),),
        ),
    ),
)

_AROUND = PanelRow(
    "Claims, Kueue and nodes on request",
    (
        Panel(
            "Claims",
            "ElasticGPUClaims by phase. If Lost appears, the GPU of a claim is gone: delete the claim and create it "
            "again. If Pending stays, the claim's status has the reason.",
            "short",
            (Query(over("max", allocator.CLAIMS, "phase", "reason"), "{{phase}} {{reason}}"),),
        ),
        Panel(
            "Shares of claims",
            "ElasticGPU objects by phase. If Released grows, delete those that nobody needs.",
            "short",
            (Query(over("max", allocator.ELASTIC_GPUS, "phase"), "{{phase}}"),),
        ),
        Panel(
            "Answers to Kueue",
            "Answers to Kueue's check. If Rejected appears, a Workload can never fit: its message says why.",
            "short",
            (Query(increase(allocator.KUEUE_ANSWERS, "state"), "{{state}}"),),
        ),
        Panel(
            "Nodes asked for",
            "Nodes that pods wait for, spare nodes, and requests, by pool. If wanted stays above 0 for longer than a "
            "node takes to start, `kubectl gpufraction pools` names the reason.",
            "short",
            (
                Query(over("max", allocator.NODES_WANTED, "pool"), "{{pool}} wanted"),
                Query(over("max", allocator.SPARE_NODES, "pool"), "{{pool}} spare"),
                Query(increase(allocator.NODES_REQUESTED, "pool"), "{{pool}} requests"),
            ),
        ),
    ),
)

PAGE = Dashboard(
    uid="gpufraction-cluster",
    title="gpufraction / Cluster",
    description="GPU capacity of the cluster, what shares hold of it, and waiting pods.",
    rows=(_NOW, _ROOM, _HOURS, _PODS, _AROUND),
)
