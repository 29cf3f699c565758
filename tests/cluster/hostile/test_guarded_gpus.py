"""B5: with the component guard-gpus, no pod outside the served namespaces can name GPUs and bypass the scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from contract import names
from playground.shapes import DEMO
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError
from tests.builders import pod
from tests.cluster.hostile.attack import Hostile, hostile_cluster
from tests.clusters import control_planes

pytestmark = pytest.mark.hostile

JSON = dict[str, Any]
GUARDED, UNGUARDED, SERVED = "guarded", "vendors", "default"
VARIABLE = str(names.VISIBLE_DEVICES)
CLASSES = ("nvidia", "nvidia-cdi", "gvisor")
REFUSED = "ValidatingAdmissionPolicy 'gpufraction-guard-gpus'"


@pytest.fixture(scope="module", params=control_planes(long=True))
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    directory = tmp_path_factory.mktemp("guarded")
    for attacked in hostile_cluster(request.param, directory, nodes=DEMO[:1], components=("guard-gpus",)):
        kube = attacked.kube
        for name, labels in ((GUARDED, {}), (UNGUARDED, {str(names.GPUS_LABEL): names.UNGUARDED})):
            kube.create(paths.namespaces(), {"metadata": {"name": name, "labels": labels}})
            attacked.cluster.await_account(name)
        for name in CLASSES:
            about = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}}
            kube.create(paths.runtimeclasses(), {**about, "handler": name})
        yield attacked


def made(*, env: JSON | None = None, init: bool = False, mount: str = "", annotation: str = "", **spec: Any) -> JSON:
    """A pod that names GPUs in one way."""
    manifest = pod("p").container("main").manifest()
    container: JSON = {"name": "names", "image": "x", "env": [{"name": VARIABLE, **env}] if env is not None else []}
    if mount:
        container["volumeMounts"] = [{"name": "null", "mountPath": mount}]
        manifest["spec"]["volumes"] = [{"name": "null", "hostPath": {"path": "/dev/null"}}]
    manifest["spec"].setdefault("initContainers" if init else "containers", []).append(container)
    if annotation:
        manifest["metadata"]["annotations"] = {annotation: "nvidia.com/gpu=all"}
    manifest["spec"] |= spec
    return manifest


FROM_POD = {"valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.annotations['a']"}}}
NAMING: dict[str, tuple[JSON, bool]] = {
    "all GPUs": (made(env={"value": "all"}), False),
    "a GPU by its number": (made(env={"value": "0"}), False),
    "a GPU by its UUID": (made(env={"value": "GPU-1"}), False),
    "a CDI device": (made(env={"value": "nvidia.com/gpu=all"}), False),
    "GPUs from an annotation": (made(env=FROM_POD), False),
    "GPUs in an init container": (made(env={"value": "all"}, init=True), False),
    "GPUs by a mount": (made(mount="/var/run/nvidia-container-devices/all"), False),
    "NVIDIA's RuntimeClass": (made(runtimeClassName="nvidia"), False),
    "another of NVIDIA's": (made(runtimeClassName="nvidia-cdi"), False),
    "devices by CDI": (made(annotation="cdi.k8s.io/gpus"), False),
    "devices by the NRI plugin": (made(annotation="nvidia.cdi.k8s.io/container.main"), False),
    "no GPU": (made(env={"value": "void"}), True),
    "none": (made(env={"value": "none"}), True),
    "nothing": (made(env={"value": ""}), True),
    "another RuntimeClass": (made(runtimeClassName="gvisor"), True),
    "another mount": (made(mount="/data"), True),
    "another annotation": (made(annotation="example.com/cdi.k8s.io"), True),
}


def refusal(kube: Kube, namespace: str, manifest: JSON) -> str:
    """The API server's answer to a dry run; empty for a pod that it would accept."""
    manifest = {**manifest, "metadata": {**manifest["metadata"], "namespace": namespace}}
    try:
        kube.create(paths.pods(namespace), manifest, {"dryRun": "All"})
    except KubeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("manifest", "taken"), NAMING.values(), ids=NAMING.keys())
def test_who_names_gpus_is_refused(manifest: JSON, taken: bool, guarded: Hostile) -> None:
    """B5: every way by which a pod can name GPUs to its runtime."""
    message = refusal(guarded.kube, GUARDED, manifest)
    assert (message == "") is taken, message
    assert taken or REFUSED in message, message


@pytest.mark.parametrize("namespace", [UNGUARDED, SERVED, "kube-system"])
def test_who_manages_gpus_is_left_alone(namespace: str, guarded: Hostile) -> None:
    """B5: pods with the administrator's label, pods in served namespaces, and the cluster's own pods."""
    guarded.cluster.await_account(namespace)
    assert REFUSED not in refusal(guarded.kube, namespace, made(env={"value": "all"}, runtimeClassName="nvidia"))


def test_a_pod_that_is_there_gets_no_devices_by_an_annotation(guarded: Hostile) -> None:
    """B5: NVIDIA's NRI plugin reads annotations when a container starts, so it also reads later ones."""
    manifest = made()
    manifest["metadata"]["namespace"] = GUARDED
    guarded.kube.create(paths.pods(GUARDED), manifest)
    path = paths.pods(GUARDED, "p")
    for where in (path, f"{path}/status"):
        for annotation, refused in (("nvidia.cdi.k8s.io/container.main", True), ("example.com/a", False)):
            try:
                guarded.kube.patch_merge(where, {"metadata": {"annotations": {annotation: "x"}}}, {"dryRun": "All"})
                message = ""
            except KubeError as error:
                message = str(error)
            assert (REFUSED in message) is refused, (where, annotation, message)
    guarded.kube.delete(path, {"gracePeriodSeconds": 0})
