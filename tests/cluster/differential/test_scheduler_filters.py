"""
Our filters beside kube-scheduler's own: the same nodes for thousands of made-up pods, node by node and rule by rule.

Nothing but an API server and a kube-scheduler runs, so the cluster stands still while pods are judged. A pod that we
judge is the one that its author wrote, as a webhook sees it: the API server merges label keys later.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from allocator.cache.followed import key_of
from allocator.cache.storage import KINDS, Storage
from contract import pods
from contract.model import Compute, Gpu, NodeState
from contract.nodes import attributes
from contract.pods import finished
from contract.scheduling import clusterfilters
from contract.scheduling import needs as scheduling
from contract.scheduling.clusterfilters import objects
from contract.scheduling.clusterfilters.objects import Cluster, PodKind, PodRules
from contract.scheduling.filters import node_reason
from contract.scheduling.needs import PodNeeds
from contract.scheduling.nodeinfo import plus
from playground.realapi.components import SCHEDULER
from playground.realapi.server import RealServer
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube
from runtime.kubernetes.errors import KubeNotFound
from tests.cluster.differential import madeup, original
from tests.cluster.differential.madeup import SPACES, State
from tests.cluster.differential.original import Extender
from tests.clusters import assets_with

JSON = dict[str, Any]
pytestmark = [pytest.mark.realcluster, pytest.mark.timeout(600)]

STATES = int(os.environ.get("GPUFRACTION_DIFFERENTIAL_STATES", "6"))
SEED = int(os.environ.get("GPUFRACTION_DIFFERENTIAL_SEED", "1"))
_PROBES = 40
_RULES = {
    "VolumeRestrictions": clusterfilters.volume_restrictions.check,
    "NodeVolumeLimits": clusterfilters.volume_limits.check,
    "VolumeBinding": clusterfilters.volume_binding.check,
    "VolumeZone": clusterfilters.volume_zone.check,
    "PodTopologySpread": clusterfilters.topology_spread.check,
    "InterPodAffinity": clusterfilters.pod_affinity.check,
}
_STORAGE = "storage.k8s.io/v1"
GPU = Gpu("GPU-0", 0, "any", 1, 1)
"""Our filter of nodes refuses those without GPUs first; kube-scheduler knows no GPUs."""


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    assets = assets_with(SCHEDULER)
    if isinstance(assets, str):
        pytest.skip(assets)
    # Nodes are ready without a kubelet, and pods need no service account.
    disabled = ("ServiceAccount", "TaintNodesByCondition")
    with RealServer(assets, enabled=(), disabled=disabled) as server:
        yield server


@pytest.fixture(scope="module")
def extender(server: RealServer) -> Iterator[Extender]:
    with original.judging(server, tuple(_RULES)) as extender:
        yield extender


@pytest.mark.parametrize("seed", range(SEED, SEED + STATES))
def test_each_node_is_judged_as_kube_scheduler_judges_it(server: RealServer, extender: Extender, seed: int) -> None:
    random, kube = Random(seed), server.kube()
    state = madeup.state(random)
    try:
        load(kube, state)
        cluster = cluster_of(kube)
        pods = _probed(kube, extender, madeup.probes(random, state, _PROBES))
        differences = [
            line for pod, written, profile in pods for line in _differences(pod, written, profile, cluster, extender)
        ]
        judged = len(pods) * len(cluster.nodes)
        print(
            f"\nseed {seed}: {len(pods)} pods, {judged} verdicts, {len(differences)} differences; accepted by profile:"
        )
        print(_accepted(pods, extender))
        assert differences == []
    finally:
        clear(kube)


# -- the cluster --------------------------------------------------------------------------------------------------


def load(kube: Kube, state: State) -> None:
    for node in state.nodes:
        kube.create(paths.path("v1", "nodes"), node)
    for space in state.namespaces:
        kube.create(paths.path("v1", "namespaces"), space)
    for plural, made in (
        ("storageclasses", state.classes),
        ("csidrivers", state.csi_drivers),
        ("csinodes", state.csi_nodes),
        ("volumeattachments", state.attachments),
    ):
        for each in made:
            kube.create(paths.path(_STORAGE, plural), each)
    for capacity in state.capacities:
        kube.create(paths.path(_STORAGE, "csistoragecapacities", capacity["metadata"]["namespace"]), capacity)
    for volume in state.volumes:
        name = volume["metadata"]["name"]
        kube.create(paths.path("v1", "persistentvolumes"), volume)
        if name in state.available:
            kube.patch_merge(
                paths.path("v1", "persistentvolumes", None, name, "status"), {"status": {"phase": "Available"}}
            )
    for claim in state.claims:
        _load_claim(kube, claim, state)
    for pod in state.pods:
        _load_pod(kube, pod, state)


def _load_claim(kube: Kube, claim: JSON, state: State) -> None:
    space, name = claim["metadata"]["namespace"], claim["metadata"]["name"]
    kube.create(paths.path("v1", "persistentvolumeclaims", space), claim)
    if f"{space}/{name}" in state.lost:
        status = paths.path("v1", "persistentvolumeclaims", space, name, "status")
        kube.patch_merge(status, {"status": {"phase": "Lost"}})
    if f"{space}/{name}" in state.deleting:
        kube.delete(paths.path("v1", "persistentvolumeclaims", space, name))


def _load_pod(kube: Kube, pod: JSON, state: State) -> None:
    space, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    kube.create(paths.pods(space), pod)
    if name in state.finished:
        kube.patch_merge(paths.pods(space, name, "status"), {"status": {"phase": "Succeeded"}})
    if name in state.terminating:
        kube.delete(paths.pods(space, name))  # no kubelet ends it


def cluster_of(kube: Kube) -> Cluster:
    """The objects as they are stored, read as the allocator reads them."""
    nodes, pods, namespaces = (kube.list(paths.path("v1", each)).items for each in ("nodes", "pods", "namespaces"))
    storage = Storage()
    for kind in KINDS.values():
        items = kube.list(paths.path(kind.group_version, kind.plural), of=kind.of)
        storage.listed(kind.plural, ((key_of(each), kind.read(each)) for each in items.items))
    placed = _placed(pods)
    return Cluster(
        nodes={each.name: each for each in _nodes(nodes, pods)},
        pods=placed,
        repelling={kind: on for kinds in placed.values() for kind, on in kinds.items() if kind.anti_affinity},
        namespaces={each["metadata"]["name"]: each["metadata"].get("labels") or {} for each in namespaces},
        storage=storage.objects(),
    )


def _placed(listed: Iterable[JSON]) -> dict[str, dict[PodKind, Counter[str]]]:
    found: dict[str, dict[PodKind, Counter[str]]] = {}
    for pod in filter(_is_placed, listed):
        kind = objects.read_rules(pods.trim(pod)).placed(terminating="deletionTimestamp" in pod["metadata"])
        found.setdefault(kind.namespace, {}).setdefault(kind, Counter())[pod["spec"]["nodeName"]] += 1
    return found


def _is_placed(pod: JSON) -> bool:
    return bool(pod["spec"].get("nodeName")) and not finished(pod)


def _nodes(nodes: Iterable[JSON], pods: Iterable[JSON]) -> Iterator[NodeState]:
    """With what their pods take, as the allocator's cache counts it."""
    here = list(filter(_is_placed, pods))
    for node in nodes:
        facts = attributes.facts(node)
        own = [pod["spec"] for pod in here if pod["spec"]["nodeName"] == facts.name]
        requested = Compute()
        for spec in own:
            requested = plus(requested, scheduling.effective_compute(spec))
        yield NodeState(
            facts.name,
            labels=facts.labels,
            taints=facts.taints,
            cordoned=facts.cordoned,
            allocatable=facts.allocatable,
            requested=requested,
            host_ports=frozenset().union(*map(scheduling.host_ports, own)),
        )


