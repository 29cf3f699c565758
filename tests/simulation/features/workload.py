"""Pods of every dialect, which users create and delete and which end by themselves."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

from contract import names, pods
from contract.dialects import DIALECTS, claims
from contract.dialects.base import Example, Refusal
from contract.encoding import moments
from contract.nodes.inventories import inventory_from_object
from contract.reasons.pods import PodReason
from playground.api.kinds.values import JSON
from playground.machinery.kubelet.podrun import EXIT_CODE, RUN_SECONDS, start_seconds
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeError, KubeNotFound
from tests.simulation.feature import Arguments, Draw, Feature, Goal, Operation, Violation
from tests.simulation.features.cards import GPUNODES
from tests.simulation.kernel.scheduler import BEGINNING
from tests.simulation.run import Run

NAMESPACES = ("team-a", "team-b")
PRIORITIES = {"sim-high": 1000, "sim-low": -10}
"""PriorityClasses that every cluster of the simulation has, by name."""
_MIB = (512, 1024, 2048, 3000, 5000, 7000, 9000, 12000, 15000)
_GIB = (1, 2, 3, 5, 7, 10, 14)
_PERCENT = (10, 20, 30, 50, 70, 100)
_GRACE = (None, None, 0, 1, 5, 60)
_STARTS = 5.0
"""Seconds within which a container runs once it is allowed to."""


# -- what a container requests -----------------------------------------------------------------------------------


def _native(draw: Draw) -> JSON:
    return {"gpufraction.io/gpu-memory": f"{draw.rng.choice(_MIB)}Mi"}


def _cores(draw: Draw) -> JSON:
    return {**_native(draw), "gpufraction.io/gpu-cores": str(draw.rng.choice(_PERCENT))}


def _several(draw: Draw) -> JSON:
    return {**_native(draw), "gpufraction.io/gpu-count": str(draw.rng.choice((2, 2, 3, 4)))}


def _bursting(draw: Draw) -> JSON:
    asked = draw.rng.choice(_MIB[:6])
    limit = asked * draw.rng.choice((1, 1, 2, 3))
    return {"gpufraction.io/gpu-memory": f"{asked}Mi", "gpufraction.io/gpu-memory-limit": f"{limit}Mi"}


def _whole(draw: Draw) -> JSON:
    return {"nvidia.com/gpu": str(draw.rng.choice((1, 1, 1, 2)))}


def _aliyun(draw: Draw) -> JSON:
    return {"aliyun.com/gpu-mem": str(draw.rng.choice(_GIB))}


def _split(draw: Draw) -> JSON:
    count = draw.rng.choice((1, 2, 4))
    return {"aliyun.com/gpu-mem": str(count * draw.rng.choice(_GIB[:4])), "aliyun.com/gpu-count": str(count)}


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


REQUESTS = (_native, _native, _native, _cores, _several, _bursting, _whole, _aliyun, _split, _vgpu, _percent, _elastic)
_BY_PART = {
    "gpufraction.io/": (_native, _cores),
    "aliyun.com/": (_aliyun,),
    "nvidia.com/": (_vgpu,),
    "nano-gpu/": (_percent,),
    "elasticgpu.io/": (_elastic,),
}
"""What a further container may request, by the prefix of the names in the pod's dialect."""


def _examples(*, refused: bool) -> tuple[Example, ...]:
    """The examples of all dialects that name no claim: either those that are refused as written, or the others."""
    every = (each for dialect in DIALECTS if dialect.name != claims.DIALECT.name for each in dialect.examples)
    return tuple(each for each in every if isinstance(DIALECTS.read(_written(each)), Refusal) is refused)


