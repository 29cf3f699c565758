"""B4: what an attacker with one of our tokens can write with it, on both control planes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from contract import names
from contract.dialects.conditions import match_conditions
from playground import scenarios
from playground.api.kinds.values import User
from playground.cluster import account
from playground.shapes import DEMO
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeForbidden
from tests.cluster.hostile.attack import Hostile, hostile_cluster
from tests.cluster.hostile.stolen import (
    ALLOWED,
    ANOTHER,
    BY_POLICY,
    BY_RBAC,
    OURS,
    SERVED,
    SYSTEM,
    Attempt,
    Tokens,
    prepare,
)
from tests.clusters import control_planes

pytestmark = pytest.mark.hostile

JSON = dict[str, Any]
ALLOCATOR = account("gpufraction-allocator")
HOLDER = account("gpufraction-holder", pod="holder-a")
BINDER = User("binder", ("system:masters",))
"""Users who bind other users' pods: kube-scheduler, or one with the same rights."""
NODE = DEMO[0].spec.name
UNBOUND_HOLDER = account("gpufraction-holder")


@pytest.fixture(scope="module", params=control_planes(long=True))
def tokens(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tokens]:
    directory = tmp_path_factory.mktemp("tokens")
    for attacked in hostile_cluster(
        request.param,
        directory,
        nodes=DEMO[:1],
        components=("holders", "claims", "allocator-eviction", "startup-taint"),
    ):
        prepare(attacked.cluster)
        yield Tokens(attacked.cluster, directory)


def annotated(**values: str | None) -> JSON:
    """A merge patch of our annotations."""
    return {"metadata": {"annotations": {f"{names.GROUP}/{key.replace('_', '-')}": v for key, v in values.items()}}}


def image(container: str = "main") -> JSON:
    return {"spec": {"containers": [{"name": container, "image": "thief"}]}}


PROVISIONER = "gpushare.provisioner.elasticgpu.io"
PLACED, WAITING = paths.pods(SERVED, "placed"), paths.pods(SERVED, "waiting")
PROTECTED = paths.pods(SERVED, "protected")
SAFE, CALM = "cluster-autoscaler.kubernetes.io/safe-to-evict", "karpenter.sh/do-not-disrupt"
DNS, PLAIN = paths.pods(SYSTEM, "dns"), paths.pods(SERVED, "plain")
OWN, OTHER, MPS = (paths.pods(OURS, name) for name in ("holder-a", "holder-b", "mps"))
OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "x"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PIN = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]}
COMMIT = [
    {"op": "test", "path": "/spec/schedulingGates/1/name", "value": str(names.GATE)},
    {"op": "add", "path": "/metadata/annotations/gpufraction.io~1allocation", "value": "{}"},
    {"op": "add", "path": "/metadata/annotations/gpufraction.io~1devices.main", "value": "GPU-1"},
    {"op": "add", "path": "/metadata/annotations/nvidia.cdi.k8s.io~1container.main", "value": "GPU-1"},
    {"op": "add", "path": "/metadata/annotations/ALIYUN_COM_GPU_MEM_ASSIGNED", "value": "false"},
    {"op": "add", "path": "/metadata/labels", "value": {"nano-gpu/assume": "true"}},
    {"op": "add", "path": "/spec/affinity", "value": {"nodeAffinity": {REQUIRED: PIN}}},
    {"op": "remove", "path": "/spec/schedulingGates/1"},
]


def condition(name: str) -> JSON:
    return {"status": {"conditions": [{"type": name, "status": "False", "reason": "No", "message": "no"}]}}


def scheduled(**fields: str) -> JSON:
    """Changes of a condition that belongs to the API server or to kube-scheduler."""
    return {"status": {"conditions": [{"type": "PodScheduled", **fields}]}}


def without(*annotations: str) -> JSON:
    """The write that fails a pod that came late."""
    return {
        "metadata": {"annotations": dict.fromkeys(annotations)},
        "spec": {"activeDeadlineSeconds": 1},
    }


