"""
Upstream's own objects: a pod names ResourceClaims of the DeviceClass `share.gpufraction.io` (Kubernetes 1.36 or newer).

A request of such a claim says what it needs on each GPU: `capacity.requests` with `memory` as a quantity (`8Gi`), and
`cores` in percent of the GPU's multiprocessors, from 1 to 100. Memory alone reserves no cores, as in HAMi. A request
without capacity gets whole GPUs. `count` is the number of GPUs; several requests of one container get different GPUs.
CEL `selectors` say which GPUs are accepted, `firstAvailable` lists alternatives, the preferred ones first, and
`constraints` say what the GPUs have in common. A claim's `config` for the driver `gpufraction.io` may request isolation
and a memory limit above the request.
[upstream.md](upstream.md) explains who may use claims, how several pods use one, and what is refused.
"""

# A pod has only the names of its claims. The program that reads the claims passes them in as `ClaimReading`s.

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from contract import names
from contract.dialects.base import (
    ContainerReader,
    Dialect,
    PodReader,
    ReadingRefused,
    Refusal,
    Word,
    object_of,
    pod_request,
    too_large,
    wishes,
)
from contract.encoding import quantity, resourceclaims, selectors
from contract.encoding.reading import is_label, is_subdomain, shown
from contract.encoding.resourceclaims import MOST_RESULTS
from contract.isolation import ISOLATION
from contract.model import (
    MOST_ALTERNATIVES,
    MOST_CONSTRAINTS,
    MOST_EXPRESSED,
    MOST_MEMORY,
    MOST_SELECTORS,
    NUMA,
    PRODUCT_NAME,
    RESOURCE_CLAIMS,
    UUID,
    WHOLE,
    Alternative,
    ClaimEntry,
    Constraint,
    DeviceRequest,
    FractionRequest,
    PodRequest,
    Wishes,
)
from contract.options import DEFAULTS

JSON = dict[str, Any]
NAME = RESOURCE_CLAIMS
SINCE = (1, 36)
"""The first Kubernetes version that keeps `capacity.requests`; earlier ones drop the field silently."""
MEMORY, CORES = "memory", "cores"
_EXACT = "ExactCount"
_REQUEST_FIELDS = frozenset(("name", "exactly", "firstAvailable"))
_EXACTLY_FIELDS = frozenset(("deviceClassName", "allocationMode", "count", "capacity", "selectors"))
_ALTERNATIVE_FIELDS = _EXACTLY_FIELDS | {"name"}
_DEVICES_FIELDS = frozenset(("requests", "config", "constraints"))
_CONSTRAINT_FIELDS = frozenset(("requests", "matchAttribute", "distinctAttribute"))
_MATCHING = {f"{domain}/{name}": name for domain in selectors.DOMAINS for name in (NUMA, PRODUCT_NAME, UUID)}
"""The attributes that constraints may name, by our names and by those of NVIDIA's driver."""
_UNMATCHED = f"give {selectors.OURS}/{NUMA} or {selectors.OURS}/{PRODUCT_NAME}"
_CURES_OF_ATTRIBUTES = {
    "resource.kubernetes.io/pcieRoot": f"give {selectors.OURS}/{NUMA}, which keeps the GPUs on one NUMA node",
}
_CONFIG_FIELDS = frozenset(("requests", "opaque"))
_PARAMETER_FIELDS = frozenset(("apiVersion", "kind", "isolation", "memoryLimit"))
API_VERSION, KIND = f"{names.GROUP}/{names.VERSION}", "ShareParameters"
"""The API version and the kind of the parameters in a claim's configuration."""
_MOST_NAMED = 4
"""Requests that a message lists."""
_MOST_CONFIGS = 32
"""Configurations of one claim (resource.k8s.io/v1, DeviceConfigMaxSize)."""
_CURES = {
    "adminAccess": "leave it out; kubectl gpufraction nodes shows the GPUs and their pods",
    "tolerations": "leave it out; an unhealthy GPU accepts no pods",
}
"""The replacement for a field that is not supported."""
_UNKNOWN = "leave it out; gpufraction does not know the field"


