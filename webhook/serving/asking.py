"""
The webhook's questions to the allocator in the same pod, with a bound on each whole exchange.

A missing answer is not an error: the pod is gated and placed a moment later. So every failure becomes a `NoAnswer`,
whose code is counted. The allocator may have answered a question that timed out; it forgets the reservation when no pod
with its id appears.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from contract.encoding.protocol import (
    OFFERED_PATH,
    RESERVE_PATH,
    Answer,
    Placed,
    Question,
    answer_from_json,
    node_to_json,
    offered_from_json,
    question_to_json,
)
from contract.encoding.reading import Malformed, shown
from runtime import unixhttp

DEFAULT_PATIENCE = 0.8
"""Seconds: far below the API server's timeout of 3 s, and far above the few ms that a decision takes."""

UNREACHABLE, LATE, NOT_READY, REFUSED, MALFORMED = "unreachable", "late", "not-ready", "refused", "malformed"
_OK, _UNAVAILABLE = 200, 503
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


def asker(client: Client, *, patience: float = DEFAULT_PATIENCE) -> Callable[[Question], Answer | NoAnswer]:
    """
    A function that asks the allocator to place a pod. It never raises. `patience`: seconds for the whole exchange.
    """

    def ask(question: Question) -> Answer | NoAnswer:
        try:
            answered = client.post(RESERVE_PATH, question_to_json(question), timeout=patience)
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

    return ask


def nothing_offered(node: str) -> frozenset[str]:
    """The answer of `Allocator.offers` without an allocator."""
    return frozenset()


def offers(client: Client, *, patience: float = DEFAULT_PATIENCE) -> Callable[[str], frozenset[str]]:
    """
    A function that asks for the resources by which NVIDIA's plugin offers GPUs on a node; none without an answer.

    It never raises. `patience`: seconds for the whole exchange.
    """

    def offered(node: str) -> frozenset[str]:
        try:
            answered = client.post(OFFERED_PATH, node_to_json(node), timeout=patience)
            return offered_from_json(answered.json()) if answered.status == _OK else frozenset()
        except (unixhttp.SocketError, Malformed, RecursionError):
            return frozenset()

    return offered


@dataclass(frozen=True, slots=True)
class Allocator:
    """The questions that the webhook asks: to place a pod, and what a node's device plugin offers."""

    ask: Callable[[Question], Answer | NoAnswer]
    offers: Callable[[str], frozenset[str]] = nothing_offered


def allocator(client: Client, *, patience: float = DEFAULT_PATIENCE) -> Allocator:
    """The allocator that `client` reaches. `patience`: seconds for each exchange."""
    return Allocator(asker(client, patience=patience), offers(client, patience=patience))


def _checked(question: Question, answer: Answer) -> Answer | NoAnswer:
    """The answer, if its allocation is for the containers, counts and node of the question: others give wrong GPUs."""
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
