"""The policies on ResourceClaims of our class, as the embedded API server evaluates them: who may write what."""

from __future__ import annotations

from typing import Any

import pytest

from contract import names
from playground.api.api import Api
from playground.api.kinds.values import User
from playground.programs import installing
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube
from tests.wires import Wire

JSON = dict[str, Any]
RBAC = "rbac.authorization.k8s.io"
CLAIMS = paths.resourceclaims("team")
ONE = paths.resourceclaims("team", "one")


def user(name: str) -> User:
    return User(name, ("system:authenticated",))


TENANT, SCHEDULER = user("mallory"), user("system:kube-scheduler")
CONTROLLER = user("system:serviceaccount:kube-system:resource-claim-controller")
ALLOCATOR = user(f"system:serviceaccount:{names.NAMESPACE}:gpufraction-allocator")


def claim(name: str = "one", device_class: str = str(names.SHARE_CLASS), driver: str = names.GROUP) -> JSON:
    config = [{"opaque": {"driver": driver, "parameters": {"kind": "ShareParameters"}}}]
    request = {"name": "gpu", "exactly": {"deviceClassName": device_class}}
    about = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}}
    return {**about, "spec": {"devices": {"requests": [request], "config": config}}}


def template(name: str = "one") -> JSON:
    return {**claim(name), "kind": "ResourceClaimTemplate", "spec": {"spec": claim()["spec"]}}


def allocation(driver: str = names.GROUP) -> JSON:
    result = {"request": "gpu", "driver": driver, "pool": "n1", "device": "gpu-1"}
    config = {"source": "FromClaim", "opaque": {"driver": driver, "parameters": {"kind": "Share"}}}
    return {"devices": {"results": [result], "config": [config]}}


HOLDER = {"resource": "pods", "name": "holder", "uid": "u-1"}
OTHER = {"resource": "pods", "name": "other", "uid": "u-2"}


class Bench:
    """An API server with the policies, on which every user has every right."""

    def __init__(self) -> None:
        self.api = Api()
        self.kube = Kube(Wire(self.api))
        served = {str(names.INJECT_LABEL): "enabled", str(names.RESOURCE_CLAIMS_LABEL): "enabled"}
        for name, labels in {"team": served, "plain": {str(names.INJECT_LABEL): "enabled"}}.items():
            self.kube.create(paths.namespaces(), {"metadata": {"name": name, "labels": labels}})
        root = installing.BASE.parent
        for path in ("policies/resourceclaims", "components/resourceclaims/policy", "components/delivery-dra/policy"):
            for document in installing.documents(root / f"{path}.yaml"):
                installing.apply(self.kube, document)
        every = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
        role = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "all"}
        group = {"apiGroup": RBAC, "kind": "Group", "name": "system:authenticated"}
        about = {"metadata": {"name": "all"}}
        self.kube.create(paths.path(f"{RBAC}/v1", "clusterroles"), {**about, "rules": [every]})
        bound = {**about, "roleRef": role, "subjects": [group]}
        self.kube.create(paths.path(f"{RBAC}/v1", "clusterrolebindings"), bound)

    def call(self, who: User, method: str, path: str, body: JSON | None = None) -> str:
        """Why it is refused; empty if it is not."""
        form = "application/merge-patch+json" if method == "PATCH" else "application/json"
        status, answer = self.api.call(method, path, body=body, user=who, content_type=form)[:2]
        return "" if status < 300 else str(answer.get("message"))


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def used(bench: Bench) -> Bench:
    """Reserve the claim for a pod."""
    assert not bench.call(TENANT, "POST", CLAIMS, claim())
    status = {"allocation": allocation(), "reservedFor": [HOLDER]}
    finalizers = ["resource.kubernetes.io/delete-protection"]
    assert not bench.call(ALLOCATOR, "PATCH", ONE, {"metadata": {"finalizers": finalizers}})
    assert not bench.call(ALLOCATOR, "PATCH", f"{ONE}/status", {"status": status})
    return bench


def test_of_a_claims_metadata_the_allocator_writes_finalizers_only(bench: Bench) -> None:
    assert not bench.call(TENANT, "POST", CLAIMS, claim())
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "other", "uid": "u-2"}
    for body in ({"labels": {"a": "b"}}, {"annotations": {"a": "b"}}, {"ownerReferences": [owner]}):
        assert "write only the finalizers" in bench.call(ALLOCATOR, "PATCH", ONE, {"metadata": body})


def test_tenants_make_claims_and_templates_where_the_namespace_has_both_labels(bench: Bench) -> None:
    plain, templates = paths.resourceclaims("plain"), paths.resourceclaimtemplates
    refused = "namespace plain is not served"
    assert not bench.call(TENANT, "POST", CLAIMS, claim())
    assert not bench.call(TENANT, "POST", templates("team"), template())
    assert refused in bench.call(TENANT, "POST", plain, claim())
    assert refused in bench.call(TENANT, "POST", templates("plain"), template())
    # The namespace had the label when the pod was admitted.
    assert not bench.call(CONTROLLER, "POST", plain, claim())
    assert not bench.call(TENANT, "POST", plain, claim("nic", "nic.example.com", "nic.example.com"))


