"""
The dashboard for the person on call: which alerts fire, a panel for each alert, and the figures behind faults.

A panel of an alert shows the series of the alert's expression and a line at its threshold; its title is the alert's
name, and its text the alert's own. So thresholds are only in the alerts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import promql_parser

from contract.metrics import allocator, nodeagent, webhook
from release.dashboards.model import RED, YELLOW, Dashboard, Panel, PanelRow, Query
from release.dashboards.promql import CHOSEN, increase, over, quantile, rate, series

UID = "gpufraction-on-call"
SEVERITIES = ("critical", "warning", "info")
_UNITS = {"GpufractionCertificateEnds": "s", "GpufractionAdmissionSlow": "s", "GpufractionAdmissionFaults": "ops"}
_UNITS |= {"GpufractionWebhookCrowded": "ops", "GpufractionAllocatorSilent": "ops"}
"""The unit of an alert's expression; a number if it is not listed here."""


@dataclass(frozen=True, slots=True)
class Watched:
    """The series of an alert, and the value at which it fires; None where it fires for any series."""

    expression: str
    threshold: float | None


def watched(expression: str) -> Watched:
    """Take the comparison off an alert's expression. Raises ValueError where it is no PromQL."""
    parsed = promql_parser.parse(expression)
    if isinstance(parsed, promql_parser.BinaryExpr) and str(parsed.op) in (">", ">=", "<"):
        threshold = constant(parsed.rhs)
        if threshold is not None:
            return Watched(parsed.lhs.prettify(), threshold)
    return Watched(parsed.prettify(), None)


def constant(expression: promql_parser.Expr) -> float | None:
    """The number that an expression without series is, `7 * 24 * 3600`; None for any other expression."""
    if isinstance(expression, promql_parser.NumberLiteral):
        return float(expression.val)
    if isinstance(expression, promql_parser.BinaryExpr) and str(expression.op) == "*":
        left, right = constant(expression.lhs), constant(expression.rhs)
        return None if left is None or right is None else left * right
    return None


def _of_chosen(expression: str) -> str:
    """An alert's expression for the clusters that are chosen on the page."""
    return _SERIES.sub(lambda found: f"{found[1]}{{{CHOSEN}{', ' if found[2] else ''}{found[2] or ''}}}", expression)


_SERIES = re.compile(r"\b((?:gpufraction_|[a-z]+:gpufraction_)[\w:]+)(?:\{(.*?)\})?")


def alert_panel(alert: Mapping[str, Any]) -> Panel:
    """The panel of an alert, as a rule of the PrometheusRule has it."""
    found = watched(alert["expr"])
    notes = alert["annotations"]
    colour = RED if alert["labels"]["severity"] == "critical" else YELLOW
    return Panel(
        alert["alert"],
        f"{notes['summary']} When it fires: {notes['description']}",
        _UNITS.get(alert["alert"], "short"),
        (Query(_of_chosen(found.expression)),),
        width=8,
        height=7,
        thresholds=() if found.threshold is None else ((found.threshold, colour),),
    )


def page(alerts: Iterable[Mapping[str, Any]]) -> Dashboard:
    """The dashboard for these alerts."""
    alerts = list(alerts)
    of_alerts = tuple(
        PanelRow(
            f"Alerts: {severity}",
            tuple(alert_panel(alert) for alert in alerts if alert["labels"]["severity"] == severity),
        )
        for severity in SEVERITIES
    )
    return Dashboard(
        uid=UID,
        title="gpufraction / On call",
        description="Which alerts fire, what each of them watches, and the figures behind faults.",
        rows=(_NOW, *of_alerts, _WEBHOOK, _ALLOCATOR),
        since="3h",
        refresh="30s",
    )


_FIRING = f'ALERTS{{{CHOSEN}, alertname=~"Gpufraction.+", alertstate="firing"}}'
_NOW = PanelRow(
    "Now",
    (
        Panel(
            "Firing alerts",
            "Alerts of gpufraction that fire. The panel of each alert below says what it means and what to do.",
            "short",
            (Query(f"count by (cluster, alertname, severity) ({_FIRING})"),),
            kind="table",
            width=12,
            height=7,
        ),
        Panel(
            "Leaders",
            "Replicas of the allocator that decide: exactly 1. At 0, every pod waits: check whether the allocators "
            "can write the Lease. At 2, look for clocks that run at different speeds, and report it.",
            "short",
            (Query(over("sum", allocator.LEADER)),),
            kind="stat",
            width=4,
            height=7,
            thresholds=((2, RED),),
        ),
        Panel(
            "Days until the certificate expires",
            "The webhook certificate that expires first. Below 7, read the log of the Deployment gpufraction-certs, "
            "or of cert-manager.",
            "d",
            (Query(f"({over('min', webhook.CERTIFICATE_EXPIRY)} - time()) / 86400"),),
            kind="stat",
            width=4,
            height=7,
        ),
        Panel(
            "Waiting pods, last 15 minutes",
            "The minimum number of waiting pods in the last 15 minutes. Above 0, pods wait for room: the cluster "
            "dashboard shows how much there is.",
            "short",
            (Query(f"min_over_time({over('max', allocator.WAITING_PODS)}[15m:1m])"),),
            kind="stat",
            width=4,
            height=7,
            thresholds=((1, YELLOW),),
        ),
    ),
)

