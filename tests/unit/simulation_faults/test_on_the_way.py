"""Faults of requests, watches and links do what they say, to their targets, and no longer than they last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.long
JSON = dict[str, Any]
Seen = Callable[[str], JSON]

LOST = {"KubeTimeout", "KubeConnectionLost"}
FATES = {
    "requests.refused": ({"KubeTooManyRequests"}, False, False),
    "requests.refused 504": ({"KubeTimeout"}, False, False),
    "requests.unsent": ({"KubeUnavailable"}, False, False),
    "requests.dropped": (LOST, False, False),
    "requests.silent": ({"KubeTimeout"}, False, False),
    "requests.unanswered": (LOST, True, True),
    "requests.late": ({"KubeTimeout"}, False, True),
    "requests.twice": ({""}, True, True),
    "requests.slow": ({""}, True, True),
}
"""By scene: results of writes for their client, whether the last one is stored then, and all in the end."""


@pytest.mark.parametrize("scene", FATES)
def test_a_request_meets_its_fate_while_the_fault_lasts(scene: str, seen: Seen) -> None:
    found, (errors, at_once, later) = seen(scene), FATES[scene]
    assert {each["error"] for each in found["tried"]} == errors
    assert found["stored"][1] is at_once
    assert found["later"] == [later, later]
    assert found["after"]["error"] == ""
    assert found["read"], "reads are spared"


def test_a_refusal_says_how_long_to_wait(seen: Seen) -> None:
    assert {each["retry_after"] for each in seen("requests.refused")["tried"]} == {3.0}


def test_a_request_is_carried_out_as_often_as_its_fate_says(seen: Seen) -> None:
    carried = {scene: seen(scene)["carried out"] - 1 for scene in FATES}
    assert {scene: count for scene, count in carried.items() if count} == {
        "requests.unanswered": 2,
        "requests.late": 2,
        "requests.twice": 4,
        "requests.slow": 2,
    }


def test_a_silent_server_costs_the_whole_patience(seen: Seen) -> None:
    assert all(each["seconds"] == pytest.approx(10.0, abs=0.1) for each in seen("requests.silent")["tried"])
    assert all(each["seconds"] == pytest.approx(3.0, abs=0.1) for each in seen("requests.slow")["tried"])


def test_a_probability_of_a_half_strikes_about_half(seen: Seen) -> None:
    assert 10 <= seen("requests.refused half")["refused"] <= 30


CUT = ("watches.cut", "watches.refused", "watches.silent", "watches.expired")
HELD = ("watches.frozen", "watches.bookmarks")


@pytest.mark.parametrize("scene", [*CUT, *HELD, "watches.lagging", "apiserver.behind", "watches.coalesced"])
def test_watches_of_other_programs_are_spared(scene: str, seen: Seen) -> None:
    found = seen(scene)
    assert found["spared"] == ["after", "before", "during"]
    assert found["spared late"] < 0.1


@pytest.mark.parametrize("scene", CUT)
def test_a_watch_that_is_cut_ends_with_an_error(scene: str, seen: Seen) -> None:
    found = seen(scene)
    assert (found["came"], found["ended"]) == (["before"], "KubeConnectionLost")


def test_a_watch_that_opens_meets_the_fault_too(seen: Seen) -> None:
    assert seen("watches.refused")["opened meanwhile"] == "KubeUnavailable"
    assert seen("watches.silent")["opened meanwhile"] == "KubeTimeout"


@pytest.mark.parametrize("scene", HELD)
def test_a_watch_that_is_held_gets_no_event_until_the_end(scene: str, seen: Seen) -> None:
    found = seen(scene)
    assert (found["during"], found["error"]) == (["before"], "")
    assert found["came"] == ["after", "before", "during"]
    assert 0 <= found["after the end"]["during"] < 0.1


def test_bookmarks_come_while_no_event_does(seen: Seen) -> None:
    assert seen("watches.bookmarks")["bookmarks"] > seen("watches.frozen")["bookmarks"]


@pytest.mark.parametrize(("scene", "lag"), [("watches.lagging", 60.0), ("apiserver.behind", 120.0)])
def test_a_watch_that_lags_gets_each_event_so_much_later(scene: str, lag: float, seen: Seen) -> None:
    late = seen(scene)["late"]
    assert late["during"] == pytest.approx(lag, abs=0.1)
    assert late["before"] < 0.1
    assert late["after"] < 0.1


def test_history_is_gone_where_the_fault_says_so(seen: Seen) -> None:
    expired = {scene for scene in (*CUT, "watches.coalesced") if seen(scene)["from an old version"] == "410"}
    assert expired == {"watches.expired", "watches.coalesced"}


def test_a_watch_that_is_coalesced_sees_nothing_of_what_was_between(seen: Seen) -> None:
    found = seen("watches.coalesced")
    assert (found["during"], found["error"], found["came"]) == (["before"], "", ["before"])
    assert found["ended"] == "KubeConnectionLost"


def test_one_that_is_cut_off_reaches_nothing_and_stops_leading(seen: Seen) -> None:
    found = seen("partition.one")
    leader = found["leader"]
    other = ({"allocator-0", "allocator-1"} - {leader}).pop()
    assert found["during"] == {leader: "KubeTimeout", other: ""}
    assert found["stored"] == {leader: False, other: True}
    assert leader not in found["later"]
    assert found["after"] == {leader: "", other: ""}


def test_lost_answers_are_of_writes_that_were_done(seen: Seen) -> None:
    found = seen("partition.one answers lost")
    assert found["during"][found["leader"]] in LOST
    assert found["stored"][found["leader"]]


def test_nobody_leads_where_all_are_cut_off(seen: Seen) -> None:
    found = seen("partition.all")
    assert set(found["during"].values()) == {"KubeUnavailable"}
    assert (len(found["leads"]), found["later"]) == (1, [])


def test_links_stop_one_by_one_and_return_in_their_order(seen: Seen) -> None:
    found = seen("partition.swizzled")
    first, second = found["links"]
    parted = [{name for name, error in each.items() if error} for each in found["parted"]]
    assert parted == [{first}, {first, second}, {second}, set()]
