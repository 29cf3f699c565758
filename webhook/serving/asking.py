"""
The webhook's questions to the allocator in the same pod, with a bound on each whole exchange.

A missing answer is not an error: the pod is gated and placed a moment later. So every failure becomes a `NoAnswer`,
whose code is counted. The allocator may have answered a question that timed out; it forgets the reservation when no pod
with its id appears.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from contract.encoding.protocol import (
    CARDS_PATH,
    CLAIMS_PATH,
    OFFERED_PATH,
    RESERVE_PATH,
    SCRAPER_PATH,
    Answer,
    ClaimsAnswer,
    ClaimsQuestion,
    Placed,
    Question,
    answer_from_json,
    cards_from_json,
    claims_answer_from_json,
    claims_question_to_json,
    node_to_json,
    offered_from_json,
    question_to_json,
    token_to_json,
    verdict_from_json,
)
from contract.encoding.reading import Malformed, shown
from contract.model import GpuKind, PodRequest
from runtime import unixhttp
from runtime.scraping import Review, ScrapeVerdict

DEFAULT_PATIENCE = 0.8
"""Seconds: far below the API server's timeout of 3 s, and far above the few ms that a decision takes."""

UNREACHABLE, LATE, NOT_READY, REFUSED, MALFORMED = "unreachable", "late", "not-ready", "refused", "malformed"
_OK, _UNAVAILABLE = 200, 503
_REVIEW_PATIENCE = 8.0
"""Seconds for a scraper's token, about which the API server is asked twice; a scrape may take 10 by default."""
_LONGEST = 200
"""Characters of an error's text, which may repeat the answer."""


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """There is no usable answer. `code` is one of the constants above; `detail` is a short text for the log."""

    code: str
    detail: str = ""


class Client(Protocol):
    """The part of `runtime.unixhttp.UnixClient` that is needed. Raises only `SocketError`."""

    def post(self, target: str, document: Any, *, timeout: float) -> unixhttp.Answer: ...


class ReadingClient(Protocol):
    """The part of it that reads. Raises only `SocketError`."""

    def get(self, target: str, *, timeout: float) -> unixhttp.Answer: ...


class AllocatorClient(Client, ReadingClient, Protocol):
    """Both parts: what the webhook needs of it."""


def reserving(client: Client, *, patience: float = DEFAULT_PATIENCE) -> Callable[[Question, float], Answer | NoAnswer]:
    """
    A function that asks the allocator to place a pod. It never raises.

    `patience`: seconds for the whole exchange; less where the caller, whose client waits, has less left.
    """

    def reserve(question: Question, within: float) -> Answer | NoAnswer:
        try:
            answered = client.post(RESERVE_PATH, question_to_json(question), timeout=min(patience, within))
            if answered.status == _UNAVAILABLE:
                return NoAnswer(NOT_READY)
            if answered.status != _OK:
                return NoAnswer(REFUSED, f"HTTP {answered.status}")
            return _checked(question, answer_from_json(answered.json()))
        except unixhttp.Unreachable as error:
            return NoAnswer(UNREACHABLE, str(error))
        except unixhttp.TimedOut as error:
            return NoAnswer(LATE, str(error))
        except (unixhttp.SocketError, Malformed, RecursionError) as error:
            return NoAnswer(MALFORMED, str(error)[:_LONGEST])

    return reserve


def nothing_offered(node: str) -> frozenset[str]:
    """The answer of `Allocator.offers` without an allocator."""
    return frozenset()


def offers(client: Client, *, patience: float = DEFAULT_PATIENCE) -> Callable[[str], frozenset[str]]:
    """
    A function that requests the resources by which NVIDIA's plugin offers GPUs on a node; none without an answer.

    It never raises. `patience`: seconds for the whole exchange.
    """

    def offered(node: str) -> frozenset[str]:
        try:
            answered = client.post(OFFERED_PATH, node_to_json(node), timeout=patience)
            return offered_from_json(answered.json()) if answered.status == _OK else frozenset()
        except (unixhttp.SocketError, Malformed, RecursionError):
            return frozenset()

    return offered