def patched(want: str, path: str, body: Any, who: User = ALLOCATOR, form: str = "strategic") -> Attempt:
    return Attempt(want, who, form, path, body)


AGENT, ELSEWHERE = account("gpufraction-nodeagent", node=NODE), account("gpufraction-nodeagent")


def evicted(want: str, namespace: str, name: str, who: User = ALLOCATOR, uid: str = "another") -> Attempt:
    """The eviction of a pod, by its uid unless that is empty."""
    body: JSON = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
    if uid:
        body["deleteOptions"] = {"preconditions": {"uid": uid}}
    return Attempt(want, who, "create", paths.pods(namespace, name, "eviction"), body)


POD_ATTEMPTS = {
    "the allocator commits a placement": patched(ALLOWED, WAITING, COMMIT, form="json"),
    "the allocator commits a placement and keeps the node": patched(
        ALLOWED,
        WAITING,
        [
            *COMMIT,
            {"op": "add", "path": f"/metadata/annotations/{SAFE.replace('/', '~1')}", "value": "false"},
            {"op": "add", "path": f"/metadata/annotations/{CALM.replace('/', '~1')}", "value": "true"},
            {"op": "add", "path": "/metadata/annotations/gpufraction.io~1protected", "value": f"{SAFE},{CALM}"},
        ],
        form="json",
    ),
    "an eviction of a pod made safe": patched(BY_POLICY, PLACED, {"metadata": {"annotations": {SAFE: "true"}}}),
    "a disruption of a pod made welcome": patched(BY_POLICY, PLACED, {"metadata": {"annotations": {CALM: "false"}}}),
    "the end of a protection that is not ours": patched(
        BY_POLICY, PROTECTED, {"metadata": {"annotations": {SAFE: None}}}
    ),
    "another protection in place of the author's": patched(
        BY_POLICY, PROTECTED, {"metadata": {"annotations": {SAFE: "true"}}}
    ),
    "the end of a protection that is ours": patched(
        ALLOWED, PROTECTED, {"metadata": {"annotations": {CALM: None, str(names.PROTECTED): None}}}
    ),
    "a protection of a pod that asked for nothing": patched(
        BY_POLICY, PLAIN, {"metadata": {"annotations": {SAFE: "false"}}}
    ),
    "the allocator tells a pod how it stands": patched(
        ALLOWED, f"{WAITING}/status", condition(names.ALLOCATED_CONDITION)
    ),
    "the allocator says in the API server's condition why a pod waits": patched(
        ALLOWED, f"{WAITING}/status", scheduled(message="no room")
    ),
    "a pod that waits passed off as one that was bound": patched(
        BY_POLICY, f"{WAITING}/status", scheduled(status="True")
    ),
    "a pod that waits passed off as one for an autoscaler": patched(
        BY_POLICY, f"{WAITING}/status", scheduled(reason="Unschedulable")
    ),
    "a pod that does not wait passed off as one that does": patched(
        BY_POLICY, f"{PLACED}/status", scheduled(status="False", reason="SchedulingGated")
    ),
    "the end of the API server's condition": patched(
        BY_POLICY, f"{WAITING}/status", {"status": {"conditions": [{"type": "PodScheduled", "$patch": "delete"}]}}
    ),
    "the allocator bars what the leader before had under way": patched(ALLOWED, WAITING, annotated(fence="x")),
    "the allocator fails a late pod": patched(
        ALLOWED, PLACED, without(names.per_container(names.DEVICES_PREFIX, "main"))
    ),
    "another image for the cluster's own pod": patched(BY_POLICY, DNS, image()),
    "another image for a pod with a share": patched(BY_POLICY, PLACED, image()),
    "another image beside a commit": patched(
        BY_POLICY,
        WAITING,
        [*COMMIT, {"op": "replace", "path": "/spec/containers/0/image", "value": "thief"}],
        form="json",
    ),
    "a toleration": patched(
        BY_POLICY, PLACED, [{"op": "add", "path": "/spec/tolerations/-", "value": {"operator": "Exists"}}], form="json"
    ),
    "the end of the cluster's own pod": patched(BY_POLICY, DNS, {"spec": {"activeDeadlineSeconds": 1}}),
    "the end of a pod that keeps its share": patched(BY_POLICY, PLACED, {"spec": {"activeDeadlineSeconds": 1}}),
    "a label that a Service or a policy selects by": patched(BY_POLICY, PLACED, {"metadata": {"labels": {"app": "x"}}}),
    "a label of the cluster's own pod": patched(BY_POLICY, DNS, {"metadata": {"labels": {"k8s-app": "x"}}}),
    "an owner": patched(BY_POLICY, PLACED, {"metadata": {"ownerReferences": [OWNER]}}),
    "a finalizer": patched(BY_POLICY, PLACED, {"metadata": {"finalizers": ["example.com/stay"]}}),
    "somebody's annotation": patched(BY_POLICY, PLACED, {"metadata": {"annotations": {"example.com/a": "b"}}}),
    "another request": patched(BY_POLICY, PLACED, annotated(request="{}")),
    "devices for the cluster's own pod": patched(
        BY_POLICY, DNS, {"metadata": {"annotations": {names.nri_annotation("main"): "all"}}}
    ),
    "devices by another way": patched(BY_POLICY, PLACED, {"metadata": {"annotations": {"cdi.k8s.io/a": "x"}}}),
    "an allocation for a pod that asked for nothing": patched(BY_POLICY, PLAIN, annotated(allocation="{}")),
    "somebody else's gate": patched(
        BY_POLICY, WAITING, [{"op": "remove", "path": "/spec/schedulingGates/0"}], form="json"
    ),
    "a node for a pod that goes on waiting": patched(BY_POLICY, WAITING, COMMIT[-2:-1], form="json"),
    "a pod's readiness": patched(BY_POLICY, f"{PLACED}/status", condition("Ready")),
    "a pod's phase": patched(BY_POLICY, f"{DNS}/status", {"status": {"phase": "Failed"}}),
    "a pod's address": patched(
        BY_POLICY, f"{DNS}/status", {"status": {"podIP": "10.6.6.6", "podIPs": [{"ip": "10.6.6.6"}]}}, form="merge"
    ),
    "an annotation by way of the status": patched(BY_POLICY, f"{PLACED}/status", annotated(allocation="{}")),
    "a label by way of the status": patched(BY_POLICY, f"{PLACED}/status", {"metadata": {"labels": {"app": "x"}}}),
    "a pod's eviction by another's uid": evicted(ANOTHER, SERVED, "placed"),
    "a pod's eviction whatever pod that is": evicted(BY_POLICY, SERVED, "placed", uid=""),
    "an agent evicts a pod": evicted(BY_RBAC, SERVED, "placed", AGENT),
    "an agent evicts the cluster's own pod": evicted(BY_RBAC, SYSTEM, "dns", AGENT),
    "the keeper of certificates evicts": evicted(BY_RBAC, SERVED, "placed", account("gpufraction-certs")),
    "the eviction of the cluster's own pod": evicted(BY_POLICY, SYSTEM, "dns"),
    "the eviction of a pod of ours": evicted(BY_POLICY, OURS, "mps"),
    "a pod of its own": Attempt(BY_RBAC, ALLOCATOR, "create", paths.pods(SYSTEM), {"metadata": {"name": "x"}}),
    "no pod at all": Attempt(BY_RBAC, ALLOCATOR, "delete", DNS),
    "a holder reports": patched(ALLOWED, OWN, annotated(held_gpus="GPU-1"), HOLDER),
    "a holder reports for another": patched(BY_POLICY, OTHER, annotated(held_gpus="GPU-1"), HOLDER),
    "a holder whose token is no pod's": patched(BY_POLICY, OWN, annotated(held_gpus="GPU-1"), UNBOUND_HOLDER),
    "a holder gives another pod of ours its image": patched(BY_POLICY, MPS, image("holder"), HOLDER),
    "a holder gives itself another image": patched(BY_POLICY, OWN, image("holder"), HOLDER),
    "a holder labels itself": patched(BY_POLICY, OWN, {"metadata": {"labels": {"app": "x"}}}, HOLDER),
    "a holder leaves its owner": patched(BY_POLICY, OWN, {"metadata": {"ownerReferences": [OWNER]}}, HOLDER),
    "a holder writes another annotation": patched(BY_POLICY, OWN, annotated(gpu_uuids="x"), HOLDER),
    "a holder writes a pod of others": patched(BY_RBAC, PLACED, annotated(held_gpus="x"), HOLDER),
}


