"""
A table of dialects, and reading a pod through it.

The order decides only how a message lists two dialects that conflict. A pod with names of two dialects is refused,
since it is unclear which of them is meant. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from contract import names
from contract.deprecations import DEPRECATED, Deprecation, used
from contract.dialects import claims, hami, limitranges, native, resourceclaims
from contract.dialects.base import (
    ANNOTATION,
    LABEL,
    NOTHING_STARTS,
    WITH_UNIT,
    ContainerReader,
    Decided,
    Dialect,
    PodReader,
    ReadingRefused,
    Refusal,
    Rendering,
    annotation_field,
    object_of,
)
from contract.dialects.spelling import MOST_REPORTED, UNDER_LIMITS, UNKNOWN, UNREAD, Known, Spelling, did_you_mean
from contract.dialects.unread import OURS, unread_annotations
from contract.encoding import quantity
from contract.encoding.reading import shown
from contract.model import LEAST_USED, UNKNOWN_DIALECT, Allocation, PodRequest
from contract.options import DEFAULTS, VENDOR, Options
from contract.scheduling import needs

_ACCOUNTING = frozenset((str(names.GPU_MEMORY), str(names.GPU_CORES), str(names.GPU_MEMORY_LIMIT)))
"""The resources that admission writes for a share."""


class Dialects:
    """The dialects in which pods may ask. `contract.dialects.DIALECTS` is the table of the programs."""

    def __init__(self, dialects: Iterable[Dialect], deprecations: Iterable[Deprecation] = DEPRECATED) -> None:
        self._dialects = tuple(dialects)
        self._deprecations = tuple(deprecations)
        self._by_name = {dialect.name: dialect for dialect in self._dialects}
        self.resources = frozenset(resource for dialect in self._dialects for resource in dialect.resources)
        """Every resource name by which a container can request a share."""
        words = [word for dialect in self._dialects for word in dialect.glossary]
        self._known_resources = Known(self.resources)
        self._known_annotations = Known(word.name for word in words if word.on == ANNOTATION and "<" not in word.name)
        self._known_labels = Known(word.name for word in words if word.on == LABEL)
        known = (self._known_resources, self._known_annotations, self._known_labels)
        self._domains = tuple({f"{domain}/" for each in known for domain in each.of_domain if domain})
        """The beginnings, in lower case, of names with a domain that may be misspelt."""

    def __iter__(self) -> Iterator[Dialect]:
        return iter(self._dialects)

    def deprecated(self, pod: Mapping[str, Any]) -> tuple[Deprecation, ...]:
        """The deprecated names that the pod has."""
        return used(pod, self._deprecations)

    def known(self, name: str) -> str:
        """The name of the dialect in a stored request, or `UNKNOWN_DIALECT`: its author may have invented one."""
        return name if name in self._by_name else UNKNOWN_DIALECT

    def named(self, name: str) -> Dialect | None:
        """The dialect of that name, or None: the request annotation may be written by a newer version."""
        return self._by_name.get(name)

    def detect(self, pod: Mapping[str, Any]) -> tuple[Dialect, ...]:
        """The dialects in which the pod requests something, in the table's order."""
        return _speaking(pod, self)

    def read(
        self, pod: Mapping[str, Any], options: Options = DEFAULTS, spelling: Spelling | None = None
    ) -> PodRequest | Refusal | None:
        """
        The pod's request; None if it requests nothing; a `Refusal` where it cannot be served as written.

        `spelling` bounds and counts the comparisons of misspelt names.
        """
        speaking = self.detect(pod)
        if not speaking:
            return None
        spelling = spelling or Spelling()
        written, (pod, ranged) = pod, self._as_meant(pod, options)
        speaking, context = speaking if pod is written else self.detect(pod), PodReader(pod, options)
        try:
            if len(speaking) > 1:
                _refuse_two(pod, speaking[0], speaking[1])
            context.bounded()  # first: reading one container looks at others, so the work grows with their square
            for misspelt in self._misspelt_resources(context, spelling):
                return misspelt  # the share would not be the intended one
            if spelling.exhausted:
                return _too_many_unknown()
            request = speaking[0].read(context) if speaking else None
        except ReadingRefused as refused:
            return _naming(refused.refusal, context, ranged)
        if request is None:
            return None
        warnings = (
            *request.warnings,
            *unread_annotations(context.annotations, spelling),
            *self._misspelt_elsewhere(context, spelling),
            *(
                f"container {each.container}: {quantity.format_bytes(each.memory)}, {NOTHING_STARTS}; {WITH_UNIT}"
                for each in request.containers
                if each.memory and max(each.memory, each.limit) < LEAST_USED
            ),
            *(
                f"container {container}: {', '.join(sorted(resources))} was set by a LimitRange in the namespace"
                for container, resources in ranged.items()
            ),
        )
        return replace(request, warnings=warnings)

    def _as_meant(
        self, pod: Mapping[str, Any], options: Options, earlier: PodRequest | None = None
    ) -> tuple[Mapping[str, Any], limitranges.RangedRequests]:
        """
        The pod without the resources of a LimitRange that do not belong to its request, and those that are left.

        `earlier`: the request with which the pod was admitted before. Amounts that a LimitRange writes into its
        containers again are not a new request.
        """
        standard_of = dict(options.resource_names)
        wrote = {
            container: frozenset(standard_of.get(name, name) for name in names_) & self.resources
            for container, names_ in limitranges.ranged_requests(pod).items()
        }
        wrote = {container: names_ for container, names_ in wrote.items() if names_}
        if not wrote:
            return pod, limitranges.NO_RANGE
        amounts = {reader.name: reader for reader in PodReader(pod, options).containers()}
        if earlier is None:
            own = list(self.detect(limitranges.without(pod, wrote)))
        else:
            own = [dialect for dialect in self if dialect.name == earlier.dialect]
        if not own:
            by_range = [d for d in self if any(not names_.isdisjoint(d.resources) for names_ in wrote.values())]
            own = [d for d in by_range if d is not native.DIALECT] or by_range
        wanted = {resource for dialect in own for resource in dialect.resources}
        known = {fraction.container for fraction in earlier.containers} if earlier is not None else set()
        left = {
            container: frozenset(
                name
                for name in names_ & wanted
                if container in amounts and not quantity.is_zero(amounts[container].found(name))
            )
            for container, names_ in wrote.items()
            if container not in known
        }
        dropped = {
            container: names_ - left.get(container, frozenset()) - (_ACCOUNTING if container in known else frozenset())
            for container, names_ in wrote.items()
        }
        return limitranges.without(pod, dropped), {container: names_ for container, names_ in left.items() if names_}

    def borne_out(self, pod: Mapping[str, Any], earlier: PodRequest) -> bool:
        """
        Whether the pod still agrees with the request in its annotation, as far as that is known.

        The annotation may be the author's own. Most dialects ask by resources, which admission replaces by the
        accounting resources, and the request must agree with those (`contract.pods.admitted_before`). The name of a
        claim is in an annotation that stays on the pod, so the request must agree with that one. Containers may have
        been added.
        """
        if earlier.dialect == resourceclaims.NAME:
            return not earlier.claim and resourceclaims.is_borne_out(pod, earlier)
        if not earlier.claim:
            return earlier.dialect != claims.DIALECT.name
        try:
            found = claims.DIALECT.read(PodReader(pod, DEFAULTS))
        except ReadingRefused:
            return False
        if found is None or found.claim != earlier.claim:
            return False
        return {fraction.container for fraction in earlier.containers} <= {each.container for each in found.containers}

    def read_again(
        self, pod: Mapping[str, Any], earlier: PodRequest, options: Options = DEFAULTS
    ) -> PodRequest | Refusal | None:
        """
        The request of a pod that was admitted before with the request `earlier`, and got more containers since.

        The added containers are read in the dialect of the earlier ones, and both make one request. None if no
        container requests anything new; a `Refusal` for another dialect, and for a new amount in a container that has
        its share.
        """
        try:
            PodReader(pod, options).bounded()  # first: each container is looked up among those of the earlier request
        except ReadingRefused as refused:
            return refused.refusal
        pod, ranged = self._as_meant(pod, options, earlier)
        context = PodReader(pod, options)
        adding = [each for each in context.containers() if self._asks_more(each, earlier)]
        if not adding:
            return None
        was, known = self.named(earlier.dialect), {fraction.container for fraction in earlier.containers}
        if was is native.DIALECT and any(each.name in known for each in adding):
            return self.read(pod, options)  # admission writes resources of this dialect, so the whole pod can be read
        refusal = next((found for found in (self._not_alike(each, earlier, known) for each in adding) if found), None)
        if refusal is not None or was is None:
            return refusal
        names_ = {each.name for each in adding}
        spec = needs.with_containers(
            object_of(pod.get("spec")), lambda each: each if each.get("name") in names_ else {**each, "resources": {}}
        )
        try:
            return _joined(was, context, earlier, was.read(PodReader({**pod, "spec": spec}, options)))
        except ReadingRefused as refused:
            return _naming(refused.refusal, context, ranged)

    def _not_alike(self, container: ContainerReader, earlier: PodRequest, known: Collection[str]) -> Refusal | None:
        """Why a container's new amounts cannot be joined with the earlier request; None if they can."""
        was = self.named(earlier.dialect)
        title = was.title if was is not None else earlier.dialect
        for resource in sorted(name for name in set(container.names()) if name in self.resources):
            if container.name in known and resource not in _ACCOUNTING:
                amount = shown(container.found(resource))
                found = f"{amount} in container {container.name}, whose share has already been read ({title})"
                return Refusal(container.field(resource), found, "remove it: request a share only once")
            if container.name not in known and (was is None or resource not in was.resources):
                theirs = next(dialect.title for dialect in self if resource in dialect.resources)
                first = earlier.containers[0].container
                found = f"{theirs} of container {container.name}, together with {title} of container {first}"
                return Refusal(
                    container.field(resource),
                    found,
                    "use one dialect for all containers, including those that a webhook adds",
                )
        return None

    def _asks_more(self, container: ContainerReader, earlier: PodRequest) -> bool:
        """Whether a container names a share that is not in the earlier request."""
        known = any(fraction.container == container.name for fraction in earlier.containers)
        return any(
            name in self.resources and not (name in _ACCOUNTING and (known or quantity.is_zero(container.found(name))))
            for name in container.names()
        )

    def render(self, pod: Mapping[str, Any], request: PodRequest, allocation: Allocation, now_ns: int) -> Rendering:
        """The allocation in the names of the request's dialect; empty if that dialect is unknown here."""
        dialect = self.named(request.dialect)
        if dialect is None:
            return Rendering()
        listed = (pod.get("spec") or {}).get("containers") or []
        containers = tuple(str(container.get("name", "")) for container in listed)
        return dialect.render(Decided(request, allocation, containers, now_ns))

    def started(self, pod: Mapping[str, Any]) -> dict[str, str]:
        """The annotations that change when the containers of an allocated pod run; empty before."""
        annotations = (pod.get("metadata") or {}).get("annotations") or {}
        if names.ALLOCATION not in annotations or (pod.get("status") or {}).get("phase") != "Running":
            return {}
        return {key: value for dialect in self for key, value in dialect.started(annotations).items()}

    def normalise(self, pod: dict[str, Any], options: Options = DEFAULTS) -> dict[str, Any] | None:
        """
        The pod with the standard names of resources and without an older system's own scheduler; None if it is not
        ours.

        A pod is not ours if it names `nvidia.com/gpu` and no share, and the administrator leaves such pods to the
        vendor's plugin. The result shares structure with `pod`, which is not changed. Where a container has both the
        standard and the other name of a resource, both stay.
        """
        if options.whole_gpus == VENDOR and self._only_whole_gpus(pod):
            return None
        pod = _renamed(pod, dict(options.resource_names))
        scheduler = object_of(pod.get("spec")).get("schedulerName")
        replaced = [dialect for dialect in self if scheduler in dialect.schedulers]
        if replaced and _speaking(pod, replaced):
            spec = {**object_of(pod.get("spec")), "schedulerName": "default-scheduler"}
            pod = {**pod, "spec": spec}
        return pod

    def _only_whole_gpus(self, pod: Mapping[str, Any]) -> bool:
        speaking = self.detect(pod)
        return [dialect.name for dialect in speaking] == [hami.DIALECT.name] and not any(
            container.asks(resource)
            for container in PodReader(pod, DEFAULTS).containers()
            for resource in hami.DIALECT.resources
            if resource != hami.GPU
        )

    def ours(self, resource: str) -> bool:
        """Whether a resource name is one of a dialect, or one that admission writes."""
        return resource in self.resources or resource in _ACCOUNTING

    def others_only(self, found: needs.PodNeeds) -> needs.PodNeeds:
        """The needs of a pod that is not admitted yet, without the resources by which it requests its share."""
        scalars = found.compute.scalars
        if not scalars or not any(self.ours(name) for name, _ in scalars):
            return found
        kept = tuple(each for each in scalars if not self.ours(each[0]))
        return replace(found, compute=replace(found.compute, scalars=kept))

    def misspelt(self, pod: Mapping[str, Any], spelling: Spelling | None = None) -> tuple[Refusal, ...]:
        """
        A refusal for each of the first misspelt resources of a pod that requests no share; the caller may only warn.

        The last one is of our own domain, if there is any of it.
        """
        found: list[Refusal] = []
        for refusal in self._misspelt_resources(PodReader(pod, DEFAULTS), spelling or Spelling()):
            if f"[{OURS}" in refusal.field:
                return (*found, refusal)
            if len(found) < MOST_REPORTED:
                found.append(refusal)
        return tuple(found)

    def _misspelt_resources(self, context: PodReader, spelling: Spelling) -> Iterator[Refusal]:
        for container in context.containers():
            for resource in dict.fromkeys(container.names()):
                if resource in self.resources or not resource.lower().startswith(self._domains):
                    continue
                near = spelling.suggest(resource, self._known_resources)
                if near is not None:
                    yield Refusal(container.field(shown(resource)[1:-1]), UNKNOWN, did_you_mean(near))
                elif resource.startswith(OURS):
                    listed = ", ".join(native.DIALECT.resources)
                    yield Refusal(container.field(shown(resource)[1:-1]), UNKNOWN, f"give one of {listed}")

    def _misspelt_elsewhere(self, context: PodReader, spelling: Spelling) -> Iterator[str]:
        """A warning for each annotation and label that resembles an older system's, or has the name of a resource."""
        for what, keys, known in (
            ("annotations", context.annotations, self._known_annotations),
            ("labels", context.labels, self._known_labels),
        ):
            reported = 0
            for key in sorted(key for key in keys if "/" not in key or key.lower().startswith(self._domains)):
                if key.startswith(OURS) or key in known.names:
                    continue
                if key in self.resources:
                    cure = UNDER_LIMITS
                elif (near := spelling.suggest(key, known)) is not None:
                    cure = did_you_mean(near)
                else:
                    continue
                yield f"metadata.{what}[{shown(key)[1:-1]}]: {UNREAD}; {cure}"
                reported += 1
                if reported == MOST_REPORTED:
                    break


