"""
Whether a node admits a pod that was bound to it: kubelet's own admission.

It applies to a binding that bypasses the scheduler, and so to our placement: a pod that requests more of a resource
than the node has left fails with `OutOf<resource>`. The order and the messages are kubelet's
(`pkg/kubelet/lifecycle/predicate.go`, release 1.36). "used" counts the pods that the node admitted and that have not
ended. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from contract.scheduling import needs as scheduling
from playground.machinery.objects.resources import (
    Account,
    allocatable_of,
    is_extended,
    node_state,
    requests_of,
    shortages,
)

_NO_EXECUTE = "NoExecute"
_LINUX = "linux"


@dataclass(frozen=True, slots=True)
class Rejected:
    """The pod fails with this reason and message in its status."""

    reason: str
    message: str


def admit(pod: Mapping[str, Any], node: Mapping[str, Any], account: Account) -> Rejected | None:
    """Why the node rejects the pod, or None. The account has what the node has admitted so far."""
    system = (pod["spec"].get("os") or {}).get("name", _LINUX)
    if system != _LINUX:
        return Rejected(
            "PodOSNotSupported", "Pod was rejected: Failed to admit pod as the OS field doesn't match node OS"
        )
    state, needs = node_state(node, account.ports), scheduling.needs_of(pod)
    lacking = _lacking(pod, node, account)
    if lacking is not None:
        return lacking
    if not scheduling.selects(needs, state):
        return _predicate("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
    if needs.host_ports and scheduling.port_conflict(needs, state):
        return _predicate("NodePorts", "node(s) didn't have free ports for the requested pod ports")
    executing = replace(state, taints=tuple(t for t in state.taints if t.effect == _NO_EXECUTE))
    if scheduling.untolerated(executing, needs.tolerations):
        return _predicate("TaintToleration", "node(s) had taints that the pod didn't tolerate")
    return None


def _lacking(pod: Mapping[str, Any], node: Mapping[str, Any], account: Account) -> Rejected | None:
    allocatable = allocatable_of(node)
    # Kubelet ignores extended resources that its node does not have at all: they may belong to the cluster.
    wanted = {name: much for name, much in requests_of(pod).items() if name in allocatable or not is_extended(name)}
    short = shortages(wanted, account.free(allocatable))
    if not short:
        return None
    name = short[0]
    return Rejected(
        f"OutOf{name}",
        f"Pod was rejected: Node didn't have enough resource: {name}, requested: {wanted[name]}, "
        f"used: {account.used.get(name, 0)}, capacity: {allocatable.get(name, 0)}",
    )


def _predicate(name: str, why: str) -> Rejected:
    return Rejected(name, f"Pod was rejected: Predicate {name} failed: {why}")
