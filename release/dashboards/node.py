"""The dashboard of one node: its cards, the amounts that shares hold and use, their health, and MPS."""

from __future__ import annotations

from contract.metrics import allocator, nodeagent
from contract.metrics.spec import MetricSpec
from release.dashboards.model import RED, YELLOW, Dashboard, Panel, PanelRow, Query, Variable
from release.dashboards.promql import increase, named_series, over

_CARD = 'node="$node", gpu=~"$gpu"'
_NODE = 'node="$node"'
_SHARE = "{{namespace}}/{{pod}} {{container}}"


def _by_card(spec: MetricSpec, function: str = "max") -> str:
    return over(function, spec, "gpu", where=_CARD)


def _of_shares(spec: MetricSpec) -> str:
    """The holdings of the shares on this node's cards. The scrape configuration gives the agents' series their node."""
    return over("max", spec, "namespace", "pod", "container", "gpu", where=_CARD)


_CARDS = PanelRow(
    "Cards",
    (
        Panel(
            "Healthy and unhealthy GPUs of the node",
            "GPUs by health. If one is unhealthy, `kubectl get gpunode NODE -o yaml` says why; replace or reset it.",
            "short",
            (Query(over("sum", nodeagent.GPUS, "health", where=_NODE), "{{health}}"),),
            kind="stat",
            width=8,
            height=5,
        ),
        Panel(
            "Isolation of the node",
            "Levels of isolation that are enforced here: 1 is enforced. If a level that you installed is 0, read the "
            "log of its pod on this node.",
            "short",
            (Query(over("max", nodeagent.NODE_ISOLATION, "level", where=_NODE), "{{level}}"),),
            kind="stat",
            width=8,
            height=5,
        ),
        Panel(
            "Options refused by the agent",
            "1 while the agent cannot read the ConfigMap of options. If it is 1, the condition OptionsRefused of the "
            "GPUNode names the line and what would work.",
            "short",
            (Query(over("max", nodeagent.AGENT_OPTIONS_REFUSED, where=_NODE)),),
            kind="stat",
            width=8,
            height=5,
            thresholds=((1, RED),),
        ),
        Panel(
            "Memory held by shares, by GPU",
            "Memory that shares hold of each GPU. If a GPU is near what it offers, no more shares fit.",
            "bytes",
            (
                Query(_by_card(allocator.GPU_MEMORY_ALLOCATED), "{{gpu}}"),
                Query(_by_card(nodeagent.GPU_MEMORY_PROMISED), "{{gpu}} offers"),
            ),
        ),
        Panel(
            "Memory limits relative to memory, by GPU",
            "The sum of the memory limits of a GPU's shares, divided by its memory. If it is far above 1 and programs "
            "run out of memory, lower the option memoryLimitRatio.",
            "short",
            (Query(f"{_by_card(allocator.GPU_MEMORY_LIMITS)} / {_by_card(nodeagent.GPU_MEMORY_TOTAL)}", "{{gpu}}"),),
        ),
        Panel(
            "Memory used, by card",
            "Memory that the driver counts as used. If it is near the GPU's memory while shares hold less, something "
            "other than shares uses the GPU: see the next panel.",
            "bytes",
            (
                Query(_by_card(nodeagent.GPU_MEMORY_USED), "{{gpu}}"),
                Query(over("max", nodeagent.GPU_MEMORY_TOTAL, "gpu", "model", where=_CARD), "{{gpu}} has"),
            ),
        ),
        Panel(
            "Memory of processes without a share",
            "Memory of processes that belong to no container with a share. If it is not 0, find them with nvidia-smi "
            "on the node: a program of the host, or a pod that bypassed gpufraction.",
            "bytes",
            (Query(_by_card(nodeagent.GPU_MEMORY_UNCLAIMED), "{{gpu}}"),),
            thresholds=((1 << 30, YELLOW),),
        ),
        Panel(
            "Cores, by card",
            "How busy each GPU is, and the fraction of its cores that shares reserve. If a GPU is always at 1, its "
            "pods slow each other down: give them cores, or a policy that spreads.",
            "percentunit",
            (
                Query(_by_card(nodeagent.GPU_UTILIZATION), "{{gpu}} busy"),
                Query(_by_card(allocator.GPU_CORES_ALLOCATED), "{{gpu}} reserved"),
            ),
            most=1,
        ),
        Panel(
            "Sharers, by card",
            "Pods with a share of each GPU. If one GPU has many and another none, check the scoring policy.",
            "short",
            (Query(_by_card(allocator.GPU_SHARERS), "{{gpu}}"),),
        ),
        Panel(
            "XIDs, by card",
            "Errors that the driver reported, including ignored ones. If one repeats, look up its number in NVIDIA's "
            "list of XIDs and cordon the GPU: `kubectl gpufraction cordon NODE GPU`.",
            "short",
            (Query(increase(nodeagent.GPU_XIDS, "gpu", "xid", where=_CARD), "{{gpu}} XID {{xid}}"),),
            thresholds=((1, RED),),
        ),
    ),
)

