"""
The protocol between the webhook and the allocator over the unix socket: the question, and its three answers.

JSON over HTTP, `POST /v1/reserve`. The webhook has read the pod's dialect, so the question contains the canonical
request, and the pod trimmed to what a placement needs. A replica that does not lead reserves nothing. It answers from
its own view of the cluster; if the pod fits, the answer is a `Wait` with the code `NotLeading`. Without an answer (no
socket, late, HTTP 503 before the cluster was listed) the webhook gates the pod, and the leader places it a moment
later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from contract.encoding import codec, selectors, wire
from contract.encoding.reading import Malformed, is_beginning, is_subdomain, is_uid, shown
from contract.encoding.resourceclaims import MOST_RESULTS
from contract.isolation import ISOLATION
from contract.model import (
    MOST_ALTERNATIVES,
    MOST_CLAIMS,
    MOST_CONSTRAINTS,
    MOST_MEMORY,
    MOST_SELECTORS,
    NUMA,
    PRODUCT_NAME,
    UUID,
    WHOLE,
    Allocation,
    Alternative,
    ClaimEntry,
    Constraint,
    DeviceRequest,
    GpuKind,
    PodRequest,
)

T = TypeVar("T")

RESERVE_PATH = "/v1/reserve"
OFFERED_PATH = "/v1/offered"
"""Which GPUs does NVIDIA's own plugin offer on a node? Every replica that has listed the cluster answers."""
SCRAPER_PATH = "/v1/scraper"
"""
Does a scraper's token let it read metrics? The webhook has no token with which to ask the API server.
"""
CARDS_PATH = "/v1/cards"
"""Which kinds of GPUs are there? Every replica that has listed the cluster answers."""
CLAIMS_PATH = "/v1/claims"
"""What do a pod's ResourceClaims request? Every replica that reaches the API server answers."""
MOST_CARDS = 4_096
"""Kinds of GPUs in an answer; a cluster has a few."""
MOST_QUESTION = 1 << 20
"""Bytes of a question. A trimmed pod within `contract.bounds` has at most half of that."""

JSON = dict[str, Any]
_LISTS = ("initContainers", "containers", "schedulingGates", "volumes", "tolerations")


@dataclass(frozen=True, slots=True)
class Question:
    """
    Place this pod. `held` is the id of the allocation that the pod has already, or empty. `refused`: the webhook
    refuses the pod, and asks only to release that allocation; the answer has no meaning.
    """

    uid: str
    namespace: str
    request: PodRequest
    pod: Mapping[str, Any]
    dry_run: bool = False
    held: str = ""
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Placed:
    """
    The share is reserved (in a dry run: would be). `pin`: the kind of tie to the node, `nodeName` or `affinity`.
    `protects`: whether autoscalers are asked to leave the node alone while the pod is there.
    """

    allocation: Allocation
    pin: str
    protects: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """There is no room now. `floor` is, by container, the least memory in bytes that its share will have in total."""

    code: str
    reason: str
    floor: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Never:
    """No GPU of this cluster can ever serve the pod. The reason has the largest possible request."""

    code: str
    reason: str


Answer = Placed | Wait | Never


# -- the question -------------------------------------------------------------------------------------------------


def _name(test: Callable[[str], bool]) -> wire.Schema[str]:
    return wire.matching(test, "at most 253 of a-z, 0-9, - and .", empty=True)


_TEXTS, _OBJECTS = (
    wire.optional(wire.mapped(wire.TEXT)).otherwise(None),
    wire.optional(wire.listed(wire.OBJECT)).otherwise(None),
)
_METADATA = wire.struct(
    {
        "name": _name(is_subdomain).otherwise(""),
        "generateName": _name(is_beginning).otherwise(""),
        "namespace": wire.TEXT.otherwise(""),
        "labels": _TEXTS,
        "annotations": _TEXTS,
    },
)
_SPEC = wire.struct(dict.fromkeys(_LISTS, _OBJECTS))
_POD = wire.struct({"metadata": wire.optional(_METADATA).otherwise(None), "spec": wire.optional(_SPEC).otherwise(None)})
"""The names of a pod and the types on which decisions rely."""


