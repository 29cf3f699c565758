"""A claim from its creation to its end, as users see it."""

from __future__ import annotations

from typing import Any

import pytest

from allocator.features.elasticgpuclaims import ClaimSettings, objects
from allocator.features.elasticgpuclaims.objects import BOUND, LOST, PENDING, RELEASED
from contract import names, pods
from contract.encoding import quantity
from contract.encoding.protocol import Wait
from contract.model import Usage
from tests.builders import node, pod
from tests.unit.allocator.features.elasticgpuclaims.classes import bench, of_pod, status, taken
from tests.unit.allocator.features.elasticgpuclaims.harness import CLAIM_OF
from tests.unit.allocator.harness import question

HOST = "kubernetes.io/hostname"


def test_a_claim_is_bound_at_once_and_books_its_share_without_any_pod() -> None:
    on = bench()
    on.a_claim("c", memory=2, cores=1, of="now")
    on.quiet()
    share = on.share_of("c")
    assert (status(on, "c"), share.status.phase) == ((BOUND, "Bound"), BOUND)
    assert (share.namespace, share.claim) == ("default", "c")
    assert list(taken(on).values()) == [Usage(2 * quantity.GIB, 1, 1)]
    spec = on.get(objects.SHARES, share.name)["spec"]
    assert spec["capacity"] == {f"{objects.PROVISIONER}/gpu-core": "1", f"{objects.PROVISIONER}/gpu-memory": "2Gi"}
    assert spec["gpuShare"] == {"gpuName": "b-00"}
    assert names.CLAIM_FINALIZER in on.get(objects.CLAIMS, "c")["metadata"]["finalizers"]


def test_pods_that_name_one_claim_have_its_one_share_together() -> None:
    on = bench()
    on.a_claim("c", memory=10, cores=60, of="now")
    for name in ("p", "q"):
        on.a_pod(name, "c")
    on.quiet()
    [(uuid, usage)] = taken(on).items()
    assert usage == Usage(10 * quantity.GIB, 60, 1), "once, however many use it"
    assert of_pod(on, "p") == of_pod(on, "q") == {uuid: 10 * quantity.GIB}
    on.delete("pods", "p")
    on.quiet()
    assert taken(on) == {uuid: usage}


def test_with_wait_for_first_consumer_it_is_bound_where_the_first_pod_can_go() -> None:
    on = bench(node("a").gpus(1, mib=16384), node("z").gpus(1, mib=16384).labelled("disk", "fast"))
    on.a_claim("c", of="later")
    on.quiet()
    assert (status(on, "c"), taken(on)) == ((PENDING, "WaitForFirstConsumer"), {})
    on.a_pod("p", "c", nodeSelector={"disk": "fast"})
    on.quiet()
    assert status(on, "c") == (BOUND, "Bound")
    assert set(of_pod(on, "p")) == {"GPU-z-0"}


def test_an_unused_claim_moves_to_where_a_pod_can_run_and_a_used_one_stays() -> None:
    on = bench(node("a").gpus(1, mib=16384), node("z").gpus(1, mib=16384).labelled("disk", "fast"))
    on.a_claim("c", of="now")
    on.quiet()
    assert set(taken(on)) == {"GPU-a-0"}
    on.a_pod("p", "c", nodeSelector={"disk": "fast"})
    on.quiet()
    assert (set(taken(on)), set(of_pod(on, "p"))) == ({"GPU-z-0"}, {"GPU-z-0"})
    assert on.get(objects.SHARES, on.share_of("c").name)["spec"]["gpuShare"] == {"gpuName": "z-00"}
    on.a_pod("q", "c", nodeSelector={"disk": "none"})
    on.quiet()
    assert (on.reason_of("q"), set(taken(on))) == ("Selector", {"GPU-z-0"})


