"""
The input of the decision benchmark: a synthetic cluster that is uneven on purpose, and 60 request shapes for it.

Every shape differs from all others in the values that an engine could cache between two decisions: selector,
tolerations, affinity, model wishes, sizes, cores, CPU, number of GPUs, number of containers. This module measures
nothing. The same seed gives the same cluster and the same shapes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from contract.encoding.quantity import GIB, MIB
from contract.model import Compute, FractionRequest, Gpu, Inventory, PodRequest, Taint, Wishes
from contract.nodes.attributes import NodeFacts
from contract.scheduling.needs import PodNeeds, Requirement, SchedulingRequest, Toleration

GPUS = 8
"""GPUs of a node."""
ZONES = 5
_MODELS = (("Tesla T4", 16), ("Tesla V100-SXM2-32GB", 32), ("NVIDIA A10", 24), ("NVIDIA A100-SXM4-80GB", 80))
_TAINT = Taint("nvidia.com/gpu", "present", "NoSchedule")
_TOLERATES = Toleration("nvidia.com/gpu", "Exists")
_POOL, _ZONE, _HOST = "pool", "topology.kubernetes.io/zone", "kubernetes.io/hostname"
_POOLS = ("training", "inference", "notebooks")

_PLAIN, _SEVERAL_GPUS, _SEVERAL_CONTAINERS = 48, 6, 6
"""Shapes with one share, with one container on several GPUs, with several containers."""


def node_name(number: int) -> str:
    """The name of a node by its number."""
    return f"gpu-{number:05}"


def facts(number: int, *, cordoned: bool = False, pool: str = "") -> NodeFacts:
    """A node as kubelet would report it; every second one is tainted, as managed clusters taint their GPU pools."""
    name = node_name(number)
    labels = {_HOST: name, _ZONE: f"zone-{number % ZONES}", _POOL: pool or _POOLS[number % len(_POOLS)]}
    taints = (_TAINT,) if number % 2 else ()
    return NodeFacts(name, labels, taints, cordoned, True, Compute(256_000, 2 << 40, 2 << 40, 250))


def inventory(number: int, *, sick: int = -1) -> Inventory:
    """The node's GPUs, all of one model, four and four with NVLink; `sick` is the position of an unhealthy one."""
    name = node_name(number)
    uuids = [f"GPU-{name}-{position}" for position in range(GPUS)]
    links = [
        tuple((uuid, "NVLink" if at // 4 == to // 4 else "System") for to, uuid in enumerate(uuids) if to != at)
        for at in range(GPUS)
    ]
    model, gib = _MODELS[number % len(_MODELS)]
    return Inventory(
        name,
        tuple(
            Gpu(
                uuids[position],
                position,
                model,
                gib * GIB,
                gib * GIB,
                position != sick,
                "XID 79" if position == sick else "",
                links=links[position],
            )
            for position in range(GPUS)
        ),
    )


def shapes(rng: random.Random) -> list[SchedulingRequest]:
    """60 requests, no two alike; a few find no room on most days, as in any cluster. A third chose `spread`."""
    return [
        *(_ask(rng, number, (_share(rng, number, "main"),)) for number in range(_PLAIN)),
        *(_ask(rng, _PLAIN + n, (_share(rng, n, "main", count=2 + n % 3),)) for n in range(_SEVERAL_GPUS)),
        *(
            _ask(rng, _PLAIN + _SEVERAL_GPUS + n, tuple(_share(rng, n, name) for name in ("main", "helper", "log")))
            for n in range(_SEVERAL_CONTAINERS)
        ),
    ]


def left_to_the_default(shapes: list[SchedulingRequest]) -> list[SchedulingRequest]:
    """The same requests by tenants who chose no policy of their own."""
    return [replace(ask, request=replace(ask.request, node_policy="", gpu_policy="")) for ask in shapes]


def _share(rng: random.Random, number: int, container: str, *, count: int = 1) -> FractionRequest:
    wishes = (Wishes(), Wishes(), Wishes(use_models=("a100", "v100")), Wishes(avoid_models=("T4",)))[number % 4]
    cores = rng.choice((0, 1, 2, 5, 10))
    if number % 6 == 5:
        return FractionRequest(container, count, percent=rng.choice((3, 5, 7)), cores=cores, wishes=wishes)
    memory = rng.choice((256, 512, 1024, 1536, 2048)) * MIB + number * MIB
    return FractionRequest(container, count, memory=memory, cores=cores, wishes=wishes)


def _ask(rng: random.Random, number: int, containers: tuple[FractionRequest, ...]) -> SchedulingRequest:
    selector: tuple[tuple[str, str], ...] = ()
    affinity = None
    match number % 5:
        case 1:
            selector = ((_POOL, _POOLS[number % len(_POOLS)]),)
        case 2:
            selector = ((_POOL, _POOLS[number % len(_POOLS)]), (_ZONE, f"zone-{number % ZONES}"))
        case 3:
            zones = (f"zone-{number % ZONES}", f"zone-{(number + 1) % ZONES}")
            affinity = ((Requirement(_ZONE, "In", zones), Requirement(_POOL, "Exists")),)
    # A toleration of something that no node has changes no answer and makes one more shape to remember.
    other = Toleration("team", "Equal", f"team-{number}", "NoSchedule")
    needs = PodNeeds(
        compute=Compute(rng.choice((100, 250, 500)), rng.choice((1, 2, 4)) * GIB, 0, 1),
        node_selector=selector,
        affinity=affinity,
        tolerations=(_TOLERATES, other) if number % 3 else (other,),
    )
    policy = ("", "", "spread")[number % 3]
    return SchedulingRequest(PodRequest("native", containers, node_policy=policy, gpu_policy=policy), needs)


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that finds no room, and its name in the table."""

    what: str
    ask: SchedulingRequest


def unplaceable() -> list[Refused]:
    """Requests that get a "no", each for another reason."""
    tolerant = PodNeeds(compute=Compute(100, GIB, 0, 1), tolerations=(_TOLERATES,))

    def one(needs: PodNeeds, *containers: FractionRequest) -> SchedulingRequest:
        return SchedulingRequest(PodRequest("native", containers), needs)

    return [
        Refused("no memory left", one(tolerant, FractionRequest("main", memory=79 * GIB))),
        Refused("no GPU is that large", one(tolerant, FractionRequest("main", memory=200 * GIB))),
        Refused(
            "no such model", one(tolerant, FractionRequest("main", memory=GIB, wishes=Wishes(use_models=("H200",))))
        ),
        Refused(
            "selector matches nothing",
            one(
                PodNeeds(node_selector=((_POOL, "nobody"),), tolerations=(_TOLERATES,)),
                FractionRequest("main", memory=GIB),
            ),
        ),
        Refused("whole GPUs", one(tolerant, FractionRequest("main", 8, percent=100, cores=100, exclusive=True))),
        Refused(
            "two containers, no room for both",
            one(tolerant, FractionRequest("main", 8, percent=60), FractionRequest("other", 8, percent=60)),
        ),
    ]
