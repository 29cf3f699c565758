"""What is sent to the API server for an Event and for an eviction."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.kubernetes import events
from runtime.kubernetes.client import Kube, KubeConflict, KubeTooManyRequests
from runtime.kubernetes.evictions import evict
from tests.wires import Answer, Script

JSON = dict[str, Any]


def test_an_event_stands_beside_the_object_that_it_is_about() -> None:
    wire = Script(Answer(201, {}))
    events.record(
        Kube(wire),
        events.about("Pod", "team", "train", "uid-1"),
        reason="GPUWaiting",
        message="no room",
        at="2026-01-02T03:04:05Z",
        component="gpufraction-nodeagent",
        host="n1",
    )
    [sent] = wire.sent
    assert (sent.method, sent.path) == ("POST", "/api/v1/namespaces/team/events")
    assert sent.body == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": "train.", "namespace": "team"},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "name": "train", "uid": "uid-1", "namespace": "team"},
        "type": "Warning",
        "reason": "GPUWaiting",
        "message": "no room",
        "source": {"component": "gpufraction-nodeagent", "host": "n1"},
        "reportingComponent": "gpufraction-nodeagent",
        "firstTimestamp": "2026-01-02T03:04:05Z",
        "lastTimestamp": "2026-01-02T03:04:05Z",
        "count": 1,
    }


def test_an_event_about_an_object_without_a_namespace_goes_to_default() -> None:
    wire = Script(Answer(201, {}))
    node = events.about("Node", "", "n1", "n1")
    events.record(Kube(wire), node, reason="R", message="m", at="t", component="c", warns=False)
    [sent] = wire.sent
    assert (sent.path, sent.body["type"]) == ("/api/v1/namespaces/default/events", "Normal")
    assert sent.body["metadata"]["namespace"] == "default"
    assert "namespace" not in sent.body["involvedObject"]
    assert sent.body["source"] == {"component": "c"}


def test_a_message_is_cut_to_what_the_api_server_accepts() -> None:
    wire = Script(Answer(201, {}))
    node = events.about("Node", "", "n1", "n1")
    events.record(Kube(wire), node, reason="R", message="m" * 1_025, at="t", component="c")
    assert wire.sent[0].body["message"] == "m" * 997 + "…"


def test_an_eviction_names_the_pod_that_was_judged() -> None:
    wire = Script(Answer(201, {}))
    evict(Kube(wire), "team", "train", uid="uid-1", version=7, dry_run=True)
    [sent] = wire.sent
    assert (sent.path, sent.query) == ("/api/v1/namespaces/team/pods/train/eviction", {"dryRun": "All"})
    assert sent.body["deleteOptions"] == {"preconditions": {"uid": "uid-1", "resourceVersion": "7"}}


@pytest.mark.parametrize(("status", "error"), [(409, KubeConflict), (429, KubeTooManyRequests)])
def test_a_refused_eviction_raises(status: int, error: type[Exception]) -> None:
    wire = Script(Answer(status, {"kind": "Status", "code": status}))
    with pytest.raises(error):
        evict(Kube(wire), "team", "train", uid="uid-1")
