"""Every edge has a row that says what bounds it, and every row names existing edges and tests."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from allocator.server.http import socket_routes
from contract import names
from contract.dialects import DIALECTS
from contract.encoding import protocol
from contract.metrics import metrics_of
from kubectl_gpufraction.ui import server as page
from playground.edges import edge
from playground.edges import table as edges
from runtime.metrics import Metrics
from runtime.process import HealthChecks, health_routes
from tests.fuzzing.table import TARGETS
from tests.unit.allocator.harness import SchedulerHarness
from tests.unit.manifests import kube
from tests.unit.manifests.kube import MANIFESTS
from webhook.admission.admit import Configuration
from webhook.serving.application import create_app
from webhook.serving.asking import Allocator, NoAnswer
from webhook.serving.health import Health

JSON = dict[str, Any]
TESTS = Path(__file__).resolve().parents[2]
CHART = "chart"
"""Programs generate these from the other manifests, and separate tests compare them."""


@functools.cache
def documents() -> tuple[JSON, ...]:
    """Every object of the manifests, including the parts of components."""
    files = [file for file in sorted(MANIFESTS.rglob("*.yaml")) if CHART not in file.relative_to(MANIFESTS).parts]
    return tuple(each for file in files for each in kube.documents(file) if isinstance(each, dict))


def rights() -> Iterator[str]:
    for each in documents():
        if each.get("kind") in ("Role", "ClusterRole"):
            for rule in each.get("rules") or ():
                for verb in rule["verbs"]:
                    for resource in rule.get("resources", ()):
                        yield f"right {each['metadata']['name']} {verb} {resource}"


def fields() -> Iterator[str]:
    for each in documents():
        if each.get("kind") == "CustomResourceDefinition":
            kind = each["spec"]["names"]["kind"]
            for version in each["spec"]["versions"]:
                for field in leaves(version["schema"]["openAPIV3Schema"], ""):
                    if field not in (".apiVersion", ".kind", ".metadata"):
                        yield f"field {kind} {field.removeprefix('.')}"


def leaves(schema: JSON, path: str) -> Iterator[str]:
    """The paths of a schema below which nothing is described."""
    if schema.get("properties"):
        for name, below in schema["properties"].items():
            yield from leaves(below, f"{path}.{name}")
    elif "items" in schema:
        yield from leaves(schema["items"], f"{path}[]")
    else:
        yield path


def mounted(part: Any) -> Iterator[str]:
    """The host's folders below a part of a manifest."""
    if isinstance(part, dict):
        if isinstance(part.get("hostPath"), dict):
            yield f"path {part['hostPath']['path']}"
        for below in part.values():
            yield from mounted(below)
    elif isinstance(part, list):
        for below in part:
            yield from mounted(below)


def routes() -> Iterator[str]:
    metrics = Metrics(metrics_of("webhook"))
    health = Health(ready=lambda: None)
    app = create_app(Configuration, Allocator(lambda question, patience: NoAnswer("late")), metrics, health=health)
    for rule in app.url_map.iter_rules():
        if rule.endpoint != "static":
            for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):
                yield f"route webhook {method} {rule.rule}"
    served: dict[str, Mapping[tuple[str, str], object]] = {
        "allocator": {
            **socket_routes(SchedulerHarness().controller, Metrics(metrics_of("allocator"))),
            ("POST", protocol.CLAIMS_PATH): None,  # part of the feature resourceclaims
        },
        "metrics": {**health_routes(metrics, ready=HealthChecks()), **health.routes(metrics)},
        "page": page.routes(None, None, object()),  # type: ignore[arg-type]
    }
    for server, found in served.items():
        for method, path in found:
            if path not in page.FILES or path == "/":  # its own files, which are the same for all users
                yield f"route {server} {method} {path}"


@functools.cache
def there_are() -> set[str]:
    """All edges."""
    return {
        *(f"name {key}" for key in names.REGISTRY),
        *(f"dialect {dialect.name}" for dialect in DIALECTS),
        *rights(),
        *fields(),
        *routes(),
        *(path for each in documents() for path in mounted(each)),
    }


def test_every_edge_has_a_row() -> None:
    """If this fails, add the edge to a row of `playground/edges`: who writes it, what bounds it, which test."""
    assert sorted(there_are() - set(edges.covered())) == []


def test_no_row_covers_an_edge_that_was_removed() -> None:
    assert sorted(set(edges.covered()) - there_are()) == []


def rows() -> list[edge.Edge]:
    return [row for feature in edges.FEATURES for row in feature.rows]


def test_every_row_says_who_what_and_by_which_test() -> None:
    wrong = [row for row in rows() if row.who not in edge.WRITERS or not (row.writes and row.bound and row.tests)]
    assert wrong == []


def defined(file: Path) -> set[str]:
    """The names of a module's tests."""
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}


def test_every_test_of_a_row_exists() -> None:
    named = {test for row in rows() for test in row.tests if not test.startswith(edge.FUZZING)}
    missing = set()
    for each in named:
        path, _, test = each.partition("::")
        file = TESTS / path
        if not file.is_file() or (test and test not in defined(file)):
            missing.add(each)
    assert missing == set()


def test_every_target_of_the_fuzzer_stands_in_a_row() -> None:
    named = {test.removeprefix(edge.FUZZING) for row in rows() for test in row.tests if test.startswith(edge.FUZZING)}
    assert named == {target.name for target in TARGETS}


def test_an_edge_that_nobody_wrote_down_is_found() -> None:
    schema: JSON = {"properties": {"status": {"properties": {"a": {}, "b": {"items": {"properties": {"c": {}}}}}}}}
    assert list(leaves(schema, "")) == [".status.a", ".status.b[].c"]
    pod = {"spec": {"volumes": [{"name": "x", "hostPath": {"path": "/x"}}]}}
    assert list(mounted(pod)) == ["path /x"]
