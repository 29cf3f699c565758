"""
A user deletes, empties, edits or restores the Lease while pods are created: at most one replica leads at any time.

Meanwhile the leader cannot read its Lease, so it relies on its last renewal for as long as it may, which is the worst
case.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from playground import scenarios
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError, KubeNotFound
from runtime.kubernetes.lease import RELEASED
from tests.builders import pod
from tests.cluster.system import invariants
from tests.cluster.trouble import requests
from tests.cluster.trouble.conftest import LEASE, RENEW, Troubled
from tests.cluster.trouble.proxy import Drop, Request

pytestmark = [pytest.mark.system, pytest.mark.long]
JSON = dict[str, Any]
Damage = Callable[[Kube, JSON], object]
"""What a user does to the Lease, given the release that a leader made before."""
_PODS = 9
"""The number of pods at a time; the cards have room for six."""
_LATE = LEASE + 10.0
"""Seconds within which a replica must lead again, on a busy machine."""


def restore(kube: Kube, record: JSON) -> None:
    """Put an earlier record into the existing Lease, as `kubectl replace` does with a backup."""
    now = kube.get(requests.LEASE)
    marks = {"annotations": record["metadata"].get("annotations") or {}}
    kube.replace(requests.LEASE, {**now, "metadata": {**now["metadata"], **marks}, "spec": record["spec"]})


def make_again(kube: Kube, record: JSON) -> None:
    """Delete the Lease and create it from a backup, as `kubectl replace --force` does."""
    kube.delete(requests.LEASE)
    metadata = {key: record["metadata"][key] for key in ("name", "annotations") if key in record["metadata"]}
    body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": record["spec"]}
    kube.create(requests.LEASE.rpartition("/")[0], body)


def edit(**fields: object) -> Damage:
    return lambda kube, _: kube.patch_merge(requests.LEASE, {"spec": fields})


def of_another(kube: Kube, release: JSON) -> None:
    """A backup from yesterday, of a leader that no longer exists."""
    yesterday = "2020-01-01T00:00:00.000000Z"
    spec = {**release["spec"], "holderIdentity": "replica-9_gone", "renewTime": yesterday, "leaseTransitions": 0}
    restore(kube, {**release, "spec": spec})


USUAL: dict[str, Damage] = {
    "deleted": lambda kube, _: kube.delete(requests.LEASE),
    "emptied": edit(holderIdentity=""),
    "a release restored": restore,
}
RARE: dict[str, Damage] = {
    "a release created again": make_again,
    "a backup of another leader": of_another,
    "a backup of this leader": lambda kube, _: make_again(kube, kube.get(requests.LEASE)),
    "as an older release": edit(holderIdentity="", leaseDurationSeconds=1),
    "a duration of a second": edit(leaseDurationSeconds=1),
    "a duration of years": edit(leaseDurationSeconds=2**31 - 1),
    "the first transition": edit(leaseTransitions=0),
    "the last transition": edit(leaseTransitions=2**31 - 1),
    "no record": edit(
        holderIdentity=None, leaseDurationSeconds=None, acquireTime=None, renewTime=None, leaseTransitions=None
    ),
}


def of_the_lease(request: Request) -> bool:
    """Every request of the election."""
    return request.path.startswith(requests.LEASE.rpartition("/")[0])


@dataclass
class Load:
    """Creates and deletes pods all the time, and watches which replica leads and what the cards hold."""

    trouble: Troubled
    kube: Kube
    created: int = 0
    looks: int = 0
    two: list[float] = field(default_factory=list)
    """When two replicas reported that they lead."""
    wrong: list[str] = field(default_factory=list)
    """Results that no pod may have."""

    def create(self, stop: threading.Event) -> None:
        """Create pods as fast as they are accepted; the oldest is deleted when there are enough."""
        for number in itertools.count():
            if stop.is_set():
                return
            try:
                asks = pod(f"load-{number}").asks("gpufraction.io/gpu-memory", "5000Mi")
                self.kube.create(paths.pods("default"), asks.manifest())
                self.created += 1
                if number >= _PODS:
                    self.kube.delete(paths.pods("default", f"load-{number - _PODS}"), {"gracePeriodSeconds": 0})
            except KubeError as error:
                self.wrong.append(str(error))

    def look(self, stop: threading.Event) -> None:
        """Check which replica leads, and whether any card is overbooked or any node has refused a pod."""
        one, other = self.trouble.allocators
        while not stop.is_set():
            began = time.monotonic()
            leads = self.trouble.leads(one) and self.trouble.leads(other) and self.trouble.leads(one)
            # If it takes longer, the first may have led twice, with the other's term in between.
            if leads and time.monotonic() - began < LEASE / 3:
                self.two.append(began)
            self.looks += 1
            if self.looks % 10 == 0:
                self.wrong += self.amiss()

    def amiss(self) -> list[str]:
        """Pods that their node refused, and cards that are overbooked."""
        found = scenarios.all_pods(self.kube)
        refused = [p["status"]["reason"] for p in found if str(p["status"].get("reason", "")).startswith("OutOf")]
        return [*refused, *invariants.overbooked(self.trouble.cluster)]


@contextmanager
def load(trouble: Troubled) -> Iterator[Load]:
    """Run the load until the end of the block. Then no two replicas led at once, and nothing was overbooked."""
    stop = threading.Event()
    made = Load(trouble, Kube.connect(kubeconfig=str(trouble.cluster.kubeconfig), user_agent="load"))
    threads = [threading.Thread(target=work, args=(stop,)) for work in (made.create, made.look)]
    for thread in threads:
        thread.start()
    try:
        yield made
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    print(f"{made.created} pods created, {made.looks} looks")
    assert (made.two, made.wrong) == ([], [])
    assert made.created > _PODS
    assert made.looks > 20


def a_release(trouble: Troubled) -> JSON:
    """A leader stops as in a rollout, and is started again. Returns the Lease as it released it."""
    leader, kube = trouble.leader(), trouble.cluster.kube
    before = kube.get(requests.LEASE)["metadata"]["resourceVersion"]
    leader.terminate()
    leader.wait()
    began = time.monotonic()
    trouble.leader()
    print(f"a released Lease: another leads {time.monotonic() - began:.1f} s later")
    leader.start()
    wait_for(lambda: trouble.answers(leader), "it is not back")
    path = requests.LEASE.rpartition("/")[0]
    with closing(kube.watch(path, resource_version=before, timeout_seconds=10)) as events:
        for event in events:
            found: JSON = event["object"]
            if RELEASED in (found["metadata"].get("annotations") or {}):
                return found
    pytest.fail("it was not released")


def one_leads_whatever_becomes_of_the_lease(trouble: Troubled, damage: Damage) -> None:
    release = a_release(trouble)
    with load(trouble):
        leader = trouble.leader()
        with trouble.fault(of_the_lease, Drop(), only=leader):
            damage(trouble.cluster.kube, release)
            took(trouble, "the leader cannot see it", lambda: not trouble.leads(leader))
            took(trouble, "the leader cannot see it")
        leader = trouble.leader()
        damage(trouble.cluster.kube, release)
        time.sleep(RENEW)  # until it has seen that, and a replica that believes that the Lease is free has taken it
        took(trouble, "the leader sees it")


def took(trouble: Troubled, what: str, so: Callable[[], bool] | None = None) -> None:
    """Wait until a replica leads, or until another condition holds, and print how long that took."""
    began = time.monotonic()
    wait_for(so or (lambda: any(map(trouble.leads, trouble.allocators))), f"{what}: it does not happen", _LATE)
    print(f"{what}: {'its term is over' if so else 'one leads'} {time.monotonic() - began:.1f} s later")


@pytest.mark.parametrize("damage", USUAL.values(), ids=USUAL)
def test_one_replica_leads_whatever_becomes_of_the_lease(trouble: Troubled, damage: Damage) -> None:
    one_leads_whatever_becomes_of_the_lease(trouble, damage)


@pytest.mark.parametrize("damage", RARE.values(), ids=RARE)
def test_one_replica_leads_whatever_else_becomes_of_the_lease(trouble: Troubled, damage: Damage) -> None:
    one_leads_whatever_becomes_of_the_lease(trouble, damage)


def test_a_lease_that_is_deleted_again_and_again_has_no_two_leaders(trouble: Troubled) -> None:
    with load(trouble):
        until = time.monotonic() + 3 * LEASE
        while time.monotonic() < until:
            with suppress(KubeNotFound):
                trouble.cluster.kube.delete(requests.LEASE)
            time.sleep(0.2)
        took(trouble, "deleted for the last time")
