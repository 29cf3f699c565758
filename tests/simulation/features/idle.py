"""
Idle shares: pods that agreed to it give way to waiting pods, after a warning.

Each card shows which pods compute on it: exactly those that the plan lets compute. The leader's log shows which pods it
warns and evicts. The checks compare that with what the API server had, and with which pods really computed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from allocator.scheduler.view import QueuedPodView, SchedulerView
from allocator.server import debug
from contract import names, pods
from contract.encoding import moments
from contract.model import NodeState
from contract.nodes.idle import IdleReport, idle_from_object
from contract.nodes.inventories import inventory_from_object
from contract.scheduling import consent
from nodeagent.gpus.simulated import cards_from_text
from playground.api.kinds.values import JSON
from playground.api.store.store import Change
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeNotFound
from tests.simulation.feature import Arguments, Draw, Feature, Goal, Invariant, Operation, Violation
from tests.simulation.features import workload
from tests.simulation.features.cards import GPUNODES, Held, Place, allocation_of, held_by_pod
from tests.simulation.features.preemption import priority_of
from tests.simulation.kernel.scheduler import BEGINNING
from tests.simulation.run import Run

EVICTS = "--idle-evict=true"
_GRACE = "--idle-grace="
_CONSENTS = ("1s", "5s", "20s", "1m", "0")
_LOOKS = 10.0
"""Seconds between two looks of an agent at its cards."""
_QUIET = 60.0
"""Seconds after which every running agent reports a share as idle that has never computed."""
_DRIFT = 1.03
"""How much faster than real time a clock may run."""
_WAITED = 60.0
"""Seconds after its last wait for which a pod still counts as one that room was made for."""
_ANSWERED = 15.0
"""
Seconds after which a host has logged an eviction. Meanwhile a StatefulSet may have created another pod of the name.
"""
_BLIND = ("watches.", "apiserver.", "requests.", "partition.", "program.paused", "clock.", "etcd.", "node.", "rights.")
"""Faults that can make the leader hear an agent's report late, or with a wrong time."""
_NOTE = "idle"


# -- what happens ----------------------------------------------------------------------------------------------------


def _agreeing(draw: Draw) -> dict[str, Any]:
    """A pod that agrees to give way, or says that it does not agree."""
    found = workload.pod_of(draw)
    annotations = {**(found.get("annotations") or {}), str(names.IDLE_AFTER): draw.rng.choice(_CONSENTS)}
    return {**found, "annotations": annotations}


def _notebooks(draw: Draw) -> Arguments:
    """Many agreeing pods, each with much of a card, that run until a user ends them. Some compute from the start."""
    made = [{**_agreeing(draw), **_large(draw)} for _ in range(draw.rng.randint(4, 12))]
    plain = [{key: value for key, value in each.items() if key in _PLAIN} for each in made]
    return {"pods": plain, "work": [each["name"] for each in plain if draw.rng.random() < 0.25]}


def _open(run: Run, arguments: Arguments) -> None:
    for each in arguments["pods"]:
        if each["name"] in arguments["work"]:
            shares(run).compute(f"{each['namespace']}/{each['name']}")
    workload.create_many(run, arguments)


def _trainings(draw: Draw) -> Arguments:
    """Some pods that request much of a card and find it held by others."""
    made = [{**workload.pod_of(draw), **_large(draw)} for _ in range(draw.rng.randint(1, 4))]
    return {"pods": [{key: each[key] for key in (*_PLAIN, "runs") if key in each} for each in made]}


def _large(draw: Draw) -> JSON:
    return {"limits": {str(names.GPU_MEMORY): draw.rng.choice(("7000Mi", "9000Mi", "15000Mi"))}}


_PLAIN = ("namespace", "name", "limits", "annotations", "priority")


def _working(draw: Draw) -> Arguments | None:
    chosen = workload.some_pod(draw)
    return None if chosen is None else {**chosen, "seconds": draw.rng.choice((15.0, 40.0, None, None))}


