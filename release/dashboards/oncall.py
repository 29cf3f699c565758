"""
The dashboard for the person on call: which alerts fire, a panel for each alert, and the figures behind faults.

A panel of an alert shows what the alert's expression looks at and a line where it fires; its title is the alert's name,
and its text the alert's own. So the alerts stay the only place where a threshold stands.
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
"""What an alert's expression is measured in; a number where nothing stands here."""


@dataclass(frozen=True, slots=True)
class Watched:
    """What an alert looks at, and the value at which it fires; None where it fires for any series."""

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
        description="Which alerts fire, what each of them looks at, and the figures behind faults.",
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
            "Alerts of gpufraction that fire. Its panel below says what each means and what to do.",
            "short",
            (Query(f"count by (cluster, alertname, severity) ({_FIRING})"),),
            kind="table",
            width=12,
            height=7,
        ),
        Panel(
            "Leaders",
            "Replicas of the allocator that decide: exactly 1. At 0 every pod waits: can the allocators write the "
            "Lease? At 2, look for clocks that run at different speeds, and report it.",
            "short",
            (Query(over("sum", allocator.LEADER)),),
            kind="stat",
            width=4,
            height=7,
            thresholds=((2, RED),),
        ),
        Panel(
            "Days until the certificate ends",
            "The first certificate of a webhook that ends. Below 7: read the log of the Deployment gpufraction-certs, "
            "or of cert-manager.",
            "d",
            (Query(f"({over('min', webhook.CERTIFICATE_EXPIRY)} - time()) / 86400"),),
            kind="stat",
            width=4,
            height=7,
        ),
        Panel(
            "Pods that wait, last 15 minutes",
            "The fewest pods that waited in the last quarter of an hour. Above 0 somebody waits for room: the cluster "
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
    "Behind faults: the webhook",
    (
        Panel(
            "Reviews by outcome",
            "What the webhook answered. When error or malformed appears, its log has the number that the refusal "
            "shows. When denied grows, a team's manifests ask for something that cannot be served.",
            "ops",
            (Query(rate(webhook.ADMISSION_REQUESTS, "outcome"), "{{outcome}}"),),
            stacked=True,
        ),
        Panel(
            "Time of a review",
            "The median and the 99th part. When it rises with the allocator's answers, look at the allocator; when "
            "alone, at the CPU of the webhook's node.",
            "s",
            (
                Query(quantile(0.5, webhook.ADMISSION_SECONDS), "median"),
                Query(quantile(0.99, webhook.ADMISSION_SECONDS), "99 of 100 are faster"),
            ),
            thresholds=((1, RED),),
        ),
        Panel(
            "Answers of the allocator",
            "When unreachable, late or not-ready grows, the allocator in the same pod does not answer: read its log.",
            "ops",
            (Query(rate(webhook.QUESTIONS, "answer"), "{{answer}}"),),
            stacked=True,
        ),
        Panel(
            "Clients of the webhook",
            "Open connections, and clients that were turned away. When clients are turned away, somebody besides the "
            "API server calls the webhook: admit only the API server by the NetworkPolicy.",
            "short",
            (
                Query(over("sum", webhook.CONNECTIONS), "connections"),
                Query(increase(webhook.TURNED_AWAY, "reason"), "turned away: {{reason}}"),
            ),
        ),
    ),
)

_ALLOCATOR = PanelRow(
    "Behind faults: the allocator and the agents",
    (
        Panel(
            "Internal errors by place",
            "Any of them is a bug: the allocator's log has an id and a traceback; report it.",
            "short",
            (
                Query(increase(allocator.FAULTS, "place"), "{{place}}"),
                Query(increase(allocator.WORKER_RESTARTS, "worker"), "worker {{worker}}"),
            ),
            thresholds=((1, RED),),
        ),
        Panel(
            "Watches that broke",
            "Lists and watches that ended with an error. When one repeats, the API server is busy or a right is "
            "missing: the allocator's log names the informer.",
            "short",
            (Query(increase(allocator.WATCH_RESTARTS, "informer", "reason"), "{{informer}}: {{reason}}"),),
        ),
        Panel(
            "Repair",
            "Comparisons of the ledger with the API server, and pods on which they differed. When mended repeats, "
            "report it with the allocator's log. When failed repeats, the API server does not answer.",
            "short",
            (
                Query(increase(allocator.REPAIR_PASSES, "outcome"), "pass {{outcome}}"),
                Query(increase(allocator.LEDGER_DRIFT, "kind"), "pod {{kind}}"),
            ),
        ),
        Panel(
            "Pods that need a look",
            "Pods that no placement helps: uncounted (created without the webhook), unreadable, quarantined after an "
            "internal error, with a share that cannot be read, or stored too late. When it is not 0, their conditions "
            "and Events say what to do.",
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
            "Shares by state. When assumed stays high, pods are admitted and not stored: another webhook or a quota "
            "refuses them.",
            "short",
            (
                Query(over("max", allocator.RESERVATIONS, "state"), "{{state}}"),
                Query(increase(allocator.RESERVATIONS_FORGOTTEN, "reason"), "released: {{reason}}"),
            ),
        ),
        Panel(
            "GPUs with too much on them",
            "GPUs whose pods hold more than the GPU offers. Above 0 is expected after oversubscription was reduced; "
            "otherwise delete the youngest pod on it and report it.",
            "short",
            (Query(over("max", allocator.OVERCOMMITTED_GPUS)),),
            thresholds=((1, RED),),
        ),
        Panel(
            "Options refused",
            "1 while a program cannot read the ConfigMap gpufraction-options; the last good content stays in use. "
            "When it is 1, mend the line that the condition OptionsRefused of a GPUNode names.",
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
            "Pools that give no nodes",
            "Requests for nodes that failed in a row, pools for which none is asked, and how requests ended. "
            "When one appears, `kubectl gpufraction pools` names the reason and the cure.",
            "short",
            (
                Query(over("max", allocator.POOL_FAILURES, "pool"), "{{pool}} failures"),
                Query(f"max by (cluster, pool, reason) ({series(allocator.POOL_BLOCKED)} > 0)", "{{pool}}: {{reason}}"),
                Query(increase(allocator.NODE_REQUESTS_ENDED, "pool", "outcome"), "{{pool}} ended: {{outcome}}"),
            ),
        ),
    ),
)