_SHARES = PanelRow(
    "Shares on these GPUs",
    (
        Panel(
            "Memory used by shares",
            "Memory of each container's processes. If a container is above its limit in the next panel, it is warned, "
            "and stopped if a level of isolation is enforced.",
            "bytes",
            (Query(_of_shares(nodeagent.SHARE_MEMORY_USED), _SHARE),),
            stacked=True,
        ),
        Panel(
            "Memory limits of shares",
            "The maximum that each container may use. If a container uses much less than this, make its share smaller.",
            "bytes",
            (Query(_of_shares(nodeagent.SHARE_MEMORY_LIMIT), _SHARE),),
            stacked=True,
        ),
        Panel(
            "Memory booked for shares",
            "What is booked for each container: its limit, or less if it may burst. If one uses more for long, book "
            "more, since other pods may need the memory.",
            "bytes",
            (Query(_of_shares(nodeagent.SHARE_MEMORY_REQUEST), _SHARE),),
            stacked=True,
        ),
        Panel(
            "Work of shares",
            "The fraction of the multiprocessors that each container kept busy. If one takes far more than its cores "
            "and others are slow, give the others cores and enforce them with MPS or preload.",
            "percentunit",
            (Query(_of_shares(nodeagent.SHARE_UTILIZATION), _SHARE),),
            stacked=True,
        ),
        Panel(
            "Power of the GPUs, by dcgm-exporter",
            "Watts of each GPU, joined by UUID; empty if dcgm-exporter is not scraped. If a GPU is always at its "
            "power limit, expect lower clocks.",
            "watt",
            (Query(named_series("gpu:dcgm_power:watts", _CARD), "{{gpu}}"),),
        ),
        Panel(
            "Temperature of the GPUs, by dcgm-exporter",
            "Degrees Celsius of each GPU; empty if dcgm-exporter is not scraped. Above 85, check the node's cooling.",
            "celsius",
            (Query(named_series("gpu:dcgm_temperature:celsius", _CARD), "{{gpu}}"),),
            thresholds=((85, RED),),
        ),
        Panel(
            "Work without a share, by dcgm-exporter",
            "What DCGM counts as busy, less what shares explain. If it stays high, processes without a share use the "
            "GPU, or the driver does not report every process.",
            "percentunit",
            (Query(named_series("gpu:dcgm_utilization_unattributed:ratio", _CARD), "{{gpu}}"),),
            most=1,
        ),
    ),
)

_MPS = PanelRow(
    "MPS",
    (
        Panel(
            "MPS serves",
            "1 if a daemon serves the GPU, 0 if it should and does not. If it is 0, `kubectl get gpunode NODE -o "
            "yaml` shows the phase and the reason.",
            "short",
            (Query(_by_card(nodeagent.MPS_SERVING, "min"), "{{gpu}}"),),
            width=8,
            most=1,
        ),
        Panel(
            "MPS clients",
            "Processes of each GPU's MPS servers, and their maximum number. If clients reach the limit, further "
            "processes fail: put fewer pods on the GPU.",
            "short",
            (
                Query(_by_card(nodeagent.MPS_CLIENTS), "{{gpu}}"),
                Query(_by_card(nodeagent.MPS_CLIENTS_LIMIT), "{{gpu}} limit"),
            ),
            width=8,
        ),
        Panel(
            "Starts of MPS daemons",
            "Starts since the supervisor started. If it climbs, a client crashes the daemon: look in the supervisor's "
            "log for the times, and for the pods that ran then.",
            "short",
            (Query(_by_card(nodeagent.MPS_STARTS), "{{gpu}}"),),
            width=8,
        ),
    ),
)

PAGE = Dashboard(
    uid="gpufraction-node",
    title="gpufraction / Node",
    description="One node: its GPUs, what shares hold and use of them, their health, and MPS.",
    rows=(_CARDS, _SHARES, _MPS),
    variables=(
        Variable("node", nodeagent.GPUS.name, "node"),
        Variable("gpu", nodeagent.GPU_MEMORY_TOTAL.name, "gpu", where=_NODE, several=True),
    ),
    since="3h",
)
