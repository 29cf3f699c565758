"""
Kueue's check `gpufraction.io/fits`: each Workload with quota asks whether all of its pods fit.

Kueue is simulated: it reserves quota for each Workload at once. It creates a Workload's pods if the check is Ready,
takes the quota back if the check is Retry, and gives the Workload up if the check is Rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from allocator.features.kueue.workloads import CHECKS, FLAVORS, GROUP, PENDING, READY, REJECTED, RETRY, WORKLOADS
from contract import names, pods
from contract.encoding import moments
from contract.model import Gpu, NodeState, Usage
from playground.api.kinds.values import JSON
from playground.api.store.store import Change
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeConflict, KubeError, KubeNotFound
from tests.simulation.feature import Arguments, Draw, Feature, Goal, Invariant, Operation, Violation
from tests.simulation.features import workload
from tests.simulation.features.cards import MOST_SHARERS, Booked, Place, each_once
from tests.simulation.features.idle import hears_late
from tests.simulation.kernel.modules import wall
from tests.simulation.run import Run

CHECK = "gpus"
COMPONENT = "kueue-check"
_VERSION = f"{GROUP}/v1beta2"
_RESOURCE = f"{WORKLOADS}.{GROUP}"
_CHECK_RESOURCE = f"{CHECKS}.{GROUP}"
_KINDS = {WORKLOADS: ("Workload", True), CHECKS: ("AdmissionCheck", False), FLAVORS: ("ResourceFlavor", False)}
_MIB = (3000, 5000, 7000, 9000, 15000, 40000)
_EVERY = 1.0
"""Seconds between two looks of Kueue."""
_RECENT = 5.0
"""Seconds: a pod placed more recently than this may have been placed after the answer was computed."""
_IN_CONDITIONS = {True: "True", False: "False"}


def plays(run: Run) -> bool:
    """Whether the plan has the feature."""
    return COMPONENT in run.plan.shape.get("components", ())


# -- users' actions --------------------------------------------------------------------------------------------------


def _made(draw: Draw) -> Arguments:
    found = {"namespace": draw.rng.choice(workload.NAMESPACES), "name": draw.new("gang")}
    draw.made.setdefault("workloads", []).append(dict(found))
    count = draw.rng.choice((1, 2, 3, 5, 8))
    return {**found, "count": count, "memory": draw.rng.choice(_MIB), "runs": draw.rng.choice((None, 10, 60))}


def _create(run: Run, arguments: Arguments) -> None:
    who = f"{arguments['namespace']}/{arguments['name']}"
    run.tell("user", f"creates workload {who} of {arguments['count']} x {arguments['memory']} MiB")
    template = workload.manifest({**_asks(arguments), "namespace": "", "name": ""})
    pod_set = {"name": "main", "count": arguments["count"], "template": {"spec": template["spec"]}}
    if annotations := template["metadata"].get("annotations"):
        pod_set["template"]["metadata"] = {"annotations": annotations}
    body = {
        "apiVersion": _VERSION,
        "kind": "Workload",
        "metadata": {"name": arguments["name"]},
        "spec": {"queueName": "team", "podSets": [pod_set]},
    }
    run.user.create(_path(arguments["namespace"]), body)


def _asks(arguments: Arguments) -> JSON:
    found: JSON = {"limits": {str(names.GPU_MEMORY): f"{arguments['memory']}Mi"}}
    return found if arguments["runs"] is None else {**found, "runs": arguments["runs"]}


def _some(draw: Draw) -> Arguments | None:
    made = draw.made.get("workloads")
    return dict(draw.rng.choice(made)) if made else None


def _delete(run: Run, arguments: Arguments) -> None:
    run.tell("user", f"deletes workload {arguments['namespace']}/{arguments['name']}")
    try:
        run.user.delete(_path(arguments["namespace"], arguments["name"]))
    except KubeNotFound:
        return


def _path(namespace: str, name: str | None = None, sub: str | None = None) -> str:
    return paths.path(_VERSION, WORKLOADS, namespace, name, sub)


# -- Kueue -----------------------------------------------------------------------------------------------------------


def _prepare(run: Run) -> None:
    if not plays(run):
        return
    for plural, (kind, namespaced) in _KINDS.items():
        run.user.create(
            paths.path("apiextensions.k8s.io/v1", "customresourcedefinitions"), _crd(plural, kind, namespaced)
        )
    body = {"apiVersion": _VERSION, "kind": "AdmissionCheck", "metadata": {"name": CHECK}}
    run.user.create(paths.path(_VERSION, CHECKS), {**body, "spec": {"controllerName": str(names.FITS)}})
    run.kernel.spawn(run.world.manager, lambda: _be_kueue(run), "kueue")


def _crd(plural: str, kind: str, namespaced: bool) -> JSON:
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": free, "status": free}}
    version = {"name": "v1beta2", "served": True, "storage": True, "subresources": {"status": {}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced" if namespaced else "Cluster",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
            "versions": [{**version, "schema": {"openAPIV3Schema": schema}}],
        },
    }


def _be_kueue(run: Run) -> None:
    kube = run.world.kube(run.world.manager)
    while run.phase != "done":
        run.sleep(_EVERY)
        for found in list(run.world.api.store.scan(_RESOURCE)):
            try:
                _look(run, kube, found)
            except KubeError as error:
                run.tell("kueue", f"could not look after {_key(found)}: {error}")


def _look(run: Run, kube: Kube, found: JSON) -> None:
    """What Kueue does next with a Workload."""
    if found["spec"].get("active") is False or _is(found, "Finished"):
        return
    namespace, name = found["metadata"]["namespace"], found["metadata"]["name"]
    state = state_of(found)
    if not _is(found, "QuotaReserved"):
        if wall() >= float((found.get("status") or {}).get("again") or 0):
            _write(kube, found, _reserved(found))
    elif state == READY and not _is(found, "Admitted"):
        run.tell("kueue", f"admits {_key(found)}")
        _start(run, kube, found)
        _write(kube, found, {"conditions": _conditions(found, Admitted=True)})
    elif state == RETRY:
        after = float(_entry(found).get("requeueAfterSeconds") or 0)
        again = {"conditions": _conditions(found, QuotaReserved=False, Evicted=True), "again": str(wall() + after)}
        _write(kube, found, {**again, "admission": None, "admissionChecks": [_pending()]})
    elif state == REJECTED:
        kube.patch_merge(_path(namespace, name), {"spec": {"active": False}})
    elif _is(found, "Admitted") and all(map(pods.finished, _pods(run, found))):
        _write(kube, found, {"conditions": _conditions(found, Finished=True)})


def _start(run: Run, kube: Kube, found: JSON) -> None:
    """Create the Workload's pods, as its Job does. A pod that is refused, for example by a quota, is never created."""
    (pod_set,) = found["spec"]["podSets"]
    for number in range(pod_set["count"]):
        template = pod_set["template"]
        metadata = {**(template.get("metadata") or {}), "name": f"{found['metadata']['name']}-{number}"}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        try:
            kube.create(paths.pods(found["metadata"]["namespace"]), body)
        except KubeConflict:
            continue
        except KubeError as error:
            run.tell("kueue", f"{metadata['name']} is not created: {error}")