# -- the pods -----------------------------------------------------------------------------------------------------


def _probed(kube: Kube, extender: Extender, written: list[JSON]) -> list[tuple[JSON, JSON, str]]:
    """Each pod in each profile as it is stored and judged, as it was written, and the profile."""
    stored: list[tuple[JSON, JSON, str]] = []
    for profile in (original.WHOLE, *map(original.only, _RULES)):
        for pod in written:
            named = {**pod, "metadata": {**pod["metadata"], "name": f"{pod['metadata']['name']}-{profile}"}}
            named["spec"] = {**pod["spec"], "schedulerName": profile}
            stored.append((kube.create(paths.pods(pod["metadata"]["namespace"]), named), named, profile))
    waiting = {pod["metadata"]["uid"] for pod, _, _ in stored}
    judged: dict[str, JSON] = {}

    def all_judged() -> bool:
        for pod in kube.list(paths.pods()).items:
            if pod["metadata"]["uid"] in waiting and original.verdict(pod) is not None:
                judged[pod["metadata"]["uid"]] = pod
        return len(judged) == len(waiting)

    wait_for(all_judged, lambda: f"{len(waiting) - len(judged)} pods were not judged", 240.0, every=1.0)
    for pod in judged.values():
        kube.delete(paths.pods(pod["metadata"]["namespace"], pod["metadata"]["name"]), {"gracePeriodSeconds": 0})
    return [(judged[pod["metadata"]["uid"]], named, profile) for pod, named, profile in stored]


