"""
Watches that are cut, refused or too old: the program sees what happened meanwhile, and believes nothing that is untrue.
"""

from __future__ import annotations

import threading

import pytest

from playground.scenarios import Outcome
from playground.waiting import wait_for
from tests.cluster.trouble import requests
from tests.cluster.trouble.conftest import Troubled, card
from tests.cluster.trouble.proxy import Drop, Hold, Refuse
from tests.clusters import forget_history

pytestmark = pytest.mark.system
FULL = Outcome(running=2, waiting=1, nodes=("t4",), gpus=2, waits=("Memory",))

IN_THE_WAY = {
    "too many requests": Refuse(429, "TooManyRequests", retry_after=1),
    "a fault of its own": Refuse(500, "InternalError"),
    "no answer": Drop(),
}


@pytest.mark.parametrize("action", IN_THE_WAY.values(), ids=IN_THE_WAY.keys())
def test_a_share_that_comes_free_while_nobody_may_watch_is_given_on(trouble: Troubled, action: Refuse | Drop) -> None:
    trouble.create(card("a"), card("b"))
    trouble.becomes(Outcome(running=2, nodes=("t4",), gpus=2))
    trouble.create(card("c"))
    trouble.becomes(FULL)
    with trouble.fault(requests.watches, action, times=4) as fault:
        assert trouble.cut_watches() > 0
        trouble.delete("a")
        trouble.becomes(Outcome(running=2, nodes=("t4",), gpus=2))
    assert fault.hits == 4


def test_watches_that_are_cut_again_and_again_lose_nothing(trouble: Troubled) -> None:
    for number in range(6):
        trouble.create(card(f"p{number}"))
        trouble.cut_watches()
        if number >= 2:
            trouble.delete(f"p{number - 2}")
            trouble.cut_watches()
    trouble.becomes(Outcome(running=2, nodes=("t4",), gpus=2))


@pytest.mark.parametrize("refused", [0, 2])
def test_a_version_that_is_too_old_is_answered_by_a_new_list(trouble: Troubled, refused: int) -> None:
    """`refused`: how many of those lists are refused."""
    trouble.create(card("a"), card("b"), card("c"))
    trouble.becomes(FULL)
    with (
        trouble.fault(requests.watches, Drop()) as away,
        trouble.fault(requests.lists, Refuse(429, "TooManyRequests"), times=refused) as fault,
    ):
        trouble.cut_watches()
        wait_for(lambda: away.hits > 0, "nobody watches")
        trouble.delete("a")
        forget_history(trouble.cluster.control_plane)
        away.times = 0
        trouble.becomes(Outcome(running=2, nodes=("t4",), gpus=2))
        wait_for(lambda: fault.hits == refused, lambda: f"{fault.hits} lists refused")


def test_a_watch_that_is_never_answered_is_given_up(trouble: Troubled) -> None:
    """For example, a load balancer keeps the connection of a server that has ended."""
    trouble.create(card("a"), card("b"), card("c"))
    trouble.becomes(FULL)
    released = threading.Event()
    try:
        with trouble.fault(requests.watches, Hold(released), times=6) as fault:
            trouble.cut_watches()
            wait_for(lambda: fault.hits == 6, lambda: f"{fault.hits} watches were asked for")
            trouble.delete("a")
            trouble.becomes(Outcome(running=2, nodes=("t4",), gpus=2))
    finally:
        released.set()


def test_a_new_leader_that_cannot_write_decides_nothing_before_it_has_listed(trouble: Troubled) -> None:
    trouble.create(card("a"), card("b"))
    trouble.becomes(Outcome(running=2, nodes=("t4",), gpus=2))
    leader, other = trouble.leader(), trouble.follower()
    failure = Refuse(500, "InternalError")
    with (
        trouble.fault(requests.commits(), failure, times=3, only=other) as unwritten,
        trouble.fault(requests.lists, failure, times=3, only=other) as unlisted,
    ):
        leader.kill()
        trouble.create(card("c"))
        trouble.delete("a")
        trouble.becomes(Outcome(running=2, nodes=("t4",), gpus=2))
    assert (unwritten.hits, unlisted.hits) == (3, 3)
