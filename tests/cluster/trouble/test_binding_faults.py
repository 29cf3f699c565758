"""A commit that is refused, lost or late: the pod gets exactly one share, and no other pod gets it meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from playground.scenarios import Outcome
from playground.waiting import wait_for
from tests.builders import PodBuilder
from tests.cluster.trouble import requests
from tests.cluster.trouble.conftest import Troubled, card
from tests.cluster.trouble.proxy import Drop, Lose, Refuse

pytestmark = pytest.mark.system
BUSY = Refuse(429, "TooManyRequests", retry_after=1)
FULL = Outcome(running=2, waiting=1, nodes=("t4",), gpus=2, waits=("Memory",))
"""The expected result for three pods of which two have room."""


REFUSALS = {
    "too many requests": BUSY,
    "a fault of its own": Refuse(500, "InternalError"),
    "not there for a moment": Refuse(503, "ServiceUnavailable"),
    "somebody else was first, it says": Refuse(409, "Conflict"),
}


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS.keys())
def test_a_commit_that_is_refused_is_written_again(trouble: Troubled, refusal: Refuse) -> None:
    trouble.held(*three())
    with trouble.fault(requests.commits(), refusal, times=3) as fault:
        trouble.let_go("a", "b", "c")
        trouble.becomes(FULL)
    assert fault.hits == 3


def test_a_pod_gets_its_condition_although_the_api_server_is_busy(trouble: Troubled) -> None:
    trouble.held(*three())
    with trouble.fault(requests.condition_of(), BUSY, times=2) as fault:
        trouble.let_go("a", "b", "c")
        wait_for(lambda: fault.hits == 2, lambda: f"{fault.hits} times busy")
    trouble.becomes(FULL)


UNANSWERED = {
    "carried out, and the answer lost": (Lose(), [200]),
    "never carried out": (Drop(), []),
}


@pytest.mark.parametrize(("action", "codes"), UNANSWERED.values(), ids=UNANSWERED.keys())
def test_a_commit_without_an_answer_takes_effect_once(trouble: Troubled, action: Lose | Drop, codes: list[int]) -> None:
    trouble.held(*three())
    with trouble.fault(requests.commits("a"), action, times=1) as fault:
        trouble.let_go("a", "b", "c")
        trouble.becomes(FULL)
    assert (fault.hits, fault.carried_out) == (1, codes)


@pytest.mark.parametrize(("action", "codes"), UNANSWERED.values(), ids=UNANSWERED.keys())
def test_nor_is_its_share_given_away_while_the_pod_cannot_be_read_back(
    trouble: Troubled, action: Lose | Drop, codes: list[int]
) -> None:
    trouble.held(*three())
    with (
        trouble.fault(requests.commits("a"), action, times=1) as lost,
        trouble.fault(requests.read_back("a"), BUSY, times=2) as unread,
    ):
        trouble.let_go("a")
        wait_for(lambda: lost.hits == 1, "the commit was not written")
        trouble.let_go("b", "c")
        trouble.becomes(FULL)
    assert (lost.hits, lost.carried_out) == (1, codes)
    assert unread.hits >= 1


def recreated(trouble: Troubled) -> None:
    """Another pod has the name by then."""
    trouble.delete("a")
    trouble.create(card("a"))


MEANWHILE: dict[str, Callable[[Troubled], None]] = {
    "all have given it up": lambda trouble: None,
    "another pod has the name": recreated,
}


@pytest.mark.parametrize("meanwhile", MEANWHILE.values(), ids=MEANWHILE.keys())
def test_a_commit_changes_nothing_that_arrives_when(trouble: Troubled, meanwhile: Callable[[Troubled], None]) -> None:
    trouble.held(*three())
    released = threading.Event()
    try:
        with trouble.hold(requests.commits("a"), released) as late:
            trouble.let_go("a")
            wait_for(lambda: late.hits == 1, "the commit was not written")
            meanwhile(trouble)
            trouble.let_go("b", "c")
            trouble.becomes(FULL)
            released.set()
            wait_for(lambda: len(late.carried_out) == 1, "it has not arrived")
        trouble.becomes(FULL)
        assert late.carried_out[0] in (409, 422)
    finally:
        released.set()


def three() -> tuple[PodBuilder, ...]:
    """Three pods, of which two have room."""
    return tuple(card(name) for name in ("a", "b", "c"))
