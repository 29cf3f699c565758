"""
The allocator's two servers: the unix socket on which the webhook alongside it asks, and health and metrics.

Requests come in on their own threads and go straight to the controller, whose lock makes them one at a time; a decision
takes well under a millisecond, so there is nothing to queue. `/debug/...` on the same socket shows what decisions see:
it copies under the lock and does its work outside. A client that can open the socket file may reserve GPUs, so its mode
admits only this pod's user and group.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from allocator.faults import Faulted, surfaced
from allocator.scheduler import messages
from allocator.scheduler.admission import NotReady
from allocator.scheduler.core import Controller
from allocator.server import debug
from contract.encoding import protocol, quantity
from contract.encoding.protocol import Never, Placed, Wait
from contract.encoding.reading import Malformed
from contract.metrics import allocator as specs
from runtime.httpserver import HttpError, Reply, Request, Routes, ServerLimits, json_reply
from runtime.metrics import Metrics
from runtime.scraping import Review, ScrapeVerdict

log = logging.getLogger(__name__)
SOCKET_MODE = 0o660
SNAPSHOT_PATH = "/debug/snapshot"
"""The input of the next decision, for `python -m allocator replay`."""
WAITING_PATH = "/debug/waiting"


SOCKET_LIMITS = ServerLimits(max_body=protocol.MOST_QUESTION)


def socket_routes(
    controller: Controller,
    metrics: Metrics,
    *,
    clock: Callable[[], float] = time.monotonic,
    faulted: Faulted = surfaced,
    review: Review = lambda token: ScrapeVerdict.UNAVAILABLE,
) -> Routes:
    """The routes on the unix socket. `review`: reviews a scraper's token for the webhook, which has no token of its
    own."""
    outcomes = metrics.counter(specs.DECISIONS)
    seconds = metrics.histogram(specs.DECISION_SECONDS)

    def reserve(request: Request) -> Reply:
        started, about = clock(), ""
        try:
            question = protocol.question_from_json(request.json())
            about = messages.key_of(question)
            answer = controller.reserve(question)
        except (Malformed, quantity.BadQuantity) as error:
            return json_reply({"error": str(error)}, 400)
        except RecursionError:
            return json_reply({"error": "the body is nested too deeply"}, 400)
        except HttpError:
            raise
        except NotReady as error:
            return json_reply({"error": str(error)}, 503)
        except Exception:
            # The webhook gates the pod, and its error stays with it in the queue.
            fault = faulted("admission", about)
            return json_reply({"error": f"an error of gpufraction; the allocator's log has it as fault {fault}"}, 500)
        seconds.observe(clock() - started)
        outcomes.labels(outcome=_OUTCOMES[type(answer)]).inc()
        return json_reply(protocol.answer_to_json(answer))

    return {
        ("POST", protocol.RESERVE_PATH): reserve,
        ("POST", protocol.SCRAPER_PATH): lambda request: _verdict(request, review),
        ("POST", protocol.OFFERED_PATH): lambda request: _offered(request, controller),
        ("GET", protocol.CARDS_PATH): lambda request: _cards(controller),
        ("GET", SNAPSHOT_PATH): lambda request: json_reply(debug.to_json(controller.view())),
        ("GET", WAITING_PATH): lambda request: json_reply(_waiting(controller)),
    }


def _offered(request: Request, controller: Controller) -> Reply:
    try:
        found = controller.offered(protocol.node_from_json(request.json()))
    except Malformed as error:
        return json_reply({"error": str(error)}, 400)
    except NotReady as error:
        return json_reply({"error": str(error)}, 503)
    return json_reply(protocol.offered_to_json(found))


def _verdict(request: Request, review: Review) -> Reply:
    try:
        token = protocol.token_from_json(request.json())
    except Malformed as error:
        return json_reply({"error": str(error)}, 400)
    return json_reply(protocol.verdict_to_json(review(token)))


def _cards(controller: Controller) -> Reply:
    try:
        return json_reply(protocol.cards_to_json(controller.cards()))
    except NotReady as error:
        return json_reply({"error": str(error)}, 503)


def _waiting(controller: Controller) -> list[dict[str, object]]:
    """The queue: the position of each pod, and what would happen to it now."""
    return [
        {
            "position": outcome.position,
            "pod": outcome.pod.key,
            "priority": outcome.pod.priority,
            "created": outcome.pod.created,
            "code": outcome.code,
            "reason": outcome.reason,
        }
        for outcome in debug.one_cycle(controller.view())
    ]


_OUTCOMES: dict[type, str] = {Placed: "placed", Wait: "waiting", Never: "impossible"}
