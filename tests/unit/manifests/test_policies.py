"""
The policies on a real API server: the server itself judges which users may write our names.

Every case is a dry run, so none depends on another. RBAC would allow everything that a tenant is refused here.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from contract import names
from playground.waiting import wait_for
from tests.unit.manifests.kube import JSON, MANIFESTS, built
from tests.unit.manifests.realcluster import MASTER, REAL, RealCluster, Who, running

pytestmark = [pytest.mark.realcluster, REAL]

ACCOUNTS = ("system:serviceaccounts",)
TENANT = Who("alice", ("tenants",))
KUBELET = Who("system:node:n1", ("system:nodes",))
ALLOCATOR = Who(f"system:serviceaccount:{names.NAMESPACE}:gpufraction-allocator", ACCOUNTS)
AGENT = f"system:serviceaccount:{names.NAMESPACE}:gpufraction-nodeagent"
HERE, THERE, NOWHERE = Who(AGENT, ACCOUNTS, "n1"), Who(AGENT, ACCOUNTS, "n2"), Who(AGENT, ACCOUNTS)
YONDER = Who(AGENT, ACCOUNTS, "n3")
"""The agent with the token of the nodes n1, n2 and n3, and with one that is bound to no node."""

MERGE, OPERATIONS = "application/merge-patch+json", "application/json-patch+json"
DEVICES = names.per_container(names.DEVICES_PREFIX, "main")
NRI = names.nri_annotation("main")
MEMORY = {str(names.GPU_MEMORY): "1Gi"}
GPUNODES = f"/apis/{names.GPUNODE_GROUP_VERSION}/{names.GPUNODE_PLURAL}"
NEXT_GPUNODES = f"/apis/{names.GROUP}/{names.NEXT_VERSION}/{names.GPUNODE_PLURAL}"
NODE = "/api/v1/nodes/n1"


def pod(name: str, *annotations: str, gated: bool = False, asks: bool = False, node: str = "") -> JSON:
    """A pod with these annotations."""
    spec: JSON = {"containers": [{"name": "main", "image": "x", "resources": {"limits": MEMORY if asks else {}}}]}
    if gated:
        spec["schedulingGates"] = [{"name": str(names.GATE)}]
    if node:
        spec["nodeName"] = node
    metadata = {"name": name, "annotations": dict.fromkeys(map(str, annotations), "{}")}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def asking(*resources: str, annotation: str = "", other: str = "", amount: str = "1Mi") -> JSON:
    """A pod that requests this much of each of our resources, by the last part of their names."""
    made = pod("new", *filter(None, (annotation, other)))
    limits = {f"{names.GROUP}/{resource}": amount for resource in resources}
    made["spec"]["containers"][0]["resources"] = {"limits": limits}
    return made


def gpunode(name: str) -> JSON:
    """A GPUNode without status."""
    return {"apiVersion": names.GPUNODE_GROUP_VERSION, "kind": names.GPUNODE_KIND, "metadata": {"name": name}}


def binding(*annotations: str) -> JSON:
    """A binding of the pod `plain` with these annotations."""
    metadata = {"name": "plain", "annotations": dict.fromkeys(map(str, annotations), "GPU-1")}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": {"kind": "Node", "name": "n1"}}


def condition(kind: str = str(names.ALLOCATED_CONDITION), **more: str) -> JSON:
    """A merge patch of a pod's status: exactly this condition, and further changes of the status."""
    return {"status": {"conditions": [{"type": kind, "status": "True", "reason": "Any", "message": "any"}], **more}}


def annotated(name: str, value: str | None) -> JSON:
    """A merge patch of one annotation; None removes it."""
    return {"metadata": {"annotations": {str(name): value}}}


def taken_back(*removed: str) -> JSON:
    """The write that takes a share back; `removed`: the annotations to remove, by default all of the share's."""
    taken = dict.fromkeys(map(str, removed or (names.ALLOCATION, DEVICES)))
    return {"metadata": {"annotations": {**taken, str(names.WITHDRAWN): "n1"}}}


@dataclass(frozen=True)
class Case:
    """One request, and whether the policies allow it."""

    allowed: bool
    who: Who
    method: str
    path: str
    body: Any = None
    form: str = "application/json"


def creates(allowed: bool, namespace: str, body: JSON, who: Who = TENANT) -> Case:
    return Case(allowed, who, "POST", f"/api/v1/namespaces/{namespace}/pods", body)


