"""The dashboards: generated from the registry, accepted by Grafana's schema, and no query names a missing thing."""

from __future__ import annotations

import functools
import json
import os
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard as OfGrafana

from contract.metrics import METRICS
from kubectl_gpufraction.__main__ import COMMANDS
from release.dashboards.__main__ import FOLDER, dashboards, text
from release.dashboards.model import COLUMNS, SCHEMA_VERSION, Dashboard, Panel
from release.dashboards.oncall import UID, watched
from release.dashboards.promql import over, series
from tests.unit.manifests.kube import JSON, MANIFESTS, ROOT, documents, of, parsed, with_components
from tests.unit.manifests.promql import FOREIGN, QueryReader, apart, in_grafana, labels_of_metrics

PAGES = dashboards()
MONITORING = MANIFESTS / "components" / "monitoring"
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.uid)
PANELS = [(page, panel) for page in PAGES for panel in page.panels()]
every_panel = pytest.mark.parametrize(("page", "panel"), PANELS, ids=[f"{p.uid}: {q.title}" for p, q in PANELS])
UNITS = {"short", "percentunit", "bytes", "ops", "s", "h", "d", "watt", "celsius"}
"""Ids of units that Grafana has. It shows an unknown unit as text after the number."""
ACTS = re.compile(r"\b(If|When|Above|Below|Near|At \d|Each of them|Make|The panel of each)\b")
"""The beginnings of sentences that say what looks bad, or what to do."""


def rules(file: str) -> list[JSON]:
    [item] = documents(MONITORING / file)
    return [rule for group in item["spec"]["groups"] for rule in group["rules"]]


def reader() -> QueryReader:
    """A reader that knows our metrics, those of other programs, and what our rules record."""
    return QueryReader(recorded())


@functools.cache
def recorded() -> Mapping[str, frozenset[str]]:
    """The labels of every series that can exist; a rule may use what earlier rules record."""
    found = QueryReader({**labels_of_metrics(), **FOREIGN})
    for rule in rules("recording.yaml"):
        found.known = {**found.known, rule["record"]: found.labels(rule["expr"])}
    assert found.wrong == []
    return found.known


@every_page
def test_the_committed_file_is_what_is_made(page: Dashboard) -> None:
    assert (FOLDER / f"{page.uid}.json").read_text(encoding="utf-8") == text(page), "run `make dashboards`"


def test_there_is_no_file_besides_and_each_has_its_configmap() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == {page.uid for page in PAGES}
    maps = [item for item in of(with_components("monitoring"), "ConfigMap") if "dashboard" in item["metadata"]["name"]]
    assert {name for item in maps for name in item["data"]} == {f"{page.uid}.json" for page in PAGES}
    for item in maps:
        [content] = item["data"].values()
        json.loads(content)
        assert item["metadata"]["labels"]["grafana_dashboard"] == "1"
        # `kubectl apply` writes the whole object into one annotation, and annotations may have 256 KiB in total.
        assert len(json.dumps(item)) < 200 * 1024


@every_page
def test_grafanas_own_schema_knows_every_field(page: Dashboard) -> None:
    register_default_plugins()
    made = page.rendered()
    read = json.loads(json.dumps(OfGrafana.from_json(made), cls=JSONEncoder))
    assert missing(made, read) == []
    assert made["schemaVersion"] == SCHEMA_VERSION


def missing(made: Any, read: Any, at: str = "") -> list[str]:
    """What Grafana's model dropped: parts of `made` that are not in `read`. A missing null equals a null."""
    if isinstance(made, dict):
        if not isinstance(read, dict):
            return [at]
        return [
            m for key, value in made.items() if value is not None for m in missing(value, read.get(key), f"{at}.{key}")
        ]
    if isinstance(made, list):
        if not isinstance(read, list) or len(read) != len(made):
            return [at]
        return [m for i, (a, b) in enumerate(zip(made, read, strict=True)) for m in missing(a, b, f"{at}[{i}]")]
    return [] if made == read else [f"{at}: {made!r}, Grafana has {read!r}"]


def test_a_field_that_grafana_does_not_have_is_found() -> None:
    register_default_plugins()
    made = PAGES[0].rendered() | {"colour": "red"}
    read = json.loads(json.dumps(OfGrafana.from_json(made), cls=JSONEncoder))
    assert missing(made, read) == [".colour: 'red', Grafana has None"]


def test_addresses_and_titles_are_each_pages_own() -> None:
    assert len({page.uid for page in PAGES}) == len({page.title for page in PAGES}) == len(PAGES)
    assert {page.uid for page in PAGES} == {
        f"gpufraction-{name}" for name in ("cluster", "node", "namespace", "service-levels", "on-call")
    }