def _speaking(pod: Mapping[str, Any], dialects: Iterable[Dialect]) -> tuple[Dialect, ...]:
    """Those of the dialects in which the pod requests something."""
    resources, annotations = _resources_of(pod), PodReader(pod, DEFAULTS).annotations.keys()
    return tuple(
        dialect
        for dialect in dialects
        if not resources.isdisjoint(dialect.resources)
        or not annotations.isdisjoint(dialect.annotations)
        or (dialect.annotation_prefixes and any(key.startswith(dialect.annotation_prefixes) for key in annotations))
    )


def _resources_of(pod: Mapping[str, Any]) -> set[str]:
    """The resources of all containers. It reads them without `PodReader`, since a pod may have very many containers."""
    found: set[str] = set()
    spec = object_of(pod.get("spec"))
    for kind in ("initContainers", "containers"):
        listed = spec.get(kind)
        for container in listed if isinstance(listed, list) else ():
            resources = object_of(container).get("resources")
            if resources:
                for each in ("limits", "requests"):
                    found.update(object_of(object_of(resources).get(each)))
    return found


def _mentions(pod: Mapping[str, Any], dialect: Dialect) -> Iterator[str]:
    """The path of every field of the pod's request in the dialect."""
    context = PodReader(pod, DEFAULTS)
    for container in context.containers():
        for resource in dialect.resources:
            if container.asks(resource):
                yield container.field(resource)
    for annotation in dialect.annotations:
        if annotation in context.annotations:
            yield annotation_field(annotation)
    for prefix in dialect.annotation_prefixes:
        for annotation in context.annotations:
            if annotation.startswith(prefix):
                yield annotation_field(annotation)


