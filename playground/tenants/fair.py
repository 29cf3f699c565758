"""One team creates many pods first, and another creates a few later. The fair queue serves the teams in turn."""

from __future__ import annotations

from playground.cluster import Cluster
from playground.tenants.scenes import Scene, Seen, create, message, running, team
from playground.waiting import wait_for
from runtime.kubernetes import paths

_CARD = {"gpufraction.io/gpu-memory": "10Gi"}
"""More than half of a T4, so that two pods fill the node."""
_ON_T4 = {"nodeSelector": {"gpushare": "true"}}
_TEAMS = ("team-a", "team-b")
_WANT = ("team-b", "team-b", "team-a")
_MANY, _FEW, _LATE = tuple(f"many-{number}" for number in range(5)), ("few-0", "few-1"), "many-late"


def _show(cluster: Cluster) -> Seen:
    for name in _TEAMS:
        team(cluster, name)
    for name in ("holds-0", "holds-1"):
        create(cluster, "team-a", name, _CARD, spec=_ON_T4)
    wait_for(lambda: len(running(cluster, "team-a")) == 2, "team-a does not hold both cards")
    for namespace, created in (("team-a", _MANY), ("team-b", _FEW), ("team-a", (_LATE,))):
        for name in created:
            create(cluster, namespace, name, _CARD, spec=_ON_T4)
            message(cluster, namespace, name)
    lines = (f"the pods of team-a are told: {message(cluster, 'team-a', _LATE)}",)
    ends = (("team-a", "holds-0"), ("team-b", "few-0"), ("team-a", "holds-1"))
    served = [_freed(cluster, namespace, name) for namespace, name in ends]
    return Seen(f"free cards go to {', '.join(_WANT)}", f"free cards go to {', '.join(served)}", lines)


def _freed(cluster: Cluster, namespace: str, name: str) -> str:
    """Delete this pod. Returns the team that gets its card."""
    before = {each: running(cluster, each) for each in _TEAMS}
    cluster.kube.delete(paths.pods(namespace, name))

    def served() -> str:
        return next((each for each in _TEAMS if running(cluster, each) - before[each]), "")

    return wait_for(served, f"nobody gets the card of {namespace}/{name}")


FAIR = Scene(
    "A fair queue: 5 pods of team-a wait, then 2 of team-b come",
    _show,
    settings={"allocator": ("--queue-order=fair",)},
)