ClaimReading = tuple[DeviceRequest, ...]
"""The requests of a claim; none for a claim of other drivers."""
Readings = Mapping[str, ClaimReading]
"""Our claims that a pod names, by the pod's own names for them."""
Check = Callable[[str], str]
"""The error in a CEL expression; empty if it is valid. Programs that cannot evaluate CEL do not call it."""


def unchecked(expression: str) -> str:
    """Accepts every expression. For a claim that another program has checked, or that will not be served."""
    return ""


# -- the claim ----------------------------------------------------------------------------------------------------


def read_claim(spec: object, field: str = "spec", check: Check = unchecked) -> ClaimReading | Refusal:
    """
    Read the spec of a claim, or of a template's claim; `field` is its path for messages.

    A claim that does not name our class belongs to other drivers, whatever else it contains. A claim that names it is
    read strictly: a field that would be ignored is refused.
    """
    devices = object_of(object_of(spec).get("devices"))
    listed = devices.get("requests")
    requests = listed if isinstance(listed, list) else []
    if not any(names.SHARE_CLASS in classes for classes in map(_classes, requests)):
        return ()
    try:
        return _read_devices(devices, requests, f"{field}.devices", check)
    except ReadingRefused as refused:
        return refused.refusal


def _classes(request: object) -> tuple[object, ...]:
    """The device classes of a request and its alternatives."""
    first = object_of(request).get("firstAvailable")
    choices = (object_of(request).get("exactly"), *(first if isinstance(first, list) else ()))
    return tuple(object_of(each).get("deviceClassName") for each in choices)


def _read_devices(devices: Mapping[str, Any], requests: list[Any], field: str, check: Check) -> ClaimReading:
    _only(devices, _DEVICES_FIELDS, field)
    if len(requests) > MOST_RESULTS:
        raise ReadingRefused(f"{field}.requests", f"{len(requests)} requests", f"give at most {MOST_RESULTS}")
    reader = _SelectorReader(check)
    found = tuple(_read_request(each, f"{field}.requests[{at}]", reader) for at, each in enumerate(requests))
    found = _configured(found, devices.get("config"), f"{field}.config")
    found = _constrained(found, devices.get("constraints"), f"{field}.constraints")
    if len({each.name for each in found}) < len(found):
        raise ReadingRefused(f"{field}.requests", "two requests with the same name", "give each its own name")
    cards = sum(each.count for each in found)
    if cards > MOST_RESULTS:
        cure = f"a claim has at most {MOST_RESULTS}: give each container a claim of its own"
        raise ReadingRefused(f"{field}.requests", f"{cards} cards in all", cure)
    return found


def _configured(requests: ClaimReading, listed: object, field: str) -> ClaimReading:
    """The requests with the settings of the claim's configurations. A later configuration overrides an earlier one."""
    configs = listed if isinstance(listed, list) else []
    if len(configs) > _MOST_CONFIGS:
        raise ReadingRefused(field, f"{len(configs)} configurations", f"give at most {_MOST_CONFIGS}")
    for at, each in enumerate(configs):
        requests = _with_config(requests, object_of(each), f"{field}[{at}]")
    return requests


def _with_config(requests: ClaimReading, config: Mapping[str, Any], field: str) -> ClaimReading:
    _only(config, _CONFIG_FIELDS, field)
    opaque = object_of(config.get("opaque"))
    if opaque.get("driver") != names.GROUP:
        cure = f"give {names.GROUP}, or leave the configuration out"
        raise ReadingRefused(f"{field}.opaque.driver", shown(opaque.get("driver")), cure)
    meant = _meant(config.get("requests"), requests, f"{field}.requests")
    parameters, field = object_of(opaque.get("parameters")), f"{field}.opaque.parameters"
    _only(parameters, _PARAMETER_FIELDS, field)
    for key, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        if parameters.get(key) != wanted:
            raise ReadingRefused(f"{field}.{key}", shown(parameters.get(key)), f"give {wanted}")
    isolation = parameters.get("isolation") or ""
    if isolation not in ("", *ISOLATION):
        raise ReadingRefused(f"{field}.isolation", shown(isolation), f"give one of {', '.join(ISOLATION)}")
    return tuple(
        replace(
            each,
            isolation=isolation or each.isolation,
            limit=_limit(each, parameters["memoryLimit"], f"{field}.memoryLimit")
            if parameters.get("memoryLimit") is not None
            else each.limit,
        )
        if each.name in meant
        else each
        for each in requests
    )


