"""
The bounds of a pod that requests a share, besides those of the request itself, which are in `contract.model`.

`problem` and `annotations_problem` bound the size of a pod. It can have 1.5 MiB of a tenant's text, and a waiting pod
is stored in memory and compared with every node again and again. The bounds are far beyond what people write.

`least_problem` bounds how little a pod may request: a GPU has a limited number of sharers, so tiny shares would use all
of them up without using a quota. The administrator's least share (`Options`) holds for every request, also for one in a
pod's annotation, which the author may have written.

A refusal names the field, the number and what would work. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from contract import gangs
from contract.dialects import DIALECTS
from contract.dialects.base import ContainerReader, PodReader, Refusal
from contract.dialects.table import Dialects
from contract.encoding import codec, quantity
from contract.model import (
    MOST_CLAIMS,
    MOST_CONTAINERS,
    MOST_MEMORY,
    WHOLE,
    Allocation,
    ContainerAllocation,
    FractionRequest,
    GpuShare,
    PodRequest,
)
from contract.names import (
    ALLOCATION,
    CONTAINER_PREFIXES,
    DEVICE_ANNOTATION_PREFIXES,
    GPU_MEMORY,
    MEMORY_FRACTION_PREFIX,
    PIN,
    PROTECTED,
    REQUEST,
    RESERVED_ANNOTATIONS,
    RETURNED,
    per_container,
)
from contract.options import DEFAULTS, Options
from contract.scheduling import protection
from contract.scheduling.needs import MOST_PORTS, resource_names
from contract.scheduling.nodefilters.resources import MOST_SCALARS, is_scalar

JSON = dict[str, Any]

MOST_TERMS = 100
"""Alternatives of a required node affinity."""
MOST_FIELDS = 100
"""Expressions about a node's name in all of them; a DaemonSet's pod has one."""
MOST_SELECTING = 1_000
"""Labels in a node selector, expressions of a required node affinity with their values, and tolerations, in all: enough
to list every node of a large cluster by name."""
MOST_TEXT = 64 << 10
"""Characters in all of these; a node's name has at most 63."""
MOST_POD_TERMS = 32
"""Required terms of affinity to other pods, of anti-affinity, and topology spread constraints, each."""
MOST_POD_TEXT = 16 << 10
"""Characters of each of these, and of a pod's labels."""
MOST_LABELS = 256
"""Labels of a pod. If a pod that we did not admit has more, none of them is read."""
_OF_TERMS = f"characters, or more than {MOST_POD_TERMS} terms"
MOST_GATES = 64
"""Scheduling gates."""
ANNOTATIONS = 256 << 10
"""Bytes of all annotations of an object, names and values, that Kubernetes stores at most."""
LONGEST_NAME = 317
"""Characters of an annotation's name: a prefix of 253, a slash and 63 (Kubernetes, qualified names)."""
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_AFFINITY = f"spec.affinity.nodeAffinity.{_REQUIRED}"
_LONGEST_NODE = "n" * 253
_LONGEST_SHARE = GpuShare(
    uuid="GPU-" + 36 * "f",
    index=99,
    memory=MOST_MEMORY,
    cores=WHOLE,
    gpu_memory=MOST_MEMORY,
    cdi="nvidia.com/gpu,gpufraction.io/partition",
    nri=True,
    cores_free=True,
    as_whole=True,
)


def refused(
    pod: Mapping[str, Any], request: PodRequest, options: Options, dialects: Dialects = DIALECTS
) -> Refusal | None:
    """The parts of a new pod that exceed any of these bounds."""
    return (
        least_problem(pod, request, options, dialects)
        or gangs.refused(pod)
        or problem(pod, dialects)
        or annotations_problem(pod, request, dialects)
    )


def problem(pod: Mapping[str, Any], dialects: Dialects = DIALECTS) -> Refusal | None:
    """The first part of the pod that exceeds a bound; None if no part does."""
    spec = pod.get("spec") or {}
    return (
        _containers(spec)
        or _selecting(spec)
        or _other_pods(pod)
        or _ports(spec)
        or _gates(spec)
        or _claims(spec)
        or _scalars(spec, dialects)
    )


def _containers(spec: Mapping[str, Any]) -> Refusal | None:
    number = len(spec.get("initContainers") or ()) + len(spec.get("containers") or ())
    return _too_many("spec.containers", number, "containers", MOST_CONTAINERS) if number > MOST_CONTAINERS else None


