"""The webhook has no token: the allocator next to it reviews scrapers' tokens. Without an answer none is allowed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from runtime import unixhttp
from runtime.scraping import ScrapeVerdict
from webhook.serving.asking import scraper_review


@dataclass
class Allocator:
    """Gives one answer, or raises."""

    status: int = 200
    body: Any = None
    error: unixhttp.SocketError | None = None
    sent: Any = None

    def post(self, target: str, document: Any, *, timeout: float) -> unixhttp.Answer:
        self.sent = (target, document)
        if self.error is not None:
            raise self.error
        body = self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()
        return unixhttp.Answer(self.status, body)


ANSWERS: dict[str, tuple[Allocator, ScrapeVerdict]] = {
    "allowed": (Allocator(body={"verdict": "allowed"}), ScrapeVerdict.ALLOWED),
    "denied": (Allocator(body={"verdict": "denied"}), ScrapeVerdict.DENIED),
    "nobody's": (Allocator(body={"verdict": "unknown"}), ScrapeVerdict.UNKNOWN),
    "a word of a newer allocator": (Allocator(body={"verdict": "maybe"}), ScrapeVerdict.UNAVAILABLE),
    "no verdict": (Allocator(body={}), ScrapeVerdict.UNAVAILABLE),
    "no JSON": (Allocator(body=b"allowed"), ScrapeVerdict.UNAVAILABLE),
    "an older allocator": (Allocator(404, {"error": "no such path"}), ScrapeVerdict.UNAVAILABLE),
    "an error with a yes": (Allocator(500, {"verdict": "allowed"}), ScrapeVerdict.UNAVAILABLE),
    "nobody there": (Allocator(error=unixhttp.Unreachable("gone")), ScrapeVerdict.UNAVAILABLE),
    "late": (Allocator(error=unixhttp.TimedOut("late")), ScrapeVerdict.UNAVAILABLE),
}


@pytest.mark.parametrize(("allocator", "want"), ANSWERS.values(), ids=ANSWERS.keys())
def test_only_a_clear_yes_of_the_allocator_lets_somebody_in(allocator: Allocator, want: ScrapeVerdict) -> None:
    assert scraper_review(allocator)("t0") == want
    assert allocator.sent == ("/v1/scraper", {"token": "t0"})