_WEBHOOK = PanelRow(
    "Causes of faults: the webhook",
    (
        Panel(
            "Reviews by outcome",
            "Answers of the webhook. If error or malformed appears, its log has the number that the refusal shows. If "
            "denied grows, a team's manifests request something that cannot be served.",
            "ops",
            (Query(rate(webhook.ADMISSION_REQUESTS, "outcome"), "{{outcome}}"),),
            stacked=True,
        ),
        Panel(
            "Time of a review",
            "The median and the 99th percentile. If it rises with the allocator's answers, check the allocator; if it "
            "rises alone, check the CPU of the webhook's node.",
            "s",
            (
                Query(quantile(0.5, webhook.ADMISSION_SECONDS), "median"),
                Query(quantile(0.99, webhook.ADMISSION_SECONDS), "99 of 100 are faster"),
            ),
            thresholds=((1, RED),),
        ),
        Panel(
            "Answers of the allocator",
            "If unreachable, late or not-ready grows, the allocator in the same pod does not answer: read its log.",
            "ops",
            (Query(rate(webhook.QUESTIONS, "answer"), "{{answer}}"),),
            stacked=True,
        ),
        Panel(
            "Clients of the webhook",
            "Open connections, and clients that were turned away. If clients are turned away, something other than "
            "the API server calls the webhook: admit only the API server by the NetworkPolicy.",
            "short",
            (
                Query(over("sum", webhook.CONNECTIONS), "connections"),
                Query(increase(webhook.TURNED_AWAY, "reason"), "turned away: {{reason}}"),
            ),
        ),
    ),
)

_ALLOCATOR = PanelRow(
    "Causes of faults: the allocator and the agents",
    (
        Panel(
            "Internal errors by place",
            "Each of them is a bug: report it with the id and the traceback from the allocator's log.",
            "short",
            (
                Query(increase(allocator.FAULTS, "place"), "{{place}}"),
                Query(increase(allocator.WORKER_RESTARTS, "worker"), "worker {{worker}}"),
            ),
            thresholds=((1, RED),),
        ),
        Panel(
            "Watches that broke",
            "Lists and watches that ended with an error. If one repeats, the API server is busy or a right is "
            "missing: the allocator's log names the informer.",
            "short",
            (Query(increase(allocator.WATCH_RESTARTS, "informer", "reason"), "{{informer}}: {{reason}}"),),
        ),
        Panel(
            "Repair",
            "Comparisons of the ledger with the API server, and pods for which they differed. If `mended` repeats, "
            "report it with the allocator's log. If `failed` repeats, the API server does not answer.",
            "short",
            (
                Query(increase(allocator.REPAIR_PASSES, "outcome"), "pass {{outcome}}"),
                Query(increase(allocator.LEDGER_DRIFT, "kind"), "pod {{kind}}"),
            ),
        ),
        Panel(
            "Pods that need attention",
            "Pods that cannot be placed as they are: uncounted (created without the webhook), unreadable, quarantined "
            "after an internal error, with a share that cannot be read, or stored too late. If this is not 0, their "
            "conditions and Events say what to do.",
            "short",
            (
                Query(over("max", allocator.UNCOUNTED_PODS), "uncounted"),
                Query(over("max", allocator.UNREADABLE_PODS), "unreadable"),
                Query(over("max", allocator.UNREAD_SHARES), "unread share"),
                Query(over("max", allocator.QUARANTINED_PODS), "quarantined"),
                Query(increase(allocator.LATE_PODS), "stored too late"),
            ),
            thresholds=((1, YELLOW),),
        ),
        Panel(
            "Shares in the ledger",
            "Shares by state. If assumed stays high, pods are admitted but not stored: another webhook or a quota "
            "refuses them.",
            "short",
            (
                Query(over("max", allocator.RESERVATIONS, "state"), "{{state}}"),
                Query(increase(allocator.RESERVATIONS_FORGOTTEN, "reason"), "released: {{reason}}"),
            ),
        ),
        Panel(
            "Overcommitted GPUs",
            "GPUs whose pods hold more than the GPU offers. Above 0 is expected after oversubscription was reduced; "
            "otherwise, delete the youngest pod on the GPU and report it.",
            "short",
            (Query(over("max", allocator.OVERCOMMITTED_GPUS)),),
            thresholds=((1, RED),),
        ),
        Panel(
            "Options refused",
            "1 while a program cannot read the ConfigMap gpufraction-options; the last good content stays in use. If "
            "it is 1, correct the line that the condition OptionsRefused of a GPUNode names.",
            "short",
            (
                Query(over("max", webhook.WEBHOOK_OPTIONS_REFUSED), "webhook"),
                Query(over("max", allocator.ALLOCATOR_OPTIONS_REFUSED), "allocator"),
                Query(over("max", nodeagent.AGENT_OPTIONS_REFUSED, "node"), "{{node}}"),
            ),
            most=1,
            thresholds=((1, YELLOW),),
        ),
        Panel(
            "Pools that add no nodes",
            "Consecutive failed requests for nodes, pools for which no node is requested, and how requests ended. If "
            "one appears, `kubectl gpufraction pools` names the reason and the cure.",
            "short",
            (
                Query(over("max", allocator.POOL_FAILURES, "pool"), "{{pool}} failures"),
                Query(f"max by (cluster, pool, reason) ({series(allocator.POOL_BLOCKED)} > 0)", "{{pool}}: {{reason}}"),
                Query(increase(allocator.NODE_REQUESTS_ENDED, "pool", "outcome"), "{{pool}} ended: {{outcome}}"),
            ),
        ),
    ),
)
