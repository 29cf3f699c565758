"""Operations are drawn in a form that plans can hold, and the remaining invariants can fail."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

import allocator.app
from contract import names
from contract.dialects import DIALECTS
from contract.dialects.base import Refusal
from nodeagent.isolation.levels import MECHANISMS
from nodeagent.settings import settings_type
from runtime.settings import load
from tests.builders import node, pod
from tests.simulation.feature import Draw
from tests.simulation.features import controllers, namespaces, nodes, settings, workload
from tests.simulation.features.preemption import FEATURE as PREEMPTION
from tests.simulation.features.preemption import Evictions
from tests.simulation.features.table import FEATURES
from tests.unit.allocator.harness import admitted
from tests.unit.simulation_features.fakes import FakeStore, change, run
from webhook.settings import ServeSettings

OPERATIONS = [each for feature in FEATURES for each in feature.operations]
PROGRAMS: dict[str, Any] = {
    "allocator": allocator.app.settings_type(),
    "webhook": ServeSettings,
    "nodeagent": settings_type(MECHANISMS),
}


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
def test_what_is_drawn_survives_a_file(operation: Any) -> None:
    draw = Draw(random.Random(1), ("n1", "n2"), 2)
    for _ in range(50):
        arguments = operation.draw(draw)
        if arguments is not None:
            assert json.loads(json.dumps(arguments)) == arguments


def test_every_dialect_is_spoken_and_every_pod_can_be_read() -> None:
    draw, spoken = Draw(random.Random(1), ("n1",), 2), set()
    for _ in range(2000):
        document = workload.manifest(workload.pod_of(draw))
        request = DIALECTS.read(document)
        assert not isinstance(request, Refusal), (document, request)
        spoken.add(request.dialect if request is not None else "")
    by_operations_of_their_own = {"claims", "resourceclaims"}
    assert spoken == {dialect.name for dialect in DIALECTS} - by_operations_of_their_own | {""}


def test_nonsense_is_refused_by_the_dialects() -> None:
    (nonsense,) = (each for each in OPERATIONS if each.name == "pod.nonsense")
    draw = Draw(random.Random(1), ("n1",), 2)
    for _ in range(50):
        assert isinstance(DIALECTS.read(workload.manifest(nonsense.draw(draw) or {})), Refusal)


@pytest.mark.parametrize(
    ("program", "flags"),
    [
        *((program, flags) for program, choices in settings.CHOICES.items() for flags in choices),
        *((program, flags) for each in FEATURES for program, choices in each.knobs.items() for flags in choices),
    ],
)
def test_every_choice_of_settings_can_be_read_beside_itself(program: str, flags: tuple[str, ...]) -> None:
    more = ("--node", "n1") if program == "nodeagent" else ()
    load(PROGRAMS[program], file=None, env={}, argv=[*more, *flags, *flags])


def test_a_pod_on_a_node_that_its_selector_refuses_is_found() -> None:
    (invariant,) = nodes.FEATURE.invariants
    holds = invariant.make(run(FakeStore(nodes=[node("n").labelled("zone", "a").json()])))
    assert holds(change("pods", pod("p").selects(zone="a").on("n").json())) is None
    assert "which lacks {'zone': 'b'}" in (holds(change("pods", pod("p").selects(zone="b").on("n").json())) or "")
    bound = pod("p").selects(zone="b").on("n").json()
    assert holds(change("pods", bound, previous=bound)) is None


def test_a_namespace_that_does_not_go_is_found() -> None:
    (goal,) = namespaces.FEATURE.goals
    leaving = {"metadata": {"name": "team-c", "deletionTimestamp": "2030-01-01T00:00:00Z"}}
    held = pod("p", "team-c").json()
    assert goal.missing(run(FakeStore(namespaces=[{"metadata": {"name": "team-c"}}]))) == []
    assert goal.missing(run(FakeStore(namespaces=[leaving], pods=[held]))) == [
        "namespace team-c is deleted and still there, with pods ['team-c/p']"
    ]


def asking(name: str, priority: int, *, gated: bool = False) -> Any:
    return admitted(
        pod(name).asks("gpufraction.io/gpu-memory", "1Gi").spec(priority=priority).uid(f"u-{name}"), gated=gated
    )


def judging(*flags: str) -> Evictions:
    found = run()
    found.plan.shape["flags"] = {"allocator": flags}
    return Evictions(found)


def test_a_victim_of_no_lower_priority_is_found() -> None:
    judge = judging("--preemption=true")
    judge.take(change("pods", asking("low", 1)))
    assert "and none waits" in (judge.judged("default/low", "preemption") or "")
    judge.take(change("pods", asking("waits", 1, gated=True)))
    assert "no pod waits of more than 1" in (judge.judged("default/low", "preemption") or "")
    judge.take(change("pods", asking("urgent", 2, gated=True)))
    assert judge.judged("default/low", "preemption") is None


def test_an_eviction_that_nobody_switched_on_is_found_by_the_next_commit() -> None:
    judge = judging()
    judge.take(change("pods", asking("low", 1)))
    (heard,) = judge._run.heard
    heard("allocator-0.1", "evicted", {"pod": "default/low", "cause": "repair", "reason": ""})
    assert judge.holds(change("nodes", node("n").json())) == (
        "default/low is evicted for repair, and nobody switched that on"
    )


def test_a_pod_that_is_moved_without_consent_is_found() -> None:
    judge = judging(*PREEMPTION.knobs["allocator"][2])
    judge.take(change("pods", asking("low", 1)))
    assert "never agreed" in (judge.judged("default/low", "defragmentation") or "")
    labels = {str(names.DEFRAGMENT): "allowed"}
    judge.take(change("namespaces", {"metadata": {"name": "default", "labels": labels}}))
    assert judge.judged("default/low", "defragmentation") is None


def test_a_controller_is_written_as_its_kind_wants_it() -> None:
    (create,) = (each for each in controllers.FEATURE.operations if each.name == "controller.create")
    draw, kinds = Draw(random.Random(3), ("n1",), 2), set()
    for _ in range(50):
        arguments = create.draw(draw)
        assert arguments is not None
        document = controllers.document(arguments)
        kinds.add(document["kind"])
        assert ("selector" in document["spec"]) is (document["kind"] != "Job")
    assert kinds == set(controllers.KINDS)