def changes(allowed: bool, what: str, body: JSON, who: Who = TENANT) -> Case:
    return Case(allowed, who, "PATCH", f"/api/v1/namespaces/served/pods/{what}", body, MERGE)


def binds(allowed: bool, where: str, body: JSON) -> Case:
    return Case(allowed, TENANT, "POST", f"/api/v1/namespaces/served/{where}", body)


def writes(allowed: bool, who: Who, path: str, body: JSON) -> Case:
    return Case(allowed, who, "PATCH", path, body, MERGE)


def capacity(**amounts: str | None) -> JSON:
    """A merge patch of the node's capacity; `gpu_cores` is our resource of that name."""
    return {"status": {"capacity": {k.replace("gpu_", f"{names.GROUP}/gpu-"): v for k, v in amounts.items()}}}


COMMIT = [
    {"op": "add", "path": "/metadata/annotations/gpufraction.io~1allocation", "value": "{}"},
    {"op": "add", "path": f"/metadata/annotations/{DEVICES.replace('/', '~1')}", "value": "GPU-1"},
    {"op": "remove", "path": "/spec/schedulingGates/0"},
]
MIRROR = "kubernetes.io/config.mirror"
ELASTIC = "elasticgpu.io/v1alpha1"
SHARES = f"/apis/{ELASTIC}/elasticgpus"


def elasticgpu(name: str, *, held: bool) -> JSON:
    """An ElasticGPU, with or without a share of ours."""
    annotations = {str(names.ALLOCATION): "{}"} if held else {}
    spec = {"claimRef": {"namespace": "served", "name": "mine"}}
    metadata = {"name": name, "annotations": annotations}
    return {"apiVersion": ELASTIC, "kind": "ElasticGPU", "metadata": metadata, "spec": spec}


REFERENCE = {"spec": {"claimRef": {"name": "theirs"}}}

STARTUP = {"key": str(names.STARTUP_TAINT), "value": "true", "effect": "NoSchedule"}
RESERVED = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
BROKEN = {"key": "example.com/broken", "effect": "NoExecute"}
TAINTED = "/api/v1/nodes/n3"
"""A starting node; its taints are RESERVED, STARTUP and BROKEN."""


def taints(allowed: bool, who: Who, *listed: JSON, path: str = TAINTED, **more: Any) -> Case:
    """A merge patch to these taints, and `more` of the spec."""
    return writes(allowed, who, path, {"spec": {"taints": list(listed), **more}})


