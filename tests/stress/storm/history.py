"""
Everything that was committed during a storm, by resourceVersion: the state of the cluster at any moment, and why
kube-scheduler refused a pod that the allocator had pinned.

A decision is right if the pod fitted its node in the cluster's state at the time of the decision. A change that makes
the pod unfit was committed later, and has a resourceVersion. This module judges; `test_refusals_storm` asserts.
"""

from __future__ import annotations

import bisect
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from allocator.neighbours.followed import key_of
from allocator.neighbours.storage import KINDS, Storage
from contract import names, pods
from contract.model import Gpu, NodeState
from contract.nodes import attributes
from contract.scheduling import clusterfilters
from contract.scheduling import needs as scheduling
from contract.scheduling.clusterfilters import objects
from contract.scheduling.clusterfilters.objects import Cluster, PodKind
from contract.scheduling.filters import node_reason
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube
from runtime.kubernetes.watch import Deleted, Event, Informer, Part, Put, Replaced

JSON = dict[str, Any]
_KINDS = {
    **{plural: paths.path("v1", plural) for plural in ("pods", "nodes", "namespaces")},
    **{
        plural: paths.path(KINDS[plural].group_version, plural)
        for plural in ("persistentvolumeclaims", "persistentvolumes", "storageclasses")
    },
}
_GPU = Gpu("GPU-0", 0, "any", 1, 1)
"""Our filter of nodes first refuses those without GPUs, which kube-scheduler does not know."""
_WRITING = ("running Bind plugin", "running PreBind plugin")
_BEHIND = 3.0
"""Seconds by which an allocator may lag behind the API server on a busy machine."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One change. `made` is None if the object was deleted."""

    version: int
    plural: str
    key: tuple[str, str]
    made: JSON | None
    at: float


@dataclass(frozen=True, slots=True)
class Refusal:
    """kube-scheduler refused a pod that we had pinned."""

    pod: str
    node: str
    pinned: int
    """The resourceVersion of our pin."""
    refused: int
    """The resourceVersion of the Event."""
    message: str
    decided: int | None
    """The last resourceVersion before the pin at which the node was right; None if it never was."""
    cause: Commit | None
    """What made the node wrong after that; None if nothing did."""

    @property
    def by_others(self) -> bool:
        """Whether the pod was refused for something other than its own deletion."""
        return self.cause is None or "/".join(self.cause.key) != self.pod

    @property
    def explained(self) -> bool:
        """Whether the pod was refused because of something that was committed after our decision."""
        return self.decided is not None and self.cause is not None and self.cause.version > self.decided

    def __str__(self) -> str:
        cause = "nothing" if self.cause is None else f"{self.cause.version} {self.cause.plural} {self.cause.key}"
        return (
            f"{self.pod} on {self.node}: right at {self.decided}, pinned at {self.pinned}, wrong by {cause}, "
            f"refused at {self.refused}: {self.message}"
        )