def claims_reading(
    client: Client, *, patience: float = DEFAULT_PATIENCE
) -> Callable[[ClaimsQuestion, float], ClaimsAnswer | None]:
    """
    A function that asks what the ResourceClaims of a pod request; None without an answer. It never raises.

    `patience`: seconds for the whole exchange; less where the caller has less left.
    """

    def read(question: ClaimsQuestion, within: float) -> ClaimsAnswer | None:
        try:
            answered = client.post(CLAIMS_PATH, claims_question_to_json(question), timeout=min(patience, within))
            if answered.status != _OK:
                return None
            answer = claims_answer_from_json(answered.json())
        except (unixhttp.SocketError, Malformed, RecursionError):
            return None
        whole = answer.refused or answer.readings.keys() == {each.name for each in question.claims}
        return answer if whole else None

    return read


def nothing_read(question: ClaimsQuestion, within: float) -> None:
    """The answer of `Allocator.claims` without an allocator."""


def scraper_review(client: Client, *, patience: float = _REVIEW_PATIENCE) -> Review:
    """
    A function that has the allocator ask the API server about a scraper's token. It never raises; without an answer no
    scraper is admitted.
    """

    def review(token: str) -> ScrapeVerdict:
        try:
            answered = client.post(SCRAPER_PATH, token_to_json(token), timeout=patience)
            return (
                ScrapeVerdict(verdict_from_json(answered.json()))
                if answered.status == _OK
                else ScrapeVerdict.UNAVAILABLE
            )
        except (unixhttp.SocketError, Malformed, RecursionError, ValueError):
            return ScrapeVerdict.UNAVAILABLE

    return review


def cards(client: ReadingClient, *, patience: float = DEFAULT_PATIENCE) -> Callable[[], frozenset[GpuKind] | None]:
    """
    A function that asks which kinds of GPUs there are; None without an answer.

    It never raises. `patience`: seconds for the whole exchange.
    """

    def known() -> frozenset[GpuKind] | None:
        try:
            answered = client.get(CARDS_PATH, timeout=patience)
            return cards_from_json(answered.json()) if answered.status == _OK else None
        except (unixhttp.SocketError, Malformed, RecursionError):
            return None

    return known


Floor = Callable[[PodRequest], Mapping[str, int] | None]


def nothing_known(request: PodRequest) -> None:
    """If nothing is known about the cards."""


@dataclass(frozen=True, slots=True)
class Allocator:
    """The questions that the webhook asks: to place a pod, and what a node's device plugin offers."""

    reserve: Callable[[Question, float], Answer | NoAnswer]
    """With the seconds that the answer may take at most."""
    offers: Callable[[str], frozenset[str]] = nothing_offered
    claims: Callable[[ClaimsQuestion, float], ClaimsAnswer | None] = nothing_read
    """The requests of the ResourceClaims of a pod."""
    floor: Floor = nothing_known
    """The least memory that a waiting pod will have, as last known; None if unknown."""


def allocator(client: Client, *, patience: float = DEFAULT_PATIENCE, floor: Floor = nothing_known) -> Allocator:
    """The allocator that `client` reaches. `patience`: seconds for each exchange; `floor`: as in `Allocator`."""
    return Allocator(
        reserving(client, patience=patience),
        offers(client, patience=patience),
        claims_reading(client, patience=patience),
        floor,
    )


def _checked(question: Question, answer: Answer) -> Answer | NoAnswer:
    """The answer, if its allocation is for the containers, counts and node of the question: other answers would give
    wrong GPUs."""
    if not isinstance(answer, Placed):
        return answer
    wanted = [(fraction.container, fraction.count) for fraction in question.request.containers]
    given = [(container.container, len(container.shares)) for container in answer.allocation.containers]
    if wanted != given:
        return NoAnswer(MALFORMED, f"asked for {shown(wanted)}, allocated {shown(given)}")
    bound = (question.pod.get("spec") or {}).get("nodeName")
    if bound and bound != answer.allocation.node:
        return NoAnswer(MALFORMED, f"asked for node {bound!r}, allocated on {answer.allocation.node!r}")
    return answer