def _work(run: Run, arguments: Arguments) -> None:
    """The pod computes, and stops after `seconds`, if set. A pod that does not run yet begins when it starts."""
    who = f"{arguments['namespace']}/{arguments['name']}"
    found = shares(run)
    run.tell("user", f"{who} computes")
    found.compute(who)
    if arguments["seconds"] is not None:
        run.sleep(arguments["seconds"])
        run.tell("user", f"{who} computes no more")
        found.rest(who)


def _agreed(draw: Draw) -> Arguments:
    return {"namespace": draw.rng.choice(workload.NAMESPACES), "after": draw.rng.choice(("30s", "1m", "soon", None))}


def _agree(run: Run, arguments: Arguments) -> None:
    """The label by which a namespace agrees. A label that cannot be read is no consent."""
    run.tell("administrator", f"lets idle pods of {arguments['namespace']} give way after {arguments['after']}")
    path = paths.path("v1", "namespaces", None, arguments["namespace"])
    try:
        run.user.patch_merge(path, {"metadata": {"labels": {names.IDLE_AFTER: arguments["after"]}}})
    except KubeNotFound:
        return


def plays(run: Run) -> bool:
    """Whether the plan has the feature."""
    return EVICTS in run.plan.shape.get("flags", {}).get("allocator", ())


# -- which pods compute ----------------------------------------------------------------------------------------------


class Shares:
    """Which pods compute, since when, and what the drivers show of it."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.since: dict[str, float] = {}
        """By the keys of the pods that compute, in seconds."""
        self.ever: set[str] = set()
        """Pods that have ever computed."""

    def compute(self, who: str) -> None:
        """The pod of that key computes from now on."""
        self.since.setdefault(who, self._run.kernel.seconds())
        self.ever.add(who)
        self.show()

    def rest(self, who: str) -> None:
        """The pod stops computing."""
        self.since.pop(who, None)
        self.show()

    def take(self, change: Change) -> None:
        """A pod that computes has started or ended."""
        if change.resource == "pods" and pods.key(change.object) in self.since:
            self.show()

    def show(self) -> None:
        """Make the drivers show which pods compute now."""
        for node in self._run.world.cards:
            self._run.world.show_again(node)

    def shown(self, node: str, cards: str) -> str:
        """The description of the node's cards, with the pods that compute on each."""
        busy: dict[str, dict[str, int]] = {}
        for pod in self._run.world.api.store.scan("pods"):
            if pods.key(pod) in self.since and pod["spec"].get("nodeName") == node:
                for uuid, containers in _containers(pod).items():
                    busy.setdefault(uuid, {}).update(dict.fromkeys(containers, 40))
        return json.dumps(
            {
                "gpus": cards,
                "cards": {
                    str(card.index): {
                        "computing": dict(sorted(busy.get(card.uuid, {}).items())),
                        "utilisation": 40 if card.uuid in busy else 0,
                    }
                    for card in cards_from_text(cards, node=node)
                },
            }
        )


def _containers(pod: JSON) -> dict[str, list[str]]:
    """For each card's UUID, the ids of the pod's running containers that have a share of it."""
    ids = {
        each["name"]: str(each.get("containerID", "")).rpartition("//")[2]
        for each in (pod.get("status") or {}).get("containerStatuses") or ()
        if "running" in (each.get("state") or {})
    }
    allocation, found = allocation_of(pod), dict[str, list[str]]()
    for each in allocation.containers if allocation is not None else ():
        for share in each.shares:
            if ids.get(each.container):
                found.setdefault(share.uuid, []).append(ids[each.container])
    return found


def shares(run: Run) -> Shares:
    """The `Shares` of the run."""
    found: Shares = run.notes[_NOTE]
    return found


def _prepare(run: Run) -> None:
    if plays(run):
        for node in run.world.cards:
            run.world.disguise_cards(node, lambda cards, n=node: shares(run).shown(n, cards))  # type: ignore[misc]


# -- which pods may be evicted ---------------------------------------------------------------------------------------


@dataclass
class _Said:
    """What an agent last reported about a pod that it calls idle, and when that was written."""

    lasted: float
    at: float


