"""The metrics show the last look and nothing older."""

from __future__ import annotations

from contract.metrics import metrics_of
from contract.nodes.idle import IdleShare
from nodeagent.publishing.metrics import AgentGauges
from nodeagent.sharing.residents import Resident
from runtime.metrics import Metrics
from tests.unit.nodeagent.builders import BLIND, T4, card, observation


def series(metrics: Metrics) -> dict[str, float]:
    lines = [line for line in metrics.render().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_gauges_follow_the_cards() -> None:
    metrics = Metrics(metrics_of("nodeagent"))
    gauges = AgentGauges(metrics, node="n1")
    gauges.show(observation(card(0, used_bytes=5, utilisation=40), card(1, healthy=False)))
    assert series(metrics) == {
        'gpufraction_gpus{health="healthy",node="n1"}': 1,
        'gpufraction_gpus{health="unhealthy",node="n1"}': 1,
        'gpufraction_gpu_memory_total_bytes{gpu="GPU-0",model="Tesla T4",node="n1"}': T4,
        'gpufraction_gpu_memory_total_bytes{gpu="GPU-1",model="Tesla T4",node="n1"}': T4,
        'gpufraction_gpu_memory_used_bytes{gpu="GPU-0",node="n1"}': 5,
        'gpufraction_gpu_utilization_ratio{gpu="GPU-0",node="n1"}': 0.4,
    }
    gauges.show(BLIND)
    assert series(metrics) == {
        'gpufraction_gpus{health="healthy",node="n1"}': 0,
        'gpufraction_gpus{health="unhealthy",node="n1"}': 0,
    }


def test_a_gauge_has_since_when_each_pod_is_idle() -> None:
    metrics = Metrics(metrics_of("nodeagent"))
    gauges = AgentGauges(metrics, node="n1")
    gauges.show_idle([IdleShare(1_700_000_000, "uid-p"), IdleShare(1, "gone")], [Resident("uid-p", "team", "p")])
    name = 'gpufraction_share_idle_since_timestamp_seconds{namespace="team",pod="p"}'
    assert series(metrics) == {name: 1_700_000_000}
    gauges.show_idle([], [])
    assert series(metrics) == {}
