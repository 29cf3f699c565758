"""Shared by the tests of settling: the resulting pod, and the request."""

from __future__ import annotations

import copy
from typing import Any

from contract.encoding.protocol import Answer
from contract.options import Options
from tests.unit.webhook.builders import NOW_NS, container, pod
from webhook.admission.admit import Admit, Allocate, Deny, KeepGated, plan, settle

JSON = dict[str, Any]
GATE = {"name": "gpufraction.io/allocation"}
PERCENT = pod(container(gpufraction_io__gpu_percent="20", gpufraction_io__gpu_count="2"))
ASKS = container(gpufraction_io__gpu_memory="5Gi")


def settled(made: JSON, answer: Answer | None, now_ns: int = NOW_NS) -> Admit | Deny:
    decided = plan(made, Options())
    assert isinstance(decided, Allocate | KeepGated)
    before = copy.deepcopy(made)
    outcome = settle(made, decided, answer, now_ns=now_ns)
    assert made == before
    return outcome


def admitted(made: JSON, answer: Answer | None, now_ns: int = NOW_NS) -> JSON:
    outcome = settled(made, answer, now_ns)
    assert isinstance(outcome, Admit)
    return outcome.pod
