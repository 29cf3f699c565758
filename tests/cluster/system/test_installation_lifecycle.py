"""
An installation that is changed, upgraded and removed: nothing else is touched, and running pods continue unchanged.

The tests have their own cluster, with the component hide-gpus and resources with other names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from contract import names
from playground import scenarios
from playground.cluster import Cluster
from playground.programs import installing
from playground.shapes import gpu_node
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeError, KubeNotFound
from tests.builders import PodBuilder, pod
from tests.cluster.system import invariants
from tests.clusters import control_planes

pytestmark = pytest.mark.system
JSON = dict[str, Any]
HIDE_GPUS = installing.BASE.parent / "components" / "hide-gpus" / "webhook.yaml"
CONFIGURATION = paths.mutatingwebhookconfigurations("zz-gpufraction-webhook")
RENAMED = "resourceName: example.com/vgpu\nresourceMem: example.com/vgpumem\n"


@pytest.fixture(scope="module", params=control_planes(long=True))
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with installation(request, tmp_path_factory.mktemp("installed")) as cluster:
        yield cluster


@pytest.fixture(params=control_planes(long=True))
def doomed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster for the test that uninstalls everything."""
    with installation(request, tmp_path) as cluster:
        yield cluster


@contextlib.contextmanager
def installation(request: pytest.FixtureRequest, directory: Path) -> Iterator[Cluster]:
    settings = {"webhook": ("--hide-gpus=true",), "allocator": ("--assume-ttl", "2s")}
    nodes = (gpu_node("t4", "2 x Tesla T4 15109MiB"),)
    with Cluster(
        nodes=nodes, directory=directory, settings=settings, replicas=2, control_plane=request.param
    ) as cluster:
        options = paths.configmaps(names.NAMESPACE, names.OPTIONS)
        cluster.kube.patch_merge(options, {"data": {names.OPTIONS_FILE: RENAMED}})
        apply_configuration(cluster)
        look_after_it(cluster)
        yield cluster


@pytest.fixture
def cluster(installed: Cluster) -> Iterator[Cluster]:
    yield installed
    invariants.check(installed)
    scenarios.clear(installed.kube)
    invariants.check(installed)


def apply_configuration(cluster: Cluster) -> None:
    """Do what `kubectl apply -k` does, with hide-gpus: it restores the manifests' fields and keeps the authority."""
    base = installing.webhook_configuration()
    (component,) = installing.documents(HIDE_GPUS)
    whole = {**base, "webhooks": [*base["webhooks"], *component["webhooks"]]}
    reached, _ = cluster.reached(whole)
    cluster.kube.patch_strategic(CONFIGURATION, reached)


def look_after_it(cluster: Cluster) -> None:
    """Do what the keeper of certificates does every minute, until the API server has applied it."""

    def goes_by_it() -> bool:
        cluster.programs["certs"].run()
        return asks(cluster, vgpu("probe")) and hides(cluster, pod("probe"))

    wait_for(goes_by_it, "the API server does not go by the configuration")


def asks(cluster: Cluster, builder: PodBuilder) -> bool:
    """Whether gpufraction would treat such a pod as one that requests a share."""
    return names.REQUEST in (would_be(cluster, builder)["metadata"].get("annotations") or {})


def hides(cluster: Cluster, builder: PodBuilder) -> bool:
    """Whether its container would get an environment."""
    return "env" in would_be(cluster, builder)["spec"]["containers"][0]


def would_be(cluster: Cluster, builder: PodBuilder) -> JSON:
    """The pod as it would be created; empty parts if the webhook cannot be called yet."""
    try:
        return cluster.kube.create(paths.pods("default"), builder.manifest(), {"dryRun": "All"})
    except KubeError:
        return {"metadata": {}, "spec": {"containers": [{}]}}


def share(name: str, mib: int = 1000) -> PodBuilder:
    return pod(name).asks("gpufraction.io/gpu-memory", f"{mib}Mi")


def vgpu(name: str) -> PodBuilder:
    """A share, with this cluster's names for the resources."""
    return pod(name).asks("example.com/vgpu", 1).asks("example.com/vgpumem", 3000)


def created(cluster: Cluster, *builders: PodBuilder) -> None:
    """Create pods."""
    for builder in builders:
        cluster.kube.create(paths.pods("default"), builder.manifest())


# -- which pods the webhook sees ----------------------------------------------------------------------------------


def test_who_asks_for_nothing_sees_nothing_and_who_has_a_share_sees_that(cluster: Cluster) -> None:
    created(cluster, pod("plain").env("NVIDIA_VISIBLE_DEVICES", "all"), share("has"))
    has, plain = sorted(scenarios.settled(cluster.kube, 2, running=2), key=lambda p: str(p["metadata"]["name"]))
    assert f"NVIDIA_VISIBLE_DEVICES={names.NO_DEVICES}" in scenarios.printed(cluster.kube, plain).splitlines()
    assert "UUID" not in scenarios.printed(cluster.kube, plain)
    (uuid,) = scenarios.held(has)
    assert f"NVIDIA_VISIBLE_DEVICES={uuid}" in scenarios.printed(cluster.kube, has).splitlines()


def test_what_is_put_into_a_running_pod_sees_nothing(cluster: Cluster) -> None:
    created(cluster, share("has"))
    scenarios.settled(cluster.kube, 1, running=1)
    debug = {"name": "debug", "image": "x", "terminationMessagePolicy": "File"}
    path = paths.pods("default", "has", "ephemeralcontainers")
    after = cluster.kube.patch_strategic(path, {"spec": {"ephemeralContainers": [debug]}})
    (found,) = after["spec"]["ephemeralContainers"]
    assert found["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": names.NO_DEVICES}]


