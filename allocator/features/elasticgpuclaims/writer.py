"""
Writes for claims: it creates and moves ElasticGPUs, takes their next steps and writes GPU objects.

Each outcome is one of a few values. A binding whose answer was lost is unresolved and is written again. Its name
belongs to the claim and a patch names the version that it changes, so the second attempt finds the result of the first.
"""

from __future__ import annotations

import logging
from typing import Any

from allocator.features.elasticgpuclaims import objects, rendering
from allocator.features.elasticgpuclaims.cards import CardWrite
from allocator.features.elasticgpuclaims.changes import ClaimOutcome
from allocator.features.elasticgpuclaims.lifecycle import Delete, Patch, Refused, Step
from allocator.features.elasticgpuclaims.rendering import ClaimBinding
from allocator.workers.binder import REFUSALS
from contract import pods
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeConflict, KubeError, KubeNotFound

JSON = dict[str, Any]
log = logging.getLogger(__name__)


def path(plural: str, namespace: str = "", name: str | None = None, sub: str | None = None) -> str:
    """The path of an object of the group."""
    return paths.path(objects.GROUP_VERSION, plural, namespace or None, name, sub)


def bind(kube: Kube, order: ClaimBinding, *, timeout: float) -> ClaimOutcome:
    """Write a binding and find out its result."""
    fields = {"claim": order.claim.key, "node": order.allocation.node, "moves": order.moves}
    where = path(objects.SHARES, name=order.claim.own_share)
    if order.written:
        return _still_there(kube, order, where, timeout)
    try:
        if order.share is None:
            kube.create(path(objects.SHARES), rendering.document(order), timeout=timeout)
        else:
            _patch(kube, where, order.share.version, rendering.moving(order), timeout)
        log.info("claim bound", extra=fields)
        return "succeeded"
    except KubeError as error:
        why, open_end = str(error), error.outcome_unknown
        failed: ClaimOutcome = Refused(why) if isinstance(error, REFUSALS) else "failed"
    try:
        found = objects.share(kube.get(where, timeout=timeout))
    except KubeNotFound:
        outcome: ClaimOutcome = "unknown" if open_end and order.share is None else failed
        log.info("claim not bound", extra={**fields, "reason": why})
        return outcome
    except KubeError:
        return "unknown"
    if found.allocation is not None and found.allocation.id == order.allocation.id:
        return "succeeded"
    log.info("claim not bound", extra={**fields, "reason": why})
    if order.share is None or found.version != order.share.version:
        return "failed"
    return "unknown" if open_end else failed


def _still_there(kube: Kube, order: ClaimBinding, where: str, timeout: float) -> ClaimOutcome:
    """Look up the object of a binding that was written but that the watch does not show."""
    try:
        found = objects.share(kube.get(where, timeout=timeout))
    except KubeNotFound:
        return "failed"
    except KubeError:
        return "succeeded"  # unchanged since the write
    return "succeeded" if found.allocation is not None and found.allocation.id == order.allocation.id else "failed"


def step(kube: Kube, order: Step, *, timeout: float) -> JSON | Refused | None:
    """Take a step. Returns the object of the API server's answer; `Refused` or None if the step failed."""
    try:
        if isinstance(order, Delete):
            return _delete(kube, order, timeout)
        where = path(order.plural, order.namespace, order.name, "status" if order.status else None)
        return _patch(kube, where, order.version, order.operations, timeout)
    except KubeError as error:
        fields = {"object": f"{order.plural}/{order.name}", "reason": str(error)} if isinstance(order, Patch) else {}
        log.info("claim not updated", extra=fields or {"object": order.name, "reason": str(error)})
        return Refused(str(error)) if isinstance(error, REFUSALS) else None


def _patch(kube: Kube, where: str, version: int, operations: tuple[JSON, ...], timeout: float) -> JSON:
    seen = {"op": "test", "path": "/metadata/resourceVersion", "value": str(version)}
    return kube.patch_json(where, [seen, *operations], timeout=timeout)


def _delete(kube: Kube, order: Delete, timeout: float) -> JSON | None:
    if order.claim and _is_there(kube, order, timeout):
        return None
    body: JSON = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": order.uid}}
    try:
        return kube.delete(path(objects.SHARES, name=order.name), body, timeout=timeout)
    except KubeNotFound:
        return {}


def _is_there(kube: Kube, order: Delete, timeout: float) -> bool:
    """Whether the claim exists: our own watch may not have shown it yet."""
    namespace, name = order.claim.split("/", 1)
    try:
        found = kube.get(path(objects.CLAIMS, namespace, name), timeout=timeout)
    except KubeNotFound:
        return False
    return pods.uid(found) == order.claim_uid


def card(kube: Kube, order: CardWrite, *, timeout: float) -> JSON | None:
    """Write a GPU object. Returns the current object, or None if it does not exist. Raises `KubeError`."""
    where = path(objects.CARDS, name=order.name)
    try:
        match order.verb:
            case "create":
                return kube.create(path(objects.CARDS), order.body, timeout=timeout)
            case "status":
                # A merge would keep amounts that no longer exist, so the whole status is replaced.
                operations = [{"op": "add", "path": "/status", "value": order.body}]
                return kube.patch_json(f"{where}/status", operations, timeout=timeout)
        kube.delete(where, timeout=timeout)
    except KubeNotFound:
        return None
    except KubeConflict:
        return kube.get(where, timeout=timeout)
    return None
