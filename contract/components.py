"""
The components of `manifests/components`: what each sets, which rights it grants and what it needs.

The one table of these facts. `kubectl gpufraction check` names the component that grants a missing right, the chart
refuses choices that do not go together, the playground starts its processes with the settings that a component adds,
and tests hold the kustomizations and docs/installing.md to it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from contract import names

ALLOCATOR, AGENT, CERTS = "gpufraction-allocator", "gpufraction-nodeagent", "gpufraction-certs"
"""Service accounts of our programs, in our namespace; the agent's where `agents_namespace` says."""


@dataclass(frozen=True, slots=True)
class Access:
    """One permission. `resource` may name a subresource: `pods/eviction`."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}{f' {self.name}' if self.name else ''}{where}"


@dataclass(frozen=True, slots=True)
class Grant:
    """A right that some settings need. Without one of these settings the right is not used."""

    account: str
    access: Access
    settings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Component:
    """One folder of `manifests/components`."""

    name: str
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The settings that it changes, by program: the setting as a flag without dashes, and its value."""
    pod_settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The same where it holds in a pod only: where a volume is mounted, which port is free."""
    grants: tuple[Grant, ...] = ()
    """Those of its rights that show whether it is installed: `check` tries them."""
    needs: Mapping[str, str] = field(default_factory=dict)
    """Other components that it does not work without, and why."""
    excludes: Mapping[str, str] = field(default_factory=dict)
    """Other components that it cannot be combined with, and why."""
    excluded_by: Mapping[str, str] = field(default_factory=dict)
    """Overlays that it cannot be combined with, and why."""
    brings: tuple[str, ...] = ()
    """Other components that are part of it."""
    moves_agents: bool = False
    """Whether the node agent then runs in the namespace of its own (`names.NODES_NAMESPACE`)."""

    def flags(self, program: str) -> tuple[str, ...]:
        """The additions to the program's command line."""
        return tuple(f"--{setting}={value}" for setting, value in self.settings.get(program, {}).items())


_EVICTION = Access("create", "", "pods/eviction")
_PODS = Access("list", "", "pods")
_HOST_FOLDERS = "the agent uses folders of its node, which the namespace must allow"