def _constrained(requests: ClaimReading, listed: object, field: str) -> ClaimReading:
    """The requests with the claim's constraints on them."""
    constraints = listed if isinstance(listed, list) else []
    if len(constraints) > MOST_CONSTRAINTS:
        raise ReadingRefused(field, f"{len(constraints)} constraints", f"give at most {MOST_CONSTRAINTS}")
    read = [_read_constraint(object_of(each), requests, f"{field}[{at}]") for at, each in enumerate(constraints)]
    return tuple(
        replace(request, constraints=tuple(dict.fromkeys(each for each in read if request.name in each.requests)))
        for request in requests
    )


def _read_constraint(constraint: Mapping[str, Any], requests: ClaimReading, field: str) -> Constraint:
    _only(constraint, _CONSTRAINT_FIELDS, field)
    meant = _meant(constraint.get("requests"), requests, f"{field}.requests")
    match, distinct = (constraint.get(key) for key in ("matchAttribute", "distinctAttribute"))
    if distinct is not None:
        if _MATCHING.get(str(distinct)) != UUID or match is not None:
            cure = f"give {selectors.OURS}/{UUID} alone, for different GPUs"
            raise ReadingRefused(f"{field}.distinctAttribute", shown(distinct), cure)
        return Constraint(UUID, meant, distinct=True)
    name = _MATCHING.get(str(match))
    if name is None or name == UUID:
        raise ReadingRefused(f"{field}.matchAttribute", shown(match), _CURES_OF_ATTRIBUTES.get(str(match), _UNMATCHED))
    return Constraint(name, meant)


def _meant(listed: object, requests: ClaimReading, field: str) -> tuple[str, ...]:
    """The requests that a configuration or a constraint names; all requests if it names none."""
    known = [each.name for each in requests]
    found = listed if isinstance(listed, list) and listed else known
    strange = next((each for each in found if each not in known), None)
    if strange is not None:
        raise ReadingRefused(field, shown(strange), f"give requests of this claim: {_names(requests)}")
    return tuple(name for name in known if name in found)


def _names(requests: ClaimReading) -> str:
    """The names of the first requests, for a message."""
    return ", ".join([each.name for each in requests[:_MOST_NAMED]] + ["..."] * (len(requests) > _MOST_NAMED))


def _limit(request: DeviceRequest, found: object, field: str) -> int:
    """The limit above the request; 0 if it equals the request."""
    if not request.memory:
        cure = f"give {MEMORY} in the capacity of request {request.name}, which is the amount that is booked"
        raise ReadingRefused(field, f"{shown(found)} for whole GPUs", cure)
    limit = quantity.integer_or(found, -1)
    if not request.memory <= limit <= MOST_MEMORY:
        least = quantity.format_bytes(request.memory)
        raise ReadingRefused(field, shown(found), f"give memory with its unit, at least the {least} of the request")
    return limit if limit > request.memory else 0


def _only(found: Mapping[str, Any], known: frozenset[str], field: str) -> None:
    """Raise `ReadingRefused` for a field that is set and not supported. An empty field counts as not set."""
    for key in sorted(map(str, found)):
        if key not in known and found.get(key) not in (None, [], {}, False):
            raise ReadingRefused(f"{field}.{shown(key)[1:-1]}", shown(found[key]), _CURES.get(key, _UNKNOWN))


def _read_request(request: object, field: str, reader: _SelectorReader) -> DeviceRequest:
    whole = object_of(request)
    _only(whole, _REQUEST_FIELDS, field)
    name = _label(whole, field)
    listed = whole.get("firstAvailable")
    if not isinstance(listed, list) or not listed:
        return replace(_read_exactly(whole.get("exactly"), f"{field}.exactly", reader, _EXACTLY_FIELDS), name=name)
    if object_of(whole.get("exactly")):
        raise ReadingRefused(f"{field}.exactly", "exactly together with firstAvailable", "give one of the two")
    return _read_alternatives(name, listed, f"{field}.firstAvailable", reader)


