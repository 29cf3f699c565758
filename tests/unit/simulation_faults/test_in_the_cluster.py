"""Faults of programs, clocks, the Lease, etcd, admission, machines and rights do what they say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.long
JSON = dict[str, Any]
Seen = Callable[[str], JSON]

# -- programs ---------------------------------------------------------------------------------------------------------


def test_a_killed_program_releases_nothing_and_is_started_again(seen: Seen) -> None:
    assert seen("program.killed") == {"dead": True, "released": False, "again": True}


def test_a_program_that_is_stopped_releases_the_lease(seen: Seen) -> None:
    assert seen("program.stopped") == {"again": True, "one leads": True}


def test_no_task_of_a_paused_program_runs(seen: Seen) -> None:
    found = seen("program.paused")
    assert found["while paused"] == 0
    assert found["after"] > 0
    assert found["same host"]
    assert found["others lead"] == [True]


def test_two_instances_of_one_place_live_at_once(seen: Seen) -> None:
    found = seen("program.replaced")
    assert found["both"] == [True, True, True]
    assert (found["identities"], found["old leads"]) == (2, [True])
    assert found["old ended"]
    assert found["new lives"]
    assert found["starts of the old one"] == 1, "nobody starts it again"


# -- clocks -----------------------------------------------------------------------------------------------------------


def test_a_wall_clock_jumps_and_the_monotonic_one_does_not(seen: Seen) -> None:
    found = seen("clock.jumps")
    assert found["during"] == pytest.approx([-3600.0, 0.0], abs=0.01)
    assert found["after"] == pytest.approx([0.0, 0.0], abs=0.01)


def test_the_clock_of_the_api_server_stamps_objects(seen: Seen) -> None:
    future, present = seen("clock.jumps")["stamps"]
    assert future > present


@pytest.mark.parametrize(("scene", "ahead"), [("clock.drifts", 0.6), ("clock.halved", -10.0)])
def test_a_clock_drifts_and_never_goes_back(scene: str, ahead: float, seen: Seen) -> None:
    found = seen(scene)
    assert found["begun"] == pytest.approx(0.0, abs=0.01)
    assert found["drifted"] == pytest.approx(ahead, abs=0.01)
    assert found["after"] == pytest.approx(ahead, abs=0.01)


# -- the Lease --------------------------------------------------------------------------------------------------------


def test_all_wait_after_the_lease_was_deleted(seen: Seen) -> None:
    found = seen("lease.deleted")
    assert found["another"]
    assert not found["holder"]
    assert (found["leads"], found["later"]) == (0, 1)


def test_the_leader_is_cut_off_while_the_lease_is_deleted(seen: Seen) -> None:
    found = seen("lease.deleted with a partition")
    assert found["during"][found["leader"]] == "KubeTimeout"
    assert not found["holder"]


def test_each_edit_of_the_lease_is_stored(seen: Seen) -> None:
    longer, emptied, cleared = seen("lease.edited")["seen"]
    assert longer["leaseDurationSeconds"] == 40
    assert emptied["holderIdentity"] == ""
    assert cleared == {}


def test_nobody_leads_while_a_stranger_renews(seen: Seen) -> None:
    assert seen("lease.taken") == {"holder": "stranger_0", "leads": 0, "later": 1}


@pytest.mark.parametrize(("scene", "same"), [("lease.restored", True), ("lease.restored anew", False)])
def test_an_older_lease_is_put_back(scene: str, same: bool, seen: Seen) -> None:
    assert seen(scene) == {"moved on": True, "same": True, "same object": same}


# -- etcd -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scene", "bumped"), [("etcd.restored", True), ("etcd.restored without a bump", False)])
def test_what_was_deleted_is_back_and_what_was_new_is_gone(scene: str, bumped: bool, seen: Seen) -> None:
    found = seen(scene)
    assert (found["before"], found["after"]) == ([False, True], [True, False])
    assert found["watch has ended"] or not bumped
    assert (found["grown"], found["restarted"]) == (bumped, True)


# -- admission --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scene", "error"), [("admission.refused", "KubeForbidden"), ("admission.refused 500", "KubeUnavailable")]
)
def test_a_pod_that_was_admitted_is_not_stored(scene: str, error: str, seen: Seen) -> None:
    found = seen(scene)
    assert (found["error"], found["reviews"], found["stored"], found["after"]) == (error, 1, False, "")


@pytest.mark.parametrize(("scene", "late"), [("admission.late", 4.0), ("admission.late beyond a reservation", 8.0)])
def test_a_pod_that_was_admitted_is_stored_later(scene: str, late: float, seen: Seen) -> None:
    found = seen(scene)
    assert found["seconds"] == pytest.approx(late, abs=0.1)
    assert found["stored"]


def test_a_review_comes_twice(seen: Seen) -> None:
    found = seen("admission.twice")
    assert (found["reviews"], found["stored"], found["phase"]) == (2, True, "Running")


def test_no_review_is_answered_while_webhooks_are_down(seen: Seen) -> None:
    found = seen("admission.down")
    assert (found["error"], found["reviews"], found["stored"], found["after"]) == ("KubeUnavailable", 0, False, "")


def test_a_slow_review_is_answered_or_fails_at_its_timeout(seen: Seen) -> None:
    slow, never = seen("admission.slow"), seen("admission.slow beyond the timeout")
    assert (slow["error"], slow["stored"]) == ("", True)
    assert slow["seconds"] == pytest.approx(2.0, abs=0.1)
    assert (never["error"], never["stored"]) == ("KubeUnavailable", False)


def test_one_webhook_gets_every_review(seen: Seen) -> None:
    assert seen("admission.one")["by"] == ["webhook-1"]


def test_no_review_passes_an_expired_certificate_but_over_an_open_connection(seen: Seen) -> None:
    found, still = seen("certificate.expired"), seen("certificate.expired of open connections")
    assert (found["error"], found["reviews"], found["stored"], found["after"]) == ("KubeUnavailable", 0, False, "")
    assert (still["error"], still["reviews"], still["stored"]) == ("", 1, True)


def test_only_a_webhook_with_the_new_certificate_reviews(seen: Seen) -> None:
    assert seen("certificate.expired of one")["by"] == ["webhook-1"]


# -- machines ---------------------------------------------------------------------------------------------------------


def test_a_silent_node_gets_no_pod_until_it_returns(seen: Seen) -> None:
    found = seen("node.silent")
    assert (found["ready"], found["agent"], found["placed"]) == ("Unknown", False, False)
    assert (found["ready after"], found["agent after"]) == ("True", True)


def test_a_deleted_node_registers_again(seen: Seen) -> None:
    found = seen("node.deleted")
    assert (found["ready"], found["agent"], found["placed"]) == ("gone", False, False)
    assert (found["ready after"], found["after"]) == ("True", found["before"])


def test_a_node_returns_with_other_cards(seen: Seen) -> None:
    found = seen("node.exchanged")
    assert (len(found["before"]), len(found["after"])) == (2, 1)


def test_a_card_fails_and_comes_back(seen: Seen) -> None:
    found = seen("card.changed")
    assert [each["health"] for each in found["during"]] == ["Unhealthy", "Healthy"]
    assert found["after"] == found["before"]


def test_a_card_has_another_uuid_or_is_gone_for_a_while(seen: Seen) -> None:
    other, gone = seen("card.changed its UUID"), seen("card.changed and is gone")
    assert other["own"] not in {each["uuid"] for each in other["during"]}
    assert len(other["during"]) == 2
    assert gone["own"] not in {each["uuid"] for each in gone["during"]}
    assert len(gone["during"]) == 1
    assert other["after"] == gone["after"] == gone["before"]


def test_cards_have_half_of_their_memory_for_a_while(seen: Seen) -> None:
    found = seen("cards.shrunk")
    before, during = (sum(each["memoryBytes"] for each in found[when]) for when in ("before", "during"))
    assert during == pytest.approx(before / 2, rel=0.01)
    assert found["after"] == found["before"]


def test_a_broken_driver_shows_no_card(seen: Seen) -> None:
    found = seen("driver.broken")
    assert (found["during"], found["placed"], found["after"]) == ([], False, found["before"])


def test_a_silent_agent_leaves_what_it_said_last(seen: Seen) -> None:
    found = seen("agent.silent")
    assert (found["agent"], found["during"], found["agent after"]) == (False, found["before"], True)
    assert (found["placed"], found["placed after"]) == (True, True)


def test_an_agent_that_is_silent_for_long_closes_its_node(seen: Seen) -> None:
    found = seen("agent.silent for long")
    assert (found["agent"], found["during"], found["ready"]) == (False, found["before"], found["ready after"])
    assert (found["placed"], found["placed after"]) == (False, True)


# -- rights -----------------------------------------------------------------------------------------------------------


def test_one_rule_is_taken_away_and_returned(seen: Seen) -> None:
    found = seen("rights.removed")
    assert found["during"] == found["before"] - 1
    assert found["same"]


def test_every_gpunode_goes_with_the_crd_and_comes_back(seen: Seen) -> None:
    assert seen("crd.deleted") == {"during": 404, "after": 1}