def _accepted(pods: list[tuple[JSON, JSON, str]], extender: Extender) -> str:
    """How many nodes each profile accepts in all, so that a glance shows whether both answers occur."""
    counts: Counter[str] = Counter()
    for pod, _, profile in pods:
        counts[profile] += len(extender.left.get(pod["metadata"]["uid"], ()))
    return ", ".join(f"{profile} {count}" for profile, count in counts.items())


def _differences(pod: JSON, written: JSON, profile: str, cluster: Cluster, extender: Extender) -> Iterator[str]:
    theirs = extender.left.get(pod["metadata"]["uid"], frozenset())
    spec = {**written, "metadata": {**written["metadata"], "uid": pod["metadata"]["uid"]}}
    seen = pods.trim(spec)
    rules, needs = objects.read_rules(seen), scheduling.needs_of(seen)
    mine = cluster.nodes.keys() - refused(rules, needs, profile, cluster)
    if mine != theirs:
        said = (original.verdict(pod) or {}).get("message", "")
        only = f"ours alone {sorted(mine - theirs)}, theirs alone {sorted(theirs - mine)}"
        yield f"{profile} {written['metadata']['name']}: {only}: {said} {written['spec']}"


def refused(rules: PodRules, needs: PodNeeds, profile: str, cluster: Cluster) -> frozenset[str]:
    nodes = cluster.nodes.values()
    for plugin, rule in _RULES.items():
        if profile == original.only(plugin):
            check = rule(rules, needs, cluster)
            return frozenset(node.name for node in nodes if check is not None and check(node) is not None)
    by_themselves = (node.name for node in nodes if node_reason(replace(node, gpus=(GPU,)), needs) is not None)
    return frozenset((*by_themselves, *clusterfilters.refused(rules, needs, cluster, nodes)))


def clear(kube: Kube) -> None:
    """An empty cluster for the next state."""
    now: Mapping[str, Any] = {"gracePeriodSeconds": 0}
    for pod in kube.list(paths.pods()).items:
        _delete(kube, paths.pods(pod["metadata"]["namespace"], pod["metadata"]["name"]), now)
    for plural in ("persistentvolumeclaims", "persistentvolumes"):
        for each in kube.list(paths.path("v1", plural)).items:
            where = paths.path("v1", plural, each["metadata"].get("namespace"), each["metadata"]["name"])
            kube.patch_merge(where, {"metadata": {"finalizers": None}})
            _delete(kube, where, now)
    for plural in ("volumeattachments", "csinodes", "csidrivers", "storageclasses", "csistoragecapacities"):
        for each in kube.list(paths.path(_STORAGE, plural)).items:
            _delete(
                kube, paths.path(_STORAGE, plural, each["metadata"].get("namespace"), each["metadata"]["name"]), now
            )
    for node in kube.list(paths.path("v1", "nodes")).items:
        _delete(kube, paths.path("v1", "nodes", None, node["metadata"]["name"]), now)
    for space in SPACES:
        _delete(kube, paths.path("v1", "namespaces", None, space), now)
        empty = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}, "spec": {"finalizers": []}}
        kube.replace(paths.path("v1", "namespaces", None, space, "finalize"), empty)


def _delete(kube: Kube, where: str, options: Mapping[str, Any]) -> None:
    with contextlib.suppress(KubeNotFound):
        kube.delete(where, dict(options))
