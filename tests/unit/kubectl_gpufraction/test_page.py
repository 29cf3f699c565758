"""docs/kubectl.md: its examples are the commands' real output, and its table has every exit status."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from contract import names
from kubectl_gpufraction.__main__ import COMMANDS
from kubectl_gpufraction.commands import version
from kubectl_gpufraction.session import Exit
from tests.builders import pod
from tests.unit.kubectl_gpufraction.objects import admitted, gpunode, node
from tests.unit.kubectl_gpufraction.test_manners import DEFAULT, GPUNODES, called
from tests.unit.kubectl_gpufraction.test_tenants import collection
from tests.unit.kubectl_gpufraction.test_version import DAEMONSETS, DEPLOYMENTS, listing, workload

PAGE = Path(__file__).resolve().parents[3] / "docs" / "kubectl.md"
RENEW = "GPUFRACTION_RENEW_KUBECTL_PAGE"
"""Set this variable to write what the commands print into the page."""
_EXAMPLE = re.compile(r"```console\n\$ kubectl gpufraction (.*)\n((?:(?!```).*\n)*)```\n")
_AGE = re.compile(r" +\d+[smhd] +")
EXITS = {
    Exit.OK: "it is done; `dry-run`: every pod would be placed, or asks for no share",
    Exit.FAILED: "the API server gave no answer or refused, the object is not there, or `check` found a failure",
    Exit.USAGE: "wrong arguments; `cordon`: the node has no such GPU",
    Exit.DENIED: "`dry-run`: a pod would be refused",
    Exit.WAITS: "`dry-run`: a pod would wait, and none would be refused",
    Exit.INTERRUPTED: "stopped by the keyboard",
}


WEB = {
    "kind": "Deployment",
    "metadata": {"name": "web"},
    "spec": {"replicas": 3, "template": {"spec": {"containers": [{"name": "main"}]}}},
}


IMAGE = f"registry.example.com/gpufraction:{version.own()}"
ADMISSION = [workload("gpufraction", {"readyReplicas": 2}, ("webhook", IMAGE), ("allocator", IMAGE))]
AGENT = workload("gpufraction-nodeagent", {"numberReady": 1, "desiredNumberScheduled": 1}, ("nodeagent", IMAGE))


def examples() -> list[str]:
    """The text after `kubectl gpufraction` in the page's examples."""
    return [command for command, _ in _EXAMPLE.findall(PAGE.read_text(encoding="utf-8"))]


def printed(command: str, tmp_path: Path) -> str:
    """What the command prints for the tests' cluster."""
    manifest = tmp_path / "web.yaml"
    manifest.write_text(json.dumps(WEB))
    words = [str(manifest) if word == manifest.name else word for word in command.split()]
    roomy = collection(node("n1", {"cpu": "64", "memory": "256Gi", "pods": "110"}))
    answer = admitted("tried", "gpufraction.io/gpu-memory", "2Gi", on="n1")
    idle = gpunode("n1", 15109)
    idle["status"]["idle"] = [{"pod": "runs", "since": "2026-01-05T09:00:00Z"}]
    agrees = {"metadata": {"name": "default", "labels": {str(names.IDLE_AFTER): "2h"}}}
    team = {"metadata": {"name": "team", "labels": {}}}
    missed = pod("train-0", "team").asks("aliyun.com/gpu-mem", 5).json()
    missed["metadata"]["ownerReferences"] = [{"kind": "StatefulSet", "name": "train", "uid": "t", "controller": True}]
    given = {f"POST {DEFAULT}": (201, answer), "/api/v1/nodes": roomy, "/api/v1/namespaces": collection(agrees)}
    given |= {"/api/v1/namespaces/team": (200, team), "/api/v1/namespaces/team/pods": collection(missed)}
    if "team" in words:
        given["/api/v1/pods"] = collection(missed)
    if command == "version":
        given |= {DEPLOYMENTS: listing(*ADMISSION), DAEMONSETS: listing(AGENT)}
    text = called(tmp_path, *words, given={**given, GPUNODES: collection(idle)})[1]
    return text.replace(version.own(), "0.1.0")


def test_the_examples_are_what_is_printed(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    if os.environ.get(RENEW):
        page = _EXAMPLE.sub(
            lambda found: f"```console\n$ kubectl gpufraction {found[1]}\n{printed(found[1], tmp_path)}```\n", page
        )
        PAGE.write_text(page, encoding="utf-8")
    found = _EXAMPLE.findall(page)
    assert [command for command, _ in found] == [
        "nodes",
        "pods -n team",
        "waiting",
        "idle",
        "explain deployment/web",
        "dry-run -f web.yaml",
        "cordon n1 0",
        "version",
    ]
    for command, shown in found:
        assert _AGE.sub(" AGE ", shown) == _AGE.sub(" AGE ", printed(command, tmp_path)), f"{RENEW}=1 writes {PAGE}"


def test_every_exit_status_is_in_the_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert set(EXITS) == set(Exit)
    for status, meaning in EXITS.items():
        assert f"\n| {status.value} | {meaning} |\n" in page


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
def test_every_command_is_named(command: str) -> None:
    assert re.search(rf"\b{command}\b", PAGE.read_text(encoding="utf-8"))