class GivesWay:
    """Checks each warning and each eviction of an idle pod against what the API server had."""

    def __init__(self, run: Run) -> None:
        self._run = run
        found = run.notes.get(_NOTE)
        if found is not None:
            found.show()  # For a restored store: other pods exist, and none of them has changed.
        self._shares: Shares = run.notes.setdefault(_NOTE, found or Shares(run))
        self._here: dict[str, JSON] = {}
        self._before: dict[str, tuple[JSON, float]] = {}
        """The pod that had a key before, and since when another one has it."""
        """By key."""
        self._keys: dict[str, str] = {}
        """By uid."""
        self._waited: dict[str, tuple[int, float]] = {}
        """
        For each uid, the priority of a pod that waits or waited, and until when it waited; infinite if it still waits.
        """
        self._agreed: dict[str, int] = {}
        """The shortest time after which pods of a namespace give way, of all times that it ever agreed to."""
        self._said: dict[str, _Said] = {}
        """By uid."""
        self._warned: dict[tuple[str, str], float] = {}
        """When a host warned a pod, by the host and the pod's key."""
        self._wrong: list[Violation] = []
        run.heard.append(self._heard)

    def holds(self, change: Change) -> Violation | None:
        """Take the change in. Returns what an eviction before it did wrong, or None."""
        self.take(change)
        return self._wrong.pop() if self._wrong else None

    def take(self, change: Change) -> None:
        """Take the change in."""
        if change.resource == "pods":
            self._take_pod(change)
        elif change.resource == "namespaces":
            self._take_namespace(change.object)
        elif change.resource == GPUNODES and change.type != "DELETED":
            self._take_report(idle_from_object(change.object))

    def _take_pod(self, change: Change) -> None:
        uid = pods.uid(change.object)
        here = self._here.get(pods.key(change.object))
        if here is not None and pods.uid(here) != uid:
            self._before[pods.key(here)] = here, self._now()
        self._here[pods.key(change.object)] = change.object
        self._keys[uid] = pods.key(change.object)
        if names.GATE in pods.gates(change.object) and change.type != "DELETED":
            self._waited[uid] = priority_of(change.object), float("inf")
        elif self._waited.get(uid, (0, 0.0))[1] == float("inf"):
            self._waited[uid] = priority_of(change.object), self._now()
        self._shares.take(change)

    def _take_report(self, report: IdleReport) -> None:
        """Take a report in. From the next look on, a computing pod is not reported as idle; an agent writes at once."""
        for uid in report.shares:
            self._said[uid] = _Said(float(report.lasted(uid) or 0), self._now())
            key = self._keys.get(uid, "")
            works = self._shares.since.get(key)
            if works is not None and works < self._now() - 2 * _LOOKS and not hears_late(self._run):
                self._wrong.append(f"{key} has computed for {self._now() - works:.0f} s, and its agent calls it idle")

    def _take_namespace(self, namespace: JSON) -> None:
        name, labels = namespace["metadata"]["name"], namespace["metadata"].get("labels") or {}
        if after := consent.idle_after(labels.get(names.IDLE_AFTER)):
            self._agreed[name] = min(after, self._agreed.get(name, after))

    def _now(self) -> float:
        return self._run.kernel.seconds()

    def _heard(self, host: str, text: str, fields: Mapping[str, Any]) -> None:
        if text == "idle pod warned":
            self._warned[host, str(fields["pod"])] = self._now()
        if text == "evicted" and fields.get("cause") == "idle":
            found = self.judged(host, str(fields["pod"]))
            if found is not None:
                self._wrong.append(found)

    def judged(self, host: str, key: str) -> Violation | None:
        """What is wrong with the eviction of that pod by that host."""
        victim, warned = self._here.get(key), self._warned.pop((host, key), None)
        if not plays(self._run):
            return f"{key} is evicted since it is idle, and nobody switched that on"
        if victim is None:
            return f"{key} is evicted, and was never there"
        wrong = self._wrong_with(key, victim, host, warned)
        before, since = self._before.get(key, (None, 0.0))
        if wrong is not None and before is not None and self._now() - since < _ANSWERED:
            return self._wrong_with(key, before, host, warned)
        return wrong

    def _wrong_with(self, key: str, victim: JSON, host: str, warned: float | None) -> Violation | None:
        after = consent.agreed(
            consent.idle_after(pods.annotations_of(victim).get(names.IDLE_AFTER)),
            self._agreed.get(victim["metadata"]["namespace"]),
        )
        if not after:
            return f"{key} is evicted since it is idle, and never agreed to that"
        if warned is None:
            return f"{key} is evicted since it is idle, and {host} had not warned it"
        if (self._now() - warned) * _DRIFT < grace_of(self._run):
            return f"{key} is evicted {self._now() - warned:.1f} s after its warning"
        return self._for_nobody(key, victim) or self._not_idle(key, victim, after, warned)

    def _for_nobody(self, key: str, victim: JSON) -> Violation | None:
        since = self._now() - _WAITED
        best = max((priority for priority, until in self._waited.values() if until >= since), default=None)
        if best is None:
            return f"{key} is evicted for a pod, and none waits"
        if best < priority_of(victim):
            return f"{key} of priority {priority_of(victim)} is evicted, and no pod waits of more than {best}"
        return None

    def _not_idle(self, key: str, victim: JSON, after: int, warned: float) -> Violation | None:
        """Whether the agent had not reported the pod as idle, or the pod computed all the time."""
        said, works = self._said.get(pods.uid(victim)), self._shares.since.get(key)
        if said is None:
            return f"{key} is evicted, and its agent never called it idle"
        if hears_late(self._run):
            return None
        if said.lasted + (self._now() - said.at) * _DRIFT + 1.0 < after:
            return f"{key} is evicted, and its agent said {said} of it; it agreed to {after} s"
        if said.at < warned - 1.0:
            return f"{key} is evicted, and its agent has not said since its warning that it is idle"
        if works is not None and works < warned - _LOOKS:
            return f"{key} is evicted since it is idle, and has computed for {self._now() - works:.0f} s"
        return None


