"""Service levels on Prometheus' own engine: what is recorded, and how much must fail before an alert pages someone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.manifests import promtool
from tests.unit.manifests.promtool import named
from tests.unit.manifests.test_recording_rules import ALERTS, RECORDING, rules

JSON = dict[str, object]
HOURS = 8
LEVELS = [rule for rule in rules(RECORDING) if rule["record"].startswith("cluster:gpufraction")]
ON_LEVELS = [rule for rule in rules(ALERTS) if "ratio_rate" in rule["expr"]]


def pods(cluster: str, in_time: float, late: float) -> dict[str, str]:
    """This many pods each minute."""
    name = "gpufraction_shares_due_total"
    return {
        named(name, {"cluster": cluster, "instance": "1", "verdict": verdict}): f"0+{each}x{HOURS * 60}"
        for verdict, each in (("in-time", in_time), ("late", late))
    }


def reviews(cluster: str, good: float, *, slow: float = 0, failed: float = 0) -> dict[str, str]:
    """This many reviews each minute: answered at once, after more than a second, or with a fault."""
    found: dict[str, str] = {}
    for outcome, fast, all_ in (("placed", good, good + slow), ("error", failed, failed)):
        labels = {"cluster": cluster, "instance": "1", "outcome": outcome}
        name = "gpufraction_admission_duration_seconds"
        for bound, each in (("1.0", fast), ("+Inf", all_)):
            found[named(f"{name}_bucket", {**labels, "le": bound})] = f"0+{each}x{HOURS * 60}"
        found[named(f"{name}_count", labels)] = f"0+{all_}x{HOURS * 60}"
    return found


def fire(tmp_path: Path, series: dict[str, str], *wanted: tuple[str, str], at: str = f"{HOURS}h") -> None:
    """Which alerts fire for which clusters."""
    cases = []
    for rule in ON_LEVELS:
        clusters = [cluster for name, cluster in wanted if name == rule["alert"]]
        alerts = [
            {"exp_labels": {"cluster": each, **rule["labels"]}, "exp_annotations": rule["annotations"]}
            for each in clusters
        ]
        cases.append({"alertname": rule["alert"], "eval_time": at, "exp_alerts": alerts})
    promtool.run(tmp_path, [*LEVELS, *ON_LEVELS], series, alert_rule_test=cases)


ALL = {rule["alert"] for rule in ON_LEVELS}


def test_there_are_two_alerts_for_each_level() -> None:
    assert {
        "GpufractionAdmissionBudgetFast",
        "GpufractionAdmissionBudgetSlow",
        "GpufractionSharesLateFast",
        "GpufractionSharesLateSlow",
    } == ALL


@pytest.mark.parametrize(
    ("series", "recorded", "value"),
    [
        (reviews("east", 9, slow=0.5, failed=0.5), "cluster:gpufraction_admission_errors:ratio_rate1h", 0.1),
        (reviews("east", 0, failed=1), "cluster:gpufraction_admission_errors:ratio_rate5m", 1),
        (pods("east", 3, 1), "cluster:gpufraction_shares_late:ratio_rate6h", 0.25),
    ],
)
def test_what_is_recorded(tmp_path: Path, series: dict[str, str], recorded: str, value: float) -> None:
    wanted = [{"labels": '{cluster="east"}', "value": value}]
    case = {"expr": f"round({recorded}, 0.001)", "eval_time": f"{HOURS}h", "exp_samples": wanted}
    promtool.run(tmp_path, LEVELS, series, promql_expr_test=[case])


def test_within_what_is_promised_nothing_fires(tmp_path: Path) -> None:
    well = {**reviews("east", 10000, slow=5), **pods("east", 100, 4), **reviews("west", 1), **pods("west", 1, 0)}
    fire(tmp_path, well)


def test_only_the_cluster_that_breaks_its_promise_is_named(tmp_path: Path) -> None:
    broken = {**reviews("east", 9, failed=1), **pods("east", 1, 9), **reviews("west", 9), **pods("west", 9, 0)}
    fire(tmp_path, broken, *((name, "east") for name in sorted(ALL)))


def test_one_late_pod_in_a_quiet_cluster_calls_nobody(tmp_path: Path) -> None:
    name = "gpufraction_shares_due_total"
    late = f"0x{HOURS * 60 - 30} 1x30"
    quiet = {named(name, {"cluster": "east", "verdict": "late"}): late}
    quiet[named(name, {"cluster": "east", "verdict": "in-time"})] = f"0x{HOURS * 60}"
    fire(tmp_path, quiet)


def test_an_alert_ends_soon_after_the_trouble_does(tmp_path: Path) -> None:
    """Most of one hour was late. 48 minutes later the short windows are clean again."""
    name, before = "gpufraction_shares_due_total", HOURS * 60 - 60
    late = f"0x{before - 50} 0+9x60 540x50"
    good = f"0+1x{HOURS * 60}"
    series = {named(name, {"cluster": "east", "verdict": "late"}): late}
    series[named(name, {"cluster": "east", "verdict": "in-time"})] = good
    at = [rule for rule in ON_LEVELS if rule["alert"] == "GpufractionSharesLateFast"]
    alert = {"exp_labels": {"cluster": "east", **at[0]["labels"]}, "exp_annotations": at[0]["annotations"]}
    name = at[0]["alert"]
    cases = [
        {"alertname": name, "eval_time": f"{minute}m", "exp_alerts": alerts}
        for minute, alerts in ((HOURS * 60 - 65, [alert]), (HOURS * 60 - 1, []))
    ]
    promtool.run(tmp_path, [*LEVELS, *at], series, alert_rule_test=cases)
