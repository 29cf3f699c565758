"""
From a decoded AdmissionReview to its answer. `admit` is the entry; the module follows the order of its steps.

    normalise     the pod with the standard names of resources, and with its runtime class
    plan(pod)     -> Pass | Deny | KeepGated | Allocate
    ask           the allocator, where the plan is `Allocate`; the caller brings the function
    settle(...)   -> Admit | Deny: the pod that is stored, placed or behind the gate
    volumes       of limiters, for containers with a share

Pure: no clock and no socket. A second pass over an admitted pod changes nothing, except that containers added in
between are closed off too. Every failure here must end in a pod that sees no GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from contract import bounds, gangs, names, pods
from contract.dialects import DIALECTS, limitranges
from contract.dialects import resourceclaims as shares_by_claims
from contract.dialects.base import PodReader, Refusal, Rendering
from contract.dialects.table import Dialects
from contract.encoding import codec, resourceclaims
from contract.encoding.protocol import Answer, ClaimsAnswer, ClaimsQuestion, Never, Placed, Question, Wait
from contract.encoding.reading import Malformed, shown
from contract.isolation import ISOLATION
from contract.model import MOST_CLAIMS, Allocation, PodRequest
from contract.options import NO_OPTIONS, Options, PoolOptions
from contract.reasons.pods import UNANSWERED, AnswerReason
from contract.scheduling import needs, node_pin, protection
from webhook.admission import containers, review
from webhook.admission.containers import NO_VOLUMES, Volumes
from webhook.admission.review import FORBIDDEN, INVALID, Review

JSON = dict[str, Any]

_LONGEST_ID = 64
"""Characters of an allocation's id; ours have half as many."""
_BY_NAME, _BY_AFFINITY = "nodeName", "affinity"
_SOON = (
    AnswerReason.NOT_LEADING,
    AnswerReason.QUEUED,
    AnswerReason.STORED_FIRST,
    AnswerReason.UNANSWERED,
    AnswerReason.GANG,
)
_UNREAD = (
    "spec.resourceClaims: gpufraction's allocator does not answer, so it is unknown whether the pod requests a share "
    "that a quota counts; create the pod again in a moment"
)
_ONCE_STORED = "its ResourceClaims are allocated when it is stored"
_LINUX = "linux"
_DEFAULT_SCHEDULER = "default-scheduler"
_DAEMONSET = "DaemonSet"
_HOSTNAME = "kubernetes.io/hostname"
_TOPOLOGY_REQUESTS = tuple(
    f"kueue.x-k8s.io/podset-{which}"
    for which in (
        "required-topology",
        "preferred-topology",
        "slice-required-topology",
        "slice-required-topology-constraints",
    )
)
"""Annotations by which a pod asks Kueue for nodes of one topology domain; the last one has several levels as JSON."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """The administrator's choices on admission."""

    dialects: Dialects = DIALECTS
    """The dialects in which pods may ask."""
    pools: PoolOptions = NO_OPTIONS
    """The administrator's document of options, which says how pods are read."""
    warning: str = ""
    """A warning for every pod with a share, such as that the document cannot be read; empty: none."""
    hide_gpus: bool = False
    """Whether GPUs are hidden from pods that request none."""
    runtime_class: str = ""
    """The RuntimeClass for pods with a share that name none; empty: none."""
    least_isolation: str = ""
    """The weakest level of isolation for pods with a share; empty: any."""
    volumes: Volumes = NO_VOLUMES
    """The volumes of pods with a share, for limiters."""
    toolkit_limits: bool = False
    """Whether containers with a share have the variables by which NVIDIA's container toolkit limits their memory."""
    dra: bool = False
    """Whether pods with a share name a ResourceClaim, for nodes that deliver by Dynamic Resource Allocation."""


@dataclass(frozen=True, slots=True)
class Reviewed:
    """
    The body of the answer to a review; and for the metrics, its outcome, the dialect of the pod's request, and the
    deprecated names that the pod has.
    """

    body: bytes
    outcome: str
    dialect: str = ""
    deprecated: tuple[str, ...] = ()


class TooLate(Exception):
    """The client stopped waiting before the answer was ready."""


OnTime = Callable[[], None]
"""Raises `TooLate`; called before each step of a review that may take long."""
Reserve = Callable[[Question], Answer | None]
"""Asks the allocator; None if it gave no usable answer."""
ReadClaims = Callable[[ClaimsQuestion], ClaimsAnswer | None]
"""Gets the requests of ResourceClaims from the allocator; None if it gave no usable answer."""
Offers = Callable[[str], frozenset[str]]
"""The resources by which NVIDIA's plugin offers GPUs on a node; none if that is not known."""


