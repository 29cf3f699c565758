"""
Deployments, Jobs and StatefulSets that are scaled, rolled out and deleted. The machinery's controllers do the rest.
"""

from __future__ import annotations

from typing import Any

from playground.api.kinds.values import JSON
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeNotFound
from tests.simulation.feature import Arguments, Draw, Feature, Operation
from tests.simulation.features import workload
from tests.simulation.run import Run

KINDS = {"Deployment": "deployments", "StatefulSet": "statefulsets", "Job": "jobs"}
MOST = 4
"""Pods of one controller."""


def _api(kind: str) -> str:
    return "batch/v1" if kind == "Job" else "apps/v1"


def _path(arguments: Arguments, *, named: bool = True) -> str:
    kind = arguments["kind"]
    name = arguments["name"] if named else None
    return paths.path(_api(kind), KINDS[kind], arguments["namespace"], name)


def _made(draw: Draw) -> Arguments:
    kind = draw.rng.choice(("Deployment", "Deployment", "Job", "StatefulSet"))
    template = workload.pod_of(draw)
    draw.names.pop()  # the controller names its pods
    arguments: dict[str, Any] = {
        "kind": kind,
        "namespace": template["namespace"],
        "name": draw.new(kind.lower()),
        "replicas": draw.rng.randint(1, MOST),
        "template": {key: value for key, value in template.items() if key not in ("namespace", "name", "node")},
    }
    if kind != "Job":
        arguments["template"].pop("runs", None)
    elif "runs" not in template:
        arguments["template"]["runs"] = draw.rng.choice((3, 10, 30))
    draw.made.setdefault("controllers", []).append({key: arguments[key] for key in ("kind", "namespace", "name")})
    return arguments


def document(arguments: Arguments) -> JSON:
    """The controller as its author writes it."""
    kind, name = arguments["kind"], arguments["name"]
    pod = workload.manifest({**arguments["template"], "name": name, "namespace": arguments["namespace"]})
    labels = {**(pod["metadata"].get("labels") or {}), "app": name}
    metadata: JSON = {"labels": labels}
    if annotations := pod["metadata"].get("annotations"):
        metadata["annotations"] = annotations
    template = {"metadata": metadata, "spec": pod["spec"]}
    spec: JSON = {"template": template}
    if kind == "Job":
        metadata.pop("labels")
        spec |= {"completions": arguments["replicas"], "parallelism": min(arguments["replicas"], 2), "backoffLimit": 2}
    else:
        pod["spec"].pop("restartPolicy", None)
        spec |= {"replicas": arguments["replicas"], "selector": {"matchLabels": {"app": name}}}
    if kind == "StatefulSet":
        spec["serviceName"] = name
    head = {"name": name, "namespace": arguments["namespace"]}
    return {"apiVersion": _api(kind), "kind": kind, "metadata": head, "spec": spec}


def _create(run: Run, arguments: Arguments) -> None:
    asks = " ".join(f"{key}={value}" for key, value in arguments["template"]["limits"].items())
    run.tell("user", f"creates {arguments['kind']} {arguments['name']} of {arguments['replicas']} pods ({asks})")
    run.user.create(_path(arguments, named=False), document(arguments))


def _some(draw: Draw) -> dict[str, Any] | None:
    made = draw.made.get("controllers")
    return dict(draw.rng.choice(made)) if made else None


def _scaled(draw: Draw) -> Arguments | None:
    chosen = _some(draw)
    return None if chosen is None else {**chosen, "replicas": draw.rng.randint(0, MOST)}


def _scale(run: Run, arguments: Arguments) -> None:
    field = "parallelism" if arguments["kind"] == "Job" else "replicas"
    run.tell("user", f"scales {arguments['kind']} {arguments['name']} to {arguments['replicas']}")
    _patch(run, arguments, {"spec": {field: arguments["replicas"]}})


def _rolled(draw: Draw) -> Arguments | None:
    chosen = _some(draw)
    if chosen is None or chosen["kind"] == "Job":  # its template may not change
        return None
    return {**chosen, "memory": draw.rng.choice((512, 2048, 6000))}


def _roll(run: Run, arguments: Arguments) -> None:
    """Put another request in the template, which replaces all pods."""
    run.tell("user", f"rolls {arguments['kind']} {arguments['name']} to {arguments['memory']} MiB")
    limits = {"gpufraction.io/gpu-memory": f"{arguments['memory']}Mi"}
    container = {"name": "main", "image": "cuda", "resources": {"limits": limits}}
    _patch(run, arguments, {"spec": {"template": {"spec": {"containers": [container]}}}})


def _patch(run: Run, arguments: Arguments, change: JSON) -> None:
    try:
        run.user.patch_merge(_path(arguments), change)
    except KubeNotFound:
        return


def _deleted(draw: Draw) -> Arguments | None:
    chosen = _some(draw)
    return None if chosen is None else {**chosen, "policy": draw.rng.choice(("Background", "Background", "Foreground"))}


def _delete(run: Run, arguments: Arguments) -> None:
    run.tell("user", f"deletes {arguments['kind']} {arguments['name']}, {arguments['policy']}")
    options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": arguments["policy"]}
    try:
        run.user.delete(_path(arguments), options)
    except KubeNotFound:
        return


FEATURE = Feature(
    "controllers",
    operations=(
        Operation("controller.create", 4, _made, _create),
        Operation("controller.scale", 2, _scaled, _scale),
        Operation("controller.roll", 2, _rolled, _roll),
        Operation("controller.delete", 2, _deleted, _delete),
    ),
)