@pytest.mark.parametrize("attempt", POD_ATTEMPTS.values(), ids=POD_ATTEMPTS.keys())
def test_what_a_token_can_write_on_pods(attempt: Attempt, tokens: Tokens) -> None:
    """B4: a holder's token and the allocator's token write only their own fields of pods."""
    assert tokens.outcome(attempt) == attempt.want


def share(*, ours: bool) -> JSON:
    """An ElasticGPU, with or without a share of ours."""
    annotations = {str(names.ALLOCATION): "{}"} if ours else {}
    metadata = {"name": "new", "annotations": annotations}
    return {"apiVersion": scenarios.ELASTIC, "kind": "ElasticGPU", "metadata": metadata, "spec": {}}


SHARES = paths.path(scenarios.ELASTIC, "elasticgpus")
FOREIGN_SHARE = paths.path(scenarios.ELASTIC, "elasticgpus", name="foreign")
CLAIM = paths.path(scenarios.ELASTIC, "elasticgpuclaims", SERVED, "claim")
CLAIM_ATTEMPTS = {
    "the allocator makes a share": Attempt(ALLOWED, ALLOCATOR, "create", SHARES, share(ours=True)),
    "the allocator takes a claim on": patched(
        ALLOWED,
        CLAIM,
        [
            {"op": "add", "path": "/metadata/finalizers", "value": [str(names.CLAIM_FINALIZER)]},
            {"op": "add", "path": "/spec/elasticGPUName", "value": "s"},
        ],
        form="json",
    ),
    "an ElasticGPU without a share": Attempt(BY_POLICY, ALLOCATOR, "create", SHARES, share(ours=False)),
    "another system's ElasticGPU": patched(
        BY_POLICY, FOREIGN_SHARE, {"spec": {"claimRef": {"name": "x"}}}, form="merge"
    ),
    "the end of another system's ElasticGPU": Attempt(BY_POLICY, ALLOCATOR, "delete", FOREIGN_SHARE),
    "a label of a claim": patched(BY_POLICY, CLAIM, {"metadata": {"labels": {"a": "b"}}}, form="merge"),
    "an owner of a claim": patched(BY_POLICY, CLAIM, {"metadata": {"ownerReferences": [OWNER]}}, form="merge"),
    "what a claim asks for": patched(
        BY_POLICY, CLAIM, {"spec": {"resources": {"requests": {f"{PROVISIONER}/gpu-core": 100}}}}, form="merge"
    ),
    "somebody's finalizer": patched(BY_POLICY, CLAIM, {"metadata": {"finalizers": ["example.com/x"]}}, form="merge"),
}


