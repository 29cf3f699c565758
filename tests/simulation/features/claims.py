"""ElasticGPUClaims and their classes, pods that name them, and deletions of all of these in any order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from allocator.features.elasticgpuclaims import objects, shares
from contract import pods
from contract.model import WHOLE, FractionRequest, NodeState
from playground.api.kinds.values import JSON
from playground.api.store.store import Change
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeConflict, KubeNotFound
from tests.simulation.feature import Arguments, Draw, Feature, Goal, Invariant, Operation, Violation
from tests.simulation.features import workload
from tests.simulation.features.cards import MOST_SHARERS, allocation_of
from tests.simulation.run import Run

CLASSES: dict[str, JSON] = {
    "at-once": {},
    "for-a-pod": {"egpuBindingMode": objects.FIRST_CONSUMER},
    "retained": {"reclaimPolicy": objects.RETAIN},
    "in-mib": {"parameters": {"memoryUnit": "MiB"}},
}
"""What the classes of the simulation contain in addition to their provisioner."""
SHARE_IS_THERE = "a claim's share is there while a pod uses it"
"""The name of an invariant."""
_OF_THE_SYSTEM = "node.kubernetes.io/"
_CLAIMS, _SHARES = (f"{plural}.elasticgpu.io" for plural in (objects.CLAIMS, objects.SHARES))


def _claim_path(arguments: Arguments, *, named: bool = True) -> str:
    return paths.path(
        objects.GROUP_VERSION, objects.CLAIMS, arguments["namespace"], arguments["name"] if named else None
    )


# -- what happens ------------------------------------------------------------------------------------------------


def _made(draw: Draw) -> Arguments:
    of = draw.rng.choice(tuple(CLASSES))
    memory = draw.rng.choice((512, 4000, 15000)) if of == "in-mib" else draw.rng.choice((1, 2, 5, 10, 14))
    made = draw.made.setdefault("claims", [])
    if made and draw.rng.random() < 0.2:
        chosen = dict(draw.rng.choice(made))  # one that exists or existed under the same name
    else:
        chosen = {"namespace": draw.rng.choice(workload.NAMESPACES), "name": draw.new("claim")}
        made.append(dict(chosen))
    amounts = {f"{objects.PROVISIONER}/gpu-memory": memory}
    if draw.rng.random() < 0.4:
        amounts[f"{objects.PROVISIONER}/gpu-core"] = draw.rng.choice((1, 20, 50, 100))
    return {**chosen, "class": of, "amounts": amounts}


def _create(run: Run, arguments: Arguments) -> None:
    run.tell("user", f"creates claim {arguments['namespace']}/{arguments['name']} of class {arguments['class']}")
    document = {
        "apiVersion": objects.GROUP_VERSION,
        "kind": objects.CLAIM,
        "metadata": {"name": arguments["name"], "namespace": arguments["namespace"]},
        "spec": {
            "elasticGPUClassName": arguments["class"],
            "resources": {"requests": dict(arguments["amounts"])},
        },
    }
    try:
        run.user.create(_claim_path(arguments, named=False), document)
    except KubeConflict:
        run.tell("user", "that claim is there already")


def _some(draw: Draw) -> dict[str, Any] | None:
    made = draw.made.get("claims")
    return dict(draw.rng.choice(made)) if made else None


def _delete(run: Run, arguments: Arguments) -> None:
    run.tell("user", f"deletes claim {arguments['namespace']}/{arguments['name']}")
    _gone(run, _claim_path(arguments))


def _delete_share(run: Run, arguments: Arguments) -> None:
    """An administrator deletes the ElasticGPU of a claim."""
    found = run.world.api.store.get(_CLAIMS, (arguments["namespace"], arguments["name"]))
    name = objects.claim(found).share_name if found is not None else ""
    if name:
        run.tell("administrator", f"deletes ElasticGPU {name}")
        _gone(run, paths.path(objects.GROUP_VERSION, objects.SHARES, None, name))


def _release(run: Run, arguments: Arguments) -> None:
    """An administrator deletes all ElasticGPUs whose claims are gone. The class `retained` requires this."""
    for share in list(run.world.api.store.scan(_SHARES)):
        if objects.share(share).status.phase == objects.RELEASED:
            _gone(run, paths.path(objects.GROUP_VERSION, objects.SHARES, None, share["metadata"]["name"]))


def _gone(run: Run, path: str) -> None:
    try:
        run.user.delete(path)
    except KubeNotFound:
        return


def _pod(draw: Draw) -> Arguments | None:
    claim = _some(draw)
    if claim is None:
        return None
    found = {"namespace": claim["namespace"], "name": draw.new("of-claim"), "limits": {}}
    found["annotations"] = {"egpuc.elasticgpu.io/data": claim["name"]}
    draw.names.append((found["namespace"], found["name"]))
    runs = draw.rng.choice((None, 5, 20))
    return found if runs is None else {**found, "runs": runs}


def _class(draw: Draw) -> Arguments:
    return {"name": draw.rng.choice(tuple(CLASSES)), "away": round(draw.rng.uniform(0, 20), 2)}


def _delete_class(run: Run, arguments: Arguments) -> None:
    """A class is deleted, and created again a while later."""
    name = arguments["name"]
    run.tell("administrator", f"deletes class {name} for {arguments['away']} s")
    _gone(run, paths.path(objects.GROUP_VERSION, objects.CLASSES, None, name))
    run.sleep(arguments["away"])
    try:
        _create_class(run, name)
    except KubeConflict:
        return


def _create_class(run: Run, name: str) -> None:
    head = {"apiVersion": objects.GROUP_VERSION, "kind": "ElasticGPUClass", "metadata": {"name": name}}
    path = paths.path(objects.GROUP_VERSION, objects.CLASSES)
    run.user.create(path, {**head, "provisioner": objects.PROVISIONER, **CLASSES[name]})


def _prepare(run: Run) -> None:
    for name in CLASSES:
        _create_class(run, name)


# -- what must hold ----------------------------------------------------------------------------------------------


def _one_share(run: Run) -> Callable[[Change], Violation | None]:
    """A claim has at most one ElasticGPU with a share."""
    by_claim: dict[str, set[str]] = {}

    def holds(change: Change) -> Violation | None:
        if change.resource != _SHARES:
            return None
        share = objects.share(change.object)
        if share.allocation is None:
            return None
        found = by_claim.setdefault(share.claim_uid, set())
        if change.type == "DELETED":
            found.discard(share.name)
            return None
        found.add(share.name)
        return f"claim {share.key} has {' and '.join(sorted(found))}" if len(found) > 1 else None

    return holds


def _there_while_used(run: Run) -> Callable[[Change], Violation | None]:
    """The ElasticGPU that a pod uses exists for as long as the pod uses it, and gives it the same cards."""
    users: dict[str, dict[str, JSON]] = {}

    def holds(change: Change) -> Violation | None:
        if change.resource == "pods":
            return _used(run, users, change)
        if change.resource != _SHARES or change.type != "DELETED":
            return None
        left = users.get(change.object["metadata"]["name"])
        if not left:
            return None
        who = ", ".join(pods.key(pod) for pod in left.values())
        return f"ElasticGPU {change.object['metadata']['name']} is gone, and {who} has its share"

    return holds


def _used(run: Run, users: dict[str, dict[str, JSON]], change: Change) -> Violation | None:
    uid = pods.uid(change.object)
    for each in users.values():
        each.pop(uid, None)
    allocation = None if change.type == "DELETED" else allocation_of(change.object)
    if allocation is None or not allocation.claim:
        return None
    users.setdefault(allocation.claim, {})[uid] = change.object
    found = run.world.api.store.get(_SHARES, ("", allocation.claim))
    share = objects.share(found).allocation if found is not None else None
    if share is None:
        return f"{pods.key(change.object)} has the share of {allocation.claim}, which is not there"
    given = {each.uuid for container in allocation.containers for each in container.shares}
    wanted = {each.uuid for container in share.containers for each in container.shares}
    if (allocation.node, given) != (share.node, wanted):
        return f"{pods.key(change.object)} has {allocation.node} {sorted(given)} of {allocation.claim}: {share}"
    return None


def _left_over(run: Run) -> list[Violation]:
    """What remains of claims and pods that are gone, and claims whose status is not true."""
    store = run.world.api.store
    held = (allocation_of(pod) for pod in store.scan("pods"))
    used = {allocation.claim for allocation in held if allocation is not None and allocation.claim}
    claims = {claim.uid: claim for claim in map(objects.claim, store.scan(_CLAIMS))}
    by_name = {share.name: share for share in map(objects.share, store.scan(_SHARES))}
    wrong = [problem for share in by_name.values() if (problem := _of_share(share, claims, used))]
    return [*wrong, *(problem for claim in claims.values() if (problem := _of_claim(claim, by_name, used)))]


def _of_share(share: objects.ElasticShare, claims: dict[str, objects.Claim], used: set[str]) -> Violation | None:
    if share.allocation is None or share.name in used:
        return None
    if share.deleting:
        return f"ElasticGPU {share.name} is deleted and used by nobody, and is still there: {share.finalizers}"
    if share.claim_uid in claims:
        return None
    if share.reclaim == objects.DELETE:
        return f"ElasticGPU {share.name} is left over from claim {share.key}"
    return None if share.status.phase == objects.RELEASED else f"ElasticGPU {share.name} is {share.status}"


def _of_claim(claim: objects.Claim, by_name: dict[str, objects.ElasticShare], used: set[str]) -> Violation | None:
    if claim.deleting:
        if claim.own_share in used:
            return None
        return f"claim {claim.key} is deleted and used by nobody, and is still there: {claim.finalizers}"
    share, status = by_name.get(claim.own_share), claim.status
    if not status.phase or (status.phase != objects.BOUND and not status.reason):
        return f"claim {claim.key} says nothing: {status}"
    if share is not None and not share.deleting and not (claim.kept and claim.bound and share.kept):
        return f"claim {claim.key} has {share.name}, and is not bound to it"
    if (status.phase == objects.BOUND) != (share is not None and share.status.phase == objects.BOUND):
        return f"claim {claim.key} is {status}, and its ElasticGPU is {share.status if share else 'not there'}"
    return None


def _could_be_bound(run: Run) -> list[Violation]:
    """Claims with immediate binding that no pod names and that wait although a card has room."""
    leader, store = run.world.leader(), run.world.api.store
    if leader is None:
        return []
    view = leader.running.allocator.controller.view()
    if view.reserved:
        return []  # room that is kept for a pod
    classes = {found.name: found for found in map(objects.gpu_class, store.scan("elasticgpuclasses.elasticgpu.io"))}
    named = {f"{pod.key.split('/', 1)[0]}/{pod.ask.request.claim}" for pod in view.queue}
    wrong = []
    for claim in map(objects.claim, store.scan(_CLAIMS)):
        if claim.deleting or claim.bound or claim.key in named:
            continue
        terms = shares.wanted(claim, classes.get(claim.class_name))
        if isinstance(terms, shares.ClaimTerms) and terms.binding == objects.IMMEDIATE:
            fraction = terms.request.containers[0]
            found = next((place for place in _with_room(view.nodes, fraction)), None)
            if found is not None:
                wrong.append(f"claim {claim.key} is {claim.status}, and {found} has room")
    return wrong


def _with_room(nodes: Iterable[NodeState], fraction: FractionRequest) -> Iterator[str]:
    """Cards with room for one share of this size."""
    if fraction.count > 1:
        return
    for node in nodes:
        if node.cordoned or not node.ready or any(taint.key.startswith(_OF_THE_SYSTEM) for taint in node.taints):
            continue
        for gpu, usage in zip(node.gpus, node.usage, strict=True):
            free = gpu.usable - usage.memory >= fraction.memory_on(gpu.usable)
            alone = not usage.sharers if fraction.exclusive else not usage.exclusive
            few = usage.sharers < MOST_SHARERS and usage.cores + fraction.cores <= WHOLE
            if gpu.healthy and free and alone and few:
                yield gpu.uuid


FEATURE = Feature(
    "claims",
    operations=(
        Operation("claim.create", 6, _made, _create),
        Operation("claim.pod", 6, _pod, workload.create),
        Operation("claim.delete", 3, _some, _delete),
        Operation("share.delete", 1, _some, _delete_share),
        Operation("share.release", 1, lambda draw: {}, _release),
        Operation("class.delete", 1, _class, _delete_class),
    ),
    invariants=(
        Invariant("a claim has one share", _one_share),
        Invariant(SHARE_IS_THERE, _there_while_used),
    ),
    goals=(
        Goal("nothing is left over of claims", _left_over),
        Goal("a claim that fits is bound", _could_be_bound),
    ),
    prepare=_prepare,
)
