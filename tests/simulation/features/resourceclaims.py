"""
Shares by ResourceClaims that tenants write: from templates, and standalone claims that serve several pods, at the same
time and one after another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from allocator.engine.reference import Placement
from allocator.scheduler import sharing
from contract import names, pods
from contract.dialects import resourceclaims as dialect
from contract.encoding import resourceclaims
from contract.model import MOST_CONSUMERS, Allocation
from playground.api.kinds.values import JSON
from playground.api.store.store import Change
from playground.machinery.kubelet.podrun import RUN_SECONDS
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeConflict, KubeError, KubeNotFound
from tests.simulation.feature import Arguments, Draw, Feature, Goal, Invariant, Operation, Violation
from tests.simulation.features import workload
from tests.simulation.features.cards import allocation_of
from tests.simulation.run import Run
from tests.simulation.world.claimplugins import CLAIMS
from tests.simulation.world.world import BY_CLAIMS, SHARES_BY_CLAIMS

_AMOUNTS: tuple[dict[str, str], ...] = (
    {"memory": "1Gi"},
    {"memory": "5Gi", "cores": "30"},
    {"memory": "14Gi"},
    {"memory": "2Gi", "cores": "70"},
    {},
)


_WAYS = ("exactly", "selectors", "firstAvailable")
"""How a request chooses its cards."""
_NO_CARD, _ALL_CARDS = "device.driver == 'example.com'", "device.attributes['gpufraction.io'].type in ['gpu', 'mig']"
MOST_TOGETHER = "most pods with one ResourceClaim"
DEALLOCATED = "ResourceClaims whose allocation an administrator took away"


def plays(run: Run) -> bool:
    """Whether the plan has the feature."""
    return SHARES_BY_CLAIMS in run.plan.shape.get("components", ())


# -- what happens ------------------------------------------------------------------------------------------------


def _made(draw: Draw) -> Arguments:
    namespace = draw.rng.choice(workload.NAMESPACES)
    found = {
        "namespace": namespace,
        "name": draw.new("share"),
        "alone": draw.rng.random() < 0.4,
        "count": draw.rng.choice((1, 1, 1, 2)),
        "amounts": draw.rng.choice(_AMOUNTS),
    }
    found["way"] = _WAYS[int(str(found["name"]).rpartition("-")[2]) % len(_WAYS)]
    draw.made.setdefault("share-claims", []).append(found)
    return found


def _create(run: Run, arguments: Arguments) -> None:
    kind = "ResourceClaim" if arguments["alone"] else "ResourceClaimTemplate"
    run.tell("user", f"creates {kind} {arguments['namespace']}/{arguments['name']} for {arguments['amounts']}")
    capacity = {"capacity": {"requests": dict(arguments["amounts"])}} if arguments["amounts"] else {}
    exactly = {"deviceClassName": str(names.SHARE_CLASS), "count": arguments["count"], **capacity}
    devices = {"devices": {"requests": [{"name": "gpu", **_chosen(exactly, str(arguments.get("way", _WAYS[0])))}]}}
    path = paths.resourceclaims if arguments["alone"] else paths.resourceclaimtemplates
    body = {
        "apiVersion": resourceclaims.API,
        "kind": kind,
        "metadata": {"name": arguments["name"]},
        "spec": devices if arguments["alone"] else {"spec": devices},
    }
    try:
        run.user.create(path(arguments["namespace"]), body)
    except KubeError as error:
        run.tell("user", f"which is refused: {error}")


def _chosen(exactly: JSON, way: str) -> JSON:
    """The request in one of `_WAYS`; each accepts every card."""
    if way == "firstAvailable":
        return {way: [{"name": "none", **exactly, **_selecting(_NO_CARD)}, {"name": "any", **exactly}]}
    return {"exactly": {**exactly, **(_selecting(_ALL_CARDS) if way == "selectors" else {})}}


def _selecting(expression: str) -> JSON:
    return {"selectors": [{"cel": {"expression": expression}}]}


def _pod(draw: Draw) -> Arguments | None:
    made = draw.made.get("share-claims")
    if not made:
        return None
    chosen = draw.rng.choice(made)
    found = {"namespace": chosen["namespace"], "name": draw.new("by-claim"), "of": chosen["name"]}
    draw.names.append((found["namespace"], found["name"]))
    return {**found, "alone": chosen["alone"], "runs": draw.rng.choice((None, 5, 20))}


def _submit(run: Run, arguments: Arguments) -> None:
    source = "resourceClaimName" if arguments["alone"] else "resourceClaimTemplateName"
    annotations = {} if arguments["runs"] is None else {RUN_SECONDS: str(arguments["runs"])}
    body: JSON = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": arguments["name"], "annotations": annotations},
        "spec": {
            "restartPolicy": "Never",
            "resourceClaims": [{"name": "gpu", source: arguments["of"]}],
            "containers": [{"name": "main", "image": "cuda", "resources": {"claims": [{"name": "gpu"}]}}],
        },
    }
    run.tell("user", f"creates pod {arguments['namespace']}/{arguments['name']} with claim {arguments['of']}")
    try:
        run.user.create(paths.pods(arguments["namespace"]), body)
    except KubeError as error:  # also if no allocator answers
        run.tell("user", f"which is refused: {error}")


def _several(draw: Draw) -> Arguments | None:
    """Several pods that use one standalone claim."""
    alone = [each for each in draw.made.get("share-claims", ()) if each["alone"]]
    if not alone:
        return None
    chosen = draw.rng.choice(alone)
    listed = [(chosen["namespace"], draw.new("by-claim")) for _ in range(draw.rng.randint(2, 4))]
    draw.names += listed
    runs = [draw.rng.choice((None, 5, 20)) for _ in listed]
    about = {"namespace": chosen["namespace"], "of": chosen["name"], "alone": True}
    return {"pods": [{**about, "name": name, "runs": each} for (_, name), each in zip(listed, runs, strict=True)]}


def _submit_several(run: Run, arguments: Arguments) -> None:
    for each in arguments["pods"]:
        _submit(run, each)


def _some(draw: Draw) -> Arguments | None:
    made = draw.made.get("share-claims")
    return None if not made else {**draw.rng.choice(made), "number": draw.rng.randrange(100)}


def _delete(run: Run, arguments: Arguments) -> None:
    """Delete a template at any time, and a claim once no pod uses it."""
    path = paths.resourceclaims if arguments["alone"] else paths.resourceclaimtemplates
    run.tell("user", f"deletes the claim or template {arguments['namespace']}/{arguments['name']}")
    try:
        run.user.delete(path(arguments["namespace"], arguments["name"]))
    except KubeNotFound:
        return


def _deallocate(run: Run, arguments: Arguments) -> None:
    """A user with all rights removes the allocation of a claim."""
    found = [each for each in run.world.api.store.scan(CLAIMS) if _is_share(each) and _status(each).get("allocation")]
    if not found:
        return
    metadata = found[arguments["number"] % len(found)]["metadata"]
    run.tell("administrator", f"takes the allocation of ResourceClaim {metadata['name']} away")
    run.notes.setdefault(DEALLOCATED, set()).add((metadata["namespace"], metadata["name"]))
    path = paths.resourceclaims(metadata["namespace"], metadata["name"], "status")
    try:
        run.user.patch_merge(path, {"status": {"allocation": None, "reservedFor": None}})
    except (KubeNotFound, KubeConflict):
        return


def _prepare(run: Run) -> None:
    """Allow the namespaces to request this way."""
    for namespace in workload.NAMESPACES if plays(run) else ():
        labels = {str(names.RESOURCE_CLAIMS_LABEL): "enabled"}
        run.user.patch_merge(paths.namespaces(namespace), {"metadata": {"labels": labels}})


# -- what must hold ----------------------------------------------------------------------------------------------


def _is_share(claim: JSON) -> bool:
    return dialect.read_claim(claim.get("spec")) not in ((), None)


def _status(claim: JSON) -> JSON:
    return claim.get("status") or {}


def _claims_true(run: Run) -> list[Violation]:
    """Pods whose claim differs from their share, and claims that are held for no pod."""
    store = run.world.api.store
    wrong, alive = list[Violation](), dict[str, Any]()
    for pod in store.scan("pods"):
        if pods.finished(pod):
            continue
        alive[pods.uid(pod)] = pod
        request, allocation = pods.admitted(pod), allocation_of(pod)
        if request is None or not request.own_claims or allocation is None:
            continue
        if not pod["metadata"].get("deletionTimestamp"):
            wrong += _untrue(run, pod, allocation)
    for claim in store.scan(CLAIMS):
        if not _is_share(claim):
            continue
        name, holders = claim["metadata"]["name"], resourceclaims.holders(claim)
        wrong += [
            f"ResourceClaim {name} is reserved for pod {each}, which is gone"
            for uid, each in holders
            if uid not in alive
        ]
        if not holders and _status(claim).get("allocation") and claim["metadata"].get("finalizers"):
            wrong.append(f"ResourceClaim {name} is allocated, and nobody uses it")
        strangers = [each for uid, each in holders if len(holders) > 1 and not _shares(alive.get(uid), claim)]
        if strangers:
            wrong.append(f"ResourceClaim {name} is used by {len(holders)} pods, and {strangers} do not have its share")
        owner = resourceclaims.owner_uid(claim)
        if owner and owner not in alive:
            wrong.append(f"ResourceClaim {name} is left over")
    return wrong


def _shares(pod: JSON | None, claim: JSON) -> bool:
    """Whether the pod shares the claim with others, or waits behind the gate."""
    if pod is None or names.GATE in pods.gates(pod):
        return pod is not None
    allocation = allocation_of(pod)
    return allocation is not None and allocation.shared == claim["metadata"]["uid"]


def _together(run: Run) -> Callable[[Any], Violation | None]:
    """All pods that share one claim have the same cards, and there are no more of them than Kubernetes allows."""
    cards: dict[str, dict[str, tuple[object, ...]]] = {}

    def holds(change: Change) -> Violation | None:
        if change.resource != "pods":
            return None
        uid = pods.uid(change.object)
        for users in cards.values():
            users.pop(uid, None)
        allocation = None if change.type == "DELETED" else allocation_of(change.object)
        if allocation is None or not allocation.shared:
            return None
        users = cards.setdefault(allocation.shared, {})
        users[uid] = allocation.node, sorted(share.uuid for each in allocation.containers for share in each.shares)
        run.notes[MOST_TOGETHER] = max(run.notes.get(MOST_TOGETHER, 0), len(users))
        if len(set(map(repr, users.values()))) > 1 or len(users) > MOST_CONSUMERS:
            return f"pods with the ResourceClaim {allocation.shared} have {users}"
        return None

    return holds


def _joined(run: Run) -> list[Violation]:
    """Pods that wait although other pods use their claim and its node has room for them."""
    leader = run.world.leader()
    if leader is None or not plays(run):
        return []
    controller = leader.running.allocator.controller

    def waiting() -> list[Violation]:
        cache, found = controller._cache, list[Violation]()
        for entry in controller._queue.in_order():
            claim = sharing.claim_of(entry, cache.neighbours.devices.objects())
            holders = sharing.users(cache, claim) if claim is not None and not entry.foreign else ()
            if claim is None or not holders:
                continue
            decision = sharing.join(cache, entry, claim, holders)
            if isinstance(decision, Placement):
                found.append(f"{entry.key} waits, and fits beside {len(holders)} pods with its ResourceClaim")
        return found

    found: list[Violation] = controller.locked(waiting)
    return found


def _untrue(run: Run, pod: JSON, allocation: Allocation) -> list[Violation]:
    key = pods.key(pod)
    statuses = pod["status"].get("resourceClaimStatuses") or ()
    made = {each["name"]: each.get("resourceClaimName") for each in statuses}
    name = pod["spec"]["resourceClaims"][0].get("resourceClaimName") or made.get("gpu")
    where = pod["metadata"]["namespace"], str(name)
    claim = run.world.api.store.get(CLAIMS, where)
    if claim is None and where in run.notes.get(DEALLOCATED, ()):
        return []  # once it was deleted too, nothing held it any more; the share belongs to the pods until they end
    if claim is None:
        return [f"{key} has a share, and its ResourceClaim {name} is not there"]
    holders = [uid for uid, _ in resourceclaims.holders(claim)]
    if holders != [pods.uid(pod)] and not (allocation.shared and pods.uid(pod) in holders):
        return [f"{key} has a share, and its ResourceClaim {name} is reserved for {resourceclaims.holders(claim)}"]
    results = (_status(claim).get("allocation") or {}).get("devices", {}).get("results") or ()
    given = sorted((each["pool"], each["device"]) for each in results)
    shares = [share for each in allocation.containers for share in each.shares if share.dra]
    wanted = sorted((allocation.node, resourceclaims.device_name(share.uuid)) for share in shares)
    named = {each["request"] for each in results}
    if not named <= {"gpu", "gpu/any"}:
        return [f"{key} has a share, and its ResourceClaim {name} names {sorted(named)}"]
    decided = resourceclaims.version(claim)
    if decided is not None and decided[0] != allocation.id and not allocation.shared:
        return [f"{key} has its share {allocation.id}, and its ResourceClaim {name} is of {decided[0]}"]
    return [f"{key} has {wanted}, and its ResourceClaim {name} says {given}"] if given != wanted else []


FEATURE = Feature(
    "resourceclaims",
    operations=(
        Operation("share-claim.create", 2, _made, _create),
        Operation("share-claim.pod", 6, _pod, _submit),
        Operation("share-claim.pods", 2, _several, _submit_several),
        Operation("share-claim.delete", 0.5, _some, _delete),
        Operation("share-claim.deallocate", 0.5, _some, _deallocate),
    ),
    invariants=(Invariant("pods with one ResourceClaim have one share", _together),),
    goals=(
        Goal("every ResourceClaim of a tenant is what its pods' shares say", _claims_true),
        Goal("pods join those that use their ResourceClaim", _joined),
    ),
    components=(BY_CLAIMS, SHARES_BY_CLAIMS),
    prepare=_prepare,
)
