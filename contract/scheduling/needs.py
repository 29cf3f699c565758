"""
A pod's needs besides GPUs, and whether a node satisfies them: the rules of kube-scheduler and kubelet.

kube-scheduler never sees a pod that we pin with `nodeName`, so its rules are repeated here: effective requests with
init containers and sidecars, tolerations, selectors, required node affinity, host ports. `SchedulingRequest` is a pod's
share together with its needs, for the scheduler. Pure; reads a pod's JSON and never changes it.

Sources: the Kubernetes documentation of "Sidecar Containers: resource sharing within containers", "Assign Pod-level CPU
and memory resources", "Taints and Tolerations" and "Assigning Pods to Nodes".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice, product
from typing import Any, TypeVar

from contract import names
from contract.encoding import resourceclaims
from contract.model import MOST_ALTERNATIVES, Compute, FractionRequest, NodeState, PodRequest, Taint
from contract.scheduling.gates import STORED, Gate, Gates
from contract.scheduling.nodefilters import features as declared_features
from contract.scheduling.nodefilters import ports as node_ports
from contract.scheduling.nodefilters.ports import EVERY_PORT as EVERY_PORT
from contract.scheduling.nodefilters.ports import MOST_PORTS as MOST_PORTS
from contract.scheduling.nodefilters.ports import host_ports as host_ports
from contract.scheduling.nodefilters.resources import CPU as CPU
from contract.scheduling.nodefilters.resources import MEMORY as MEMORY
from contract.scheduling.nodefilters.resources import STORAGE as STORAGE
from contract.scheduling.nodefilters.resources import containers as containers
from contract.scheduling.nodefilters.resources import effective_compute as effective_compute
from contract.scheduling.nodefilters.resources import is_sidecar as is_sidecar

JSON = dict[str, Any]
T = TypeVar("T")

_NAME_FIELD = "metadata.name"  # the one field that a node selector may use
_INTEGER = re.compile(r"[+-]?[0-9]{1,32}")
ONE_POD = Compute(pods=1)
"""The amount that every pod takes from its node."""
_SHORT = 8
_COMPARING = ("Lt", "Gt")


@dataclass(frozen=True, slots=True)
class Toleration:
    """A pod's toleration; an empty `key` with `Exists` tolerates everything, an empty `effect` every effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """Whether this toleration covers `taint`; an unknown operator covers none."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        if self.operator == "Exists":
            return True
        if self.operator in _COMPARING:
            return _compares(taint.value, self.operator, (self.value,))
        return self.operator == "Equal" and bool(self.key) and self.value == taint.value


@dataclass(frozen=True, slots=True)
class Requirement:
    """One expression of a node selector term. `field`: it is about `metadata.name`, not about a label."""

    key: str
    operator: str
    values: tuple[str, ...] = ()
    field: bool = False

    def holds(self, node: NodeState) -> bool:
        """Whether `node` satisfies the expression; an unknown operator or field is not satisfied."""
        if self.field and self.key != _NAME_FIELD:
            return False
        value = node.name if self.field else node.labels.get(self.key)
        if self.operator in ("Gt", "Lt"):
            return _compares(value, self.operator, self.values)
        return label_matches(value, self.operator, self.values) or False


def label_matches(value: str | None, operator: str, values: Collection[str]) -> bool | None:
    """Whether a label's value, None if it is absent, satisfies a selector's expression; None: an unknown operator."""
    match operator:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    return None


def _compares(value: str | None, operator: str, values: tuple[str, ...]) -> bool:
    have, want = _integer(value), _integer(values[0]) if len(values) == 1 else None
    if have is None or want is None:
        return False
    return have > want if operator == "Gt" else have < want


def _integer(text: object) -> int | None:
    """A whole number as Kubernetes reads one here: 64 bits, without the `1_000` and blanks that Python accepts."""
    if not isinstance(text, str) or not _INTEGER.fullmatch(text):
        return None
    value = int(text)
    return value if -(1 << 63) <= value < 1 << 63 else None


Term = tuple[Requirement, ...]
"""Expressions that must all hold. A term without any matches no node, as in Kubernetes."""


