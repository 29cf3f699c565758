"""
A storm of pods that depend on other pods and on volumes, while those come and go, nodes are cordoned and leaders are
killed. If kube-scheduler refuses a node that we chose, something was committed after our choice.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from contract import names, pods
from playground import scenarios
from playground.cluster import Cluster
from playground.realapi.components import CONTROLLERS, SCHEDULER
from playground.shapes import gpu_node
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError, KubeNotFound
from tests.builders import PodBuilder
from tests.cluster.system import invariants, rules
from tests.cluster.system.rules import HOST, ZONE, Disks, asking, required, spread
from tests.clusters import assets_with, real
from tests.stress.storm.conftest import FAST_ELECTION
from tests.stress.storm.history import Refusal, recording
from tests.stress.storm.storm import Storm

pytestmark = [pytest.mark.storm, pytest.mark.realcluster, pytest.mark.timeout(1200)]
JSON = dict[str, Any]
RECOVERS_WITHIN = 45.0
"""
Seconds from a quiet cluster until each refused pod is bound, deleted, or without a share: kube-scheduler's backoff of
at most 10 s, `UNBOUND_AFTER`, and time for a busy machine.
"""
UNBOUND_AFTER = "3s"
NODES = tuple(
    gpu_node(f"{zone}{number}", "4 x NVIDIA A10 23028MiB", labels={ZONE: zone}) for zone in "abc" for number in (0, 1)
)
OTHERS = "others"
"""The namespace of pods without a share, which come and go."""
BOTH = {"namespaces": ["default", OTHERS]}
GROUPS = ("red", "green", "blue")
CLAIMS = tuple(f"disk-{zone}{number}" for zone in "abc" for number in range(2))


@pytest.fixture
def six_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    assets = assets_with(SCHEDULER, CONTROLLERS)
    if isinstance(assets, str):
        pytest.skip(assets)
    settings = {"allocator": (*FAST_ELECTION, "--assume-ttl", "3s", "--unbound-after", UNBOUND_AFTER)}
    directory = tmp_path_factory.mktemp("refusals")
    with Cluster(nodes=NODES, directory=directory, settings=settings, replicas=2, control_plane=real) as cluster:
        yield cluster


def depending(name: str, rng: random.Random) -> PodBuilder:
    """A pod that can be refused because of other pods, volumes or nodes, and that kube-scheduler binds."""
    group = rng.choice(GROUPS)
    match rng.randrange(6):
        case 0:
            made = asking(name, group, **required("podAntiAffinity", group, more=BOTH))
        case 1:
            made = asking(name, group, **spread(group))
        case 2:
            made = asking(name, group, **required("podAffinity", group, ZONE, {"namespaces": [OTHERS]}))
        case 3:
            made = asking(name, "user", **rules.mounting(rng.choice(CLAIMS)))
        case 4:
            made = asking(name, "user", **rules.mounting(rng.choice(("alone-0", "alone-1", "local-0", "local-1"))))
        case _:
            made = asking(name, group)
    return made.annotated(names.PLACEMENT, "affinity").spec(terminationGracePeriodSeconds=1)


def prepared(disks: Disks) -> None:
    """Volumes in zones, some for only one pod, and local volumes that wait for their first pod."""
    for claim in CLAIMS:
        disks.bound(claim, f"volume-{claim}", reach=(ZONE, claim[-2]))
    for number, zone in enumerate("ab"):
        disks.bound(f"alone-{number}", f"volume-alone-{number}", reach=(ZONE, zone), modes=("ReadWriteOncePod",))
    disks.storage_class("local", delayed=True)
    for number, node in enumerate(("a0", "c1")):
        disks.volume(f"local-{number}", reach=(HOST, node), storage_class="local")
        disks.claim(f"local-{number}", storage_class="local")


class Churn:
    """Creates and deletes pods without a share, bound by kube-scheduler or at once; cordons nodes for moments."""

    def __init__(self, kubeconfig: str, seed: int) -> None:
        self._kube = Kube.connect(kubeconfig=kubeconfig, user_agent="churn")
        self._random, self._there = random.Random(seed), list[str]()
        self._cordoned, self.made = "", 0

    def run(self, stop: threading.Event) -> None:
        """Run until stopped. The objects of that moment stay, so that a refusal stays valid."""
        while not stop.wait(0.08):
            with suppress(KubeError):
                self._change()

    def clear(self) -> None:
        """Uncordon all nodes and delete all such pods."""
        self._cordon("")
        while self._there:
            self._end(self._there[0])

    def _change(self) -> None:
        roll = self._random.random()
        if roll < 0.15:
            self._cordon(self._random.choice(("", *(node.spec.name for node in NODES))))
        elif roll < 0.55 or len(self._there) < 3:
            self._create()
        else:
            self._end(self._random.choice(self._there))

    def _create(self) -> None:
        name, group = f"other-{self.made}", self._random.choice(GROUPS)
        spec = self._random.choice(
            (
                {},
                required("podAntiAffinity", group, more=BOTH),
                required("podAntiAffinity", self._random.choice(GROUPS), ZONE, more=BOTH),
            )
        )
        node = self._random.choice(("", self._random.choice(NODES).spec.name))
        made = rules.without_share(name, node, OTHERS, terminationGracePeriodSeconds=1, **spec).labelled("app", group)
        self.made += 1
        self._kube.create(paths.pods(OTHERS), made.manifest())
        self._there.append(name)

    def _end(self, name: str) -> None:
        with suppress(KubeNotFound):
            self._kube.delete(paths.pods(OTHERS, name), rules.NOW)
        self._there.remove(name)

    def _cordon(self, node: str) -> None:
        for name, cordoned in ((self._cordoned, None), (node, True)):
            if name:
                where = paths.path("v1", "nodes", name=name)
                self._kube.patch_merge(where, {"spec": {"unschedulable": cordoned}})
        self._cordoned = node


@contextmanager
def churning(churn: Churn) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=churn.run, args=(stop,), name="churn", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)


def stuck(cluster: Cluster) -> list[str]:
    """The pods that hold a share and that kube-scheduler refuses."""
    found = [each for each in scenarios.all_pods(cluster.kube) if "deletionTimestamp" not in each["metadata"]]
    return [each["metadata"]["name"] for each in found if _is_stuck(each)]


def _is_stuck(pod: JSON) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    unscheduled = any(c["type"] == "PodScheduled" and c.get("reason") == "Unschedulable" for c in conditions)
    return unscheduled and not pod["spec"].get("nodeName") and pods.carried_allocation(pod) is not None


def recover(cluster: Cluster, storm: Storm) -> int:
    """
    Wait until no pod holds a share that kube-scheduler does not let it use. Returns how many shares the allocator took
    back. Their pods are deleted then, as their conditions tell their owners.
    """
    wait_for(lambda: not stuck(cluster), lambda: f"still refused: {stuck(cluster)}", RECOVERS_WITHIN, every=0.5)
    there = scenarios.all_pods(cluster.kube)
    withdrawn = [each["metadata"]["name"] for each in there if names.WITHDRAWN in pods.annotations_of(each)]
    for name in withdrawn:
        with suppress(KubeNotFound):
            cluster.kube.delete(paths.pods("default", name), rules.NOW)
        if name in storm.created:
            storm.created.remove(name)
    return len(withdrawn)


def shown(found: list[Refusal]) -> str:
    causes = Counter(each.cause.plural if each.cause else "nothing" for each in found if each.by_others)
    after = sum(each.cause is not None and each.cause.version > each.pinned for each in found)
    return (
        f"{len(found)} refusals, {after} of them by what was committed after the pin itself; by others {dict(causes)}"
    )


def test_what_refuses_a_pin_was_committed_after_the_decision(six_nodes: Cluster) -> None:
    cluster, kubeconfig = six_nodes, str(six_nodes.kubeconfig)
    disks = Disks(cluster.kube)
    with rules.namespace(cluster, OTHERS), recording(kubeconfig) as history:
        prepared(disks)
        storm = Storm(cluster, pods=160, deleted=0.3, strike_every=4.0, seed=17, make=depending)
        withdrawn = 0
        for gust in range(3):
            churn = Churn(kubeconfig, gust)
            with churning(churn):
                storm.blow()
            withdrawn += recover(cluster, storm)
            churn.clear()
            storm.settle(timeout=240)
            invariants.check(cluster)
            assert (storm.refused, storm.strikes > gust, churn.made > 0) == ([], True, True)
        found = history.refusals()
        print(f"\n{shown(found)}; {withdrawn} shares were taken back", *map(str, found[:10]), sep="\n")
        assert [str(each) for each in found if not each.explained] == []
        assert any(each.by_others for each in found), "nothing was refused, so nothing was shown"
        assert withdrawn > 0, "no share was taken back, so no recovery was shown"