@pytest.mark.parametrize("attempt", CLAIM_ATTEMPTS.values(), ids=CLAIM_ATTEMPTS.keys())
def test_what_the_allocators_token_can_write_of_claims(attempt: Attempt, tokens: Tokens) -> None:
    """B4: with the component claims the allocator writes only what it created itself."""
    assert tokens.outcome(attempt) == attempt.want


@pytest.mark.parametrize("group", ["configmaps", "secrets"])
def test_the_allocator_cannot_read_the_clusters_own_objects(group: str, tokens: Tokens) -> None:
    """B4: the right to the lists of excluded cards belongs to a component."""
    with pytest.raises(KubeForbidden):
        tokens.client(ALLOCATOR).list(paths.path("v1", group, SYSTEM))


def event(*, component: str, reason: str = "GPUGone", host: str = "", kind: str = "Pod", name: str = "placed") -> JSON:
    """An Event of the served namespace."""
    return {
        "metadata": {"generateName": "e.", "namespace": SERVED},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": kind,
            "name": name,
            **({"namespace": SERVED} if kind == "Pod" else {}),
        },
        "type": "Warning",
        "reason": reason,
        "message": "m",
        "source": {"component": component, **({"host": host} if host else {})},
    }


def attempt(want: str, who: User, **about: str) -> Attempt:
    return Attempt(want, who, "create", paths.events(SERVED), event(**about))