class Hashed(tuple[T, ...]):
    """
    A tuple that computes its hash once. It equals the plain tuple and has the same hash.

    Each decision looks needs up many times, and those of one pod may have a thousand parts.
    """

    _hash: int

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            self._hash = super().__hash__()
            return self._hash


def _hashed(items: Iterable[T]) -> tuple[T, ...]:
    """The items as a tuple that is fast to look up, like a short plain one."""
    found = tuple(items)
    return Hashed(found) if len(found) > _SHORT else found


def _hashed_once(cls: type[T]) -> type[T]:
    """
    A dataclass that keeps the hash of each object in its field `_hash`.

    A scheduling cycle looks up several answers for each pod of the queue.
    """
    compute = cls.__hash__

    def hash_once(self: Any) -> int:
        found: int | None = self._hash
        if found is None:
            found = compute(self)
            object.__setattr__(self, "_hash", found)
        return found

    type.__setattr__(cls, "__hash__", hash_once)
    return cls


@_hashed_once
@dataclass(frozen=True, slots=True)
class PodNeeds:
    """A pod's needs of its node besides GPUs. Hashable, so that equal needs are evaluated once."""

    compute: Compute = ONE_POD
    node_name: str = ""
    node_selector: tuple[tuple[str, str], ...] = ()
    affinity: tuple[Term, ...] | None = None
    """Required node affinity: any of these terms; None if there is none."""
    tolerations: tuple[Toleration, ...] = ()
    host_ports: frozenset[tuple[str, str, int]] = frozenset()
    runtime_class: str = ""
    """`spec.runtimeClassName`; empty for the node's default runtime."""
    isolation: str = ""
    """The least isolation that the node must enforce; empty for any."""
    several: bool = False
    """Whether a container needs more than one GPU."""
    bursts: bool = False
    """Whether a container has a memory limit above its request."""
    claim: bool = False
    """Whether the pod names a ResourceClaim by which a node with Dynamic Resource Allocation delivers its share."""
    features: frozenset[str] = frozenset()
    """The features that its node must declare; see `contract.scheduling.nodefilters.features`."""
    _hash: int | None = field(default=None, init=False, repr=False, compare=False)


def needs_of(
    pod: Mapping[str, Any],
    *,
    several: bool = False,
    bursts: bool = False,
    own_claims: bool = False,
    gates: Gates = STORED,
) -> PodNeeds:
    """
    Read a pod's needs; `several`, `bursts` and `own_claims` are its request's, `gates` the cluster's.

    Raises `quantity.BadQuantity` for an amount that the API server would also refuse.
    """
    spec = pod.get("spec") or {}
    return PodNeeds(
        compute=effective_compute(spec, gates),
        node_name=spec.get("nodeName") or "",
        node_selector=_hashed(sorted((spec.get("nodeSelector") or {}).items())),
        affinity=_required_affinity(spec),
        tolerations=_hashed(_tolerations(spec, gates)),
        host_ports=host_ports(spec),
        runtime_class=spec.get("runtimeClassName") or "",
        isolation=((pod.get("metadata") or {}).get("annotations") or {}).get(names.ISOLATION) or "",
        several=several,
        bursts=bursts,
        claim=own_claims or bool(resourceclaims.named_by(spec)),
        features=declared_features.needed(spec),
    )


def needs_for(pod: Mapping[str, Any], request: PodRequest | None, gates: Gates = STORED) -> PodNeeds:
    """Like `needs_of`, for a pod with this request; None if it requests no share."""
    if request is None:
        return needs_of(pod, gates=gates)
    return needs_of(pod, several=request.several, bursts=request.bursts, own_claims=request.own_claims, gates=gates)


def unpinned(needs: PodNeeds) -> PodNeeds:
    """The needs of the replacement pod from its controller: the same, without this node."""
    terms = None
    if needs.affinity is not None:
        terms = tuple(tuple(each for each in term if not each.field) for term in needs.affinity)
        terms = None if () in terms else terms
    return replace(needs, node_name="", affinity=terms)


def pinned(affinity: tuple[Term, ...] | None, node: str) -> tuple[Term, ...]:
    """Required node affinity with a pin to one node, as `contract.scheduling.node_pin` writes it."""
    pin = Requirement(_NAME_FIELD, "In", (node,), field=True)
    if affinity is None:
        return ((pin,),)
    return tuple(term if not term or pin in term else (*term, pin) for term in affinity)


