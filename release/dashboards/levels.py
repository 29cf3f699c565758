"""The dashboard of service levels: whether pods are created and served as promised, and whose pods wait."""

from __future__ import annotations

from contract.metrics import allocator
from release.dashboards.model import RED, YELLOW, Dashboard, Panel, PanelRow, Query, Variable
from release.dashboards.promql import RANGE, increase, mean, named_series, quantile

_ADMISSION, _LATE = "cluster:gpufraction_admission_errors:ratio_rate", "cluster:gpufraction_shares_late:ratio_rate"
_ADMISSION_BUDGET, _LATE_BUDGET = 0.001, 0.05
_WINDOWS = ("1h", "6h", "1d", "3d")
_OURS = 'namespace=~"$namespace"'


def _over_range(recorded: str) -> str:
    return f"avg_over_time({named_series(f'{recorded}5m')}[{RANGE}])"


def _burns(recorded: str, budget: float) -> tuple[Query, ...]:
    return tuple(Query(f"{named_series(f'{recorded}{window}')} / {budget}", f"over {window}") for window in _WINDOWS)


_KEPT = PanelRow(
    "Are the objectives met?",
    (
        Panel(
            "Reviews answered in time",
            "The fraction of reviews answered within a second and without an error, in the time range. Below 0.999 "
            "the objective is missed: see which alert fires on the dashboard On call.",
            "percentunit",
            (Query(f"1 - {_over_range(_ADMISSION)}"),),
            kind="stat",
            width=12,
            height=5,
        ),
        Panel(
            "Pods with a share in time",
            "The fraction of pods that got their share within service_levels.start_within, in the time range. Below "
            "0.95 the objective is missed: add nodes, set quotas, or lower the objective.",
            "percentunit",
            (Query(f"1 - {_over_range(_LATE)}"),),
            kind="stat",
            width=12,
            height=5,
        ),
        Panel(
            "Burn rate of the error budget of reviews",
            "1 uses up exactly the budget of 0.1 % errors. Above 14.4 over an hour, or 6 over six hours, an alert "
            "pages; above 1 over days, it opens a task.",
            "short",
            _burns(_ADMISSION, _ADMISSION_BUDGET),
            thresholds=((1, YELLOW), (14.4, RED)),
        ),
        Panel(
            "Burn rate of the late-pod budget",
            "1 uses up exactly the budget of 5 % late pods. Above 6 the cluster is full or nodes are missing: "
            "`kubectl gpufraction waiting -A`.",
            "short",
            _burns(_LATE, _LATE_BUDGET),
            thresholds=((1, YELLOW), (14.4, RED)),
        ),
    ),
)

_WAITS = PanelRow(
    "Waiting times",
    (
        Panel(
            "Time from creation to share",
            "The mean, the median and the 95th percentile. If the mean rises and the median does not, a few large "
            "pods wait: see the reasons with `kubectl gpufraction waiting -A`.",
            "s",
            (
                Query(quantile(0.5, allocator.TIME_TO_SHARE), "half of the pods"),
                Query(quantile(0.95, allocator.TIME_TO_SHARE), "95 of 100"),
                Query(mean(allocator.TIME_TO_SHARE), "mean"),
            ),
        ),
        Panel(
            "Time from creation to share, by priority",
            "The 95th percentile of the last hour. If high is not below normal, priorities do not help: check whether "
            "preemption is on.",
            "s",
            (Query(named_series("priority:gpufraction_time_to_share:p95_1h"), "{{priority}}"),),
        ),
        Panel(
            "Time from creation to share, by namespace",
            "The 95th percentile of the last hour. If one team waits and others do not, compare their quotas and "
            "holdings on the namespace dashboard.",
            "s",
            (Query(f"topk(20, {named_series('namespace:gpufraction_time_to_share:p95_1h', _OURS)})", "{{namespace}}"),),
            width=24,
        ),
        Panel(
            "Pods in time and late",
            "Pods by whether they got their share in time. If late grows while in-time does not, no pod gets a share.",
            "short",
            (Query(increase(allocator.SHARES_DUE, "verdict"), "{{verdict}}"),),
            stacked=True,
        ),
        Panel(
            "Accuracy of estimated starts",
            "Pods with an estimate of their start, by how it turned out. If most are later, the pods of one owner run "
            "for very different times, and the estimate is of little use.",
            "short",
            (Query(increase(allocator.START_ESTIMATES, "outcome"), "{{outcome}}"),),
            stacked=True,
        ),
    ),
)

PAGE = Dashboard(
    uid="gpufraction-service-levels",
    title="gpufraction / Service levels",
    description="Whether pods are created and get their share in time, and whose pods wait.",
    rows=(_KEPT, _WAITS),
    variables=(Variable("namespace", f"{allocator.TIME_TO_SHARE.name}_count", "namespace", several=True),),
    since="7d",
    refresh="5m",
)