def binding(*annotations: str) -> JSON:
    """A binding of the pod that has no node yet."""
    metadata = {"name": "unbound", "namespace": SERVED, "annotations": dict.fromkeys(annotations, "nvidia.com/gpu=all")}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": {"kind": "Node", "name": NODE}}


def bound(want: str, *annotations: str) -> Attempt:
    return Attempt(want, BINDER, "create", f"{paths.pods(SERVED, 'unbound')}/binding", binding(*annotations))


STATUS = paths.nodes(NODE, "status")
TAINT = {"key": "example.com/x", "effect": "NoExecute"}
AGENT_ATTEMPTS = {
    "the allocator tells a pod": attempt(ALLOWED, ALLOCATOR, component="gpufraction-allocator", reason="GPUWaiting"),
    "the allocator in a kubelet's name": attempt(BY_POLICY, ALLOCATOR, component="kubelet", reason="Evicted"),
    "the allocator in the agent's name": attempt(BY_POLICY, ALLOCATOR, component="gpufraction-nodeagent"),
    "an agent writes an Event of a pod": attempt(BY_POLICY, AGENT, component="gpufraction-nodeagent", host=NODE),
    "an agent tells of a pod's overuse": attempt(
        BY_POLICY, AGENT, component="gpufraction-nodeagent", host=NODE, reason="GPUMemoryOveruse"
    ),
    "an agent tells of its Node": attempt(
        ALLOWED, AGENT, component="gpufraction-nodeagent", host=NODE, kind="Node", name=NODE
    ),
    "an agent tells of its Node with a pod's reason": attempt(
        BY_POLICY,
        AGENT,
        component="gpufraction-nodeagent",
        host=NODE,
        kind="Node",
        name=NODE,
        reason="GPUMemoryOveruse",
    ),
    "an agent tells of another's Node": attempt(
        BY_POLICY, AGENT, component="gpufraction-nodeagent", host=NODE, kind="Node", name="n2"
    ),
    "an agent in the name of another node's": attempt(BY_POLICY, AGENT, component="gpufraction-nodeagent", host="n2"),
    "an agent of no node": attempt(BY_POLICY, ELSEWHERE, component="gpufraction-nodeagent", host=NODE),
    "an agent in a kubelet's name": attempt(BY_POLICY, AGENT, component="kubelet", host=NODE),
    "an agent with another's reason": attempt(
        BY_POLICY, AGENT, component="gpufraction-nodeagent", host=NODE, reason="Evicted"
    ),
    "an agent of something else": attempt(
        BY_POLICY, AGENT, component="gpufraction-nodeagent", host=NODE, kind="Secret", name="x"
    ),
    "an agent writes our capacity": patched(
        ALLOWED, STATUS, {"status": {"capacity": {str(names.GPU_CORES): "1"}}}, AGENT, "merge"
    ),
    "an agent writes another's capacity": patched(
        BY_POLICY, STATUS, {"status": {"capacity": {"nvidia.com/gpu": "99"}}}, AGENT, "merge"
    ),
    "an agent says that its node is ready": patched(BY_POLICY, STATUS, condition("Ready"), AGENT),
    "an agent names images": patched(
        BY_POLICY, STATUS, {"status": {"images": [{"names": ["x"], "sizeBytes": 1}]}}, AGENT, "merge"
    ),
    "an agent names a volume": patched(
        BY_POLICY, STATUS, {"status": {"volumesInUse": ["kubernetes.io/csi/x"]}}, AGENT, "merge"
    ),
    "an agent repels pods from its node": patched(
        BY_POLICY, paths.nodes(NODE), {"spec": {"taints": [TAINT]}}, AGENT, "merge"
    ),
    "an agent puts the startup taint on": patched(
        BY_POLICY, paths.nodes(NODE), {"spec": {"taints": [{**TAINT, "key": str(names.STARTUP_TAINT)}]}}, AGENT, "merge"
    ),
    "an agent cordons its node": patched(
        BY_POLICY, paths.nodes(NODE), {"spec": {"unschedulable": True}}, AGENT, "merge"
    ),
    "an agent of another node writes this one": patched(
        BY_POLICY, paths.nodes(NODE), {"spec": {"taints": None}}, ELSEWHERE, "merge"
    ),
    "an agent writes its node's phase": patched(BY_POLICY, STATUS, {"status": {"phase": "Terminated"}}, AGENT, "merge"),
    "an agent labels its node": patched(BY_POLICY, STATUS, {"metadata": {"labels": {"a": "b"}}}, AGENT, "merge"),
    "an agent annotates its node": patched(
        BY_POLICY, STATUS, {"metadata": {"annotations": {"a": "b"}}}, AGENT, "merge"
    ),
    "a binding": bound(ALLOWED),
    "a binding with an annotation": bound(ALLOWED, "example.com/a"),
    "a binding that names devices": bound(BY_POLICY, "cdi.k8s.io/a"),
    "a binding that names devices to the NRI plugin": bound(BY_POLICY, names.nri_annotation("main")),
    "a binding with a share": bound(BY_POLICY, str(names.ALLOCATION)),
}


