"""
Shadow mode alongside a simulated HAMi, on both control planes: what it reports, what survives a kill, and that it
writes nothing, whatever rights it is given.

HAMi's agents and its scheduler are simulated: nodes look as its device plugin leaves them, and pods get its annotations
and their node. The recorder is the shipped program with its shipped account.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.throughput.peers import hami
from benchmarks.throughput.peers.peer import CARD, CARDS
from playground.api.kinds.values import ADMIN, User
from playground.embedded import ControlPlane
from playground.machinery.cluster import no_gpus
from playground.machinery.objects.nodes import NodeSpec
from playground.programs import installing
from playground.programs.probes import free_port
from playground.programs.process import Program
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeForbidden, KubeNotFound
from shadow.__main__ import main
from shadow.recording.store import RecordingError, lines
from shadow.replay.demand import demand_of
from tests.clusters import control_planes

pytestmark = [pytest.mark.system, pytest.mark.long, pytest.mark.timeout(600)]
JSON = dict[str, Any]
NAMESPACE = "gpufraction-shadow"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:gpufraction-shadow"
GROUPS = ("system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}", "system:authenticated")
SHIPPED = installing.BASE.parent / "shadow"
MIB = CARD >> 20
_PATIENCE = 120.0
"""Seconds for the recorder: a machine that runs other tests starts a program slowly."""
RBAC = "rbac.authorization.k8s.io/v1"


class PlayedHami:
    """A cluster of two nodes that HAMi serves, with shadow mode installed."""

    def __init__(self, plane: ControlPlane, directory: Path) -> None:
        self.plane, self.directory = plane, directory
        self.kube = self.connect(ADMIN)
        self.recording = directory / "recording"
        self._recorder: Program | None = None

    def connect(self, user: User) -> Kube:
        path = self.directory / f"kubeconfig-{user.name.replace(':', '-')}"
        path.write_text(self.plane.kubeconfig(user))
        path.chmod(0o600)
        return Kube.connect(kubeconfig=str(path), user_agent="test")

    def install(self) -> None:
        for document in installing.shipped(SHIPPED):
            if document["kind"] not in ("Deployment", "PersistentVolumeClaim"):
                installing.apply(self.kube, document)
        wait_for(lambda: installing.takes_pods(self.kube, NAMESPACE), "the namespace has no account")
        for name in ("node-a", "node-b"):
            self.plane.add_node(NodeSpec(name))
            wait_for(partial(self._there, name), f"{name} is not there")
            self.dress(name)

    def _there(self, name: str) -> bool:
        try:
            return bool(self.kube.get(paths.nodes(name)))
        except KubeNotFound:
            return False

    def dress(self, name: str, **annotations: str) -> None:
        """Change the node as HAMi's agent does."""
        node = self.kube.get(paths.nodes(name))
        hami.dress(node)
        metadata = node["metadata"]
        given = {**metadata["annotations"], **annotations}
        self.kube.patch_merge(paths.nodes(name), {"metadata": {"labels": metadata["labels"], "annotations": given}})
        status = {each: node["status"][each] for each in ("capacity", "allocatable")}
        self.kube.patch_merge(f"{paths.nodes(name)}/status", {"status": status})

    # -- the recorder -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the recorder with its own account, and wait until it has listed everything."""
        path = self.directory / "recorder-kubeconfig"
        path.write_text(self.plane.kubeconfig(User(ACCOUNT, GROUPS)))
        path.chmod(0o600)
        words = ["shadow", "record", f"--kubeconfig={path}", f"--directory={self.recording}", "--size=8Mi"]
        words.append(f"--listen=127.0.0.1:{free_port()}")
        self._recorder = Program("shadow", words, log=self.directory / "shadow.log", environment={})
        self._recorder.start()
        before = self.text().count('"k":"listed"')
        self.await_text(lambda text: text.count('"k":"listed"') > before, "nothing was listed")

    def kill(self) -> None:
        assert self._recorder is not None
        self._recorder.kill()

    def stop(self) -> None:
        if self._recorder is not None:
            self._recorder.terminate()
            self._recorder.wait()

    def text(self) -> str:
        try:
            return "".join(lines(self.recording)) if self.recording.is_dir() else ""
        except RecordingError:
            return ""

    def await_text(self, holds: Any, why: str) -> None:
        def seen() -> bool:
            assert self._recorder is not None
            self._recorder.check()
            return bool(holds(self.text()))

        wait_for(seen, why, _PATIENCE)

    # -- HAMi's scheduler ---------------------------------------------------------------------------------------------

    def create(self, name: str, mib: int, **annotations: str) -> str:
        """Create a tenant's pod as HAMi's webhook leaves it. Returns its uid."""
        limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(mib)}
        container = {"name": "main", "image": "registry.example/train:1", "resources": {"limits": limits}}
        pod: JSON = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "annotations": annotations, "labels": {"app": "train"}},
            "spec": {"schedulerName": "hami-scheduler", "containers": [container]},
        }
        return str(self.kube.create(paths.pods("default"), pod)["metadata"]["uid"])

    def place(self, name: str, node: str, card: int, mib: int) -> None:
        written = {
            hami.NODE: node,
            hami.ALLOCATED: f"GPU-{node}-{card},NVIDIA,{mib},0:;",
            hami.PHASE: "success",
        }
        self.kube.patch_merge(paths.pods("default", name), {"metadata": {"annotations": written}})
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        self.kube.create(paths.pods("default", name, "binding"), binding)

    def delete(self, name: str) -> None:
        self.kube.delete(paths.pods("default", name), {"gracePeriodSeconds": 0})

    def report(self, *words: str) -> JSON:
        out = io.StringIO()
        assert main(["report", "--recording", str(self.recording), "-o", "json", *words], out=out) == 0
        found: JSON = json.loads(out.getvalue())
        return found


