"""Every writing call of our programs is a kind of the enumeration, and differs from the others in what it sends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from contract import names
from tests.simulation.enumeration import references, writes
from tests.simulation.world.network import Call

TOP = Path(__file__).resolve().parents[3]
PODS = "/api/v1/namespaces/a/pods/p"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/gpufraction-system/leases"


def told(method: str, path: str, body: Any = None, host: str = "allocator-0.1", **query: str) -> str | None:
    return writes.kind_of(Call(host, method, path, query, 1, None if body is None else json.dumps(body).encode()))


def test_every_call_that_writes_belongs_to_a_kind_or_stands_with_a_reason() -> None:
    named = {site for kind in writes.KINDS for site in kind.sites}
    assert set(writes.sites_in(TOP)) == named | set(writes.UNREACHED)


def test_no_call_both_belongs_to_a_kind_and_is_excused() -> None:
    assert not {site for kind in writes.KINDS for site in kind.sites} & set(writes.UNREACHED)


def test_what_is_excused_is_a_kind_and_has_a_reason() -> None:
    assert set(references.UNREACHED) <= set(writes.BY_KEY)
    assert all({**references.UNREACHED, **writes.UNREACHED}.values())


def test_the_second_call_of_a_verb_in_a_function_is_told_from_the_first(tmp_path: Path) -> None:
    (tmp_path / "allocator").mkdir()
    calls = ("self._kube.create()", "kube.create()", "self._files.delete()")
    text = "\n        ".join(("class A:\n    def f(self):", *calls))
    (tmp_path / "allocator" / "m.py").write_text(text)
    assert list(writes.sites_in(tmp_path)) == ["allocator.m:A.f create", "allocator.m:A.f create#2"]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ([{"op": "remove", "path": "/spec/schedulingGates/0"}], "allocator: pod placed"),
        ({"metadata": {"uid": "u", "annotations": {str(names.FENCE): "w"}}}, "allocator: pod fenced"),
        ({"metadata": {"uid": "u"}, "spec": {"activeDeadlineSeconds": 1}}, "allocator: late pod failed"),
        ({"metadata": {"uid": "u", "resourceVersion": "1"}}, "allocator: share taken off a pod"),
        ({"metadata": {"uid": "u", "annotations": {"x": "y"}}}, "allocator: pod's annotations kept up"),
    ],
)
def test_patches_of_pods_are_told_apart(body: Any, kind: str) -> None:
    assert told("PATCH", PODS, body) == kind


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        ({"holderIdentity": "a", "acquireTime": "1", "renewTime": "1"}, "allocator: Lease taken"),
        ({"holderIdentity": "a", "acquireTime": "1", "renewTime": "2"}, "allocator: Lease renewed"),
        ({"holderIdentity": "", "renewTime": "2"}, "allocator: Lease released"),
    ],
)
def test_writes_of_the_lease_are_told_apart(spec: Any, kind: str) -> None:
    assert told("PUT", f"{LEASES}/gpufraction-allocator", {"spec": spec}) == kind


def test_a_dry_run_is_no_eviction() -> None:
    assert told("POST", f"{PODS}/eviction", {}, dryRun="All") == "allocator: eviction tried"
    assert told("POST", f"{PODS}/eviction", {}) == "allocator: pod evicted"


def test_a_write_that_nobody_named_is_seen_as_one() -> None:
    assert told("PATCH", "/apis/gpufraction.io/v1alpha1/gpunodes/n1", {}, host="webhook-0.1") == (
        "webhook: * PATCH gpunodes"
    )


def test_reads_and_others_requests_are_no_writes_of_ours() -> None:
    assert told("GET", PODS) is None
    assert told("DELETE", PODS, host="admin") is None