def with_containers(spec: Mapping[str, Any], change: Callable[[Any], Any]) -> JSON:
    """A copy of the spec in which `change` replaces every init and app container; the rest is shared."""
    kinds = [kind for kind in ("initContainers", "containers") if isinstance(spec.get(kind), list)]
    return {**spec, **{kind: [change(container) for container in spec[kind]] for kind in kinds}}


def request_of(container: Mapping[str, Any], resource: str) -> object:
    """
    A container's request of a resource, else its limit (Kubernetes' default), else 0.

    A pod's spec has `resources` of its own in the same form.
    """
    resources = container.get("resources") or {}
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    return requests.get(resource, limits.get(resource, 0))


def resource_names(spec: Mapping[str, Any]) -> frozenset[str]:
    """Every resource that any container of the pod names in its limits or requests."""
    names: set[str] = set()
    for container, _ in containers(spec):
        resources = container.get("resources") or {}
        names.update(resources.get("limits") or {}, resources.get("requests") or {})
    return frozenset(names)


def _required_affinity(spec: Mapping[str, Any]) -> tuple[Term, ...] | None:
    node_affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return None if required is None else node_terms(required)


def node_terms(selector: Mapping[str, Any]) -> tuple[Term, ...]:
    """The terms of a NodeSelector, of which one must hold."""
    return Hashed(node_term(term) for term in selector.get("nodeSelectorTerms") or [])


def node_term(term: Mapping[str, Any]) -> Term:
    """One NodeSelectorTerm."""
    labels = (_requirement(e, field=False) for e in term.get("matchExpressions") or [])
    fields = (_requirement(e, field=True) for e in term.get("matchFields") or [])
    return (*labels, *fields)


def _requirement(expression: Mapping[str, Any], *, field: bool) -> Requirement:
    values = tuple(expression.get("values") or ())
    return Requirement(expression.get("key", ""), expression.get("operator", ""), values, field)


def _tolerations(spec: Mapping[str, Any], gates: Gates) -> Iterator[Toleration]:
    for item in spec.get("tolerations") or []:
        if item.get("operator") in _COMPARING and Gate.TOLERATION_COMPARISON not in gates:
            continue
        yield Toleration(
            key=item.get("key") or "",
            operator=item.get("operator") or "Equal",
            value=item.get("value") or "",
            effect=item.get("effect") or "",
        )


# -- does a node have it ------------------------------------------------------------------------------------------


def untolerated(node: NodeState, tolerations: Iterable[Toleration]) -> Taint | None:
    """The first taint that keeps the pod off the node; `PreferNoSchedule` never does."""
    accepted = tuple(tolerations)
    for taint in node.taints:
        if taint.effect != "PreferNoSchedule" and not any(t.tolerates(taint) for t in accepted):
            return taint
    return None


def selects(needs: PodNeeds, node: NodeState) -> bool:
    """Whether the pod's nodeSelector and required node affinity accept the node."""
    if any(node.labels.get(key) != value for key, value in needs.node_selector):
        return False
    return needs.affinity is None or any_term(needs.affinity, node)


def selecting(needs: PodNeeds) -> Callable[[NodeState], bool] | None:
    """`selects` for many nodes; None if the pod accepts every node."""
    if not needs.node_selector:
        return None if needs.affinity is None else terms_holding(needs.affinity)
    terms = None if needs.affinity is None else terms_holding(needs.affinity)

    def selected(node: NodeState) -> bool:
        for key, value in needs.node_selector:
            if node.labels.get(key) != value:
                return False
        return terms is None or terms(node)

    return selected


def any_term(terms: Iterable[Term], node: NodeState) -> bool:
    """Whether one of the terms holds on the node."""
    return any(term_holds(term, node) for term in terms)


