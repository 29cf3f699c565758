"""Prometheus' own engine on generated series: what rules record, which alerts fire, whether a query finds anything."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from contract.metrics import METRICS
from contract.metrics.spec import MetricSpec

JSON = dict[str, Any]
MINUTES = 30
"""The length of the generated series."""
CARDS = (("a", "GPU-a0"), ("a", "GPU-a1"), ("b", "GPU-b0"))
SHARES = (
    ("team-a", "trainer-0", "main", "GPU-a0"),
    ("team-b", "server-0", "main", "GPU-a0"),
    ("team-b", "notebook-0", "main", "GPU-b0"),
)
_VALUES = {
    "health": ("healthy", "unhealthy"),
    "level": ("mps", "watch"),
    "outcome": ("placed", "error", "without-gpus"),
}
_VALUES |= {"state": ("open", "closed", "failed", "missing"), "answer": ("late",), "reason": ("queue",)}
_VALUES |= {"verdict": ("in-time", "late")}
"""Values that alerts look for; a label that is not here can have any value."""
_LEADER, _FOLLOWER = "10.0.0.1:9402", "10.0.0.2:9402"


def program() -> str:
    """The path of promtool. Skips the test if it is missing."""
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not on PATH; it runs rules and queries on series (Debian's package prometheus has it)")
    return found


def check(rules: Path) -> None:
    """Check that Prometheus reads the file of rules; the test fails if it does not."""
    done = subprocess.run([program(), "check", "rules", rules], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def run(folder: Path, rules: Iterable[JSON], series: Mapping[str, str], **cases: list[JSON]) -> None:
    """
    Evaluate rules on series for half an hour, and compare. The test fails if something differs.

    series: name with labels, and its values in promtool's form. cases: promtool's `promql_expr_test` or
    `alert_rule_test`.
    """
    (folder / "rules.yaml").write_text(json.dumps({"groups": [{"name": "rules", "rules": list(rules)}]}))
    given = [{"series": name, "values": values} for name, values in series.items()]
    test = {"interval": "1m", "input_series": given, **cases}
    (folder / "test.yaml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [test]})
    )
    command = [program(), "test", "rules", str(folder / "test.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def named(name: str, labels: Mapping[str, str]) -> str:
    """A series as promtool writes it."""
    return f"{name}{{{', '.join(f'{key}={json.dumps(value)}' for key, value in labels.items())}}}"


def everything() -> dict[str, str]:
    """
    Some series of each declared metric, of two nodes with three cards. Counters increase and gauges stay constant.
    """
    return {name: values for spec in METRICS for name, values in _of(spec)}


def _of(spec: MetricSpec) -> Iterator[tuple[str, str]]:
    instances = (_LEADER, _FOLLOWER) if spec.name == "gpufraction_leader" else (_LEADER,)
    for instance, labels in itertools.product(instances, _labels(spec)):
        whole = {**labels, "instance": instance}
        if spec.kind == "histogram":
            for bound in (*spec.buckets, "+Inf"):
                yield named(f"{spec.name}_bucket", {**whole, "le": str(bound)}), f"0+5x{MINUTES}"
            yield named(f"{spec.name}_count", whole), f"0+5x{MINUTES}"
            yield named(f"{spec.name}_sum", whole), f"0+1x{MINUTES}"
        elif spec.kind == "counter":
            yield named(spec.name, whole), f"0+2x{MINUTES}"
        else:
            yield named(spec.name, whole), f"{int(instance == _LEADER)}+0x{MINUTES}"


def _labels(spec: MetricSpec) -> Iterator[dict[str, str]]:
    rows: tuple[dict[str, str], ...] = ({},)
    if "pod" in spec.labels:
        # The node is the target's, from the scrape configuration.
        on = {gpu: node for node, gpu in CARDS}
        rows = tuple(
            {**dict(zip(("namespace", "pod", "container", "gpu"), share, strict=True)), "node": on[share[-1]]}
            for share in SHARES
        )
    elif "gpu" in spec.labels:
        rows = tuple({"node": node, "gpu": gpu} for node, gpu in CARDS)
    elif "node" in spec.labels:
        rows = ({"node": "a"}, {"node": "b"})
    others = [label for label in spec.labels if label not in rows[0]]
    for row, values in itertools.product(rows, itertools.product(*(_VALUES.get(label, ("some",)) for label in others))):
        yield {**row, **dict(zip(others, values, strict=True))}
