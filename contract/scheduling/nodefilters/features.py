"""
Declared features of nodes that pods need: kube-scheduler's NodeDeclaredFeatures (1.36).

A node lists the features of its kubelet and its runtime. Two of them decide about pods that are not placed yet
(component-helpers/nodedeclaredfeatures). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from contract.scheduling.nodefilters.resources import containers

RESTART_ALL = "RestartAllContainersOnContainerExits"
HOST_NETWORK_OF_USERS = "UserNamespacesHostNetworkSupport"
DECIDING = frozenset((RESTART_ALL, HOST_NETWORK_OF_USERS))
RESTART_ACTION = "RestartAllContainers"
_NONE: frozenset[str] = frozenset()


def needed(spec: Mapping[str, Any]) -> frozenset[str]:
    """The declared features that a pod needs of its node."""
    found = set()
    if spec.get("hostNetwork") and spec.get("hostUsers") is False:
        found.add(HOST_NETWORK_OF_USERS)
    if any(map(restarts_all, (container for container, _ in containers(spec)))):
        found.add(RESTART_ALL)
    return frozenset(found) if found else _NONE


def restarts_all(container: Mapping[str, Any]) -> bool:
    """Whether a container's exit may restart all containers of its pod."""
    rules = container.get("restartPolicyRules")
    return bool(rules) and any(rule.get("action") == RESTART_ACTION for rule in rules or ())


def declared(features: Iterable[object]) -> frozenset[str]:
    """The features of a node that decide about pods."""
    return DECIDING.intersection(each for each in features if isinstance(each, str)) or _NONE
