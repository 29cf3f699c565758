"""All pods of a gang get their shares in one cycle, or none does; each pod learns why."""

from __future__ import annotations

from contract import names
from tests.builders import PodBuilder, node, pod
from tests.unit.allocator.apiserver import ApiServer
from tests.unit.allocator.features.gangs.played import Replica, cards, created, member, passes, placed
from tests.unit.allocator.harness import admitted

LWS = "leaderworkerset.sigs.k8s.io"


def test_all_start_once_all_are_there_and_fit() -> None:
    api = ApiServer()
    replica = Replica(api, cards(3), term=1)
    created(api, member("a", minimum=3), member("b", minimum=3))
    replica.catch_up()
    replica.cycle()
    assert placed(api) == {}
    waits = "waiting: gang train (annotation): 2 of 3 members are ready to start together; 1 not created yet"
    assert replica.said() == {"default/a": waits, "default/b": waits}
    created(api, member("c", minimum=3))
    replica.catch_up()
    replica.cycle()
    assert placed(api).keys() == {"default/a"}  # the first write, with the plan
    replica.cycle()
    assert placed(api) == {"default/a": "n0", "default/b": "n1", "default/c": "n2"}


def test_none_starts_where_the_last_does_not_fit_and_all_learn_which() -> None:
    api = ApiServer()
    replica = Replica(api, cards(2), term=1)
    created(api, *(member(name, minimum=3) for name in "abc"))
    replica.catch_up()
    replica.cycle()
    assert placed(api) == {}
    why = (
        "waiting: gang train (annotation): 2 of 3 members fit; the third (c): "
        "0 of 2 GPU nodes fit: 2 short of memory (largest free 5109 MiB, wanted 10000)"
    )
    assert replica.said() == dict.fromkeys(("default/a", "default/b", "default/c"), why)
    created(api, member("d", gang="none"))
    replica.catch_up()
    replica.cycle()
    assert placed(api) == {"default/d": "n0"}  # a waiting gang holds nothing


def test_pods_beyond_the_minimum_and_later_ones_are_placed_by_themselves() -> None:
    api = ApiServer()
    replica = Replica(api, cards(4), term=1)
    created(api, *(member(name) for name in "abc"))
    replica.catch_up()
    for _ in range(3):
        replica.cycle()
    assert placed(api) == {"default/a": "n0", "default/b": "n1", "default/c": "n2"}
    created(api, member("d"))
    replica.catch_up()
    replica.cycle()
    assert placed(api)["default/d"] == "n3"


def test_a_leader_whose_workers_are_not_created_starts_alone_after_a_while() -> None:
    """With `startupPolicy: LeaderReady` a LeaderWorkerSet creates the workers once the leader is ready."""
    api = ApiServer()
    replica = Replica(api, cards(3), term=1)
    created(api, of_set(0), of_set(0, group=1), of_set(1, group=1))
    replica.catch_up()
    passes(replica, 1.0)
    assert placed(api).keys() == {"default/l-1-0", "default/l-1-1"}, "a group that is whole waits for nothing"
    passes(replica, 29.0)
    assert placed(api).keys() == {"default/l-1-0", "default/l-1-1"}
    passes(replica, 15.0)
    assert placed(api).keys() == {"default/l-0-0", "default/l-1-0", "default/l-1-1"}
    created(api, of_set(1))
    replica.catch_up()
    passes(replica, 1.0)
    assert "2 of 3" not in replica.said()["default/l-0-1"], "the group has begun, and the worker waits for a card alone"


def of_set(worker: int, *, group: int = 0) -> PodBuilder:
    """A pod of a LeaderWorkerSet with groups of two."""
    made = pod(f"l-{group}-{worker}").asks("gpufraction.io/gpu-memory", "10000Mi").annotated(f"{LWS}/size", "2")
    labels = {"name": "l", "group-index": str(group), "worker-index": str(worker)}
    for key, value in labels.items():
        made = made.labelled(f"{LWS}/{key}", value)
    return made


def test_another_way_is_found_where_the_first_does_not_fit() -> None:
    """The small pod comes first, and takes the only card that fits the large one."""
    api = ApiServer()
    nodes = [node("big").gpus(1, mib=16384), node("small").gpus(1, mib=24576).requested(cpu=0)]
    replica = Replica(api, nodes, term=1)
    created(api, member("a", mib=16000), member("b", mib=24000))
    replica.catch_up()
    replica.cycle()
    replica.cycle()
    assert placed(api) == {"default/a": "big", "default/b": "small"}


def test_a_member_that_is_created_again_returns_to_its_card_at_once() -> None:
    api = ApiServer()
    replica = Replica(api, cards(4), term=1)
    created(api, *(member(name) for name in "ab"))
    replica.catch_up()
    replica.cycle()
    replica.cycle()
    assert placed(api) == {"default/a": "n0", "default/b": "n1"}
    api.delete("default/b")
    created(api, member("b2"))
    replica.catch_up()
    replica.cycle()
    assert placed(api) == {"default/a": "n0", "default/b2": "n1"}


def test_a_pod_without_a_gang_is_placed_as_before() -> None:
    api = ApiServer()
    replica = Replica(api, cards(1), term=1)
    alone = member("a").annotated(names.GANG, "none")
    api.create(admitted(alone, gated=True))
    replica.catch_up()
    replica.cycle()
    assert placed(api) == {"default/a": "n0"}
    assert names.GANG_PLAN not in api.pods["default/a"]["metadata"]["annotations"]
