"""The labels of namespaces that have a meaning to the allocator."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest

from allocator.workers.namespaces import NamespaceLabel, NamespaceLabels
from contract import names
from contract.scheduling import consent, fairness
from runtime.kubernetes.client import Kube
from runtime.kubernetes.errors import KubeUnavailable
from tests.wires import Answer, Script


def listing(key: str, **values: str) -> Answer:
    items = [{"metadata": {"name": name, "labels": {key: value}}} for name, value in values.items()]
    return Answer(200, {"metadata": {"resourceVersion": "1"}, "items": items})


def test_each_label_is_asked_for_by_itself_and_told_with_what_can_be_read(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Mapping[str, int]] = []
    labels = (
        NamespaceLabel(names.QUEUE_WEIGHT, fairness.weight_of, fairness.misread, told.append),
        NamespaceLabel(names.IDLE_AFTER, consent.seconds_of, consent.misread, told.append),
    )
    weights = listing(names.QUEUE_WEIGHT, a="2", b="heavy")
    script = Script(weights, listing(names.IDLE_AFTER, a="2h", c="0", d="soon"), weights, KubeUnavailable("away"))
    looks = NamespaceLabels(Kube(script), labels, timeout=1.0)
    with caplog.at_level(logging.WARNING):
        looks.once()
        looks.once()
    assert told == [{"a": 2}, {"a": 7200, "c": 0}, {"a": 2}], "what was read before stays where nobody answers"
    asked = [sent.query["labelSelector"] for sent in script.sent]
    assert asked == [names.QUEUE_WEIGHT, names.IDLE_AFTER] * 2
    reasons = [getattr(record, "reason", "") for record in caplog.records]
    assert reasons == [fairness.misread("b", "heavy"), consent.misread("d", "soon"), "away"], "each is said once"