# -- resources under other names ----------------------------------------------------------------------------------


def test_a_share_by_another_name_is_a_share(cluster: Cluster) -> None:
    created(cluster, vgpu("renamed"))
    (found,) = scenarios.settled(cluster.kube, 1, running=1)
    assert list(scenarios.held(found).values()) == [3000 * 1024**2]
    assert "0MiB / 3000MiB" in scenarios.printed(cluster.kube, found)


def test_it_is_one_again_after_the_manifests_were_applied_again(cluster: Cluster) -> None:
    apply_configuration(cluster)
    # With hide-gpus even a pod outside the conditions reaches the webhook, like all other pods.
    removed = [{"name": name, "$patch": "delete"} for name in ("others.gpufraction.io", "debuggers.gpufraction.io")]
    cluster.kube.patch_strategic(CONFIGURATION, {"webhooks": removed})
    wait_for(lambda: not asks(cluster, vgpu("probe")), "the conditions are still the old ones")
    cluster.programs["certs"].run()
    wait_for(lambda: asks(cluster, vgpu("probe")), "the conditions do not follow")
    created(cluster, vgpu("renamed"))
    scenarios.settled(cluster.kube, 1, running=1)
    apply_configuration(cluster)
    look_after_it(cluster)


# -- upgrade and uninstall ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("installed", control_planes(long=True), indirect=True)
def test_an_upgrade_leaves_running_pods_alone(cluster: Cluster) -> None:
    for name in ("a", "b"):
        created(cluster, share(name, 10_000))
    scenarios.settled(cluster.kube, 2, running=2)
    before = quiet(cluster, 2)
    created(cluster, share("waits", 10_000))
    scenarios.settled(cluster.kube, 3, running=2)
    for document in installing.to_apply():
        installing.apply(cluster.kube, document)
    apply_configuration(cluster)
    look_after_it(cluster)
    for replica in cluster.replicas:
        for program in (cluster.programs[replica.name(part)] for part in ("webhook", "allocator")):
            program.terminate()
            program.wait()
            program.start()
        wait_for(partial(serves, cluster, replica.number), "the new replica does not serve")
    assert versions(cluster, before) == before
    cluster.kube.delete(paths.pods("default", "a"))
    scenarios.settled(cluster.kube, 2, running=2)


def serves(cluster: Cluster, replica: int) -> bool:
    """Whether both programs of a replica run."""
    return cluster.webhook_answers(replica) and bool(invariants.figures(cluster, replica))


def is_refused(cluster: Cluster, builder: PodBuilder) -> bool:
    """Whether such a pod is refused because its namespace gives no shares."""
    try:
        cluster.kube.create(paths.pods("default"), builder.manifest(), {"dryRun": "All"})
    except KubeError as error:
        return "given only in namespaces with the label" in str(error)
    return False


def test_uninstalling_leaves_running_pods_alone(doomed: Cluster) -> None:
    """It uninstalls everything from the cluster, in the order of docs/why.md and docs/operations.md."""
    kube = doomed.kube
    for name in ("a", "b", "waits"):
        created(doomed, share(name, 10_000))
    scenarios.settled(kube, 3, running=2)
    invariants.check(doomed)
    before = versions(doomed)
    kube.patch_merge(paths.namespaces("default"), {"metadata": {"labels": {names.INJECT_LABEL: None}}})
    wait_for(partial(is_refused, doomed, share("late", 1_000)), "the namespace is still served")
    policies = list(installing.shipped(installing.BASE.parent / "policies"))
    kube.delete(CONFIGURATION)
    remove(doomed, policies)
    for program in doomed.programs.values():
        program.terminate()
    for program in doomed.programs.values():
        program.wait()
    remove(doomed, [each for each in installing.shipped() if each not in policies])
    wait_for(lambda: not gpunodes(doomed), "our objects are still there")
    assert versions(doomed) == before
    created(doomed, pod("plain"))
    wait_for(lambda: scenarios.is_running(kube.get(paths.pods("default", "plain"))), "pods do not start")
    # A waiting pod waits forever. Now that the policies are deleted, a user with write access may delete it.
    kube.delete(paths.pods("default", "waits"))
    wait_for(lambda: set(versions(doomed)) == {"a", "b", "plain"}, "it does not go")
    assert versions(doomed, before) == {name: before[name] for name in ("a", "b")}


def remove(cluster: Cluster, documents: list[JSON]) -> None:
    """Delete them as `kubectl delete --ignore-not-found --wait=false` does."""
    for document in documents:
        with contextlib.suppress(KubeNotFound):
            cluster.kube.delete(installing.path_of(document, named=True))


def gpunodes(cluster: Cluster) -> list[JSON]:
    """The existing ones; empty if the kind no longer exists."""
    try:
        return cluster.kube.list(paths.path(names.GPUNODE_GROUP_VERSION, names.GPUNODE_PLURAL)).items
    except KubeNotFound:
        return []


def quiet(cluster: Cluster, count: int) -> dict[str, str]:
    """The versions of the pods once nothing writes to them any more."""
    invariants.check(cluster)
    wait_for(
        lambda: all(scenarios.condition(p).get("status", "True") == "True" for p in scenarios.all_pods(cluster.kube)),
        "pods that waited were not told of their share",
    )
    found = versions(cluster)
    assert len(found) == count
    return found


def versions(cluster: Cluster, of: dict[str, str] | None = None) -> dict[str, str]:
    """The pods' uids and resourceVersions by name; only of those in `of`, if it is given."""
    found = {p["metadata"]["name"]: p["metadata"] for p in scenarios.all_pods(cluster.kube)}
    return {
        name: f"{about['uid']}@{about['resourceVersion']}" for name, about in found.items() if of is None or name in of
    }
