"""
ResourceClaims of other drivers: the part of kube-scheduler's DynamicResources that looks at claims and not at devices.

A claim that a pod names must exist, must not be terminating, and must belong to the pod if it was created for it.
Allocated devices tie the pod to the nodes that reach them. kube-scheduler decides which devices an unallocated claim
gets: such a pod is `unallocated`, and its node may turn out to be the wrong one. A binding that timed out is not
detected here. Our claims for delivery are not checked (pkg/scheduler/framework/ plugins/dynamicresources of 1.36).

The allocator allocates claims of our DeviceClass. Such a claim must exist and be free now. Its node is being decided,
so an allocation that remains from an ended process does not tie the pod to a node.
"""

from __future__ import annotations

from contract.model import NodeState, Scalars
from contract.reasons.nodes import Code, Reason
from contract.scheduling import needs as scheduling
from contract.scheduling.clusterfilters.objects import (
    Check,
    Cluster,
    DeviceClaim,
    PodClaim,
    PodRules,
    extended_resources,
)
from contract.scheduling.gates import Gate
from contract.scheduling.needs import PodNeeds

_ELSEWHERE = Reason(Code.DEVICES_ELSEWHERE)


def check(pod: PodRules, needs: PodNeeds, cluster: Cluster) -> Check | None:
    """The requirements of the pod's claims and extended resources for a node; None for a pod without either."""
    beside = _beside_devices(needs, cluster)
    if Gate.CLAIMS not in cluster.gates or not (pod.claims or beside):
        return None
    claims: list[DeviceClaim] = []
    for named in pod.claims:
        claim = cluster.devices.claims.get((pod.namespace, named.name))
        wrong = _unusable(claim, named, pod, cluster)
        if claim is None or wrong:
            refusal = Reason(Code.RESOURCE_CLAIM, what=wrong)
            return lambda node: refusal
        claims.append(claim)
    allocated = [claim.nodes for claim in claims if claim.allocated and claim.nodes is not None and not claim.shares]
    failed = any(claim.failed for claim in claims) and _judges_binding(cluster)

    def reason(node: NodeState) -> Reason | None:
        listed = node.allocatable.scalars
        for name, much in beside if listed is not None else ():
            if name not in dict(listed or ()):
                return Reason(Code.RESOURCE, much, 0, what=name)
        reached = all(scheduling.any_term(nodes, node) for nodes in allocated)
        return None if reached and not failed else _ELSEWHERE

    return reason


def _beside_devices(needs: PodNeeds, cluster: Cluster) -> Scalars:
    """The extended resources without a DeviceClass, for a pod that also requests one with a DeviceClass."""
    extended = tuple(each for each in needs.compute.scalars or () if "/" in each[0] and "kubernetes.io/" not in each[0])
    if not extended or Gate.EXTENDED_RESOURCES_BY_CLAIM not in cluster.gates:
        return ()
    by_claim = extended_resources(cluster.devices)
    others = tuple(each for each in extended if each[0] not in by_claim)
    return others if any(name in by_claim for name, _ in needs.compute.scalars or ()) else ()


def unallocated(pod: PodRules, cluster: Cluster) -> bool:
    """Whether kube-scheduler has to allocate devices for the pod."""
    found = (cluster.devices.claims.get((pod.namespace, named.name)) for named in pod.claims)
    return Gate.CLAIMS in cluster.gates and any(
        claim is None or not (claim.allocated or claim.shares) for claim in found
    )


def _unusable(claim: DeviceClaim | None, named: PodClaim, pod: PodRules, cluster: Cluster) -> str:
    """Why the pod cannot use the claim on any node; empty if it can."""
    if not named.name:
        return "that is not made yet"
    if claim is None:
        return "that does not exist"
    if claim.deleting:
        return "that is being deleted"
    if named.template and claim.controller != pod.uid:
        return "that belongs to another pod"
    if claim.shares:
        return "that another pod uses" if claim.holder not in ("", pod.uid) else ""
    if not claim.allocated and not claim.classes <= cluster.devices.classes.keys():
        return "whose DeviceClass does not exist"
    return ""


def _judges_binding(cluster: Cluster) -> bool:
    return {Gate.BINDING_CONDITIONS, Gate.DEVICE_STATUS} <= cluster.gates
