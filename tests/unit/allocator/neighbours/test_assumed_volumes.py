"""A decision about a claim counts for later decisions, until the claim shows it or the pod is deleted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from allocator.neighbours.storage import AssumedVolumes
from contract.model import NodeState
from contract.scheduling.clusterfilters import volume_binding
from contract.scheduling.clusterfilters.objects import (
    Cluster,
    PodRules,
    PodVolume,
    StorageClass,
    StorageObjects,
    Volume,
    VolumeClaim,
)
from contract.scheduling.needs import PodNeeds

NODES = {name: NodeState(name) for name in ("n1", "n2")}
LOCAL = StorageClass("local", "kubernetes.io/no-provisioner", delayed=True)
MADE = StorageClass("made", "disk.example.com", delayed=True)


def local(name: str, size: int = 1) -> Volume:
    return Volume(name, storage_class="local", size=size, available=True)


def storage(*volumes: Volume, claims: tuple[str, ...] = ("a", "b"), of: StorageClass = LOCAL) -> StorageObjects:
    found = {("team", name): VolumeClaim("team", name, uid=name, storage_class=of.name, size=1) for name in claims}
    return StorageObjects(found, {volume.name: volume for volume in volumes}, {of.name: of})


def rules(claim: str) -> PodRules:
    return PodRules("team", volumes=(PodVolume(claim),))


def accepts(claim: str, objects: StorageObjects) -> list[str]:
    """The nodes on which a pod with the claim can run."""
    check = volume_binding.check(rules(claim), PodNeeds(), Cluster(storage=objects))
    assert check is not None
    return [name for name, node in NODES.items() if check(node) is None]


def test_two_claims_do_not_get_one_volume() -> None:
    it, objects = AssumedVolumes(set()), storage(local("v"))
    assert accepts("b", it.over(objects, NODES)) == ["n1", "n2"]
    it.put("id", rules("a"), "n1")
    assert accepts("b", it.over(objects, NODES)) == []
    it.drop("id")
    assert accepts("b", it.over(objects, NODES)) == ["n1", "n2"]


def test_a_pod_with_the_same_claim_gets_the_same_volume() -> None:
    it, objects = AssumedVolumes(set()), storage(local("v"))
    it.put("id", rules("a"), "n1")
    assert accepts("a", it.over(objects, NODES)) == ["n1", "n2"]


def test_where_a_volume_is_made_the_other_pods_of_the_claim_go_too() -> None:
    it, objects = AssumedVolumes(set()), storage(of=MADE)
    it.put("id", rules("a"), "n2")
    assert accepts("a", it.over(objects, NODES)) == ["n2"]
    assert accepts("b", it.over(objects, NODES)) == ["n1", "n2"]


def test_each_of_several_pods_gets_another_volume() -> None:
    it, objects = AssumedVolumes(set()), storage(local("v", 1), local("w", 2), claims=("a", "b", "c"))
    it.put("one", rules("a"), "n1")
    it.put("two", rules("b"), "n1")
    found = it.over(objects, NODES)
    assert {name: volume.claim for name, volume in found.volumes.items()} == {
        "v": ("team", "a", "a"),
        "w": ("team", "b", "b"),
    }
    assert accepts("c", found) == []


def test_what_the_claim_shows_goes_before_what_was_assumed() -> None:
    it, objects = AssumedVolumes(set()), storage(local("v"), local("w"))
    it.put("id", rules("a"), "n1")
    assert it.over(objects, NODES).volumes["v"].claim == ("team", "a", "a")
    shown = {**objects.claims, ("team", "a"): replace(objects.claims["team", "a"], volume="w", bound=True)}
    assert it.over(replace(objects, claims=shown), NODES).volumes["v"].claim is None


def test_a_volume_that_somebody_else_got_meanwhile_is_replaced_by_another() -> None:
    it, objects = AssumedVolumes(set()), storage(local("v"), local("w"))
    it.put("id", rules("a"), "n1")
    it.over(objects, NODES)
    taken = {**objects.volumes, "v": replace(objects.volumes["v"], claim=("else", "x", ""))}
    assert it.over(replace(objects, volumes=taken), NODES).volumes["w"].claim == ("team", "a", "a")


@pytest.mark.parametrize("missing", ["the claim", "a volume", "the node"])
def test_nothing_is_taken_by_a_pod_that_cannot_be_bound(missing: str) -> None:
    it = AssumedVolumes(set())
    it.put("id", rules("a"), "gone" if missing == "the node" else "n1")
    volumes = () if missing == "a volume" else (local("v"),)
    objects = storage(*volumes, claims=("b",) if missing == "the claim" else ("a", "b"))
    assert it.over(objects, NODES) == objects


def test_pods_without_claims_are_not_kept() -> None:
    it = AssumedVolumes(set())
    it.put("id", PodRules("team"), "n1")
    assert it.changes == 0


class Pods(RuleBasedStateMachine):
    """Pods with one claim each come and go: no volume ever belongs to two claims."""

    def __init__(self) -> None:
        super().__init__()
        self.it, self.objects = AssumedVolumes(set()), storage(local("v"), local("w"), claims=tuple("abcd"))
        self.held: set[str] = set()

    @rule(claim=st.sampled_from("abcd"), node=st.sampled_from(("n1", "n2")))
    def place(self, claim: str, node: str) -> None:
        if claim not in self.held and node in accepts(claim, self.it.over(self.objects, NODES)):
            self.it.put(claim, rules(claim), node)
            self.held.add(claim)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        removed = data.draw(st.sampled_from(sorted(self.held)))
        self.held.discard(removed)
        self.it.drop(removed)

    @invariant()
    def each_has_a_volume_of_its_own(self) -> None:
        found = self.it.over(self.objects, NODES).volumes.values()
        assert {volume.claim[1] for volume in found if volume.claim is not None} == self.held


TestPods = Pods.TestCase
