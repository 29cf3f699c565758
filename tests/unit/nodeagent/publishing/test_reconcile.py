"""The pure core: what is written, and when. test_reconcile_converges tests that it converges."""

from __future__ import annotations

from dataclasses import replace

import pytest

from contract.nodes.capacity import Amounts
from nodeagent.publishing.reconcile import (
    LABELS,
    AdoptObject,
    CreateObject,
    History,
    NodeView,
    ObjectView,
    Published,
    PublishingPace,
    RemoveTaints,
    WriteCapacity,
    WriteStatus,
    Written,
    jittered,
    node_view,
    object_view,
    reconcile,
    settled,
)
from nodeagent.publishing.status import JSON, Desired, Terms, content_of, desired, status_of
from tests.unit.nodeagent.builders import BLIND, T4, card, observation

PACE = PublishingPace(heartbeat=300, rewrite=10)
NOW = 1_000_000.0
WANTED = desired("n1", observation(card(0)))
SUM = Amounts(T4, 100)
STATUS = status_of(WANTED, previous={}, now=NOW)
NODE = NodeView("uid-1", SUM, SUM)
OBJECT = ObjectView("uid-1", LABELS, STATUS)
METADATA = {
    "metadata": {
        "name": "n1",
        "labels": LABELS,
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-1"}],
    }
}
CAPACITY = WriteCapacity(
    {
        "status": {
            "capacity": {"gpufraction.io/gpu-memory": "15109Mi", "gpufraction.io/gpu-cores": "100"},
            "allocatable": {"gpufraction.io/gpu-memory": "15109Mi", "gpufraction.io/gpu-cores": "100"},
        }
    }
)


def write(wanted: Desired, previous: JSON, now: float) -> WriteStatus:
    return WriteStatus({"status": status_of(wanted, previous=previous, now=now)})


STARTUP = {"key": "startup-taint.cluster-autoscaler.kubernetes.io/gpufraction", "value": "true", "effect": "NoSchedule"}
HARSH = {**STARTUP, "effect": "NoExecute"}
TAINTED = replace(NODE, startup_taints=((1, STARTUP),))
REMOVAL = RemoveTaints(
    ({"op": "test", "path": "/spec/taints/1", "value": STARTUP}, {"op": "remove", "path": "/spec/taints/1"})
)
TAKES_OFF = Terms(startup_taint=True)
STARTS = desired("n1", observation(card(0)), terms=TAKES_OFF)
WITHHELD = replace(TAKES_OFF, shared=frozenset(), not_shared="a plugin has them")