@every_page
def test_panels_have_numbers_of_their_own_and_do_not_overlap(page: Dashboard) -> None:
    panels = page.rendered()["panels"]
    assert [number for number, count in Counter(panel["id"] for panel in panels).items() if count > 1] == []
    taken: Counter[tuple[int, int]] = Counter()
    for place in (panel["gridPos"] for panel in panels):
        assert place["x"] + place["w"] <= COLUMNS
        taken.update(
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        )
    assert [cell for cell, count in taken.items() if count > 1] == []


@every_panel
def test_a_panel_has_a_title_a_unit_and_says_what_to_do(page: Dashboard, panel: Panel) -> None:
    assert panel.title
    assert panel.unit in UNITS
    assert ACTS.search(panel.description), panel.description
    assert panel.description.endswith(".")


@every_panel
def test_a_query_names_metrics_and_labels_that_there_are(page: Dashboard, panel: Panel) -> None:
    found = reader()
    for query in panel.queries:
        labels = found.labels(in_grafana(query.expression))
        assert found.wrong == []
        assert set(re.findall(r"\{\{(\w+)\}\}", query.legend)) <= labels
        chosen = set(re.findall(r"\$(node|gpu|namespace)\b", query.expression))
        assert chosen <= {variable.name for variable in page.variables}


def test_every_metric_of_the_registry_is_on_a_page() -> None:
    found = reader()
    for _, panel in PANELS:
        for query in panel.queries:
            found.labels(in_grafana(query.expression))
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in found.named}
    assert [spec.name for spec in METRICS if spec.name not in shown | found.named] == []


def test_a_choice_names_a_label_of_its_metric() -> None:
    known = labels_of_metrics()
    for page in PAGES:
        for variable in page.variables:
            assert variable.label in known[variable.metric]


@every_page
def test_every_query_and_choice_asks_the_chosen_prometheus(page: Dashboard) -> None:
    made = page.rendered()
    first, *others = made["templating"]["list"]
    assert (first["name"], first["type"]) == ("datasource", "datasource")
    sources = [panel["datasource"] for panel in made["panels"] if panel["type"] != "row"]
    sources += [target["datasource"] for panel in made["panels"] for target in panel.get("targets", ())]
    sources += [each["datasource"] for each in others]
    assert (others[0]["name"], others[0]["allValue"]) == ("cluster", ".*")
    assert all('{cluster=~"$cluster"' in each["query"] for each in others[1:])
    assert {source["uid"] for source in sources} == {"${datasource}"}


def test_each_alert_links_to_its_panel_and_its_page() -> None:
    [page] = [page for page in PAGES if page.uid == UID]
    titles = {str(panel.number): panel.title for panel in page.panels()}
    for alert in rules("alerts.yaml"):
        notes = alert["annotations"]
        assert notes["__dashboardUid__"] == UID
        assert titles[notes["__panelId__"]] == alert["alert"]


RUNBOOKS = "https://gpufraction.invalid/docs/runbooks.md"


