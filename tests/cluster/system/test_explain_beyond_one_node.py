"""`explain` and `dry-run` if other pods and volumes decide: the full answer only for users who may read them."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubectl_gpufraction.__main__ import main
from playground import scenarios
from playground.api.kinds.values import User
from playground.cluster import Cluster
from playground.programs import installing
from runtime.kubernetes import paths
from tests.cluster.acceptance.looking import plugin
from tests.cluster.system.rules import (
    HOST,
    SPACE,
    asking,
    await_nodes,
    await_waiting,
    create,
    required,
)

pytestmark = pytest.mark.system
JSON = dict[str, Any]
RBAC = "rbac.authorization.k8s.io"
CLAIMS, VOLUMES = paths.path("v1", "persistentvolumeclaims", SPACE), paths.path("v1", "persistentvolumes")
MAY = [
    {"apiGroups": [""], "resources": ["pods", "persistentvolumeclaims"], "verbs": ["get", "list", "create"]},
]


@pytest.fixture
def tenant(cluster: Cluster) -> Path:
    """A kubeconfig of a user who may read the pods and claims of one namespace."""
    about = {"apiVersion": f"{RBAC}/v1", "metadata": {"name": "tenant", "namespace": SPACE}}
    subject = {"apiGroup": RBAC, "kind": "User", "name": "tess"}
    role = {"apiGroup": RBAC, "kind": "Role", "name": "tenant"}
    installing.apply(cluster.kube, {**about, "kind": "Role", "rules": MAY})
    installing.apply(cluster.kube, {**about, "kind": "RoleBinding", "roleRef": role, "subjects": [subject]})
    file = cluster.directory / "kubeconfig-tess"
    file.write_text(cluster.control_plane.kubeconfig(User("tess", ("system:authenticated",))))
    return file


@pytest.fixture
def disk(cluster: Cluster) -> Iterator[str]:
    """A claim that is bound to a volume on a node that does not exist."""
    there = {"key": HOST, "operator": "In", "values": ["elsewhere"]}
    common = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    volume = {
        **common,
        "capacity": {"storage": "1Gi"},
        "hostPath": {"path": "/data"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [there]}]}},
    }
    claim = {**common, "volumeName": "disk", "resources": {"requests": {"storage": "1Gi"}}}
    made = cluster.kube.create(CLAIMS, {"metadata": {"name": "data"}, "spec": claim})
    volume["claimRef"] = {"namespace": SPACE, "name": "data", "uid": made["metadata"]["uid"]}
    cluster.kube.create(VOLUMES, {"metadata": {"name": "disk"}, "spec": volume})
    bound = {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
    cluster.kube.patch_merge(f"{CLAIMS}/data", {"metadata": bound})
    try:
        yield "data"
    finally:
        scenarios.clear(cluster.kube)
        for where in (f"{CLAIMS}/data", f"{VOLUMES}/disk"):
            cluster.kube.patch_merge(where, {"metadata": {"finalizers": None}})
            cluster.kube.delete(where)


def explained(kubeconfig: Path, *arguments: str) -> str:
    out = io.StringIO()
    main([*arguments, "--kubeconfig", str(kubeconfig)], out=out, err=out, environment={})
    return out.getvalue()


def test_who_may_read_pods_learns_which_keep_it_off_and_a_tenant_which_filter(cluster: Cluster, tenant: Path) -> None:
    nodes = [node.spec.name for node in cluster.nodes]
    for node in nodes:
        create(
            cluster, asking(f"quiet-{node}", "quiet", nodeSelector={HOST: node}, **required("podAntiAffinity", "loud"))
        )
    await_nodes(cluster, *(f"quiet-{node}" for node in nodes))
    create(cluster, asking("loud", "loud"))
    await_waiting(cluster, "loud", f"{len(nodes)} because of anti-affinity to another pod")
    whole = plugin(cluster, "explain", "loud")
    assert f"Other pods and volumes keep it off {len(nodes)} of {len(nodes)} GPU nodes now: " in whole
    assert "By anti-affinity it is kept apart from: " in whole
    assert all(f"default/quiet-{node} on {node}" in whole for node in nodes)
    assert "Not evaluated" not in whole
    seen = explained(tenant, "explain", "loud")
    assert "Not evaluated: AddedAffinity (you may not list nodes, gpunodes; you may not read ConfigMap " in seen
    assert "InterPodAffinity (you may not list nodes, gpunodes, pods of all namespaces, namespaces)" in seen
    assert "quiet" not in seen


def test_a_tenant_learns_that_volumes_are_not_evaluated(cluster: Cluster, tenant: Path, disk: str) -> None:
    mounted = [{"name": "data", "persistentVolumeClaim": {"claimName": disk}}]
    create(cluster, asking("notebook", "notebook", volumes=mounted))
    count = len(cluster.nodes)
    await_waiting(cluster, "notebook", f"{count} because of a volume that the node cannot reach")
    whole = plugin(cluster, "explain", "notebook")
    assert f"{count} of {count} GPU nodes now: " in whole
    assert "because of a volume that the node cannot reach" in whole
    assert "Not evaluated" not in whole
    seen = explained(tenant, "explain", "notebook")
    assert re.search(r"VolumeBinding[^(]*\(you may not list nodes, gpunodes, persistentvolumes, storageclasses", seen)
    assert "It names a PersistentVolumeClaim" not in seen, "nothing is wrong with it"


def test_a_dry_run_spreads_replicas_as_they_would_be(cluster: Cluster, tmp_path: Path) -> None:
    count = len(cluster.nodes)
    template = asking("web", "web", **required("podAntiAffinity", "web")).manifest()
    spec = {"replicas": count + 1, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    file = tmp_path / "web.yaml"
    file.write_text(
        yaml.safe_dump({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec})
    )
    output = plugin(cluster, "dry-run", "-f", str(file))
    assert f"{count} of {count + 1}" in output
    assert f"{count} because of anti-affinity to another pod" in output
