"""Pods of every dialect: created, deleted, ending by themselves."""

from __future__ import annotations

from typing import Any

from contract import names, pods
from playground.api.kinds.values import JSON
from playground.machinery.kubelet.podrun import RUN_SECONDS
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeNotFound
from tests.simulation.feature import Arguments, Draw, Feature, Goal, Operation, Violation
from tests.simulation.run import Run

NAMESPACES = ("team-a", "team-b")
_MIB = (512, 1024, 2048, 3000, 5000, 7000, 9000, 12000, 15000)
_GIB = (1, 2, 3, 5, 7, 10, 14)
_PERCENT = (10, 20, 30, 50, 70, 100)


def _native(draw: Draw) -> JSON:
    return {"gpufraction.io/gpu-memory": f"{draw.rng.choice(_MIB)}Mi"}


def _cores(draw: Draw) -> JSON:
    return {**_native(draw), "gpufraction.io/gpu-cores": str(draw.rng.choice(_PERCENT))}


def _whole(draw: Draw) -> JSON:
    return {"nvidia.com/gpu": str(draw.rng.choice((1, 1, 1, 2)))}


def _aliyun(draw: Draw) -> JSON:
    return {"aliyun.com/gpu-mem": str(draw.rng.choice(_GIB))}


def _vgpu(draw: Draw) -> JSON:
    return {
        "nvidia.com/gpu": str(draw.rng.choice((1, 1, 2))),
        "nvidia.com/gpumem": str(draw.rng.choice(_MIB)),
        "nvidia.com/gpucores": str(draw.rng.choice(_PERCENT)),
    }


def _percent(draw: Draw) -> JSON:
    return {"nano-gpu/gpu-percent": str(draw.rng.choice(_PERCENT))}


def _elastic(draw: Draw) -> JSON:
    return {"elasticgpu.io/gpu-memory": str(draw.rng.choice(_MIB))}


REQUESTS = (_native, _native, _native, _cores, _whole, _aliyun, _vgpu, _percent, _elastic)


def _pod(draw: Draw) -> Arguments:
    """A pod: what it requests, and for how many seconds it runs."""
    namespace, name = draw.rng.choice(NAMESPACES), draw.new("p")
    draw.names.append((namespace, name))
    runs = draw.rng.choice((None, None, None, 5, 20, 60))
    arguments: dict[str, Any] = {"namespace": namespace, "name": name, "limits": draw.rng.choice(REQUESTS)(draw)}
    if runs is not None:
        arguments["runs"] = runs
    if draw.rng.random() < 0.05:
        arguments["node"] = draw.rng.choice(draw.nodes)
    return arguments