COMPONENTS = (
    Component(
        "allocator-eviction",
        grants=(
            Grant(
                ALLOCATOR,
                _EVICTION,
                (
                    "preemption",
                    "idle-evict",
                    "repair",
                    "unbound",
                    "defragmentation-evictions-per-hour",
                    "evict-overuse",
                    "evict-unhealthy",
                ),
            ),
        ),
    ),
    Component(
        "canary",
        settings={"allocator": {"canary-enabled": "true"}, "nodeagent": {"proven-within": "24h"}},
        grants=(Grant(ALLOCATOR, Access("create", "", "pods", names.CANARY_NAMESPACE), ("canary-enabled",)),),
    ),
    Component(
        "cert-manager",
        needs={"external-certificates": "cert-manager makes the certificates, so gpufraction-certs must not"},
        excluded_by={"openshift": "OpenShift's service-ca makes the certificates there"},
    ),
    Component(
        "claims",
        settings={"allocator": {"claims": "true"}},
        grants=(Grant(ALLOCATOR, Access("list", "elasticgpu.io", "elasticgpuclaims"), ("claims",)),),
    ),
    Component(
        "client-certificate",
        pod_settings={
            "webhook": {
                "client-ca": "/etc/gpufraction/client-ca/ca.crt",
                "client-names": "gpufraction-api-server",
            }
        },
    ),
    Component("default-spread"),
    Component(
        "delivery-dra",
        settings={"webhook": {"dra": "true"}, "allocator": {"dra": "true"}},
        pod_settings={"nodeagent": {"kubelet": "/var/lib/kubelet", "limiters-cdi": "/var/run/cdi"}},
        grants=(Grant(ALLOCATOR, Access("create", "resource.k8s.io", "resourceclaims"), ("dra",)),),
        needs={"node-access": _HOST_FOLDERS},
    ),
    Component("external-certificates"),
    Component("former-webhook"),
    Component("guard-gpus"),
    Component("hide-gpus", settings={"webhook": {"hide-gpus": "true"}}),
    Component("holders", settings={"nodeagent": {"pods": "true"}}),
    Component("host-network", excludes={"port-10250": "in the node's own network the kubelet uses port 10250"}),
    Component(
        "kueue-check",
        settings={"allocator": {"fits-enabled": "true"}},
        grants=(Grant(ALLOCATOR, Access("list", "kueue.x-k8s.io", "workloads"), ("fits-enabled",)),),
    ),
    Component("monitoring"),
    Component(
        "mps",
        pod_settings={"nodeagent": {"limiters-mps": "/run/gpufraction/mps", "limiters-cdi": "/var/run/cdi"}},
        needs={"node-access": "its daemons are privileged, which the namespace must allow"},
    ),
    Component(
        "multitenant",
        settings={
            "webhook": {"least-isolation": "watch"},
            "allocator": {"placement-when": "stored"},
            "nodeagent": {"driver-limits": "true", "evict-overuse": "5m"},
        },
        brings=("allocator-eviction", "guard-gpus", "hide-gpus", "node-access"),
        excludes={"host-network": "the webhook would need a namespace at the Privileged level"},
    ),
    Component(
        "node-access",
        settings={"nodeagent": {"pods": "true"}},
        pod_settings={"nodeagent": {"host-root": "/host", "options-by-api": "true"}},
        grants=(Grant(AGENT, _PODS, ("pods", "idle-evict")),),
        moves_agents=True,
    ),
    Component(
        "node-placeholders",
        settings={"allocator": {"provisioning-placeholders": "true"}},
        grants=(Grant(ALLOCATOR, Access("create", "", "pods", names.NAMESPACE), ("provisioning-placeholders",)),),
        needs={"node-provisioning": "placeholders are how it asks for nodes"},
    ),
    Component(
        "node-provisioning",
        settings={"allocator": {"provisioning-enabled": "true"}},
        grants=(
            Grant(
                ALLOCATOR,
                Access("patch", "", "configmaps", names.NAMESPACE, str(names.POOLS)),
                ("provisioning-enabled",),
            ),
        ),
    ),
    Component(
        "nvidia-runtimeclass",
        settings={"webhook": {"runtime-class": "nvidia"}, "allocator": {"fits-runtime-class": "nvidia"}},
    ),
    Component(
        "port-10250",
        pod_settings={"webhook": {"bind": "[::]:10250"}},
    ),
    Component(
        "preload",
        settings={"webhook": {"limiter-cache": "true"}},
        pod_settings={
            "nodeagent": {"limiters-preload": "/var/lib/gpufraction/preload", "limiters-cdi": "/var/run/cdi"}
        },
        needs={"node-access": _HOST_FOLDERS},
    ),
    Component(
        "resourceclaims",
        settings={"allocator": {"resource-claims": "true"}},
        grants=(Grant(ALLOCATOR, Access("get", "resource.k8s.io", "resourceclaimtemplates"), ("resource-claims",)),),
    ),
    Component(
        "startup-taint",
        settings={"nodeagent": {"startup-taint": "true"}},
        grants=(Grant(AGENT, Access("patch", "", "nodes"), ("startup-taint",)),),
    ),
    Component("ui"),
    Component("ui-viewers", needs={"ui": "it changes by whose rights the page reads"}),
    Component(
        "unhealthy-lists",
        settings={"allocator": {"unhealthy-lists": "true"}},
        grants=(Grant(ALLOCATOR, Access("list", "", "configmaps", "kube-system"), ("unhealthy-lists",)),),
    ),
)
"""Every component, in the order of the names."""

_BY_NAME = {each.name: each for each in COMPONENTS}


def agents_namespace(chosen: Iterable[str]) -> str:
    """The namespace of the node agents and their account, with these components."""
    moved = any(_BY_NAME[name].moves_agents for name in with_brought(chosen))
    return names.NODES_NAMESPACE if moved else names.NAMESPACE


def with_brought(chosen: Iterable[str]) -> tuple[str, ...]:
    """These components, each once and after those that it brings."""
    found = list[str]()
    for name in chosen:
        found += (each for each in (*_BY_NAME[name].brings, name) if each not in found)
    return tuple(found)


def component(name: str) -> Component:
    """The component of this name. Raises `KeyError` for an unknown name."""
    return _BY_NAME[name]
