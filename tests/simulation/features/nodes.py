"""Nodes that administrators maintain: cordoned, drained, tainted, labelled, removed and returned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from contract import pods
from playground.api.kinds.values import JSON
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeConflict, KubeError, KubeNotFound
from tests.simulation.feature import Arguments, Draw, Feature, Invariant, Operation, Violation
from tests.simulation.features import workload
from tests.simulation.run import Run

ZONE = "example.com/zone"
TAINT = {"key": "example.com/reserved", "value": "yes"}
_TRIES, _PAUSE = 10, 3.0
"""How often a drain tries to evict a pod whose budget forbids it, and the seconds between two attempts."""


def _node(name: str) -> str:
    return paths.path("v1", "nodes", None, name)


def _some(draw: Draw) -> dict[str, Any]:
    return {"node": draw.rng.choice(draw.nodes)}


def _change(run: Run, node: str, what: str, change: JSON) -> None:
    run.tell("administrator", f"{what} {node}")
    try:
        run.user.patch_merge(_node(node), change)
    except KubeNotFound:
        return


def _cordon(run: Run, arguments: Arguments) -> None:
    _change(run, arguments["node"], "cordons", {"spec": {"unschedulable": True}})


def _uncordon(run: Run, arguments: Arguments) -> None:
    _change(run, arguments["node"], "uncordons", {"spec": {"unschedulable": None}})


def _drain(run: Run, arguments: Arguments) -> None:
    """`kubectl drain`: cordon, evict every pod, and uncordon after a while."""
    node = arguments["node"]
    _cordon(run, arguments)
    there = [pod for pod in run.world.api.store.scan("pods") if pod["spec"].get("nodeName") == node]
    for pod in there:
        _evict(run, pod)
    run.sleep(arguments["away"])
    _uncordon(run, arguments)


def _evict(run: Run, pod: JSON) -> None:
    metadata = pod["metadata"]
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
    }
    path = paths.pods(metadata["namespace"], metadata["name"], "eviction")
    for _ in range(_TRIES):
        try:
            run.user.create(path, eviction)
        except KubeNotFound:
            return
        except KubeError as error:
            if error.status != 429:
                raise
            run.sleep(_PAUSE)
        else:
            run.tell("administrator", f"evicts {pods.key(pod)}")
            return


def _away(draw: Draw) -> Arguments:
    return {**_some(draw), "away": round(draw.rng.uniform(0.5, 20), 2)}


def _tainted(draw: Draw) -> Arguments:
    return {**_some(draw), "effect": draw.rng.choice(("NoSchedule", "PreferNoSchedule", ""))}


def _taint(run: Run, arguments: Arguments) -> None:
    """Taint the node like this; without an effect, remove the taint."""
    effect = arguments["effect"]
    found = run.world.api.store.get("nodes", ("", arguments["node"]))
    if found is None:
        return
    others = [each for each in found["spec"].get("taints") or () if each["key"] != TAINT["key"]]
    taints = [*others, {**TAINT, "effect": effect}] if effect else others
    _change(run, arguments["node"], f"taints ({effect or 'no more'})", {"spec": {"taints": taints}})


def _labelled(draw: Draw) -> Arguments:
    return {**_some(draw), "zone": draw.rng.choice(("a", "b", ""))}


def _label(run: Run, arguments: Arguments) -> None:
    zone = arguments["zone"] or None
    _change(run, arguments["node"], f"labels ({zone})", {"metadata": {"labels": {ZONE: zone}}})


def _in_zone(draw: Draw) -> Arguments:
    """A pod that selects nodes by the label."""
    found = workload.pod_of(draw)
    found.pop("node", None)
    return {**found, "selects": {ZONE: draw.rng.choice(("a", "b"))}}


def _removed(draw: Draw) -> Arguments:
    return {**_some(draw), "away": round(draw.rng.uniform(1, 30), 2)}


def _remove(run: Run, arguments: Arguments) -> None:
    """The machine goes away with its agent and its pods, and one of the same name joins a while later."""
    name, store = arguments["node"], run.world.api.store
    found = store.get("nodes", ("", name))
    if found is None:
        return
    run.tell("administrator", f"takes node {name} away for {arguments['away']} s")
    agent = run.world.agents[name]
    agent.stop()
    run.sleep(0.5)
    agent.kill()
    _tolerantly(lambda: run.user.delete(_node(name)))
    for pod in [each for each in store.scan("pods") if each["spec"].get("nodeName") == name]:
        _collect(run, pod)
    run.sleep(arguments["away"])
    run.world.add_node(name)
    agent.start()
    run.tell("administrator", f"gives node {name} back")


def _collect(run: Run, pod: JSON) -> None:
    """What kube-controller-manager does to a pod whose node does not exist."""
    metadata = pod["metadata"]
    options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
    _tolerantly(lambda: run.user.delete(paths.pods(metadata["namespace"], metadata["name"]), options))


def _tolerantly(call: Callable[[], object]) -> None:
    try:
        call()
    except KubeNotFound:
        return


def _budget(draw: Draw) -> Arguments:
    return {
        "namespace": draw.rng.choice(workload.NAMESPACES),
        "name": draw.rng.choice(("one", "two")),
        "most": draw.rng.choice((0, 1, 2)),
    }


def _guard(run: Run, arguments: Arguments) -> None:
    """Create a PodDisruptionBudget for all pods of the namespace; if one of that name exists, delete it instead."""
    path = paths.path("policy/v1", "poddisruptionbudgets", arguments["namespace"])
    spec = {"maxUnavailable": arguments["most"], "selector": {"matchLabels": {}}}
    head = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": arguments["name"]}}
    try:
        run.user.create(path, {**head, "spec": spec})
        run.tell("user", f"guards {arguments['namespace']}: {arguments['most']} may be evicted at a time")
    except KubeConflict:
        _tolerantly(lambda: run.user.delete(f"{path}/{arguments['name']}"))


def _not_where_it_may_not(run: Run) -> Callable[[Any], Violation | None]:
    """A pod is placed on a node that its selector matches. Later changes do not count."""

    def holds(change: Any) -> Violation | None:
        if change.resource != "pods" or change.type == "DELETED":
            return None
        before, spec = change.previous or {"spec": {}}, change.object["spec"]
        node, selector = spec.get("nodeName"), spec.get("nodeSelector") or {}
        if not node or before["spec"].get("nodeName") == node or not selector:
            return None
        found = run.world.api.store.get("nodes", ("", node))
        if found is None:
            return None
        labels = found["metadata"].get("labels") or {}
        wrong = {key: value for key, value in selector.items() if labels.get(key) != value}
        return f"{pods.key(change.object)} goes to {node}, which lacks {wrong}" if wrong else None

    return holds


FEATURE = Feature(
    "nodes",
    operations=(
        Operation("node.cordon", 2, _some, _cordon),
        Operation("node.uncordon", 3, _some, _uncordon),
        Operation("node.drain", 2, _away, _drain),
        Operation("node.taint", 2, _tainted, _taint),
        Operation("node.label", 3, _labelled, _label),
        Operation("node.remove", 1, _removed, _remove),
        Operation("pod.in-zone", 3, _in_zone, workload.create),
        Operation("budget.change", 2, _budget, _guard),
    ),
    invariants=(Invariant("a pod is where its selector takes it", _not_where_it_may_not),),
)