def grace_of(run: Run) -> float:
    """Seconds between a warning and an eviction, by the plan's settings."""
    flags = run.plan.shape.get("flags", {}).get("allocator", ())
    found = [flag.removeprefix(_GRACE) for flag in flags if flag.startswith(_GRACE)]
    return float(consent.seconds_of(found[-1]) or 0) if found else 300.0


def hears_late(run: Run) -> bool:
    """Whether a plan has faults that make the leader hear late what an agent reports."""
    return any(step.kind.startswith(_BLIND) for step in run.plan.steps)


# -- what must hold in the end ---------------------------------------------------------------------------------------


def _listed(run: Run) -> dict[str, int]:
    """By uid, how long each pod has been idle by its agent's last report."""
    reports = map(idle_from_object, run.world.api.store.scan(GPUNODES))
    return {uid: report.lasted(uid) or 0 for report in reports for uid in report.shares}


def _called_idle(run: Run) -> list[Violation]:
    """Pods that compute and are reported as idle, and pods that have never computed and are not reported."""
    if not plays(run):
        return []
    found, listed = shares(run), _listed(run)
    cards = {gpu.uuid for each in run.world.api.store.scan(GPUNODES) for gpu in inventory_from_object(each).gpus}
    wrong = []
    for pod in run.world.api.store.scan("pods"):
        key, uid = pods.key(pod), pods.uid(pod)
        if key in found.since and uid in listed:
            wrong.append(f"{key} has computed since {found.since[key]:.0f} s, and is called idle")
        if key not in found.ever and uid not in listed and _quiet(run, pod, cards):
            wrong.append(f"{key} has never computed, and is not called idle")
    return wrong


def _quiet(run: Run, pod: JSON, cards: set[str]) -> bool:
    """Whether an agent can detect that the pod computes nothing: its containers with shares have run long enough."""
    allocation, status = allocation_of(pod), pod.get("status") or {}
    if allocation is None or allocation.claim or pod["metadata"].get("deletionTimestamp"):
        return False
    if allocation.node not in run.world.cards:
        return False  # of a node that has joined; its driver does not show which pods compute
    since = BEGINNING + run.kernel.seconds() - _QUIET - 2 * _LOOKS
    running = {
        each["name"]
        for each in status.get("containerStatuses") or ()
        if (moments.seconds(each["state"].get("running", {}).get("startedAt")) or since) < since
    }
    shared = {each.container: [share.uuid for share in each.shares] for each in allocation.containers if each.shares}
    return shared.keys() <= running and all(uuid in cards for found in shared.values() for uuid in found)