def admit(
    submitted: Review,
    configuration: Configuration,
    reserve: Reserve,
    offers: Offers,
    *,
    now_ns: int,
    on_time: OnTime = lambda: None,
) -> Reviewed:
    """
    The answer to a review. Raises what `on_time` raises.

    `now_ns` is the time in nanoseconds since 1970: some older systems write the time of a placement on the pod.
    """
    on_time()
    if configuration.hide_gpus and submitted.debugs_pod:
        return _debugged(submitted)
    options, dialects = configuration.pools.reading(submitted.pod), configuration.dialects
    pod = dialects.normalise(submitted.pod, options) if submitted.creates_pod else None
    if pod is None:  # NVIDIA's own plugin serves it, or the review is not about a new pod
        hides = configuration.hide_gpus and submitted.creates_pod
        return _hidden(submitted, offers, whole=True) if hides else _untouched(submitted)
    # Before the question: the class decides on which nodes a GPU reaches the pod.
    pod = _at_least(_in_class(pod, configuration.runtime_class), configuration.least_isolation)
    planned = plan(pod, options, dialects)
    on_time()
    if isinstance(planned, Allocate | KeepGated):
        pod, planned = _claiming(submitted, pod, planned, configuration)
    if submitted.is_template and isinstance(planned, Allocate) and not _bound(pod):
        return _templated(submitted, pod, planned, configuration, reserve)
    match planned:
        case Pass(beyond_reach, warnings):
            if configuration.hide_gpus and not beyond_reach:
                return _hidden(submitted, offers, whole=False, warnings=warnings)
            return _untouched(submitted, warnings)
        case Deny(message, code):
            _release(submitted, pod, reserve)
            return _denied(submitted, message, code)
        case KeepGated():
            answer: Answer | None = None
        case Allocate(request, held, trimmed):
            answer = reserve(
                Question(submitted.uid, submitted.namespace, request, trimmed, dry_run=submitted.dry_run, held=held)
            )
            on_time()
    return _settled(submitted, pod, planned, answer, configuration, now_ns=now_ns)


def admit_claims(
    submitted: Review,
    configuration: Configuration,
    reserve: Reserve,
    read_claims: ReadClaims,
    *,
    now_ns: int,
    on_time: OnTime = lambda: None,
) -> Reviewed:
    """
    The answer to a review of a pod that names ResourceClaims, in a namespace whose pods may request shares by them.

    The drivers of the claims are not known here: a pod whose claims are all of other drivers passes unchanged. If the
    claims cannot be read, the pod is refused, because it may have a share that no quota counts.
    """
    on_time()
    if not submitted.creates_pod:
        return _untouched(submitted)
    wrong = review.structure_problem(submitted.pod)
    if wrong is not None:
        return _denied(submitted, str(wrong))
    entries = shares_by_claims.entries(submitted.pod.get("spec") or {})
    if not entries or pods.MIRROR in pods.annotations_of(submitted.pod):
        return _untouched(submitted)
    if len(entries) > MOST_CLAIMS:
        cure = f"give at most {MOST_CLAIMS}, or use a namespace without the label {names.RESOURCE_CLAIMS_LABEL}"
        return _denied(submitted, str(Refusal("spec.resourceClaims", f"{len(entries)} claims", cure)))
    read = read_claims(ClaimsQuestion(submitted.namespace, entries))
    on_time()
    if read is None:
        return _denied(submitted, _UNREAD, FORBIDDEN)
    if read.refused:
        return _denied(submitted, read.refused, dialect=shares_by_claims.NAME)
    ours = {name: reading for name, reading in read.readings.items() if reading}
    if not ours:
        return _untouched(submitted)
    isolation = shares_by_claims.isolation_of(ours)
    if isinstance(isolation, Refusal):
        return _denied(submitted, str(isolation), dialect=shares_by_claims.NAME)
    pod = shares_by_claims.isolated(_in_class(submitted.pod, configuration.runtime_class), isolation)
    pod = _at_least(pod, configuration.least_isolation)
    planned = _plan_claims(pod, ours, configuration)
    if isinstance(planned, Deny):
        return _denied(submitted, planned.message, planned.code, shares_by_claims.NAME)
    answer = None
    if isinstance(planned, Allocate):
        # The claims are allocated once the pod is stored. A dry run says what will happen to it, and what it counts.
        listed = [each for each in planned.pod["spec"].get("resourceClaims") or () if each.get("name") not in ours]
        asked = {**planned.pod, "spec": {**planned.pod["spec"], "resourceClaims": listed}}
        answer = reserve(Question(submitted.uid, submitted.namespace, planned.request, asked, dry_run=True))
        on_time()
    if isinstance(answer, Placed):
        answer = Wait(AnswerReason.STORED_FIRST, _ONCE_STORED, _totals(planned.request, answer))
    return _settled(submitted, pod, planned, answer, configuration, now_ns=now_ns)