def _read_alternatives(name: str, listed: list[Any], field: str, reader: _SelectorReader) -> DeviceRequest:
    """Read a request with alternatives. All have the same amounts, because a pod is counted before one is chosen."""
    if len(listed) > MOST_ALTERNATIVES:
        raise ReadingRefused(field, f"{len(listed)} alternatives", f"give at most {MOST_ALTERNATIVES}")
    found = [
        replace(_read_exactly(each, f"{field}[{at}]", reader, _ALTERNATIVE_FIELDS), name=_label(each, f"{field}[{at}]"))
        for at, each in enumerate(listed)
    ]
    for at, each in enumerate(found):
        if replace(each, name="", selectors=()) != replace(found[0], name="", selectors=()):
            cure = (
                "give all alternatives the same: a quota counts the pod before one is chosen; or use several templates"
            )
            raise ReadingRefused(f"{field}[{at}]", "another count or capacity than in the first alternative", cure)
    if len({each.name for each in found}) < len(found):
        raise ReadingRefused(field, "two alternatives with the same name", "give each its own name")
    alternatives = tuple(Alternative(each.name, each.selectors) for each in found)
    return replace(found[0], name=name, selectors=(), alternatives=alternatives)


def _label(named: object, field: str) -> str:
    name = object_of(named).get("name")
    if not isinstance(name, str) or not is_label(name):
        raise ReadingRefused(f"{field}.name", shown(name), "give at most 63 of a-z, 0-9 and -")
    return name


def _read_exactly(found: object, field: str, reader: _SelectorReader, known: frozenset[str]) -> DeviceRequest:
    """Read what a request specifies about its devices, without its name."""
    exactly = object_of(found)
    if exactly.get("deviceClassName") != names.SHARE_CLASS:
        cure = f"a claim has devices of one kind: give {names.SHARE_CLASS}, or create another claim for the others"
        raise ReadingRefused(f"{field}.deviceClassName", shown(exactly.get("deviceClassName")), cure)
    _only(exactly, known, field)
    mode = exactly.get("allocationMode")
    if mode not in (None, "", _EXACT):
        raise ReadingRefused(f"{field}.allocationMode", shown(mode), f"give {_EXACT} and a count")
    memory, cores = _read_capacity(object_of(exactly.get("capacity")), f"{field}.capacity")
    count = _count(exactly.get("count"), f"{field}.count")
    expressions = reader.read(exactly.get("selectors"), f"{field}.selectors")
    return DeviceRequest("", count, memory, cores, selectors=expressions)


