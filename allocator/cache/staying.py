"""
The resources of the pods that every node of a pool has: those of DaemonSets, and static ones.

Owner references identify these pods, and any tenant can write such references. So the amount that a namespace's pods
can subtract from an empty node is bounded, except for namespaces in which only administrators create pods. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from contract import names
from contract.model import Compute, Scalars
from contract.scheduling.nodefilters.resources import added_up

HostPorts = frozenset[tuple[str, str, int]]
_TRUSTED = frozenset(("kube-system", str(names.NAMESPACE)))
"""Namespaces in which no tenant creates pods."""
_OF_ONE, _OF_ALL = 8, 4
"""Another namespace's pods, and all such pods together, count for at most one part in this many of a node's amounts."""


@dataclass(frozen=True, slots=True)
class StayingPod:
    """A pod that stays with its node by its own data, and its usage there."""

    namespace: str
    compute: Compute
    host_ports: HostPorts = frozenset()


def taken_by(pods: Iterable[StayingPod], allocatable: Compute) -> tuple[Compute, HostPorts]:
    """The usage of these pods on a new node of the same kind with these amounts: amounts, and ports of the host."""
    sums: dict[str, tuple[int, int, int, int]] = {}
    ports: HostPorts = frozenset()
    listed = list(pods)
    for pod in listed:
        taken, whose = pod.compute, pod.namespace if pod.namespace not in _TRUSTED else ""
        before = sums.get(whose, (0, 0, 0, 0))
        sums[whose] = (
            before[0] + taken.cpu,
            before[1] + taken.memory,
            before[2] + taken.storage,
            before[3] + taken.pods,
        )
        if not whose:
            ports |= pod.host_ports
    has = (allocatable.cpu, allocatable.memory, allocatable.storage, allocatable.pods)
    trusted = sums.pop("", (0, 0, 0, 0))
    cpu, memory, storage, count = (
        own + min(whole // _OF_ALL, sum(min(amount, whole // _OF_ONE) for amount in others))
        for own, whole, *others in zip(trusted, has, *sums.values(), strict=True)
    )
    return Compute(cpu, memory, storage, count, _scalars(listed, allocatable)), ports


def _scalars(pods: list[StayingPod], allocatable: Compute) -> Scalars:
    """Of other resources, only what the pods of trusted namespaces take: few nodes have any, and tenants' claims do not
    count."""
    taken = added_up(pod.compute.scalars for pod in pods if pod.compute.scalars and pod.namespace in _TRUSTED)
    return tuple(each for each in taken if each[0] in dict(allocatable.scalars or ()))