def _plan_claims(
    pod: JSON, ours: shares_by_claims.Readings, configuration: Configuration
) -> Allocate | KeepGated | Deny:
    """The plan for a pod whose claims were read."""
    options, dialects = configuration.pools.reading(pod), configuration.dialects
    before = _earlier_pass(pod, dialects)
    earlier = before.request
    request = shares_by_claims.read_pod(PodReader(pod, options), ours)
    if request is None:
        return Deny(_UNREAD, FORBIDDEN)
    if isinstance(request, Refusal):
        return Deny(str(request))
    if earlier is None or not earlier.own_claims:
        own = limitranges.without(pod, limitranges.ranged_requests(pod))
        others = [each.title for each in dialects if earlier is not None and each.name == earlier.dialect]
        others = others or [each.title for each in dialects.detect(own)]
        if others:
            return Deny(str(shares_by_claims.in_two_ways(others[0])))
    stolen = next(filter(resourceclaims.is_ours, _claim_names(pod)), None)
    if stolen is not None:
        cure = "remove it: this ResourceClaim delivers the share of another pod"
        return Deny(str(Refusal("spec.resourceClaims[].resourceClaimName", shown(stolen), cure)))
    refused = _foreign_system(pod) or _chosen_host(pod) or bounds.refused(pod, request, options, dialects)
    if refused is not None:
        return Deny(str(refused))
    waits = request == earlier and names.GATE in pods.gates(pod) and not _bound(pod)
    if waits and before.allocation is None and _is_counted(request):
        return KeepGated(request, before)
    return Allocate(request, "", pods.trim(_without_stale_pin(pod, before)), before)


def _claim_names(pod: Mapping[str, Any]) -> list[object]:
    return [each.get("resourceClaimName") for each in pod["spec"].get("resourceClaims") or ()]


def _claiming(
    submitted: Review, pod: JSON, planned: Allocate | KeepGated, configuration: Configuration
) -> tuple[JSON, Allocate | KeepGated]:
    """
    The pod and its plan with our ResourceClaim, or with none, regardless of what the pod's author wrote.

    The name follows from the review's uid, which no tenant chooses, so a pod cannot name another one's claim. It must
    be known before the question, because it decides which nodes deliver to the pod.
    """
    request, spec = planned.request, pod.get("spec") or {}
    if request.own_claims:
        return pod, planned  # those deliver too
    if configuration.dra and not submitted.is_template and resourceclaims.fits_claim(request):
        spec = resourceclaims.with_claim(spec, request, resourceclaims.name_from(submitted.uid))
    else:
        spec = resourceclaims.without_claim(spec)
    if spec == pod.get("spec"):
        return pod, planned
    pod = {**pod, "spec": spec}
    if isinstance(planned, Allocate):
        earlier = planned.earlier or _earlier_pass(pod, configuration.dialects)
        planned = replace(planned, pod=pods.trim(_without_stale_pin(pod, earlier)))
    return pod, planned


def _templated(
    submitted: Review, pod: JSON, planned: Allocate, configuration: Configuration, reserve: Reserve
) -> Reviewed:
    """
    Answer an autoscaler's dry run of a template: the pod as it waits, so that it fits any node, even a future one. The
    allocator is asked only for the memory of a percentage.
    """
    if _is_counted(planned.request):
        return _settled(submitted, pod, KeepGated(planned.request), None, configuration)
    answer = reserve(Question(submitted.uid, submitted.namespace, planned.request, planned.pod, dry_run=True))
    if isinstance(answer, Placed):
        answer = Wait(AnswerReason.TEMPLATE, "a template is not placed", _totals(planned.request, answer))
    return _settled(submitted, pod, planned, answer, configuration)


