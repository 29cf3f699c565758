"""Before a new node is requested, the rules between pods and volumes are also checked for it."""

from __future__ import annotations

from typing import Any

import pytest

from allocator.cache.podinfo import pod_event
from allocator.neighbours import storage
from allocator.neighbours.followed import key_of
from allocator.scheduler.events import PoolsDeclared, StorageListed
from contract import pods
from contract.encoding.protocol import Placed
from tests.builders import PodBuilder, node, pod
from tests.unit.allocator.harness import SchedulerHarness, admitted, question

JSON = dict[str, Any]
HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"


def wants(name: str, size: str = "16Gi") -> PodBuilder:
    return pod(name).uid(f"uid-{name}").asks("gpufraction.io/gpu-memory", size).labelled("app", name)


def rule(kind: str, app: str, key: str) -> JSON:
    terms = [{"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}]
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


CLAIM = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}


def claim(**spec: Any) -> JSON:
    return {"metadata": {"namespace": "default", "name": "data", "annotations": {}}, "spec": spec}


def bound(zone: str) -> list[JSON]:
    found = claim(volumeName="v")
    found["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] = "yes"
    in_zone = {"key": ZONE, "operator": "In", "values": [zone]}
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [in_zone]}]}}
    return [found, {"metadata": {"name": "v"}, "spec": {"nodeAffinity": affinity}}]


def made_in(zone: str) -> list[JSON]:
    topologies = [{"matchLabelExpressions": [{"key": ZONE, "values": [zone]}]}]
    return [
        claim(storageClassName="late"),
        {
            "metadata": {"name": "late"},
            "provisioner": "disk",
            "volumeBindingMode": "WaitForFirstConsumer",
            "allowedTopologies": topologies,
        },
    ]


class Bench(SchedulerHarness):
    """Node `n` in zone a is full; the pool `new` is in zone b. The pod `web` has the GPU of `n`."""

    @classmethod
    def holding(cls, stored: list[JSON]) -> Bench:
        harness = cls([node("n").labelled(HOST, "n").labelled(ZONE, "a").gpu(mib=16384)])
        harness.controller.handle(
            PoolsDeclared((node("new").labelled(ZONE, "b").gpu(mib=16384).state(),), frozenset(("new",)))
        )
        by_kind: dict[str, list[JSON]] = {"persistentvolumeclaims": stored[:1]} if stored else {}
        for each in stored[1:]:
            by_kind.setdefault("storageclasses" if "provisioner" in each else "persistentvolumes", []).append(each)
        for plural, kind in storage.KINDS.items():
            found = tuple((key_of(each), kind.read(each)) for each in by_kind.get(plural, ()))
            harness.controller.handle(StorageListed(plural, found))
        answer = harness.controller.reserve(question(wants("web")))
        assert isinstance(answer, Placed)
        made = admitted(wants("web").on("n"), allocation=answer.allocation)
        harness.controller.handle(pod_event(pods.trim(made)))
        return harness


NEW_NODES: dict[str, tuple[PodBuilder, list[JSON], bool]] = {
    "no rules": (wants("p"), [], True),
    "anti-affinity to another node's pod": (
        wants("p").spec(affinity=rule("podAntiAffinity", "web", HOST)),
        [],
        True,
    ),
    "anti-affinity to another zone's pod": (
        wants("p").spec(affinity=rule("podAntiAffinity", "web", ZONE)),
        [],
        True,
    ),
    "affinity to a pod of another zone": (wants("p").spec(affinity=rule("podAffinity", "web", ZONE)), [], False),
    "affinity to a pod of another node": (wants("p").spec(affinity=rule("podAffinity", "web", HOST)), [], False),
    "affinity to its like alone": (wants("p").spec(affinity=rule("podAffinity", "p", HOST)), [], True),
    "a volume of the pool's zone": (wants("p").spec(**CLAIM), bound("b"), True),
    "a volume of another zone": (wants("p").spec(**CLAIM), bound("a"), False),
    "a volume that can be made in the pool's zone": (wants("p").spec(**CLAIM), made_in("b"), True),
    "a volume that can only be made in another zone": (wants("p").spec(**CLAIM), made_in("a"), False),
    "a claim that does not exist": (wants("p").spec(**CLAIM), [], False),
}


@pytest.mark.parametrize("case", NEW_NODES.values(), ids=NEW_NODES.keys())
def test_a_new_node_of_the_pool_is_for_a_pod_with(case: tuple[PodBuilder, list[JSON], bool]) -> None:
    waiting, stored, may_come = case
    harness = Bench.holding(stored)
    harness.controller.handle(pod_event(pods.trim(admitted(waiting, gated=True))))
    harness.controller.schedule_pending()
    (unserved,) = harness.unserved(0.0) or ()
    assert unserved.closed == (frozenset() if may_come else frozenset({"new"}))


@pytest.mark.parametrize("app", ["p", "web"])
def test_pods_that_exclude_their_like_are_apart(app: str) -> None:
    harness = Bench.holding([])
    for number in range(2):
        waiting = wants("p").uid(f"uid-{number}").spec(affinity=rule("podAntiAffinity", app, HOST))
        harness.controller.handle(pod_event(pods.trim(admitted(waiting, gated=True))))
    harness.controller.schedule_pending()
    apart = [each.apart for each in harness.unserved(0.0) or ()]
    assert (len(apart), len(set(apart)), apart[0] is not None) == (2, 1, app == "p")


def test_kinds_of_pods_that_exclude_their_like_are_counted_by_age() -> None:
    """Another process, with other hashes, packs the pods in the same way."""
    harness = Bench.holding([])
    for second, app in enumerate(("c", "a", "c", "b")):
        waiting = wants(app).uid(f"uid-{second}").spec(affinity=rule("podAntiAffinity", app, HOST))
        harness.controller.handle(pod_event(pods.trim(admitted(waiting, gated=True))))
        harness.now += 1
    harness.controller.schedule_pending()
    apart = {each.uid: each.apart for each in harness.unserved(0.0) or ()}
    assert apart == {"uid-0": 0, "uid-1": 1, "uid-2": 0, "uid-3": 2}
