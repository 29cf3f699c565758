"""When the reflector reconnects, and how its age is measured."""

from __future__ import annotations

import random

import pytest

from runtime.kubernetes.client import KubeForbidden, KubeMalformed, KubeTimeout, KubeTooManyRequests, Listing
from runtime.kubernetes.errors import KubeGone
from runtime.kubernetes.watch import List, Reflector, Timing, WatchRequest


class NoJitter(random.Random):
    def random(self) -> float:
        return 1.0


def reflector() -> Reflector:
    return Reflector(Timing(watch_age=300.0), rng=NoJitter())


def synced() -> Reflector:
    made = reflector()
    made.listed(Listing([], "5"), 0.0)
    return made


def test_a_new_reflector_lists_at_once() -> None:
    assert reflector().next() == List(0.0)


def test_a_list_is_followed_by_a_watch_from_its_version() -> None:
    assert synced().next() == WatchRequest(0.0, "5", 600)


def test_failures_back_off_up_to_the_cap() -> None:
    made = reflector()
    waits = []
    for _ in range(10):
        made.ended(KubeTimeout("no answer"), 0.0)
        waits.append(made.next().after)
    assert waits == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]


def test_jitter_takes_away_at_most_half() -> None:
    made = Reflector(rng=random.Random(1))
    made.ended(KubeTimeout("no answer"), 0.0)
    waits = [made.next().after for _ in range(200)]
    assert 0.1 <= min(waits) < 0.12 < 0.18 < max(waits) <= 0.2


def test_the_server_may_ask_for_more_patience() -> None:
    made = synced()
    made.ended(KubeTooManyRequests("busy", retry_after=7.0), 0.0)
    assert made.next() == WatchRequest(7.0, "5", 600)


def test_a_watch_that_lived_is_renewed_at_once() -> None:
    made = synced()
    made.opened(10.0)
    made.ended(None, 700.0)
    assert made.next() == WatchRequest(0.0, "5", 600)


def test_a_server_that_hangs_up_at_once_is_not_hammered() -> None:
    made = synced()
    for _ in range(3):
        made.opened(10.0)
        made.ended(None, 10.1)
    assert made.next() == WatchRequest(0.8, "5", 600)


def test_expired_right_after_a_list_does_not_become_a_list_loop() -> None:
    made = synced()
    made.opened(10.0)
    made.ended(KubeGone("expired", status=410), 10.0)
    assert made.next() == List(0.2)


def test_an_unanswered_watch_keeps_its_version_for_ever() -> None:
    made = synced()
    for _ in range(20):
        made.ended(KubeTimeout("no answer"), 0.0)
    assert made.next() == WatchRequest(30.0, "5", 600)


def test_five_answered_failures_put_the_version_in_doubt() -> None:
    made = synced()
    for _ in range(5):
        made.ended(KubeTimeout("server error", status=504), 0.0)
    assert made.next() == List(3.2)


def test_a_refused_watch_lists_again() -> None:
    made = synced()
    made.ended(KubeForbidden("no", status=403), 0.0)
    assert made.next() == List(0.2)


def test_a_list_without_a_version_is_refused() -> None:
    with pytest.raises(KubeMalformed, match=r"metadata\.resourceVersion"):
        reflector().listed(Listing([], ""), 0.0)


def test_an_event_without_a_version_is_refused() -> None:
    with pytest.raises(KubeMalformed, match="ADDED"):
        synced().event({"type": "ADDED", "object": {"metadata": {"name": "a"}}}, 0.0)


def test_last_contact_is_any_word_from_the_server() -> None:
    made = synced()
    made.opened(3.0)
    made.event({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}, 4.0)
    made.ended(KubeTimeout("no answer"), 50.0)
    assert (made.last_contact, made.next()) == (4.0, WatchRequest(0.0, "9", 600))