@pytest.mark.parametrize("attempt", AGENT_ATTEMPTS.values(), ids=AGENT_ATTEMPTS.keys())
def test_what_events_nodes_and_bindings_take(attempt: Attempt, tokens: Tokens) -> None:
    """B4: Events only in our programs' own names, an agent's own node only, and no devices through a binding."""
    assert tokens.outcome(attempt) == attempt.want


@pytest.mark.long
def test_an_agent_reads_no_pods_without_the_components_that_need_it(hostile: Hostile) -> None:
    """B4: with the base only, the agent's token lists no pods."""
    directory = hostile.cluster.directory
    own = Kube.connect(kubeconfig=str(next(directory.glob("kubeconfig-nodeagent-*"))), user_agent="thief")
    with pytest.raises(KubeForbidden):
        own.list(paths.pods())


KEEPER = account("gpufraction-certs")
HOOK = paths.mutatingwebhookconfigurations("zz-gpufraction-webhook")
SECRET = paths.secrets(OURS, "gpufraction-webhook-certs")
FIRST = "/webhooks/0"
SHIPPED = match_conditions()[0]["expression"]
RENAMED = match_conditions(renamed=("example.com/gpu",))[0]["expression"]
EVERYTHING = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"], "scope": "*"}


def configured(want: str, path: str, value: Any, op: str = "replace") -> Attempt:
    """A JSON patch of our webhook configuration."""
    operation = {"op": op, "path": path, **({} if op == "remove" else {"value": value})}
    return Attempt(want, KEEPER, "json", HOOK, [operation])


