"""The dashboard of namespaces: the amounts that their shares hold and use, and how limits are enforced."""

from __future__ import annotations

from contract.metrics import allocator, nodeagent
from contract.metrics.spec import MetricSpec
from release.dashboards.model import RED, YELLOW, Dashboard, Panel, PanelRow, Query, Variable
from release.dashboards.promql import hours, named_series, over, rate, series

_OURS = 'namespace=~"$namespace"'
_USED, _LIMIT = nodeagent.SHARE_MEMORY_USED, nodeagent.SHARE_MEMORY_LIMIT


_IDLE_SINCE = over("min", nodeagent.SHARE_IDLE_SINCE, "namespace", "pod", where=_OURS)


def _sum(spec: MetricSpec, *by: str) -> str:
    return over("sum", spec, *by, where=_OURS)


def _of_limit(*by: str) -> str:
    on = f" / on (cluster, {', '.join(by)}) " if by else " / "
    return f"{_sum(_USED, *by)}{on}{_sum(_LIMIT, *by)}"


_HELD = PanelRow(
    "Shares of the namespaces",
    (
        Panel(
            "Containers with a share",
            "Containers that hold a share now, counted once per GPU. If this is 0 and pods exist, they wait: `kubectl "
            "gpufraction waiting -n NAMESPACE`.",
            "short",
            (Query(f"count by (cluster) ({series(_LIMIT, _OURS)})"),),
            kind="stat",
            width=6,
            height=4,
        ),
        Panel(
            "Memory held",
            "The sum of all shares' memory. If it is near the quota, further pods are refused: `kubectl describe "
            "quota -n NAMESPACE`.",
            "bytes",
            (Query(_sum(_LIMIT)),),
            kind="stat",
            width=6,
            height=4,
        ),
        Panel(
            "Fraction of the held memory that is used",
            "If this is low for days, the shares are larger than needed: make them smaller. Above 1, a container uses "
            "more than its share: see the violations below.",
            "percentunit",
            (Query(_of_limit()),),
            kind="stat",
            width=6,
            height=4,
            thresholds=((1, RED),),
        ),
        Panel(
            "GPUs reserved by cores",
            "The sum of the cores that shares reserve, in whole GPUs. If it is 0, the containers use the cores that "
            "others leave, without a guarantee.",
            "short",
            (Query(_sum(nodeagent.SHARE_CORES)),),
            kind="stat",
            width=6,
            height=4,
        ),
        Panel(
            "Memory held, by namespace",
            "If one team holds most of the cluster, give it a quota (samples/workloads/quota-team.yaml).",
            "bytes",
            (Query(_sum(_LIMIT, "namespace"), "{{namespace}}"),),
            stacked=True,
        ),
        Panel(
            "Memory used, by namespace",
            "Memory that processes really use. If it is far below what is held, the rest is wasted.",
            "bytes",
            (Query(_sum(_USED, "namespace"), "{{namespace}}"),),
            stacked=True,
        ),
    ),
)

_HOURS = PanelRow(
    "Card hours",
    (
        Panel(
            "GPUs held, by namespace",
            "The namespace's shares as a number of whole GPUs, each by the larger of its memory and its cores. If "
            "this is more than the team needs, make the shares smaller.",
            "short",
            (Query(rate(allocator.SHARE_HELD_SECONDS, "namespace", where=_OURS), "{{namespace}}"),),
            stacked=True,
        ),
        Panel(
            "Fraction of the held time that was idle",
            "The fraction of the held GPU hours in which the share was idle. If it is high for days, find the owners: "
            "`kubectl gpufraction idle`. It is 0 if the driver does not report processes.",
            "percentunit",
            (
                Query(
                    f"{rate(allocator.SHARE_IDLE_SECONDS, 'namespace', where=_OURS)} / on (cluster, namespace) "
                    f"{rate(allocator.SHARE_HELD_SECONDS, 'namespace', where=_OURS)}",
                    "{{namespace}}",
                ),
            ),
            thresholds=((0.5, YELLOW),),
            most=1,
        ),
        Panel(
            "GPU hours in the time range, by model",
            "The basis of a bill; see the page on tenants. If an expensive model leads, check whether a cheaper one "
            "is enough.",
            "h",
            (Query(hours(allocator.SHARE_HELD_SECONDS, "namespace", "model", where=_OURS), "{{namespace}} {{model}}"),),
            kind="bargauge",
            width=24,
        ),
    ),
)

