"""
The resources that a pod takes, and whether a node has them: kube-scheduler's NodeResourcesFit.

CPU, memory and ephemeral storage, and every other resource by its name: extended resources and huge pages. Our own
resources are counted by the GPUs that they stand for and not here. A pod's effective request is the most that runs at
one time. Resources of the pod itself (1.34) replace those of its containers, and overhead is added.

A pod that is resized in place takes the largest of its requested, granted and running amounts, as in the original
(component-helpers/resource/helpers.go): a shrinking pod keeps its size until the resize is done. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from contract import names
from contract.encoding import quantity
from contract.model import MOST_COMPUTE, Compute, NodeState, Scalars
from contract.reasons.nodes import Code, Reason
from contract.scheduling.gates import STORED, Gate, Gates

JSON = dict[str, Any]
Amounts = dict[str, int]
"""By the name of the resource: CPU in thousandths, all others in units."""

CPU, MEMORY, STORAGE, PODS = "cpu", "memory", "ephemeral-storage", "pods"
CORE = frozenset((CPU, MEMORY, STORAGE))
MOST_SCALARS = 64
"""The most other resources of one pod that are read; a pod that requests a share has no more."""
MOST_OF_A_NODE = 256
"""The most other resources of one node that are read; the node counts as having none of the rest."""
BY_CLAIM = MOST_COMPUTE
"""The assumed amount of an extended resource that a node has only as devices (DRAExtendedResource): only kube-scheduler
knows how many are left.
"""
_HUGE_PAGES = "hugepages-"
_PLAIN = (_HUGE_PAGES, "attachable-volumes-")
"""Prefixes of other resources without a domain in their names."""
_OURS = f"{names.GROUP}/"
_NOTHING: Mapping[str, Any] = {}
_RESIZE = "PodResizePending"


# -- containers ---------------------------------------------------------------------------------------------------


def is_sidecar(container: Mapping[str, Any]) -> bool:
    """Whether an init container keeps running alongside the app containers."""
    return container.get("restartPolicy") == "Always"


def containers(spec: Mapping[str, Any]) -> Iterator[tuple[JSON, bool]]:
    """Every init and app container in start order, each with whether it ends before the app containers start."""
    for container in spec.get("initContainers") or []:
        yield container, not is_sidecar(container)
    for container in spec.get("containers") or []:
        yield container, False


# -- what a pod takes ---------------------------------------------------------------------------------------------


def is_scalar(name: str) -> bool:
    """Whether this is a resource that is counted by its name: an extended resource of others, or huge pages."""
    return ("/" in name and not name.startswith(_OURS)) or name.startswith(_PLAIN)


def is_counted(name: str) -> bool:
    """Whether a node must have the resource for a pod."""
    return name in CORE or is_scalar(name)


def is_any(name: str) -> bool:
    """Accepts every resource."""
    return True


def amount(name: str, value: object) -> int:
    """One quantity in the unit of its resource. Raises `quantity.BadQuantity`."""
    return quantity.milli(value) if name == CPU else quantity.rounded_up(value)


def effective_compute(spec: Mapping[str, Any], gates: Gates = STORED) -> Compute:
    """
    The amounts that kube-scheduler counts for a pod that is not resized, and one pod slot. An amount above
    `MOST_COMPUTE`, which no node has, counts as that.
    """
    return _compute(requested(spec, is_counted, gates))


def resized(pod: Mapping[str, Any]) -> Compute | None:
    """
    The amounts that a pod takes while a resize is in progress; None if they equal those of its spec, or cannot be read.
    """
    try:
        return _resized(pod)
    except quantity.BadQuantity:
        return None


def _resized(pod: Mapping[str, Any]) -> Compute | None:
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    listed = (*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ()))
    running = {each.get("name"): each for each in listed if each.get("resources") is not None}
    whole = status if status.get("resources") is not None else None
    if not running and whole is None:
        return None
    infeasible = _is_infeasible(status)

    def own(container: Mapping[str, Any], ends: bool) -> Amounts:
        found = _of_container(container, is_counted)
        state = None if ends else running.get(container.get("name"))
        return found if state is None else _largest(found, state, infeasible=infeasible)

    total = of_containers(spec, own)
    of_pod = _of_pod(spec, total, is_counted)
    if whole is not None:
        requests = (spec.get("resources") or {}).get("requests") or {}
        largest = _largest(_amounts(requests, is_counted), whole, infeasible=infeasible)
        of_pod.update({name: largest.get(name, 0) for name in requests if _is_of_pod(name)})
    return _compute(_with_overhead({**total, **of_pod}, spec, is_counted))


def requested(spec: Mapping[str, Any], counts: Callable[[str], bool], gates: Gates = STORED) -> Amounts:
    """A pod's effective request by its spec of each resource that `counts`; names with an amount of 0 included."""
    total = of_containers(spec, lambda container, ends: _of_container(container, counts))
    if spec.get("resources") and Gate.POD_LEVEL_RESOURCES in gates:
        total.update(_of_pod(spec, total, counts))
    return _with_overhead(total, spec, counts)