def test_a_pod_of_a_claim_waits_while_a_pod_on_the_claims_node_excludes_it() -> None:
    on = bench(*(node(name).gpus(1, mib=16384).labelled(HOST, name) for name in "az"))
    there = pod("db").labelled("app", "db").container("c").on("a").spec(automountServiceAccountToken=False)
    on.create("/api/v1/namespaces/default/pods", there.json())
    on.a_claim("c", of="now")
    on.a_pod("p", "c")
    on.quiet()
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "db"}}}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    on.a_pod("q", "c", affinity=apart)
    on.quiet()
    assert (set(of_pod(on, "p")), on.reason_of("q")) == ({"GPU-a-0"}, "PodAntiAffinity")
    on.delete("pods", "db")
    on.quiet()
    assert set(of_pod(on, "q")) == {"GPU-a-0"}


def test_a_pod_that_names_a_missing_claim_waits_and_starts_when_it_comes() -> None:
    on = bench()
    on.a_pod("p", "c")
    on.quiet()
    assert (on.reason_of("p"), pods.gates(on.get("pods", "p"))) == ("ClaimMissing", (names.GATE,))
    on.a_claim("c", of="now")
    on.quiet()
    assert (on.reason_of("p"), pods.gates(on.get("pods", "p"))) == ("Allocated", ())


def test_where_claims_are_off_a_pod_that_names_one_waits_with_that_reason() -> None:
    on = bench(claiming=ClaimSettings(claims=False))
    on.a_pod("p", "c")
    on.quiet()
    assert (on.reason_of("p"), pods.gates(on.get("pods", "p"))) == ("ClaimsOff", (names.GATE,))


def test_admission_lets_a_pod_wait_and_says_for_what() -> None:
    on = bench()
    asked = question(pod("p").container("main").annotated(CLAIM_OF, "c"))
    missing = Wait("ClaimMissing", "ElasticGPUClaim c is not in the namespace; create it")
    assert on.harness.controller.reserve(asked) == missing
    on.a_claim("c", of="now")
    on.quiet()
    ready = Wait("ClaimBound", "ElasticGPUClaim c is bound; the pod is placed shortly")
    assert on.harness.controller.reserve(asked) == ready


def test_a_claim_without_room_waits_says_so_and_is_bound_when_there_is() -> None:
    on = bench(node("a").gpus(1, mib=16384))
    on.a_pod("big", memory="12Gi")
    on.quiet()
    on.a_claim("c", memory=8, of="now")
    on.a_pod("p", "c")
    on.quiet()
    assert (status(on, "c"), on.reason_of("p")) == ((PENDING, "Memory"), "ClaimMemory")
    on.ended("big")
    on.quiet()
    assert (status(on, "c"), on.reason_of("p")) == ((BOUND, "Bound"), "Allocated")


def test_a_deleted_claim_stays_while_a_pod_uses_it_then_frees_its_share() -> None:
    on = bench()
    on.a_claim("c", of="now")
    on.a_pod("p", "c")
    on.quiet()
    on.delete(objects.CLAIMS, "c")
    on.a_pod("late", "c")
    on.quiet()
    assert (status(on, "c"), on.reason_of("late")) == ((BOUND, "InUse"), "ClaimDeleted")
    assert len(taken(on)) == 1
    on.ended("p")
    on.quiet()
    assert (on.all(objects.CLAIMS), on.all(objects.SHARES), taken(on)) == ({}, {}, {})
    assert on.reason_of("late") == "ClaimMissing"


def test_a_leader_whose_watch_is_late_deletes_no_share_of_a_claim_that_is_there() -> None:
    on = bench()
    on.a_claim("c", of="now")
    on.quiet()
    before = on.get(objects.SHARES, on.share_of("c").name)
    on.take_over()  # it has not seen any claim yet, and lists the ElasticGPUs
    assert on.work() == 1, "the share looks left over, so it is to be deleted"
    assert on.get(objects.SHARES, before["metadata"]["name"]) == before
    on.quiet()
    assert (status(on, "c"), on.share_of("c").uid) == ((BOUND, "Bound"), before["metadata"]["uid"])