KEEPER_ATTEMPTS = {
    "the keeper has an authority trusted": configured(ALLOWED, f"{FIRST}/clientConfig/caBundle", ""),
    "the keeper lets renamed resources through": configured(ALLOWED, f"{FIRST}/matchConditions/0/expression", RENAMED),
    "pods with a share are not sent": configured(BY_POLICY, f"{FIRST}/matchConditions/0/expression", "false"),
    "all pods are sent": configured(BY_POLICY, f"{FIRST}/matchConditions/0/expression", "true"),
    "pods of one dialect are not sent": configured(
        BY_POLICY, f"{FIRST}/matchConditions/0/expression", SHIPPED.replace(",\n  'aliyun.com/gpu-mem'", "")
    ),
    "something else is added than a name": configured(
        BY_POLICY,
        f"{FIRST}/matchConditions/0/expression",
        RENAMED.replace("/gpu'\n", "/gpu'].exists(x, false) && ['x'\n"),
    ),
    "pods with any CPU are sent": configured(
        BY_POLICY, f"{FIRST}/matchConditions/0/expression", RENAMED.replace("example.com/gpu", "cpu")
    ),
    "a condition that is renamed": configured(BY_POLICY, f"{FIRST}/matchConditions/0/name", "other"),
    "the keeper looks at its Secret": Attempt(ALLOWED, KEEPER, "get", SECRET),
    "the keeper writes its Secret": patched(ALLOWED, SECRET, {"data": {"tls.crt": "eA=="}}, KEEPER, "merge"),
    "reviews are sent elsewhere": configured(BY_POLICY, f"{FIRST}/clientConfig", {"url": "https://thief.example.com"}),
    "reviews take another path": configured(
        BY_POLICY, f"{FIRST}/clientConfig", {"service": {"name": "thief", "namespace": "default"}}
    ),
    "all resources are sent": configured(BY_POLICY, f"{FIRST}/rules/0", EVERYTHING),
    "all namespaces are sent": configured(BY_POLICY, f"{FIRST}/namespaceSelector", {}),
    "pods pass when nobody answers": configured(BY_POLICY, f"{FIRST}/failurePolicy", "Ignore"),
    "pods wait for 30 s": configured(BY_POLICY, f"{FIRST}/timeoutSeconds", 30),
    "pods are sent without a condition": configured(BY_POLICY, f"{FIRST}/matchConditions", None, "remove"),
    "a condition of another name": configured(
        BY_POLICY, f"{FIRST}/matchConditions/-", {"name": "never", "expression": "false"}, "add"
    ),
    "the webhook is taken out": configured(BY_POLICY, FIRST, None, "remove"),
    "somebody else is let into the configuration": configured(
        BY_POLICY, "/metadata/annotations", {"cert-manager.io/inject-ca-from": "default/thief"}, "add"
    ),
    "the configuration is orphaned": configured(BY_POLICY, "/metadata/finalizers", ["example.com/x"], "add"),
    "another configuration": patched(
        BY_RBAC, paths.mutatingwebhookconfigurations("other"), {"webhooks": []}, KEEPER, "merge"
    ),
    "a configuration of its own": Attempt(
        BY_RBAC, KEEPER, "create", paths.mutatingwebhookconfigurations(), {"metadata": {"name": "mine"}}
    ),
    "a policy is taken away": Attempt(
        BY_RBAC, KEEPER, "delete", paths.validatingadmissionpolicies("gpufraction-certs")
    ),
    "another Secret": Attempt(BY_RBAC, KEEPER, "get", paths.secrets(OURS, "other")),
    "a Secret of the cluster's own": Attempt(BY_RBAC, KEEPER, "get", paths.secrets(SYSTEM, "any")),
    "a Secret of its own": Attempt(BY_RBAC, KEEPER, "create", paths.secrets(OURS), {"metadata": {"name": "mine"}}),
    "the allocator reads the key": Attempt(BY_RBAC, ALLOCATOR, "get", SECRET),
    "the agent reads the key": Attempt(BY_RBAC, AGENT, "get", SECRET),
    "a holder reads the key": Attempt(BY_RBAC, HOLDER, "get", SECRET),
}


@pytest.mark.parametrize("attempt", KEEPER_ATTEMPTS.values(), ids=KEEPER_ATTEMPTS.keys())
def test_what_the_certificate_keepers_token_can_write(attempt: Attempt, tokens: Tokens) -> None:
    """B4: the keeper changes which authority the API server trusts for our webhook, and not where requests are sent."""
    assert tokens.outcome(attempt) == attempt.want


def test_the_allocator_evicts_the_very_pod_that_it_names(tokens: Tokens) -> None:
    """The positive case next to the refused evictions: the uid is the pod's."""
    uid = tokens.kube.get(PLACED)["metadata"]["uid"]
    assert tokens.outcome(evicted(ALLOWED, SERVED, "placed", uid=uid)) == ALLOWED