def built_from_page(folder: Path, word: str) -> list[JSON]:
    """The objects of the kustomization in docs/monitoring.md that contains this word."""
    text = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n(apiVersion: kustomize.+?)```", text, re.DOTALL)
    [found] = [block for block in blocks if word in block]
    above = os.path.relpath(MANIFESTS, folder.resolve())  # kustomize takes relative paths only
    (folder / "kustomization.yaml").write_text(re.sub(r"(?<=- )manifests/", f"{above}/", found), encoding="utf-8")
    return parsed(folder.resolve())


def alerting(item: JSON) -> bool:
    return (item["kind"], item["metadata"]["name"]) == ("PrometheusRule", "gpufraction")


def test_each_alert_has_its_section_of_the_runbooks_and_no_other_is_there() -> None:
    text = (ROOT / "docs/runbooks.md").read_text(encoding="utf-8")
    parts = dict(re.findall(r"^## (\w+)\n(.+?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    said = {name: re.findall(r"^\*\*(.+?):\*\* ", part, re.MULTILINE) for name, part in parts.items()}
    alerts = rules("alerts.yaml")
    sections = [alert["alert"] for alert in alerts]
    assert said == {name: ["For pods", "Cause", "Cure"] for name in sections}
    urls = [alert["annotations"]["runbook_url"] for alert in alerts]
    assert urls == [f"{RUNBOOKS}#{section.lower()}" for section in sections]


def test_the_address_of_the_runbooks_is_set_once(tmp_path: Path) -> None:
    [rule] = [item for item in built_from_page(tmp_path, "replacements:") if alerting(item)]
    mine = "https://git.example.com/platform/gpufraction/blob/v0.1.0/docs/runbooks.md"
    made = [each["annotations"]["runbook_url"] for group in rule["spec"]["groups"] for each in group["rules"]]
    assert made == [each["annotations"]["runbook_url"].replace(RUNBOOKS, mine) for each in rules("alerts.yaml")]


def test_an_alert_says_what_to_do() -> None:
    for alert in rules("alerts.yaml"):
        assert set(alert["annotations"]) == {"summary", "description", "runbook_url", "__dashboardUid__", "__panelId__"}
        assert alert["annotations"]["description"].endswith(".")


def test_alerts_and_recorded_series_name_what_there_is() -> None:
    found = reader()
    for alert in rules("alerts.yaml"):
        found.labels(alert["expr"])
    assert found.wrong == []


@every_panel
def test_a_panel_keeps_clusters_apart_and_shows_the_chosen_ones(page: Dashboard, panel: Panel) -> None:
    for query in panel.queries:
        assert apart(in_grafana(query.expression)) == []
        series = re.findall(r"(?:gpufraction_\w+|\w+:\w+:\w+|ALERTS)(?:\{(.*?)\})?", query.expression)
        assert series
        assert [each for each in series if 'cluster=~"$cluster"' not in each] == []


def test_every_rule_keeps_clusters_apart() -> None:
    for rule in [*rules("alerts.yaml"), *rules("recording.yaml")]:
        assert apart(rule["expr"]) == []


@pytest.mark.parametrize(
    "expression",
    ["sum(a)", "sum by (node) (a)", "a * on (node) b", "absent(a)", "rate(sum without (cluster) (a)[5m:1m])"],
)
def test_a_query_that_mixes_clusters_is_found(expression: str) -> None:
    assert len(apart(expression)) == 1


WRONG = {
    "a metric that is not": "sum(gpufraction_gpu_hours)",
    "a label that is not": 'gpufraction_waiting_pods{node="a"}',
    "a value that is not": 'gpufraction_gpus{health="ill"}',
    "a grouping that is not": "sum by (team) (gpufraction_gpus)",
    "a join that is not": "gpufraction_gpus * on (model) gpufraction_gpu_memory_total_bytes",
    "a label that is taken over and is not": "gpufraction_gpus * on (node) group_left (team) gpufraction_gpu_sharers",
    "a label that an aggregation took away": "max by (node) (sum by (gpu) (gpufraction_gpu_sharers))",
    "no PromQL": "sum by (",
}


@pytest.mark.parametrize("expression", WRONG.values(), ids=WRONG.keys())
def test_a_query_is_refused_for(expression: str) -> None:
    found = reader()
    found.labels(expression)
    assert len(found.wrong) == 1


def test_a_query_over_a_label_that_a_metric_lacks_is_not_made() -> None:
    [gauge] = [spec for spec in METRICS if spec.name == "gpufraction_gpus"]
    with pytest.raises(ValueError, match="has no label 'team'"):
        over("sum", gauge, "team")
    with pytest.raises(ValueError, match="has no label 'team'"):
        series(gauge, 'team="a"')


def test_what_an_alert_looks_at_is_its_expression_without_the_comparison() -> None:
    assert watched("sum(a) > 2 * 3") == watched("sum(a) >= 6")
    assert watched("sum(a) > 6").threshold == 6
    assert watched("absent(a)").threshold is None
    assert watched("count by (x) (a) unless on (x) count by (x) (b)").threshold is None


def test_the_kustomization_of_the_page_labels_what_prometheus_selects(tmp_path: Path) -> None:
    items = built_from_page(tmp_path, "kube-prometheus-stack")
    labelled = [i for i in items if i["metadata"].get("labels", {}).get("release") == "kube-prometheus-stack"]
    assert sorted(item["kind"] for item in labelled) == [*["PodMonitor"] * 2, *["PrometheusRule"] * 2]


def test_the_page_names_every_dashboard_and_every_recorded_series() -> None:
    text = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    assert [page.uid for page in PAGES if f"`/d/{page.uid}`" not in text] == []
    joined = {rule["record"] for rule in rules("recording.yaml")} - {
        f"gpu:gpufraction_gpu:{name}" for name in ("info", "only")
    }
    assert set(re.findall(r"`((?:gpu|share|namespace|model|cluster|priority):\w+:\w+)`", text)) == joined


def test_the_commands_that_panels_and_alerts_name_are_the_plugins() -> None:
    texts = [panel.description for _, panel in PANELS]
    texts += [alert["annotations"]["description"] for alert in rules("alerts.yaml")]
    named = set(re.findall(r"kubectl gpufraction ([a-z-]+)", " ".join(texts)))
    assert named
    assert named <= {command.name for command in COMMANDS}
