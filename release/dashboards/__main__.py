"""
`make dashboards`: the dashboards of the component monitoring, as JSON files that Grafana imports.

They are made from the registry of metrics and from the alerts; a test holds the committed files to what is made here.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import yaml

from release.dashboards import cluster, levels, namespace, node, oncall
from release.dashboards.model import Dashboard

COMPONENT = Path(__file__).resolve().parents[2] / "manifests" / "components" / "monitoring"
FOLDER = COMPONENT / "dashboards"
ALERTS = COMPONENT / "alerts.yaml"


def dashboards() -> tuple[Dashboard, ...]:
    """Every dashboard that we ship."""
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["spec"]["groups"]
    alerts = [rule for group in groups for rule in group["rules"]]
    return cluster.PAGE, node.PAGE, namespace.PAGE, levels.PAGE, oncall.page(alerts)


def text(dashboard: Dashboard) -> str:
    """The content of a dashboard's file, which is called as its uid."""
    return json.dumps(dashboard.rendered(), indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    """Write the file of each dashboard."""
    for dashboard in dashboards():
        (FOLDER / f"{dashboard.uid}.json").write_text(text(dashboard), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
