"""Which events count against a card, and for how long."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from nodeagent.gpus.health import Record
from nodeagent.gpus.library import Card
from tests.unit.nodeagent.builders import card

AGAIN = "; it accepts new pods again after 60 s without another"


@dataclass(frozen=True)
class Life:
    """Looks at card 0 at these seconds, and what is reported about it at each; empty for healthy."""

    looks: tuple[tuple[float, Card], ...]
    want: tuple[str, ...]


LIVES = {
    "a program's fault is none of the card's": Life(((0, card(xids=(13, 31, 43, 45, 68, 109))),), ("",)),
    "an XID counts and is forgotten": Life(
        ((0, card(xids=(13, 79))), (59, card()), (60, card())),
        (f"the driver reported XID 79{AGAIN}", f"the driver reported XID 79{AGAIN}", ""),
    ),
    "the last XID counts": Life(
        ((0, card(xids=(79,))), (30, card(xids=(48, 95))), (80, card()), (90, card())),
        (f"the driver reported XID 79{AGAIN}", *[f"the driver reported XID 48, XID 95{AGAIN}"] * 2, ""),
    ),
    "memory errors from before the start do not count": Life(((0, card(ecc=7)),), ("",)),
    "new memory errors do": Life(
        ((0, card(ecc=7)), (1, card(ecc=9)), (61, card(ecc=9))),
        ("", f"2 memory errors could not be corrected{AGAIN}", ""),
    ),
    "a reset that begins the count anew is no error": Life(((0, card(ecc=7)), (1, card(ecc=0))), ("", "")),
    "what the card shows itself is told first": Life(((0, card(xids=(79,), healthy=False, reason="lost")),), ("lost",)),
    "a clock that was set back forgets": Life(
        ((100, card(xids=(79,))), (50, card())), (f"the driver reported XID 79{AGAIN}", "")
    ),
}


@pytest.mark.parametrize("life", LIVES.values(), ids=LIVES.keys())
def test_a_card_over_time(life: Life) -> None:
    record = Record(quiet=60.0)
    judged = [record.judged((shown,), at)[0] for at, shown in life.looks]
    assert tuple(one.reason for one in judged) == life.want
    assert [one.healthy for one in judged] == [not reason for reason in life.want]


def test_a_slice_is_as_its_card_is() -> None:
    cards = card(0, xids=(79,)), card(0, uuid="MIG-1", parent="GPU-0", xids=(79,)), card(1)
    assert [one.healthy for one in Record().judged(cards, 0.0)] == [False, False, True]


def test_the_ignored_xids_are_the_administrators() -> None:
    record = Record(ignored=(79,))
    assert [one.healthy for one in record.judged((card(0, xids=(79,)), card(1, xids=(13,))), 0.0)] == [True, False]
