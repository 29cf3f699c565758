"""One Prometheus with two clusters whose nodes, namespaces and programs have the same names and addresses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from release.dashboards.__main__ import dashboards
from release.dashboards.model import Dashboard
from tests.unit.manifests import promtool
from tests.unit.manifests.promql import in_grafana
from tests.unit.manifests.promtool import MINUTES, named
from tests.unit.manifests.test_recording_rules import ALERTS, RECORDING, SHARED, booked, healthy, rules, steady

CLUSTERS = ("east", "west")
GONE_AFTER = 10
"""Minutes after which a cluster reports nothing more, if it stops."""


def of(cluster: str, series: Mapping[str, str]) -> dict[str, str]:
    """The same series from another cluster, distinguished by an external label."""
    return {re.sub(r"\{(?=.)|$(?<!\})", f'{{cluster="{cluster}", ', name, count=1): it for name, it in series.items()}


def both(series: Mapping[str, str]) -> dict[str, str]:
    return {name: values for cluster in CLUSTERS for name, values in of(cluster, series).items()}


def leaders(**clusters: int) -> dict[str, str]:
    """Clusters by how many of their two replicas decide."""
    return {
        named("gpufraction_leader", {"cluster": cluster, "instance": f"10.0.0.{n}:9402"}): steady(int(n <= leading))
        for cluster, leading in clusters.items()
        for n in (1, 2)
    }


def firing(tmp_path: Path, series: dict[str, str], alert: str, *clusters: str | None) -> None:
    """The clusters that an alert names at the end; None is an alert without a cluster."""
    [rule] = [rule for rule in rules(ALERTS) if rule["alert"] == alert]
    rule = {"alert": alert, "expr": rule["expr"], "for": rule["for"]}
    wanted = [{"exp_labels": {"cluster": cluster} if cluster else {}} for cluster in clusters]
    case = {"alertname": alert, "eval_time": f"{MINUTES}m", "exp_alerts": wanted}
    promtool.run(tmp_path, [rule], series, alert_rule_test=[case])


def test_a_leader_in_each_of_two_clusters_is_no_alert(tmp_path: Path) -> None:
    firing(tmp_path, leaders(east=1, west=1), "GpufractionTwoLeaders")
    firing(tmp_path, leaders(east=1, west=1), "GpufractionNoLeader")


def test_each_cluster_without_or_with_two_leaders_is_named(tmp_path: Path) -> None:
    firing(tmp_path, leaders(east=2, west=1), "GpufractionTwoLeaders", "east")
    firing(tmp_path, leaders(east=1, west=0), "GpufractionNoLeader", "west")


def test_a_cluster_that_says_nothing_more_is_named_while_others_speak(tmp_path: Path) -> None:
    silent = f"1+0x{GONE_AFTER}"
    expiry, there = "gpufraction_certificate_expiry_timestamp_seconds", {"cluster": "east", "instance": "1"}
    webhooks = {named(expiry, there): steady(1e9), named(expiry, {**there, "cluster": "west"}): silent}
    firing(tmp_path, webhooks, "GpufractionWebhookGone", "west")
    west = dict.fromkeys(leaders(west=1), silent)
    firing(tmp_path, {**leaders(east=1), **west}, "GpufractionNoLeader", "west")


@pytest.mark.parametrize("alert", ["GpufractionWebhookGone", "GpufractionNoLeader"])
def test_where_nothing_was_ever_scraped_one_alert_says_so(tmp_path: Path, alert: str) -> None:
    firing(tmp_path, {"up": steady(1)}, alert, None)


def test_no_alert_fires_where_all_is_well_in_two_clusters(tmp_path: Path) -> None:
    cases = [{"alertname": rule["alert"], "eval_time": f"{MINUTES}m", "exp_alerts": []} for rule in rules(ALERTS)]
    promtool.run(tmp_path, rules(ALERTS), both(healthy()), alert_rule_test=cases)


def test_every_rule_records_of_two_clusters_what_it_records_of_each(tmp_path: Path) -> None:
    """
    The second cluster is a copy of the first: a join that mixed them would fail, and a sum would be twice as much.
    """
    one = {
        **SHARED,
        **booked("GPU-1", 8e9, 0.25),
        named("gpufraction_leader", {"instance": "1"}): steady(1),
        named("gpufraction_share_held_seconds_total", {"namespace": "team-a", "model": "T4", "instance": "1"}): (
            f"0+30x{MINUTES}"
        ),
    }
    names = list(dict.fromkeys(rule["record"] for rule in rules(RECORDING)))
    alone = {name: values for name, values in of("east", one).items()}
    for series, clusters in ((alone, 1), (both(one), 2)):
        at_the_end = {"eval_time": f"{MINUTES}m"}
        cases = []
        for name in names:
            # Each cluster has the same figures. Series that are never recorded for this cluster are accepted here.
            differ = f"max(count without (cluster) ({name}) != bool {clusters}) or vector(0)"
            cases.append({"expr": differ, **at_the_end, "exp_samples": [{"labels": "{}", "value": 0}]})
        for name in sorted(MADE):
            wanted = [{"labels": "{}", "value": clusters}]
            cases.append({"expr": f"count(count by (cluster) ({name}))", **at_the_end, "exp_samples": wanted})
        promtool.run(tmp_path, rules(RECORDING), series, promql_expr_test=cases)


MADE = {
    "gpu:dcgm_utilization:ratio",
    "gpu:gpufraction_held:ratio",
    "gpu:dcgm_utilization_of_held:ratio",
    "share:dcgm_power_by_use:watts",
    "namespace:dcgm_power_by_reservation:watts",
    "namespace:gpufraction_memory_unused:bytes",
    "namespace:gpufraction_held_gpus:rate5m",
}
"""Series that must exist, because a rule that mixes clusters returns none."""


@pytest.mark.parametrize("page", dashboards(), ids=lambda page: page.uid)
def test_the_queries_of_a_page_run_on_two_clusters(tmp_path: Path, page: Dashboard) -> None:
    """promtool fails if the evaluation of a rule fails, such as a join with two matches."""
    expressions = [in_grafana(query.expression) for panel in page.panels() for query in panel.queries]
    recorded = [{"record": f"panel:query:{n}", "expr": text} for n, text in enumerate(expressions)]
    cases = [
        {
            "expr": f"max(count without (cluster) (panel:query:{n}) != bool 2) or vector(0)",
            "eval_time": f"{MINUTES}m",
            "exp_samples": [{"labels": "{}", "value": 0}],
        }
        for n, text in enumerate(expressions)
        if "topk" not in text and "vector(0)" not in text
    ]
    promtool.run(tmp_path, [*rules(RECORDING), *recorded], both(promtool.everything()), promql_expr_test=cases)
