"""
Our filters compared with kube-scheduler's own: both accept the same nodes for thousands of generated pods, node by node
and rule by rule.

Only an API server and a kube-scheduler run, so the cluster does not change while pods are judged. Our filters judge a
pod as its author wrote it, which is how a webhook sees it: the API server merges label keys later.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from allocator.cache.cache import Cache
from allocator.cache.podinfo import read_pod
from allocator.engine.engine import Engine
from allocator.neighbours.followed import key_of
from allocator.neighbours.storage import DEVICE_KINDS, KINDS
from contract import pods
from contract.model import Gpu, Inventory, NodeState
from contract.nodes import attributes
from contract.scheduling import clusterfilters
from contract.scheduling import needs as scheduling
from contract.scheduling.clusterfilters import objects
from contract.scheduling.clusterfilters.objects import Check, Cluster, PodRules
from contract.scheduling.filters import UNSCHEDULABLE, has_features, node_reason
from contract.scheduling.needs import PodNeeds
from contract.scheduling.nodefilters import resources
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
_STORAGE, _DEVICES = "storage.k8s.io/v1", "resource.k8s.io/v1"
GPU = Gpu("GPU-0", 0, "any", 1, 1)
"""Our filter of nodes first refuses those without GPUs, which kube-scheduler does not know."""
Accepts = Callable[[PodNeeds, NodeState], bool]
Rule = Callable[[PodRules, PodNeeds, Cluster], Check | None]

_OF_ONE_NODE: Mapping[str, Accepts] = {
    "NodeUnschedulable": lambda needs, node: not node.cordoned or _tolerates_cordon(needs),
    "NodeName": lambda needs, node: needs.node_name in ("", node.name),
    "TaintToleration": lambda needs, node: scheduling.untolerated(node, needs.tolerations) is None,
    "NodeAffinity": scheduling.selects,
    "NodePorts": lambda needs, node: scheduling.port_conflict(needs, node) is None,
    "NodeResourcesFit": lambda needs, node: resources.shortage(node, needs.compute) is None,
    "NodeDeclaredFeatures": lambda needs, node: has_features(node, needs),
}
_BEYOND: Mapping[str, Rule] = {
    "VolumeRestrictions": clusterfilters.volume_restrictions.check,
    "NodeVolumeLimits": clusterfilters.volume_limits.check,
    "VolumeBinding": clusterfilters.volume_binding.check,
    "VolumeZone": clusterfilters.volume_zone.check,
    "PodTopologySpread": clusterfilters.topology_spread.check,
    "InterPodAffinity": clusterfilters.pod_affinity.check,
    "DynamicResources": clusterfilters.resource_claims.check,
}
_PLUGINS = (*_OF_ONE_NODE, *_BEYOND)
"""All filters of the default profile that are enabled in 1.36."""


def _tolerates_cordon(needs: PodNeeds) -> bool:
    return any(each.tolerates(UNSCHEDULABLE) for each in needs.tolerations)


@dataclass
class Sums:
    """The sums over all states."""

    states: int = 0
    pods: int = 0
    verdicts: int = 0
    unevaluated: int = 0
    """Verdicts that are left to kube-scheduler, and so compared in one direction only."""
    differences: int = 0


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
    with original.judging(server, _PLUGINS) as extender:
        yield extender


@pytest.fixture(scope="module")
def sums() -> Iterator[Sums]:
    found = Sums()
    yield found
    print(f"\nin all: {found}")


@pytest.mark.parametrize("seed", range(SEED, SEED + STATES))
def test_each_node_is_judged_as_kube_scheduler_judges_it(
    server: RealServer, extender: Extender, sums: Sums, seed: int
) -> None:
    random, kube = Random(seed), server.kube()
    state = madeup.state(random)
    try:
        load(kube, state)
        cache = cache_of(kube)
        pods = _probed(kube, extender, madeup.probes(random, state, _PROBES))
        compared = [_compared(pod, written, profile, cache, extender) for pod, written, profile in pods]
        differences = [line for lines, _ in compared for line in lines]
        sums.states += 1
        sums.pods += len(pods)
        sums.verdicts += len(pods) * len(cache.snapshot)
        sums.unevaluated += sum(left for _, left in compared)
        sums.differences += len(differences)
        print(f"\nseed {seed}: {len(pods)} pods, {len(differences)} differences; accepted by profile:")
        print(_accepted(pods, extender))
        print(*differences, sep="\n")
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
    for device_class in state.device_classes:
        kube.create(paths.path(_DEVICES, "deviceclasses"), device_class)
    for claim in state.device_claims:
        _load_device_claim(kube, claim, state)
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


def _load_device_claim(kube: Kube, claim: JSON, state: State) -> None:
    space, name = claim["metadata"]["namespace"], claim["metadata"]["name"]
    kube.create(paths.path(_DEVICES, "resourceclaims", space), {**claim, "status": {}})
    if "status" in claim:
        status = paths.path(_DEVICES, "resourceclaims", space, name, "status")
        kube.patch_merge(status, {"status": claim["status"]})
    if f"{space}/{name}" in state.deleting:
        kube.delete(paths.path(_DEVICES, "resourceclaims", space, name))


def _load_pod(kube: Kube, pod: JSON, state: State) -> None:
    space, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    kube.create(paths.pods(space), pod)
    if name in state.statuses:
        kube.patch_merge(paths.pods(space, name, "status"), {"status": state.statuses[name]})
    if name in state.finished:
        kube.patch_merge(paths.pods(space, name, "status"), {"status": {"phase": "Succeeded"}})
    if name in state.terminating:
        kube.delete(paths.pods(space, name))  # no kubelet ends it


def cache_of(kube: Kube) -> Cache:
    """The stored objects, read and counted by the allocator's own cache."""
    cache = Cache(engine=Engine())
    nodes, listed, namespaces = (kube.list(paths.path("v1", each)).items for each in ("nodes", "pods", "namespaces"))
    for node in nodes:
        facts = attributes.facts(attributes.trim(node))
        cache.put_node(facts)
        cache.put_inventory(Inventory(facts.name, (GPU,)))
    cache.neighbours.label_namespaces({n["metadata"]["name"]: n["metadata"].get("labels") or {} for n in namespaces})
    for kind in (*KINDS.values(), *DEVICE_KINDS.values()):
        items = kube.list(paths.path(kind.group_version, kind.plural), of=kind.of)
        followed = cache.neighbours.followed(kind.plural)
        followed.listed(kind.plural, ((key_of(each), kind.read(each)) for each in items.items))
    for pod in listed:
        cache.put_pod(read_pod(pods.trim(pod)), 0.0)
    cache.devices_changed()
    return cache


