"""The findings about what each node enforces, by cases: the level, and the one command that enforces more."""

from __future__ import annotations

from typing import Any

import pytest

from kubectl_gpufraction.check import enforcement
from kubectl_gpufraction.check.facts import ClusterFacts
from kubectl_gpufraction.check.findings import OK, WARN, Unseen

JSON = dict[str, Any]
COUNTED = "shares are counted, and nothing limits a program to its share"
WATCHED = "use beyond a share is reported (watch), and nothing limits a program to its share"
ACCESS = "kustomize edit add component manifests/components/node-access && kubectl apply -k YOUR_KUSTOMIZATION"
LIBRARY = "kustomize edit add component manifests/components/preload && kubectl apply -k YOUR_KUSTOMIZATION"
DRIVER = "kubectl -n gpufraction-nodes set env daemonset/gpufraction-nodeagent GPUFRACTION_DRIVER_LIMITS=true"
STEPS = "see docs/isolation.md#switch-a-limiter-on, which chooses the way by what the node has"


def gpunode(
    name: str, *levels: str, driver: str = "595.10", health: str = "Healthy", parent: str = "", **delivery: Any
) -> JSON:
    """The inventory of a node of one card or slice, with what it enforces."""
    status = {
        "driverVersion": driver,
        "isolation": list(levels),
        "delivery": delivery,
        "gpus": [{"health": health, "usableBytes": 1, "parent": parent}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    return {"metadata": {"name": name}, "status": status}


def agent(**settings: str) -> tuple[JSON, ...]:
    """The agent's DaemonSet with these settings in its environment."""
    env = [{"name": f"GPUFRACTION_{name}", "value": value} for name, value in settings.items()]
    container = {"name": "nodeagent", "command": ["python", "-m", "nodeagent", "run"], "env": env}
    spec = {"template": {"spec": {"containers": [container]}}}
    return ({"metadata": {"name": "gpufraction-nodeagent"}, "spec": spec},)


BASE, ACCESSIBLE = agent(), agent(PODS="true", HOST_ROOT="/host")
CASES: dict[str, tuple[tuple[JSON, ...], Any, list[tuple[str, str, str]]]] = {
    "a default installation": (
        (gpunode("a"), gpunode("b", driver="615.2")),
        BASE,
        [(WARN, f"a, b: {COUNTED}", ACCESS)],
    ),
    "with access, and nothing seen": (
        (gpunode("a"),),
        ACCESSIBLE,
        [(WARN, f"a: {COUNTED}", "kubectl get gpunode a -o yaml")],
    ),
    "watched, with a driver that limits": (
        (gpunode("a", "watch", driver="615.71.09"),),
        ACCESSIBLE,
        [(WARN, f"a: {WATCHED}", DRIVER)],
    ),
    "watched, where the library comes by a CDI device": (
        (gpunode("a", "watch", cdiKind="nvidia.com/gpu"), gpunode("b", "watch", byAnnotation=True)),
        ACCESSIBLE,
        [(WARN, f"a, b: {WATCHED}", LIBRARY)],
    ),
    "watched, where only volumes bring the library": (
        (gpunode("a", "watch"), gpunode("b", "watch", cdiKind="runtime.nvidia.com/gpu")),
        ACCESSIBLE,
        [(WARN, f"a, b: {WATCHED}", STEPS)],
    ),
    "chosen, and it does not work": (
        (gpunode("a", "watch", driver="615.1"), gpunode("b", "watch", driver="")),
        agent(PODS="true", HOST_ROOT="/host", DRIVER_LIMITS="true"),
        [(WARN, f"a, b: {WATCHED}", "kubectl get gpunode a -o yaml")],
    ),
    "each node has another level": (
        (gpunode("a", "driver", "watch"), gpunode("b", "mps"), gpunode("c", "preload", "watch"), gpunode("d")),
        BASE,
        [
            (OK, "a: driver limits programs to their shares", ""),
            (OK, "b: mps limits programs to their shares", ""),
            (OK, "c: preload limits programs to their shares, unless they bypass its library", ""),
            (WARN, f"d: {COUNTED}", ACCESS),
        ],
    ),
    "slices of MIG": (
        (gpunode("a", driver="615.1", parent="GPU-1"), gpunode("b", "watch", parent="GPU-2")),
        ACCESSIBLE,
        [
            (
                WARN,
                "a, b: a MIG slice limits all its pods together, but nothing limits each of them",
                "give a pod a slice to itself: gpufraction.io/gpu-count: 1",
            )
        ],
    ),
    "who may not see the agent": (
        (gpunode("a"),),
        Unseen("you may not list daemonsets"),
        [(WARN, f"a: {COUNTED}", STEPS)],
    ),
    "a node that shares nothing": ((gpunode("a", health="NotShared"),), BASE, []),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_enforced_and_what_enforces_more(name: str) -> None:
    gpunodes, daemonsets, wanted = CASES[name]
    facts = ClusterFacts(now=0.0, version=(1, 36), gpunodes=gpunodes, daemonsets=daemonsets)
    found = list(enforcement.findings(facts))
    assert [(each.level, each.found, each.cure) for each in found] == wanted
    assert {each.check for each in found} <= {"enforcement"}


@pytest.mark.parametrize("gpunodes", [None, Unseen("you may not list gpunodes")])
def test_nothing_is_said_of_nodes_that_are_not_seen(gpunodes: Any) -> None:
    assert list(enforcement.findings(ClusterFacts(now=0.0, version=(1, 36), gpunodes=gpunodes))) == []