def _settled(
    submitted: Review,
    pod: JSON,
    planned: Allocate | KeepGated,
    answer: Answer | None,
    configuration: Configuration,
    *,
    now_ns: int = 0,
) -> Reviewed:
    dialect = planned.request.dialect
    settled = settle(pod, planned, answer, now_ns=now_ns, dialects=configuration.dialects)
    if isinstance(settled, Deny):
        return _denied(submitted, settled.message, settled.code, dialect)
    sharing = {fraction.container for fraction in planned.request.containers}
    after = containers.with_volumes(settled.pod, sharing, configuration.volumes)
    if configuration.toolkit_limits:
        after = containers.with_toolkit_limits(after, sharing)
    if isinstance(answer, Placed) and not answer.allocation.by_claim:
        after = {**after, "spec": resourceclaims.without_claim(after["spec"])}
    warnings = (*settled.warnings, configuration.warning) if configuration.warning else settled.warnings
    deprecated = configuration.dialects.deprecated(submitted.pod)
    warnings = (*warnings, *(each.warning for each in deprecated))
    outcome, found = "placed" if isinstance(answer, Placed) else "gated", tuple(each.name for each in deprecated)
    audit = {"outcome": outcome, "dialect": dialect, **_audited(answer)}
    encoded = review.allowed(submitted.uid, before=submitted.pod, after=after, warnings=warnings, audit=audit)
    return Reviewed(encoded, outcome, dialect, found)


def _audited(answer: Answer | None) -> dict[str, str]:
    """The audit log's note about an answer: the share, or why there is none yet."""
    if isinstance(answer, Placed):
        cards = sorted({share.uuid for each in answer.allocation.containers for share in each.shares})
        return {"allocation": answer.allocation.id, "node": answer.allocation.node, "cards": ",".join(cards)}
    return {"reason": str(answer.code)} if isinstance(answer, Wait) else {}


def _untouched(submitted: Review, warnings: tuple[str, ...] = ()) -> Reviewed:
    return Reviewed(review.allowed(submitted.uid, warnings=warnings), "untouched")


def _denied(submitted: Review, message: str, code: int = INVALID, dialect: str = "") -> Reviewed:
    audit = {"outcome": "denied", "dialect": dialect, "reason": message}
    return Reviewed(review.denied(submitted.uid, message, code=code, audit=audit), "denied", dialect)


def _hidden(submitted: Review, offers: Offers, *, whole: bool, warnings: tuple[str, ...] = ()) -> Reviewed:
    """Admit a pod without a share so that it sees only the GPUs that NVIDIA's plugin gives it."""
    wrong = review.structure_problem(submitted.pod)
    if wrong is not None:
        return _denied(submitted, str(wrong))
    if pods.MIRROR in pods.annotations_of(submitted.pod):
        return _untouched(submitted)
    wanted = containers.vendor_resources(submitted.pod, whole=whole)
    node = (submitted.pod.get("spec") or {}).get("nodeName")
    offered = wanted & offers(node) if node and wanted else wanted
    warnings = (*warnings, containers.not_offered(node or "", wanted - offered))
    after = containers.hidden(submitted.pod, offered)
    return Reviewed(review.allowed(submitted.uid, before=submitted.pod, after=after, warnings=warnings), "hidden")


def _debugged(submitted: Review) -> Reviewed:
    wrong = review.structure_problem(submitted.pod) or review.structure_problem(submitted.old)
    if wrong is not None:
        return _denied(submitted, str(wrong))
    after = containers.debugged(submitted.pod, submitted.old)
    return Reviewed(review.allowed(submitted.uid, before=submitted.pod, after=after), "hidden")


def _release(submitted: Review, pod: JSON, reserve: Reserve) -> None:
    """Release at the allocator the share that an earlier pass gave to a refused pod."""
    if submitted.dry_run or review.structure_problem(pod) is not None:
        return
    allocation = pods.carried_allocation(pod)
    try:
        request = codec.request_from_text(pods.annotations_of(pod).get(names.REQUEST))
    except Malformed:
        return
    if allocation is not None:
        metadata = {key: pod["metadata"][key] for key in ("name", "generateName") if key in pod["metadata"]}
        slim = {"metadata": metadata}
        reserve(Question(submitted.uid, submitted.namespace, request, slim, held=allocation.id, refused=True))


def _in_class(pod: Mapping[str, Any], runtime_class: str) -> JSON:
    """A copy of the pod with this runtime class, unless the class is empty or the pod names one itself."""
    spec = pod.get("spec")
    if not runtime_class or not isinstance(spec, Mapping) or spec.get("runtimeClassName"):
        return dict(pod)
    return {**pod, "spec": {**spec, "runtimeClassName": runtime_class}}