def _selecting(spec: Mapping[str, Any]) -> Refusal | None:
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED) or {}
    terms = required.get("nodeSelectorTerms") or []
    if len(terms) > MOST_TERMS:
        return _too_many(_AFFINITY, len(terms), "terms", MOST_TERMS)
    fields = sum(len(term.get("matchFields") or ()) for term in terms)
    if fields > MOST_FIELDS:
        return _too_many(_AFFINITY, fields, "expressions in matchFields", MOST_FIELDS)
    selector, tolerations = spec.get("nodeSelector") or {}, spec.get("tolerations") or []
    if (number := _entries(terms)) > MOST_SELECTING:
        return _too_many(_AFFINITY, number, "expressions and values", MOST_SELECTING)
    if (number := number + len(selector)) > MOST_SELECTING:
        return _too_many("spec.nodeSelector", number, "labels, with the expressions of the affinity", MOST_SELECTING)
    if (number := number + len(tolerations)) > MOST_SELECTING:
        return _too_many("spec.tolerations", number, "tolerations, with what selects nodes", MOST_SELECTING)
    if (length := _length((terms, selector, tolerations))) > MOST_TEXT:
        return _too_many("spec.affinity", length, "characters, with nodeSelector and tolerations", MOST_TEXT)
    return None


def _other_pods(pod: Mapping[str, Any]) -> Refusal | None:
    """The pod's rules about other pods, which are compared with all of them."""
    spec, labels = pod.get("spec") or {}, (pod.get("metadata") or {}).get("labels") or {}
    affinity = spec.get("affinity") or {}
    for kind in ("podAffinity", "podAntiAffinity"):
        terms = (affinity.get(kind) or {}).get(_REQUIRED) or []
        if beyond_pod_terms(terms):
            return _too_many(f"spec.affinity.{kind}.{_REQUIRED}", _length(terms), _OF_TERMS, MOST_POD_TEXT)
    spread = spec.get("topologySpreadConstraints") or []
    if beyond_pod_terms(spread):
        return _too_many("spec.topologySpreadConstraints", _length(spread), _OF_TERMS, MOST_POD_TEXT)
    if len(labels) > MOST_LABELS:
        return _too_many("metadata.labels", len(labels), "labels", MOST_LABELS)
    if _length(labels) > MOST_POD_TEXT:
        return _too_many("metadata.labels", _length(labels), "characters", MOST_POD_TEXT)
    return None


def beyond_pod_terms(terms: Sequence[JSON]) -> bool:
    """Whether terms about other pods are more than we read: more than `MOST_POD_TERMS`, or with too much text."""
    return len(terms) > MOST_POD_TERMS or _length(terms) > MOST_POD_TEXT


def _entries(terms: list[JSON]) -> int:
    expressions = (e for term in terms for kind in ("matchExpressions", "matchFields") for e in term.get(kind) or ())
    return sum(1 + len(expression.get("values") or ()) for expression in expressions)


