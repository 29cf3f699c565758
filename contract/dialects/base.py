"""
A dialect: one system's names for a GPU share, read into the canonical request and written back.

A dialect is one module with one `Dialect` value. It knows the names and units of its system and no other dialect; the
table in `contract.dialects` lists them. A tenant's mistake is a `Refusal`: a value with the field, what was found there
and what would work. Any JSON can be read: a part that does not have a pod's structure requests nothing, and the API
server's own validation refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from contract import names
from contract.encoding import quantity
from contract.encoding.plain import is_plain
from contract.encoding.reading import shown, words
from contract.isolation import ISOLATION
from contract.model import (
    LONGEST_WORD,
    MOST_CONTAINERS,
    MOST_MEMORY,
    MOST_WORDS,
    PINS,
    POLICIES,
    Allocation,
    ContainerAllocation,
    FractionRequest,
    PodRequest,
    Wishes,
)
from contract.options import Options
from contract.scheduling import consent, needs

JSON = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request cannot be served as it is written: the field, what was found there, and what would work."""

    field: str
    found: str
    cure: str

    def __str__(self) -> str:
        return f"{self.field}: found {self.found}; {self.cure}"


class ReadingRefused(Exception):
    """Carries a `Refusal` out of a dialect's reader; `contract.dialects.read` returns it as a value."""

    def __init__(self, field: str, found: object, cure: str) -> None:
        self.refusal = Refusal(field, str(found), cure)
        super().__init__(str(self.refusal))


@dataclass(frozen=True, slots=True)
class Rendering:
    """An allocation in a dialect's own annotations and labels, for the tools that read those."""

    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decided:
    """The input of a dialect's rendering: the request, the allocation, and the needed fields of the pod."""

    request: PodRequest
    allocation: Allocation
    containers: tuple[str, ...]
    """The pod's app containers by name, in the pod's order, those without a GPU included."""
    now_ns: int
    """When it was decided, in nanoseconds since 1970."""


@dataclass(frozen=True, slots=True)
class PodReader:
    """A pod that is being read, and the administrator's options."""

    pod: Mapping[str, Any]
    options: Options

    @property
    def annotations(self) -> Mapping[str, Any]:
        """The pod's annotations, never None."""
        return object_of(object_of(self.pod.get("metadata")).get("annotations"))

    @property
    def labels(self) -> Mapping[str, Any]:
        """The pod's labels, never None."""
        return object_of(object_of(self.pod.get("metadata")).get("labels"))

    def annotation(self, key: str) -> str:
        """The text of an annotation, empty where it is absent. Raises `ReadingRefused` for another type."""
        return _text(self.annotations.get(key), annotation_field(key))

    def label(self, key: str) -> str:
        """The text of a label, as `annotation` reads it."""
        return _text(self.labels.get(key), f"metadata.labels[{key}]")

    def containers(self) -> Iterator[ContainerReader]:
        """The init and app containers in start order."""
        spec = object_of(self.pod.get("spec"))
        for kind in ("initContainers", "containers"):
            listed = spec.get(kind)
            for position, container in enumerate(listed if isinstance(listed, list) else ()):
                if isinstance(container, Mapping):
                    init = kind == "initContainers" and not needs.is_sidecar(container)
                    yield ContainerReader(f"spec.{kind}[{position}]", container, init)

    def bounded(self) -> None:
        """Raises `ReadingRefused` where the pod has more containers than a pod with a share may have."""
        spec = object_of(self.pod.get("spec"))
        listed = (spec.get(kind) for kind in ("initContainers", "containers"))
        number = sum(len(each) for each in listed if isinstance(each, list))
        if number > MOST_CONTAINERS:
            cure = f"a pod with a GPU share has at most {MOST_CONTAINERS} containers: split it into several pods"
            raise ReadingRefused("spec.containers", f"{number} containers", cure)


def object_of(value: object) -> Mapping[str, Any]:
    """The value where it is a JSON object, else an empty one."""
    if isinstance(value, dict):  # first: JSON gives dicts, and this check is ten times faster than the next
        return value
    return value if isinstance(value, Mapping) else {}


def _text(value: object, field: str) -> str:
    if value is not None and not isinstance(value, str):
        raise ReadingRefused(field, shown(value), "give text, in quotation marks")
    return value or ""


