"""Namespaces: whether gpufraction serves them, their quotas and limits, and one that is deleted and created again."""

from __future__ import annotations

from typing import Any

from contract import names, pods
from playground.api.kinds.values import JSON
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeConflict, KubeError, KubeNotFound
from tests.simulation.feature import Arguments, Draw, Feature, Goal, Operation, Violation
from tests.simulation.features import workload
from tests.simulation.run import Run

PASSING = "team-c"
"""The namespace that comes and goes."""


def _path(name: str | None = None) -> str:
    return paths.path("v1", "namespaces", None, name)


def _switched(draw: Draw) -> Arguments:
    return {"namespace": draw.rng.choice(workload.NAMESPACES), "on": draw.rng.random() < 0.6}


def _switch(run: Run, arguments: Arguments) -> None:
    """Set or remove the label that makes gpufraction serve a namespace."""
    run.tell("administrator", f"switches {arguments['namespace']} {'on' if arguments['on'] else 'off'}")
    value = names.INJECT_ENABLED if arguments["on"] else None
    run.user.patch_merge(_path(arguments["namespace"]), {"metadata": {"labels": {names.INJECT_LABEL: value}}})


def _limited(draw: Draw) -> Arguments:
    return {
        "namespace": draw.rng.choice(workload.NAMESPACES),
        "memory": draw.rng.choice(("0", "6Gi", "20Gi", "100Gi", "")),
        "pods": draw.rng.choice((0, 2, 5, 50)),
    }


def _limit(run: Run, arguments: Arguments) -> None:
    """Set a ResourceQuota; delete it if no amount of memory is given."""
    run.tell("administrator", f"sets the quota of {arguments['namespace']} to {arguments['memory'] or 'none'}")
    hard = {f"requests.{names.GPU_MEMORY}": arguments["memory"], "pods": str(arguments["pods"])}
    _set(
        run, "resourcequotas", "ResourceQuota", arguments["namespace"], {"hard": hard} if arguments["memory"] else None
    )


def _ranged(draw: Draw) -> Arguments:
    return {
        "namespace": draw.rng.choice(workload.NAMESPACES),
        "default": draw.rng.choice(("", "500m", "2")),
        "most": draw.rng.choice(("", "8Gi")),
    }


def _range(run: Run, arguments: Arguments) -> None:
    """Set a LimitRange of CPU and of our accounting resource; delete it if neither is given."""
    item: JSON = {"type": "Container"}
    if arguments["default"]:
        item["defaultRequest"] = {"cpu": arguments["default"]}
    if arguments["most"]:
        item["max"] = {str(names.GPU_MEMORY): arguments["most"]}
    run.tell("administrator", f"sets the LimitRange of {arguments['namespace']} to {item}")
    _set(run, "limitranges", "LimitRange", arguments["namespace"], {"limits": [item]} if len(item) > 1 else None)


def _set(run: Run, plural: str, kind: str, namespace: str, spec: JSON | None) -> None:
    """Create, change or delete the namespace's object of that kind."""
    path = paths.path("v1", plural, namespace)
    if spec is None:
        try:
            run.user.delete(f"{path}/sim")
        except KubeNotFound:
            return
        return
    try:
        run.user.create(path, {"apiVersion": "v1", "kind": kind, "metadata": {"name": "sim"}, "spec": spec})
    except KubeConflict:
        run.user.patch_merge(f"{path}/sim", {"spec": spec})


def _passing(draw: Draw) -> Arguments:
    made = [{**workload.pod_of(draw), "namespace": PASSING} for _ in range(draw.rng.randint(1, 4))]
    draw.names[-len(made) :] = [(PASSING, each["name"]) for each in made]
    return {"pods": made, "stays": round(draw.rng.uniform(0.5, 30), 2)}


def _pass(run: Run, arguments: Arguments) -> None:
    """The namespace is created with its pods, stays for a while, and is deleted with everything in it."""
    run.tell("user", f"makes namespace {PASSING} for {arguments['stays']} s")
    labels = {str(names.INJECT_LABEL): names.INJECT_ENABLED}
    head: dict[str, Any] = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": PASSING, "labels": labels}}
    try:
        run.user.create(_path(), head)
    except KubeConflict:
        run.tell("user", "that namespace is there")
    for each in arguments["pods"]:
        try:
            workload.create(run, each)
        except KubeError as error:
            run.tell("user", f"pod {each['name']} was not created: {error}")
    run.sleep(arguments["stays"])
    run.tell("user", f"deletes namespace {PASSING}")
    try:
        run.user.delete(_path(PASSING))
    except KubeNotFound:
        return


def _terminating(run: Run) -> list[Violation]:
    """Namespaces that are being deleted and do not go away."""
    store = run.world.api.store
    wrong = []
    for each in store.scan("namespaces"):
        if each["metadata"].get("deletionTimestamp"):
            name = each["metadata"]["name"]
            left = [pods.key(pod) for pod in store.scan("pods", name)]
            wrong.append(f"namespace {name} is deleted and still there, with pods {left}")
    return wrong


FEATURE = Feature(
    "namespaces",
    operations=(
        Operation("namespace.switch", 2, _switched, _switch),
        Operation("quota.change", 3, _limited, _limit),
        Operation("limits.change", 2, _ranged, _range),
        Operation("namespace.pass", 1, _passing, _pass),
    ),
    goals=(Goal("deleted namespaces go", _terminating),),
)
