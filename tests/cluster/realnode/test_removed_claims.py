"""
ResourceClaims that an administrator removes, on a real node: their pods continue, and nothing is left over.

The administrator is a member of system:masters. The policies refuse all other users
(tests/cluster/system/test_delivery_by_claims.py).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import pytest

from contract import names, pods
from contract.encoding import resourceclaims
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeNotFound
from tests.cluster.realnode.cluster import JSON, UUIDS, RealNodeCluster, container
from tests.cluster.realnode.test_claims import await_restart, claiming, claims, end, prepared
from tests.cluster.realnode.test_container_view import share

__all__ = ["claiming"]
pytestmark = [pytest.mark.realnode, pytest.mark.timeout(600)]
_MADE_AGAIN = 70.0
"""Seconds: the allocator looks once a minute."""
_STARTED = _MADE_AGAIN + 110.0
"""Kubelet tries again after a pause that grows to about two minutes."""
_RECREATED = "old ResourceClaim with same name"
"""What kubelet says about a claim that was created again after kubelet had begun to prepare it."""


def remove(node: RealNodeCluster) -> set[str]:
    """Remove every claim. Returns their uids."""
    removed = set()
    for claim in claims(node):
        with contextlib.suppress(KubeNotFound):
            node.kube.delete(paths.resourceclaims("default", claim["metadata"]["name"]))
            removed.add(claim["metadata"]["uid"])
    return removed


@contextlib.contextmanager
def removing(node: RealNodeCluster) -> Iterator[list[str]]:
    """Remove every claim as soon as it exists, repeatedly. Yields the uids."""
    ended, removed = threading.Event(), list[str]()

    def remover() -> None:
        while not ended.wait(0.01):
            removed.extend(remove(node))

    thread = threading.Thread(target=remover, daemon=True)
    thread.start()
    try:
        yield removed
    finally:
        ended.set()
        thread.join()


def found(node: RealNodeCluster, name: str) -> JSON:
    return node.kube.get(paths.pods("default", name))


def uid_of(node: RealNodeCluster, name: str) -> str:
    """The uid of the pod's claim; empty if no claim is allocated."""
    owner = pods.uid(found(node, name))
    return next(
        (
            claim["metadata"]["uid"]
            for claim in claims(node)
            if resourceclaims.owner_uid(claim) == owner and (claim.get("status") or {}).get("allocation")
        ),
        "",
    )


def card_of(node: RealNodeCluster, name: str) -> int:
    """The card in the pod's annotations."""
    allocation = pods.carried_allocation(found(node, name))
    assert allocation is not None
    return UUIDS.index(allocation.containers[0].shares[0].uuid)


def ready(node: RealNodeCluster, name: str) -> bool:
    started = (found(node, name).get("status") or {}).get("containerStatuses") or [{}]
    return bool(started[0].get("ready"))


def test_pods_whose_claims_are_removed_start_restart_and_say_when_they_cannot(claiming: RealNodeCluster) -> None:
    """One pod runs, and one is bound while kubelet is away. Then there is no claim for up to a minute."""
    claiming.submit("runs", container(gpu_memory="14Gi"))
    before = claiming.running("runs")
    with claiming.node.without_kubelet():
        claiming.submit("bound", container(gpu_memory="4Gi"))
        wait_for(lambda: found(claiming, "bound")["spec"].get("nodeName"), "it is not bound", 30)
        old = {name: uid_of(claiming, name) for name in ("runs", "bound")}
        assert remove(claiming) == set(old.values())
        removed = time.monotonic()
    claiming.node.end(claiming.node.process_of(before))
    await_restart(claiming, "runs")
    assert claiming.inside("runs", restart=1) == share(14336, 0)

    wait_for(
        lambda: all(uid_of(claiming, name) not in ("", old[name]) for name in old),
        lambda: f"not made again: {claims(claiming)}",
        removed + _MADE_AGAIN - time.monotonic(),
    )
    new = {name: uid_of(claiming, name) for name in old}
    wait_for(lambda: ready(claiming, "bound"), lambda: f"it does not start: {claiming.events('bound')}", _STARTED)
    assert claiming.inside("bound") == share(4096, 1)
    assert prepared(claiming) == {old["runs"], new["bound"]}

    if claiming.node.runtime.name == "cri-o":
        # `end` ends no sandbox there: a sandbox has no separate process.
        nothing_is_left(claiming)
        return
    # For the next sandbox kubelet compares the claim with the one that it prepared.
    end(claiming, claiming.running("runs"))
    wait_for(
        lambda: any(_RECREATED in line for line in claiming.events("runs")),
        lambda: f"the pod does not say why: {claiming.events('runs')}",
        90,
        every=0.5,
    )
    assert not ready(claiming, "runs")
    claiming.delete("runs")
    claiming.await_deleted("runs")
    claiming.submit("again", container(gpu_memory="14Gi"))
    assert claiming.inside("again") == share(14336, 0)
    assert prepared(claiming) == {uid_of(claiming, "again"), new["bound"]}
    nothing_is_left(claiming)


def nothing_is_left(node: RealNodeCluster) -> None:
    node.clear()
    wait_for(lambda: not claims(node), lambda: f"claims are left over: {claims(node)}")
    wait_for(lambda: not prepared(node), lambda: f"{prepared(node)} is prepared")


def starts(node: RealNodeCluster, name: str) -> bool:
    """Whether the pod starts, on its own card. If not, it says that it must be deleted and created again."""
    wait_for(
        lambda: ready(node, name) or any(_RECREATED in line for line in node.events(name)),
        lambda: f"{name} neither starts nor says why: {node.events(name)}",
        _STARTED,
    )
    if not ready(node, name):
        return False
    assert node.inside(name) == share(3072, card_of(node, name))
    return True


def test_claims_that_are_removed_all_the_time_while_pods_wait_and_start(claiming: RealNodeCluster) -> None:
    """Before the gate is removed, before kubelet asks, and afterwards. Each container gets only its pod's card."""
    for name in ("full-0", "full-1"):
        claiming.submit(name, container(gpu_memory="14Gi"))
        claiming.running(name)
    waiting = [f"w{number}" for number in range(4)]
    for name in waiting:
        claiming.submit(name, container(gpu_memory="3Gi"))
        claiming.waiting(name)
    with removing(claiming) as removed:
        for name in ("full-0", "full-1"):
            claiming.delete(name)
        wait_for(
            lambda: all(names.GATE not in pods.gates(found(claiming, name)) for name in waiting), "they still wait", 90
        )
        wait_for(lambda: len(removed) >= len(waiting), lambda: f"only {removed} were there to remove", 90)
    stuck = [name for name in waiting if not starts(claiming, name)]
    for name in stuck:
        claiming.delete(name)
        claiming.await_deleted(name)
        claiming.submit(name, container(gpu_memory="3Gi"))
        assert claiming.inside(name) == share(3072, card_of(claiming, name))
    assert {uid_of(claiming, name) for name in stuck} <= prepared(claiming)
    nothing_is_left(claiming)