_PODS = PanelRow(
    "Pods",
    (
        Panel(
            "Memory that is held but not used",
            "The pods with the most unused memory. Make the shares of the first ones smaller.",
            "bytes",
            (
                Query(
                    f"topk(15, {_sum(_LIMIT, 'namespace', 'pod')} - on (cluster, namespace, pod) "
                    f"{_sum(_USED, 'namespace', 'pod')})",
                    "{{namespace}}/{{pod}}",
                ),
            ),
            kind="bargauge",
            height=10,
        ),
        Panel(
            "Used fraction of the share, by pod",
            "Above 1, a pod uses more than its share and may fail or be evicted: give it a larger share. If it is "
            "below 0.5 for days, give it a smaller one.",
            "percentunit",
            (Query(_of_limit("namespace", "pod"), "{{namespace}}/{{pod}}"),),
            thresholds=((0.95, YELLOW), (1, RED)),
            height=10,
        ),
        Panel(
            "Work of pods",
            "The fraction of a GPU's multiprocessors that each pod keeps busy, over its GPUs. If it stays at 0, the "
            "pod holds a share and does nothing: ask its owner. Empty if the driver does not report it.",
            "percentunit",
            (Query(_sum(nodeagent.SHARE_UTILIZATION, "namespace", "pod"), "{{namespace}}/{{pod}}"),),
        ),
        Panel(
            "Idle for the longest time",
            "How long pods have not used their GPUs. If one is idle for days, delete it, or have it consent to "
            "eviction, to free its share for others: `kubectl gpufraction idle -n NAMESPACE`.",
            "s",
            (
                Query(
                    f"topk(15, -1 * ({_IDLE_SINCE} - time()))",
                    "{{namespace}}/{{pod}}",
                ),
            ),
        ),
        Panel(
            "Warnings for too much memory",
            "Warnings to containers for using more than their share. If they grow, give the pod a larger share, or "
            "enforce shares with a component of isolation.",
            "short",
            (
                Query(
                    f"topk(15, {_sum(nodeagent.SHARE_VIOLATIONS, 'namespace', 'pod', 'container')} > 0)",
                    "{{namespace}}/{{pod}} {{container}}",
                ),
            ),
            thresholds=((1, YELLOW),),
        ),
        Panel(
            "How shares are enforced",
            "Containers by the strongest level that holds them to their memory. If `none` is not 0, nothing stops "
            "these containers from using the whole GPU: the page on isolation says what to install.",
            "short",
            (Query(over("sum", nodeagent.SHARE_ENFORCED, "level", where=_OURS), "{{level}}"),),
            stacked=True,
        ),
        Panel(
            "Power by use, by dcgm-exporter",
            "An estimate: each GPU's watts, divided by the work of its shares. Empty if dcgm-exporter is not scraped "
            "or the driver does not report processes. If a namespace rises without more work, look for pods in a busy "
            "loop.",
            "watt",
            (
                Query(
                    f"sum by (cluster, namespace) ({named_series('share:dcgm_power_by_use:watts', _OURS)})",
                    "{{namespace}}",
                ),
            ),
            stacked=True,
        ),
    ),
)

PAGE = Dashboard(
    uid="gpufraction-namespace",
    title="gpufraction / Namespace",
    description="What the shares of namespaces hold and use, and how they are enforced.",
    rows=(_HELD, _HOURS, _PODS),
    variables=(Variable("namespace", _LIMIT.name, "namespace", several=True),),
    since="24h",
    refresh="5m",
)