def _pod(found: Any) -> JSON:
    _POD.read(found)
    return cast(JSON, found)


_QUESTION = wire.record(
    Question,
    {
        "uid": wire.UID,
        "namespace": wire.LABEL,
        "request": wire.Schema(codec.request_from_json, codec.request_to_json),
        "pod": wire.Schema(_pod),
        "dry_run": wire.FLAG.always(),
        "held": wire.matching(is_uid, "1 to 128 printable characters", empty=True).always(),
        "refused": wire.FLAG.always(),
    },
)


def question_to_json(question: Question) -> JSON:
    """The body of the request."""
    return cast(JSON, _QUESTION.to_json(question))


def question_from_json(document: object) -> Question:
    """
    Read the body of the request. Raises `Malformed`.

    Namespaces and names become keys, paths and log lines, so they must be valid in Kubernetes.
    """
    question = _QUESTION.from_json(document)
    own = (question.pod.get("metadata") or {}).get("namespace")
    if own and own != question.namespace:
        raise Malformed(f"pod.metadata.namespace: found {shown(own)}; give {question.namespace!r}, or nothing")
    return question


# -- its answers --------------------------------------------------------------------------------------------------

_ANSWERS: Mapping[str, tuple[type, wire.Schema[Any]]] = {
    "placed": (
        Placed,
        wire.record(
            Placed,
            {
                "allocation": wire.Schema(codec.allocation_from_json, codec.allocation_to_json),
                "pin": wire.one_of(("nodeName", "affinity")),
                "protects": wire.FLAG.always(),
            },
        ),
    ),
    "wait": (
        Wait,
        wire.record(Wait, {"code": wire.TEXT, "reason": wire.TEXT, "floor": wire.mapped(wire.AMOUNT).required()}),
    ),
    "never": (Never, wire.record(Never, {"code": wire.TEXT, "reason": wire.TEXT})),
}
_VERDICT = wire.struct({"verdict": wire.one_of(tuple(_ANSWERS))})


def answer_to_json(answer: Answer) -> JSON:
    """The body of the response."""
    verdict, each = next((word, each) for word, (kind, each) in _ANSWERS.items() if isinstance(answer, kind))
    return {"verdict": verdict, **each.to_json(answer)}


def answer_from_json(document: object) -> Answer:
    """Read the body of the response. Raises `Malformed`."""
    _, each = _ANSWERS[_VERDICT.from_json(document, "answer")["verdict"]]
    return cast(Answer, each.from_json(document, "answer"))


# -- other questions ----------------------------------------------------------------------------------------------


def _alone(key: str, each: wire.Schema[T]) -> tuple[Callable[[Any], JSON], Callable[[object], T]]:
    """To JSON and back for a value that is the one field of a body. Reading raises `Malformed`."""
    body = wire.struct({key: each})
    return lambda value: {key: each.to_json(value)}, lambda document: cast(T, body.from_json(document)[key])


node_to_json, node_from_json = _alone("node", wire.TEXT)
"""The question which GPUs a node's device plugin offers."""
offered_to_json, offered_from_json = _alone(
    "resources", wire.listed(wire.TEXT).then(frozenset, lambda names: tuple(sorted(names)))
)
"""The answer to it: names of resources (`contract.nodes.capacity`)."""
verdict_to_json, verdict_from_json = _alone("verdict", wire.TEXT)
"""The answer to the question about a scraper's token: a word of `runtime.scraping.ScrapeVerdict`."""


def _smallest(cards: Iterable[GpuKind]) -> tuple[GpuKind, ...]:
    return tuple(sorted(cards, key=lambda card: (card.usable, card.memory, card.model))[:MOST_CARDS])