def _written(example: Example) -> JSON:
    limits = {str(key): value for key, value in example.limits.items()}
    metadata = {"annotations": dict(example.annotations), "labels": dict(example.labels)}
    return {"metadata": metadata, "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}}


# -- pods --------------------------------------------------------------------------------------------------------


def pod_of(draw: Draw) -> dict[str, Any]:
    """A pod: what it requests, how long it runs, and where it may run."""
    namespace, name = draw.rng.choice(NAMESPACES), draw.new("p")
    draw.names.append((namespace, name))
    runs = draw.rng.choice((None, None, None, 5, 20, 60))
    arguments: dict[str, Any] = {"namespace": namespace, "name": name}
    if draw.rng.random() < 0.2:
        arguments |= _example(draw.rng.choice(_examples(refused=False)))
    else:
        arguments["limits"] = draw.rng.choice(REQUESTS)(draw)
    if runs is not None:
        arguments["runs"] = runs
    for chance, more in _MORE:
        if draw.rng.random() < chance:
            arguments |= more(draw, arguments)
    return arguments


def _example(example: Example) -> dict[str, Any]:
    found: dict[str, Any] = {"limits": {str(key): value for key, value in example.limits.items()}}
    for what in ("annotations", "labels"):
        if values := {str(key): value for key, value in getattr(example, what).items()}:
            found[what] = values
    return found


def _on_node(draw: Draw, pod: Arguments) -> Arguments:
    return {"node": draw.rng.choice(draw.nodes)}


def _of_priority(draw: Draw, pod: Arguments) -> Arguments:
    return {"priority": draw.rng.choice(tuple(PRIORITIES))}


def _tolerating(draw: Draw, pod: Arguments) -> Arguments:
    return {"tolerates": True}


def _with_grace(draw: Draw, pod: Arguments) -> Arguments:
    return {"grace": draw.rng.choice((0, 1, 5, 60))}


def _with_compute(draw: Draw, pod: Arguments) -> Arguments:
    return {"requests": {"cpu": draw.rng.choice(("1", "8", "20")), "memory": draw.rng.choice(("1Gi", "64Gi"))}}


def _failing(draw: Draw, pod: Arguments) -> Arguments:
    return {"code": 1}


def _with_containers(draw: Draw, pod: Arguments) -> Arguments:
    """
    Further containers: one without a share, one with its own share, one that runs before the others, or both of these.
    Kubernetes may count more for the last ones than they hold.
    """
    limits = next(iter(pod["limits"]), "")
    asks = next((found for part, found in _BY_PART.items() if limits.startswith(part)), ())
    if "annotations" in pod or "labels" in pod or "aliyun.com/gpu-count" in pod["limits"] or not asks:
        return {"more": [{"name": "side"}]}
    kind = draw.rng.choice(("side", "share", "init", "both"))
    first = {"name": "first", "init": True, "limits": draw.rng.choice(asks)(draw)}
    second = {"name": "second", "limits": draw.rng.choice(asks)(draw)}
    return {"more": {"side": [{"name": "side"}], "share": [second], "init": [first], "both": [first, second]}[kind]}


_MORE: tuple[tuple[float, Callable[[Draw, Arguments], Arguments]], ...] = (
    (0.05, _on_node),
    (0.15, _of_priority),
    (0.2, _tolerating),
    (0.1, _with_grace),
    (0.1, _with_compute),
    (0.05, _failing),
    (0.15, _with_containers),
)
"""What a pod may have in addition to its request, and how likely that is."""


def manifest(arguments: Arguments) -> JSON:
    """The pod as its author writes it."""
    metadata: JSON = {"name": arguments["name"], "namespace": arguments["namespace"]}
    annotations = dict(arguments.get("annotations") or {})
    if "runs" in arguments:
        annotations[RUN_SECONDS] = str(arguments["runs"])
    if "code" in arguments:
        annotations[EXIT_CODE] = str(arguments["code"])
    if annotations:
        metadata["annotations"] = annotations
    if labels := arguments.get("labels"):
        metadata["labels"] = dict(labels)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec_of(arguments)}


def spec_of(arguments: Arguments) -> JSON:
    """The pod's spec."""
    main = {"name": "main", "limits": arguments["limits"], "requests": arguments.get("requests") or {}}
    more = arguments.get("more") or ()
    spec: JSON = {
        "restartPolicy": "Never",
        "containers": [_container(each) for each in (main, *more) if not each.get("init")],
    }
    if first := [_container(each) for each in more if each.get("init")]:
        spec["initContainers"] = first
    if "node" in arguments:
        spec["nodeSelector"] = {"kubernetes.io/hostname": arguments["node"]}
    if selects := arguments.get("selects"):
        spec["nodeSelector"] = dict(selects)
    if "priority" in arguments:
        spec["priorityClassName"] = arguments["priority"]
    if "grace" in arguments:
        spec["terminationGracePeriodSeconds"] = arguments["grace"]
    if arguments.get("tolerates"):
        spec["tolerations"] = [{"operator": "Exists"}]
    return spec


