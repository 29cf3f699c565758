"""A kind that the server does not serve: an empty result if that is expected, and otherwise a failure."""

from __future__ import annotations

import pytest

from runtime.kubernetes.client import Kube
from runtime.kubernetes.watch import Event, Informer, Put, Replaced
from tests.wires import Answer, Script

NOT_SERVED = {"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound"}
OBJECT = {"metadata": {"name": "a", "resourceVersion": "7"}}


@pytest.mark.parametrize(("optional", "seen"), [(True, [Replaced([])]), (False, [])])
def test_only_an_optional_kind_counts_as_empty(optional: bool, seen: list[Event]) -> None:
    events: list[Event] = []
    kube = Kube(Script(Answer(404, NOT_SERVED)))
    informer = Informer(kube, "/apis/x/v1/kinds", events.append, name="kinds", optional=optional)
    informer.step()
    assert (events, informer.synced.is_set()) == (seen, optional)


def test_it_is_listed_again_and_followed_once_it_is_served() -> None:
    listing = {"kind": "KindList", "metadata": {"resourceVersion": "7"}, "items": [OBJECT]}
    added = b'{"type":"ADDED","object":{"metadata":{"name":"b","resourceVersion":"8"}}}\n'
    kube = Kube(Script(Answer(404, NOT_SERVED), Answer(200, listing), Answer(200, [added])))
    events: list[Event] = []
    waits: list[float] = []
    path = "/apis/x/v1/kinds"
    informer = Informer(kube, path, events.append, name="kinds", optional=True, wait=waits.append)
    for _ in range(3):
        informer.step()
    assert events == [Replaced([]), Replaced([OBJECT]), Put({"metadata": {"name": "b", "resourceVersion": "8"}})]
    assert len(waits) == 1, "after a pause"
