"""
What the cordon annotation of a Node means: GPUs by UUID or index, and what is reported about words that match no GPU.
"""

from __future__ import annotations

import pytest

from contract.reasons.gpunodes import GPUNodeReason, NodeEventReason
from nodeagent.conditions import Condition
from nodeagent.gpus.library import Card
from nodeagent.sharing.cordoning import NAMES_NO_GPU, Cordon, read
from runtime.kubernetes.paths import nodes
from runtime.kubernetes.watch import Put
from tests.unit.nodeagent.builders import card
from tests.unit.nodeagent.publishing.test_agent_publishes import Machine

CARDS = (card(0), card(1, sliced=True), Card(1, "MIG-a", "MIG 1g.5gb", 1, parent="GPU-1"))


def wrong(found: str, here: str = "0, 1") -> tuple[Condition, ...]:
    text = (
        f"metadata.annotations[gpufraction.io/cordon]: found {found}, which is not a GPU of this node and excludes "
        f"nothing; give indexes ({here}) or UUIDs, separated by commas"
    )
    return (Condition(True, GPUNodeReason.NO_SUCH_GPU, text, NAMES_NO_GPU),)


WORDS: dict[str, tuple[set[str], tuple[Card, ...], Cordon]] = {
    "nothing": (set(), CARDS, Cordon()),
    "a UUID": ({"GPU-0"}, CARDS, Cordon(frozenset({"GPU-0"}))),
    "an index": ({"0"}, CARDS, Cordon(frozenset({"GPU-0"}))),
    "a card by its index, which its slices have too": ({"01"}, CARDS, Cordon(frozenset({"GPU-1"}))),
    "a slice": ({"MIG-a"}, CARDS, Cordon(frozenset({"MIG-a"}))),
    "a UUID that is not here": ({"GPU-wrong", "0"}, CARDS, Cordon(frozenset({"GPU-0"}), wrong("'GPU-wrong'"))),
    "an index that is not here": ({"7"}, CARDS, Cordon(frozenset(), wrong("'7'"))),
    "a number that no machine has": ({"9" * 5000}, CARDS, Cordon(frozenset(), wrong(f"'{'9' * 37}...{'9' * 37}'"))),
    "many": ({"a", "b", "c", "d"}, CARDS, Cordon(frozenset(), wrong("'a', 'b', 'c' and 1 more"))),
    "a driver that is away": ({"GPU-0"}, (), Cordon()),
}


@pytest.mark.parametrize(("words", "cards", "want"), WORDS.values(), ids=WORDS.keys())
def test_what_is_meant(words: set[str], cards: tuple[Card, ...], want: Cordon) -> None:
    assert read(words, cards) == want


def test_it_is_one_event_on_the_node_and_shown_while_it_lasts() -> None:
    machine = Machine()

    def cordon(text: str | None) -> tuple[list[str], list[str], list[str]]:
        """The resulting health of the GPUs, the conditions, and the Events so far."""
        machine.cluster.merge(nodes("n1"), {"metadata": {"annotations": {"gpufraction.io/cordon": text}}})
        for _ in range(2):
            machine.agent.node_event(Put(machine.cluster.node("n1")))
            machine.step(after=1)
        status = machine.cluster.gpunode("n1")["status"]
        events = machine.cluster.call("GET", "/api/v1/namespaces/default/events")["items"]
        messages = [each["message"] for each in events if each["reason"] == NodeEventReason.CORDON_NAMES_NO_GPU]
        return [gpu["health"] for gpu in status["gpus"]], [each["type"] for each in status["conditions"]], messages

    (condition,) = wrong("'GPU-wrong'")
    assert cordon("0, GPU-wrong") == (["Cordoned", "Healthy"], ["Ready", NAMES_NO_GPU], [condition.message])
    machine.agent = machine.another_agent()
    assert cordon("0, GPU-wrong") == (["Cordoned", "Healthy"], ["Ready", NAMES_NO_GPU], [condition.message])
    assert cordon("1") == (["Healthy", "Cordoned"], ["Ready"], [condition.message])
    assert len(cordon("GPU-wrong")[2]) == 2