def _too_many_unknown() -> Refusal:
    """Some of so many unknown resources are misspelt, and the share would not be the intended one."""
    found = "too many unknown resources with names similar to those of GPU shares"
    return Refusal("spec.containers[].resources", found, "remove those that have no effect")


def _refuse_two(pod: Mapping[str, Any], first: Dialect, second: Dialect) -> None:
    # The API server's annotation names only one of several LimitRanges, so any of them may have written one of the two.
    where = " from the pod or the namespace's LimitRange" if limitranges.ranged_requests(pod) else ""
    raise ReadingRefused(
        next(_mentions(pod, second)),
        f"{second.title} together with {first.title} ({next(_mentions(pod, first))})",
        f"use only one dialect: remove one of the two{where}",
    )


def _naming(refusal: Refusal, context: PodReader, ranged: limitranges.RangedRequests) -> Refusal:
    """The refusal, which names the LimitRange where that wrote the refused amount."""
    if not ranged:
        return refusal
    for container in context.containers():
        if any(container.field(resource) == refusal.field for resource in ranged.get(container.name, ())):
            return replace(refusal, found=f"{refusal.found}, set by a LimitRange in the namespace")
    return refusal


def _joined(dialect: Dialect, context: PodReader, earlier: PodRequest, added: PodRequest | None) -> PodRequest:
    """Both requests as one, with the containers in the pod's order. Raises `ReadingRefused`."""
    if added is None:
        return earlier
    fractions = {fraction.container: fraction for fraction in (*earlier.containers, *added.containers)}
    ordered = tuple(fractions[each.name] for each in context.containers() if each.name in fractions)
    dialect.together(context, ordered)
    request = replace(
        earlier,
        containers=ordered,
        same_gpus=dialect.same_gpus and len(ordered) > 1,
        priority=max(earlier.priority, added.priority),
        warnings=(*added.warnings, *unread_annotations(context.annotations)),
    )
    if request.excess is not None:
        raise ReadingRefused("spec.containers", *request.excess)
    return request


def _renamed(pod: dict[str, Any], standard_of: Mapping[str, str]) -> dict[str, Any]:
    if not standard_of or not isinstance(pod.get("spec"), Mapping):
        return pod
    return {**pod, "spec": needs.with_containers(pod["spec"], lambda each: _container_renamed(each, standard_of))}


def _container_renamed(container: Any, standard_of: Mapping[str, str]) -> Any:
    resources = dict(object_of(object_of(container).get("resources")))
    changed = False
    for kind in ("limits", "requests"):
        amounts = object_of(resources.get(kind))
        if any(name in standard_of and standard_of[name] not in amounts for name in amounts):
            resources[kind] = {
                standard_of[name] if standard_of.get(name, name) not in amounts else name: amount
                for name, amount in amounts.items()
            }
            changed = True
    return {**container, "resources": resources} if changed else container