def test_only_the_allocator_allocates_and_only_devices_of_ours(bench: Bench) -> None:
    assert not bench.call(TENANT, "POST", CLAIMS, claim())
    for who in (TENANT, SCHEDULER, CONTROLLER):
        for driver in (names.GROUP, "example.com"):
            refused = bench.call(who, "PATCH", f"{ONE}/status", {"status": {"allocation": allocation(driver)}})
            assert "only gpufraction's allocator allocates" in refused
    strange = {"status": {"allocation": allocation("example.com")}}
    assert "only devices of the driver gpufraction.io" in bench.call(ALLOCATOR, "PATCH", f"{ONE}/status", strange)
    assert not bench.call(ALLOCATOR, "PATCH", f"{ONE}/status", {"status": {"allocation": allocation()}})


def test_nobody_but_the_allocator_reserves(used: Bench) -> None:
    """kube-scheduler and kube-controller-manager would reserve for pods that bypassed the webhook."""
    more = {"status": {"reservedFor": [HOLDER, OTHER]}}
    for who in (TENANT, SCHEDULER, CONTROLLER):
        for body in (more, {"status": {"reservedFor": [OTHER]}}):
            assert "only gpufraction's allocator reserves" in used.call(who, "PATCH", f"{ONE}/status", body)
    assert not used.call(ALLOCATOR, "PATCH", f"{ONE}/status", more)


CHANGES: dict[str, tuple[str, JSON]] = {
    "the reservation": ("/status", {"status": {"reservedFor": None}}),
    "the allocation": ("/status", {"status": {"reservedFor": None, "allocation": None}}),
    "the finalizer": ("", {"metadata": {"finalizers": None}}),
    "another finalizer": ("", {"metadata": {"finalizers": ["example.com/stays"]}}),
    "an owner": (
        "",
        {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "other", "uid": "u-2"}]}},
    ),
}


@pytest.mark.parametrize(("below", "body"), CHANGES.values(), ids=CHANGES)
def test_a_tenant_changes_nothing_of_a_claim_in_use(used: Bench, below: str, body: JSON) -> None:
    assert "gpufraction" in used.call(TENANT, "PATCH", f"{ONE}{below}", body)


def test_a_claim_is_deleted_once_nobody_uses_it(used: Bench) -> None:
    assert "is used by pod holder; delete that pod first" in used.call(TENANT, "DELETE", ONE)
    assert not used.call(CONTROLLER, "PATCH", f"{ONE}/status", {"status": {"reservedFor": None, "allocation": None}})
    assert not used.call(CONTROLLER, "PATCH", ONE, {"metadata": {"finalizers": None}})
    assert not used.call(TENANT, "DELETE", ONE)


def device_class(name: str, driver: str = names.GROUP, **spec: Any) -> JSON:
    selector = {"cel": {"expression": f"device.driver == '{driver}'"}}
    about = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}}
    return {**about, "spec": {"selectors": [selector], **spec}}


def test_no_class_of_ours_stands_for_an_extended_resource(bench: Bench) -> None:
    """kube-scheduler would serve its pods, but has no device for them."""
    classes = paths.path("resource.k8s.io/v1", "deviceclasses")
    resource = {"extendedResourceName": "example.com/gpu"}
    refused = "found example.com/gpu; remove it"
    for name, driver in ((str(names.SHARE_CLASS), "example.com"), ("own", names.GROUP)):
        assert refused in bench.call(TENANT, "POST", classes, device_class(name, driver, **resource))
        assert not bench.call(TENANT, "POST", classes, device_class(name))
        patched = bench.call(TENANT, "PATCH", f"{classes}/{name}", {"spec": resource})
        assert "give gpufraction the option resourceName: example.com/gpu" in patched
    for driver in ("example.com", f"not-{names.GROUP}", f"{names.GROUP}.example.com"):
        name = f"of-{driver}"
        assert not bench.call(TENANT, "POST", classes, device_class(name, driver, **resource))


def test_nobody_adds_to_our_class_what_the_allocator_does_not_read(bench: Bench) -> None:
    classes = paths.path("resource.k8s.io/v1", "deviceclasses")
    refused = "found selectors or config beside those that gpufraction installs"
    other = {"cel": {"expression": "device.attributes['gpufraction.io'].productName == 'x'"}}
    config = [{"opaque": {"driver": names.GROUP, "parameters": {"kind": "ShareParameters"}}}]
    assert not bench.call(TENANT, "POST", classes, device_class(str(names.SHARE_CLASS)))
    for spec in ({"selectors": [other]}, {"config": config}):
        assert refused in bench.call(TENANT, "PATCH", f"{classes}/{names.SHARE_CLASS}", {"spec": spec})
        assert not bench.call(TENANT, "POST", classes, device_class(f"own-{next(iter(spec))}", "example.com", **spec))


def test_a_claim_with_alternatives_is_guarded_likewise(bench: Bench) -> None:
    some = claim()
    some["spec"]["devices"]["requests"] = [
        {"name": "gpu", "firstAvailable": [{"name": "a", "deviceClassName": str(names.SHARE_CLASS)}]}
    ]
    assert not bench.call(TENANT, "POST", CLAIMS, some)
    given = allocation()
    given["devices"]["results"][0]["request"] = "gpu/a"
    status = {"allocation": given, "reservedFor": [HOLDER]}
    assert "only gpufraction's allocator" in bench.call(TENANT, "PATCH", f"{ONE}/status", {"status": status})
    assert not bench.call(ALLOCATOR, "PATCH", f"{ONE}/status", {"status": status})
    assert "is used by pod holder" in bench.call(TENANT, "DELETE", ONE)
