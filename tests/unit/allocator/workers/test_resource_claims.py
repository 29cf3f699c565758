"""A placed pod's claim: written before the gate is removed, found after a crash, never written by a former leader."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from allocator.workers import resource_claims
from allocator.workers.resource_claims import NotWritten
from contract import names
from contract.encoding import resourceclaims
from contract.model import Allocation, ContainerAllocation, FractionRequest, GpuShare, PodRequest
from playground.api.api import Api
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube
from tests.wires import Sent, Wire

JSON = dict[str, Any]
ASKED = PodRequest("native", (FractionRequest("main", memory=1 << 30),))
NAME = resourceclaims.name_from("review")
UUID = "GPU-11111111-2222-3333-4444-555555555555"


def allocated(identity: str, node: str = "a") -> Allocation:
    share = GpuShare(UUID, 0, 1 << 30, 0, 16 << 30, "nvidia.com/gpu", dra=True)
    return Allocation(identity, node, (ContainerAllocation("main", (share,)),))


class Bench:
    """An API server with one waiting pod, and a wire on which answers are lost."""

    def __init__(self) -> None:
        self.api = Api()
        self.wire = Wire(self.api, spares_reads=True)
        self.kube = Kube(self.wire)
        sound = Kube(Wire(self.api))
        spec: JSON = {
            "containers": [{"name": "main", "image": "x"}],
            "schedulingGates": [{"name": str(names.GATE)}],
        }
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p", "namespace": "default"},
            "spec": resourceclaims.with_claim(spec, ASKED, NAME),
        }
        sound.create(paths.namespaces(), {"metadata": {"name": "default"}}) if not _there(sound) else None
        self.pod = sound.create(paths.pods("default"), body)
        self.sound = sound

    def write(self, allocation: Allocation, pod: JSON | None = None) -> float | None:
        return resource_claims.write(self.kube, pod or self.pod, ASKED, allocation, timeout=5.0)

    @property
    def claim(self) -> JSON:
        return self.sound.get(paths.resourceclaims("default", NAME))

    def fenced(self) -> JSON:
        """The pod in a later version, as after a new leader's write."""
        self.pod = self.sound.patch_merge(
            paths.pods("default", "p"), {"metadata": {"annotations": {str(names.FENCE): "x"}}}
        )
        return self.pod


def _there(kube: Kube) -> bool:
    return any(item["metadata"]["name"] == "default" for item in kube.list(paths.namespaces()).items)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def node_of(claim: JSON) -> str:
    pool: str = claim["status"]["allocation"]["devices"]["results"][0]["pool"]
    return pool


def test_the_claim_is_owned_by_the_pod_allocated_and_reserved_for_it(bench: Bench) -> None:
    left = bench.write(allocated("one"))
    assert left is not None
    assert 0 < left <= 5.0
    claim = bench.claim
    assert resourceclaims.owner_uid(claim) == bench.pod["metadata"]["uid"]
    assert [each["uid"] for each in claim["status"]["reservedFor"]] == [bench.pod["metadata"]["uid"]]
    assert resourceclaims.prepared(claim, uid=claim["metadata"]["uid"], node="a")


def test_the_same_write_again_changes_nothing(bench: Bench) -> None:
    bench.write(allocated("one"))
    before = bench.claim
    bench.write(allocated("one"))
    assert bench.claim == before


@pytest.mark.parametrize(
    "fates", [["lost-and-done"], ["answered", "lost-and-done"], ["dropped"], ["answered", "dropped"]]
)
def test_a_write_without_an_answer_is_not_taken_for_done_and_can_be_repeated(bench: Bench, fates: Any) -> None:
    bench.wire.fates = list(fates)
    with pytest.raises(NotWritten) as caught:
        bench.write(allocated("one"))
    assert not caught.value.refused
    bench.write(allocated("one"))
    assert node_of(bench.claim) == "a"


def test_another_decision_about_the_pod_takes_the_place_of_an_earlier_one(bench: Bench) -> None:
    bench.write(allocated("one", "a"))
    bench.write(allocated("two", "b"), bench.fenced())
    assert node_of(bench.claim) == "b"
    assert resourceclaims.version(bench.claim) == ("two", int(bench.pod["metadata"]["resourceVersion"]))


