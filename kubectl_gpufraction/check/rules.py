"""
All rules in order: the cluster, the installation, the nodes' GPUs and what they enforce, namespaces, other programs.

Pure: facts in, findings out. If a group of rules cannot read an object, only that group is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kubectl_gpufraction.check import cluster, enforcement, install, nodes, tenants, visibility
from kubectl_gpufraction.check.facts import ClusterFacts
from kubectl_gpufraction.check.findings import UNKNOWN, Finding
from kubectl_gpufraction.check.traps import rules as traps

Rules = Callable[[ClusterFacts], Iterable[Finding]]


def findings(facts: ClusterFacts) -> list[Finding]:
    """Every finding on a cluster."""
    rules: tuple[Rules, ...] = (
        cluster.findings,
        install.findings,
        nodes.findings,
        enforcement.findings,
        visibility.findings,
        tenants.findings,
        traps.findings,
    )
    return [finding for rule in rules for finding in _found(rule, facts)]


def _found(rule: Rules, facts: ClusterFacts) -> list[Finding]:
    try:
        return list(rule(facts))
    except Exception as error:
        group = rule.__module__.removesuffix(".rules").rpartition(".")[2]
        return [
            Finding(UNKNOWN, group, f"unknown: an object does not have the form of its kind ({type(error).__name__})")
        ]