def _pods(run: Run, found: JSON) -> Iterator[JSON]:
    for number in range(found["spec"]["podSets"][0]["count"]):
        key = found["metadata"]["namespace"], f"{found['metadata']['name']}-{number}"
        if (pod := run.world.api.store.get("pods", key)) is not None:
            yield pod


def _write(kube: Kube, found: JSON, status: JSON) -> None:
    metadata = found["metadata"]
    version = {"metadata": {"resourceVersion": metadata["resourceVersion"]}}
    kube.patch_merge(_path(metadata["namespace"], metadata["name"], "status"), {**version, "status": status})


def _reserved(found: JSON) -> JSON:
    (pod_set,) = found["spec"]["podSets"]
    return {
        "conditions": _conditions(found, QuotaReserved=True, Evicted=False),
        "admission": {
            "clusterQueue": "team",
            "podSetAssignments": [{"name": pod_set["name"], "count": pod_set["count"], "flavors": {}}],
        },
        "admissionChecks": [_pending()],
    }


def _pending() -> JSON:
    return {"name": CHECK, "state": PENDING, "message": "", "lastTransitionTime": moments.stamp(wall())}


def _conditions(found: JSON, **changed: bool) -> list[JSON]:
    now = moments.stamp(wall())
    kept = [each for each in (found.get("status") or {}).get("conditions") or () if each["type"] not in changed]
    new = [
        {"type": kind, "status": _IN_CONDITIONS[value], "reason": "Played", "message": "", "lastTransitionTime": now}
        for kind, value in changed.items()
    ]
    return [*kept, *new]


def _is(found: JSON, condition: str) -> bool:
    conditions = (found.get("status") or {}).get("conditions") or ()
    return any(each["type"] == condition and each["status"] == "True" for each in conditions)


def _entry(found: JSON) -> JSON:
    """The state of our check."""
    checks = (found.get("status") or {}).get("admissionChecks") or ()
    return next((each for each in checks if each["name"] == CHECK), {})


def state_of(found: JSON) -> str:
    """The state of our check for the Workload; empty if nothing asks for it."""
    return str(_entry(found).get("state", ""))


def _key(found: JSON) -> str:
    return f"{found['metadata']['namespace']}/{found['metadata']['name']}"


# -- what must hold --------------------------------------------------------------------------------------------------


def _asked(found: JSON) -> tuple[int, int]:
    """How many pods the Workload has, and how many bytes each requests."""
    (pod_set,) = found["spec"]["podSets"]
    limits = pod_set["template"]["spec"]["containers"][0]["resources"]["limits"]
    return pod_set["count"], int(limits[names.GPU_MEMORY].removesuffix("Mi")) << 20


