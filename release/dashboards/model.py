"""
Dashboards as Grafana imports them: panels as data, and the JSON that is made of them.

The JSON follows schema version 39, which Grafana 10.3 and every newer one reads. Must not: know a metric.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

JSON = dict[str, Any]
SCHEMA_VERSION = 39
COLUMNS = 24
"""The width of every dashboard of Grafana."""
SOURCE: Mapping[str, str] = {"type": "prometheus", "uid": "${datasource}"}
GREEN, YELLOW, RED, BLUE = "green", "yellow", "red", "blue"
Kind = Literal["timeseries", "stat", "bargauge", "table"]


@dataclass(frozen=True, slots=True)
class Query:
    """One query in PromQL, and the name of its series: a text with labels in it, `{{node}}`."""

    expression: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """
    One panel.

    description: the meaning of the panel, and the cure when it looks bad.
    unit: Grafana's id of the unit of its values. thresholds: where the colour changes, ascending; none is neutral.
    none: the text where there is no series.
    """

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: Kind = "timeseries"
    width: int = 12
    height: int = 8
    thresholds: tuple[tuple[float, str], ...] = ()
    most: float | None = None
    stacked: bool = False
    none: str = "none"

    @property
    def number(self) -> int:
        """The panel's id: made from its title, so links to it stay when panels are added."""
        return zlib.crc32(self.title.encode()) % 1_000_000 + 1


@dataclass(frozen=True, slots=True)
class PanelRow:
    """A heading, and the panels below it in order."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """
    A choice at the top of the page: the values of a label. several: more than one may be chosen, or all.

    everything: what the choice of all means; `.*` finds series without the label too.
    """

    name: str
    metric: str
    label: str
    where: str = ""
    several: bool = False
    everything: str = ".+"


CLUSTERS = Variable("cluster", "gpufraction_leader", "cluster", several=True, everything=".*")
"""On every page: a Prometheus may have many clusters, and one of a single cluster has no label for it."""


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One page. uid: its address in Grafana, which never changes. since: the time that it shows first, `6h`."""

    uid: str
    title: str
    description: str
    rows: tuple[PanelRow, ...]
    variables: tuple[Variable, ...] = ()
    since: str = "6h"
    refresh: str = "1m"
    tags: tuple[str, ...] = field(default=("gpufraction",))

    def panels(self) -> Iterable[Panel]:
        """Every panel, in order."""
        return (panel for row in self.rows for panel in row.panels)

    def rendered(self) -> JSON:
        """The page as Grafana imports it."""
        links = {"title": "gpufraction", "type": "dashboards", "tags": ["gpufraction"], "asDropdown": True}
        kept = {"keepTime": True, "includeVars": True, "targetBlank": False, "icon": "", "tooltip": "", "url": ""}
        return {
            "annotations": {"list": []},
            "description": self.description,
            "editable": True,
            "graphTooltip": 1,
            "links": [{**links, **kept}],
            "panels": _laid_out(self.rows),
            "refresh": self.refresh,
            "schemaVersion": SCHEMA_VERSION,
            "tags": list(self.tags),
            "templating": {"list": [_DATASOURCE, *map(_choice, (CLUSTERS, *self.variables))]},
            "time": {"from": f"now-{self.since}", "to": "now"},
            "timezone": "browser",
            "title": self.title,
            "uid": self.uid,
        }


_DATASOURCE: JSON = {
    "name": "datasource",
    "label": "Prometheus",
    "type": "datasource",
    "query": "prometheus",
    "hide": 0,
    "includeAll": False,
    "multi": False,
    "refresh": 1,
    "regex": "",
    "skipUrlSync": False,
}