CASES = {
    "an agent takes its startup taint off": taints(True, YONDER, RESERVED, BROKEN),
    "an agent takes another's startup taint off": taints(False, HERE, RESERVED, BROKEN),
    "an agent of no node takes a startup taint off": taints(False, NOWHERE, RESERVED, BROKEN),
    "an agent takes another taint off": taints(False, YONDER, RESERVED, STARTUP),
    "an agent takes another taint off with it": taints(False, YONDER, RESERVED),
    "an agent takes all taints off": taints(False, YONDER),
    "an agent writes no taints at all": writes(False, YONDER, TAINTED, {"spec": {"taints": None}}),
    "an agent softens another taint": taints(False, YONDER, {**RESERVED, "effect": "PreferNoSchedule"}, BROKEN),
    "an agent changes the startup taint": taints(False, YONDER, RESERVED, {**STARTUP, "value": "x"}, BROKEN),
    "an agent renames a taint": taints(False, YONDER, {**RESERVED, "key": STARTUP["key"]}, BROKEN),
    "an agent moves taints": taints(False, YONDER, BROKEN, RESERVED),
    "an agent repels pods from its node": taints(False, HERE, BROKEN, path=NODE),
    "an agent puts a startup taint on": taints(False, HERE, STARTUP, path=NODE),
    "an agent cordons its node": writes(False, HERE, NODE, {"spec": {"unschedulable": True}}),
    "an agent cordons with the removal": taints(False, YONDER, RESERVED, BROKEN, unschedulable=True),
    "an agent gives its node a provider": taints(False, YONDER, RESERVED, BROKEN, providerID="x://y"),
    "an agent labels with the removal": writes(
        False, YONDER, TAINTED, {"metadata": {"labels": {"a": "b"}}, "spec": {"taints": [RESERVED, BROKEN]}}
    ),
    "an agent annotates its node": writes(False, HERE, NODE, annotated("example.com/a", "b")),
    "a share made by hand": Case(False, TENANT, "POST", SHARES, elasticgpu("new", held=True)),
    "an ElasticGPU of another system's": Case(True, TENANT, "POST", SHARES, elasticgpu("new", held=False)),
    "a share made by the allocator": Case(True, ALLOCATOR, "POST", SHARES, elasticgpu("new", held=True)),
    "a share written onto an ElasticGPU": writes(False, TENANT, f"{SHARES}/free", annotated(names.ALLOCATION, "{}")),
    "a share taken off": writes(False, TENANT, f"{SHARES}/held", annotated(names.ALLOCATION, None)),
    "a share given to another claim": writes(False, TENANT, f"{SHARES}/held", REFERENCE),
    "a share moved by the allocator": writes(True, ALLOCATOR, f"{SHARES}/held", annotated(names.ALLOCATION, "{ }")),
    "another annotation of an ElasticGPU": writes(True, TENANT, f"{SHARES}/held", annotated("team/a", "b")),
    "an ElasticGPU without a share": writes(True, TENANT, f"{SHARES}/free", REFERENCE),
    "a pod that asks for nothing is created anywhere": creates(True, "plain", pod("new")),
    "a tenant's wish is nobody else's business": creates(True, "plain", pod("new", names.USE_MODELS)),
    "our resources need a labelled namespace": creates(False, "plain", pod("new", asks=True)),
    "an allocation cannot be brought along": creates(False, "plain", pod("new", names.ALLOCATION)),
    "devices cannot be brought along": creates(False, "plain", pod("new", DEVICES)),
    "the gate cannot be brought along": creates(False, "plain", pod("new", gated=True)),
    "the cluster's own namespaces are not served, whatever their labels": creates(
        False, "kube-public", pod("new", names.REQUEST, asks=True)
    ),
    "a pod that the webhook placed is created": creates(
        True, "served", pod("new", names.REQUEST, names.ALLOCATION, DEVICES, asks=True)
    ),
    "a pod that the webhook gated is created": creates(
        True, "served", pod("new", names.REQUEST, gated=True, asks=True)
    ),
    "a gated pod that waits for a claim has no resources yet": creates(
        True, "served", pod("new", names.REQUEST, gated=True)
    ),
    "a pod that the webhook did not see is refused": creates(False, "served", pod("new", asks=True)),
    "an allocation without resources was not made by us": creates(
        False, "served", pod("new", names.REQUEST, names.ALLOCATION)
    ),
    "a byte of a card is no share": creates(
        False, "served", asking("gpu-memory", annotation=names.REQUEST, amount="1048575")
    ),
    "a mebibyte is the least": creates(True, "served", asking("gpu-memory", annotation=names.REQUEST)),
    "kubelet shows its static pods": creates(True, "plain", pod("new", MIRROR, asks=True, node="n1"), KUBELET),
    "a tenant's pod is no mirror": creates(False, "plain", pod("new", MIRROR, asks=True, node="n1")),
    "a tenant annotates a placed pod": changes(True, "placed", annotated("example.com/a", "b")),
    "a tenant changes an allocation": changes(False, "placed", annotated(names.ALLOCATION, "other")),
    "a tenant changes a request": changes(False, "placed", annotated(names.REQUEST, "other")),
    "a tenant removes an allocation": changes(False, "placed", annotated(names.ALLOCATION, None)),
    "a tenant removes all annotations": changes(False, "placed", {"metadata": {"annotations": None}}),
    "a tenant gives himself devices": changes(False, "plain", annotated(DEVICES, "GPU-2")),
    "a tenant gives himself devices by the status": changes(False, "plain/status", annotated(DEVICES, "GPU-2")),
    "a tenant names devices to NVIDIA's NRI plugin": changes(False, "gated", annotated(NRI, "nvidia.com/gpu=all")),
    "a tenant without a share names them": changes(False, "plain", annotated(NRI, "nvidia.com/gpu=all")),
    "a tenant names devices by the status": changes(False, "placed/status", annotated("cdi.k8s.io/a", "b")),
    "a pod of a namespace that is not served": Case(
        True, TENANT, "PATCH", "/api/v1/namespaces/plain/pods/foreign", annotated(NRI, "nvidia.com/gpu=all"), MERGE
    ),
    "the allocator names devices to it": changes(True, "gated", annotated(NRI, "nvidia.com/gpu=GPU-1"), ALLOCATOR),
    "a tenant annotates by the status": changes(True, "placed/status", annotated("example.com/a", "b")),
    "a tenant removes the gate": changes(False, "gated", {"spec": {"schedulingGates": None}}),
    "a tenant annotates a gated pod": changes(True, "gated", annotated("example.com/a", "b")),
    "the allocator commits a placement": Case(
        True, ALLOCATOR, "PATCH", "/api/v1/namespaces/served/pods/gated", COMMIT, OPERATIONS
    ),
    "the allocator takes back a share that is not bound": changes(True, "pinned", taken_back(), ALLOCATOR),
    "the allocator takes back the share of a bound pod": changes(False, "bound", taken_back(), ALLOCATOR),
    "the allocator leaves the devices of a share": changes(False, "pinned", taken_back(names.ALLOCATION), ALLOCATOR),
    "the allocator leaves the allocation of a share": changes(False, "pinned", taken_back(DEVICES), ALLOCATOR),
    "the allocator marks a pod that has no share": changes(False, "gated", annotated(names.WITHDRAWN, "n1"), ALLOCATOR),
    "the allocator removes the mark": changes(False, "withdrawn", annotated(names.WITHDRAWN, None), ALLOCATOR),
    "a tenant takes back a share": changes(False, "pinned", taken_back()),
    "a tenant marks a pod": changes(False, "plain", annotated(names.WITHDRAWN, "n1")),
    "a tenant removes the mark": changes(False, "withdrawn", annotated(names.WITHDRAWN, None)),
    "a mark cannot be brought along": creates(False, "plain", pod("new", names.WITHDRAWN)),
    "the allocator writes its condition": changes(True, "placed/status", condition(), ALLOCATOR),
    "the allocator writes the condition that Argo shows": changes(
        True, "placed/status", condition(str(names.SCHEDULABLE_CONDITION)), ALLOCATOR
    ),
    "the allocator writes another condition": changes(False, "placed/status", condition("Ready"), ALLOCATOR),
    "the allocator writes a phase beside its condition": changes(
        False, "placed/status", condition(phase="Failed"), ALLOCATOR
    ),
    "the allocator annotates beside its condition": changes(
        False, "placed/status", condition() | annotated("example.com/a", "b"), ALLOCATOR
    ),
    "the allocator takes a share away beside its condition": changes(
        False, "placed/status", condition() | annotated(names.ALLOCATION, None), ALLOCATOR
    ),
    "the allocator labels beside its condition": changes(
        False, "placed/status", condition() | {"metadata": {"labels": {"elasticgpu.io/assumed": "true"}}}, ALLOCATOR
    ),
    "the allocator writes a finalizer beside its condition": changes(
        False, "placed/status", condition() | {"metadata": {"finalizers": ["example.com/a"]}}, ALLOCATOR
    ),
    "a binding without annotations": binds(True, "pods/plain/binding", binding()),
    "a binding with devices": binds(False, "pods/plain/binding", binding(DEVICES)),
    "a binding with devices by the other way": binds(False, "bindings", binding(DEVICES)),
    "an agent creates its GPUNode": Case(True, HERE, "POST", GPUNODES, gpunode("n1")),
    "an agent creates another's": Case(False, THERE, "POST", GPUNODES, gpunode("n1")),
    "an agent of no node creates one": Case(False, NOWHERE, "POST", GPUNODES, gpunode("n1")),
    "a tenant creates a GPUNode": Case(False, TENANT, "POST", GPUNODES, gpunode("n1")),
    "an agent writes its status": writes(True, THERE, f"{GPUNODES}/n2/status", {"status": {"driverVersion": "1"}}),
    "an agent writes another's status": writes(
        False, HERE, f"{GPUNODES}/n2/status", {"status": {"driverVersion": "1"}}
    ),
    "a tenant writes a status": writes(False, TENANT, f"{GPUNODES}/n2/status", {"status": {"driverVersion": "1"}}),
    "an agent writes its status in the next version": writes(
        True, THERE, f"{NEXT_GPUNODES}/n2/status", {"status": {"driverVersion": "1"}}
    ),
    "an agent writes another's status in the next version": writes(
        False, HERE, f"{NEXT_GPUNODES}/n2/status", {"status": {"driverVersion": "1"}}
    ),
    "the allocator labels a GPUNode in the next version": writes(
        False, ALLOCATOR, f"{NEXT_GPUNODES}/n2", {"metadata": {"labels": {"a": "b"}}}
    ),
    "an agent labels its GPUNode": writes(True, THERE, f"{GPUNODES}/n2", {"metadata": {"labels": {"a": "b"}}}),
    "an agent labels another's": writes(False, HERE, f"{GPUNODES}/n2", {"metadata": {"labels": {"a": "b"}}}),
    "the allocator says what pods hold beyond": writes(
        True, ALLOCATOR, f"{GPUNODES}/n2", annotated(names.BEYOND, "{}")
    ),
    "the allocator takes that back": writes(True, ALLOCATOR, f"{GPUNODES}/n2", annotated(names.BEYOND, None)),
    "the allocator annotates a GPUNode": writes(False, ALLOCATOR, f"{GPUNODES}/n2", annotated("example.com/a", "b")),
    "the allocator labels a GPUNode": writes(False, ALLOCATOR, f"{GPUNODES}/n2", {"metadata": {"labels": {"a": "b"}}}),
    "the allocator disowns a GPUNode": writes(
        False, ALLOCATOR, f"{GPUNODES}/n2", {"metadata": {"finalizers": ["example.com/a"]}}
    ),
    "others may label a GPUNode": writes(True, TENANT, f"{GPUNODES}/n2", {"metadata": {"labels": {"a": "b"}}}),
    "an agent writes our resources": writes(True, HERE, f"{NODE}/status", capacity(gpu_memory="30Gi", gpu_cores="200")),
    "an agent takes our resources back": writes(True, HERE, f"{NODE}/status", capacity(gpu_cores=None)),
    "an agent writes another's resources": writes(False, THERE, f"{NODE}/status", capacity(gpu_cores="200")),
    "an agent of no node writes resources": writes(False, NOWHERE, f"{NODE}/status", capacity(gpu_cores="200")),
    "an agent writes CPUs": writes(False, HERE, f"{NODE}/status", capacity(cpu="100")),
    "an agent takes CPUs away": writes(False, HERE, f"{NODE}/status", capacity(cpu=None)),
    "an agent invents a resource": writes(False, HERE, f"{NODE}/status", capacity(gpu_other="1")),
    "an agent labels its node by the status": writes(
        False, HERE, f"{NODE}/status", {"metadata": {"labels": {"a": "b"}}}
    ),
    "an agent writes a condition": writes(
        False, HERE, f"{NODE}/status", {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    ),
    "an agent writes addresses": writes(
        False, HERE, f"{NODE}/status", {"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.9"}]}}
    ),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealCluster]:
    """The server with our base, two namespaces, two nodes, three pods, and a tenant with too many rights."""
    built()  # skips without kubectl
    with running() as found:
        apply = ["kubectl", "--kubeconfig", str(found.kubeconfig), "apply", "-k", str(MANIFESTS / "base")]
        wait_for(
            lambda: subprocess.run(apply, capture_output=True, timeout=60, check=False).returncode == 0,
            "the base is not applied",
        )
        hooks = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
        found.must("DELETE", f"{hooks}/zz-gpufraction-webhook")
        prepare(found)
        yield found


