"""The result of a scrape with our PodMonitors: whatever a node's agent answers, the series are about its own node."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.metrics import METRICS, nodeagent
from tests.unit.manifests.kube import MANIFESTS, documents

JSON = dict[str, Any]
FILE = MANIFESTS / "components" / "monitoring" / "podmonitor.yaml"
MONITORS = {item["metadata"]["name"]: item for item in documents(FILE)}
AGENT, ADMISSION = "gpufraction-nodeagent", "gpufraction"
DISCOVERED = {"__meta_kubernetes_pod_node_name": "n1"}
TARGET = {"namespace": "gpufraction-system", "pod": "nodeagent-x", "container": "nodeagent", "endpoint": "http"}
TARGET |= {"job": "gpufraction-system/gpufraction-nodeagent", "instance": "10.0.0.1:9445"}


def relabelled(labels: dict[str, str], rules: list[JSON]) -> dict[str, str] | None:
    """Prometheus' relabelling, as far as our rules use it; None if the series is dropped."""
    found = dict(labels)
    for rule in rules:
        pattern = re.compile(f"^(?:{rule.get('regex', '(.*)')})$", re.DOTALL)
        value = ";".join(found.get(name, "") for name in rule.get("sourceLabels", ()))
        match rule["action"]:
            case "keep":
                if not pattern.match(value):
                    return None
            case "replace":
                if hit := pattern.match(value):
                    found[rule["targetLabel"]] = hit[1]
            case "labeldrop":
                found = {name: text for name, text in found.items() if not pattern.match(name)}
            case other:
                raise AssertionError(other)
    return found


def scraped(monitor: str, name: str, own_labels: dict[str, str], endpoint: int = 0) -> dict[str, str] | None:
    """The series that Prometheus stores for one that a target exposes."""
    about = MONITORS[monitor]["spec"]["podMetricsEndpoints"][endpoint]
    target = relabelled({**DISCOVERED, **TARGET}, about.get("relabelings", []))
    assert target is not None
    target = {key: value for key, value in target.items() if not key.startswith("__")}
    series = {**own_labels}
    assert about["honorLabels"] is False
    for label, value in sorted(target.items()):
        if label in series:
            moved = f"exported_{label}"
            while moved in series or moved in target:
                moved = f"exported_{moved}"
            series[moved] = series[label]
        series[label] = value
    return relabelled({**series, "__name__": name}, about["metricRelabelings"])


def test_the_agents_own_metrics_are_kept_and_no_others() -> None:
    kept = {spec.name for spec in METRICS if scraped(AGENT, spec.name, {}) is not None}
    assert kept == {spec.name for spec in nodeagent.PROGRAM.metrics}
    assert [
        scraped(AGENT, name, {}) for name in ("gpufraction_leader", "up", "kube_pod_info", "gpufraction_gpus_")
    ] == [None] * 4


def test_an_agents_series_have_their_targets_node_and_the_pod_of_the_share() -> None:
    own_labels = {"namespace": "team-a", "pod": "trainer", "container": "main", "gpu": "GPU-1", "node": "victim"}
    found = scraped(AGENT, "gpufraction_share_memory_used_bytes", own_labels)
    stored = {**TARGET, "namespace": "team-a", "pod": "trainer", "container": "main", "gpu": "GPU-1", "node": "n1"}
    assert found == {**stored, "__name__": "gpufraction_share_memory_used_bytes"}
    card = scraped(AGENT, "gpufraction_gpus", {"node": "victim", "health": "healthy", "pod": "other", "job": "x"})
    assert card == {**TARGET, "node": "n1", "health": "healthy", "__name__": "gpufraction_gpus"}


labels = st.dictionaries(
    st.sampled_from(
        [*TARGET, "node", "gpu", "cluster", "exported_node", "exported_namespace", "exported_exported_node", "instance"]
    )
    | st.from_regex(r"[a-z_]{1,12}", fullmatch=True),
    st.text(max_size=8),
    max_size=8,
)
OWN = {"node": "n1", "job": TARGET["job"], "instance": TARGET["instance"], "endpoint": "http"}


@given(st.sampled_from([spec.name for spec in METRICS]) | st.text(max_size=20), labels)
def test_no_series_of_an_agent_speaks_of_another_node(name: str, own_labels: dict[str, str]) -> None:
    own_labels = {key: value for key, value in own_labels.items() if not key.startswith("__")}
    found = scraped(AGENT, name, own_labels)
    if found is not None:
        assert {key: found[key] for key in OWN} == OWN
        assert not any(key.startswith("exported_") or key == "cluster" for key in found)
        if not name.startswith("gpufraction_share_"):
            assert {key: found[key] for key in TARGET} == TARGET


@pytest.mark.parametrize("endpoint", [0, 1])
def test_what_the_allocator_says_of_nodes_and_teams_stays(endpoint: int) -> None:
    assert scraped(ADMISSION, "node_load1", {}, endpoint) is None
    found = scraped(ADMISSION, "gpufraction_gpu_memory_allocated_bytes", {"node": "b", "gpu": "GPU-2"}, endpoint)
    assert found is not None
    assert (found["node"], found["gpu"]) == ("b", "GPU-2")
    if endpoint == 0:
        held = scraped(ADMISSION, "gpufraction_share_held_seconds_total", {"namespace": "team-a", "model": "T4"})
        assert held is not None
        assert held["namespace"] == "team-a"


def test_every_scrape_shows_the_token_of_its_own_account_over_https() -> None:
    endpoints = [each for item in MONITORS.values() for each in item["spec"]["podMetricsEndpoints"]]
    secret = {"type": "Bearer", "credentials": {"name": "gpufraction-metrics-token", "key": "token"}}
    assert [(each["scheme"], each["authorization"]) for each in endpoints] == [("https", secret)] * 3