SICK = desired("n1", observation(card(0, healthy=False, reason="lost")))
CASES = {
    "nothing is there: the object, the capacity, and its status once kubelet has that": (
        WANTED,
        Published(NodeView("uid-1", Amounts(), Amounts()), None),
        NOW,
        (
            CreateObject({"apiVersion": "gpufraction.io/v1alpha1", "kind": "GPUNode", **METADATA}),
            CAPACITY,
            write(WANTED, {}, NOW),
        ),
    ),
    "less is there than was: the status, and then the capacity": (
        WANTED,
        Published(NodeView("uid-1", Amounts(2 * T4, 200), Amounts(2 * T4, 200)), replace(OBJECT, status={})),
        NOW,
        (write(WANTED, {}, NOW), CAPACITY),
    ),
    "all is there: nothing": (WANTED, Published(NODE, OBJECT), NOW + 299, ()),
    "the heartbeat is due: the status alone": (
        WANTED,
        Published(NODE, OBJECT),
        NOW + 300,
        (write(WANTED, STATUS, NOW + 300),),
    ),
    "a time of observation in the future counts as none": (
        WANTED,
        Published(NODE, OBJECT),
        NOW - 60,
        (write(WANTED, STATUS, NOW - 60),),
    ),
    "a card fell ill: the status at once, the capacity stays": (
        SICK,
        Published(NODE, OBJECT),
        NOW + 1,
        (write(SICK, STATUS, NOW + 1),),
    ),
    "a kubelet wiped the capacity: it is written again": (
        WANTED,
        Published(NodeView("uid-1", Amounts(), Amounts()), OBJECT),
        NOW + 1,
        (CAPACITY,),
    ),
    "only the allocatable amount is off: both are written": (
        WANTED,
        Published(NodeView("uid-1", SUM, Amounts(T4, 0)), OBJECT),
        NOW + 1,
        (CAPACITY,),
    ),
    "the node was registered anew under its name: the object changes its owner": (
        WANTED,
        Published(replace(NODE, uid="uid-2"), OBJECT),
        NOW + 1,
        (
            AdoptObject(
                {
                    "metadata": {
                        "name": "n1",
                        "labels": LABELS,
                        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-2"}],
                    }
                }
            ),
        ),
    ),
    "there is no such node: nothing, since nothing would own the object": (
        WANTED,
        Published(None, None),
        NOW,
        (),
    ),
    "no GPU on a node that never had any: the object tells, the node is left alone": (
        desired("n1", BLIND),
        Published(NodeView("uid-1", Amounts(), Amounts()), replace(OBJECT, status={})),
        NOW,
        (write(desired("n1", BLIND), {}, NOW),),
    ),
    "all is there and the startup taint is on: it is taken off": (
        STARTS,
        Published(TAINTED, OBJECT),
        NOW + 1,
        (REMOVAL,),
    ),
    "nothing is there: the startup taint goes last": (
        STARTS,
        Published(NodeView("uid-1", Amounts(), Amounts(), startup_taints=((1, STARTUP),)), None),
        NOW,
        (
            CreateObject({"apiVersion": "gpufraction.io/v1alpha1", "kind": "GPUNode", **METADATA}),
            CAPACITY,
            write(WANTED, {}, NOW),
            REMOVAL,
        ),
    ),
    "of several taints of that name the last goes first, as the others keep their positions": (
        STARTS,
        Published(replace(NODE, startup_taints=((0, STARTUP), (2, HARSH))), OBJECT),
        NOW + 1,
        (
            RemoveTaints(
                (
                    {"op": "test", "path": "/spec/taints/2", "value": HARSH},
                    {"op": "remove", "path": "/spec/taints/2"},
                    {"op": "test", "path": "/spec/taints/0", "value": STARTUP},
                    {"op": "remove", "path": "/spec/taints/0"},
                )
            ),
        ),
    ),
    "an agent without the right leaves the startup taint": (WANTED, Published(TAINTED, OBJECT), NOW + 1, ()),
    "a node without a GPU keeps the startup taint": (
        desired("n1", BLIND, terms=TAKES_OFF),
        Published(replace(TAINTED, capacity=Amounts(), allocatable=Amounts()), replace(OBJECT, status={})),
        NOW,
        (write(desired("n1", BLIND), {}, NOW),),
    ),
    "a node whose GPUs are the device plugin's keeps the startup taint": (
        desired("n1", observation(card(0)), terms=WITHHELD),
        Published(replace(TAINTED, capacity=Amounts(), allocatable=Amounts()), replace(OBJECT, status={})),
        NOW,
        (write(desired("n1", observation(card(0)), terms=WITHHELD), {}, NOW),),
    ),
    "a damaged status is replaced": (
        WANTED,
        Published(NODE, replace(OBJECT, status={"gpus": "none", "conditions": 3})),
        NOW,
        (write(WANTED, {}, NOW),),
    ),
}


@pytest.mark.parametrize(("wanted", "published", "now", "want"), CASES.values(), ids=CASES.keys())
def test_what_is_written(wanted: Desired, published: Published, now: float, want: tuple[object, ...]) -> None:
    assert reconcile(wanted, published, History(), now, PACE).actions == want


def test_what_is_undone_again_and_again_is_written_less_and_less_often() -> None:
    wiped = Published(NodeView("uid-1", Amounts(), Amounts()), OBJECT)
    history, times = History(), []
    for second in range(1200):
        plan = reconcile(WANTED, wiped, history, NOW + second, PACE)
        history = plan.history
        times += [second for action in plan.actions if isinstance(action, WriteCapacity)]
    assert times == [0, 10, 30, 70, 150, 310, 610, 910]


def test_a_startup_taint_that_another_writer_restores_is_removed_less_often() -> None:
    history, times = History(), []
    for second in range(1200):
        plan = reconcile(STARTS, Published(TAINTED, replace(OBJECT, status=fresh(second))), history, NOW + second, PACE)
        history = plan.history
        times += [second for action in plan.actions if isinstance(action, RemoveTaints)]
    assert times == [0, 10, 30, 70, 150, 310, 610, 910]