def _at_least(pod: JSON, least: str) -> JSON:
    """
    A copy of the pod that accepts no weaker level of isolation than `least`; empty: the pod as it is.

    A level that does not exist stays, and the pod is refused with it.
    """
    metadata = pod.get("metadata")
    if not least or not isinstance(metadata, Mapping) or not isinstance(metadata.get("annotations") or {}, Mapping):
        return pod
    annotations = metadata.get("annotations") or {}
    level = annotations.get(names.ISOLATION) or ""
    enough = ISOLATION[: ISOLATION.index(least) + 1]
    if level and (level not in ISOLATION or level in enough):
        return pod
    return {**pod, "metadata": {**metadata, "annotations": {**annotations, str(names.ISOLATION): least}}}


# -- plan ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pass:
    """The pod requests no share, or cannot be changed."""

    beyond_reach: bool = False
    """Kubelet already runs the pod, so no change would take effect."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Deny:
    """The pod is refused with this message. `code`: `review.INVALID` or `review.FORBIDDEN`."""

    message: str
    code: int = INVALID


@dataclass(frozen=True, slots=True)
class EarlierPass:
    """
    The content that an earlier pass wrote on the pod. It is read once for a review: the annotations may have 256 KiB,
    and admission needs their content repeatedly.
    """

    request: PodRequest | None
    """Set if the pod was admitted before."""
    allocation: Allocation | None
    """Valid or not."""


def _earlier_pass(pod: Mapping[str, Any], dialects: Dialects) -> EarlierPass:
    return EarlierPass(_earlier(pod, dialects), pods.carried_allocation(pod))


@dataclass(frozen=True, slots=True)
class KeepGated:
    """The pod was admitted before and waits behind the gate: it stays there, and the allocator is not asked."""

    request: PodRequest
    earlier: EarlierPass | None = field(default=None, compare=False)
    """None: it is read from the pod."""


@dataclass(frozen=True, slots=True)
class Allocate:
    """The allocator decides. `held` is the id of the allocation that the pod has already, or empty."""

    request: PodRequest
    held: str
    pod: JSON
    """The fields of the pod that a placement needs, without the pin of an allocation that may be stale."""
    earlier: EarlierPass | None = field(default=None, compare=False)
    """None: it is read from the pod."""


Plan = Pass | Deny | KeepGated | Allocate


@dataclass(frozen=True, slots=True)
class Admit:
    """The pod as it is stored. kubectl shows the warnings."""

    pod: JSON
    warnings: tuple[str, ...] = ()


def plan(pod: Mapping[str, Any], options: Options, dialects: Dialects = DIALECTS) -> Plan:
    """The plan for a new pod."""
    wrong = review.structure_problem(pod)
    if wrong is not None:
        return Deny(str(wrong))
    if pods.MIRROR in pods.annotations_of(pod):
        return Pass(beyond_reach=True)
    before = _earlier_pass(pod, dialects)
    earlier, first_pass = before.request, before.request is None
    request = dialects.read(pod, options) if earlier is None else dialects.read_again(pod, earlier, options) or earlier
    if request is None:
        return _unasked(pod, dialects)
    if isinstance(request, Refusal):
        return Deny(str(request))
    grown = request != earlier
    refused = _foreign_system(pod) or _chosen_host(pod) or bounds.refused(pod, request, options, dialects)
    if refused is not None:
        return Deny(str(refused))
    held = None if first_pass else before.allocation
    waits = not grown and names.GATE in pods.gates(pod) and not _bound(pod)
    if held is None and waits and _is_counted(request):
        return KeepGated(request, before)
    return Allocate(request, held.id if held else "", pods.trim(_without_stale_pin(pod, before)), before)


def _earlier(pod: Mapping[str, Any], dialects: Dialects) -> PodRequest | None:
    """The request of an earlier pass; None if this is the first one, even if the author wrote an annotation."""
    earlier = pods.admitted_before(pod)
    if earlier is None or not dialects.borne_out(pod, earlier):
        return None
    return replace(earlier, dialect=dialects.known(earlier.dialect))


def _foreign_system(pod: Mapping[str, Any]) -> Refusal | None:
    """kube-scheduler ignores a pod's operating system, and a kubelet of another system fails the pod."""
    system = ((pod.get("spec") or {}).get("os") or {}).get("name") or _LINUX
    cure = f"GPU shares are available only on Linux nodes: leave it out, or give {_LINUX}"
    return None if system == _LINUX else Refusal("spec.os.name", repr(system), cure)


