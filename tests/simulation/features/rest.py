"""
The cluster at rest: every reason is true, every cache equals the API server, and nothing is left over.

These goals do not depend on how a state came about, so they apply after every operation and every fault.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from allocator.server import debug
from contract import names, pods
from contract.nodes.inventories import inventory_from_object
from contract.reasons.nodes import Code
from contract.scheduling.fairness import BEHIND
from playground.api.kinds.values import JSON
from tests.simulation.feature import Feature, Goal, Violation
from tests.simulation.features import leftovers
from tests.simulation.features.cards import GPUNODES, allocation_of
from tests.simulation.run import Run
from tests.simulation.world.programs import Program

_CODES = frozenset(code.word for code in Code)
_LEARNT = ("demand", "scarcity", "largest", "awaited", "reserved", "limits")
"""Parts of a view that depend on the past: what was learnt from requests, and nodes that were reserved for pods."""
_WHEN_NEEDED = ("storage", "devices")
"""Parts of the neighbours that an allocator lists once a pod needs them, and watches from then on."""
_READY_WITHIN, _LOOK = 30.0, 0.5
FRESH = "fresh"
_FAIR = "--queue-order=fair"


def allocators(run: Run) -> Iterator[tuple[str, Any]]:
    """The name and the controller of each running allocator."""
    for program in run.world.allocators:
        if program.alive and program.running is not None:
            yield program.name, program.running.allocator.controller


def _condition(pod: JSON) -> JSON:
    found = (pod.get("status") or {}).get("conditions") or ()
    return next((each for each in found if each["type"] == names.ALLOCATED_CONDITION), {})


def _waiting(run: Run) -> Iterator[JSON]:
    for pod in run.world.api.store.scan("pods"):
        if names.GATE in pods.gates(pod) and not pod["metadata"].get("deletionTimestamp"):
            yield pod


def line(run: Run) -> dict[str, tuple[str, str]]:
    """By uid, why the leader would not place each pod of its queue now: the code and the sentence."""
    leader = run.world.leader()
    if leader is None:
        return {}
    view = leader.running.allocator.controller.view()
    return {each.pod.uid: (each.code, each.reason) for each in debug.one_cycle(view)}


def _reasons(run: Run) -> list[Violation]:
    """Waiting pods whose condition differs from the result for the leader's cluster now."""
    now = line(run)
    return [wrong for pod in _waiting(run) if (wrong := untrue(pod, now.get(pods.uid(pod))))]


def untrue(pod: JSON, now: tuple[str, str] | None) -> Violation | None:
    """What is untrue in the condition. `now`: code and sentence by the leader's cluster; None: not in its queue."""
    told, request = _condition(pod), pods.admitted(pod)
    if now is None or request is None or request.claim:
        return None  # of a claim, or of a pod that another program holds
    code, sentence = now
    reason, message = told.get("reason"), told.get("message")
    if code not in _CODES or reason not in _CODES:
        return None  # another program's gate, or a preemption in progress
    if reason != code:
        return f"{pods.key(pod)} waits for {code}, and says {told}"
    if message in (sentence, f"{sentence}; {BEHIND}"):
        return None
    return f"{pods.key(pod)} waits: {sentence!r}, and says {message!r}"


def _caches(run: Run) -> list[Violation]:
    """Where an allocator's nodes, cards or queue differ from the API server."""
    store = run.world.api.store
    cards = {i.node: sorted(gpu.uuid for gpu in i.gpus) for i in map(inventory_from_object, store.scan(GPUNODES))}
    nodes = {each["metadata"]["name"]: each for each in store.scan("nodes")}
    queued = {pods.uid(pod) for pod in _waiting(run) if pods.admitted(pod) is not None}
    wrong = []
    for name, controller in allocators(run):
        view = controller.view()
        found = {node.name: sorted(gpu.uuid for gpu in node.gpus) for node in view.nodes}
        expected = {node: uuids for node, uuids in cards.items() if node in nodes}
        if found != expected:
            wrong.append(f"{name} knows the cards {found}, and there are {expected}")
        wrong += [f"{name}: {text}" for node in view.nodes if (text := _differs(node, nodes.get(node.name)))]
        if (waits := {each.uid for each in view.queue}) != queued:
            wrong.append(
                f"{name} has {sorted(waits - queued)} in its queue too much, and lacks {sorted(queued - waits)}"
            )
    return wrong


def _differs(state: Any, node: JSON | None) -> Violation | None:
    if node is None:
        return f"there is no node {state.name}"
    if bool(node["spec"].get("unschedulable")) != state.cordoned:
        return f"node {state.name} is cordoned: {not state.cordoned}"
    labels = node["metadata"].get("labels") or {}
    odd = {key: value for key, value in state.labels.items() if labels.get(key) != value}
    if odd:
        return f"node {state.name} has no labels {odd}"
    taints = {(t["key"], t.get("value") or "", t["effect"]) for t in node["spec"].get("taints") or ()}
    known = {(t.key, t.value, t.effect) for t in state.taints}
    return None if known <= taints else f"node {state.name} has no taints {sorted(known - taints)}"