@pytest.fixture(scope="module", params=control_planes())
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlayedHami]:
    plane: ControlPlane = request.param(no_gpus)
    plane.start()
    try:
        found = PlayedHami(plane, tmp_path_factory.mktemp("shadow"))
        found.install()
        yield found
        found.stop()
    finally:
        plane.stop()


def test_the_report_names_spared_and_overcommitted_cards_also_after_a_kill(cluster: PlayedHami) -> None:
    cluster.start()
    time.sleep(1)  # creation times have whole seconds, and these pods are newer than the recording
    small = MIB // 8
    for number in range(4):
        cluster.create(f"small-{number}", small)
        cluster.place(f"small-{number}", "node-a", number, small)
    cluster.create("waits", MIB)
    first = cluster.create("large", MIB - small)
    cluster.place("large", "node-a", 0, MIB - small)
    second = cluster.create("too-large", small)
    cluster.place("too-large", "node-a", 0, small)
    cluster.await_text(lambda text: '"k":"on","at"' in text and second in text, "the pods are not recorded")
    cluster.await_text(lambda text: text.count('"k":"on"') >= 6, "the pods are not recorded on their nodes")
    cluster.kill()
    cluster.delete("small-3")
    cluster.start()
    cluster.delete("large")
    cluster.await_text(lambda text: f'"uid":"{first}","how":"deleted"' in text, "an end is not recorded")
    found = cluster.report()
    (over,) = found["overcommitted"]
    assert (over["node"], over["uuid"], over["memoryBytes"]) == ("node-a", "GPU-node-a-0", CARD + small * (1 << 20))
    assert over["pods"] == ["default/large", "default/small-0", "default/too-large"]
    assert (found["before"]["inUseMost"], found["before"]["cards"] > 0) == (4, True)
    assert found["systems"] == [{"name": "hami", "nodes": 2, "cards": 2 * CARDS}]
    assert found["faults"] == 0
    assert {pod.name: pod.how for pod in demand_of(lines(cluster.recording)).pods}["small-3"] == "lost"
    assert found["before"]["neverStarted"] == 1
    assert found["after"]["neverStarted"] == 0, "there was room all the time"


HOSTILE: Mapping[str, str] = {
    "nested": "[" * 100_000,
    "digits": "9" * 100_000,
    "huge": '[{"id":"GPU-x","devmem":99999999999999999999999999,"count":10,"health":true}]',
    "words": "\x1b[2J\u202e" * 1000,
}


def test_hostile_annotations_leave_the_recorder_alive_and_others_recorded(cluster: PlayedHami) -> None:
    cluster.stop()
    cluster.start()
    for name, text in HOSTILE.items():
        cluster.dress("node-b", **{"hami.io/node-nvidia-register": text})
        given = {hami.ALLOCATED: text, hami.NODE: "node-a", "nvidia.com/use-gputype": text[:50_000]}
        cluster.create(f"hostile-{name}", 1, **given)
    cluster.dress("node-b")
    for number in range(300):
        cluster.create(f"flood-{number}", 1 + number)
        cluster.delete(f"flood-{number}")
    last = cluster.create("honest", 4000)
    cluster.await_text(lambda text: last in text, "the honest pod is not recorded")
    found = cluster.report()
    assert found["faults"] == 0
    assert json.dumps(found).isprintable()
    assert sum(path.stat().st_size for path in cluster.recording.iterdir()) <= 8 << 20


# -- it writes nothing --------------------------------------------------------------------------------------------


