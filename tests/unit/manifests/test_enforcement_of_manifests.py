"""What the check proposes for nodes that enforce nothing, compared with the manifests and the agent's settings."""

from __future__ import annotations

from typing import Any

import pytest

from kubectl_gpufraction.check import enforcement
from kubectl_gpufraction.check.facts import ClusterFacts, settings
from release.chart.settings import PROGRAMS
from runtime.settings import every_setting
from tests.unit.manifests.kube import ROOT, below, with_components

JSON = dict[str, Any]
SEE = "kubectl get gpunode a -o yaml"
COMPONENTS: dict[tuple[str, ...], dict[tuple[str, ...], str]] = {
    (): {(): "manifests/components/node-access", ("watch",): "manifests/components/preload"},
    ("node-access",): {(): SEE, ("watch",): "manifests/components/preload"},
    ("node-access", "preload"): {(): SEE, ("watch",): SEE},
    ("node-access", "mps"): {(): SEE, ("watch",): SEE},
}
"""For each set of components: what the node enforces, and what the command that enforces more contains."""


def gpunode(levels: tuple[str, ...], driver: str = "595.10") -> JSON:
    status = {
        "driverVersion": driver,
        "isolation": list(levels),
        "delivery": {"cdiKind": "nvidia.com/gpu"},
        "gpus": [{"health": "Healthy", "usableBytes": 1}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    return {"metadata": {"name": "a"}, "status": status}


def proposed(daemonsets: tuple[JSON, ...], node: JSON) -> str:
    (found,) = enforcement.findings(ClusterFacts(0.0, (1, 36), gpunodes=(node,), daemonsets=daemonsets))
    return found.cure


@pytest.mark.parametrize("components", COMPONENTS, ids="+".join)
def test_the_check_knows_which_components_an_agent_has(components: tuple[str, ...]) -> None:
    daemonsets = tuple(item for item in with_components(*components) if item["kind"] == "DaemonSet")
    for levels, wanted in COMPONENTS[components].items():
        cure = proposed(daemonsets, gpunode(levels))
        assert wanted in cure
        named = cure.partition(" component ")[2].partition(" ")[0]
        assert not named or (ROOT / named / "kustomization.yaml").is_file()


def test_what_the_check_sets_and_reads_are_settings_of_the_agent() -> None:
    flags = {each.env: each.flag for each in every_setting(PROGRAMS["nodeagent"])}
    accessible = tuple(item for item in with_components("node-access") if item["kind"] == "DaemonSet")
    *command, assigned = proposed(accessible, gpunode(("watch",), driver="615.1")).split()
    variable, _, value = assigned.partition("=")
    assert command == [
        "kubectl",
        "-n",
        accessible[0]["metadata"]["namespace"],
        "set",
        "env",
        f"daemonset/{accessible[0]['metadata']['name']}",
    ]
    assert (flags[variable], value) == ("--driver-limits", "true")
    assert {f"--{choice}" for choice in enforcement.CHOICES} <= set(flags.values())


DEFAULT = [f"overlays/{name}" for name in below("overlays") if name != "multitenant"]


@pytest.mark.parametrize("resource", ["base", *DEFAULT])
def test_a_default_installation_enforces_nothing_as_the_readme_says(resource: str) -> None:
    items = tuple(item for item in with_components(resource=resource) if item["kind"] in ("DaemonSet", "ConfigMap"))
    daemonsets, configmaps = (tuple(i for i in items if i["kind"] == kind) for kind in ("DaemonSet", "ConfigMap"))
    agent = settings(ClusterFacts(0.0, (1, 36), daemonsets=daemonsets, configmaps=configmaps), "nodeagent")
    assert agent
    assert [name for name in (*enforcement.CHOICES, "host-root") if agent.get(name, "") not in ("", "false")] == []
    assert "**A default install enforces nothing**" in (ROOT / "README.md").read_text(encoding="utf-8")
