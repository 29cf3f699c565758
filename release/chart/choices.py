"""Which components and overlays go together. The chart refuses the others, with these reasons."""

from __future__ import annotations

from collections.abc import Mapping

NEEDS: Mapping[str, tuple[str, str]] = {
    "cert-manager": ("external-certificates", "cert-manager makes the certificates, so gpufraction-certs must not"),
    "mps": ("node-access", "its daemons are privileged, which the namespace must allow"),
    "preload": ("node-access", "the agent uses folders of its node, which the namespace must allow"),
    "node-placeholders": ("node-provisioning", "placeholders are how it asks for nodes"),
}
"""A component, another one that it does not work without, and why."""
EXCLUDES: Mapping[tuple[str, str], str] = {
    ("host-network", "port-10250"): "in the node's own network the kubelet uses port 10250",
}
"""Two components that do not go together, and why."""
EXCLUDED_BY_OVERLAY: Mapping[tuple[str, str], str] = {
    ("openshift", "cert-manager"): "OpenShift's service-ca makes the certificates there",
}
"""An overlay and a component that do not go together, and why."""