def test_its_account_reads_what_it_records_and_nothing_else(cluster: PlayedHami) -> None:
    kube = cluster.connect(User(ACCOUNT, GROUPS))
    assert kube.list(paths.pods()).items
    assert kube.list(paths.nodes()).items
    for path in (paths.secrets("kube-system"), paths.configmaps("kube-system"), paths.namespaces()):
        with pytest.raises(KubeForbidden):
            kube.list(path)


def writes(cluster: PlayedHami) -> Iterator[tuple[str, Any]]:
    """Each way to write, for a built-in kind and for what policies judge: `Kube` methods with their arguments."""
    kube = cluster.connect(User(ACCOUNT, GROUPS))
    pod = paths.pods("default", "honest")
    configmap = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "own"}}
    role = {
        "apiVersion": RBAC,
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "own"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [],
    }
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "honest", "namespace": "default"},
    }
    yield "create", lambda: kube.create(paths.configmaps(NAMESPACE), configmap)
    yield "dry run", lambda: kube.create(paths.configmaps(NAMESPACE), configmap, {"dryRun": "All"})
    yield "patch", lambda: kube.patch_merge(pod, {"metadata": {"labels": {"x": "y"}}})
    yield (
        "status",
        lambda: kube.patch_merge(f"{paths.nodes('node-a')}/status", {"status": {"capacity": {"example.org/x": "1"}}}),
    )
    yield "delete", lambda: kube.delete(pod)
    yield "evict", lambda: kube.create(f"{pod}/eviction", eviction)
    yield "namespace", lambda: kube.delete(paths.namespaces(NAMESPACE))
    yield "binding", lambda: kube.create(paths.path(RBAC, "clusterrolebindings"), role)


def test_no_right_that_anybody_gives_its_account_lets_it_write(cluster: PlayedHami) -> None:
    """Even with all rights, bound before the policies existed, it writes nothing."""
    if not any(each["metadata"]["name"] == "honest" for each in cluster.kube.list(paths.pods("default")).items):
        cluster.create("honest", 4000)
    bindings = paths.path("admissionregistration.k8s.io/v1", "validatingadmissionpolicybindings")
    [keeper] = [d for d in installing.shipped(SHIPPED) if d["metadata"]["name"] == "gpufraction-shadow-only-reads"][1:]
    cluster.kube.delete(f"{bindings}/gpufraction-shadow-only-reads")
    everything = binding("gave-all", "cluster-admin", subject())
    path = paths.path(RBAC, "clusterrolebindings")

    def bound() -> bool:
        try:
            cluster.kube.create(path, everything)
        except KubeForbidden:
            return False
        return True

    wait_for(bound, "the policy is still in force", 60)
    try:
        cluster.kube.create(bindings, keeper)
        for what, write in writes(cluster):
            with pytest.raises(KubeForbidden) as refused:
                write()
            assert "shadow mode writes nothing" in str(refused.value), what
    finally:
        cluster.kube.delete(f"{path}/gave-all")


def subject(**changes: str) -> JSON:
    return {"kind": "ServiceAccount", "name": "gpufraction-shadow", "namespace": NAMESPACE, **changes}


def binding(name: str, role: str, *subjects: JSON) -> JSON:
    return {
        "apiVersion": RBAC,
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": list(subjects),
    }


_GROUP = {"kind": "Group", "name": f"system:serviceaccounts:{NAMESPACE}", "apiGroup": "rbac.authorization.k8s.io"}
_USER = {"kind": "User", "name": ACCOUNT, "apiGroup": "rbac.authorization.k8s.io"}


@pytest.mark.parametrize("who", [subject(), _GROUP, _USER], ids=["account", "group", "user"])
def test_its_account_is_bound_to_no_other_role(who: JSON, cluster: PlayedHami) -> None:
    path = paths.path(RBAC, "clusterrolebindings")

    def refused() -> bool:
        try:
            cluster.kube.create(path, binding("more", "view", who), {"dryRun": "All"})
        except KubeForbidden as error:
            return "has only its own role" in str(error)
        return False

    wait_for(refused, "the policy is not in force", 60)
    inside = {**binding("more", "view", who), "kind": "RoleBinding"}
    with pytest.raises(KubeForbidden, match="its own role"):
        cluster.kube.create(paths.path(RBAC, "rolebindings", "default"), inside, {"dryRun": "All"})
    other = subject(namespace="default")
    cluster.kube.create(path, binding("of-others", "view", other), {"dryRun": "All"})


def test_its_role_stays_one_that_reads(cluster: PlayedHami) -> None:
    path = paths.path(RBAC, "clusterroles", None, "gpufraction-shadow")
    more = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "delete"]}]
    for rules in (more, [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]):
        with pytest.raises(KubeForbidden, match="may only get, list and watch"):
            cluster.kube.patch_merge(path, {"rules": rules})