def test_an_earlier_leader_does_not_change_what_a_later_one_wrote(bench: Bench) -> None:
    before = copy.deepcopy(bench.pod)
    bench.write(allocated("two", "b"), bench.fenced())
    with pytest.raises(NotWritten, match="later leader"):
        bench.write(allocated("one", "a"), before)
    assert node_of(bench.claim) == "b"


def test_a_claim_that_another_pod_owns_is_left_alone_and_the_pod_is_not_placed(bench: Bench) -> None:
    body = resourceclaims.claim_for(bench.pod, ASKED, allocated("one"))
    other = bench.sound.create(
        paths.pods("default"),
        {"metadata": {"name": "other"}, "spec": {"containers": [{"name": "main", "image": "x"}]}},
    )
    body["metadata"]["ownerReferences"][0].update(name="other", uid=other["metadata"]["uid"])
    bench.sound.create(paths.resourceclaims("default"), body)
    with pytest.raises(NotWritten, match="another ResourceClaim") as caught:
        bench.write(allocated("one"))
    assert caught.value.refused
    assert "allocation" not in (bench.claim.get("status") or {})


def test_a_claim_that_a_tenant_made_with_other_requests_is_not_used(bench: Bench) -> None:
    body = resourceclaims.claim_for(bench.pod, ASKED, allocated("one"))
    body["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "gpu.nvidia.com"
    bench.sound.create(paths.resourceclaims("default"), body)
    with pytest.raises(NotWritten) as caught:
        bench.write(allocated("one"))
    assert caught.value.refused


def test_a_pod_that_names_no_claim_gets_none(bench: Bench) -> None:
    plain: JSON = {**bench.pod, "spec": resourceclaims.without_claim(bench.pod["spec"])}
    share = GpuShare(UUID, 0, 1 << 30, 0, 16 << 30)
    elsewhere = Allocation("one", "a", (ContainerAllocation("main", (share,)),))
    assert bench.write(elsewhere, plain) == 5.0
    assert bench.sound.list(paths.resourceclaims()).items == []
    with pytest.raises(NotWritten, match="names none"):
        bench.write(allocated("one"), plain)


def test_without_time_nothing_is_begun(bench: Bench) -> None:
    with pytest.raises(NotWritten, match="no time"):
        resource_claims.write(bench.kube, bench.pod, ASKED, allocated("one"), timeout=0.01)
    assert bench.sound.list(paths.resourceclaims()).items == []


class Removing(Wire):
    """A wire on which a user removes the claim, this many times, before each request except those that create it."""

    def __init__(self, api: Api, times: int) -> None:
        super().__init__(api)
        self._left, self._sound = times, Kube(Wire(api))

    def answer(self, sent: Sent) -> Any:
        if sent.method != "POST" and self._left:
            self._left -= 1
            self._sound.delete(paths.resourceclaims("default", NAME))
        return super().answer(sent)


def test_a_claim_that_is_removed_while_it_is_written_is_made_again(bench: Bench) -> None:
    bench.kube = Kube(Removing(bench.api, 2))
    bench.write(allocated("one"))
    assert node_of(bench.claim) == "a"


def test_a_claim_that_is_removed_again_and_again_is_left_for_the_next_decision(bench: Bench) -> None:
    bench.kube = Kube(Removing(bench.api, 100))
    with pytest.raises(NotWritten, match="other clients wrote") as caught:
        bench.write(allocated("one"))
    assert not caught.value.refused


def test_a_claim_that_is_removed_as_soon_as_it_was_found(bench: Bench) -> None:
    bench.sound.create(paths.resourceclaims("default"), resourceclaims.claim_for(bench.pod, ASKED, allocated("one")))
    bench.kube = Kube(Removing(bench.api, 1))
    with pytest.raises(NotWritten, match="was removed at the same time") as caught:
        bench.write(allocated("one"))
    assert not caught.value.refused
    bench.write(allocated("one"))
    assert node_of(bench.claim) == "a"
