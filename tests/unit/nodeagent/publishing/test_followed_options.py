"""The options from the API: the same rules as for the mounted file, and nothing is published before they are known."""

from __future__ import annotations

from typing import Any

import pytest

from contract import names
from contract.options import pool_options
from nodeagent.publishing.followed_options import WHERE, FollowedOptions
from nodeagent.publishing.terms import PoolDocument
from runtime.kubernetes.watch import Deleted, Put, Replaced

JSON = dict[str, Any]
UNREAD = PoolDocument(None, f"{WHERE}: it has not been read yet; may the agent list and watch it?")
NONE, TEN = PoolDocument(pool_options(None)), PoolDocument(pool_options({"deviceSplitCount": 10}))


class Followed:
    def __init__(self) -> None:
        self.now, self.changes = 0.0, 0
        self.options = FollowedOptions(self._changed, clock=lambda: self.now)

    def _changed(self) -> None:
        self.changes += 1


@pytest.fixture
def followed() -> Followed:
    return Followed()


def configmap(text: str | None) -> JSON:
    return {"metadata": {"name": names.OPTIONS}, "data": None if text is None else {names.OPTIONS_FILE: text}}


TEXT = "deviceSplitCount: 10"


def test_until_it_is_read_nothing_is_known_and_the_start_waits_a_while(followed: Followed) -> None:
    assert (followed.options.document(), followed.options.awaited()) == (UNREAD, True)
    followed.now = 10.0
    assert (followed.options.document(), followed.options.awaited()) == (UNREAD, False)


def test_what_it_says_counts_at_once_and_tells_of_a_change_once(followed: Followed) -> None:
    followed.options.event(Replaced([configmap(TEXT)]))
    assert (followed.options.document(), followed.options.awaited(), followed.changes) == (TEN, False, 1)
    followed.options.event(Put(configmap(TEXT)))
    assert followed.changes == 1


@pytest.mark.parametrize("event", [Replaced([]), Deleted(configmap(TEXT)), Put(configmap(None)), Put(configmap(""))])
def test_one_that_is_not_there_or_empty_is_no_options(event: Any, followed: Followed) -> None:
    followed.options.event(Replaced([configmap(TEXT)]))
    followed.options.event(event)
    assert followed.options.document() == NONE


@pytest.mark.parametrize("text", ["deviceSplitCount: many", "[", "more than 262144 bytes"])
def test_what_cannot_be_read_leaves_the_earlier_in_use(text: str, followed: Followed) -> None:
    followed.options.event(Replaced([configmap(TEXT)]))
    followed.options.event(Put(configmap(text)))
    found = followed.options.document()
    assert (found.options, found.trouble.startswith(f"{WHERE}: ")) == (TEN.options, True)
    followed.options.event(Put(configmap(TEXT)))
    assert followed.options.document() == TEN
