"""When an agent wrote, when it writes again, and from when on it counts as silent."""

from __future__ import annotations

from typing import Any

import pytest

from contract.nodes.heartbeat import UNHEARD, Heartbeat, heartbeat_of

AT = "2023-11-14T22:13:20Z"
WRITTEN: dict[str, tuple[Any, Heartbeat]] = {
    "both": ({"observedAt": AT, "heartbeatSeconds": 120}, Heartbeat(1_700_000_000, 120)),
    "an agent of an older version": ({"observedAt": AT}, Heartbeat(1_700_000_000)),
    "not a time": ({"observedAt": "soon", "heartbeatSeconds": 120}, Heartbeat(None, 120)),
    "not a number": ({"observedAt": AT, "heartbeatSeconds": "120"}, Heartbeat(1_700_000_000)),
    "a truth": ({"observedAt": AT, "heartbeatSeconds": True}, Heartbeat(1_700_000_000)),
    "none at all": ({"observedAt": AT, "heartbeatSeconds": 0}, Heartbeat(1_700_000_000)),
    "longer than a day": ({"observedAt": AT, "heartbeatSeconds": 86_401}, Heartbeat(1_700_000_000)),
    "no status": (None, UNHEARD),
}


@pytest.mark.parametrize(("status", "read"), WRITTEN.values(), ids=WRITTEN.keys())
def test_what_a_gpunode_says_of_its_agents_writes(status: Any, read: Heartbeat) -> None:
    assert heartbeat_of({"status": status}) == read


BOUNDS = {
    "the administrator's patience, where heartbeats are short": (Heartbeat(1, 120), 300.0, 300.0),
    "two heartbeats and a quarter, where they are long": (Heartbeat(1, 400), 300.0, 900.0),
    "an agent that promises nothing is not judged": (Heartbeat(1), 300.0, None),
    "nor is one that never wrote": (Heartbeat(None, 120), 300.0, None),
    "nor anybody where the administrator says so": (Heartbeat(1, 120), 0.0, None),
}


@pytest.mark.parametrize(("beat", "patience", "bound"), BOUNDS.values(), ids=BOUNDS.keys())
def test_the_bound_of_an_agents_silence(beat: Heartbeat, patience: float, bound: float | None) -> None:
    assert beat.bound(patience) == bound
