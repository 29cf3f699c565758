"""A gang that has waited longer than the bound has nodes reserved for it, and single pods do not starve it."""

from __future__ import annotations

from tests.builders import PodBuilder, pod
from tests.unit.allocator.apiserver import ApiServer
from tests.unit.allocator.features.gangs.played import Replica, cards, created, member, passes, placed

BOUND = 300.0
"""The default of `starvation_timeout`."""


def other(name: str) -> PodBuilder:
    """A pod of another namespace that belongs to no gang."""
    return pod(name, "others").asks("gpufraction.io/gpu-memory", "10000Mi")


def test_a_stream_of_single_pods_does_not_starve_a_gang() -> None:
    """In each step one pod ends, and another pod of another namespace arrives before the next one ends."""
    api = ApiServer()
    replica = Replica(api, cards(3), term=1)
    created(api, *(other(f"s{i}") for i in range(3)))
    replica.catch_up()
    replica.cycle()
    assert len(placed(api)) == 3
    created(api, *(member(f"g{i}", minimum=3) for i in range(3)))
    replica.catch_up()
    passes(replica, 1.0)
    started = 0
    for step in range(3, 40):
        singles = [key for key in placed(api) if key.startswith("others/")]
        if not singles:
            break
        api.delete(singles[0])
        created(api, other(f"s{step}"))
        replica.catch_up()
        passes(replica, 60.0)
        started = step
    assert {"default/g0", "default/g1", "default/g2"} <= placed(api).keys()
    assert started < 3 + 2 * BOUND / 60 + 3


def test_no_more_nodes_are_reserved_than_the_gang_needs() -> None:
    api = ApiServer()
    replica = Replica(api, cards(4), term=1)
    created(api, *(other(f"s{i}") for i in range(4)))
    created(api, *(member(f"g{i}") for i in range(2)))
    replica.catch_up()
    passes(replica, 1.0)
    passes(replica, BOUND + 1)
    held = replica.controller.reserved_nodes()
    assert [(one.node, one.namespace, one.gang) for one in held] == [
        ("n0", "default", "default/annotation/train"),
        ("n1", "default", "default/annotation/train"),
    ]


def test_no_node_is_reserved_for_a_gang_of_which_pods_are_missing() -> None:
    api = ApiServer()
    replica = Replica(api, cards(2), term=1)
    created(api, member("g0"))
    replica.catch_up()
    passes(replica, 1.0)
    passes(replica, BOUND + 1)
    assert replica.controller.reserved_nodes() == ()
