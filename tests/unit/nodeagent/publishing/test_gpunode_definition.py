"""The CustomResourceDefinition keeps every field that the agent writes, and explains it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import yaml

from contract import names
from contract.model import Delivery
from contract.nodes.idle import IdleShare
from contract.nodes.reports import PodReport
from contract.reasons.pods import PodEventReason
from nodeagent.isolation.levels import Enforcement
from nodeagent.publishing.status import JSON, Terms, desired, status_of
from tests.unit.nodeagent.builders import card, observation
from tests.unit.nodeagent.cluster import CRD

DEFINITION: JSON = yaml.safe_load(CRD.read_text())
VERSION: JSON = DEFINITION["spec"]["versions"][0]
SCHEMA: JSON = VERSION["schema"]["openAPIV3Schema"]
FULL = card(
    0, pci="00000000:3B:00.0", capability="8.6", numa=1, nvlinks=4, links=(("GPU-1", "NVLink"),), parent="GPU-9"
)
TERMS = Terms(pool="p", options=(("deviceSplitCount", "5"),))
HELD = Enforcement(Delivery(("",), "nvidia.com/gpu", mounts="cdi"), ("watch",), proof="held")
IDLE = frozenset((IdleShare(0, "uid-a"),))
REPORTS = frozenset(
    (PodReport(0, "uid-a", PodEventReason.MEMORY_OVERUSE, 0, "GPU-0", 2, 1, evict=True, evict_after=1),)
)
WANTED = replace(desired("n1", observation(FULL), terms=TERMS).under(HELD), idle=IDLE, reports=REPORTS, heartbeat=120)
STATUS = status_of(WANTED, previous={}, now=0)
TYPES = {"string": str, "boolean": bool, "integer": int, "array": list, "object": dict}


def test_it_defines_what_the_contract_names() -> None:
    spec = DEFINITION["spec"]
    assert (spec["group"], VERSION["name"], spec["names"]["kind"], spec["names"]["plural"], spec["scope"]) == (
        names.GROUP,
        names.VERSION,
        names.GPUNODE_KIND,
        names.GPUNODE_PLURAL,
        "Cluster",
    )
    assert DEFINITION["metadata"]["name"] == f"{names.GPUNODE_PLURAL}.{names.GROUP}"


def test_its_versions_are_one_form_under_two_names() -> None:
    """So the API server converts them itself: docs/decisions/0264-gpunodes-have-two-versions-of-one-form.md."""
    first, second = DEFINITION["spec"]["versions"]
    assert second == {**first, "name": names.NEXT_VERSION, "storage": False}
    assert (first["storage"], DEFINITION["spec"]["conversion"]) == (True, {"strategy": "None"})


def test_every_field_is_explained() -> None:
    # The API server refuses a definition that describes metadata.
    assert [path for path, schema in fields("", SCHEMA) if not schema.get("description")] == [".metadata"]


def test_the_schema_of_the_status_has_exactly_what_the_agent_writes() -> None:
    assert differences("status", STATUS, SCHEMA["properties"]["status"]) == []


def test_printer_columns_read_fields_that_are_written() -> None:
    simple = [c["jsonPath"] for c in VERSION["additionalPrinterColumns"] if c["jsonPath"].startswith(".status")]
    paths = {path for path, _ in fields("", SCHEMA)}
    assert [path for path in simple if "[?" not in path and path not in paths] == []


def fields(path: str, schema: JSON) -> Iterator[tuple[str, JSON]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from fields(f"{path}.{name}", child)
    if "items" in schema:
        yield from fields(f"{path}[]", schema["items"])


def differences(path: str, value: Any, schema: JSON) -> list[str]:
    if not isinstance(value, TYPES[schema["type"]]):
        return [f"{path} is not of type {schema['type']}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{path} is none of {schema['enum']}"]
    if isinstance(value, list):
        return [found for item in value for found in differences(f"{path}[]", item, schema["items"])]
    if not isinstance(value, dict):
        return []
    known = schema["properties"]
    found = [f"{path}.{name} is not in both" for name in sorted(value.keys() ^ known.keys())]
    return found + [
        found
        for name in value.keys() & known.keys()
        for found in differences(f"{path}.{name}", value[name], known[name])
    ]
