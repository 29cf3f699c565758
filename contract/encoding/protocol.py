"""
The protocol between the webhook and the allocator over the unix socket: the question, and its three answers.

JSON over HTTP, `POST /v1/reserve`. The webhook has read the pod's dialect, so the question has the canonical request,
and the pod trimmed to what a placement needs. A replica that does not lead reserves nothing. It answers by its own view
of the cluster, and where the pod fits with a `Wait` of the code `NotLeading`. Without an answer (no socket, late, HTTP
503 before the cluster was listed) the webhook gates the pod, and the leader places it a moment later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from contract.encoding import codec, reading
from contract.encoding.reading import Malformed, shown
from contract.model import Allocation, GpuKind, PodRequest

RESERVE_PATH = "/v1/reserve"
OFFERED_PATH = "/v1/offered"
"""The question which GPUs NVIDIA's own plugin offers on a node; every replica answers that has listed the cluster."""
SCRAPER_PATH = "/v1/scraper"
"""
The question whether a scraper's token lets it read metrics. The webhook has no token with which to ask the API server.
"""
CARDS_PATH = "/v1/cards"
"""The question which kinds of GPUs there are; every replica answers that has listed the cluster."""
MOST_CARDS = 4_096
"""Kinds of GPUs in an answer; a cluster has a few."""
MOST_QUESTION = 1 << 20
"""Bytes of a question. A trimmed pod within the bounds of `contract.bounds` has half of that at most."""

JSON = dict[str, Any]
_MAPS = ("labels", "annotations")
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


def question_to_json(question: Question) -> JSON:
    """The body of the request."""
    return {
        "uid": question.uid,
        "namespace": question.namespace,
        "request": codec.request_to_json(question.request),
        "pod": question.pod,
        "dryRun": question.dry_run,
        "held": question.held,
        "refused": question.refused,
    }


def question_from_json(document: object) -> Question:
    """
    Read the body of the request. Raises `Malformed`.

    Namespaces and names become keys, paths and log lines, so they must be valid in Kubernetes.
    """
    if not isinstance(document, dict) or not isinstance(document.get("pod"), dict):
        raise Malformed("the question is not an object with a pod")
    uid, namespace, held = _text(document, "uid"), _text(document, "namespace"), _text(document, "held", "")
    if not reading.is_uid(uid):
        raise Malformed(f"uid: found {shown(uid)}; give 1 to 128 printable characters")
    if not reading.is_label(namespace):
        raise Malformed(f"namespace: found {shown(namespace)}; give at most 63 of a-z, 0-9 and -")
    if held and not reading.is_uid(held):
        raise Malformed(f"held: found {shown(held)}; give 1 to 128 printable characters, or nothing")
    _check_pod(document["pod"], namespace)
    return Question(
        uid=uid,
        namespace=namespace,
        request=codec.request_from_json(document.get("request")),
        pod=document["pod"],
        dry_run=document.get("dryRun") is True,
        held=held,
        refused=document.get("refused") is True,
    )


def _check_pod(pod: JSON, namespace: str) -> None:
    """Raise `Malformed` unless the pod has valid names, and the types on which decisions rely."""
    metadata, spec = _part(pod, "metadata"), _part(pod, "spec")
    name, beginning = _text(metadata, "name", ""), _text(metadata, "generateName", "")
    if name and not reading.is_subdomain(name):
        raise Malformed(f"pod.metadata.name: found {shown(name)}; give at most 253 of a-z, 0-9, - and .")
    if beginning and not reading.is_beginning(beginning):
        raise Malformed(f"pod.metadata.generateName: found {shown(beginning)}; give at most 253 of a-z, 0-9, - and .")
    own = _text(metadata, "namespace", "")
    if own and own != namespace:
        raise Malformed(f"pod.metadata.namespace: found {shown(own)}; give {namespace!r}, or nothing")
    for key in _MAPS:
        if not all(isinstance(value, str) for value in _part(metadata, key).values()):
            raise Malformed(f"pod.metadata.{key} is not a map of text")
    for key in _LISTS:
        items = spec.get(key) or []
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise Malformed(f"pod.spec.{key} is not a list of objects")


