"""
C4: whichever replica is asked serves a pod that names its node, on that node, or gives a reason. The answer does not
depend on chance, and it is "the allocator does not answer" only if that is true.
"""

from __future__ import annotations

import pytest

from playground import scenarios
from runtime.kubernetes.client import KubeForbidden
from tests.builders import PodBuilder, pod
from tests.cluster.hostile.attack import Hostile
from tests.cluster.hostile.replicas import asked, asking

pytestmark = [pytest.mark.hostile, pytest.mark.long]
EITHER = pytest.mark.parametrize("leads", [True, False], ids=["the leader is asked", "a follower is asked"])


def share(name: str, mib: int = 4096) -> PodBuilder:
    return pod(name).asks("gpufraction.io/gpu-memory", f"{mib}Mi")


@EITHER
def test_bound_pods_run_on_their_node(hostile: Hostile, leads: bool) -> None:
    with asking(hostile, leads=leads):
        for number in range(3):
            hostile.create(share(f"bound-{number}").on("t4"))
        found = scenarios.settled(hostile.kube, 3, running=3)
    assert [each["spec"]["nodeName"] for each in found] == ["t4"] * 3


@EITHER
def test_a_full_node_is_reported_as_full(hostile: Hostile, leads: bool) -> None:
    with asking(hostile, leads=True):
        for number in range(2):
            hostile.create(share(f"fills-{number}", 15000).on("t4"))
    scenarios.settled(hostile.kube, 2, running=2)
    with asking(hostile, leads=leads):
        with pytest.raises(KubeForbidden, match=r"found 't4', which cannot take the pod now: .* short of memory"):
            hostile.create(share("late").on("t4"))
        with pytest.raises(KubeForbidden, match=r"found 'nowhere', which cannot take the pod now: "):
            hostile.create(share("lost").on("nowhere"))
        with pytest.raises(KubeForbidden, match="no GPU of this cluster can ever serve it"):
            hostile.create(share("huge", 1 << 20).on("t4"))


@EITHER
def test_the_share_of_a_claim_is_reported_in_the_same_way(hostile: Hostile, leads: bool) -> None:
    claimed = pod("claims").annotated("egpuc.elasticgpu.io/a", "absent").container("main").on("t4")
    with (
        asking(hostile, leads=leads),
        pytest.raises(KubeForbidden, match="cannot take the pod now: ElasticGPUClaims are"),
    ):
        hostile.create(claimed)


def test_questions_to_a_follower_are_counted(hostile: Hostile) -> None:
    with asking(hostile, leads=False) as number:
        before = asked(hostile, number)
        made = hostile.create(share("bound").on("t4"))
        after = asked(hostile, number)
    assert "nodeName" not in made["spec"], "another replica gives the share, so the pod waits for it"
    assert after.pop("not-leading") == before.pop("not-leading", 0) + 1
    assert after == before
    (found,) = scenarios.settled(hostile.kube, 1, running=1)
    assert found["spec"]["nodeName"] == "t4"


def test_a_pod_of_another_scheduler_gets_a_true_condition(hostile: Hostile) -> None:
    """Nothing would bind it if it waited."""
    with asking(hostile, leads=False):
        with pytest.raises(KubeForbidden, match="only the leading replica can place the pod") as refused:
            hostile.create(share("other").on("t4").spec(schedulerName="others"))
        assert "does not answer" not in str(refused.value)
    with asking(hostile, leads=True):
        # Another attack on this cluster may have put the namespace on probation (`unconfirmed.PROBATION`).
        hostile.create_once_allowed(share("other").on("t4").spec(schedulerName="others"), within=90.0)
    scenarios.settled(hostile.kube, 1, running=1)