def of_containers(spec: Mapping[str, Any], own: Callable[[Mapping[str, Any], bool], Amounts]) -> Amounts:
    """
    The most that runs at one time. `own` returns a container's amounts; it also gets whether the container ends before
    the app containers start.

    An init container runs alongside the sidecars that started before it; at the end all sidecars and app containers run
    together.
    """
    together: Amounts = {}
    peak: Amounts = {}
    for container, ends in containers(spec):
        for name, taken in own(container, ends).items():
            if ends:
                peak[name] = max(peak.get(name, 0), together.get(name, 0) + taken)
            else:
                together[name] = together.get(name, 0) + taken
    for name, taken in peak.items():
        together[name] = max(together.get(name, 0), taken)
    return together


def _of_container(container: Mapping[str, Any], counts: Callable[[str], bool]) -> Amounts:
    """A container's own requests; a limit without a request is the request, as in Kubernetes."""
    resources = container.get("resources")
    if not resources:
        return {}
    return _amounts({**(resources.get("limits") or _NOTHING), **(resources.get("requests") or _NOTHING)}, counts)


def _amounts(quantities: Mapping[str, Any], counts: Callable[[str], bool]) -> Amounts:
    return {name: amount(name, value) for name, value in quantities.items() if counts(name)}


def _is_of_pod(name: str) -> bool:
    """Whether a pod itself can request the resource."""
    return name in (CPU, MEMORY) or name.startswith(_HUGE_PAGES)


def _of_pod(spec: Mapping[str, Any], containers: Amounts, counts: Callable[[str], bool]) -> Amounts:
    """
    The pod's own requests, which replace those of its containers. For a limit without a request, Kubernetes uses the
    limit as the request if no container has a request, and for huge pages.
    """
    resources = spec.get("resources") or _NOTHING
    limits = {
        name: value
        for name, value in (resources.get("limits") or _NOTHING).items()
        if name not in containers or name.startswith(_HUGE_PAGES)
    }
    requests = {**limits, **(resources.get("requests") or _NOTHING)}
    return _amounts(requests, lambda name: _is_of_pod(name) and counts(name))


def _with_overhead(total: Amounts, spec: Mapping[str, Any], counts: Callable[[str], bool]) -> Amounts:
    for name, value in (spec.get("overhead") or _NOTHING).items():
        if counts(name):
            total[name] = total.get(name, 0) + amount(name, value)
    return total


def _is_infeasible(status: Mapping[str, Any]) -> bool:
    """Whether the node reports that it will never grant the spec's request."""
    conditions = status.get("conditions") or ()
    reason = next((each.get("reason") for each in conditions if each.get("type") == _RESIZE), "")
    return bool(reason == "Infeasible")


def _largest(requests: Amounts, state: Mapping[str, Any], *, infeasible: bool) -> Amounts:
    """The largest of the requested, running and granted amounts, by resource."""
    runs = (state.get("resources") or _NOTHING).get("requests") or _NOTHING
    granted = state.get("allocatedResources") or _NOTHING
    found = {} if infeasible else dict(requests)
    for each in (_amounts(runs, is_counted), _amounts(granted, is_counted)):
        for name, taken in each.items():
            found[name] = max(found.get(name, 0), taken)
    return found


