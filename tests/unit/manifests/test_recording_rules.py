"""
Rules and queries on Prometheus' own engine: DCGM joined to shares, alerts that stay quiet, panels that find something.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from contract.metrics import METRICS
from release.dashboards.__main__ import dashboards
from release.dashboards.model import Dashboard
from tests.unit.manifests import promtool
from tests.unit.manifests.kube import JSON, MANIFESTS, ROOT, documents
from tests.unit.manifests.promql import in_grafana
from tests.unit.manifests.promtool import MINUTES, named

MONITORING = MANIFESTS / "components" / "monitoring"
ALERTS, RECORDING = MONITORING / "alerts.yaml", MONITORING / "recording.yaml"
PAGES = dashboards()


def rules(file: Path) -> list[JSON]:
    [item] = documents(file)
    return [rule for group in item["spec"]["groups"] for rule in group["rules"]]


def steady(value: float) -> str:
    return f"{value}+0x{MINUTES}"


def dcgm(name: str, index: int, uuid: str, value: float, **more: str) -> dict[str, str]:
    """A series as dcgm-exporter exposes it: `gpu` is the index."""
    labels = {"gpu": str(index), "UUID": uuid, "device": f"nvidia{index}", "Hostname": "exporter-1", **more}
    return {named(name, labels): steady(value)}


def card(uuid: str, node: str = "a") -> dict[str, str]:
    labels = {"node": node, "gpu": uuid, "model": "Tesla T4", "instance": f"{node}:9445"}
    return {named("gpufraction_gpu_memory_total_bytes", labels): steady(16e9)}


def share(namespace: str, pod: str, uuid: str, node: str = "a", **figures: float) -> dict[str, str]:
    """
    A share's series on its target's node: limit, used and booked in bytes, and utilization if the driver reports it.
    """
    labels = {"namespace": namespace, "pod": pod, "container": "main", "gpu": uuid, "node": node}
    labels["instance"] = f"{node}:9445"
    names = {"limit": "memory_limit_bytes", "used": "memory_used_bytes", "work": "utilization_ratio"}
    names["booked"] = "memory_request_bytes"
    return {named(f"gpufraction_share_{names[key]}", labels): steady(value) for key, value in figures.items()}


SHARED = {
    **card("GPU-1"),
    **share("team-a", "trainer", "GPU-1", limit=6e9, used=5e9, work=0.6),
    **share("team-b", "server", "GPU-1", limit=2e9, used=1e9, work=0.2),
    # dcgm-exporter may have a series for each pod that the device plugin knows, all with the card's value.
    **dcgm("DCGM_FI_DEV_GPU_UTIL", 0, "GPU-1", 90),
    **dcgm("DCGM_FI_DEV_GPU_UTIL", 0, "GPU-1", 90, exported_pod="holder"),
    **dcgm("DCGM_FI_DEV_POWER_USAGE", 0, "GPU-1", 60),
    **dcgm("DCGM_FI_DEV_FB_USED", 0, "GPU-1", 6000),
}
"""Two pods on one card."""
CARD = {"gpu": "GPU-1", "node": "a", "model": "Tesla T4"}
TRAINER = {**CARD, "namespace": "team-a", "pod": "trainer", "container": "main", "instance": "a:9445"}
SERVER = {**CARD, "namespace": "team-b", "pod": "server", "container": "main", "instance": "a:9445"}


def comes_to(
    tmp_path: Path,
    series: dict[str, str],
    expression: str,
    *samples: tuple[dict[str, str], float],
    more: Sequence[JSON] = (),
) -> None:
    """The final value of an expression. It is rounded, because parts of a float can differ in their last digit."""
    wanted = [{"labels": named("", labels), "value": value} for labels, value in samples]
    case = {"expr": f"round({expression}, 0.001)", "eval_time": f"{MINUTES}m", "exp_samples": wanted}
    promtool.run(tmp_path, [*rules(RECORDING), *more], series, promql_expr_test=[case])


@pytest.mark.parametrize("file", [ALERTS, RECORDING], ids=lambda file: file.stem)
def test_prometheus_reads_the_rules(tmp_path: Path, file: Path) -> None:
    [item] = documents(file)
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(item["spec"]))
    promtool.check(tmp_path / "rules.yaml")


def test_a_cards_figures_are_joined_by_its_uuid(tmp_path: Path) -> None:
    comes_to(tmp_path, SHARED, "gpu:dcgm_utilization:ratio", (CARD, 0.9))
    comes_to(tmp_path, SHARED, "gpu:dcgm_power:watts", (CARD, 60))


def test_two_cards_of_one_index_on_two_nodes_are_not_mixed(tmp_path: Path) -> None:
    other = {**card("GPU-2", "b"), **dcgm("DCGM_FI_DEV_POWER_USAGE", 0, "GPU-2", 200)}
    comes_to(
        tmp_path,
        {**SHARED, **other},
        "gpu:dcgm_power:watts",
        (CARD, 60),
        ({"gpu": "GPU-2", "node": "b", "model": "Tesla T4"}, 200),
    )


REPEATED = {
    **SHARED,
    **card("GPU-1", "liar"),
    **dcgm("DCGM_FI_DEV_POWER_USAGE", 0, "GPU-1", 60, Hostname="a"),
    **dcgm("DCGM_FI_DEV_POWER_USAGE", 3, "GPU-1", 9000, Hostname="liar"),
    **share("team-a", "trainer", "GPU-1", "liar", limit=60e9, used=60e9, work=1.0, booked=60e9),
    **card("GPU-2", "b"),
    **dcgm("DCGM_FI_DEV_POWER_USAGE", 0, "GPU-2", 200),
    **share("team-b", "other", "GPU-2", "b", limit=2e9, used=1e9, work=0.5, booked=2e9),
}
"""One node reports the card of another, and shares that it does not have."""
OTHER = {"gpu": "GPU-2", "node": "b", "model": "Tesla T4"}


def test_a_repeated_uuid_takes_no_figure_from_any_card(tmp_path: Path) -> None:
    liar = {**CARD, "node": "liar"}
    comes_to(tmp_path, REPEATED, "gpu:dcgm_power:watts", (CARD, 60), (liar, 9000), (OTHER, 200))
    other = {**OTHER, "namespace": "team-b", "pod": "other", "container": "main", "instance": "b:9445"}
    forged = {**TRAINER, "node": "liar", "instance": "liar:9445"}
    power = ((TRAINER, 45), (SERVER, 15), (forged, 9000), (other, 200))
    comes_to(tmp_path, REPEATED, "share:dcgm_power_by_use:watts", *power)


def test_one_nodes_two_models_of_a_card_end_no_rule(tmp_path: Path) -> None:
    second = {"node": "liar", "gpu": "GPU-9", "model": "B", "instance": "liar:9445"}
    series = {**SHARED, **card("GPU-9", "liar"), named("gpufraction_gpu_memory_total_bytes", second): steady(1)}
    comes_to(tmp_path, series, "gpu:dcgm_power:watts", (CARD, 60))
    comes_to(tmp_path, series, "count(gpu:gpufraction_gpu:info) by (gpu)", ({"gpu": "GPU-1"}, 1), ({"gpu": "GPU-9"}, 1))


def test_dcgm_without_a_known_node_is_joined_where_one_node_has_the_card(tmp_path: Path) -> None:
    silent = {
        **SHARED,
        **card("GPU-1", "liar"),
        **card("GPU-2", "b"),
        **dcgm("DCGM_FI_DEV_POWER_USAGE", 0, "GPU-2", 200),
    }
    comes_to(tmp_path, silent, "gpu:dcgm_power:watts", (OTHER, 200))


def test_the_targets_node_counts_before_what_dcgm_says_of_itself(tmp_path: Path) -> None:
    forged = dcgm("DCGM_FI_DEV_POWER_USAGE", 0, "GPU-1", 9000, Hostname="a", node="liar")
    honest = dcgm("DCGM_FI_DEV_POWER_USAGE", 0, "GPU-1", 60, Hostname="a", node="a")
    series = {**card("GPU-1"), **forged, **honest}
    comes_to(tmp_path, series, "gpu:dcgm_power:watts", (CARD, 60))


def test_power_is_divided_by_the_work_of_the_shares(tmp_path: Path) -> None:
    comes_to(tmp_path, SHARED, "share:dcgm_power_by_use:watts", (TRAINER, 45), (SERVER, 15))
    comes_to(
        tmp_path,
        SHARED,
        "namespace:dcgm_power_by_use:watts",
        ({"namespace": "team-a"}, 45),
        ({"namespace": "team-b"}, 15),
    )


def test_power_is_divided_by_what_the_shares_hold(tmp_path: Path) -> None:
    comes_to(tmp_path, SHARED, "share:dcgm_power_by_reservation:watts", (TRAINER, 45), (SERVER, 15))


def test_what_no_share_explains_is_left_over(tmp_path: Path) -> None:
    comes_to(tmp_path, SHARED, "gpu:dcgm_utilization_unattributed:ratio", (CARD, 0.1))
    comes_to(tmp_path, SHARED, "gpu:dcgm_memory_unattributed:bytes", (CARD, 6000 * 1048576 - 6e9))


def test_where_the_driver_does_not_tell_of_processes_nothing_is_divided_by_use(tmp_path: Path) -> None:
    silent = {name: values for name, values in SHARED.items() if "share_utilization" not in name}
    comes_to(tmp_path, silent, "share:dcgm_power_by_use:watts")
    comes_to(tmp_path, silent, "share:dcgm_power_by_reservation:watts", (TRAINER, 45), (SERVER, 15))


def test_an_idle_card_gives_no_estimate_by_use_in_place_of_a_division_by_zero(tmp_path: Path) -> None:
    idle = {**SHARED, **share("team-a", "trainer", "GPU-1", work=0), **share("team-b", "server", "GPU-1", work=0)}
    comes_to(tmp_path, idle, "share:dcgm_power_by_use:watts")


def test_the_series_of_a_mig_instance_is_not_taken_for_its_card(tmp_path: Path) -> None:
    sliced = {**SHARED, **dcgm("DCGM_FI_DEV_POWER_USAGE", 0, "GPU-1", 300, GPU_I_ID="7", GPU_I_PROFILE="1g.5gb")}
    comes_to(tmp_path, sliced, "gpu:dcgm_power:watts", (CARD, 60))


def test_the_memory_that_a_namespace_holds_and_does_not_use(tmp_path: Path) -> None:
    wanted = (({"namespace": "team-a"}, 1e9), ({"namespace": "team-b"}, 1e9))
    comes_to(tmp_path, SHARED, "namespace:gpufraction_memory_unused:bytes", *wanted)


def booked(uuid: str, memory: float, cores: float, instance: str = "1", *, node: str = "a") -> dict[str, str]:
    """The series of an allocator's replica about a card that may promise 16 GB."""
    labels = {"node": node, "gpu": uuid, "instance": instance}
    return {
        named("gpufraction_gpu_memory_allocated_bytes", labels): steady(memory),
        named("gpufraction_gpu_cores_allocated_ratio", labels): steady(cores),
        named("gpufraction_gpu_memory_promised_bytes", {"node": node, "gpu": uuid, "instance": "agent"}): steady(16e9),
    }