# -- the pods -----------------------------------------------------------------------------------------------------


def _probed(kube: Kube, extender: Extender, written: list[JSON]) -> list[tuple[JSON, JSON, str]]:
    """Each pod in each profile: as stored and judged, as written, and the profile."""
    stored: list[tuple[JSON, JSON, str]] = []
    for profile in (original.WHOLE, *map(original.only, _PLUGINS)):
        for pod in written:
            named = {**pod, "metadata": {**pod["metadata"], "name": f"{pod['metadata']['name']}-{profile}"}}
            named["spec"] = {**pod["spec"], "schedulerName": profile}
            stored.append((kube.create(paths.pods(pod["metadata"]["namespace"]), named), named, profile))
    waiting = {pod["metadata"]["uid"] for pod, written, _ in stored if not _waits_for_claim(kube, written)}
    judged = {pod["metadata"]["uid"]: pod for pod, _, _ in stored if pod["metadata"]["uid"] not in waiting}
    never = len(judged)

    def all_judged() -> bool:
        for pod in kube.list(paths.pods()).items:
            if pod["metadata"]["uid"] in waiting and original.verdict(pod) is not None:
                judged[pod["metadata"]["uid"]] = pod
        return len(judged) - never == len(waiting)

    wait_for(all_judged, lambda: f"{len(waiting) + never - len(judged)} pods were not judged", 120.0, every=1.0)
    for pod in judged.values():
        kube.delete(paths.pods(pod["metadata"]["namespace"], pod["metadata"]["name"]), {"gracePeriodSeconds": 0})
    of_claims = (original.WHOLE, original.only("DynamicResources"))
    return [
        (judged[pod["metadata"]["uid"]], named, profile)
        for pod, named, profile in stored
        if pod["metadata"]["uid"] in waiting or profile in of_claims
    ]