def manifest(arguments: Arguments) -> JSON:
    """The pod as its author writes it."""
    metadata: JSON = {"name": arguments["name"], "namespace": arguments["namespace"]}
    spec: JSON = {
        "restartPolicy": "Never",
        "containers": [{"name": "main", "image": "cuda", "resources": {"limits": dict(arguments["limits"])}}],
    }
    if "runs" in arguments:
        metadata["annotations"] = {RUN_SECONDS: str(arguments["runs"])}
    if "node" in arguments:
        spec["nodeSelector"] = {"kubernetes.io/hostname": arguments["node"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def create(run: Run, arguments: Arguments) -> None:
    """Create the pod."""
    document = manifest(arguments)
    asks = " ".join(f"{key}={value}" for key, value in arguments["limits"].items())
    run.tell("user", f"creates pod {arguments['namespace']}/{arguments['name']} ({asks})")
    run.user.create(paths.pods(arguments["namespace"]), document)
    run.submitted[arguments["namespace"], arguments["name"]] = document


def _victim(draw: Draw) -> Arguments | None:
    if not draw.names:
        return None
    namespace, name = draw.rng.choice(draw.names)
    return {"namespace": namespace, "name": name}


def _delete(run: Run, arguments: Arguments) -> None:
    run.tell("user", f"deletes pod {arguments['namespace']}/{arguments['name']}")
    try:
        run.user.delete(paths.pods(arguments["namespace"], arguments["name"]))
    except KubeNotFound:
        return


def _burst(draw: Draw) -> Arguments:
    return {"pods": [dict(_pod(draw)) for _ in range(draw.rng.randint(3, 8))]}


def _create_many(run: Run, arguments: Arguments) -> None:
    for each in arguments["pods"]:
        run.kernel.spawn(run.world.admin, lambda e=each: _tolerant(run, e), "create")  # type: ignore[misc]


def _tolerant(run: Run, arguments: Arguments) -> None:
    try:
        create(run, arguments)
    except Exception as error:
        run.tell("user", f"pod {arguments['name']} was not created: {error}")


# -- what holds in the end ---------------------------------------------------------------------------------------


def _forgotten(run: Run) -> list[Violation]:
    """Pods that asked for a share and neither have one, nor wait with a reason, nor say why they have none."""
    wrong = []
    for pod in run.world.api.store.scan("pods"):
        if (
            names.REQUEST not in pods.annotations_of(pod)
            or pods.finished(pod)
            or pod["metadata"].get("deletionTimestamp")
        ):
            continue
        if problem := _problem(pod):
            wrong.append(f"{pods.key(pod)} {problem}")
    return wrong


def _problem(pod: JSON) -> str:
    conditions = {c["type"]: c for c in (pod.get("status") or {}).get("conditions") or ()}
    told = conditions.get(names.ALLOCATED_CONDITION, {})
    if names.GATE in pods.gates(pod):
        return "" if told.get("status") == "False" and told.get("reason") else f"waits, and its condition is {told}"
    if names.WITHDRAWN in pods.annotations_of(pod):
        return "" if told.get("status") == "False" else f"lost its share, and its condition is {told}"
    request = pods.admitted(pod)
    if request is None or pods.allocation_of(pod, request) is None:
        return "asked for a share, and neither has one nor waits"
    phase = (pod.get("status") or {}).get("phase")
    return "" if phase == "Running" else f"has a share, and is {phase}"


def _fits(run: Run) -> list[Violation]:
    """Pods that wait although a fresh look at the leader's cluster would place them."""
    from allocator.server import debug

    leader = run.world.leader()
    if leader is None:
        return ["nobody leads"]
    view = leader.running.allocator.controller.view()
    queued = {each.uid for each in view.queue}
    wrong = [
        f"{each.pod.key} waits, and fits: {each.reason}" for each in debug.one_cycle(view) if each.code == "Placed"
    ]
    for pod in run.world.api.store.scan("pods"):
        gated = names.GATE in pods.gates(pod) and not pod["metadata"].get("deletionTimestamp")
        if gated and pods.admitted(pod) is not None and pods.uid(pod) not in queued:
            wrong.append(f"{pods.key(pod)} waits, and {leader.name} does not know it")
    return wrong


def _nothing_assumed(run: Run) -> list[Violation]:
    """Reservations of pods that never came."""
    return [
        f"{program.name} holds {assumed} shares for pods that are not there"
        for program in run.world.allocators
        if program.alive and program.running
        if (assumed := program.running.allocator.controller.look().assumed)
    ]


def _serving(run: Run) -> list[Violation]:
    return [f"{each.name} does not run" for each in run.world.programs() if not each.alive or each.running is None]


FEATURE = Feature(
    "workload",
    operations=(
        Operation("pod.create", 10, _pod, create),
        Operation("pod.delete", 4, _victim, _delete),
        Operation("pods.create", 1, _burst, _create_many),
    ),
    goals=(
        Goal("every program runs", _serving),
        Goal("no pod is forgotten", _forgotten),
        Goal("what fits is placed", _fits),
        Goal("no share is left over", _nothing_assumed),
    ),
)