def _chosen_host(pod: Mapping[str, Any]) -> Refusal | None:
    """
    Refuse a pod that asks Kueue to choose its host.

    Kueue compares sums over a node's GPUs, where a share must fit on single GPUs. So it may choose a host on which the
    pod never gets a share, while another host has room.
    """
    annotations = pods.annotations_of(pod)
    for name in _TOPOLOGY_REQUESTS:
        level = annotations.get(name, "")
        if level == _HOSTNAME or f'"{_HOSTNAME}"' in level:
            cure = (
                "Kueue would choose the node by the sum over its GPUs, but a share must fit on single GPUs: name a "
                "level above hosts, in a Topology that ends above hosts"
            )
            return Refusal(f"metadata.annotations[{name}]", shown(level), cure)
    return None


def _is_counted(request: PodRequest) -> bool:
    """
    Whether the pod's accounting resources follow from its request. With a percentage they do not, so the author could
    choose the amount that a quota counts. Then the allocator computes the least amount again.
    """
    return not any(fraction.percent for fraction in request.containers)


def _unasked(pod: Mapping[str, Any], dialects: Dialects) -> Pass | Deny:
    """A pod without a request passes, unless it has our gate or annotation: nothing would ever remove its gate."""
    if names.GATE in pods.gates(pod):
        field, found = "spec.schedulingGates", str(names.GATE)
    elif names.REQUEST in pods.annotations_of(pod):
        field, found = "metadata.annotations", str(names.REQUEST)
    else:
        misspelt = dialects.misspelt(pod)
        ours = next((found for found in misspelt if f"[{names.GROUP}/" in found.field), None)
        return Pass(warnings=tuple(map(str, misspelt))) if ours is None else Deny(str(ours))
    return Deny(str(Refusal(field, f"{found} on a pod that requests no share", "remove it, or request a share")))


def _bound(pod: Mapping[str, Any]) -> str:
    """`spec.nodeName`, or empty."""
    return (pod.get("spec") or {}).get("nodeName") or ""


def _without_stale_pin(pod: Mapping[str, Any], earlier: EarlierPass) -> JSON:
    """
    A copy of the pod without the pin to the node of its allocation annotation.

    A node that the pod's author named, or that another webhook wrote later, stays.
    """
    allocation, spec = earlier.allocation, pod.get("spec") or {}
    if allocation is None or earlier.request is None:
        return dict(pod)
    pin = pods.annotations_of(pod).get(names.PIN)
    if pin == _BY_NAME:
        ours = spec.get("nodeName") == allocation.node
        return {**pod, "spec": {key: value for key, value in spec.items() if key != "nodeName"}} if ours else dict(pod)
    if pin == _BY_AFFINITY:
        affinity = node_pin.without_pin(spec, allocation.node)
    elif _of_daemonset(pod):
        return dict(pod)
    else:
        affinity = node_pin.unpinned(spec, allocation.node)
    rest = {key: value for key, value in spec.items() if key != "affinity"}
    return {**pod, "spec": {**rest, "affinity": affinity} if affinity else rest}


def _of_daemonset(pod: Mapping[str, Any]) -> bool:
    """Whether a DaemonSet owns the pod: its controller pins pods in the same form as we do."""
    owners = (pod.get("metadata") or {}).get("ownerReferences") or []
    return any(owner.get("kind") == _DAEMONSET for owner in owners)


# -- settle -------------------------------------------------------------------------------------------------------


def settle(
    pod: JSON,
    decided: Allocate | KeepGated,
    answer: Answer | None,
    *,
    now_ns: int,
    dialects: Dialects = DIALECTS,
) -> Admit | Deny:
    """
    The outcome for a pod with the plan `decided`; `answer` is None if the allocator gave none.

    `now_ns`: as in `admit`.
    """
    if isinstance(answer, Never):
        return Deny(answer.reason, FORBIDDEN)
    uncounted = _uncounted(decided.request, _totals(decided.request, answer))
    if uncounted:
        return Deny(_cannot_be_counted(uncounted, answer), FORBIDDEN)
    bound = _bound(_without_stale_pin(pod, decided.earlier or _earlier_pass(pod, dialects)))
    if bound and not isinstance(answer, Placed) and not _may_wait_for(pod, answer):
        return Deny(_cannot_wait(bound, answer), FORBIDDEN)
    return Admit(_applied(pod, decided, answer, dialects, now_ns=now_ns), _warnings(pod, decided, answer, bound))


def _uncounted(request: PodRequest, totals: Mapping[str, int]) -> str:
    """
    The first container that asks by percent and whose least memory is unknown; or empty.

    Such a container cannot be admitted: no quota would count it, and its resources can never be changed.
    """
    return next((f.container for f in request.containers if f.percent and not totals.get(f.container)), "")


