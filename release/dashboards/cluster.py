"""The dashboard of the whole cluster: how much there is, how much is held, who waits, and which nodes are requested."""

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
            "GPUs that node agents report. When the number falls, look on the node dashboard for agents that stopped.",
            "short",
            (Query(over("sum", nodeagent.GPUS)),),
            kind="stat",
            width=4,
            height=4,
        ),
        Panel(
            "Unhealthy GPUs",
            "GPUs that take no new pods. When it is not 0: `kubectl get gpunode NODE -o yaml` says which and why.",
            "short",
            (Query(over("sum", nodeagent.GPUS, where='health="unhealthy"')),),
            kind="stat",
            width=4,
            height=4,
            thresholds=((1, RED),),
        ),
        Panel(
            "Memory allocated",
            "The part of the offered memory that shares hold. Above 0.9 large shares wait: add nodes, or look in the "
            "namespace dashboard for shares that hold more than they use.",
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
            "The mean part of a GPU's cores that shares reserve. Near 1, shares that reserve cores wait and shares "
            "without cores are slow: add nodes.",
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
            "Pods behind the gate. When it stays above 0: `kubectl gpufraction waiting` prints the reason of each.",
            "short",
            (Query(over("max", allocator.WAITING_PODS)),),
            kind="stat",
            width=4,
            height=4,
            thresholds=((1, YELLOW),),
        ),
        Panel(
            "Sharers per used GPU",
            "Pods on a GPU that has at least one. Near 1 nobody shares: ask for less per pod, or look whether cores "
            "or exclusive requests keep others away.",
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
            "What there is, what may be promised, what shares hold, and what is used. When used is far below "
            "allocated, shares are too large: see the namespace dashboard. When allocated is near offered, add nodes.",
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
            "The largest free piece of memory on one GPU, and the median. When the largest is below what pods "
            "ask for, they wait although the sum would be enough: until a pod ends, or evict one of lower priority.",
            "bytes",
            (Query(f"max by (cluster) ({_FREE})", "largest"), Query(f"quantile by (cluster) (0.5, {_FREE})", "median")),
        ),
        Panel(
            "GPUs by number of sharers",
            "How many GPUs have no pod, one pod, or several. When many have one pod and pods wait, the shares do not "
            "fit together: look at their sizes in the namespace dashboard.",
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
            "How busy GPUs are, beside the part of their cores that shares reserve. When busy is above reserved, "
            "shares without cores use what is left. When it is far below, reservations of cores can be smaller.",
            "percentunit",
            (
                Query(over("avg", nodeagent.GPU_UTILIZATION), "busy"),
                Query(over("avg", allocator.GPU_CORES_ALLOCATED), "reserved"),
            ),
            most=1,
        ),
        Panel(
            "Fullest nodes",
            "Memory that shares hold, by node. When one node is full and others are empty, see whether node selectors "
            "or taints keep the pods there: `kubectl gpufraction explain POD`.",
            "bytes",
            (Query(f"topk(20, {over('sum', allocator.GPU_MEMORY_ALLOCATED, 'node')})", "{{node}}"),),
            kind="bargauge",
        ),
        Panel(
            "Isolation by level",
            "Nodes on which each level is enforced. When preload or mps falls, read the log of that component on the "
            "nodes that lack it.",
            "short",
            (Query(over("sum", nodeagent.NODE_ISOLATION, "level"), "{{level}}"),),
        ),
        Panel(
            "Gangs, starts and deprecated names",
            "Gangs of pods that wait, and that have begun; pods that start alone and are not ready; pods with names "
            "that a later release does not read. When a gang has begun for minutes, see the leader's log; before you "
            "upgrade, docs/deprecations.md.",
            "short",
            (
                Query(over("sum", allocator.GANGS, "state"), "gangs: {{state}}"),
                Query(over("sum", allocator.STARTING_PODS, "state"), "start alone: {{state}}"),
                Query(increase(webhook.DEPRECATED_NAMES, "name"), "deprecated: {{name}}"),
            ),
        ),
        Panel(
            "Canaries and proofs",
            "With the component canary: what canaries found, and nodes by where the proof of their levels stands. When "
            "exceeded or failed is above 0, see the runbook of GpufractionIsolationNotHeld.",
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
            "How many whole cards all shares come to, each by the larger of its memory and its cores; of them what "
            "computed nothing; and what no share held. When much is idle, look in the namespace dashboard whose it is. "
            "When little is free and pods wait, add nodes.",
            "short",
            (
                Query(rate(allocator.SHARE_HELD_SECONDS), "held"),
                Query(rate(allocator.SHARE_IDLE_SECONDS), "held and idle"),
                Query(rate(allocator.GPU_FREE_SECONDS, where='state="open"'), "free"),
                Query(rate(allocator.GPU_FREE_SECONDS, where='state="closed"'), "free, and closed to new pods"),
            ),
        ),
        Panel(
            "Card hours of the time shown, by namespace",
            "What each team held: hours of a whole card. When one holds most of them, give it a quota. The page on "
            "tenants makes a bill of it.",
            "h",
            (Query(f"topk(20, {hours(allocator.SHARE_HELD_SECONDS, 'namespace')})", "{{namespace}}"),),
            kind="bargauge",
        ),
        Panel(
            "Free card hours of the time shown, by model",
            "When one model is mostly free and pods wait for another, see whether they must ask for that other one.",
            "h",
            (Query(hours(allocator.GPU_FREE_SECONDS, "model"), "{{model}}"),),
            kind="bargauge",
            height=6,
        ),
        Panel(
            "Card hours of the time shown, by dialect",
            "In whose words the pods ask that hold cards. When one is at 0 for long, nobody needs its names any more.",
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
            "Pods that wait, those of which only the name is kept, nodes that are reserved for one of them, and "
            "pods that hold a share and are not bound, or are also judged by rules that gpufraction does not evaluate. "
            "When unbound pods stay, kube-scheduler refuses them: "
            "`kubectl describe pod` says why.",
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
            "Pods that were placed at once, that wait, or that no node could ever serve. When impossible grows, the "
            "message in the condition of those pods names what no node has.",
            "ops",
            (Query(rate(allocator.DECISIONS, "outcome"), "{{outcome}}"),),
            stacked=True,
        ),
        Panel(
            "Placements from the queue",
            "Writes of placements. When failed or unknown grows, the API server refuses or does not answer: read the "
            "allocator's log.",
            "ops",
            (Query(rate(allocator.BINDINGS, "outcome"), "{{outcome}}"),),
            stacked=True,
        ),
        Panel(
            "Evictions",
            "Pods that were evicted for another pod, or to mend an allocation. When failed or budget grows, a "
            "PodDisruptionBudget or a missing right keeps a pod of higher priority waiting.",
            "short",
            (Query(increase(allocator.EVICTIONS, "cause", "outcome"), "{{cause}}: {{outcome}}"),),
        ),
        Panel(
            "Idle pods",
            "Pods with a share that compute nothing, by whether they agreed to give way, and the warnings before they "
            "are evicted. When many have not agreed and others wait, ask their owners: `kubectl gpufraction idle -A`.",
            "short",
            (
                Query(over("max", allocator.IDLE_PODS, "agreed"), "agreed: {{agreed}}"),
                Query(increase(allocator.IDLE_WARNINGS, "outcome"), "warnings: {{outcome}}"),
            ),
        ),
        Panel(
            "Admissions by dialect",
            "Which system's words pods use. When a dialect that you wanted to retire still appears, look for its "
            "names in the manifests.",
            "ops",
            (Query(rate(webhook.ADMISSION_REQUESTS, "dialect"), "{{dialect}}"),),
            stacked=True,
        ),
        Panel(
            "Time of a decision",
            "The 99th part of decisions at admission, and of scheduling cycles over the queue. Above 50 ms read the "
            "page on benchmarks: the cluster is larger than what was measured, or the leader's CPU is too small.",
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
            "ElasticGPUClaims by phase. When Lost appears, a card of a claim is gone: delete the claim and make it "
            "again. When Pending stays, its status has the reason.",
            "short",
            (Query(over("max", allocator.CLAIMS, "phase", "reason"), "{{phase}} {{reason}}"),),
        ),
        Panel(
            "Shares of claims",
            "ElasticGPU objects by phase. When Released grows, delete those that nobody needs.",
            "short",
            (Query(over("max", allocator.ELASTIC_GPUS, "phase"), "{{phase}}"),),
        ),
        Panel(
            "Answers to Kueue",
            "Answers to Kueue's check. When Rejected appears, a Workload can never fit: its message names why.",
            "short",
            (Query(increase(allocator.KUEUE_ANSWERS, "state"), "{{state}}"),),
        ),
        Panel(
            "Nodes asked for",
            "Nodes that pods wait for, spare nodes, and requests, by pool. When wanted stays above 0 for longer than "
            "a node takes to start, `kubectl gpufraction pools` names the reason.",
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
    description="How much GPU the cluster has, how much shares hold, and who waits.",
    rows=(_NOW, _ROOM, _HOURS, _PODS, _AROUND),
)
