"""The administrator's limit on what the claims of one namespace have together."""

from __future__ import annotations

from allocator.features.elasticgpuclaims import ClaimSettings, objects
from allocator.features.elasticgpuclaims.changes import ClaimChanged
from allocator.features.elasticgpuclaims.objects import BOUND, PENDING
from contract.encoding import quantity
from tests.builders import node
from tests.unit.allocator.features.elasticgpuclaims.classes import bench, of_pod, status, taken


def test_claims_of_a_namespace_have_together_what_the_administrator_allows() -> None:
    on = bench(claiming=ClaimSettings(claims=True, claim_memory=8 * quantity.GIB))
    for name, memory in (("a", 5), ("b", 4), ("c", 3)):
        on.a_claim(name, memory=memory, of="now")
        on.quiet()
    assert [status(on, name) for name in "abc"] == [(BOUND, "Bound"), (PENDING, "NamespaceLimit"), (BOUND, "Bound")]
    assert on.get(objects.CLAIMS, "b")["status"]["message"] == (
        "it needs 4096 MiB, and the claims of its namespace use 5120 of the 8192 MiB that they may use together; "
        "delete one, or ask the administrator for more"
    )
    on.a_pod("p", "b")
    on.quiet()
    assert on.reason_of("p") == "ClaimNamespaceLimit"
    on.take_over()
    on.quiet()
    assert (status(on, "b"), on.reason_of("p")) == ((PENDING, "NamespaceLimit"), "ClaimNamespaceLimit")
    on.delete(objects.CLAIMS, "a")
    on.quiet()
    assert (status(on, "b"), on.reason_of("p")) == ((BOUND, "Bound"), "Allocated")


def test_the_bound_is_each_namespaces_own_and_counts_what_is_on_its_way() -> None:
    on = bench(claiming=ClaimSettings(claims=True, claim_memory=4 * quantity.GIB))
    on.create("/api/v1/namespaces", {"metadata": {"name": "other"}})
    on.look()
    for name, namespace in (("a", "default"), ("b", "default"), ("c", "other")):
        made = on.a_claim(name, memory=4, of="now", namespace=namespace)
        on.harness.controller.handle(ClaimChanged(objects.CLAIMS, made))
    on.decide()
    _, bindings, _ = on.harness.claims.effects()
    assert sorted(bind.claim.key for bind in bindings) == ["default/a", "other/c"]


def test_a_claim_that_moves_does_not_count_against_itself() -> None:
    on = bench(node("a").gpus(1, mib=16384), node("z").gpus(1, mib=16384).labelled("disk", "fast"))
    on.claiming = ClaimSettings(claims=True, claim_memory=4 * quantity.GIB)
    on.take_over()
    on.a_claim("c", memory=4, of="now")
    on.quiet()
    on.a_pod("p", "c", nodeSelector={"disk": "fast"})
    on.quiet()
    assert (set(taken(on)), set(of_pod(on, "p"))) == ({"GPU-z-0"}, {"GPU-z-0"})


def test_what_is_retained_counts_until_it_is_given_back() -> None:
    on = bench(claiming=ClaimSettings(claims=True, claim_memory=4 * quantity.GIB))
    on.a_claim("c", memory=4, of="later")
    on.a_pod("p", "c")
    on.quiet()
    name = on.share_of("c").name
    on.delete("pods", "p")
    on.delete(objects.CLAIMS, "c")
    on.a_claim("next", memory=1, of="now")
    on.quiet()
    assert status(on, "next") == (PENDING, "NamespaceLimit")
    on.delete(objects.SHARES, name)
    on.quiet()
    assert status(on, "next") == (BOUND, "Bound")
