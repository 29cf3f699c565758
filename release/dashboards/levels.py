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
    "Are the promises kept?",
    (
        Panel(
            "Reviews answered as promised",
            "The part of reviews that was answered within a second and without a fault, in the time shown. Below "
            "0.999 the promise is broken: see which alert of On call fires.",
            "percentunit",
            (Query(f"1 - {_over_range(_ADMISSION)}"),),
            kind="stat",
            width=12,
            height=5,
        ),
        Panel(
            "Pods with a share in time",
            "The part of pods that had their share within service_levels.start_within, in the time shown. Below 0.95 "
            "the promise is broken: add nodes, give quotas, or promise less.",
            "percentunit",
            (Query(f"1 - {_over_range(_LATE)}"),),
            kind="stat",
            width=12,
            height=5,
        ),
        Panel(
            "How fast the budget of reviews is used",
            "1 uses the budget of 0.1 % errors just up. Above 14.4 over an hour, or 6 over six hours, somebody is "
            "called; above 1 over days it is a task.",
            "short",
            _burns(_ADMISSION, _ADMISSION_BUDGET),
            thresholds=((1, YELLOW), (14.4, RED)),
        ),
        Panel(
            "How fast the budget of late pods is used",
            "1 uses the budget of 5 % late pods just up. Above 6 the cluster is full or nodes are missing: "
            "`kubectl gpufraction waiting -A`.",
            "short",
            _burns(_LATE, _LATE_BUDGET),
            thresholds=((1, YELLOW), (14.4, RED)),
        ),
    ),
)

_WAITS = PanelRow(
    "Who waits, and for how long",
    (
        Panel(
            "Time from creation to share",
            "The mean, and the times under which half and 95 of 100 pods stayed. When the mean rises and the half does "
            "not, a few large pods wait: see the reasons with `kubectl gpufraction waiting -A`.",
            "s",
            (
                Query(quantile(0.5, allocator.TIME_TO_SHARE), "half of the pods"),
                Query(quantile(0.95, allocator.TIME_TO_SHARE), "95 of 100"),
                Query(mean(allocator.TIME_TO_SHARE), "mean"),
            ),
        ),
        Panel(
            "Time from creation to share, by priority",
            "95 of 100 pods of the last hour were faster. When high is not below normal, priorities do not help: "
            "see whether preemption is on.",
            "s",
            (Query(named_series("priority:gpufraction_time_to_share:p95_1h"), "{{priority}}"),),
        ),
        Panel(
            "Time from creation to share, by namespace",
            "95 of 100 pods of the last hour were faster. When one team waits and others do not, compare quotas and "
            "what each holds on the namespace dashboard.",
            "s",
            (Query(f"topk(20, {named_series('namespace:gpufraction_time_to_share:p95_1h', _OURS)})", "{{namespace}}"),),
            width=24,
        ),
        Panel(
            "Pods that were late, and in time",
            "Pods by whether their share came in time. When late grows while in-time stands still, nobody gets a "
            "share.",
            "short",
            (Query(increase(allocator.SHARES_DUE, "verdict"), "{{verdict}}"),),
            stacked=True,
        ),
        Panel(
            "What came of estimated starts",
            "Pods that were told when they would probably start, by whether that was so. When later is most of them, "
            "owners' pods run for very different times, and the estimate is worth little.",
            "short",
            (Query(increase(allocator.START_ESTIMATES, "outcome"), "{{outcome}}"),),
            stacked=True,
        ),
    ),
)

PAGE = Dashboard(
    uid="gpufraction-service-levels",
    title="gpufraction / Service levels",
    description="Whether pods are created and get their share as promised, and whose pods wait.",
    rows=(_KEPT, _WAITS),
    variables=(Variable("namespace", f"{allocator.TIME_TO_SHARE.name}_count", "namespace", several=True),),
    since="7d",
    refresh="5m",
)