def _part(parent: JSON, key: str) -> JSON:
    value = parent.get(key)
    if value is not None and not isinstance(value, dict):
        raise Malformed(f"pod: {key} is not an object")
    return value or {}


def _text(document: Mapping[str, Any], key: str, default: str | None = None) -> str:
    value = document.get(key, default)
    if not isinstance(value, str):
        raise Malformed(f"{key} is not text")
    return value


def answer_to_json(answer: Answer) -> JSON:
    """The body of the response."""
    match answer:
        case Placed(allocation, pin, protects):
            encoded = codec.allocation_to_json(allocation)
            return {"verdict": "placed", "allocation": encoded, "pin": pin, "protects": protects}
        case Wait(code, reason, floor):
            return {"verdict": "wait", "code": code, "reason": reason, "floor": dict(floor)}
        case Never(code, reason):
            return {"verdict": "never", "code": code, "reason": reason}


def answer_from_json(document: object) -> Answer:
    """Read the body of the response. Raises `Malformed`."""
    if not isinstance(document, dict):
        raise Malformed("the answer is not an object")
    match document.get("verdict"):
        case "placed":
            pin = document.get("pin")
            if pin not in ("nodeName", "affinity"):
                raise Malformed(f"the answer pins by {shown(pin)}")
            protects = document.get("protects") is True
            return Placed(codec.allocation_from_json(document.get("allocation")), pin, protects)
        case "wait":
            floor = document.get("floor")
            if not isinstance(floor, dict) or not all(_is_amount(value) for value in floor.values()):
                raise Malformed("the answer's floor is not a map of bytes")
            return Wait(_text(document, "code"), _text(document, "reason"), floor)
        case "never":
            return Never(_text(document, "code"), _text(document, "reason"))
    raise Malformed(f"the answer's verdict is {shown(document.get('verdict'))}")


def _is_amount(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def node_to_json(node: str) -> JSON:
    """The body of the question which GPUs a node's device plugin offers."""
    return {"node": node}


def node_from_json(document: object) -> str:
    """Read the body of that question. Raises `Malformed`."""
    if not isinstance(document, dict):
        raise Malformed("the question is not an object")
    return _text(document, "node")


def offered_to_json(resources: frozenset[str]) -> JSON:
    """The answer to it: names of resources (`contract.nodes.capacity`)."""
    return {"resources": sorted(resources)}


def offered_from_json(document: object) -> frozenset[str]:
    """Read that answer. Raises `Malformed`."""
    found = document.get("resources") if isinstance(document, dict) else None
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise Malformed("the answer's resources are not a list of names")
    return frozenset(found)


def token_to_json(token: str) -> JSON:
    """The question about a scraper's token."""
    return {"token": token}


def token_from_json(document: object) -> str:
    """Read it. Raises `Malformed`, which does not show the token."""
    return reading.Reader(document, "body").text("token")


def verdict_to_json(verdict: str) -> JSON:
    """The answer: a word of `runtime.scraping.ScrapeVerdict`."""
    return {"verdict": str(verdict)}


def verdict_from_json(document: object) -> str:
    """Read it. Raises `Malformed`."""
    return reading.Reader(document, "answer").text("verdict")


def cards_to_json(cards: Iterable[GpuKind]) -> JSON:
    """The answer to the question which kinds of GPUs there are: the smallest ones, if there are very many."""
    listed = sorted(cards, key=lambda card: (card.usable, card.memory, card.model))[:MOST_CARDS]
    return {"cards": [{"model": card.model, "memory": card.memory, "usable": card.usable} for card in listed]}


def cards_from_json(document: object) -> frozenset[GpuKind]:
    """Read that answer. Raises `Malformed`."""
    listed = reading.Reader(document, "cards").objects("cards", most=MOST_CARDS)
    return frozenset(GpuKind(each.text("model"), each.amount("memory"), each.amount("usable")) for each in listed)