def test_how_busy_a_card_is_for_what_is_held_of_it(tmp_path: Path) -> None:
    other = {**card("GPU-2", "b"), **dcgm("DCGM_FI_DEV_GPU_UTIL", 0, "GPU-2", 10)}
    series = {
        **SHARED,
        **other,
        **booked("GPU-1", 8e9, 0.25),
        **booked("GPU-2", 4e9, 0.8, node="b"),
        **booked("GPU-1", 0, 0, "follower"),
        named("gpufraction_leader", {"instance": "1"}): steady(1),
        named("gpufraction_leader", {"instance": "follower"}): steady(0),
    }
    second = {"gpu": "GPU-2", "node": "b", "model": "Tesla T4"}
    comes_to(tmp_path, series, "gpu:gpufraction_held:ratio", (CARD, 0.5), (second, 0.8))
    comes_to(tmp_path, series, "gpu:dcgm_utilization_of_held:ratio", (CARD, 1.8), (second, 0.125))
    comes_to(tmp_path, series, "model:dcgm_busy_gpus:sum", ({"model": "Tesla T4"}, 1.0))
    busy = (({"namespace": "team-a"}, 0.675), ({"namespace": "team-b"}, 0.225))
    comes_to(tmp_path, series, "namespace:dcgm_busy_gpus:sum", *busy)


