"""The namespace labels that the allocator uses."""

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


def test_each_label_is_listed_on_its_own_and_reported_as_far_as_readable(caplog: pytest.LogCaptureFixture) -> None:
    delivered: list[Mapping[str, int]] = []
    labels = (
        NamespaceLabel(names.QUEUE_WEIGHT, fairness.weight_of, fairness.misread, delivered.append),
        NamespaceLabel(names.IDLE_AFTER, consent.seconds_of, consent.misread, delivered.append),
    )
    weights = listing(names.QUEUE_WEIGHT, a="2", b="heavy")
    script = Script(weights, listing(names.IDLE_AFTER, a="2h", c="0", d="soon"), weights, KubeUnavailable("away"))
    looks = NamespaceLabels(Kube(script), labels, timeout=1.0)
    with caplog.at_level(logging.WARNING):
        looks.once()
        looks.once()
    assert delivered == [{"a": 2}, {"a": 7200, "c": 0}, {"a": 2}], "what was read before stays where nobody answers"
    selectors = [sent.query["labelSelector"] for sent in script.sent]
    assert selectors == [names.QUEUE_WEIGHT, names.IDLE_AFTER] * 2
    reasons = [getattr(record, "reason", "") for record in caplog.records]
    assert reasons == [fairness.misread("b", "heavy"), consent.misread("d", "soon"), "away"], "each is said once"
