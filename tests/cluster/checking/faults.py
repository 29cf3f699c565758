"""Faults of clusters, one at a time: each function breaks something, and repairs it at the end of the context."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from contract import names
from playground.cluster import Cluster
from playground.machinery.objects.nodes import NodeSpec
from playground.programs import installing
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeNotFound
from tests.builders import PodBuilder

JSON = dict[str, Any]
CONFIGURATION = paths.mutatingwebhookconfigurations("zz-gpufraction-webhook")


@contextmanager
def patched(kube: Kube, path: str, change: JSON, undo: JSON) -> Iterator[None]:
    """Apply a merge patch, and afterwards the patch that reverts it."""
    kube.patch_merge(path, change)
    try:
        yield
    finally:
        kube.patch_merge(path, undo)


@contextmanager
def offered(kube: Kube, node: str, resource: str, amount: str) -> Iterator[None]:
    """A device plugin offers something on a node."""
    path = paths.nodes(node, "status")

    def status(value: str | None) -> JSON:
        return {"status": {"capacity": {resource: value}, "allocatable": {resource: value}}}

    with patched(kube, path, status(amount), status(None)):
        yield


@contextmanager
def labelled(cluster: Cluster, path: str, **labels: str | None) -> Iterator[None]:
    """Set labels of an object; None removes one."""
    before = cluster.kube.get(path)["metadata"].get("labels") or {}
    undo = {key: before.get(key) for key in labels}
    with patched(cluster.kube, path, {"metadata": {"labels": dict(labels)}}, {"metadata": {"labels": undo}}):
        yield


@contextmanager
def deleted(cluster: Cluster, path: str) -> Iterator[None]:
    """Delete an object, and restore it afterwards."""
    before = cluster.kube.get(path)
    kept = {key: before["metadata"][key] for key in ("name", "namespace", "labels") if key in before["metadata"]}
    cluster.kube.delete(path)
    try:
        yield
    finally:
        cluster.kube.create(path.rpartition("/")[0], before | {"metadata": kept})


@contextmanager
def containers(cluster: Cluster, path: str, number: int, **changes: Any) -> Iterator[None]:
    """Set fields of one container of a workload; the values of a list are added to the existing ones."""
    before = cluster.kube.get(path)["spec"]["template"]["spec"]["containers"]
    changed = {
        key: [*before[number].get(key, []), *value] if isinstance(value, list) else value
        for key, value in changes.items()
    }
    after = [each | changed if index == number else each for index, each in enumerate(before)]

    def spec(found: list[JSON]) -> JSON:
        return {"spec": {"template": {"spec": {"containers": found}}}}

    with patched(cluster.kube, path, spec(after), spec(before)):
        yield


@contextmanager
def bundle(cluster: Cluster, value: str | None) -> Iterator[None]:
    """Set another caBundle in the webhook configuration; None removes it."""
    webhooks = cluster.kube.get(CONFIGURATION)["webhooks"]
    changed = [each | {"clientConfig": each["clientConfig"] | {"caBundle": value}} for each in webhooks]
    with patched(cluster.kube, CONFIGURATION, {"webhooks": changed}, {"webhooks": webhooks}):
        yield


def expired_authority() -> str:
    """A caBundle whose authority expired yesterday."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "old")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=30))
        .not_valid_after(now - timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return base64.b64encode(made.public_bytes(serialization.Encoding.PEM)).decode()


@contextmanager
def stopped(cluster: Cluster, program: str) -> Iterator[None]:
    """One of the programs does not run."""
    running = cluster.programs[program]
    running.terminate()
    running.wait()
    try:
        yield
    finally:
        running.start()


@contextmanager
def created(cluster: Cluster, *pods: PodBuilder, namespace: str) -> Iterator[None]:
    """A namespace without labels, with pods."""
    installing.apply(cluster.kube, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    cluster.await_account(namespace)
    for each in pods:
        cluster.kube.create(paths.pods(namespace), each.manifest())
    try:
        yield
    finally:
        for each in pods:
            cluster.kube.delete(paths.pods(namespace, each.manifest()["metadata"]["name"]), {"gracePeriodSeconds": 0})
        wait_for(lambda: not cluster.kube.list(paths.pods(namespace)).items, "the pods are still there")


@contextmanager
def program(cluster: Cluster, kind: str, plural: str, version: str, *objects: JSON) -> Iterator[None]:
    """The API server serves a kind of another program, and has objects of it. `version`: its group and version."""
    group, _, served = version.partition("/")
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
            "versions": [{"name": served, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }
    cluster.kube.create(paths.customresourcedefinitions(), definition)
    path = paths.path(version, plural, "default")

    def is_served() -> bool:
        try:
            return not cluster.kube.list(path).items
        except KubeNotFound:
            return False

    try:
        wait_for(is_served, f"{plural}.{group} is not served")
        for each in objects:
            cluster.kube.create(path, {"apiVersion": version, "kind": kind, **each})
        yield
    finally:
        cluster.kube.delete(paths.customresourcedefinitions(f"{plural}.{group}"))
        wait_for(lambda: not _serves(cluster.kube, group), f"{plural}.{group} is still served")


def _serves(kube: Kube, group: str) -> bool:
    return group in {each["name"] for each in kube.get("/apis")["groups"]}


@contextmanager
def deployed(cluster: Cluster, deployment: JSON) -> Iterator[None]:
    """A Deployment of another program, without pods."""
    name = deployment["metadata"]["name"]
    cluster.kube.create(paths.deployments("default"), {"apiVersion": "apps/v1", "kind": "Deployment", **deployment})
    try:
        yield
    finally:
        cluster.kube.delete(paths.deployments("default", name))


@contextmanager
def joined(cluster: Cluster, spec: NodeSpec) -> Iterator[None]:
    """A node on which no agent runs."""
    cluster.control_plane.add_node(spec)
    path = paths.nodes(spec.name)

    def there() -> bool:
        try:
            return bool(cluster.kube.get(path))
        except KubeNotFound:
            return False

    wait_for(there, "the node does not join")
    try:
        yield
    finally:
        cluster.kube.delete(path)


@contextmanager
def unlabelled(cluster: Cluster) -> Iterator[None]:
    """No namespace is served."""
    with labelled(cluster, paths.namespaces("default"), **{str(names.INJECT_LABEL): None}):
        yield
