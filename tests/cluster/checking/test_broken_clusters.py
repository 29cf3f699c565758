"""
Broken clusters, and everything that `kubectl gpufraction check` finds on each.

Every case breaks one thing in a healthy cluster, compares all findings, and repairs it.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from contract import names
from kubectl_gpufraction.__main__ import main
from kubectl_gpufraction.check import reader, rules
from playground import scenarios
from playground.api.kinds.values import User
from playground.cluster import Cluster
from playground.machinery.objects.nodes import NodeSpec
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube
from runtime.kubernetes.transport import connect_transport
from runtime.kubernetes.warnings import WarningTransport
from tests.builders import pod
from tests.cluster.checking import faults
from tests.cluster.checking.checked import Line, check, healthy, kubernetes, watched
from tests.cluster.checking.conftest import BarePlane, expect

pytestmark = pytest.mark.system
JSON = dict[str, Any]
Break = Callable[[Cluster], AbstractContextManager[None]]

APPLY = "kubectl apply -k YOUR_KUSTOMIZATION"
OURS = names.NAMESPACE
DEPLOYMENT = paths.deployments(OURS, "gpufraction")
DAEMONSET = paths.path("apps/v1", "daemonsets", OURS, "gpufraction-nodeagent")
LOGS = f"kubectl -n {OURS} logs deployment/gpufraction-certs"
INJECT = f"{names.INJECT_LABEL}={names.INJECT_ENABLED}"
CHECKED = "a pod in namespace default"
NOT_MUTATED = f"{CHECKED} requested a share, but the webhook was not called"
NOT_CALLED = f"{CHECKED}: the API server cannot call the webhook"


def rbac(kind: str, name: str) -> str:
    return paths.path("rbac.authorization.k8s.io/v1", kind, name=name)


def fail(check_: str, found: str, cure: str | None = None) -> Line:
    return ("FAIL", check_, found, cure)


def warn(check_: str, found: str, cure: str | None = None) -> Line:
    return ("WARN", check_, found, cure)


def ok(check_: str, found: str) -> Line:
    return ("OK", check_, found, None)


def host_pid(wanted: bool | None) -> JSON:
    return {"spec": {"template": {"spec": {"hostPID": wanted}}}}


@contextmanager
def refuses_host_paths(cluster: Cluster) -> Iterator[None]:
    level = {"pod-security.kubernetes.io/enforce": "baseline"}
    with (
        faults.labelled(cluster, paths.namespaces("default"), **level),
        faults.containers(cluster, DEPLOYMENT, 0, args=["--host-paths=mps,preload"]),
    ):
        yield


def ray_cluster(**group: Any) -> JSON:
    """A RayCluster whose autoscaler adds workers that each have a share."""
    share = {"limits": {"gpufraction.io/gpu-memory": "8Gi"}}
    template = {"spec": {"containers": [{"name": "worker", "image": "ray", "resources": share}]}}
    spec = {"enableInTreeAutoscaling": True, "workerGroupSpecs": [{"template": template, **group}]}
    return {"metadata": {"name": "counts" if group else "sees-none"}, "spec": spec}


HUB_LABELS = {"app": "jupyterhub", "component": "hub"}
HUB = {
    "metadata": {"name": "hub", "labels": HUB_LABELS},
    "spec": {
        "replicas": 0,
        "selector": {"matchLabels": HUB_LABELS},
        "template": {
            "metadata": {"labels": HUB_LABELS},
            "spec": {"containers": [{"name": "hub", "image": "example.org/hub"}]},
        },
    },
}


@contextmanager
def hub_and_ray(cluster: Cluster) -> Iterator[None]:
    clusters = (ray_cluster(), ray_cluster(rayStartParams={"num-gpus": "1"}))
    with (
        faults.deployed(cluster, HUB),
        faults.program(cluster, "RayCluster", "rayclusters", "ray.io/v1", *clusters),
    ):
        yield


OFFERED = fail(
    "device-plugins",
    "a device plugin offers the GPUs of t4, so none is shared; NVIDIA's operator removes its plugin by a label; "
    "delete the DaemonSet of any other plugin",
    "kubectl label node t4 nvidia.com/gpu.deploy.device-plugin=false gpufraction.io/ownership=dedicated --overwrite",
)
CASES: dict[str, tuple[Break, tuple[Line, ...], tuple[str, ...]]] = {
    "a device plugin offers the same GPUs": (
        lambda cluster: faults.offered(cluster.kube, "t4", "nvidia.com/gpu", "2"),
        (
            OFFERED,
            ok("dry-run", f"{CHECKED}: the webhook answers; the pod would run on v100"),
            warn("gpus", "1 of 2 nodes share 2 GPUs; t4: PluginConflict"),
            watched("v100"),
        ),
        (),
    ),
    "an older system offers the same GPUs": (
        lambda cluster: faults.offered(cluster.kube, "t4", "aliyun.com/gpu-mem", "30"),
        (
            fail(
                "device-plugins",
                "another system offers aliyun.com/gpu-mem on t4, and allocates the same GPUs to its pods",
                "remove its device plugin from the nodes: docs/migrating.md",
            ),
        ),
        (),
    ),
    "the webhook configuration was deleted": (
        lambda cluster: faults.deleted(cluster, faults.CONFIGURATION),
        (
            fail("installation", "the MutatingWebhookConfiguration zz-gpufraction-webhook: missing", APPLY),
            fail(
                "dry-run",
                f"{NOT_MUTATED}: the MutatingWebhookConfiguration zz-gpufraction-webhook does not exist",
                APPLY,
            ),
        ),
        ("certificates",),
    ),
    "another program emptied the caBundle": (
        lambda cluster: faults.bundle(cluster, None),
        (
            fail(
                "certificates",
                "zz-gpufraction-webhook names no authority (caBundle), so the API server trusts no webhook",
                LOGS,
            ),
            fail("dry-run", f"{NOT_CALLED}: it does not trust the webhook's certificate", LOGS),
        ),
        (),
    ),
    "the authority has expired": (
        lambda cluster: faults.bundle(cluster, faults.expired_authority()),
        (
            fail("certificates", "the authority of the webhook has expired", LOGS),
            fail("dry-run", f"{NOT_CALLED}: it does not trust the webhook's certificate", LOGS),
        ),
        (),
    ),
    "no webhook runs": (
        lambda cluster: faults.stopped(cluster, "webhook"),
        (
            fail(
                "dry-run",
                f"{NOT_CALLED}: the connection is closed at once, so no webhook runs",
                f"kubectl -n {OURS} get pods -o wide",
            ),
        ),
        (),
    ),
    "no allocator runs": (
        lambda cluster: faults.stopped(cluster, "allocator"),
        (
            fail(
                "leader",
                "no allocator leads: pods wait",
                f"kubectl -n {OURS} logs -l app.kubernetes.io/component=admission -c allocator --tail=50",
            ),
            fail(
                "dry-run",
                f"{CHECKED}: the webhook answers, but its allocator does not",
                f"kubectl -n {OURS} logs deployment/gpufraction -c allocator --tail=50",
            ),
        ),
        (),
    ),
    "the agents' rights are missing": (
        lambda cluster: faults.deleted(cluster, rbac("clusterrolebindings", "gpufraction-nodeagent")),
        (
            fail(
                "program-rights",
                "gpufraction-nodeagent may not create tokenreviews, nor create subjectaccessreviews, nor patch "
                "gpunodes/status, nor patch nodes/status",
                APPLY,
            ),
        ),
        (),
    ),
    "a setting needs a component that is not installed": (
        lambda cluster: faults.containers(cluster, DEPLOYMENT, 1, args=["--preemption=true"]),
        (
            fail(
                "program-rights",
                "gpufraction-allocator may not create pods/eviction, which its setting preemption needs",
                f"kustomize edit add component manifests/components/allocator-eviction && {APPLY}",
            ),
        ),
        (),
    ),
    "a policy has no binding": (
        lambda cluster: faults.deleted(
            cluster,
            paths.path("admissionregistration.k8s.io/v1", "validatingadmissionpolicybindings", name="gpufraction-node"),
        ),
        (fail("policies", "missing, or without their binding: gpufraction-node", APPLY),),
        (),
    ),
    "pods ask for shares in a namespace without the label": (
        lambda cluster: faults.created(
            cluster,
            pod("a", "team-b").asks("aliyun.com/gpu-mem", 5),
            pod("b", "team-b").asks("nvidia.com/gpumem", 5),
            namespace="team-b",
        ),
        (
            warn(
                "unserved-pods",
                "namespace team-b: 2 pods requested a share (Aliyun gpushare, HAMi (nvidia.com/gpu)), but it is not "
                "labelled; create them again when it is",
                f"kubectl label namespace team-b {INJECT}",
            ),
        ),
        (),
    ),
    "no namespace has the label": (
        faults.unlabelled,
        (
            (
                "UNKNOWN",
                "dry-run",
                "unknown: not tried, because no namespace is labelled",
                f"kubectl label namespace NAMESPACE {INJECT}",
            ),
            warn("namespaces", "no namespace is labelled yet", f"kubectl label namespace NAMESPACE {INJECT}"),
        ),
        (),
    ),
    "the image has no registry": (
        lambda cluster: faults.containers(cluster, DEPLOYMENT, 0, image="gpufraction:0.1.0"),
        (
            warn(
                "image",
                "gpufraction:0.1.0 of deployment/gpufraction names no registry, so only nodes onto which it was "
                "loaded have it",
                f"kustomize edit set image gpufraction=REGISTRY/gpufraction:0.1.0 && {APPLY}",
            ),
        ),
        (),
    ),
    "pods get a RuntimeClass that does not exist": (
        lambda cluster: faults.containers(cluster, DEPLOYMENT, 0, args=["--runtime-class=nvidia"]),
        (
            fail(
                "runtime-class",
                "pods get the RuntimeClass nvidia, which does not exist, so they are refused",
                "echo '{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: nvidia}, handler: nvidia}' | "
                "kubectl apply -f -",
            ),
        ),
        (),
    ),
    "our namespace refuses an agent that sees its host": (
        lambda cluster: faults.patched(cluster.kube, DAEMONSET, host_pid(True), host_pid(None)),
        (
            fail(
                "own-pod-security",
                f"namespace {OURS} enforces restricted, which refuses daemonset/gpufraction-nodeagent (hostPID)",
                f"kubectl label namespace {OURS} pod-security.kubernetes.io/enforce=privileged --overwrite",
            ),
        ),
        (),
    ),
    "a served namespace refuses the volumes that pods get": (
        refuses_host_paths,
        (
            fail(
                "pod-security",
                "namespace default enforces baseline, which refuses the hostPath volumes that pods get for mps,preload",
                "kubectl label namespace default pod-security.kubernetes.io/enforce=privileged --overwrite",
            ),
        ),
        (),
    ),
    "programs with traps run, and one of their objects is in one": (
        hub_and_ray,
        (
            ok("other-programs", "found: JupyterHub, KubeRay"),
            warn(
                "traps",
                "JupyterHub: default/hub: KubeSpawner deletes a notebook that is not running after start_timeout, "
                "300 s by default; the check cannot read the hub's settings",
                "a larger c.KubeSpawner.start_timeout, in the chart singleuser.startTimeout: "
                "docs/workloads/jupyterhub.md",
            ),
            warn(
                "traps",
                "KubeRay: default/sees-none: its autoscaler sees no GPU in these workers, so it adds none for tasks "
                "that need a GPU",
                'num-gpus: "1" in rayStartParams of the worker group: docs/workloads/kuberay.md',
            ),
        ),
        (),
    ),
    "a GPU node has no agent": (
        lambda cluster: faults.joined(cluster, NodeSpec("bare", labels={"gpu": "on"})),
        (
            ok("node-labels", "3 of 3 nodes have a label of GPU nodes"),
            ok("container-runtime", "containerd 1.7.27 on 3 GPU nodes"),
            warn("gpus", "2 of 3 nodes share 4 GPUs; bare: NoAgent"),
            warn(
                "node-problems",
                "bare: NoAgent: no agent has reported the GPUs of the node",
                "kubectl get pods --all-namespaces -l app.kubernetes.io/component=nodeagent -o wide",
            ),
        ),
        (),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_everything_that_is_found_on_a_broken_cluster(cluster: Cluster, name: str) -> None:
    broken, lines, without = CASES[name]
    with broken(cluster):
        expect(cluster, healthy(cluster).but(*lines, without=without))


def unknown(check_: str, why: str) -> Line:
    return ("UNKNOWN", check_, f"unknown: {why}", None)


def test_what_a_user_may_not_see_is_unknown_and_not_well(cluster: Cluster, tmp_path: Path) -> None:
    user = tmp_path / "kubeconfig"
    user.write_text(cluster.control_plane.kubeconfig(User("tenant", ("system:authenticated",))))
    nodes, webhook = (
        "you may not list nodes",
        "you may not read the MutatingWebhookConfiguration zz-gpufraction-webhook",
    )
    workloads, spaces = f"you may not list deployments in {OURS}", "you may not list namespaces"
    lacking = (
        "create namespaces, create customresourcedefinitions, create clusterroles, create clusterrolebindings, "
        "create mutatingwebhookconfigurations and 5 more"
    )
    wanted = [
        healthy(cluster).lines[0],
        warn(
            "your-rights",
            f"to install or upgrade you lack: {lacking}",
            "have a cluster administrator apply the manifests",
        ),
        *(unknown(check_, nodes) for check_ in ("node-labels", "device-plugins", "container-runtime")),
        unknown("runtime-class", "you may not list runtimeclasses"),
        unknown("installation", webhook),
        unknown("image", workloads),
        unknown("own-pod-security", spaces),
        unknown("policies", "you may not list validatingadmissionpolicies"),
        *(unknown(check_, workloads) for check_ in ("webhook", "keeper-of-certificates")),
        unknown("certificates", webhook),
        unknown("leader", f"you may not read leases in {OURS}"),
        unknown("program-rights", "you may not ask for the rights of others (subjectaccessreviews)"),
        unknown("dry-run", "you may not create pods in default"),
        unknown("gpus", "you may not list gpunodes"),
        unknown("namespaces", spaces),
        unknown("unserved-pods", "you may not list pods of all namespaces"),
        (
            "UNKNOWN",
            "other-programs",
            "unknown whether there is JupyterHub, Cluster Autoscaler, Airflow: you may not list deployments of all "
            "namespaces",
            None,
        ),
    ]
    assert check(user, "-n", "default") == wanted


def test_the_clock_that_counts_is_the_api_servers(cluster: Cluster) -> None:
    listening = WarningTransport(connect_transport(kubeconfig=str(cluster.kubeconfig), context=None, user_agent="test"))
    wrong = time.time() - 20 * 365 * 86400
    found = rules.findings(reader.read(Kube(listening), listening, wrong))
    assert [(each.level, each.check, each.found, each.cure or None) for each in found] == healthy(cluster).lines


def test_it_is_the_same_command_before_the_installation(bare: BarePlane) -> None:
    wanted = [
        kubernetes(bare.kube),
        ok("your-rights", "you may install and upgrade"),
        ok("node-labels", "1 of 1 nodes have a label of GPU nodes"),
        ok("device-plugins", "no other device plugin offers GPUs"),
        ok("container-runtime", "containerd 1.7.27 on 1 GPU node"),
        ok("runtime-class", "no RuntimeClass nvidia; NVIDIA's runtime must be the default of the GPU nodes"),
        ("OK", "installation", "gpufraction is not installed yet", APPLY),
        ("OK", "namespaces", "no namespace is labelled yet", f"kubectl label namespace NAMESPACE {INJECT}"),
        ok("unserved-pods", "no pod requests a share in a namespace that is not served"),
    ]
    assert check(bare.kubeconfig) == wanted
    with faults.offered(bare.kube, "t4", "nvidia.com/gpu", "2"):
        assert check(bare.kubeconfig) == [*wanted[:3], OFFERED, *wanted[4:]]
        printed = io.StringIO()
        main(["check", "--kubeconfig", str(bare.kubeconfig)], out=printed, environment={})
    page = (scenarios.SAMPLES.parent / "docs" / "installing.md").read_text(encoding="utf-8")
    assert f"```\n{printed.getvalue()}```\n".replace(wanted[0][2], "Kubernetes 1.34") in page