def _cannot_be_counted(container: str, answer: Answer | None) -> str:
    because = answer.reason if isinstance(answer, Wait) else "the allocator does not answer"
    return (
        f"container {container!r} requests a whole GPU or a percentage of one, and the memory that a quota counts "
        f"for it is unknown now ({because}); create the pod again in a moment, or request an amount of memory"
    )


def _may_wait_for(pod: Mapping[str, Any], answer: Answer | None) -> bool:
    """
    Whether a pod that names its node may wait behind the gate, with a node affinity instead of the name.

    It may if the share is only not given at this moment: its node has room, or the allocator does not answer.
    kube-scheduler then binds the pod, so the pod must name no other scheduler.
    """
    scheduler = (pod.get("spec") or {}).get("schedulerName") or _DEFAULT_SCHEDULER
    return isinstance(answer, Wait) and answer.code in _SOON and scheduler == _DEFAULT_SCHEDULER


def _warnings(pod: JSON, decided: Allocate | KeepGated, answer: Answer | None, bound: str) -> tuple[str, ...]:
    warnings = decided.request.warnings
    if isinstance(found := gangs.read(pod), gangs.NoGang):
        warnings = (*warnings, f"the pod is placed on its own, without a gang: {found.why}")
    if isinstance(decided, KeepGated) or isinstance(answer, Placed | Never):
        return warnings
    if answer is None:
        return (*warnings, f"waiting: {UNANSWERED}")
    if decided.request.own_claims and answer.code == AnswerReason.STORED_FIRST:
        return warnings
    if bound:
        warnings = (
            *warnings,
            f"spec.nodeName: found {bound!r}; the pod gets a node affinity for it instead, and waits",
        )
    return (*warnings, f"waiting: {answer.reason}")


def _cannot_wait(bound: str, answer: Wait | None) -> str:
    """The API server refuses a gate alongside spec.nodeName, so such a pod gets its share now or is denied."""
    cure = "remove spec.nodeName (a nodeSelector can choose the node) and the pod waits in the queue"
    if answer is None:
        return f"spec.nodeName: found {bound!r} while the allocator does not answer; create it again soon, or {cure}"
    if answer.code == AnswerReason.NOT_LEADING:
        why = "where only the leading replica can place the pod, and this replica does not lead"
        return f"spec.nodeName: found {bound!r}, {why}; create it again, remove spec.schedulerName, or {cure}"
    if answer.code == AnswerReason.STORED_FIRST:
        return f"spec.nodeName: found {bound!r}, and {answer.reason}; remove spec.schedulerName, or {cure}"
    return f"spec.nodeName: found {bound!r}, which cannot take the pod now: {answer.reason}; {cure}"


def _applied(
    pod: JSON, decided: Allocate | KeepGated, answer: Answer | None, dialects: Dialects, *, now_ns: int
) -> JSON:
    """A copy of the pod as it is stored: placed where the answer is `Placed`, else behind the gate."""
    placed = answer if isinstance(answer, Placed) else None
    earlier = decided.earlier or _earlier_pass(pod, dialects)
    unchanged = placed is not None and _stands(pod, decided, placed.allocation)
    changed = _copied(pod if unchanged else _without_stale_pin(pod, earlier))
    metadata, spec = changed["metadata"], changed["spec"]
    if metadata.get("annotations"):
        metadata["annotations"] = protection.without(metadata["annotations"])
    if not unchanged:
        _drop_rendering(pod, earlier, metadata, dialects)
    ranged = limitranges.ranged_requests(pod)
    containers.rewrite(spec, decided.request, _totals(decided.request, answer), ranged, dialects)
    if placed is None:
        held = decided.held if isinstance(decided, Allocate) else pods.annotations_of(pod).get(names.RETURNED, "")
        returned = {str(names.RETURNED): held} if 0 < len(held) <= _LONGEST_ID else {}
        _annotate(metadata, {str(names.REQUEST): codec.request_to_text(decided.request), **returned})
        _unbind(spec)
        _gate(spec)
        return changed
    rendering = _rendering(pod, decided.request, placed.allocation, dialects, unchanged=unchanged, now_ns=now_ns)
    _ungate(spec)
    pin = _pin(spec, placed, pods.annotations_of(pod).get(names.PIN, "") if unchanged else None)
    _annotate(
        metadata,
        {
            names.REQUEST: codec.request_to_text(decided.request),
            names.ALLOCATION: codec.allocation_to_text(placed.allocation),
            **({names.PIN: pin} if pin else {}),
            **codec.container_annotations(placed.allocation),
            **rendering.annotations,
            **(protection.added(metadata.get("annotations") or {}) if placed.protects else {}),
        },
    )
    if rendering.labels:
        metadata["labels"] = {**(metadata.get("labels") or {}), **rendering.labels}
    return changed


