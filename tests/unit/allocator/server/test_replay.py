"""A snapshot that is read back decides as the allocator did, for any cluster, and reveals nothing unnecessary."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocator import commands
from allocator.cache.podinfo import pod_event
from allocator.engine.reference import Placement, Policy
from allocator.scheduler.view import QueuedPodView, SchedulerView
from allocator.selectors import holds
from allocator.server import debug
from contract.encoding.reading import Malformed
from contract.encoding.wire import typed
from contract.model import NodeState
from contract.scheduling.filters import Limits
from contract.scheduling.needs import SchedulingRequest
from tests.builders import node, pod
from tests.examples import examples
from tests.unit.allocator.engine.test_engine_equals_reference import NAMES, asks, nodes
from tests.unit.allocator.harness import SchedulerHarness, admitted

JSON = dict[str, Any]
SIZES = st.integers(1, 20).map(lambda gib: f"{gib}Gi")


@st.composite
def views(draw: st.DrawFn) -> SchedulerView:
    states: list[NodeState] = [draw(nodes(name)) for name in draw(st.sets(st.sampled_from(NAMES)))]
    line = [
        QueuedPodView(
            f"ns/p{i}",
            f"uid-{i}",
            draw(asks()),
            priority=draw(st.integers(-5, 5)),
            created=draw(st.sampled_from(("", "2030-01-01T00:00:00Z"))),
            foreign=draw(st.sampled_from(((), ("a/b",)))),
            busy=draw(st.sampled_from(("", "writing"))),
        )
        for i in range(draw(st.integers(0, 4)))
    ]
    policy = Policy(draw(st.sampled_from(("binpack", "spread"))), "spread")
    return SchedulerView(Limits(draw(st.integers(1, 48)), 1.5), policy, tuple(states), tuple(line))


@given(views())
@settings(max_examples=examples(30), deadline=None)
def test_a_view_comes_back_whole_from_its_text(view: SchedulerView) -> None:
    found = debug.from_json(json.loads(json.dumps(debug.to_json(view))))
    assert found == view
    assert found.limits.selects is holds, "a replay evaluates selectors too"


@given(views())
@settings(max_examples=examples(10), deadline=None)
def test_a_snapshot_of_an_older_program_is_read_by_its_old_names(view: SchedulerView) -> None:
    old = {"queue": "line", "reserved": "kept"}
    document = {old.get(name, name): value for name, value in debug.to_json(view).items()}
    assert debug.from_json(document) == view


@given(
    cards=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    sizes=st.lists(SIZES, max_size=12),
    priorities=st.lists(st.integers(0, 2), min_size=12, max_size=12),
)
@settings(max_examples=examples(30), deadline=None)
def test_the_replay_of_a_snapshot_gives_the_controllers_own_decisions(
    cards: list[int], sizes: list[str], priorities: list[int]
) -> None:
    harness = SchedulerHarness([node(f"n{i}").gpus(count, mib=16384) for i, count in enumerate(cards)])
    for i, size in enumerate(sizes):
        waiting = pod(f"p{i}").uid(f"u{i}").asks("gpufraction.io/gpu-memory", size).spec(priority=priorities[i])
        harness.controller.handle(pod_event(admitted(waiting, gated=True)))
    text = json.dumps(debug.to_json(harness.controller.view()))
    bindings, news = harness.controller.schedule_pending()
    outcomes = list(debug.one_cycle(debug.from_json(json.loads(text))))
    placed = [
        (o.pod.key, o.decision.node, o.decision.containers) for o in outcomes if isinstance(o.decision, Placement)
    ]
    assert placed == [(c.pod.key, c.allocation.node, c.allocation.containers) for c in bindings]
    unplaced = [(o.pod.key, o.code, o.reason) for o in outcomes if not isinstance(o.decision, Placement)]
    assert unplaced == [(t.key, t.code, t.reason) for t in news]


def test_a_snapshot_holds_no_environment_and_no_annotation() -> None:
    harness = SchedulerHarness([node("n").gpus(1)])
    secret = pod("p").uid("u").asks("gpufraction.io/gpu-memory", "1Gi").env("TOKEN", "hunter2")
    secret = secret.annotated("team/password", "hunter2").labelled("team", "hunter2")
    harness.controller.handle(pod_event(admitted(secret, gated=True)))
    text = json.dumps(debug.to_json(harness.controller.view()))
    assert "default/p" in text
    assert "hunter2" not in text


def a_view() -> JSON:
    return debug.to_json(SchedulerView(Limits(), Policy(), (node("n").gpus(1).state(),), ()))


def broken(**changes: object) -> JSON:
    return {**a_view(), **changes}


DAMAGED: dict[str, tuple[Any, str]] = {
    "nothing at all": (None, "no snapshot of version 2"),
    "another version": (broken(v=1), "no snapshot of version 2"),
    "nodes that are no list": (broken(nodes={}), "snapshot.nodes: found {}; give a list"),
    "a node without a name": (broken(nodes=[{}]), r"snapshot.nodes\[0\].name is missing"),
    "a node that is text": (broken(nodes=["n"]), r"snapshot.nodes\[0\]: found 'n'; give an object"),
    "a number as text": (
        broken(limits={"max_sharers": "many"}),
        "limits.max_sharers: found 'many'; give a whole number",
    ),
    "true where a number belongs": (
        broken(limits={"max_sharers": True}),
        "limits.max_sharers: found True; give a whole number",
    ),
    "a port without its parts": (broken(nodes=[{"name": "n", "host_ports": [["", "TCP"]]}]), "give a list of 3 items"),
    "GPUs without their usage": (broken(nodes=[{**a_view()["nodes"][0], "usage": []}]), "1 GPUs and 0 usages"),
}


@pytest.mark.parametrize("case", DAMAGED.values(), ids=DAMAGED.keys())
def test_an_error_in_a_damaged_snapshot_names_its_path(case: tuple[Any, str]) -> None:
    document, want = case
    with pytest.raises(Malformed, match=want):
        debug.from_json(document)


@given(asks())
@settings(max_examples=examples(30), deadline=None)
def test_what_a_pod_asks_comes_back_whole(ask: SchedulingRequest) -> None:
    schema = typed(SchedulingRequest)
    assert schema.from_json(json.loads(json.dumps(schema.to_json(ask)))) == ask


def written(tmp_path: Path) -> str:
    harness = SchedulerHarness([node("a").gpus(1, mib=16384), node("b").gpus(2, mib=8192).cordoned()])
    for name, size in (("first", "10Gi"), ("second", "8Gi")):
        waiting = pod(name).uid(name).asks("gpufraction.io/gpu-memory", size)
        harness.controller.handle(pod_event(admitted(waiting, gated=True)))
    file = tmp_path / "snapshot.json"
    file.write_text(json.dumps(debug.to_json(harness.controller.view())))
    return str(file)


def test_the_command_decides_the_line_again(tmp_path: Path) -> None:
    out = StringIO()
    assert commands.run(["replay", written(tmp_path)], out=out) == 0
    assert out.getvalue() == (
        "   1  default/first  placed on node a (main: GPU-a-0)\n"
        "   2  default/second  waiting: 0 of 2 GPU nodes fit: "
        "1 short of memory (largest free 6144 MiB, wanted 8192), 1 cordoned\n"
    )


def test_the_command_explains_one_pod_node_by_node(tmp_path: Path) -> None:
    out = StringIO()
    assert commands.run(["replay", written(tmp_path), "--pod", "default/second"], out=out) == 0
    assert out.getvalue().splitlines()[1:] == [
        "nodes as they are before the 1 pod ahead of it:",
        "  a: fits, score -500000",
        "  b: cordoned",
    ]


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(["replay", written(tmp_path), "--pod", "default/other"]) == 1
    assert "default/other is not in the queue; queued: default/first, default/second" in capsys.readouterr().err
    (tmp_path / "torn").write_text("{")
    assert commands.run(["replay", str(tmp_path / "torn")]) == 1
    assert "is not JSON" in capsys.readouterr().err
    assert commands.run(["waiting", "--socket", str(tmp_path / "no.sock")]) == 1
    assert "no.sock" in capsys.readouterr().err
