"""Declared metrics become collectors, and only those."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from contract.encoding.plain import NAME, plain
from contract.metrics import METRICS, metrics_of
from contract.metrics.allocator import DECISIONS, GPU_MEMORY_ALLOCATED, LEADER, WAITING_PODS, WATCH_RESTARTS
from contract.metrics.spec import MetricSpec
from contract.metrics.webhook import ADMISSION_SECONDS
from runtime.metrics import Metrics


def test_every_declared_metric_is_exposed_under_its_own_name() -> None:
    metrics = Metrics(METRICS)
    families = {family.name for family in metrics.registry.collect()}
    assert families == {spec.name.removesuffix("_total") for spec in METRICS}
    assert len({spec.name for spec in METRICS}) == len(METRICS)


def test_what_is_scraped_is_what_is_declared() -> None:
    metrics = Metrics(metrics_of("allocator"))
    metrics.counter(DECISIONS).labels(outcome="placed").inc()
    declared = {spec.name for spec in METRICS}
    scraped = {line.split()[2] for line in metrics.render().decode().splitlines() if line.startswith("# TYPE")}
    assert scraped <= declared


def test_every_metric_belongs_to_one_program() -> None:
    programs = ("webhook", "allocator", "nodeagent")
    assert sum(len(metrics_of(program)) for program in programs) == len(METRICS)


def test_values_are_rendered() -> None:
    metrics = Metrics(metrics_of("allocator"))
    metrics.counter(DECISIONS).labels(outcome="placed").inc()
    metrics.gauge(WAITING_PODS).set(4)
    text = metrics.render().decode()
    assert 'gpufraction_decisions_total{outcome="placed"} 1.0\n' in text
    assert "gpufraction_waiting_pods 4.0\n" in text


ODD = 'a "quoted" \\ name\nof two lines'


def test_rows_are_read_at_each_scrape_and_parse_as_they_were() -> None:
    rows: list[tuple[tuple[str, ...], float]] = [(("n", "GPU-1"), 3 << 30), (("n", ODD), 0.5)]
    metrics = Metrics(metrics_of("allocator"))
    metrics.rows(GPU_MEMORY_ALLOCATED, lambda: rows)

    def scraped() -> list[tuple[dict[str, str], float]]:
        families = {family.name: family for family in text_string_to_metric_families(metrics.render().decode())}
        found = families[GPU_MEMORY_ALLOCATED.name]
        assert (found.type, found.documentation) == ("gauge", GPU_MEMORY_ALLOCATED.help)
        return [(sample.labels, sample.value) for sample in found.samples]

    on_one_line = ODD.replace("\n", " ")
    assert scraped() == [({"node": "n", "gpu": "GPU-1"}, 3 << 30), ({"node": "n", "gpu": on_one_line}, 0.5)]
    del rows[0]
    assert scraped() == [({"node": "n", "gpu": on_one_line}, 0.5)]


ANYTHING = st.text(st.characters() | st.sampled_from('\ud800\udfff\x1b\x00\n\x7f\x9b\u202e"'), max_size=400)


@given(st.lists(st.tuples(ANYTHING, ANYTHING), max_size=5, unique=True), ANYTHING)
def test_whatever_a_label_is_a_scrape_is_answered_and_parses(rows: list[tuple[str, str]], reason: str) -> None:
    metrics = Metrics(metrics_of("allocator"))
    metrics.rows(GPU_MEMORY_ALLOCATED, lambda: [(labels, 1.0) for labels in rows])
    metrics.counter(WATCH_RESTARTS).labels(informer="pods", reason=reason).inc()
    text = metrics.render().decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert text.replace("\n", "").isprintable()
    series = [tuple(sample.labels.values()) for sample in families[GPU_MEMORY_ALLOCATED.name].samples]
    assert set(series) == {tuple(plain(value, NAME) for value in labels) for labels in rows}
    assert len(series) == len(set(series))
    restarts = families[WATCH_RESTARTS.name.removesuffix("_total")].samples
    assert [sample.labels["reason"] for sample in restarts] == [plain(reason, NAME)]


def test_a_metric_that_cannot_be_read_is_left_out_alone(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> list[tuple[tuple[str, ...], float]]:
        raise RuntimeError("no rows")

    metrics = Metrics(metrics_of("allocator"))
    metrics.rows(GPU_MEMORY_ALLOCATED, broken)
    metrics.gauge(WAITING_PODS).set(4)
    text = metrics.render().decode()
    assert "gpufraction_waiting_pods 4.0\n" in text
    assert GPU_MEMORY_ALLOCATED.name not in text
    assert [(record.message, vars(record)["metric"]) for record in caplog.records] == [
        ("metric left out of a scrape", GPU_MEMORY_ALLOCATED.name)
    ]


def test_a_histogram_has_its_declared_buckets() -> None:
    metrics = Metrics(metrics_of("webhook"))
    metrics.histogram(ADMISSION_SECONDS).labels(outcome="placed").observe(0.02)
    text = metrics.render().decode()
    assert 'gpufraction_admission_duration_seconds_bucket{le="0.01",outcome="placed"} 0.0\n' in text
    assert 'gpufraction_admission_duration_seconds_bucket{le="0.02",outcome="placed"} 1.0\n' in text


def test_another_programs_metric_cannot_be_written() -> None:
    with pytest.raises(KeyError):
        Metrics(metrics_of("webhook")).gauge(LEADER)


def test_a_gauge_is_not_handed_out_as_a_counter() -> None:
    with pytest.raises(TypeError, match="declared as a gauge"):
        Metrics(METRICS).counter(LEADER)


WRONG: dict[str, dict[str, Any]] = {
    "a foreign prefix": {"name": "other_total", "kind": "counter"},
    "a counter without _total": {"name": "gpufraction_x", "kind": "counter"},
    "a gauge with _total": {"name": "gpufraction_x_total", "kind": "gauge"},
    "a histogram without buckets": {"name": "gpufraction_x_seconds", "kind": "histogram"},
    "buckets out of order": {"name": "gpufraction_x_seconds", "kind": "histogram", "buckets": (2.0, 1.0)},
}


@pytest.mark.parametrize("figures", WRONG.values(), ids=WRONG.keys())
def test_a_spec_is_refused_for(figures: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="metric"):
        MetricSpec(help="h", program="webhook", **figures)
