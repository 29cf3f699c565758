"""Each invariant and goal about claims can fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from allocator.features.elasticgpuclaims import objects
from contract import names
from contract.encoding import codec
from contract.model import Allocation, ContainerAllocation, GpuShare
from playground.api.store.store import Change
from tests.builders import node, pod
from tests.simulation.features import claims
from tests.unit.allocator.harness import SchedulerHarness, admitted
from tests.unit.simulation_features.fakes import FakeStore, change, run

JSON = dict[str, Any]
SHARES = "elasticgpus.elasticgpu.io"
CARD = GpuShare(uuid="GPU-n-0", index=0, memory=1 << 30, cores=0, gpu_memory=16 << 30)


def share(name: str = "egpu-c1", phase: str = objects.BOUND, **metadata: Any) -> JSON:
    allocation = Allocation("a1", "n", (ContainerAllocation("claim", (CARD,)),), name)
    annotations = {str(names.ALLOCATION): codec.allocation_to_text(allocation), str(names.RECLAIM): objects.DELETE}
    return {
        "metadata": {
            "name": name,
            "uid": f"u-{name}",
            "annotations": annotations,
            "finalizers": [str(names.SHARE_FINALIZER)],
            **metadata,
        },
        "spec": {"claimRef": {"namespace": "default", "name": "c", "uid": "c1"}},
        "status": {"phase": phase, "reason": "Bound"},
    }


def claim(phase: str = objects.BOUND, **metadata: Any) -> JSON:
    return {
        "metadata": {
            "name": "c",
            "namespace": "default",
            "uid": "c1",
            "finalizers": [str(names.CLAIM_FINALIZER)],
            **metadata,
        },
        "spec": {"elasticGPUName": "egpu-c1"},
        "status": {"phase": phase, "reason": "Bound"},
    }


def user(uuid: str = "GPU-n-0") -> JSON:
    card = GpuShare(uuid=uuid, index=0, memory=1 << 30, cores=0, gpu_memory=16 << 30)
    allocation = Allocation("a2", "n", (ContainerAllocation("main", (card,)),), "egpu-c1")
    asking = pod("uses").annotated("egpuc.elasticgpu.io/data", "c").on("n").uid("u-uses")
    return admitted(asking, allocation=allocation)


def invariants(store: FakeStore) -> list[Callable[[Change], str | None]]:
    found = run(store)
    return [each.make(found) for each in claims.FEATURE.invariants]


def told(store: FakeStore, *changes: Change) -> list[str]:
    """What the invariants report about the changes."""
    holding = invariants(store)
    return [wrong for each in changes for holds in holding if (wrong := holds(each)) is not None]


def left(**objects_of: list[JSON]) -> list[str]:
    """What the goal reports about these."""
    goal = claims.FEATURE.goals[0]
    return goal.missing(run(FakeStore(**objects_of)))


def test_a_claim_with_two_shares_is_found() -> None:
    store = FakeStore()
    assert told(store, change(SHARES, share()), change(SHARES, share())) == []
    assert told(store, change(SHARES, share()), change(SHARES, share("egpu-other"))) == [
        "claim default/c has egpu-c1 and egpu-other"
    ]
    assert told(store, change(SHARES, share(), "DELETED"), change(SHARES, share("egpu-other"))) == []


def test_a_share_that_goes_while_a_pod_has_it_is_found() -> None:
    store = FakeStore(elasticgpus__elasticgpu__io=[share()])
    gone = change(SHARES, share(), "DELETED")
    assert told(store, change("pods", user()), change("pods", user(), "DELETED"), gone) == []
    assert told(store, change("pods", user()), gone) == ["ElasticGPU egpu-c1 is gone, and default/uses has its share"]


def test_a_pod_with_another_card_than_its_claim_is_found() -> None:
    store = FakeStore(elasticgpus__elasticgpu__io=[share()])
    assert "has n ['GPU-n-1'] of egpu-c1" in told(store, change("pods", user("GPU-n-1")))[0]
    assert "which is not there" in told(FakeStore(), change("pods", user()))[0]


def test_what_is_left_over_is_found() -> None:
    at = {"deletionTimestamp": "2030-01-01T00:00:00Z"}
    assert left(elasticgpus__elasticgpu__io=[share()], elasticgpuclaims__elasticgpu__io=[claim()]) == []
    assert left(elasticgpus__elasticgpu__io=[share()]) == ["ElasticGPU egpu-c1 is left over from claim default/c"]
    assert "is still there" in left(elasticgpus__elasticgpu__io=[share(**at)])[0]
    assert "is still there" in left(elasticgpuclaims__elasticgpu__io=[claim(**at)])[0]
    used = left(elasticgpus__elasticgpu__io=[share()], elasticgpuclaims__elasticgpu__io=[claim(**at)], pods=[user()])
    assert used == []


def test_a_claim_whose_status_is_not_so_is_found() -> None:
    assert "says nothing" in left(elasticgpuclaims__elasticgpu__io=[claim("")])[0]
    assert "not there" in left(elasticgpuclaims__elasticgpu__io=[claim()])[0]
    pending = left(elasticgpuclaims__elasticgpu__io=[claim(objects.PENDING)], elasticgpus__elasticgpu__io=[share()])
    assert "is PublishedStatus" in pending[0]
    loose = left(elasticgpuclaims__elasticgpu__io=[claim(finalizers=[])], elasticgpus__elasticgpu__io=[share()])
    assert "is not bound to it" in loose[0]


def test_a_claim_that_waits_beside_a_card_with_room_is_found() -> None:
    waiting = claim(objects.PENDING, finalizers=[])
    waiting["spec"] = {
        "elasticGPUClassName": "at-once",
        "resources": {"requests": {f"{objects.PROVISIONER}/gpu-memory": 10}},
    }
    of = {"metadata": {"name": "at-once"}, "provisioner": objects.PROVISIONER}
    store = FakeStore(elasticgpuclaims__elasticgpu__io=[waiting], elasticgpuclasses__elasticgpu__io=[of])
    goal = claims.FEATURE.goals[1]
    found = goal.missing(run(store, leader=SchedulerHarness([node("n").gpus(1)]).controller))
    assert "and GPU-n-0 has room" in found[0]
    assert goal.missing(run(store, leader=SchedulerHarness([node("n").gpus(1).cordoned()]).controller)) == []
    assert goal.missing(run(store, leader=SchedulerHarness([node("n").gpus(1, mib=4096)]).controller)) == []