@dataclass(frozen=True, slots=True)
class ContainerReader:
    """One container. `init`: it ends before the app containers start."""

    path: str
    """Its place in the pod, for messages."""
    container: Mapping[str, Any]
    init: bool

    @property
    def name(self) -> str:
        name = self.container.get("name")
        return name if isinstance(name, str) else ""

    def names(self) -> Iterator[str]:
        """The resources in the container's limits, then those in its requests."""
        for _, amounts in self._amounts():
            yield from amounts

    def asks(self, resource: str) -> bool:
        return any(resource in amounts for _, amounts in self._amounts())

    def field(self, resource: str) -> str:
        """The path of the resource for messages: where the container names it, else its limit."""
        kind = next((kind for kind, amounts in self._amounts() if resource in amounts), "limits")
        return f"{self.path}.resources.{kind}[{resource}]"

    def found(self, resource: str) -> object:
        """The amount of a resource as written, the limit before the request; None where it is absent."""
        return next((amounts[resource] for _, amounts in self._amounts() if resource in amounts), None)

    def spelled(self, *resources: str) -> str:
        """Which of several names of one resource the container has, by default the first. Raises `ReadingRefused`."""
        found = [resource for resource in resources if self.asks(resource)] or resources[:1]
        if len(found) > 1:
            raise ReadingRefused(self.field(found[1]), f"together with {found[0]}", "the two mean the same: keep one")
        return found[0]

    def amount(
        self, resource: str, *, least: int, most: int, cure: str, largest: str = "", units: bool = False
    ) -> int | None:
        """
        The amount of a resource as a whole number, the limit before the request; None where it is absent.

        Raises `ReadingRefused` outside `least`..`most`, for text that is not a quantity, and for fractions. `largest`:
        `most` in the tenant's unit, for the refusal of a larger amount. `units`: the resource counts units of its own,
        so an amount with a suffix (`10G`, `5Gi`) is refused with `cure`, however large it is.
        """
        if not self.asks(resource):
            return None
        found = self.found(resource)
        try:
            value = quantity.integer(found)
        except quantity.BadQuantity:
            raise ReadingRefused(self.field(resource), shown(found), cure) from None
        if value > most and largest and not (units and isinstance(found, str) and found[-1:] in "MGTPEi"):
            raise ReadingRefused(self.field(resource), quantity.written(found), too_large(largest))
        if not least <= value <= most:
            raise ReadingRefused(self.field(resource), quantity.written(found), cure)
        return value

    def mebibytes(self, resource: str, *, most: int) -> int:
        """
        The bytes of a resource that counts MiB: a plain number is in MiB, a binary suffix is read as such.

        0 where it is absent. Raises `ReadingRefused` as `amount` does, and for less than one MiB.
        """
        found, cure = self.found(resource), "give whole MiB such as 3000, or a quantity such as 3Gi"
        if not (isinstance(found, str) and found.endswith("i")):
            largest = f"{most}, which is {quantity.format_bytes(most * quantity.MIB)}"
            amount = self.amount(resource, least=0, most=most, cure=cure, largest=largest, units=True)
            return (amount or 0) * quantity.MIB
        largest = quantity.format_bytes(most * quantity.MIB)
        amount = self.amount(resource, least=0, most=most * quantity.MIB, cure=cure, largest=largest) or 0
        if 0 < amount < quantity.MIB:
            raise ReadingRefused(self.field(resource), shown(found), cure)
        return amount

    def _amounts(self) -> tuple[tuple[str, Mapping[str, Any]], ...]:
        resources = object_of(self.container.get("resources"))
        return tuple((kind, object_of(resources.get(kind))) for kind in ("limits", "requests"))


@dataclass(frozen=True, slots=True)
class Word:
    """One name of a dialect for its documentation: the kind of place where it is written, and its meaning."""

    name: str
    on: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Example:
    """Limits of one container, and how they are read, for the documentation."""

    limits: Mapping[str, str]
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


_NAME_PART_MAX = 63
"""Characters of an annotation's name after the slash (Kubernetes, qualified names)."""
LIMITS, ANNOTATION, LABEL = "container limits", "Pod annotation", "Pod label"