def _consistent(run: Run) -> list[Violation]:
    wrong = []
    for name, controller in allocators(run):
        try:
            controller.check_invariants()
        except AssertionError as error:
            wrong.append(f"{name}: {error}")
    return wrong


def _told(run: Run) -> list[Violation]:
    """Pods that run with a share although their condition says otherwise. A pod that never waited has no condition."""
    wrong = []
    for pod in run.world.api.store.scan("pods"):
        running = (pod.get("status") or {}).get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")
        if running and allocation_of(pod) is not None and _condition(pod).get("status", "True") != "True":
            wrong.append(f"{pods.key(pod)} runs with a share, and says {_condition(pod)}")
    return wrong


# -- an allocator that knows only what it lists ------------------------------------------------------------------


def _as_fresh(run: Run) -> list[Violation]:
    """Where an allocator sees another cluster than one that has just listed everything."""
    program = run.world.another_allocator(FRESH)
    program.start()
    try:
        if not _synced(run, program):
            return ["an allocator that starts now does not see the whole cluster"]
        controller = program.running.allocator.controller
        fair = _FAIR in run.world.flags.get("allocator", ())
        wanted = seen(debug.to_json(controller.view()), fair=fair)
        wrong = []
        for name, other in allocators(run):
            pair = followed_by_both(seen(debug.to_json(other.view()), fair=fair), wanted)
            wrong += [f"{name} sees {text}" for text in differences(*pair)]
        running = [each for each in run.world.allocators if each.alive and each.running is not None]
        programs = [(each.name, leftovers.root_of(run, each)) for each in running]
        return [*wrong, *leftovers.of(run, programs)]
    finally:
        program.kill()


def _synced(run: Run, program: Program) -> bool:
    waited = 0.0
    while waited < _READY_WITHIN:
        run.sleep(_LOOK)
        waited += _LOOK
        if program.running is not None and not program.running.allocator.controller.ready():
            run.sleep(2 * _LOOK)  # until what the last list brought is taken in
            return True
    return False


def seen(view: Mapping[str, Any], *, fair: bool = False) -> JSON:
    """
    The parts of a view that depend on the API server alone.

    Pods created in the same second are in the order in which they were seen, so only priorities and times of the order
    are compared. Of the fair order only priorities are compared, because namespaces with equal parts take turns and the
    one seen first starts.
    """
    found = {key: value for key, value in view.items() if key not in _LEARNT}
    queue = [{key: value for key, value in pod.items() if key != "busy"} for pod in found.get("queue") or ()]
    neighbours = dict(found.get("neighbours") or {})
    for part in (found, neighbours):  # their order is the order of their arrival
        if part.get("nodes"):
            part["nodes"] = sorted(part["nodes"], key=lambda node: str(node["name"]))
    order = [[pod.get("priority"), "" if fair else pod.get("created")] for pod in queue]
    return {**found, "neighbours": neighbours, "queue": sorted(queue, key=lambda pod: str(pod["uid"])), "order": order}


def followed_by_both(found: JSON, wanted: JSON) -> tuple[JSON, JSON]:
    """Two views without what only one of the allocators has needed so far."""
    one, other = found["neighbours"], wanted["neighbours"]
    left_out = [key for key in _WHEN_NEEDED if one.get(key) is None or other.get(key) is None]
    less = ({key: part for key, part in each.items() if key not in left_out} for each in (one, other))
    return {**found, "neighbours": next(less)}, {**wanted, "neighbours": next(less)}


def differences(found: Any, wanted: Any, at: str = "") -> list[str]:
    """Where two JSON values differ, one sentence for each place; only the first few."""
    if found == wanted:
        return []
    if isinstance(found, dict) and isinstance(wanted, dict):
        keys = sorted({*found, *wanted})
        each = [differences(found.get(key), wanted.get(key), f"{at}.{key}".strip(".")) for key in keys]
    elif isinstance(found, list) and isinstance(wanted, list) and len(found) == len(wanted):
        each = [differences(a, b, f"{at}[{i}]") for i, (a, b) in enumerate(zip(found, wanted, strict=True))]
    else:
        return [f"{at} as {json.dumps(found)[:160]}, and a fresh one {json.dumps(wanted)[:160]}"]
    return [text for part in each for text in part][:4]


FEATURE = Feature(
    "rest",
    goals=(
        Goal("every reason is true", _reasons),
        Goal("no pod with a share says otherwise", _told),
        Goal("caches equal the API server", _caches),
        Goal("no state contradicts itself", _consistent),
        Goal("a fresh allocator sees the same", _as_fresh, last=True),
    ),
)