def counts(name: str, instance: str, each_minute: float, **labels: str) -> dict[str, str]:
    return {named(name, {**labels, "instance": instance}): f"0+{each_minute}x{MINUTES}"}


def recipes() -> tuple[list[str], list[JSON]]:
    """The queries of the page on tenants in order, and the rules with its prices."""
    text = (ROOT / "docs" / "tenants.md").read_text(encoding="utf-8")
    [prices] = [block for block in re.findall(r"```yaml\n(.+?)```", text, re.DOTALL) if "gpu-prices" in block]
    return re.findall(r"```promql\n(.+?)```", text, re.DOTALL), [
        rule for group in yaml.safe_load(prices)["spec"]["groups"] for rule in group["rules"]
    ]


def test_the_bills_of_the_page_come_to_what_was_held(tmp_path: Path) -> None:
    """Half an hour, counted by two replicas: team-a held a card of each model, team-b half of one card."""
    queries, prices = recipes()
    held, l4, a100 = "gpufraction_share_held_seconds_total", "NVIDIA L4", "NVIDIA A100-SXM4-80GB"
    series: dict[str, str] = {}
    for instance, part in (("1", 0.25), ("2", 0.75)):
        for team, model, cards in (("team-a", l4, 1.0), ("team-a", a100, 1.0), ("team-b", a100, 0.5)):
            labels = {"namespace": team, "model": model, "dialect": "native"}
            series |= counts(held, instance, 60 * part * cards, **labels)
            series |= counts("gpufraction_share_idle_seconds_total", instance, 30 * part * cards, **labels)
        series |= counts("gpufraction_gpu_free_seconds_total", instance, 30 * part, model=a100, state="open")
    for uuid, node, model, price in (("GPU-1", "a", l4, 0.5), ("GPU-2", "b", a100, 4), ("GPU-3", "b", a100, 4)):
        series |= {
            named("gpufraction_gpu_memory_total_bytes", {"node": node, "gpu": uuid, "model": model}): steady(1e10),
            named("node_gpu_hourly_cost", {"node": node, "instance": node}): steady(price),
        }
    team_a, team_b = {"namespace": "team-a"}, {"namespace": "team-b"}
    wanted = (
        (({**team_a, "model": l4}, 0.5), ({**team_a, "model": a100}, 0.5), ({**team_b, "model": a100}, 0.25)),
        (({**team_a, "model": l4}, 0.25), ({**team_a, "model": a100}, 0.25), ({**team_b, "model": a100}, 0.125)),
        (({"model": a100, "state": "open"}, 0.25),),
        ((team_a, 0.5 * 0.70 + 0.5 * 2.50), (team_b, 0.25 * 2.50)),
        ((team_a, 0.5 * 0.5 + 0.5 * 4), (team_b, 0.25 * 4)),
    )
    for query, samples in zip(queries, wanted, strict=True):
        comes_to(tmp_path, series, query, *samples, more=prices)