def _container(described: Arguments) -> JSON:
    resources = {key: dict(described[key]) for key in ("limits", "requests") if described.get(key)}
    return {"name": described["name"], "image": "cuda", **({"resources": resources} if resources else {})}


def create(run: Run, arguments: Arguments, query: dict[str, str] | None = None) -> None:
    """Create the pod."""
    document = manifest(arguments)
    asks = " ".join(f"{key}={value}" for key, value in {**arguments["limits"], **(query or {})}.items())
    run.tell("user", f"creates pod {arguments['namespace']}/{arguments['name']} ({asks})")
    run.user.create(paths.pods(arguments["namespace"]), document, query)
    if query is None:
        run.submitted[arguments["namespace"], arguments["name"]] = document


def _tried(draw: Draw) -> Arguments:
    return {**pod_of(draw), "name": draw.new("dry")}


def _try(run: Run, arguments: Arguments) -> None:
    create(run, arguments, {"dryRun": "All"})


def _nonsense(draw: Draw) -> Arguments:
    chosen = draw.rng.choice(_examples(refused=True))
    return {"namespace": draw.rng.choice(NAMESPACES), "name": draw.new("bad"), **_example(chosen)}


def _create_nonsense(run: Run, arguments: Arguments) -> None:
    """A pod whose request cannot be read is refused with a reason, if admission is on in its namespace."""
    looked_after = _looked_after(run, arguments["namespace"])
    try:
        create(run, arguments)
    except KubeError as error:
        run.tell("user", f"pod {arguments['name']} was refused: {error}")
        if "denied the request" in str(error) and len(str(error).partition("denied the request")[2].strip(": ")) < 10:
            run.fail(f"a refusal has a reason: {arguments['name']} was refused with {error}")
        return
    if looked_after and _looked_after(run, arguments["namespace"]):
        run.fail(f"nonsense is refused: {arguments['name']} was accepted with {arguments}")


def _looked_after(run: Run, namespace: str) -> bool:
    """Whether the namespace has the label that turns admission on, and no LimitRange that completes requests."""
    store = run.world.api.store
    found = store.get("namespaces", ("", namespace)) or {"metadata": {}}
    return not store.scan("limitranges", namespace) and bool(
        (found["metadata"].get("labels") or {}).get(names.INJECT_LABEL) == names.INJECT_ENABLED
    )


def some_pod(draw: Draw) -> dict[str, Any] | None:
    """One of the pods that the plan creates."""
    if not draw.names:
        return None
    namespace, name = draw.rng.choice(draw.names)
    return {"namespace": namespace, "name": name}


def _again(draw: Draw) -> Arguments | None:
    """A pod with the name of a pod that exists or existed."""
    chosen = some_pod(draw)
    if chosen is None:
        return None
    found = pod_of(draw)
    draw.names.pop()
    return {**found, **chosen}


def _victim(draw: Draw) -> Arguments | None:
    chosen, grace = some_pod(draw), draw.rng.choice(_GRACE)
    return chosen if chosen is None or grace is None else {**chosen, "grace": grace}