@pytest.mark.parametrize(("deleted", "why"), [(objects.SHARES, ("GPUGone", "Bound")), (objects.CLAIMS, ("InUse",) * 2)])
def test_what_is_deleted_in_use_tells_on_whether_its_card_is_there(deleted: str, why: tuple[str, str]) -> None:
    on = bench(node("a").gpus(1, mib=16384))
    on.a_claim("c", of="now")
    on.a_pod("p", "c")
    on.quiet()
    name = on.share_of("c").name
    on.delete(deleted, name if deleted == objects.SHARES else "c")
    on.quiet()
    found = []
    for gpus in (0, 1):
        on.nodes["a"] = node("a").gpus(gpus, mib=16384)
        on.cards()
        on.quiet()
        found.append((status(on, "c"), on.get(objects.SHARES, name)["status"]["phase"]))
    assert found == [((LOST, why[0]), objects.FAILED), ((BOUND, why[1]), BOUND)]


def test_with_retain_the_share_stays_booked_until_its_elastic_gpu_is_deleted() -> None:
    on = bench()
    on.a_claim("c", of="later")
    on.a_pod("p", "c")
    on.quiet()
    name = on.share_of("c").name
    on.delete("pods", "p")
    on.delete(objects.CLAIMS, "c")
    on.quiet()
    assert (on.all(objects.CLAIMS), on.get(objects.SHARES, name)["status"]["phase"]) == ({}, RELEASED)
    assert len(taken(on)) == 1
    on.delete(objects.SHARES, name)
    on.quiet()
    assert (on.all(objects.SHARES), taken(on)) == ({}, {})


def test_a_deleted_elastic_gpu_stays_while_used_and_its_claim_is_lost() -> None:
    on = bench()
    on.a_claim("c", of="now")
    on.a_pod("p", "c")
    on.quiet()
    name = on.share_of("c").name
    on.delete(objects.SHARES, name)
    on.a_pod("late", "c")
    on.quiet()
    assert (set(on.all(objects.SHARES)), len(taken(on)), on.reason_of("late")) == ({name}, 1, "ClaimBinding")
    on.delete("pods", "p")
    on.quiet()
    assert (status(on, "c"), taken(on), on.reason_of("late")) == ((LOST, "ElasticGPUGone"), {}, "ClaimLost")
    on.delete(objects.CLAIMS, "c")
    on.quiet()
    assert on.all(objects.CLAIMS) == {}


def test_a_claim_whose_card_is_removed_is_lost_until_the_card_is_back() -> None:
    on = bench(node("a").gpus(1, mib=16384))
    on.a_claim("c", of="now")
    on.quiet()
    on.nodes["a"] = node("a")
    on.cards()
    on.a_pod("p", "c")
    on.quiet()
    assert (status(on, "c"), on.share_of("c").status.phase) == ((LOST, "GPUGone"), objects.FAILED)
    assert on.reason_of("p") == "ClaimLost"
    on.nodes["a"] = node("a").gpus(1, mib=16384)
    on.cards()
    on.quiet()
    assert (status(on, "c"), on.reason_of("p")) == ((BOUND, "Bound"), "Allocated")


def test_an_unhealthy_card_takes_no_new_pod_of_a_claim() -> None:
    on = bench(node("a").gpu(mib=16384))
    on.a_claim("c", of="now")
    on.quiet()
    on.nodes["a"] = node("a").gpu(mib=16384, sick="XID 79")
    on.cards()
    on.a_pod("p", "c")
    on.quiet()
    assert (status(on, "c"), on.reason_of("p")) == ((BOUND, "Bound"), "Unhealthy")


def test_two_whole_cards_are_nobody_elses() -> None:
    on = bench()
    on.a_claim("c", memory=None, cores=200, of="now")
    on.quiet()
    assert [usage.exclusive for usage in taken(on).values()] == [True, True]
    assert on.get(objects.SHARES, on.share_of("c").name)["spec"]["physicalGPU"] == {"gpuNames": ["a-00", "a-01"]}
    on.a_pod("p", "c")
    on.a_pod("other", memory="1Gi", nodeSelector={"disk": "fast"})
    on.quiet()
    assert (set(of_pod(on, "p")), on.reason_of("other")) == ({"GPU-a-0", "GPU-a-1"}, "Exclusive")


def test_every_container_of_the_pod_sees_the_share_and_init_containers_do_not() -> None:
    on = bench()
    on.a_claim("c", of="now")
    made = pod("p").init("first").container("main").container("side").annotated(CLAIM_OF, "c")
    request = question(made).request
    assert [fraction.container for fraction in request.containers] == ["main", "side"]