def _compute(total: Amounts) -> Compute:
    scalars: Scalars = ()
    if not total.keys() <= CORE:
        others = ((name, min(taken, MOST_COMPUTE)) for name, taken in total.items() if taken > 0 and name not in CORE)
        scalars = tuple(sorted(others)[:MOST_SCALARS])
    return Compute(
        cpu=min(total.get(CPU, 0), MOST_COMPUTE),
        memory=min(total.get(MEMORY, 0), MOST_COMPUTE),
        storage=min(total.get(STORAGE, 0), MOST_COMPUTE),
        pods=1,
        scalars=scalars,
    )


# -- resources by name --------------------------------------------------------------------------------------------


def amount_of(scalars: Scalars | None, name: str) -> int:
    """The amount of one resource; 0 if missing."""
    return next((found for each, found in scalars or () if each == name), 0)


def added_up(each: Iterable[Scalars | None], most: int = MOST_COMPUTE) -> Scalars:
    """The sums by name, each of `most` at the most."""
    found: Amounts = {}
    for scalars in each:
        for name, taken in scalars or ():
            found[name] = found.get(name, 0) + taken
    return tuple(sorted((name, min(taken, most)) for name, taken in found.items()))


def without(one: Scalars | None, other: Scalars | None) -> Scalars:
    """The differences by name."""
    return added_up((one, tuple((name, -taken) for name, taken in other or ())))


def larger(one: Scalars | None, other: Scalars | None) -> Scalars:
    """The larger amount of each name."""
    both = sorted({name for name, _ in (*(one or ()), *(other or ()))})
    return tuple((name, max(amount_of(one, name), amount_of(other, name))) for name in both)


def takes_less(now: Scalars | None, before: Scalars | None) -> bool:
    """Whether some amount is smaller than before."""
    return any(amount_of(now, name) < taken for name, taken in before or ())


def plus(one: Compute, other: Compute) -> Compute:
    """Amounts added up."""
    scalars = added_up((one.scalars, other.scalars)) if other.scalars else one.scalars
    return Compute(
        one.cpu + other.cpu,
        one.memory + other.memory,
        one.storage + other.storage,
        one.pods + other.pods,
        scalars,
    )


def minus(one: Compute, other: Compute) -> Compute:
    """One without the other."""
    scalars = without(one.scalars, other.scalars) if other.scalars else one.scalars
    return Compute(
        one.cpu - other.cpu,
        one.memory - other.memory,
        one.storage - other.storage,
        one.pods - other.pods,
        scalars,
    )


# -- whether a node has it ----------------------------------------------------------------------------------------


def shortage(node: NodeState, wanted: Compute) -> Reason | None:
    """What the node lacks of CPU, memory, ephemeral storage, pod slots or other resources."""
    has, taken = node.allocatable, node.requested
    if wanted.cpu and taken.cpu + wanted.cpu > has.cpu:
        return Reason(Code.CPU, wanted.cpu, max(0, has.cpu - taken.cpu))
    if wanted.memory and taken.memory + wanted.memory > has.memory:
        return Reason(Code.MEMORY_OF_NODE, wanted.memory, max(0, has.memory - taken.memory))
    if wanted.storage and taken.storage + wanted.storage > has.storage:
        return Reason(Code.STORAGE, wanted.storage, max(0, has.storage - taken.storage))
    if taken.pods + wanted.pods > has.pods:
        return Reason(Code.PODS, wanted.pods, max(0, has.pods - taken.pods))
    return scalar_shortage(node, wanted) if wanted.scalars else None


def scalar_shortage(node: NodeState, wanted: Compute) -> Reason | None:
    """The first of the other resources of which the node has too little left."""
    has, taken = node.allocatable.scalars, node.requested.scalars
    if has is None:
        return None
    for name, much in wanted.scalars or ():
        free = amount_of(has, name) - amount_of(taken, name)
        if much > free:
            return Reason(Code.RESOURCE, much, max(0, free), what=name)
    return None