class Answers:
    """Checks each answer against what the cards had."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._booked = Booked()
        self._since: dict[str, float] = {}
        """Since when each holder holds something."""
        self._cards: dict[Place, tuple[int, float]] = {}
        """The usable bytes of each card, and when it last existed."""

    def holds(self, change: Change) -> Violation | None:
        """What is wrong with an answer."""
        self._booked.take(change)
        now = self._run.kernel.seconds()
        self._since = {holder: self._since.get(holder, now) for holder in self._booked.holders}
        self._cards |= {place: (gpu.usable, now) for place, gpu in self._booked.cards.items()}
        if change.resource != _RESOURCE or change.type != "MODIFIED" or change.previous is None:
            return None
        before, after = state_of(change.previous), state_of(change.object)
        if after in ("", PENDING, before):
            return None
        if before != PENDING:
            return f"{_key(change.object)} was {before} and is {after}, and Kueue did not ask again"
        message = str(_entry(change.object).get("message", ""))
        if not message:
            return f"{_key(change.object)} is {after}, and nothing is said of why"
        if after != READY or "new node" in message or "no pod of the Workload" in message or hears_late(self._run):
            return None
        count, size = _asked(change.object)
        found = self.room(size)
        return f"{_key(change.object)} is Ready, and of {count} pods {found} fit" if found < count else None

    def room(self, size: int) -> int:
        """How many shares of this size the cards of a moment ago have room for, in addition to what they held then."""
        earlier = self._run.kernel.seconds() - _RECENT
        left = {place: usable for place, (usable, seen) in self._cards.items() if seen >= earlier}
        for place, held in self._booked.by_card.items():
            old = each_once({holder: h for holder, h in held.items() if self._since.get(holder, earlier) < earlier})
            alone = any(each.alone for each in old)
            left[place] = 0 if alone else left.get(place, 0) - sum(each.memory for each in old)
        return sum(max(free, 0) // size for free in left.values())


def _answered(run: Run) -> list[Violation]:
    """Workloads whose check nothing answers, and our AdmissionCheck if nothing reports that it is served."""
    if not plays(run):
        return []
    store = run.world.api.store
    wrong = [f"{_key(each)} has had no answer" for each in _asking(store.scan(_RESOURCE)) if state_of(each) == PENDING]
    check = store.get(_CHECK_RESOURCE, ("", CHECK))
    if check is None or not _is(check, "Active"):
        wrong.append(f"nobody says that he answers the check: {(check or {}).get('status')}")
    return wrong


def _asking(found: Iterable[JSON]) -> Iterator[JSON]:
    for each in found:
        if _is(each, "QuotaReserved") and each["spec"].get("active") is not False:
            yield each


def _not_told_to_wait(run: Run) -> list[Violation]:
    """Workloads that wait although all of their pods fit, by the leader's own ledger, and nothing else waits."""
    leader = run.world.leader()
    if not plays(run) or leader is None:
        return []
    every = [each for each in run.world.api.store.scan(_RESOURCE) if each["spec"].get("active") is not False]
    waiting = [each for each in every if not _is(each, "Admitted") and not _is(each, "Finished")]
    view = leader.running.allocator.controller.view() if waiting else None
    if view is None or view.queue or view.reserved or any(_starts(run, each) for each in every):
        return []
    wrong = []
    for each in waiting:
        count, size = _asked(each)
        if (room := _room(view.nodes, size)) >= count:
            wrong.append(f"{_key(each)} waits ({_entry(each)}), and {room} of its pods fit")
    return wrong


def _starts(run: Run, found: JSON) -> bool:
    """Whether it is admitted and one of its pods has no share yet."""
    return _is(found, "Admitted") and any(names.GATE in pods.gates(pod) for pod in _pods(run, found))


def _room(nodes: Iterable[NodeState], size: int) -> int:
    usable = (node for node in nodes if node.ready and not node.cordoned and not node.taints)
    return sum(_on(gpu, used, size) for node in usable for gpu, used in zip(node.gpus, node.usage, strict=True))


def _on(gpu: Gpu, used: Usage, size: int) -> int:
    if not gpu.healthy or used.exclusive:
        return 0
    return int(min(max(gpu.usable - used.memory, 0) // size, MOST_SHARERS - used.sharers))


def _invariant(run: Run) -> Callable[[Change], Violation | None]:
    return Answers(run).holds if plays(run) else lambda change: None


_KNOBS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "allocator": (
        ("--fits-retry-after=2s", "--fits-hold=10s"),
        ("--fits-retry-after=5s", "--fits-hold=5s"),
        ("--fits-retry-after=10s",),
    )
}

FEATURE = Feature(
    "kueue",
    operations=(
        Operation("workload.create", 14, _made, _create),
        Operation("workload.delete", 1, _some, _delete),
    ),
    invariants=(Invariant("an answer to Kueue is so", _invariant),),
    goals=(
        Goal("every check is answered", _answered),
        Goal("no workload waits that fits", _not_told_to_wait),
    ),
    knobs=_KNOBS,
    components=(COMPONENT,),
    prepare=_prepare,
)
