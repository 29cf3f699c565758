"""B4: the pods that an attacker with the allocator's token can create and end, where it may create placeholder pods."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from allocator.features.provisioning import objects
from allocator.features.provisioning.objects import RequestForm
from contract import names
from contract.model import Compute, NodeState, Taint
from playground.cluster import account
from playground.shapes import DEMO
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeForbidden
from tests.cluster.hostile.attack import hostile_cluster
from tests.cluster.hostile.stolen import ALLOWED, BY_POLICY, BY_RBAC, OURS, SERVED, SYSTEM, Attempt, Tokens, create
from tests.clusters import control_planes

pytestmark = pytest.mark.hostile

JSON = dict[str, Any]
ALLOCATOR = account("gpufraction-allocator")
EMPTY = NodeState("t4", (), (), taints=(Taint("nvidia.com/gpu", "present", "NoSchedule"),), allocatable=Compute(8_000))
GENUINE = objects.placeholder(RequestForm("new", "t4", EMPTY, {"pool": "t4"}, ("n1",), "gpufraction:0.1.0"))


@pytest.fixture(scope="module", params=control_planes(long=True))
def tokens(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tokens]:
    directory = tmp_path_factory.mktemp("placeholders")
    for attacked in hostile_cluster(
        request.param,
        directory,
        nodes=DEMO[:1],
        flags=("--provisioning-enabled=false",),  # it would withdraw a placeholder of a pool that is not declared
        components=("node-provisioning", "node-placeholders"),
    ):
        kube = attacked.cluster.kube
        attacked.cluster.await_account(OURS)
        attacked.cluster.await_account(SYSTEM)
        privileged = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}}
        kube.patch_merge(paths.path("v1", "namespaces", name=OURS), privileged)  # as the component holders has it
        kube.create(
            paths.path("node.k8s.io/v1", "runtimeclasses"), {"metadata": {"name": "nvidia"}, "handler": "nvidia"}
        )
        create(kube, OURS, {**GENUINE, "metadata": {"name": "agent"}})
        kube.create(paths.pods(OURS), {**GENUINE, "metadata": {**GENUINE["metadata"], "name": "standing"}})
        yield Tokens(attacked.cluster, directory)


def made(change: Callable[[JSON, JSON, JSON], object]) -> JSON:
    """A placeholder with a change of its metadata, its spec or its container."""
    changed = copy.deepcopy(GENUINE)
    change(changed["metadata"], changed["spec"], changed["spec"]["containers"][0])
    return changed


HOST = [{"name": "root", "hostPath": {"path": "/"}}]
PROBE = {"httpGet": {"host": "169.254.169.254", "path": "/", "port": 80}}
CHANGES: dict[str, Callable[[JSON, JSON, JSON], object]] = {
    "privileged": lambda _, spec, c: c.update(securityContext={"privileged": True}),
    "with a capability": lambda _, spec, c: c["securityContext"]["capabilities"].update(add=["SYS_ADMIN"]),
    "with all capabilities": lambda _, spec, c: c["securityContext"].pop("capabilities"),
    "as root": lambda _, spec, c: spec["securityContext"].update(runAsNonRoot=False, runAsUser=0),
    "with a container as root": lambda _, spec, c: c["securityContext"].update(runAsNonRoot=False, runAsUser=0),
    "with rights that grow": lambda _, spec, c: c["securityContext"].update(allowPrivilegeEscalation=True),
    "of the agent's account": lambda _, spec, c: spec.update(serviceAccountName="gpufraction-nodeagent"),
    "of the allocator's own account": lambda _, spec, c: spec.update(serviceAccountName="gpufraction-allocator"),
    "with a token": lambda _, spec, c: spec.update(automountServiceAccountToken=True),
    "with the host's files": lambda _, spec, c: spec.update(volumes=HOST),
    "with our Secret": lambda _, spec, c: spec.update(
        volumes=[{"name": "s", "secret": {"secretName": "gpufraction-webhook-certs"}}]
    ),
    "with our Secret as variables": lambda _, spec, c: c.update(
        envFrom=[{"secretRef": {"name": "gpufraction-webhook-certs"}}]
    ),
    "on the host's network": lambda _, spec, c: spec.update(hostNetwork=True),
    "among the host's processes": lambda _, spec, c: spec.update(hostPID=True),
    "on a port of the host": lambda _, spec, c: c.update(ports=[{"containerPort": 80, "hostPort": 80}]),
    "on a chosen node": lambda _, spec, c: spec.update(nodeName=DEMO[0].spec.name),
    "with another command": lambda _, spec, c: c.update(command=["sh", "-c", "mine"]),
    "with the image's own command": lambda _, spec, c: c.pop("command"),
    "with arguments": lambda _, spec, c: c.update(args=["1"]),
    "with a hook": lambda _, spec, c: c.update(lifecycle={"postStart": {"exec": {"command": ["sh"]}}}),
    "with a probe that its kubelet sends elsewhere": lambda _, spec, c: c.update(livenessProbe=PROBE),
    "with a second container": lambda _, spec, c: spec["containers"].append({**c, "name": "second"}),
    "with an init container": lambda _, spec, c: spec.update(initContainers=[{**c, "name": "first"}]),
    "with GPUs by variable": lambda _, spec, c: c.update(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]),
    "with GPUs by its image": lambda _, spec, c: c.pop("env"),
    "with GPUs of the plugin": lambda _, spec, c: c["resources"].update(limits={"nvidia.com/gpu": "1"}),
    "with GPUs by annotation": lambda metadata, spec, c: metadata.update(
        annotations={"cdi.k8s.io/a": "nvidia.com/gpu=all"}
    ),
    "of a runtime class": lambda _, spec, c: spec.update(runtimeClassName="nvidia"),
    "before all others": lambda _, spec, c: spec.update(priorityClassName="system-node-critical"),
    "behind our Service": lambda metadata, spec, c: metadata["labels"].update(
        {"app.kubernetes.io/name": "gpufraction"}
    ),
    "without the label": lambda metadata, spec, c: metadata.pop("labels"),
    "that stays for ever": lambda metadata, spec, c: metadata.update(finalizers=["example.com/stay"]),
}
POOL = {"metadata": {"labels": {str(names.POOL): "t4"}}}
AGENT, PLACEHOLDER = paths.pods(OURS, "agent"), paths.pods(OURS, "standing")
ATTEMPTS = {
    "a placeholder": Attempt(ALLOWED, ALLOCATOR, "create", paths.pods(OURS), GENUINE),
    **{
        f"a pod {which}": Attempt(BY_POLICY, ALLOCATOR, "create", paths.pods(OURS), made(change))
        for which, change in CHANGES.items()
    },
    "a placeholder among a tenant's pods": Attempt(BY_RBAC, ALLOCATOR, "create", paths.pods(SERVED), GENUINE),
    "the end of a placeholder": Attempt(ALLOWED, ALLOCATOR, "delete", PLACEHOLDER),
    "the end of the agent": Attempt(BY_POLICY, ALLOCATOR, "delete", AGENT),
    "the agent as a placeholder, to end it": Attempt(BY_POLICY, ALLOCATOR, "strategic", AGENT, POOL),
    "the end of all pods of ours": Attempt(BY_RBAC, ALLOCATOR, "delete", paths.pods(OURS)),
    "the end of the cluster's own pod": Attempt(BY_RBAC, ALLOCATOR, "delete", paths.pods(SYSTEM, "dns")),
    "another image for a placeholder": Attempt(
        BY_POLICY,
        ALLOCATOR,
        "strategic",
        PLACEHOLDER,
        {"spec": {"containers": [{"name": "placeholder", "image": "x"}]}},
    ),
    "a log of ours": Attempt(BY_RBAC, ALLOCATOR, "get", f"{AGENT}/log"),
    "a template among a tenant's": Attempt(
        BY_RBAC, ALLOCATOR, "create", paths.path("v1", "podtemplates", SERVED), {"metadata": {"name": "x"}}
    ),
}


@pytest.mark.parametrize("attempt", ATTEMPTS.values(), ids=ATTEMPTS.keys())
def test_what_the_allocators_token_makes_and_ends(attempt: Attempt, tokens: Tokens) -> None:
    """B4: it creates only placeholder pods that sleep, see no GPU and have no rights, and it ends no other pod."""
    assert tokens.outcome(attempt) == attempt.want


def test_it_reads_no_other_kinds_of_our_namespace(tokens: Tokens) -> None:
    for kind in ("secrets", "configmaps", "serviceaccounts", "events"):
        with pytest.raises(KubeForbidden):
            tokens.client(ALLOCATOR).list(paths.path("v1", kind, OURS))