def _stands(pod: JSON, decided: Allocate | KeepGated, allocation: Allocation) -> bool:
    """Whether the allocator confirmed the allocation annotation of the pod, byte for byte."""
    held = isinstance(decided, Allocate) and decided.held == allocation.id
    return held and pods.annotations_of(pod).get(names.ALLOCATION) == codec.allocation_to_text(allocation)


def _copied(pod: Mapping[str, Any]) -> JSON:
    """A copy of the pod in the parts that `_applied` changes; the rest is shared, which makes the patch cheap."""
    spec = needs.with_containers(pod.get("spec") or {}, dict)
    return {**pod, "metadata": dict(pod.get("metadata") or {}), "spec": spec}


def _totals(request: PodRequest, answer: Answer | None) -> dict[str, int]:
    """Memory in bytes by container, over all its GPUs, if it is known."""
    requested = {f.container: f.memory * f.count for f in request.containers if f.memory}
    match answer:
        case Placed(allocation):
            return {c.container: sum(share.memory for share in c.shares) for c in allocation.containers}
        case Wait(_, _, floor):
            return {**floor, **requested}
    return requested


def _rendering(
    pod: JSON, request: PodRequest, allocation: Allocation, dialects: Dialects, *, unchanged: bool, now_ns: int
) -> Rendering:
    """The dialect's own annotations. A later pass keeps their time stamps, which say when the pod was placed."""
    rendering = dialects.render(pod, request, allocation, now_ns)
    if not unchanged:
        return rendering
    other = dialects.render(pod, request, allocation, now_ns + 1).annotations
    present = pods.annotations_of(pod)
    kept = {key: present[key] for key, value in rendering.annotations.items() if key in present and other[key] != value}
    return Rendering({**rendering.annotations, **kept}, rendering.labels)


def _drop_rendering(pod: JSON, earlier: EarlierPass, metadata: JSON, dialects: Dialects) -> None:
    """Remove the dialect's own annotations and labels of an allocation that is no longer valid."""
    if earlier.request is None or earlier.allocation is None:
        return
    stale = dialects.render(pod, earlier.request, earlier.allocation, 0)
    for part, keys in (("annotations", stale.annotations), ("labels", stale.labels)):
        if metadata.get(part):
            metadata[part] = {key: value for key, value in metadata[part].items() if key not in keys}


def _annotate(metadata: JSON, ours: Mapping[str, str]) -> None:
    """Write our annotations, and remove what others wrote under our names."""
    kept = {key: value for key, value in (metadata.get("annotations") or {}).items() if not bounds.ours(key)}
    metadata["annotations"] = {**kept, **{str(key): value for key, value in ours.items()}}


def _gate(spec: JSON) -> None:
    gates = spec.get("schedulingGates") or []
    if not any(gate.get("name") == names.GATE for gate in gates):
        spec["schedulingGates"] = [*gates, {"name": str(names.GATE)}]


def _unbind(spec: JSON) -> None:
    """Replace `spec.nodeName` by a node affinity: the API server refuses a gate alongside the former."""
    node = spec.pop("nodeName", None)
    if node:
        spec["affinity"] = node_pin.pinned(spec, node)


def _ungate(spec: JSON) -> None:
    """Remove our gate from a placed pod; a tenant may have written it."""
    gates = spec.get("schedulingGates") or []
    others = [gate for gate in gates if gate.get("name") != names.GATE]
    if len(others) < len(gates):
        spec["schedulingGates"] = others
        if not others:
            del spec["schedulingGates"]


def _pin(spec: JSON, placed: Placed, before: str | None) -> str:
    """
    Pin the pod as the answer says; returns the kind of the pin, empty if the pod was tied to the node already.

    `before`: the kind of an earlier pass's pin where its allocation is still valid, else None. The API server refuses
    spec.nodeName alongside other gates, so such a pod gets an affinity.
    """
    node = placed.allocation.node
    if before is not None and (spec.get("nodeName") or node_pin.is_pinned(spec, node)):
        return before
    if spec.get("nodeName"):
        return ""
    if placed.pin == _BY_NAME and not spec.get("schedulingGates"):
        spec["nodeName"] = node
        return _BY_NAME
    tied = node_pin.is_pinned(spec, node)
    spec["affinity"] = node_pin.pinned(spec, node)
    return "" if tied else _BY_AFFINITY