class _SelectorReader:
    """Reads the selectors of one claim. One bound applies to all of them together."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self._known: set[str] = set()

    def read(self, found: object, field: str) -> tuple[str, ...]:
        """The expressions of one list, each once. Raises `ReadingRefused`."""
        listed = found if isinstance(found, list) else []
        if len(listed) > MOST_SELECTORS:
            raise ReadingRefused(field, f"{len(listed)} selectors", f"give at most {MOST_SELECTORS}")
        return tuple(dict.fromkeys(self._one(object_of(each), f"{field}[{at}]") for at, each in enumerate(listed)))

    def _one(self, selector: Mapping[str, Any], field: str) -> str:
        _only(selector, frozenset(("cel",)), field)
        cel, field = object_of(selector.get("cel")), f"{field}.cel"
        _only(cel, frozenset(("expression",)), field)
        expression = cel.get("expression")
        if not isinstance(expression, str):
            raise ReadingRefused(f"{field}.expression", shown(expression), "give a CEL expression")
        try:
            selectors.read(expression)
        except selectors.SelectorRefused as refused:
            raise ReadingRefused(f"{field}.expression", refused.found, refused.cure) from None
        if expression not in self._known:
            self._known.add(expression)
            if sum(map(len, self._known)) > MOST_EXPRESSED:
                cure = f"give at most {MOST_EXPRESSED:,} characters in all expressions of a claim"
                raise ReadingRefused(f"{field}.expression", "a longer sum of expressions", cure)
            problem = self._check(expression)
            if problem:
                cure = f"give a condition about device, such as {selectors.EXAMPLE}"
                raise ReadingRefused(f"{field}.expression", f"{shown(expression)}, of which CEL says: {problem}", cure)
        return expression


def _count(found: object, field: str) -> int:
    if found is None:
        return 1
    if isinstance(found, bool) or not isinstance(found, int) or not 1 <= found <= MOST_RESULTS:
        raise ReadingRefused(field, shown(found), f"give a whole number from 1 to {MOST_RESULTS}")
    return found


def _read_capacity(capacity: Mapping[str, Any], field: str) -> tuple[int, int]:
    _only(capacity, frozenset(("requests",)), field)
    amounts, field = object_of(capacity.get("requests")), f"{field}.requests"
    for key in sorted(map(str, amounts)):
        if key not in (MEMORY, CORES):
            raise ReadingRefused(f"{field}[{shown(key)[1:-1]}]", shown(amounts[key]), f"give {MEMORY}, and {CORES}")
    if CORES in amounts and MEMORY not in amounts:
        cure = f"give {MEMORY} too, such as 8Gi, or no capacity for whole GPUs"
        raise ReadingRefused(field, f"{CORES} without {MEMORY}", cure)
    memory = _amount(amounts, MEMORY, field, least=quantity.MIB, most=MOST_MEMORY) if MEMORY in amounts else 0
    cores = _amount(amounts, CORES, field, least=1, most=WHOLE) if CORES in amounts else 0
    return memory, cores


def _amount(amounts: Mapping[str, Any], key: str, field: str, *, least: int, most: int) -> int:
    found = amounts[key]
    amount = quantity.integer_or(found, -1)
    if least <= amount <= most:
        return amount
    if key == CORES:
        cure = f"give percent of a GPU's multiprocessors, a whole number from 1 to {WHOLE}"
    elif amount > most:
        cure = too_large(quantity.format_bytes(most))
    else:
        cure = "give memory with its unit, at least 1Mi, such as 8Gi"
    raise ReadingRefused(f"{field}[{key}]", shown(found), cure)


# -- the pod ------------------------------------------------------------------------------------------------------


def entries(spec: Mapping[str, Any]) -> tuple[ClaimEntry, ...]:
    """
    The claims that a pod names, including those of other drivers, but not ours for delivery.

    Malformed entries are left out, because the API server refuses such a pod.
    """
    listed = spec.get("resourceClaims")
    found = []
    for each in listed if isinstance(listed, list) else ():
        name, template, claim = (object_of(each).get(key) for key in ("name", *_SOURCES))
        if not isinstance(name, str) or not is_label(name) or resourceclaims.is_ours(claim):
            continue
        if isinstance(template, str) and is_subdomain(template):
            found.append(ClaimEntry(name, template=template))
        elif isinstance(claim, str) and is_subdomain(claim):
            found.append(ClaimEntry(name, claim=claim))
    return tuple(found)


_SOURCES = ("resourceClaimTemplateName", "resourceClaimName")


@dataclass(frozen=True, slots=True)
class ContainerUse:
    """The requests that one container uses, each with the pod's name for its claim; its cards are in this order."""

    container: ContainerReader
    requests: tuple[tuple[str, DeviceRequest], ...]


def uses(context: PodReader, readings: Readings) -> tuple[ContainerUse, ...]:
    """
    The requests that the containers use, in start order. Containers that use none are left out.

    Raises `ReadingRefused` unless exactly one container uses each request.
    """
    found, used = [], dict[tuple[str, str], str]()
    for container in context.containers():
        chosen = tuple(_chosen(container, readings))
        for name, request in chosen:
            other = used.setdefault((name, request.name), container.name)
            if other != container.name:
                cure = "give each container its own request, and name it there"
                raise ReadingRefused(
                    f"{container.path}.resources.claims",
                    f"request {request.name} of claim {name}, which container {shown(other)} uses",
                    cure,
                )
        if len(set(chosen)) < len(chosen):
            raise ReadingRefused(f"{container.path}.resources.claims", "a request twice", "name it once")
        if chosen:
            found.append(ContainerUse(container, chosen))
    for name, requests in readings.items():
        for request in requests:
            if (name, request.name) not in used:
                cure = "name it under resources.claims of a container, or leave the request out of the claim"
                raise ReadingRefused(
                    "spec.resourceClaims", f"claim {name}, whose request {request.name} no container uses", cure
                )
    return tuple(found)