def prepare(found: RealCluster) -> None:
    """Create the objects that the cases use."""
    label = {str(names.INJECT_LABEL): names.INJECT_ENABLED}
    for namespace, labels in (("plain", {}), ("served", label)):
        found.must("POST", "/api/v1/namespaces", {"metadata": {"name": namespace, "labels": labels}})
    wait_for(lambda: found.call(MASTER, "GET", "/api/v1/namespaces/kube-public").code == 200, "kube-public is not made")
    labelled = found.call(
        MASTER, "PATCH", "/api/v1/namespaces/kube-public", {"metadata": {"labels": label}}, form=MERGE
    )
    assert labelled.code == 200, labelled
    for node in ("n1", "n2"):
        amounts = {"cpu": "4", "pods": "10"}
        status = {"capacity": amounts, "allocatable": amounts}
        found.must("POST", "/api/v1/nodes", {"metadata": {"name": node}, "status": status})
    found.must("POST", "/api/v1/nodes", {"metadata": {"name": "n3"}})
    # Not at the creation, which adds the taint not-ready.
    tainted = found.call(MASTER, "PATCH", TAINTED, {"spec": {"taints": [RESERVED, STARTUP, BROKEN]}}, form=MERGE)
    assert tainted.code == 200, tainted
    grant(found)
    refused = creates(False, "plain", pod("new", DEVICES))
    wait_for(lambda: not passes(found, refused), "the policies are not in force")
    for made in (
        pod("plain"),
        pod("placed", names.REQUEST, names.ALLOCATION, asks=True),
        pod("pinned", names.REQUEST, names.ALLOCATION, DEVICES, asks=True),
        pod("bound", names.REQUEST, names.ALLOCATION, DEVICES, asks=True, node="n1"),
        pod("withdrawn", names.REQUEST, names.WITHDRAWN, asks=True),
        pod("gated", names.REQUEST, gated=True),
    ):
        found.must("POST", "/api/v1/namespaces/served/pods", made)
    found.must("POST", "/api/v1/namespaces/plain/pods", pod("foreign"))
    for name, held in (("held", True), ("free", False)):
        answer = found.call(ALLOCATOR if held else TENANT, "POST", SHARES, elasticgpu(name, held=held))
        assert answer.code == 201, answer
    answer = found.call(THERE, "POST", GPUNODES, gpunode("n2"))
    assert answer.code == 201, answer