@dataclass(frozen=True, slots=True)
class Dialect:
    """
    One system's names. `read` returns None if the pod requests nothing in this dialect; it raises `ReadingRefused`.
    `name` has the form of a Kubernetes label: stored requests have it.
    """

    name: str
    title: str
    resources: tuple[str, ...]
    """Resource names that mean a request in this dialect; admission removes all of them from the pod."""
    read: Callable[[PodReader], PodRequest | None]
    together: Callable[[PodReader, Sequence[FractionRequest]], None] = lambda context, fractions: None
    """Checks rules over all containers of a pod, which `read` has checked too. Raises `ReadingRefused`."""
    same_gpus: bool = False
    """Whether all containers of a pod use the same GPUs."""
    annotations: tuple[str, ...] = ()
    """Pod annotations that alone mean a request."""
    annotation_prefixes: tuple[str, ...] = ()
    """Prefixes of annotations that mean a request, regardless of the rest."""
    render: Callable[[Decided], Rendering] = lambda decided: Rendering()
    """The allocation in this system's own annotations and labels."""
    started: Callable[[Mapping[str, Any]], Mapping[str, str]] = lambda annotations: {}
    """The annotations that change once the pod's containers run, from its present ones."""
    stems: tuple[str, ...] = ()
    """Prefixes by which the match conditions find misspelt names of its resources."""
    schedulers: tuple[str, ...] = ()
    """Names of this system's own scheduler, which we replace: its pods get the default scheduler."""
    short_of_memory: str = ""
    """This system's message where no card of a node has the memory, for tools that search for it."""
    environment: Callable[[PodRequest, FractionRequest], list[JSON]] = lambda request, container: []
    """This system's own environment entries (Kubernetes `EnvVar`) of a container."""
    about: str = ""
    """The introduction of its documentation, in Markdown."""
    glossary: tuple[Word, ...] = ()
    """All names that it reads, for the documentation."""
    examples: tuple[Example, ...] = ()
    charges: Callable[[Options], tuple[Charge, ...]] = lambda options: ()
    """What its resources count in a template, for systems that charge a quota before admission. The others cannot be
    counted without the GPU, or another resource counts the same."""


@dataclass(frozen=True, slots=True)
class Charge:
    """The amounts of the accounting resources for one unit of a resource; nothing if both amounts are 0."""

    resource: str
    memory: int = 0
    """Bytes of `gpufraction.io/gpu-memory`."""
    cores: int = 0
    """Percent of `gpufraction.io/gpu-cores`."""
    times: str = ""
    """The resource of the same container that multiplies it; empty for none."""


NOTHING_STARTS, WITH_UNIT = (
    "which is too little for any CUDA program to start",
    ("give memory with its unit, such as 8Gi"),
)
"""The finding for an amount of memory below `model.LEAST_USED`, and the cure."""


def annotation_field(key: str) -> str:
    """The path of a pod's annotation for messages."""
    return f"metadata.annotations[{key}]"


def too_large(largest: str) -> str:
    """The cure for an amount of memory that no GPU has."""
    return f"too large for any GPU: give at most {largest}"


def wished(key: str, text: str) -> tuple[str, ...]:
    """The words of an annotation's comma list. Raises `ReadingRefused` for too many or too long words."""
    field, cure = annotation_field(key), f"give at most {MOST_WORDS} words of {LONGEST_WORD} characters each"
    if len(text) > MOST_WORDS * (LONGEST_WORD + 2):  # before it is split
        raise ReadingRefused(field, f"{len(text)} characters", cure)
    found = words(text)
    longest = max(map(len, found), default=0)
    if len(found) > MOST_WORDS:
        raise ReadingRefused(field, f"{len(found)} words", cure)
    if longest > LONGEST_WORD:
        raise ReadingRefused(field, f"a word of {longest} characters", cure)
    odd = next((word for word in found if not is_plain(word, 4 * LONGEST_WORD)), None)
    if odd is not None:
        raise ReadingRefused(field, shown(odd), "give words without control characters")
    return found


def wishes(
    context: PodReader,
    container: ContainerReader,
    use: str = "",
    avoid: str = "",
    use_uuid: str = "",
    avoid_uuid: str = "",
) -> Wishes:
    """
    A container's wishes: our own annotations, which every dialect has, and the dialect's four comma lists.

    Our annotation for one container replaces the one for the pod. Raises `ReadingRefused`.
    """

    def own(key: str) -> tuple[str, str]:
        special = names.per_container(f"{key}.", container.name)
        key = special if container.name and special in context.annotations else key
        return key, context.annotation(key)

    def both(key: str, other: str) -> tuple[str, ...]:
        return wished(*own(key)) + (wished(other, context.annotation(other)) if other else ())

    return Wishes(
        both(names.USE_MODELS, use),
        both(names.AVOID_MODELS, avoid),
        both(names.USE_UUIDS, use_uuid),
        both(names.AVOID_UUIDS, avoid_uuid),
        _least_memory(*own(names.LEAST_MEMORY)),
        ordered=len(wished(*own(names.USE_MODELS))) > 1,
    )