def terms_holding(terms: Iterable[Term]) -> Callable[[NodeState], bool]:
    """`any_term` for many nodes: terms that list values of labels, as those of volumes do, are prepared once."""
    given = tuple(terms)
    if any(requirement.field or requirement.operator != "In" for term in given for requirement in term):
        return lambda node: any_term(given, node)
    listed = [[(each.key, frozenset(each.values)) for each in term] for term in given if term]

    def holds(node: NodeState) -> bool:
        for term in listed:
            for key, values in term:
                if node.labels.get(key) not in values:
                    break
            else:
                return True
        return False

    return holds


def term_holds(term: Term, node: NodeState) -> bool:
    """Whether all of the term holds on the node; one without expressions never does."""
    return bool(term) and all(requirement.holds(node) for requirement in term)


def port_conflict(needs: PodNeeds, node: NodeState) -> tuple[str, str, int] | None:
    """A host port of the pod that the node has in use already, else None."""
    return node_ports.conflict(needs.host_ports, node.host_ports)


# -- a pod to place -----------------------------------------------------------------------------------------------

MOST_MODELS = 8
"""The most models that are tried one after the other; later ones are accepted in no order."""


@_hashed_once
@dataclass(frozen=True, slots=True)
class SchedulingRequest:
    """One pod to place: its share, and its other needs of a node. Hashable: equal requests have equal answers."""

    request: PodRequest
    needs: PodNeeds
    stored: PodRequest | None = None
    """The pod's own request if `request` is another form of it; Kubernetes counts by the pod's own."""
    _hash: int | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def as_stored(self) -> PodRequest:
        """The pod's own request."""
        return self.stored or self.request

    @property
    def together(self) -> bool:
        """Whether all containers use the same GPUs, as a single container always does."""
        return len(self.request.containers) <= 1 or self.request.same_gpus

    @property
    def numa_bound(self) -> bool:
        """Whether some container's GPUs must all be on one NUMA node."""
        return any(fraction.one_numa for fraction in self.request.containers)

    @property
    def alike(self) -> bool:
        """Whether some container's GPUs depend on each other: `FractionRequest.alike`."""
        return any(fraction.alike for fraction in self.request.containers)


def queue_order(priority: int, created: float) -> tuple[int, float]:
    """
    The sort key of a waiting pod among the pods of all namespaces, as objects show it: the higher Kubernetes priority
    first, then the older pod. `created`: seconds since 1970.

    A priority in a dialect is tenants' text and counts within one namespace only
    (`contract.scheduling.fairness.own_order`).
    """
    return (-priority, created)


def narrowed(ask: SchedulingRequest) -> Iterator[SchedulingRequest]:
    """
    The pod limited to its most preferred models, or alternatives, then to the next ones; nothing without an order.

    The caller tries these first, and finally the pod itself, which may mix models. So the engines need one rule only,
    whether a GPU is accepted, and only pods with such an order cost more. For the alternatives of several containers
    every combination is tried, first those with the first container's preferred one, as in kube-scheduler.
    """
    containers = ask.request.containers
    if any(len(fraction.wishes.alternatives) > 1 for fraction in containers):
        places = (range(max(1, len(fraction.wishes.alternatives))) for fraction in containers)
        for combination in islice(product(*places), MOST_ALTERNATIVES):
            yield _limited(ask, map(_with_alternative, containers, combination))
    choices = max((len(f.wishes.use_models) for f in containers if f.wishes.ordered), default=0)
    for rank in range(min(choices, MOST_MODELS)):
        yield _limited(ask, (_only(fraction, rank) for fraction in containers))


def _limited(ask: SchedulingRequest, containers: Iterable[FractionRequest]) -> SchedulingRequest:
    return replace(ask, request=replace(ask.request, containers=tuple(containers)), stored=ask.as_stored)


def _with_alternative(fraction: FractionRequest, place: int) -> FractionRequest:
    wishes = fraction.wishes
    if not wishes.alternatives:
        return fraction
    only = replace(wishes, alternatives=(wishes.alternatives[place],), first=wishes.first + place)
    return replace(fraction, wishes=only)


def _only(fraction: FractionRequest, rank: int) -> FractionRequest:
    wishes = fraction.wishes
    if not wishes.ordered or not wishes.use_models:
        return fraction
    word = wishes.use_models[min(rank, len(wishes.use_models) - 1)]
    return replace(fraction, wishes=replace(wishes, use_models=(word,), ordered=False))
