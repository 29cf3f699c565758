"""
Checks the names in a PromQL query against what exists: metrics, labels in matchers, groupings, joins and legends.

A parser of PromQL reads a query, and the labels of its result are computed from the inside to the outside, as
Prometheus does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import promql_parser as parser

from contract.metrics import METRICS

TARGET = frozenset({"instance", "job", "namespace", "pod", "container", "endpoint", "cluster"})
"""Labels that Prometheus adds to each series for the scraped pod, and for its cluster."""
OF_NODES = frozenset({"node"})
"""The label that our scrape configuration adds to an agent's series, and one that dcgm-exporter's may add."""
DCGM = (
    OF_NODES
    | frozenset({"gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname", "DCGM_FI_DRIVER_VERSION", "GPU_I_ID"})
    | {"GPU_I_PROFILE", "container", "namespace", "pod", "cluster"}
)
"""Labels of dcgm-exporter on each series of a card."""
FOREIGN: Mapping[str, frozenset[str]] = {
    "ALERTS": frozenset({"alertname", "alertstate", "severity", "cluster"}),
    "DCGM_FI_DEV_GPU_UTIL": DCGM,
    "DCGM_FI_DEV_FB_USED": DCGM,
    "DCGM_FI_DEV_POWER_USAGE": DCGM,
    "DCGM_FI_DEV_GPU_TEMP": DCGM,
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": DCGM,
}
"""
Series of other programs, by name: Prometheus' own series about alerts, and those of dcgm-exporter's default counters.
"""
_VALUES: Mapping[str, frozenset[str]] = {"alertstate": frozenset({"firing", "pending"})}
_AGGREGATIONS_THAT_KEEP = {"topk", "bottomk", "limitk"}


def labels_of_metrics() -> dict[str, frozenset[str]]:
    """Every series that our programs expose, including the three of a histogram, with its labels."""
    found: dict[str, frozenset[str]] = {}
    for spec in METRICS:
        labels = frozenset(spec.labels) | TARGET | (OF_NODES if spec.program == "nodeagent" else frozenset())
        if spec.kind == "histogram":
            found |= {f"{spec.name}_bucket": labels | {"le"}, f"{spec.name}_sum": labels, f"{spec.name}_count": labels}
        else:
            found[spec.name] = labels
    return found


def apart(expression: str) -> list[str]:
    """
    Where a query mixes clusters: aggregations and joins that drop the label `cluster`; empty if it keeps them apart.

    `on ()` is accepted, because it asks whether there is anything at all. An operation that only picks from unchanged
    series is accepted too.
    """
    found: list[str] = []

    def walk(node: Any) -> None:
        match node:
            case parser.AggregateExpr():
                modifier = node.modifier
                by = modifier.labels if modifier is not None and modifier.type == parser.AggModifierType.By else []
                picks = modifier is None and str(node.op) in _AGGREGATIONS_THAT_KEEP
                if not picks and "cluster" not in by:
                    found.append(node.prettify())
                walk(node.expr)
            case parser.BinaryExpr():
                on = node.modifier.matching.labels if node.modifier and node.modifier.matching else None
                if on and "cluster" not in on:
                    found.append(node.prettify())
                walk(node.lhs)
                walk(node.rhs)
            case parser.Call():
                if node.func.name == "absent":
                    found.append(node.prettify())
                for argument in node.args:
                    walk(argument)
            case parser.ParenExpr() | parser.SubqueryExpr() | parser.UnaryExpr():
                walk(node.expr)

    walk(parser.parse(expression))
    return found


def in_grafana(expression: str) -> str:
    """A panel's expression with values instead of Grafana's variables, so that it is PromQL."""
    spans = expression.replace("$__rate_interval", "5m").replace("$__range", "20m")
    return re.sub(r"\$(?:node|gpu|namespace)\b", ".+", spans.replace("$cluster", ".*"))


@dataclass
class QueryReader:
    """Reads queries. known: the labels of each series. wrong: what was found wrong, in sentences."""

    known: Mapping[str, frozenset[str]]
    wrong: list[str] = field(default_factory=list)
    named: set[str] = field(default_factory=set)

    def labels(self, expression: str) -> frozenset[str]:
        """The labels that the result of a query has."""
        try:
            return self._of(parser.parse(expression))
        except ValueError as error:
            self.wrong.append(f"{expression}: {error}")
            return frozenset()

    def _of(self, node: Any) -> frozenset[str]:
        match node:
            case parser.VectorSelector():
                return self._selected(node)
            case parser.MatrixSelector():
                return self._selected(node.vector_selector)
            case parser.AggregateExpr():
                return self._aggregated(node)
            case parser.BinaryExpr():
                return self._joined(node)
            case parser.Call():
                return self._called(node)
            case parser.ParenExpr() | parser.SubqueryExpr() | parser.UnaryExpr():
                return self._of(node.expr)
            case _:
                return frozenset()  # a number or a text

    def _selected(self, node: Any) -> frozenset[str]:
        self.named.add(node.name)
        if node.name not in self.known:
            self.wrong.append(f"there is no series {node.name}")
            return frozenset()
        labels = self.known[node.name]
        for matcher in node.matchers.matchers:
            if matcher.name not in labels:
                self.wrong.append(f"{node.name} has no label {matcher.name}")
            elif not _possible(node.name, matcher.name, matcher.value):
                self.wrong.append(f"{node.name} never has {matcher.name}={matcher.value}")
        return labels

    def _aggregated(self, node: Any) -> frozenset[str]:
        inner = self._of(node.expr)
        if str(node.op) in _AGGREGATIONS_THAT_KEEP:
            return inner
        if node.modifier is None:
            return frozenset()
        labels = frozenset(node.modifier.labels)
        self._have(labels, inner, node)
        return labels if node.modifier.type == parser.AggModifierType.By else inner - labels

    def _joined(self, node: Any) -> frozenset[str]:
        left, right = self._of(node.lhs), self._of(node.rhs)
        modifier = node.modifier
        if modifier is None or modifier.matching is None:
            return left if _has_series(node.lhs) else right
        on = frozenset(modifier.matching.labels)
        self._have(on, left, node.lhs)
        self._have(on, right, node.rhs)
        card, more = str(modifier.card), frozenset(modifier.group_labels or ())
        if str(node.op) in ("and", "or", "unless"):
            return left
        if "ManyToOne" in card:
            self._have(more, right, node.rhs)
            return left | more
        if "OneToMany" in card:
            self._have(more, left, node.lhs)
            return right | more
        return on

    def _called(self, node: Any) -> frozenset[str]:
        inner = frozenset[str]().union(*(self._of(argument) for argument in node.args))
        if node.func.name == "label_join":
            target, sources = node.args[1].val, (argument.val for argument in node.args[3:])
            self._have(frozenset(sources), inner, node)
            return inner | {target}
        if node.func.name == "label_replace":
            target, source = node.args[1].val, node.args[3].val
            self._have(frozenset({source}), inner, node)
            return inner | {target}
        if node.func.name == "histogram_quantile":
            self._have(frozenset({"le"}), inner, node)
            return inner - {"le"}
        return frozenset() if node.func.name in ("absent", "vector", "time", "scalar") else inner

    def _have(self, wanted: frozenset[str], there: frozenset[str], node: Any) -> None:
        if wanted - there:
            self.wrong.append(f"{node.prettify()} has no label {', '.join(sorted(wanted - there))}")


def _has_series(node: Any) -> bool:
    return not isinstance(node, parser.NumberLiteral)


def _possible(series: str, label: str, value: str) -> bool:
    """Whether the label has such values, by the help of our metrics. A value that is chosen on the page may be any."""
    if "+" in value or value == ".*":
        return True
    spec = next(
        (s for s in METRICS if series in (s.name, f"{s.name}_bucket", f"{s.name}_sum", f"{s.name}_count")), None
    )
    if spec is None:
        return value in _VALUES.get(label, {value})
    if label == "le":
        return value in {str(bound) for bound in (*spec.buckets, "+Inf")}
    return all(each in spec.help for each in value.split("|"))
