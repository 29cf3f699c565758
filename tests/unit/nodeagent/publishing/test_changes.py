"""Removed cards are reported, once."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from nodeagent.agent import Agent
from nodeagent.gpus.library import Card
from nodeagent.gpus.observation import Observation
from nodeagent.machine import Machine
from nodeagent.publishing.changes import changes
from nodeagent.publishing.status import desired
from runtime.kubernetes.paths import events
from tests.unit.nodeagent.builders import BLIND, card, observation
from tests.unit.nodeagent.cluster import Cluster

REMOVED = "GPU GPU-1 (Tesla T4, index 1) was removed. Its pods have no GPU"
REPLACED = (
    "GPU GPU-1 (Tesla T4, index 1) was removed; at its index is GPU-9 (Tesla T4). Pods of the old one have no GPU"
)


@dataclass(frozen=True)
class Case:
    before: tuple[Card, ...]
    now: Observation
    want: tuple[tuple[str, str], ...] = ()


CASES = {
    "the same": Case((card(0), card(1)), observation(card(0), card(1))),
    "one came": Case((card(0),), observation(card(0), card(1))),
    "one went": Case((card(0), card(1)), observation(card(0)), (("GPUGone", REMOVED),)),
    "another stands in its place": Case(
        (card(0), card(1)), observation(card(0), card(1, uuid="GPU-9")), (("GPUReplaced", REPLACED),)
    ),
    "the next moved up": Case(
        (card(0), card(1), card(2)), observation(card(0), card(1, uuid="GPU-2")), (("GPUGone", REMOVED),)
    ),
    "two changed places": Case((card(0), card(1)), observation(card(0, uuid="GPU-1"), card(1, uuid="GPU-0"))),
    "nothing can be seen": Case((card(0), card(1)), BLIND),
    "a slice went": Case(
        (card(0, sliced=True), card(0, uuid="MIG-1", parent="GPU-0")), observation(card(0, sliced=True))
    ),
    "one is sick": Case((card(0),), observation(card(0, healthy=False, reason="lost"))),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_events_of_changes(case: Case) -> None:
    before = desired("n1", observation(*case.before)).inventory.gpus
    found = changes(before, desired("n1", case.now).inventory)
    assert tuple((change.reason, change.message) for change in found) == case.want


def test_a_card_that_was_replaced_while_the_agent_was_down_is_reported_once() -> None:
    cluster = Cluster("n1")
    shown = [observation(card(0), card(1))]

    def agent() -> Agent:
        return Agent(cluster.kube, Machine(lambda: shown[0]), "n1")

    def reasons() -> list[str]:
        written = cluster.call("GET", events("default"))["items"]
        return [event["reason"] for event in sorted(written, key=lambda e: int(e["metadata"]["resourceVersion"]))]

    agent().step()
    shown[0] = observation(card(0), card(1, uuid="GPU-9"))
    second = agent()
    assert (second.step() > 0, reasons()) == (True, ["GPUReplaced"])
    shown[0] = BLIND
    second.step()
    shown[0] = observation(card(0))
    second.step()
    second.step()
    assert reasons() == ["GPUReplaced", "GPUGone"], "a driver that was away in between hides nothing"
