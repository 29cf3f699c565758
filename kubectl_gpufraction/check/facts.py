"""
The facts of the check about a cluster: objects as the API server returned them, or why they could not be read.

Pure. An object that does not exist is None, or an empty collection. An `Unseen` stands for one that could not be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from contract import names
from contract.components import Access
from contract.options import NO_OPTIONS, PoolOptions
from kubectl_gpufraction.check.findings import Unseen
from kubectl_gpufraction.cluster.programs import settings_of

JSON = dict[str, Any]
Objects = tuple[JSON, ...]
CONFIGURATION = names.CONFIGURATION
"""The MutatingWebhookConfiguration of the manifests."""
ADMISSION, CERTS, AGENT = "gpufraction", "gpufraction-certs", "gpufraction-nodeagent"
"""The Deployments and the DaemonSet of the manifests."""


@dataclass(frozen=True, slots=True)
class ProgramRight:
    """A right that one of our service accounts needs, and why."""

    account: str
    access: Access
    component: str = ""
    """The component of the manifests that grants it; empty for the base."""
    setting: str = ""
    """The setting that needs it; empty where every installation does."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """The API server's answer to the dry run of a pod that requests a share: the pod, or the reason for the refusal."""

    namespace: str
    pod: JSON | None = None
    warnings: tuple[str, ...] = ()
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Authorities:
    """The certificates of the webhook configuration's caBundle. `ends`: seconds since the epoch, one for each."""

    ends: tuple[float, ...] = ()
    unreadable: str = ""


@dataclass(frozen=True, slots=True)
class Programs:
    """The observed programs that create pods or nodes. A kind is `PLURAL.GROUP`."""

    served: frozenset[str] = frozenset()
    """Kinds that the API server serves, of the groups that are looked for."""
    objects: Mapping[str, Objects | Unseen] = field(default_factory=dict)
    """By kind, the objects of all namespaces."""
    configmaps: Mapping[str, JSON | Unseen | None] = field(default_factory=dict)
    """By `namespace/name`; None: there is none."""
    unseen: Unseen | None = None
    """Why it is not known what is served."""


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """A cluster at one moment, as one user sees it."""

    now: float
    """Seconds since the epoch."""
    version: tuple[int, int]
    rights: Mapping[Access, bool] | Unseen = field(default_factory=dict)
    nodes: Objects | Unseen = ()
    namespaces: Objects | Unseen = ()
    pods: Objects | Unseen = ()
    runtime_classes: frozenset[str] | Unseen = frozenset()
    gpunodes: Objects | Unseen | None = None
    """None: the API server does not serve the kind."""
    webhook: JSON | Unseen | None = None
    policies: frozenset[str] | Unseen = frozenset()
    """Names of the admission policies that have a binding."""
    deployments: Objects | Unseen = ()
    daemonsets: Objects | Unseen = ()
    configmaps: Objects | Unseen = ()
    """Those of our namespaces, which have settings."""
    lease: JSON | Unseen | None = None
    options: PoolOptions | Unseen = NO_OPTIONS
    """The administrator's document; `Unseen` also where it cannot be used."""
    authorities: Authorities = field(default_factory=Authorities)
    granted: Mapping[ProgramRight, bool] | Unseen = field(default_factory=dict)
    dry_run: DryRun | Unseen | None = None
    """None: there was no namespace in which to try it."""
    programs: Programs = field(default_factory=Programs)
    clock_doubt: float = 0.0
    """By how many seconds `now` may differ from the cluster's clocks."""


def name_of(item: Mapping[str, Any]) -> str:
    """The object's name."""
    return str((item.get("metadata") or {}).get("name", ""))


def labels_of(item: Mapping[str, Any]) -> Mapping[str, str]:
    """The object's labels, never None."""
    return (item.get("metadata") or {}).get("labels") or {}


def named(items: Objects | Unseen, name: str) -> JSON | None:
    """The object of that name, or None."""
    return next((each for each in items if name_of(each) == name), None) if isinstance(items, tuple) else None


def namespace_of(item: Mapping[str, Any]) -> str:
    """The object's namespace; ours where it names none."""
    return str((item.get("metadata") or {}).get("namespace") or names.NAMESPACE)


def agents_namespace(facts: ClusterFacts) -> str:
    """The namespace of the node agents: their own if their DaemonSet is there, else ours."""
    moved = (
        each for each in _each(facts.daemonsets) if name_of(each) == AGENT and namespace_of(each) != names.NAMESPACE
    )
    return names.NODES_NAMESPACE if next(moved, None) is not None else names.NAMESPACE


def left_behind(facts: ClusterFacts) -> list[str]:
    """DaemonSets of our namespace that later versions have in the other one, from an installation before the move."""
    here, moved = set[str](), set[str]()
    for each in _each(facts.daemonsets):
        (here if namespace_of(each) == names.NAMESPACE else moved).add(name_of(each))
    return sorted(here & moved)


def _each(items: Objects | Unseen) -> Objects:
    return items if isinstance(items, tuple) else ()


def installed(facts: ClusterFacts) -> bool | None:
    """Whether anything of ours is in the cluster; None if the user may not see it."""
    if isinstance(facts.webhook, dict) or (facts.gpunodes is not None and not isinstance(facts.gpunodes, Unseen)):
        return True
    if named(facts.deployments, ADMISSION) is not None:
        return True
    hidden = [fact for fact in (facts.webhook, facts.gpunodes, facts.deployments) if isinstance(fact, Unseen)]
    return None if hidden else False


def workloads(facts: ClusterFacts) -> Iterator[tuple[str, JSON]]:
    """Our Deployments and DaemonSets that the user may see, each with its kind in lower case."""
    for kind, items in (("deployment", facts.deployments), ("daemonset", facts.daemonsets)):
        if isinstance(items, tuple):
            yield from ((kind, each) for each in items)


def certificates_by_another(facts: ClusterFacts) -> bool:
    """Whether another program than ours makes the certificates: ours is not installed."""
    return named(facts.deployments, ADMISSION) is not None and named(facts.deployments, CERTS) is None


def settings(facts: ClusterFacts, program: str) -> dict[str, str]:
    """The settings of one of our programs, in the form of its flags."""
    configmaps = facts.configmaps if isinstance(facts.configmaps, tuple) else ()
    return settings_of((workload for _, workload in workloads(facts)), program, configmaps)