def _delete(run: Run, arguments: Arguments) -> None:
    grace = arguments.get("grace")
    how = "" if grace is None else f" with a grace of {grace} s"
    run.tell("user", f"deletes pod {arguments['namespace']}/{arguments['name']}{how}")
    body = None if grace is None else {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": grace}
    try:
        run.user.delete(paths.pods(arguments["namespace"], arguments["name"]), body)
    except KubeNotFound:
        return


def burst(draw: Draw) -> Arguments:
    """Some pods at the same time."""
    return {"pods": [pod_of(draw) for _ in range(draw.rng.randint(3, 8))]}


def create_many(run: Run, arguments: Arguments) -> None:
    """Create all of them at the same time."""
    for each in arguments["pods"]:
        run.kernel.spawn(run.world.admin, lambda e=each: _tolerant(run, e), "create")  # type: ignore[misc]


def _tolerant(run: Run, arguments: Arguments) -> None:
    try:
        create(run, arguments)
    except Exception as error:
        run.tell("user", f"pod {arguments['name']} was not created: {error}")


def prepare(run: Run) -> None:
    """Create the PriorityClasses."""
    for name, value in PRIORITIES.items():
        document = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        run.user.create(paths.path("scheduling.k8s.io/v1", "priorityclasses"), {**document, "value": value})


# -- what holds in the end ---------------------------------------------------------------------------------------


def _forgotten(run: Run) -> list[Violation]:
    """Pods that requested a share and neither have one, nor wait with a reason, nor say why they have none."""
    store = run.world.api.store
    there = {each["metadata"]["name"] for each in store.scan("namespaces")}
    cards = {gpu.uuid for found in map(inventory_from_object, store.scan(GPUNODES)) for gpu in found.gpus}
    wrong = []
    for pod in store.scan("pods"):
        if (
            names.REQUEST not in pods.annotations_of(pod)
            or pods.finished(pod)
            or pod["metadata"].get("deletionTimestamp")
            or pod["metadata"]["namespace"] not in there  # stored after its namespace was gone
            or _is_starting(pod, run.kernel.seconds())
        ):
            continue
        if problem := problem_of(pod, cards):
            wrong.append(f"{pods.key(pod)} {problem}")
    return wrong


def _is_starting(pod: JSON, now: float) -> bool:
    """
    Whether a kubelet has it and its containers are still starting. now: seconds since the simulation began.

    A pod that was created with its node has no condition PodScheduled yet, because kube-scheduler does not bind it.
    """
    conditions = {each["type"]: each for each in (pod.get("status") or {}).get("conditions") or ()}
    bound = conditions.get("PodScheduled", {}).get("lastTransitionTime")
    created = pod["metadata"]["creationTimestamp"] if pod["spec"].get("nodeName") else None
    took, since = start_seconds(pod), moments.seconds(bound or created)
    return took is not None and since is not None and BEGINNING + now < since + took + _STARTS


def problem_of(pod: JSON, cards: Container[str]) -> str:
    """How the pod is forgotten; empty if it is not. A pod whose card is not in `cards` cannot start."""
    conditions = {c["type"]: c for c in (pod.get("status") or {}).get("conditions") or ()}
    told = conditions.get(names.ALLOCATED_CONDITION, {})
    if names.GATE in pods.gates(pod):
        explained = told.get("status") == "False" and told.get("reason") not in (None, "", PodReason.UNREADABLE)
        return "" if explained else f"waits, and its condition is {told}"
    if names.WITHDRAWN in pods.annotations_of(pod):
        return "" if told.get("status") == "False" else f"lost its share, and its condition is {told}"
    request = pods.admitted(pod)
    allocation = None if request is None else pods.allocation_of(pod, request)
    if allocation is None:
        return "asked for a share, and neither has one nor waits"
    if allocation.by_claim and told.get("reason") == PodReason.NOT_SCHEDULED:
        return ""  # A ResourceClaim's devices stay with the pod, and its condition says which program does not bind it.
    phase = (pod.get("status") or {}).get("phase")
    there = all(share.uuid in cards for each in allocation.containers for share in each.shares)
    return "" if phase == "Running" or not there else f"has a share, and is {phase}"


def _fits(run: Run) -> list[Violation]:
    """Pods that wait although a new evaluation with the leader's cluster would place them."""
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
    """Reservations for pods that never came."""
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
        Operation("pod.create", 10, pod_of, create),
        Operation("pod.delete", 4, _victim, _delete),
        Operation("pods.create", 1, burst, create_many),
        Operation("pod.again", 2, _again, create),
        Operation("pod.tried", 1, _tried, _try),
        Operation("pod.nonsense", 1, _nonsense, _create_nonsense),
    ),
    always=True,
    prepare=prepare,
    goals=(
        Goal("every program runs", _serving),
        Goal("no pod is forgotten", _forgotten),
        Goal("what fits is placed", _fits),
        Goal("no share is left over", _nothing_assumed),
    ),
)
