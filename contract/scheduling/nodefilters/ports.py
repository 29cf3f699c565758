"""
Host ports: kube-scheduler's NodePorts.

Ports of init containers count only if these keep running. An empty address and 0.0.0.0 stand for all addresses; `::` is
an address like any other, as in the original (kube-scheduler/framework/types.go). Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from contract.scheduling.nodefilters.resources import containers

HostPort = tuple[str, str, int]
"""Address (empty for all), protocol and number."""
MOST_PORTS = 512
"""The most host ports of one pod that are compared one by one."""
EVERY_PORT: HostPort = ("", "*", 0)
"""Stands for all ports of a pod with more than `MOST_PORTS`: no pod that needs any host port fits alongside it."""
_ALL_ADDRESSES = ("", "0.0.0.0")


def host_ports(spec: Mapping[str, Any]) -> frozenset[HostPort]:
    """The pod's host ports, or `EVERY_PORT`."""
    found = frozenset(islice(_host_ports(spec), MOST_PORTS + 1))
    return found if len(found) <= MOST_PORTS else frozenset((EVERY_PORT,))


def _host_ports(spec: Mapping[str, Any]) -> Iterator[HostPort]:
    for container, ends in containers(spec):
        if ends:
            continue
        for port in container.get("ports") or []:
            number = port.get("hostPort") or (port.get("containerPort") if spec.get("hostNetwork") else 0)
            if number:
                address = port.get("hostIP") or ""
                address = "" if address in _ALL_ADDRESSES else address
                yield address, port.get("protocol") or "TCP", int(number)


def conflict(wanted: frozenset[HostPort], in_use: frozenset[HostPort]) -> HostPort | None:
    """A host port of a pod that its node has in use already, else None."""
    taken: dict[tuple[str, int], set[str]] = {}
    for address, protocol, port in in_use if wanted else ():
        taken.setdefault((protocol, port), set()).add(address)
    for address, protocol, port in sorted(wanted):
        others = taken.get((protocol, port), set())
        if EVERY_PORT in in_use or (others and (not address or "" in others or address in others)):
            return address, protocol, port
    return None