class History:
    """Receives every event of each kind of object, and Events."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards everything here: informers write, the test reads
        self._commits: list[Commit] = []
        self._refused: dict[str, tuple[int, str]] = {}

    def see(self, plural: str, event: Event) -> None:
        """Take in a change of an object."""
        with self._lock:
            match event:
                case Replaced(items) | Part(items):
                    for each in items:
                        self._put(plural, each, each)
                case Put(each):
                    self._put(plural, each, each)
                case Deleted(each):
                    self._put(plural, each, None)

    def _put(self, plural: str, seen: JSON, made: JSON | None) -> None:
        version = int(seen["metadata"]["resourceVersion"])
        self._commits.append(Commit(version, plural, key_of(seen), made, time.monotonic()))

    def hear(self, event: Event) -> None:
        """Take in an Event. For each pod, the first refusal by kube-scheduler counts."""
        listed = event.items if isinstance(event, Replaced | Part) else [event.object]
        with self._lock:
            for each in listed if not isinstance(event, Deleted) else ():
                uid = (each.get("involvedObject") or {}).get("uid", "")
                if each.get("reason") == "FailedScheduling" and uid:
                    heard = int(each["metadata"]["resourceVersion"]), str(each.get("message", ""))
                    self._refused.setdefault(uid, heard)

    # -- judging --------------------------------------------------------------------------------------------------

    def refusals(self) -> list[Refusal]:
        """Every refusal of a pod that we had pinned before it."""
        with self._lock:
            commits, refused = sorted(self._commits, key=lambda each: each.version), dict(self._refused)
        found = []
        for uid, (version, message) in refused.items():
            pinned = next((each for each in commits if each.plural == "pods" and _is_pinned(each.made, uid)), None)
            if pinned is not None and pinned.version < version:
                found.append(_judged(pinned, version, message, commits))
        return found


def _is_pinned(pod: JSON | None, uid: str) -> bool:
    return pod is not None and pods.uid(pod) == uid and _node_of(pod) != "" and names.GATE not in pods.gates(pod)


def _node_of(pod: JSON) -> str:
    """The node of the pod, or of its share."""
    bound = str(pod["spec"].get("nodeName") or "")
    if bound or names.GATE in pods.gates(pod):
        return bound
    allocation = pods.carried_allocation(pod)
    return allocation.node if allocation is not None else ""


def _judged(pinned: Commit, refused: int, message: str, commits: list[Commit]) -> Refusal:
    pod = pinned.made
    assert pod is not None
    node, versions = _node_of(pod), [each.version for each in commits]
    until = bisect.bisect_left(versions, pinned.version)
    oldest = next((at for at, each in enumerate(commits) if each.at >= pinned.at - _BEHIND), until)
    decided = next((at for at in range(until, oldest - 1, -1) if _accepts(commits[:at], pod, node)), None)
    last = bisect.bisect_right(versions, refused)
    cause = next((each for each in commits[until + 1 : last] if each.key == pinned.key and _is_deletion(each)), None)
    if cause is None and decided is not None and message.startswith(_WRITING):
        # Every filter accepted the pod, and then the volume that kube-scheduler wrote had changed.
        volumes = (each for each in commits[decided:last] if each.plural.startswith("persistentvolume"))
        cause = next((each for each in volumes if f'"{each.key[1]}"' in message), None)
    elif cause is None and decided is not None:
        # kube-scheduler counts a pod that it is about to bind, so the binding may be committed after the refusal.
        moment = commits[last - 1].at + _BEHIND
        later = (at for at in range(decided, len(commits)) if at < last or commits[at].at <= moment)
        cause = next((commits[at] for at in later if not _accepts(commits[: at + 1], pod, node)), None)
    name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
    right = versions[decided - 1] if decided else None
    return Refusal(name, node, pinned.version, refused, message, right, cause)


def _is_deletion(commit: Commit) -> bool:
    return commit.plural == "pods" and (commit.made is None or "deletionTimestamp" in commit.made["metadata"])


def _accepts(commits: Iterable[Commit], pod: JSON, node: str) -> bool:
    """Whether the pod fits the node in the cluster after these commits, by its spec without our pin."""
    now: dict[str, dict[tuple[str, str], JSON]] = {plural: {} for plural in _KINDS}
    for each in commits:
        if each.made is None:
            now[each.plural].pop(each.key, None)
        else:
            now[each.plural][each.key] = each.made
    nodes = {name: _node(each) for (_, name), each in now["nodes"].items()}
    if node not in nodes:
        return False
    seen = pods.trim(pod)
    rules, needs = objects.read_rules(seen), scheduling.unpinned(scheduling.needs_of(seen))
    if node_reason(replace(nodes[node], gpus=(_GPU,)), needs) is not None:
        return False
    others = (each for each in now["pods"].values() if pods.uid(each) != pods.uid(pod))
    return node not in clusterfilters.refused(rules, needs, _cluster(now, nodes, others), [nodes[node]])


def _node(document: JSON) -> NodeState:
    facts = attributes.facts(document)
    return NodeState(
        facts.name,
        labels=facts.labels,
        taints=facts.taints,
        cordoned=facts.cordoned,
        ready=facts.ready,
        allocatable=facts.allocatable,
    )


def _cluster(
    now: dict[str, dict[tuple[str, str], JSON]], nodes: dict[str, NodeState], others: Iterable[JSON]
) -> Cluster:
    placed: dict[str, dict[PodKind, Counter[str]]] = {}
    for pod in others:
        where = _node_of(pod)
        if where and not pods.finished(pod):
            kind = objects.read_rules(pods.trim(pod)).placed(terminating="deletionTimestamp" in pod["metadata"])
            placed.setdefault(kind.namespace, {}).setdefault(kind, Counter())[where] += 1
    storage = Storage(set())
    for plural, kind_of in KINDS.items():
        storage.listed(plural, ((key, kind_of.read(each)) for key, each in now.get(plural, {}).items()))
    return Cluster(
        nodes=nodes,
        pods=placed,
        repelling={kind: on for kinds in placed.values() for kind, on in kinds.items() if kind.anti_affinity},
        namespaces={name: each["metadata"].get("labels") or {} for (_, name), each in now["namespaces"].items()},
        storage=storage.objects(),
    )


@contextmanager
def recording(kubeconfig: str) -> Iterator[History]:
    """The history from now on."""
    history = History()
    kube = Kube.connect(kubeconfig=kubeconfig, user_agent="history")

    def seeing(plural: str) -> Informer:
        return Informer(kube, _KINDS[plural], lambda event: history.see(plural, event), name=f"history-{plural}")

    informers = [seeing(plural) for plural in _KINDS]
    informers.append(Informer(kube, paths.path("v1", "events"), history.hear, name="history-events"))
    with ExitStack() as started:
        for informer in informers:
            informer.start()
            started.callback(informer.stop)
        wait_for(lambda: all(informer.synced.is_set() for informer in informers), "not all is listed")
        yield history
