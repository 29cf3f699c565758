"""
All rules in order: the cluster, the installation, the nodes' GPUs, the namespaces.

Pure: facts in, findings out.
"""

from __future__ import annotations

from kubectl_gpufraction.check import cluster, install, nodes, tenants
from kubectl_gpufraction.check.facts import ClusterFacts
from kubectl_gpufraction.check.findings import Finding


def findings(facts: ClusterFacts) -> list[Finding]:
    """Every finding on a cluster."""
    rules = (cluster.findings, install.findings, nodes.findings, tenants.findings)
    return [finding for rule in rules for finding in rule(facts)]
