"""
Delivery of devices by ResourceClaims: on nodes with the label for it, containers get their cards by the pod's claim.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from contract import names, pods
from contract.encoding import resourceclaims
from contract.model import Allocation
from playground.api.kinds.values import JSON
from playground.api.store.store import Change
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeNotFound
from tests.simulation.feature import Arguments, Draw, Feature, Goal, Invariant, Operation, Violation
from tests.simulation.features.cards import allocation_of
from tests.simulation.run import Run
from tests.simulation.world.claimplugins import CLAIMS
from tests.simulation.world.world import BY_CLAIMS


def plays(run: Run) -> bool:
    """Whether the plan has the feature."""
    return BY_CLAIMS in run.plan.shape.get("components", ())


# -- what administrators do ------------------------------------------------------------------------------------------


def _chosen(draw: Draw) -> Arguments:
    return {"node": draw.rng.choice(draw.nodes), "by": draw.rng.choice((names.BY_DRA, names.BY_DRA, None))}


def _choose(run: Run, arguments: Arguments) -> None:
    """Set the label of a node that makes its agent deliver by claims; without it, containers get cards as before."""
    run.tell("administrator", f"has {arguments['node']} deliver by {arguments['by'] or 'the variable'}")
    path = paths.nodes(arguments["node"])
    try:
        run.user.patch_merge(path, {"metadata": {"labels": {names.DELIVERY: arguments["by"]}}})
    except KubeNotFound:
        return


def _lost(draw: Draw) -> Arguments:
    return {"number": draw.rng.randrange(100)}


def _lose(run: Run, arguments: Arguments) -> None:
    """A user with all rights deletes one of our claims."""
    found = [each for each in run.world.api.store.scan(CLAIMS) if resourceclaims.is_ours(each["metadata"]["name"])]
    if not found:
        return
    metadata = found[arguments["number"] % len(found)]["metadata"]
    run.tell("administrator", f"deletes ResourceClaim {metadata['namespace']}/{metadata['name']}")
    try:
        run.user.delete(paths.resourceclaims(metadata["namespace"], metadata["name"]))
    except KubeNotFound:
        return


def _prepare(run: Run) -> None:
    """All nodes except the first deliver by claims; if there is only one node, it does."""
    for node in list(run.world.shape.cards)[1:] or list(run.world.shape.cards) if plays(run) else ():
        _choose(run, {"node": node, "by": names.BY_DRA})


# -- what must hold --------------------------------------------------------------------------------------------------


def untrue(pod: JSON, allocation: Allocation, claim: JSON | None) -> Violation | None:
    """Where the claim differs from the pod's share."""
    key, name = pods.key(pod), resourceclaims.named_by(pod["spec"])
    if claim is None:
        return f"{key} has a share, and its ResourceClaim {name} is not there"
    status = claim.get("status") or {}
    if resourceclaims.owner_uid(claim) != pods.uid(pod):
        return f"ResourceClaim {name} of {key} is another pod's"
    if [each.get("uid") for each in status.get("reservedFor") or ()] != [pods.uid(pod)] or not status.get("allocation"):
        return f"ResourceClaim {name} of {key} is not reserved for it: {status}"
    results = status["allocation"].get("devices", {}).get("results") or ()
    given = sorted({(each["pool"], each["device"]) for each in results})
    every = (share.uuid for each in allocation.containers for share in each.shares)
    wanted = sorted({(allocation.node, resourceclaims.device_name(uuid)) for uuid in every})
    if allocation.by_claim and given != wanted:
        return f"{key} has {wanted}, and its ResourceClaim gives {given}"
    return f"{key} gets no card by its claim, which gives {given}" if results and not allocation.by_claim else None


def _starts_on_its_cards(run: Run) -> Callable[[Change], Violation | None]:
    """A pod that begins to run has what its claim gives. A claim that a user deletes is missing for a while."""

    def holds(change: Change) -> Violation | None:
        if change.resource != "pods" or change.type == "DELETED" or not _begins(change):
            return None
        pod, allocation = change.object, allocation_of(change.object)
        if allocation is None or not resourceclaims.named_by(pod["spec"]):
            return None
        claim = _claim_of(run, pod)
        return None if claim is None else untrue(pod, allocation, claim)

    return holds


def _begins(change: Change) -> bool:
    before = (change.previous or {}).get("status") or {}
    after = change.object.get("status") or {}
    return after.get("phase") == "Running" and before.get("phase") != "Running"


def _claim_of(run: Run, pod: JSON) -> JSON | None:
    key = pod["metadata"]["namespace"], resourceclaims.named_by(pod["spec"])
    found: JSON | None = run.world.api.store.get(CLAIMS, key)
    return found


def _claims_true(run: Run) -> list[Violation]:
    """Pods whose claim differs from their share, and claims without a pod."""
    store = run.world.api.store
    wrong, named = list[Violation](), set[Any]()
    for pod in store.scan("pods"):
        name = resourceclaims.named_by(pod["spec"])
        if not name or pods.finished(pod):
            continue
        named.add((pod["metadata"]["namespace"], name))
        allocation = allocation_of(pod)
        if allocation is not None and not pod["metadata"].get("deletionTimestamp"):
            wrong += filter(None, [untrue(pod, allocation, _claim_of(run, pod))])
    for claim in store.scan(CLAIMS):
        metadata = claim["metadata"]
        if resourceclaims.is_ours(metadata["name"]) and (metadata["namespace"], metadata["name"]) not in named:
            wrong.append(f"ResourceClaim {metadata['namespace']}/{metadata['name']} is left over")
    return wrong


FEATURE = Feature(
    "delivery",
    operations=(
        Operation("delivery.change", 1, _chosen, _choose),
        Operation("resource-claim.delete", 1, _lost, _lose),
    ),
    invariants=(Invariant("a pod starts with the cards of its share", _starts_on_its_cards),),
    goals=(Goal("every ResourceClaim is its pod's share", _claims_true),),
    components=(BY_CLAIMS,),
    prepare=_prepare,
)
