"""
Our preferences compared with kube-scheduler's own scores: they are the same for generated pods, node by node and plugin
by plugin.

One profile has default topology spread constraints and an added affinity. For it, the nodes that pass are compared too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from allocator.neighbours import spreading, storage
from allocator.neighbours.followed import key_of
from allocator.neighbours.pods import Neighbours
from contract import pods
from contract.model import NodeState
from contract.nodes import attributes
from contract.options import pool_options
from contract.scheduling import needs as scheduling
from contract.scheduling.clusterfilters import objects
from contract.scheduling.filters import node_reason
from contract.scheduling.preferences import PLUGINS
from playground.realapi.components import SCHEDULER
from playground.realapi.server import RealServer
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube
from tests.cluster.differential import madeup, original, scores
from tests.cluster.differential import test_scheduler_filters as filters
from tests.cluster.differential.madeup import ZONE, State
from tests.clusters import assets_with

JSON = dict[str, Any]
pytestmark = [pytest.mark.realcluster, pytest.mark.timeout(600)]

_PROBES = 40
_NAMES = dict(zip(("TaintToleration", "NodeAffinity", "PodTopologySpread", "InterPodAffinity"), PLUGINS, strict=True))
_PLAIN, _GIVEN, _HARD = "plain", "given", "hard"
PROFILES: Mapping[str, JSON] = {
    _PLAIN: {},
    _GIVEN: {
        "addedAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["a", "b"]}]}]
            },
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 7, "preference": {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}}
            ],
        },
        "defaultConstraints": [
            {"topologyKey": ZONE, "maxSkew": 3, "whenUnsatisfiable": "ScheduleAnyway"},
            {"topologyKey": "kubernetes.io/hostname", "maxSkew": 2, "whenUnsatisfiable": "ScheduleAnyway"},
        ],
    },
    _HARD: {
        "defaultConstraints": [
            {"topologyKey": "rack", "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule", "minDomains": 2},
            {"topologyKey": ZONE, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"},
        ]
    },
}


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    assets = assets_with(SCHEDULER)
    if isinstance(assets, str):
        pytest.skip(assets)
    with RealServer(assets, enabled=(), disabled=("ServiceAccount", "TaintNodesByCondition")) as server:
        yield server


@pytest.fixture(scope="module")
def log(server: RealServer) -> Iterator[Path]:
    with scores.scoring(server, PROFILES) as log:
        yield log


@pytest.mark.parametrize("seed", range(filters.SEED, filters.SEED + filters.STATES))
def test_each_node_is_scored_as_kube_scheduler_scores_it(server: RealServer, log: Path, seed: int) -> None:
    random, kube = Random(f"prefer {seed}"), server.kube()
    state = madeup.state(random)
    madeup.with_preferences(random, state)
    try:
        filters.load(kube, state)
        _load_selecting(kube, state)
        nodes, cluster = dict(filters.cache_of(kube).snapshot), _neighbours(kube)
        time.sleep(1.0)  # until kube-scheduler has seen all of it
        probed = [
            (_placed(kube, pod, profile, seed), pod, profile)
            for pod in madeup.preferring(random, state, _PROBES)
            for profile in PROFILES
        ]
        logged = scores.read(log)
        judged = [_Judged(stored, pod, profile, cluster, nodes, logged) for stored, pod, profile in probed]
        differences = [line for each in judged for line in each.differences()]
        print(f"\nseed {seed}: {len(judged)} pods, {sum(each.compared for each in judged)} scores, ", end="")
        print(f"{sum(each.unequal for each in judged)} of them make a difference, {len(differences)} differences")
        print(*differences, sep="\n")
        assert differences == []
    finally:
        _clear_selecting(kube)
        filters.clear(kube)


class _Judged:
    """One pod after kube-scheduler has placed it, or not."""

    def __init__(
        self,
        stored: JSON,
        written: JSON,
        profile: str,
        neighbours: Neighbours,
        nodes: Mapping[str, NodeState],
        logged: Mapping[str, scores.Scores],
    ) -> None:
        self._name = f"{stored['metadata']['namespace']}/{stored['metadata']['name']}"
        self._theirs, self._bound = logged.get(self._name, {}), stored["spec"].get("nodeName", "")
        spec = {**written, "spec": {**written["spec"], "schedulerName": profile}}
        seen = pods.trim(spec)
        self._rules, self._needs = objects.read_rules(seen), scheduling.needs_of(seen)
        self._message = (original.verdict(stored) or {}).get("message", "")
        self._spec = spec
        passing = [
            node for node in nodes.values() if node_reason(replace(node, gpus=(filters.GPU,)), self._needs) is None
        ]
        refused = neighbours.refused(self._rules, self._needs, passing)
        self._mine = {node.name: node for node in passing if node.name not in refused}
        self._with = neighbours.with_defaults(self._rules)
        self._cluster = neighbours.cluster(self._rules)
        self.compared = self.unequal = 0

    def differences(self) -> Iterator[str]:
        """Where our scores and kube-scheduler's differ."""
        theirs = {name for by_node in self._theirs.values() for name in by_node}
        passed = theirs or ({self._bound} - {""})
        if passed != self._mine.keys():
            only = f"ours alone {sorted(self._mine.keys() - passed)}, theirs alone {sorted(passed - self._mine.keys())}"
            yield f"{self._name}: {only}: {self._message} {self._spec}"
            return
        nodes = list(self._mine.values())
        for plugin, (judge, weight) in _NAMES.items() if theirs else ():
            found = judge(self._with, self._needs, self._cluster, nodes) or [0] * len(nodes)
            mine = {node.name: weight * score for node, score in zip(nodes, found, strict=True)}
            reported = self._theirs.get(plugin, dict.fromkeys(mine, 0))
            self.compared += len(mine)
            self.unequal += len(mine) if len(set(reported.values())) > 1 else 0
            # Scores that are equal for all nodes decide nothing; kube-scheduler has some of those where we have none.
            if mine != reported and len({*mine.values()}) + len({*reported.values()}) > 2:
                yield f"{self._name} {plugin}: ours {mine}, theirs {reported}: {self._spec}"