def _waits_for_claim(kube: Kube, pod: JSON) -> bool:
    """Whether kube-scheduler does not even try the pod, in any profile, because a claim is missing or being deleted."""
    for claim in pod["spec"].get("resourceClaims", ()):
        if "resourceClaimName" not in claim:
            return True
        where = paths.path(_DEVICES, "resourceclaims", pod["metadata"]["namespace"], claim["resourceClaimName"])
        try:
            if "deletionTimestamp" in kube.get(where)["metadata"]:
                return True
        except KubeNotFound:
            return True
    return False


def _accepted(pods: list[tuple[JSON, JSON, str]], extender: Extender) -> str:
    """How many nodes each profile accepts in total, to show that both answers occur."""
    counts: Counter[str] = Counter()
    for pod, _, profile in pods:
        counts[profile] += len(extender.left.get(pod["metadata"]["uid"], ()))
    return ", ".join(f"{profile} {count}" for profile, count in counts.items())


def _compared(pod: JSON, written: JSON, profile: str, cache: Cache, extender: Extender) -> tuple[list[str], int]:
    """
    Where our verdict on the pod differs, and for how many nodes something is left to kube-scheduler. It may accept
    fewer of those nodes than we do.
    """
    theirs = extender.left.get(pod["metadata"]["uid"], frozenset())
    spec = {**written, "metadata": {**written["metadata"], "uid": pod["metadata"]["uid"]}}
    seen = pods.trim(spec)
    rules, needs = objects.read_rules(seen), scheduling.needs_of(seen)
    mine = cache.snapshot.keys() - _refused(rules, needs, profile, cache)
    left = frozenset[str]()
    if profile in (original.WHOLE, original.only("DynamicResources")):
        nodes = cache.snapshot.values()
        left = frozenset(node.name for node in nodes if cache.neighbours.left_open(rules, needs, node).unevaluated)
    if mine - left == theirs - left and theirs <= mine:
        return [], len(left)
    message = (original.verdict(pod) or {}).get("message", "")
    only = f"ours alone {sorted(mine - theirs - left)}, theirs alone {sorted(theirs - mine)}"
    return [f"{profile} {written['metadata']['name']}: {only}: {message} {written['spec']}"], len(left)


def _refused(rules: PodRules, needs: PodNeeds, profile: str, cache: Cache) -> frozenset[str]:
    nodes = cache.snapshot.values()
    for plugin, accepts in _OF_ONE_NODE.items():
        if profile == original.only(plugin):
            return frozenset(node.name for node in nodes if not accepts(needs, node))
    for plugin, rule in _BEYOND.items():
        if profile == original.only(plugin):
            check = rule(rules, needs, cache.neighbours.cluster(rules))
            return frozenset(node.name for node in nodes if check is not None and check(node) is not None)
    by_themselves = (node.name for node in nodes if node_reason(node, needs) is not None)
    return frozenset((*by_themselves, *cache.neighbours.refused(rules, needs, nodes)))


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
    for claim in kube.list(paths.path(_DEVICES, "resourceclaims")).items:
        where = paths.path(_DEVICES, "resourceclaims", claim["metadata"]["namespace"], claim["metadata"]["name"])
        kube.patch_merge(where, {"metadata": {"finalizers": None}})
        _delete(kube, where, now)
    for each in kube.list(paths.path(_DEVICES, "deviceclasses")).items:
        _delete(kube, paths.path(_DEVICES, "deviceclasses", None, each["metadata"]["name"]), now)
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