def _least_memory(key: str, text: str) -> int:
    cure = "give the memory of a whole GPU with its unit, at least 1Mi, such as 40Gi"
    least = quantity.integer_or(text, -1) if text else 0
    if least > MOST_MEMORY:
        raise ReadingRefused(annotation_field(key), shown(text), too_large(quantity.format_bytes(MOST_MEMORY)))
    if text and least < quantity.MIB:
        raise ReadingRefused(annotation_field(key), shown(text), cure)
    return least


def policy(context: PodReader, key: str) -> str:
    """A policy annotation: empty, `binpack` or `spread`. Raises `ReadingRefused`."""
    value = context.annotation(key)
    if value not in ("", *POLICIES):
        raise ReadingRefused(annotation_field(key), shown(value), f"use {' or '.join(POLICIES)}")
    return value


def flag(context: PodReader, key: str) -> bool:
    """Whether an annotation is `true`. Raises `ReadingRefused` unless it is `true`, `false` or empty."""
    text = context.annotation(key)
    if text.lower() not in ("", "true", "false"):
        raise ReadingRefused(annotation_field(key), shown(text), "give true or false")
    return text.lower() == "true"


def _alone(context: PodReader, claim: str) -> bool:
    """Whether the pod starts alone. Raises `ReadingRefused` for another value, and alongside a claim's share."""
    found = context.annotation(names.START)
    if found not in ("", names.ALONE):
        raise ReadingRefused(annotation_field(names.START), shown(found), f"give {names.ALONE}, or remove it")
    if found and claim:
        cure = "remove it: all pods of an ElasticGPUClaim use one share, on a GPU that the claim already has"
        raise ReadingRefused(annotation_field(names.START), shown(found), cure)
    return bool(found)


def pod_request(
    dialect: str,
    context: PodReader,
    containers: list[FractionRequest],
    *,
    same_gpus: bool = False,
    node_policy: str = "",
    gpu_policy: str = "",
    unit: int = 0,
    priority: int = 0,
    claim: str = "",
    warnings: Iterable[str] = (),
) -> PodRequest | None:
    """
    The request of a pod, None if no container asks. Our own policy annotations override the dialect's.

    Raises `ReadingRefused` for an unknown value of one of our annotations, and for more than one pod may request.
    """
    if not containers:
        return None
    for key, known in ((names.ISOLATION, ISOLATION), (names.PLACEMENT, PINS)):
        found = context.annotation(key)
        if found not in ("", *known):
            raise ReadingRefused(annotation_field(key), shown(found), f"give one of {', '.join(known)}")
    agreed = context.annotation(names.IDLE_AFTER)
    if agreed and consent.seconds_of(agreed) is None:
        raise ReadingRefused(annotation_field(names.IDLE_AFTER), shown(agreed), f"give {consent.FORM}")
    bound, alone = flag(context, names.NUMA_BIND), _alone(context, claim)
    request = PodRequest(
        dialect=dialect,
        containers=tuple(replace(f, one_numa=f.count > 1 and (bound or f.one_numa), alone=alone) for f in containers),
        same_gpus=same_gpus and len(containers) > 1,
        node_policy=policy(context, names.NODE_POLICY) or node_policy,
        gpu_policy=policy(context, names.GPU_POLICY) or gpu_policy,
        unit=unit,
        priority=priority,
        claim=claim,
        warnings=tuple(warnings),
    )
    if request.excess is not None:
        raise ReadingRefused("spec.containers", *request.excess)
    return request


def indexes(container: ContainerAllocation) -> str:
    """The indexes of a container's GPUs on the node, as the older systems list them: `0,1`."""
    return ",".join(str(share.index) for share in container.shares)


def assumed(key: str, prefix: str, decided: Decided, *, without: str = "") -> Rendering:
    """
    The rendering that several systems have in common: `<key>: true`, and `<prefix><container>: <indexes>`.

    `without`: the value for app containers without a share; empty: none. A name that is too long for an annotation is
    left out.
    """
    values = {name: without for name in decided.containers if without}
    values |= {container.container: indexes(container) for container in decided.allocation.containers}
    named = {prefix + name: value for name, value in values.items()}
    fitting = {name: value for name, value in named.items() if len(name.split("/", 1)[1]) <= _NAME_PART_MAX}
    return Rendering(annotations={key: "true", **fitting}, labels={key: "true"})


def env_from_annotation(name: str, annotation: str) -> JSON:
    """An `EnvVar` with the value that a pod annotation has when the container starts; empty where it is missing."""
    path = f"metadata.annotations['{annotation}']"
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}