def _choice(variable: Variable) -> JSON:
    chosen = "" if variable is CLUSTERS else f'{CLUSTERS.label}=~"${CLUSTERS.name}"'
    where = ", ".join(filter(None, (chosen, variable.where)))
    within = f"{{{where}}}" if where else ""
    query = f"label_values({variable.metric}{within}, {variable.label})"
    everything = {"allValue": variable.everything, "current": {"selected": True, "text": ["All"], "value": ["$__all"]}}
    return {
        "name": variable.name,
        "label": variable.name.replace("_", " ").capitalize(),
        "type": "query",
        "datasource": dict(SOURCE),
        "query": query,
        "hide": 0,
        "includeAll": variable.several,
        "multi": variable.several,
        "refresh": 2,  # the values at the time range that is shown, so nodes that went are found too
        "regex": "",
        "skipUrlSync": False,
        "sort": 1,
        **(everything if variable.several else {}),
    }


def _laid_out(rows: Iterable[PanelRow]) -> list[JSON]:
    """The panels from left to right, and in the next line where the width is used up."""
    found: list[JSON] = []
    top = 0
    for row in rows:
        found.append(_heading(row, top))
        top += 1
        left = highest = 0
        for panel in row.panels:
            if left + panel.width > COLUMNS:
                left, top, highest = 0, top + highest, 0
            found.append(_panel(panel, left, top))
            left, highest = left + panel.width, max(highest, panel.height)
        top += highest
    return found


def _heading(row: PanelRow, top: int) -> JSON:
    number = zlib.crc32(f"row {row.title}".encode()) % 1_000_000 + 1
    place = {"h": 1, "w": COLUMNS, "x": 0, "y": top}
    return {"type": "row", "id": number, "title": row.title, "collapsed": False, "gridPos": place, "panels": []}


def _panel(panel: Panel, left: int, top: int) -> JSON:
    instant = panel.kind in ("table", "bargauge")
    targets = [
        {
            "datasource": dict(SOURCE),
            "editorMode": "code",
            "expr": query.expression,
            "format": "table" if panel.kind == "table" else "time_series",
            "instant": instant,
            "range": not instant,
            "legendFormat": f"{query.legend} {{{{{CLUSTERS.label}}}}}" if query.legend else "__auto",
            "refId": chr(ord("A") + position),
        }
        for position, query in enumerate(panel.queries)
    ]
    return {
        "type": panel.kind,
        "id": panel.number,
        "title": panel.title,
        "description": panel.description,
        "datasource": dict(SOURCE),
        "gridPos": {"h": panel.height, "w": panel.width, "x": left, "y": top},
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _OPTIONS[panel.kind],
        "targets": targets,
        **(_WITHOUT_TIME if panel.kind == "table" else {}),
    }


_WITHOUT_TIME: JSON = {
    "transformations": [{"id": "organize", "options": {"excludeByName": {"Time": True}, "renameByName": {}}}]
}


def _defaults(panel: Panel) -> JSON:
    steps: list[JSON] = [{"color": GREEN if panel.thresholds else BLUE, "value": None}]
    steps += [{"color": colour, "value": value} for value, colour in panel.thresholds]
    by_value = bool(panel.thresholds) or panel.kind != "timeseries"
    found: JSON = {
        "unit": panel.unit,
        "noValue": panel.none,
        "min": 0,
        "color": {"mode": "thresholds" if by_value and panel.kind != "timeseries" else "palette-classic"},
        "thresholds": {"mode": "absolute", "steps": steps},
    }
    if panel.most is not None:
        found["max"] = panel.most
    if panel.kind == "timeseries":
        found["custom"] = {
            "drawStyle": "line",
            "fillOpacity": 20 if panel.stacked else 8,
            "lineWidth": 1,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"group": "A", "mode": "normal" if panel.stacked else "none"},
            "thresholdsStyle": {"mode": "line" if panel.thresholds else "off"},
        }
    return found


_LAST: JSON = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_OPTIONS: Mapping[Kind, JSON] = {
    "timeseries": {
        "legend": {"calcs": ["lastNotNull", "max"], "displayMode": "table", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "colorMode": "value",
        "graphMode": "area",
        "justifyMode": "auto",
        "orientation": "auto",
        "reduceOptions": _LAST,
        "textMode": "auto",
    },
    "bargauge": {
        "displayMode": "gradient",
        "orientation": "horizontal",
        "reduceOptions": _LAST,
        "showUnfilled": True,
        "valueMode": "color",
    },
    "table": {"showHeader": True, "cellHeight": "sm"},
}