def _chosen(container: ContainerReader, readings: Readings) -> Iterator[tuple[str, DeviceRequest]]:
    listed = object_of(container.container.get("resources")).get("claims")
    for at, reference in enumerate(listed if isinstance(listed, list) else ()):
        name, wanted = object_of(reference).get("name"), object_of(reference).get("request")
        requests = readings.get(name, ()) if isinstance(name, str) else ()
        chosen = [each for each in requests if not wanted or each.name == wanted]
        if requests and not chosen:
            field = f"{container.path}.resources.claims[{at}].request"
            raise ReadingRefused(field, shown(wanted), f"give a request of that claim: {_names(requests)}")
        yield from ((str(name), each) for each in chosen)


def read_pod(context: PodReader, readings: Readings) -> PodRequest | Refusal | None:
    """The request of a pod whose claims were read; None if none of them is ours."""
    try:
        context.bounded()
        if names.POD_CLAIM in readings:
            cure = "give another name here and under resources.claims; this one is taken"
            raise ReadingRefused("spec.resourceClaims[].name", shown(str(names.POD_CLAIM)), cure)
        fractions = [_fraction(use, context) for use in uses(context, readings)]
        return pod_request(NAME, context, fractions)
    except ReadingRefused as refused:
        return refused.refusal


def _fraction(use: ContainerUse, context: PodReader) -> FractionRequest:
    field, requests = f"{use.container.path}.resources.claims", [request for _, request in use.requests]
    shares = {(request.memory, request.cores, request.limit) for request in requests}
    if len(shares) > 1:
        cure = "a container has the same share of each of its GPUs: make the requests equal, or use several containers"
        raise ReadingRefused(field, "requests of different capacity or limit", cure)
    if len({request.selectors for request in requests}) > 1 or (
        len(requests) > 1 and any(request.alternatives for request in requests)
    ):
        cure = "give all requests of a container the same selectors and no alternatives, or use several containers"
        raise ReadingRefused(field, "requests with different selectors, or one with firstAvailable among several", cure)
    [(memory, cores, limit)] = shares
    count, common = sum(request.count for request in requests), _common(use)
    return FractionRequest(
        container=use.container.name,
        count=count,
        memory=memory,
        percent=0 if memory else WHOLE,
        cores=cores if memory else WHOLE,
        exclusive=not memory,
        init=use.container.init,
        wishes=_wishes(use, requests[0], context),
        one_numa=count > 1 and NUMA in common,
        one_model=count > 1 and PRODUCT_NAME in common,
        apart=UUID in common,
        limit=limit,
    )


def _common(use: ContainerUse) -> set[str]:
    """
    The attributes that constraints restrict for the container's GPUs. `UUID` is one of them only if the constraint also
    covers the GPUs of other containers. Raises `ReadingRefused` for a constraint that covers only some of the
    container's GPUs, or that requires equal GPUs in different containers.
    """
    own, found = {(name, request.name) for name, request in use.requests}, set()
    field = f"{use.container.path}.resources.claims"
    for name, constraint in {(name, each) for name, request in use.requests for each in request.constraints}:
        about = {(name, request) for request in constraint.requests}
        if about <= own and constraint.distinct:
            continue  # the GPUs of one container are always different
        if not own <= about:
            cure = "have the constraint name all requests that the container uses, or none of them"
            raise ReadingRefused(field, f"a constraint of claim {name} about some of the container's requests", cure)
        if about != own and not constraint.distinct:
            cure = "leave it out, or have one container use all requests that it names"
            raise ReadingRefused(field, f"a matchAttribute of claim {name} for several containers", cure)
        found.add(constraint.attribute)
    return found