def test_tenants_taints_do_not_keep_a_claim_that_nobody_waits_for_off_a_node() -> None:
    on = bench(node("a").gpus(1, mib=16384).tainted("nvidia.com/gpu", "present"))
    on.a_claim("c", of="now")
    on.quiet()
    assert status(on, "c") == (BOUND, "Bound")


def test_a_class_that_comes_late_is_waited_for() -> None:
    on = bench()
    on.a_claim("c", of="other")
    on.a_pod("p", "c")
    on.quiet()
    assert (status(on, "c"), on.reason_of("p")) == ((PENDING, "ClassMissing"), "ClaimClassMissing")
    on.a_class("other")
    on.quiet()
    assert (status(on, "c"), on.reason_of("p")) == ((BOUND, "Bound"), "Allocated")


def test_nothing_is_written_twice_for_a_claim_that_rests() -> None:
    on = bench()
    on.a_claim("c", of="now")
    on.a_claim("waits", memory=99, of="now")
    on.quiet()
    written = len(on.wire.requests)
    on.take_over()
    on.quiet()
    assert len(on.wire.requests) == written


STATES = {
    "it was made": 0,
    "its ElasticGPU was made": 1,
    "it was tied to it": 2,
    "the ElasticGPU says so": 3,
    "the claim says so": 4,
}


@pytest.mark.parametrize("writes", STATES.values(), ids=STATES.keys())
def test_a_leader_that_dies_after_any_write_is_followed_up(writes: int) -> None:
    on = bench()
    on.a_claim("c", of="now")
    on.look()
    on.decide()
    for _ in range(writes):
        on.work(1)
        on.look()
    assert len(on.wire.requests) == writes
    on.take_over()
    on.quiet()
    assert (status(on, "c"), len(taken(on)), len(on.all(objects.SHARES))) == ((BOUND, "Bound"), 1, 1)


@pytest.mark.parametrize("fate", ["lost-and-done", "lost", "refused"])
def test_a_binding_that_got_no_answer_is_one_binding(fate: Any) -> None:
    on = bench()
    on.a_claim("c", of="now")
    on.look()
    on.decide()
    on.wire.fates = [fate]
    on.work()
    assert len(taken(on)) == (fate != "refused"), "reserved while nobody can tell"
    on.quiet()
    assert (status(on, "c"), len(taken(on)), len(on.all(objects.SHARES))) == ((BOUND, "Bound"), 1, 1)


def test_a_binding_that_lands_late_finds_its_share_still_kept() -> None:
    on = bench(node("a").gpus(1, mib=16384))
    on.a_claim("c", memory=10, of="now")
    on.look()
    on.decide()
    on.wire.fates = ["lost"]
    on.work()
    on.a_pod("big", memory="12Gi")
    on.look()
    on.decide()
    on.wire.carry_out_late()
    on.quiet()
    assert (status(on, "c"), on.reason_of("big"), on.overbooked()) == ((BOUND, "Bound"), "Memory", [])


def test_a_replica_that_leads_no_more_reserves_nothing_for_claims() -> None:
    on = bench()
    on.a_claim("c", of="now")
    on.look()
    on.decide()
    assert len(taken(on)) == 1
    on.harness.leads, on.harness.term = False, None
    on.work()
    assert (taken(on), on.wire.requests) == ({}, [])


def test_an_elastic_gpu_that_goes_at_once_is_not_deleted_over_and_over() -> None:
    on = bench()
    on.a_claim("c", of="now")
    on.quiet()
    path = f"/apis/{objects.GROUP_VERSION}/elasticgpus/{on.share_of('c').name}"
    merge = "application/merge-patch+json"
    on.api.call("PATCH", path, body={"metadata": {"finalizers": None}}, content_type=merge)
    on.delete(objects.CLAIMS, "c")
    on.look()
    before = len(on.wire.requests)
    for _ in range(5):
        on.work()
    assert on.wire.requests[before:] == [f"DELETE {path}"]
    on.quiet()
    assert (on.all(objects.CLAIMS), on.all(objects.SHARES), taken(on)) == ({}, {}, {})