_CARD = wire.record(GpuKind, {"model": wire.TEXT, "memory": wire.AMOUNT, "usable": wire.AMOUNT})
cards_to_json, cards_from_json = _alone("cards", wire.listed(_CARD, MOST_CARDS).then(frozenset, _smallest))
"""The answer to the question which kinds of GPUs there are: the smallest ones, if there are very many."""


@dataclass(frozen=True, slots=True)
class ClaimsQuestion:
    """What do these claims and templates request? All are of one pod."""

    namespace: str
    claims: tuple[ClaimEntry, ...]


@dataclass(frozen=True, slots=True)
class ClaimsAnswer:
    """
    The requests of each claim, by the pod's name for it; none for a claim of other drivers. `refused`: why the pod
    cannot be served, in words for its author; empty if it can.
    """

    readings: Mapping[str, tuple[DeviceRequest, ...]] = field(default_factory=dict)
    refused: str = ""


_OPTIONAL_NAME = _name(is_subdomain)
_CLAIMS_QUESTION = wire.record(
    ClaimsQuestion,
    {
        "namespace": wire.LABEL,
        "claims": wire.listed(
            wire.record(ClaimEntry, {"name": wire.LABEL, "template": _OPTIONAL_NAME, "claim": _OPTIONAL_NAME}),
            MOST_CLAIMS,
        ),
    },
)
_EXPRESSIONS = wire.listed(wire.matching(selectors.is_accepted, "an accepted expression"), MOST_SELECTORS)
_ALTERNATIVE = wire.record(Alternative, {"name": wire.LABEL, "selectors": _EXPRESSIONS})
_CONSTRAINT = wire.record(
    Constraint,
    {
        "attribute": wire.one_of((NUMA, PRODUCT_NAME, UUID)),
        "requests": wire.listed(wire.LABEL, MOST_RESULTS),
        "distinct": wire.FLAG,
    },
)
_DEVICE_REQUEST = wire.record(
    DeviceRequest,
    {
        "name": wire.LABEL,
        "count": wire.number(MOST_RESULTS, 1),
        "memory": wire.number(MOST_MEMORY),
        "cores": wire.number(WHOLE),
        "limit": wire.number(MOST_MEMORY),
        "isolation": wire.one_of(("", *ISOLATION)),
        "selectors": _EXPRESSIONS,
        "alternatives": wire.listed(_ALTERNATIVE, MOST_ALTERNATIVES),
        "constraints": wire.listed(_CONSTRAINT, MOST_CONSTRAINTS),
    },
)
_CLAIMS_ANSWER = wire.record(
    ClaimsAnswer,
    {
        "readings": wire.mapped(wire.listed(_DEVICE_REQUEST, MOST_RESULTS)).always(),
        "refused": wire.TEXT,
    },
)


def claims_question_to_json(question: ClaimsQuestion) -> JSON:
    """The question what a pod's claims request."""
    return cast(JSON, _CLAIMS_QUESTION.to_json(question))


def claims_question_from_json(document: object) -> ClaimsQuestion:
    """Read it. Raises `Malformed`. Names become paths, so they must be valid in Kubernetes."""
    return _CLAIMS_QUESTION.from_json(document, "question")


def claims_answer_to_json(answer: ClaimsAnswer) -> JSON:
    """The answer to it."""
    return cast(JSON, _CLAIMS_ANSWER.to_json(answer))


def claims_answer_from_json(document: object) -> ClaimsAnswer:
    """Read it. Raises `Malformed`."""
    return _CLAIMS_ANSWER.from_json(document, "answer")


def token_to_json(token: str) -> JSON:
    """The question about a scraper's token."""
    return {"token": token}


def token_from_json(document: object) -> str:
    """Read it. Raises `Malformed`, which does not show the token."""
    token = document.get("token") if isinstance(document, dict) else None
    if not isinstance(token, str):
        raise Malformed("token: found none that is text; give the scraper's token")
    return token