def _wishes(use: ContainerUse, request: DeviceRequest, context: PodReader) -> Wishes:
    """The wishes for cards in the pod's annotations and in its claims. Alternatives replace an order of models."""
    found = wishes(context, use.container)
    alternatives = tuple(each.selectors for each in request.alternatives)
    ordered = found.ordered and not alternatives
    return replace(found, ordered=ordered, selectors=request.selectors, alternatives=alternatives)


def isolation_of(readings: Readings) -> str | Refusal:
    """The isolation that the claims request; empty if they request none. A pod has one isolation."""
    found = sorted({each.isolation for requests in readings.values() for each in requests} - {""}, key=ISOLATION.index)
    if len(found) > 1:
        cure = "a pod has one level of isolation: give the same in all of its claims"
        return Refusal("spec.resourceClaims", f"claims that ask for isolation by {' and by '.join(found)}", cure)
    return found[0] if found else ""


def isolated(pod: JSON, isolation: str) -> JSON:
    """The pod with the isolation that its claims request, unless the pod itself requests one."""
    metadata = pod.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    if not isolation or annotations.get(names.ISOLATION):
        return pod
    return {**pod, "metadata": {**metadata, "annotations": {**annotations, str(names.ISOLATION): isolation}}}


def in_two_ways(other: str) -> Refusal:
    """Why a pod cannot have shares both by claims and in another dialect. `other`: the title of that dialect."""
    cure = "use only one dialect: remove one of the two"
    return Refusal("spec.resourceClaims", f"GPU shares together with {other}", cure)


def is_as_counted(request: PodRequest, read: PodRequest) -> bool:
    """Whether claims that were read again still have the pod's requests at admission. Ignores annotations."""
    # Our annotation can require one NUMA node too, and may have been added later.
    by_claim = (
        one.one_numa or not other.one_numa for one, other in zip(request.containers, read.containers, strict=False)
    )
    return _amounts(request.containers) == _amounts(read.containers) and all(by_claim)


def _amounts(containers: Sequence[FractionRequest]) -> list[tuple[object, ...]]:
    return [
        (
            *(each.container, each.count, each.memory, each.percent, each.cores, each.exclusive, each.init, each.limit),
            *(each.wishes.selectors, each.wishes.alternatives, each.one_model, each.apart),
        )
        for each in containers
    ]


def is_borne_out(pod: Mapping[str, Any], earlier: PodRequest) -> bool:
    """Whether each container of a request names a claim, by the pod alone. The claims themselves are read later."""
    context = PodReader(pod, DEFAULTS)
    named = {each.name for each in entries(object_of(pod.get("spec")))}
    naming = {
        container.name
        for container in context.containers()
        for reference in _references(container)
        if object_of(reference).get("name") in named
    }
    return {each.container for each in earlier.containers} <= naming


def _references(container: ContainerReader) -> Sequence[object]:
    listed = object_of(container.container.get("resources")).get("claims")
    return listed if isinstance(listed, list) else ()


DIALECT = Dialect(
    name=NAME,
    title="ResourceClaims",
    resources=(),
    read=lambda context: None,
    about=__doc__ or "",
    glossary=(
        Word("spec.resourceClaims", "Pod", "claims and templates of the DeviceClass `share.gpufraction.io`"),
        Word("capacity.requests[memory]", "ResourceClaim request", "memory of each GPU; without it, whole GPUs"),
        Word("capacity.requests[cores]", "ResourceClaim request", "percent of each GPU's multiprocessors"),
        Word("count", "ResourceClaim request", "cards"),
        Word("selectors", "ResourceClaim request", "CEL expressions that each card must satisfy"),
        Word("firstAvailable", "ResourceClaim request", "alternatives, the preferred ones first"),
        Word(
            "matchAttribute", "ResourceClaim constraint", "the cards of a container on one NUMA node, or of one model"
        ),
        Word("distinctAttribute", "ResourceClaim constraint", "different cards for several containers"),
        Word("isolation", "ResourceClaim config", "the least isolation, as the annotation `gpufraction.io/isolation`"),
        Word("memoryLimit", "ResourceClaim config", "as the resource `gpufraction.io/gpu-memory-limit`"),
    ),
)