# -- the cluster --------------------------------------------------------------------------------------------------


def _path(plural: str, namespace: str, name: str | None = None) -> str:
    return paths.path(spreading.KINDS[plural].group_version, plural, namespace, name)


def _load_selecting(kube: Kube, state: State) -> None:
    for plural, each in [("services", each) for each in state.services] + state.controllers:
        kube.create(_path(plural, each["metadata"]["namespace"]), each)


def _clear_selecting(kube: Kube) -> None:
    for plural in spreading.KINDS:
        for space in madeup.SPACES:
            for each in kube.list(_path(plural, space)).items:
                # No garbage collector runs here.
                kube.delete(_path(plural, space, each["metadata"]["name"]), {"propagationPolicy": "Background"})


def _neighbours(kube: Kube) -> Neighbours:
    """The stored objects, in the allocator's own cache."""
    found = Neighbours()
    for node in kube.list(paths.path("v1", "nodes")).items:
        found.put_node(attributes.facts(node))
    spaces = kube.list(paths.path("v1", "namespaces")).items
    found.label_namespaces({each["metadata"]["name"]: each["metadata"].get("labels") or {} for each in spaces})
    for pod in kube.list(paths.pods()).items:
        if pod["spec"].get("nodeName") and not pods.finished(pod):
            placed = objects.read_rules(pods.trim(pod)).placed(terminating="deletionTimestamp" in pod["metadata"])
            found.put(pod["metadata"]["uid"], placed, pod["spec"]["nodeName"])
    for kind in (*storage.KINDS.values(), *spreading.KINDS.values()):
        items = kube.list(paths.path(kind.group_version, kind.plural), of=kind.of).items
        found.followed(kind.plural).listed(kind.plural, ((key_of(each), kind.read(each)) for each in items))
    options = [{"schedulerName": name, **given} for name, given in PROFILES.items()]
    found.declare(pool_options({"schedulerProfiles": options}).profiles)
    return found


def _placed(kube: Kube, pod: JSON, profile: str, seed: int) -> JSON:
    """The pod once kube-scheduler has judged it. The pod is deleted then."""
    space, name = pod["metadata"]["namespace"], f"{pod['metadata']['name']}-{profile}-{seed}"
    named = {**pod, "metadata": {**pod["metadata"], "name": name}, "spec": {**pod["spec"], "schedulerName": profile}}
    kube.create(paths.pods(space), named)
    found: JSON = {}

    def judged() -> bool:
        found.update(kube.get(paths.pods(space, name)))
        return original.verdict(found) is not None

    wait_for(judged, f"{name} was not judged", 30.0, every=0.02)
    kube.delete(paths.pods(space, name), {"gracePeriodSeconds": 0})
    return found
