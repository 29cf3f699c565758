"""How many whole cards of one node a pod needs at the same time."""

from __future__ import annotations

import pytest

from contract.encoding.quantity import GIB
from contract.model import FractionRequest, PodRequest
from contract.scheduling.demand import whole_cards


def whole(container: str, count: int, *, init: bool = False) -> FractionRequest:
    return FractionRequest(container, count, percent=100, cores=100, exclusive=True, init=init)


REQUESTS = {
    "no container: none": (PodRequest("any", ()), 0),
    "a share of each of eight cards: none": (PodRequest("any", (FractionRequest("a", 8, memory=GIB),)), 0),
    "one container: its cards": (PodRequest("any", (whole("a", 4),)), 4),
    "two containers: both have theirs": (PodRequest("any", (whole("a", 4), whole("b", 2))), 6),
    "on the same cards: the cards once": (PodRequest("any", (whole("a", 4), whole("b", 4)), same_gpus=True), 4),
    "beside a share: the cards": (PodRequest("any", (whole("a", 2), FractionRequest("b", 1, percent=10))), 2),
    "an init container ends first": (PodRequest("any", (whole("a", 4, init=True), whole("b", 2))), 4),
    "an init container with less": (PodRequest("any", (whole("a", 1, init=True), whole("b", 2))), 2),
}


@pytest.mark.parametrize(("request_", "cards"), REQUESTS.values(), ids=REQUESTS.keys())
def test_whole_cards(request_: PodRequest, cards: int) -> None:
    assert whole_cards(request_) == cards