def _makes_room(run: Run) -> list[Violation]:
    """
    Pods that wait although an idle pod has agreed to give way, and its share would be enough for them.

    While a node is reserved for a pod of higher priority, no room is made for others.
    """
    leader = run.world.leader()
    if not plays(run) or leader is None:
        return []
    due = list(_due(run))
    view = leader.running.allocator.controller.view() if due else None
    if view is None:
        return []
    wrong = []
    first = max((each.priority for each in view.reserved), default=float("-inf"))
    for waits in (each for each in view.queue if each.priority >= first):
        for victim in due:
            held = held_by_pod(victim)
            if any(each.together for each in held.values()):
                continue  # other pods may get the share too
            if waits.priority >= priority_of(victim) and _fits_without(view, waits, held):
                wrong.append(f"{waits.key} waits, and {pods.key(victim)} is idle and agreed to give way")
                break
    return wrong


def _due(run: Run) -> Iterator[JSON]:
    """The pods that have been idle for as long as they agreed to, and that neither a budget nor our policy protects."""
    store, listed = run.world.api.store, _listed(run)
    labels = {each["metadata"]["name"]: each["metadata"].get("labels") or {} for each in store.scan("namespaces")}
    for pod in store.scan("pods"):
        namespace = pod["metadata"]["namespace"]
        if (
            pods.uid(pod) not in listed
            or labels.get(namespace, {}).get(names.INJECT_LABEL) != names.INJECT_ENABLED
            or pod["metadata"].get("deletionTimestamp")
            or any(True for _ in store.scan("poddisruptionbudgets.policy", namespace))
        ):
            continue
        own = consent.idle_after(pods.annotations_of(pod).get(names.IDLE_AFTER))
        after = consent.agreed(own, consent.idle_after(labels.get(namespace, {}).get(names.IDLE_AFTER)))
        if 0 < after <= listed[pods.uid(pod)]:
            yield pod


def _fits_without(view: SchedulerView, waits: QueuedPodView, held: Mapping[Place, Held]) -> bool:
    """Whether the pod would be placed if that share were free."""
    nodes = tuple(_without(node, held) for node in view.nodes)
    (outcome,) = debug.one_cycle(replace(view, nodes=nodes, queue=(waits,)))
    return outcome.code == "Placed"


def _without(node: NodeState, held: Mapping[Place, Held]) -> NodeState:
    usage = [
        replace(
            used,
            memory=used.memory - mine.memory,
            cores=used.cores - mine.cores,
            sharers=used.sharers - 1,
            exclusive=used.exclusive and not mine.alone,
        )
        if (mine := held.get((node.name, gpu.uuid)))
        else used
        for gpu, used in zip(node.gpus, node.usage, strict=True)
    ]
    return replace(node, usage=tuple(usage))


def _invariant(run: Run) -> Callable[[Change], Violation | None]:
    return GivesWay(run).holds


FEATURE = Feature(
    "idle",
    operations=(
        Operation("pod.gives-way", 6, _agreeing, workload.create),
        Operation("pods.notebooks", 4, _notebooks, _open),
        Operation("pods.trainings", 6, _trainings, workload.create_many),
        Operation("share.works", 5, _working, _work),
        Operation("namespace.gives-way", 1, _agreed, _agree),
    ),
    invariants=(Invariant("no idle pod is evicted that may stay", _invariant),),
    goals=(
        Goal("who computes nothing is called idle, and nobody else", _called_idle),
        Goal("idle pods that agreed to it give way", _makes_room),
    ),
    knobs={
        "allocator": ((EVICTS, f"{_GRACE}3s"), (EVICTS, f"{_GRACE}10s")),
        "nodeagent": (("--idle-least=1s", "--heartbeat=10s"), ("--idle-least=5s", "--heartbeat=15s")),
    },
    components=("allocator-eviction", "node-access"),
    prepare=_prepare,
)