def fresh(second: int) -> JSON:
    """The status as it is while heartbeats are written."""
    return status_of(WANTED, previous=STATUS, now=NOW + second)


def test_the_startup_taint_stays_while_the_capacity_is_undone_by_another_writer() -> None:
    wiped = Published(replace(TAINTED, capacity=Amounts(), allocatable=Amounts()), OBJECT)
    first = reconcile(STARTS, wiped, History(), NOW, PACE)
    assert first.actions == (CAPACITY, REMOVAL)
    assert reconcile(STARTS, wiped, first.history, NOW + 1, PACE).actions == ()


def test_a_server_that_drops_a_field_is_not_written_to_at_every_step() -> None:
    dropped = {**STATUS, "summary": {}}
    history = History(status=Written((content_of(WANTED), WANTED.condition, WANTED.others), NOW))
    due = [
        second
        for second in range(10)
        if reconcile(WANTED, Published(NODE, replace(OBJECT, status=dropped)), history, NOW + second, PACE).actions
    ]
    assert due == []


def test_a_change_is_written_at_once_whatever_was_undone_before() -> None:
    history = History(status=Written((content_of(WANTED), WANTED.condition, WANTED.others), NOW, undone=9))
    assert reconcile(SICK, Published(NODE, OBJECT), history, NOW + 1, PACE).actions == (write(SICK, STATUS, NOW + 1),)


SETTLED = {
    "all as wanted": (Published(NODE, OBJECT), True),
    "no object": (Published(NODE, None), False),
    "no node": (Published(None, OBJECT), False),
    "another status": (Published(NODE, replace(OBJECT, status={})), False),
    "another capacity": (Published(replace(NODE, capacity=Amounts()), OBJECT), False),
}


@pytest.mark.parametrize(("published", "want"), SETTLED.values(), ids=SETTLED.keys())
def test_settled(published: Published, want: bool) -> None:
    assert settled(WANTED, published) == want


def test_heartbeats_of_nodes_are_spread_and_stay_where_they_are() -> None:
    spread = [jittered(300, f"node-{i}") for i in range(500)]
    assert spread == [jittered(300, f"node-{i}") for i in range(500)]
    assert all(270 <= seconds <= 330 for seconds in spread)
    assert max(spread) - min(spread) > 50


VIEWS = {
    "quantities are compared by value": (
        {"gpufraction.io/gpu-memory": "15471616Ki", "gpufraction.io/gpu-cores": "0.1k"},
        SUM,
    ),
    "absent is nothing": ({"cpu": "8"}, Amounts(0, 0)),
    "what cannot be read equals nothing": (
        {"gpufraction.io/gpu-memory": "much", "gpufraction.io/gpu-cores": "1m"},
        Amounts(-1, -1),
    ),
}


@pytest.mark.parametrize(("resources", "want"), VIEWS.values(), ids=VIEWS.keys())
def test_reading_a_node(resources: dict[str, str], want: Amounts) -> None:
    node = {"metadata": {"uid": "u"}, "status": {"capacity": resources}}
    assert node_view(node) == NodeView("u", want, Amounts())


def test_reading_the_startup_taints_of_a_node() -> None:
    other = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
    node = {"metadata": {"uid": "u"}, "spec": {"taints": [other, STARTUP, other, HARSH]}}
    assert node_view(node).startup_taints == ((1, STARTUP), (3, HARSH))
    assert node_view({"metadata": {"uid": "u"}, "spec": {"taints": None}}).startup_taints == ()


OWNERS = {
    "its node owns it": ([{"kind": "Node", "uid": "u"}], "u"),
    "nobody owns it": ([], ""),
    "two nodes own it, so neither is right": ([{"kind": "Node", "uid": "u"}, {"kind": "Node", "uid": "v"}], ""),
}


@pytest.mark.parametrize(("owners", "want"), OWNERS.values(), ids=OWNERS.keys())
def test_reading_a_gpunode(owners: list[JSON], want: str) -> None:
    labels = {**LABELS, "team": "ml"}
    found = object_view({"metadata": {"ownerReferences": owners, "labels": labels}, "status": STATUS})
    assert found == ObjectView(want, LABELS, STATUS)