def joins() -> list[str]:
    """The queries of the page on monitoring, in their order."""
    return re.findall(r"```promql\n(.+?)```", (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8"), re.DOTALL)


def test_the_page_joins_each_cards_figures_to_its_pods(tmp_path: Path) -> None:
    """Card 1 has a pod of each team, card 2 has one pod with two containers, and card 3 has no pods."""
    series: dict[str, str] = {}
    for number, clock, milliwatts in ((1, 1500, 60e3), (2, 900, 30e3), (3, 300, 9e3)):
        uuid = f"GPU-{number}"
        # One is scraped with its target's node; the others report it themselves.
        where = {"node": "a"} if number == 1 else {"Hostname": "a"}
        series |= {**card(uuid), **dcgm("DCGM_FI_DEV_SM_CLOCK", number, uuid, clock, **where)}
        # A pod that dcgm-exporter found itself, and an instance of MIG; neither must matter.
        series |= dcgm(
            "DCGM_FI_DEV_SM_CLOCK", number, uuid, clock, exported_pod="holder", exported_namespace="system", **where
        )
        series |= dcgm("DCGM_FI_DEV_SM_CLOCK", number, uuid, 9000, GPU_I_ID="7")
        energy = {"gpu": str(number), "UUID": uuid, "Hostname": "a"}
        series[named("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", energy)] = f"0+{60 * milliwatts}x{MINUTES}"
    shares = [("team-a", "trainer", "main", 1, 6e9), ("team-b", "server", "main", 1, 2e9)]
    shares += [("team-b", "alone", container, 2, 4e9) for container in ("main", "side")]
    for namespace, pod, container, number, held in shares:
        found = share(namespace, pod, f"GPU-{number}", booked=held, limit=held)
        series |= {name.replace('"main"', f'"{container}"'): values for name, values in found.items()}

    def of(namespace: str, pod: str, number: int, **more: str) -> dict[str, str]:
        return {"namespace": namespace, "pod": pod, "gpu": f"GPU-{number}", **more}

    def whole(namespace: str, pod: str, number: int, container: str = "main") -> dict[str, str]:
        return of(namespace, pod, number, container=container, node="a", model="Tesla T4")

    everyone, alone, watts = joins()
    comes_to(
        tmp_path,
        series,
        everyone,
        (whole("team-a", "trainer", 1), 1500),
        (whole("team-b", "server", 1), 1500),
        (whole("team-b", "alone", 2), 900),
        (whole("team-b", "alone", 2, "side"), 900),
    )
    comes_to(tmp_path, series, alone, (of("team-b", "alone", 2, node="a"), 900))
    comes_to(
        tmp_path,
        series,
        watts,
        ({"namespace": "team-a", "pod": "trainer"}, 45),
        ({"namespace": "team-b", "pod": "server"}, 15),
        ({"namespace": "team-b", "pod": "alone"}, 30),
    )


def of_cards() -> dict[str, str]:
    """DCGM's series of the cards in the generated cluster."""
    names = ("GPU_UTIL", "FB_USED", "POWER_USAGE", "GPU_TEMP")
    found: dict[str, str] = {}
    for index, (_, uuid) in enumerate(promtool.CARDS):
        for name in names:
            found |= dcgm(f"DCGM_FI_DEV_{name}", index, uuid, 50)
        found |= dcgm("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", index, uuid, 0.5)
    return found


FIRING = {named("ALERTS", {"alertname": "GpufractionFaults", "alertstate": "firing", "severity": "warning"}): steady(1)}
HEALTHY_IS_EMPTY = ("absent(", "unless", "== 0)", "> 1)")
"""The texts of queries that correctly find nothing in this cluster."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.uid)
def test_every_query_of_a_page_runs_and_finds_something(tmp_path: Path, page: Dashboard) -> None:
    series = {**promtool.everything(), **of_cards(), **FIRING}
    expressions = [in_grafana(query.expression) for panel in page.panels() for query in panel.queries]
    expressions = [text.replace('node=".+"', 'node="a"') for text in expressions]
    recorded = [{"record": f"panel:query:{n}", "expr": text} for n, text in enumerate(expressions)]
    cases = [
        {
            "expr": f"count(panel:query:{n}) > bool 0",
            "eval_time": f"{MINUTES}m",
            "exp_samples": [{"labels": "{}", "value": 1}],
        }
        for n, text in enumerate(expressions)
        if not any(part in text for part in HEALTHY_IS_EMPTY)
    ]
    assert len(cases) > len(expressions) * 0.8
    promtool.run(tmp_path, [*rules(RECORDING), *recorded], series, promql_expr_test=cases)


def healthy() -> dict[str, str]:
    """A healthy cluster: one leader, no errors, a valid certificate, and cards that serve."""
    well = {
        "gpufraction_leader": 1.0,
        "gpufraction_certificate_expiry_timestamp_seconds": 1e9,
        "gpufraction_mps_serving": 1.0,
    }
    found = {}
    for name, values in promtool.everything().items():
        metric = name.partition("{")[0]
        spec = next((spec for spec in METRICS if spec.name == metric), None)
        if spec is None:
            found[name] = values  # a histogram in which everything is fast
        elif metric == "gpufraction_leader":
            found[name] = values
        else:
            found[name] = steady(well.get(metric, 0))
    return found


def test_no_alert_fires_where_all_is_well(tmp_path: Path) -> None:
    cases = [{"alertname": rule["alert"], "eval_time": f"{MINUTES}m", "exp_alerts": []} for rule in rules(ALERTS)]
    promtool.run(tmp_path, rules(ALERTS), healthy(), alert_rule_test=cases)


def test_every_alert_fires_where_something_is_wrong_or_is_named_here(tmp_path: Path) -> None:
    """Every counter counts and every gauge is 5, without a webhook, and without an agent on one node."""
    series = {
        name: values.replace("1+0x", "5+0x")
        for name, values in promtool.everything().items()
        if "certificate_expiry" not in name and not (name.startswith("gpufraction_gpus{") and 'node="b"' in name)
    }
    quiet = {
        "GpufractionCertificateEnds",  # there is no webhook here, so no certificate either
        "GpufractionNoLeader",
        "GpufractionAdmissionSlow",
        "GpufractionMpsNotServing",
    }
    fires = {rule["alert"] for rule in rules(ALERTS)} - quiet
    recorded = [{"record": f"alert:{rule['alert']}", "expr": rule["expr"]} for rule in rules(ALERTS)]
    cases = [
        {
            "expr": f"count(alert:{name}) > bool 0",
            "eval_time": f"{MINUTES}m",
            "exp_samples": [{"labels": "{}", "value": 1}],
        }
        for name in sorted(fires)
    ]
    promtool.run(tmp_path, [*rules(RECORDING), *recorded], series, promql_expr_test=cases)