def grant(found: RealCluster) -> None:
    """Let RBAC allow everything that the cases try, so that a refusal comes from a policy."""
    rule = {"apiGroups": ["", names.GROUP, "elasticgpu.io"], "resources": ["*"], "verbs": ["create", "patch", "update"]}
    about = {"metadata": {"name": "everything-here"}}
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    found.must("POST", f"{rbac}/clusterroles", {**about, "rules": [rule]})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "everything-here"}
    users = [
        {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": w.name}
        for w in (TENANT, KUBELET, HERE, ALLOCATOR)
    ]
    found.must("POST", f"{rbac}/clusterrolebindings", {**about, "roleRef": role, "subjects": users})


def passes(found: RealCluster, case: Case) -> bool:
    """Whether the request is allowed. A refusal must come from one of our policies."""
    answer = found.call(case.who, case.method, f"{case.path}?dryRun=All", case.body, form=case.form)
    if answer.code < 300:
        return True
    assert answer.code == 422, answer
    assert "ValidatingAdmissionPolicy 'gpufraction-" in answer.message, answer
    return False


MEMORY_AS_ANNOTATION = f"the annotation {names.GPU_MEMORY} requests nothing; write it under resources.limits"
UNKNOWN = "; give gpufraction.io/gpu-memory, gpufraction.io/gpu-percent"
WORDS: dict[str, tuple[JSON, str]] = {
    "a resource that there is not": (
        asking("gpu-mem"),
        f"container main: unknown resource gpufraction.io/gpu-mem{UNKNOWN}",
    ),
    "one beside a right one": (
        asking("gpu-memory", "gpumem", annotation=names.REQUEST),
        f"container main: unknown resource gpufraction.io/gpumem{UNKNOWN}",
    ),
    "a resource as an annotation": (asking(annotation=names.GPU_MEMORY), MEMORY_AS_ANNOTATION),
    "a webhook that is not there": (asking("gpu-memory"), "does the MutatingWebhookConfiguration"),
    "a resource as an annotation beside a share": (
        asking("gpu-memory", annotation=names.REQUEST, other=names.GPU_MEMORY),
        "",
    ),
}


@pytest.mark.parametrize(("body", "want"), WORDS.values(), ids=WORDS.keys())
def test_a_typing_error_is_reported_with_its_cure(body: JSON, want: str, cluster: RealCluster) -> None:
    answer = cluster.call(TENANT, "POST", "/api/v1/namespaces/served/pods?dryRun=All", body)
    assert (answer.code, want in answer.message) == (422 if want else 201, True), answer


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_server_judges(case: Case, cluster: RealCluster) -> None:
    assert passes(cluster, case) == case.allowed


def test_no_expression_has_a_type_error(cluster: RealCluster) -> None:
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    found = cluster.must("GET", policies)["items"]
    warnings = {p["metadata"]["name"]: p.get("status", {}).get("typeChecking", {}) for p in found}
    assert warnings == {name: {} for name in warnings}
