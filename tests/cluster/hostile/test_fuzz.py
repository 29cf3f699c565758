"""
Thousands of generated pods that are really created, and thousands of reviews that no API server sends, at the same
time. Afterwards the same processes run within their memory, nothing stays reserved, and the neighbour's pods were
placed as before.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from contract import names
from playground import scenarios
from playground.embedded import ControlPlane
from playground.machinery.kubelet.gpuruntime import NodeGpus
from playground.shapes import DEMO, gpu_node
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeError, KubeNotFound
from tests.builders import PodBuilder, pod
from tests.cluster.hostile import madeup, strangers
from tests.cluster.hostile.attack import ASSUME_TTL, DELAY, NEIGHBOUR, TENANT, Hostile, hostile_cluster, unharmed
from tests.clusters import control_planes

pytestmark = [pytest.mark.hostile, pytest.mark.storm, pytest.mark.timeout(600)]

SEED = int(os.environ.get("FUZZ_SEED", "1"))
"""Another seed tests other pods."""
MADE_UP, CREATIONS, REVIEWS = 800, 2_000, 3_000
SECONDS = 90.0
PACE = 0.02
"""
Seconds between two creations of one thread, so that the test measures the system and not the API server's capacity.
"""
_OUR_LOAD = 5.0
"""Seconds that this test alone takes on two cores."""
AT_ONCE = 120
"""Generated pods that exist at the same time."""
THEIRS = gpu_node("theirs", "2 x Tesla T4 15109MiB", labels={"for": "neighbour"}, taints=("for=neighbour:NoSchedule",))
"""A node that no generated pod tolerates, so that the neighbour waits for nothing but gpufraction."""


@pytest.fixture(scope="module", params=control_planes(long=True))
def fuzzed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    make: Callable[[Callable[[str], NodeGpus]], ControlPlane] = request.param
    yield from hostile_cluster(make, tmp_path_factory.mktemp("fuzz"), nodes=(*DEMO, THEIRS))


@pytest.fixture
def hostile(fuzzed: Hostile) -> Iterator[Hostile]:
    yield from unharmed(fuzzed)


class Tenant:
    """Creates generated pods and deletes them."""

    def __init__(self, hostile: Hostile, pods: list[madeup.JSON], number: int, seed: int) -> None:
        self.found: Counter[str] = Counter()
        self._hostile, self._pods = hostile, madeup.to_create(pods, number, seed)
        self._until = time.monotonic() + SECONDS
        self._prefix = f"t{seed}"
        self.thread = threading.Thread(target=self._run, name=f"tenant-{seed}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        there: list[str] = []
        for made in self._pods:
            if time.monotonic() > self._until:
                break
            made["metadata"]["name"] = f"{self._prefix}-{made['metadata']['name']}"
            try:
                self._hostile.kube.create(paths.pods(TENANT), made)
                there.append(made["metadata"]["name"])
                self.found["created"] += 1
            except (KubeError, ValueError) as error:  # an invalid character cannot even be sent
                self.found[type(error).__name__] += 1
            if len(there) > AT_ONCE // 2:
                self._remove(there.pop(0))
            time.sleep(PACE)  # the pace of the attack
        for name in there:
            self._remove(name)

    def _remove(self, name: str) -> None:
        try:
            self._hostile.kube.delete(paths.pods(TENANT, name), {"gracePeriodSeconds": 0})
        except KubeNotFound:
            self.found["gone"] += 1


class Neighbour:
    """Creates pods in turn and measures: one that requests a share, until it is placed, and one that requests none."""

    def __init__(self, hostile: Hostile, when: str) -> None:
        self._hostile, self._when, self._number = hostile, when, 0
        self.asking: list[float] = []
        """How long each took to be placed, in seconds."""
        self.plain: list[float] = []
        """How long the creation of each took. An increase here is due to the API server and the machine."""

    def measure(self) -> None:
        self.plain.append(self._created(pod("plain"), placed=False))
        self.asking.append(self._created(pod("asking").asks("gpufraction.io/gpu-memory", "1Gi"), placed=True))

    def _created(self, made: PodBuilder, *, placed: bool) -> float:
        self._number += 1
        manifest = made.manifest()
        name = f"{manifest['metadata']['name']}-{self._when}-{self._number}"
        manifest["metadata"] |= {"name": name, "namespace": NEIGHBOUR}
        manifest["spec"]["nodeSelector"] = {"for": "neighbour"}
        manifest["spec"]["tolerations"] = [{"key": "for", "operator": "Exists"}]
        started = time.monotonic()
        self._hostile.kube.create(paths.pods(NEIGHBOUR), manifest)
        path = paths.pods(NEIGHBOUR, name)
        if placed:
            wait_for(
                lambda: names.ALLOCATION in self._hostile.kube.get(path)["metadata"].get("annotations", {}),
                lambda: f"the neighbour's pod is not placed: {scenarios.shown([self._hostile.kube.get(path)])}",
            )
        took = time.monotonic() - started
        self._hostile.kube.delete(path, {"gracePeriodSeconds": 0})
        return took

    def __str__(self) -> str:
        return ", ".join(
            f"{what} {_summary(times)}" for what, times in (("asking", self.asking), ("plain", self.plain))
        )


def _summary(times: list[float]) -> str:
    ordered = sorted(times)
    return f"{ordered[len(ordered) // 2]:.2f} s (at most {ordered[-1]:.2f} s, of {len(ordered)})"


def _others_work() -> float:
    """How much slower this machine is for other programs' work; 1 if it has everything that this test needs."""
    return max(1.0, (os.getloadavg()[0] - _OUR_LOAD) / (os.cpu_count() or 1))


def test_made_up_pods_and_reviews_leave_nothing_and_delay_nobody(hostile: Hostile) -> None:
    """A1, A2, A3, A4: all kinds of invented input at the same time."""
    pods = madeup.pods(MADE_UP)
    Neighbour(hostile, "first").measure()  # the first one finds cold caches
    before, during = Neighbour(hostile, "before"), Neighbour(hostile, "during")
    for _ in range(10):
        before.measure()
    with strangers.Crowd(hostile, 4, madeup.reviews(pods, REVIEWS, SEED), pace=4 * SECONDS / REVIEWS) as crowd:
        tenants = [Tenant(hostile, pods, CREATIONS // 2, SEED + number) for number in range(2)]
        while any(tenant.thread.is_alive() for tenant in tenants):
            during.measure()
    found = sum((tenant.found for tenant in tenants), Counter[str]())
    peaks = {name: f"{peak >> 20} MiB" for name, peak in hostile.footprint.peaks.items()}
    print(f"created: {dict(found)}\nreviews: {dict(crowd.found)}\nbefore: {before}\nmeanwhile: {during}\n{peaks}")
    assert found["created"] > 200
    # An internal error would mean that a webhook did not answer.
    assert set(found) <= {"created", "gone", "KubeInvalid", "KubeForbidden", "UnicodeEncodeError"}, found
    assert set(crowd.found) <= {"200", "400", "413"}, crowd.found
    slower = max(0.0, max(during.plain) - max(before.plain))
    assert max(during.asking) - max(before.asking) < DELAY * _others_work() + slower
    time.sleep(2 * ASSUME_TTL)  # whatever was reserved must be released by now
    assumed = 'gpufraction_reservations{state="assumed"}'
    assert [hostile.figures(replica.number)[assumed] for replica in hostile.cluster.replicas] == [0.0, 0.0]
    assert strangers.probes_answer(hostile) == []
    assert strangers.complaints(hostile) == []
