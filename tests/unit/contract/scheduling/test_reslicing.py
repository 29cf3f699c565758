"""
A node takes no share while NVIDIA's MIG manager divides its cards again, until the manager reports that it is done.
"""

from __future__ import annotations

import pytest

from contract.reasons.nodes import Code, Reason
from contract.reslicing import STATE_LABEL, reslices
from contract.scheduling.filters import lasting_reason
from contract.scheduling.needs import needs_of
from tests.builders import node, pod

LABELS = {
    "pending": True,
    "rebooting": True,
    "success": False,
    "failed": False,
    "": False,
    None: False,
}


@pytest.mark.parametrize(("value", "closed"), LABELS.items(), ids=map(str, LABELS))
def test_a_node_takes_no_share_while_its_cards_are_sliced_anew(value: str | None, closed: bool) -> None:
    labels = {} if value is None else {STATE_LABEL: value}
    assert reslices(labels) is closed
    needs = needs_of(pod("p").tolerates("").manifest())
    built = node("n1").gpu()
    for key, text in labels.items():
        built = built.labelled(key, text)
    assert lasting_reason(built.state(), needs) == (Reason(Code.RESLICING) if closed else None)
