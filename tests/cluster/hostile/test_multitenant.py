"""
The strict profile, the component multitenant, from a tenant's view: a share needs a quota and keeps its isolation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from contract import names
from playground.cluster import account
from playground.programs import installing
from playground.shapes import gpu_node
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError
from tests.builders import PodBuilder, pod
from tests.cluster.hostile.attack import Hostile, hostile_cluster
from tests.clusters import control_planes

pytestmark = pytest.mark.hostile

JSON = dict[str, Any]
TENANT, NODE = "default", "t4"
UNBOUNDED = (
    f"namespace {TENANT} has no limit on its GPU shares; have an administrator create the ResourceQuota gpufraction"
)
MISSING = "with binding 'gpufraction-create-resourcequota-gpufraction' denied request: "
MEMORY, CORES = "requests.gpufraction.io/gpu-memory", "requests.gpufraction.io/gpu-cores"
ENOUGH = {MEMORY: "4Gi", CORES: "100"}


@pytest.fixture(scope="module", params=control_planes(long=True))
def profile(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    directory = tmp_path_factory.mktemp("multitenant")
    nodes = [gpu_node(NODE, "1 x Tesla T4 15109MiB")]
    # The agents of a playground read a file of options instead of the API.
    yield from hostile_cluster(request.param, directory, nodes=nodes, components=("multitenant",))


def share(name: str, memory: str = "1Gi") -> PodBuilder:
    return pod(name).asks("gpufraction.io/gpu-memory", memory).asks("gpufraction.io/gpu-cores", 10)


def refusal(kube: Kube, made: PodBuilder) -> str:
    """The API server's answer to a dry run; empty for a pod that it would accept."""
    try:
        kube.create(paths.pods(TENANT), made.manifest(), {"dryRun": "All"})
    except KubeError as error:
        return str(error)
    return ""


def labelled(kube: Kube, value: str | None) -> None:
    """State that the namespace has a quota, or no longer has one."""
    kube.patch_merge(paths.namespaces(TENANT), {"metadata": {"labels": {str(names.QUOTA_LABEL): value}}})


def bounded(kube: Kube, hard: JSON, **spec: Any) -> None:
    """Give the tenant the quota that the profile requires, instead of an earlier one."""
    labelled(kube, names.QUOTA_BOUNDED)
    path = paths.resourcequotas(TENANT, names.QUOTA)
    wanted = {"metadata": {"name": names.QUOTA}, "spec": {"hard": hard, **spec}}
    with contextlib.suppress(KubeError):
        kube.delete(path)
    kube.create(paths.resourcequotas(TENANT), wanted)
    wait_for(lambda: (kube.get(path).get("status") or {}).get("hard") == hard, "the quota is not counted")


def test_a_share_needs_a_quota_and_other_pods_do_not(profile: Hostile) -> None:
    kube = profile.kube
    labelled(kube, None)
    wait_for(lambda: UNBOUNDED in refusal(kube, share("a")), lambda: refusal(kube, share("a")) or "taken")
    assert refusal(kube, pod("plain").container("main")) == ""
    labelled(kube, names.QUOTA_BOUNDED)
    wait_for(lambda: MISSING in refusal(kube, share("a")), lambda: refusal(kube, share("a")) or "taken")


def test_a_quota_bounds_memory_and_cores_of_all_pods(profile: Hostile) -> None:
    kube = profile.kube
    bounded(kube, {MEMORY: "4Gi"})
    text = f"the ResourceQuota gpufraction of namespace {TENANT} does not limit {MEMORY}"
    wait_for(lambda: text in refusal(kube, share("a")), lambda: refusal(kube, share("a")) or "taken")
    scoped = {"pods": "5", **{key: ENOUGH[key] for key in ENOUGH}}
    bounded(kube, scoped, scopes=["NotTerminating"])
    text = f"the ResourceQuota gpufraction of namespace {TENANT} has a scope"
    wait_for(lambda: text in refusal(kube, share("a")), lambda: refusal(kube, share("a")) or "taken")
    bounded(kube, ENOUGH)
    wait_for(lambda: refusal(kube, share("a")) == "", lambda: refusal(kube, share("a")))
    assert "exceeded quota: gpufraction" in refusal(kube, share("b", "5Gi"))


def test_a_share_has_the_least_isolation_and_keeps_it(profile: Hostile) -> None:
    kube, path = profile.kube, paths.pods(TENANT, "kept")
    bounded(kube, ENOUGH)
    wait_for(lambda: refusal(kube, share("kept")) == "", lambda: refusal(kube, share("kept")))
    profile.create(share("kept"), TENANT)
    assert kube.get(path)["metadata"]["annotations"][names.ISOLATION] == "watch"
    wait_for(
        lambda: names.ALLOCATION in kube.get(path)["metadata"]["annotations"],
        lambda: str(kube.get(path)["status"].get("conditions")),
    )
    for value in (None, "preload", ""):
        with pytest.raises(KubeError, match="isolation of a pod with a share cannot be changed"):
            kube.patch_merge(path, {"metadata": {"annotations": {str(names.ISOLATION): value}}})
    kube.patch_merge(path, {"metadata": {"annotations": {"example.com/note": "x"}}})
    kube.delete(path)


def test_moved_agents_have_rights_and_the_former_account_has_none(profile: Hostile) -> None:
    cluster = profile.cluster
    path = paths.gpunodes(NODE)
    assert cluster.kube.get(path)["status"]["gpus"]
    # An upgrade leaves it unchanged.
    left = {"name": "gpufraction-nodeagent", "namespace": names.NAMESPACE}
    installing.apply(cluster.kube, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": left})
    seen = dict[str, str]()
    for components in (("multitenant",), ()):
        user = account("gpufraction-nodeagent", node=NODE, components=components)
        file = cluster.directory / f"kubeconfig-{len(components)}"
        file.write_text(cluster.control_plane.kubeconfig(user))
        kube = Kube.connect(kubeconfig=str(file), user_agent="test")
        try:
            kube.patch_merge(f"{path}/status", {"status": {"pool": ""}}, {"dryRun": "All"})
            seen[user.name] = ""
        except KubeError as error:
            seen[user.name] = type(error).__name__
    assert seen == {
        "system:serviceaccount:gpufraction-nodes:gpufraction-nodeagent": "",
        "system:serviceaccount:gpufraction-system:gpufraction-nodeagent": "KubeForbidden",
    }