def _length(value: object) -> int:
    """Characters of all text in a value, keys included."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_length(each) for pair in value.items() for each in pair)
    return sum(map(_length, value)) if isinstance(value, list | tuple) else 0


def _ports(spec: Mapping[str, Any]) -> Refusal | None:
    listed = [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]
    every = bool(spec.get("hostNetwork"))
    number = sum(1 for each in listed for port in each.get("ports") or () if every or port.get("hostPort"))
    return _too_many("spec.containers[].ports", number, "host ports", MOST_PORTS) if number > MOST_PORTS else None


def _gates(spec: Mapping[str, Any]) -> Refusal | None:
    number = len(spec.get("schedulingGates") or ())
    return _too_many("spec.schedulingGates", number, "gates", MOST_GATES) if number > MOST_GATES else None


def _claims(spec: Mapping[str, Any]) -> Refusal | None:
    number = len(spec.get("resourceClaims") or ())
    return _too_many("spec.resourceClaims", number, "claims", MOST_CLAIMS) if number > MOST_CLAIMS else None


def _scalars(spec: Mapping[str, Any], dialects: Dialects) -> Refusal | None:
    named = {name for name in resource_names(spec) if is_scalar(name) and not dialects.ours(name)}
    named.update(filter(is_scalar, spec.get("overhead") or ()))
    if len(named) <= MOST_SCALARS:
        return None
    return _too_many("spec.containers[].resources", len(named), "extended resources", MOST_SCALARS)


def _too_many(field: str, number: int, what: str, most: int) -> Refusal:
    return Refusal(field, f"{number} {what}", f"a pod with a GPU share has at most {most}")


# -- annotations --------------------------------------------------------------------------------------------------


def annotations_problem(pod: Mapping[str, Any], request: PodRequest, dialects: Dialects = DIALECTS) -> Refusal | None:
    """
    Why the pod's annotations will be too large with those of its share; None if they fit.

    Without this check the API server would refuse the pod, or the write that places it, with figures unknown to its
    author.
    """
    theirs = {
        key: value for key, value in ((pod.get("metadata") or {}).get("annotations") or {}).items() if not ours(key)
    }
    have, add = _bytes(theirs), _bytes(_largest(pod, request, dialects))
    if have + add <= ANNOTATIONS:
        return None
    found = f"{have} bytes, and up to {add} that the share adds"
    longest = max(theirs, key=lambda key: len(theirs[key]), default="")
    cure = f"Kubernetes takes {ANNOTATIONS} in all: " + (
        f"shorten metadata.annotations[{longest[:LONGEST_NAME]}]"
        if have > add
        else "request shares for fewer containers"
    )
    return Refusal("metadata.annotations", found, cure)


def ours(annotation: str) -> bool:
    """Whether admission writes this annotation, and so replaces what others wrote there."""
    return annotation in _WRITTEN or annotation.startswith(_WRITTEN_PREFIXES)


_WRITTEN = frozenset(map(str, (PIN, PROTECTED, RETURNED, *RESERVED_ANNOTATIONS)))
_WRITTEN_PREFIXES = (*DEVICE_ANNOTATION_PREFIXES, *map(str, CONTAINER_PREFIXES))


def _bytes(annotations: Mapping[str, str]) -> int:
    return sum(len("".join(texts).encode(errors="surrogatepass")) for texts in (annotations, annotations.values()))


def _largest(pod: Mapping[str, Any], request: PodRequest, dialects: Dialects) -> Mapping[str, str]:
    """The share's annotations, those with the most characters."""
    bursting = replace(_LONGEST_SHARE, burst=MOST_MEMORY)
    containers = tuple(
        ContainerAllocation(each.container, (bursting if each.limit else _LONGEST_SHARE,) * each.count)
        for each in request.containers
    )
    allocation = Allocation("f" * 32, _LONGEST_NODE, containers)
    return {
        REQUEST: codec.request_to_text(request),
        ALLOCATION: codec.allocation_to_text(allocation),
        PIN: _LONGEST_NODE,
        **protection.added({}),
        **codec.container_annotations(allocation),
        **{per_container(MEMORY_FRACTION_PREFIX, c.container): "0.000001" for c in containers},
        **dialects.render(pod, request, allocation, 1 << 62).annotations,
    }


# -- the least share ----------------------------------------------------------------------------------------------


def least_problem(
    pod: Mapping[str, Any], request: PodRequest, options: Options, dialects: Dialects = DIALECTS
) -> Refusal | None:
    """The first container of the pod that requests less than the least share; None if none does."""
    if request.claim:
        return None  # the claim has the amounts, and a quota bounds the number of claims
    memory, percent = max(options.least_memory, quantity.MIB), max(options.least_percent, 1)
    dialect = dialects.named(request.dialect)
    own = dialect.resources if dialect is not None else ()
    for fraction in request.containers:
        if fraction.memory and fraction.memory < memory:
            found = f"{quantity.format_bytes(fraction.memory)} on each GPU"
            return _too_little(_amount_field(pod, own, fraction), found, f"at least {quantity.format_bytes(memory)}")
        if fraction.percent and fraction.percent < percent:
            found = f"{fraction.percent} % of each GPU"
            return _too_little(_amount_field(pod, own, fraction), found, f"at least {percent} %")
    return None


def _too_little(field: str, found: str, wanted: str) -> Refusal:
    return Refusal(field, found, f"request {wanted}, the smallest share of a GPU here")


def _amount_field(pod: Mapping[str, Any], own: tuple[str, ...], fraction: FractionRequest) -> str:
    """`own`: the resources of the pod's dialect."""
    container = next((each for each in PodReader(pod, DEFAULTS).containers() if each.name == fraction.container), None)
    return f"container {fraction.container}" if container is None else _amount_in(container, own, fraction)


def _amount_in(container: ContainerReader, own: tuple[str, ...], fraction: FractionRequest) -> str:
    """The field of the resource with the amount; the container's path where an annotation has it."""
    named = [resource for resource in (*own, str(GPU_MEMORY)) if container.asks(resource)]
    alike = [
        resource for resource in named if ("mem" in resource and "percent" not in resource) == bool(fraction.memory)
    ]
    return next((container.field(resource) for resource in (*alike, *named)), container.path)
