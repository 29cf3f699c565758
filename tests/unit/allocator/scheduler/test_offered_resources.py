"""What NVIDIA's own plugin assigns on a node, as the webhook learns it over the socket."""

from __future__ import annotations

from pathlib import Path

import pytest

from allocator.scheduler.events import NodeChanged, NodeDeleted
from allocator.server import http
from contract.encoding.protocol import CARDS_PATH, OFFERED_PATH
from contract.metrics import metrics_of
from contract.nodes.attributes import facts, trim
from runtime.httpserver import serve_http
from runtime.metrics import Metrics
from runtime.unixhttp import UnixClient
from tests.builders import JSON, node
from tests.unit.allocator.harness import SchedulerHarness
from webhook.serving.asking import cards, offers

MIG = "nvidia.com/mig-1g.10gb"
AMOUNTS = {
    "nvidia.com/gpu": "2",
    MIG: "7",
    "nvidia.com/gpu.shared": "0",
    "nvidia.com/hostdev": "4",
    "nvidia.com/mig-broken": "x",
    "example.com/gpu": "1",
}


def offering(name: str, amounts: dict[str, str]) -> JSON:
    made = node(name).gpus(1).json()
    made["status"]["allocatable"] = {**made["status"].get("allocatable", {}), **amounts}
    return made


@pytest.mark.parametrize("leads", [True, False], ids=["the leader", "a follower"])
def test_every_replica_that_has_seen_the_cluster_says_what_a_node_offers(tmp_path: Path, leads: bool) -> None:
    harness = SchedulerHarness([node("n").gpus(1)], leads=leads)
    harness.controller.handle(NodeChanged(facts(trim(offering("n", AMOUNTS)))))
    server = serve_http(
        http.socket_routes(harness.controller, Metrics(metrics_of("allocator"))), tmp_path / "a.sock", name="a"
    )
    try:
        ask = offers(UnixClient(tmp_path / "a.sock"), patience=2)
        found = [ask("n"), ask("another"), ask("")]
        harness.controller.handle(NodeChanged(facts(trim(offering("n", {})))))
        found.append(ask("n"))
        harness.controller.handle(NodeDeleted("n"))
        found.append(ask("n"))
    finally:
        server.close()
    assert found == [{"nvidia.com/gpu", MIG}, set(), set(), set(), set()]
    assert ask("n") == set(), "nobody is there to ask"


def test_before_the_first_lists_nothing_is_known(tmp_path: Path) -> None:
    harness = SchedulerHarness([node("n").gpus(1)], synced=False)
    harness.controller.handle(NodeChanged(facts(trim(offering("n", AMOUNTS)))))
    routes = http.socket_routes(harness.controller, Metrics(metrics_of("allocator")))
    server = serve_http(routes, tmp_path / "a.sock", name="a")
    try:
        client = UnixClient(tmp_path / "a.sock")
        assert offers(client, patience=2)("n") == set()
        questions: list[object] = [{"node": "n"}, {"node": 5}, []]
        statuses = [client.post(OFFERED_PATH, each, timeout=2).status for each in questions]
        statuses.append(client.get(CARDS_PATH, timeout=2).status)
    finally:
        server.close()
    assert statuses == [503, 400, 400, 503]


@pytest.mark.parametrize("leads", [True, False], ids=["the leader", "a follower"])
def test_every_replica_says_which_kinds_of_cards_there_are(tmp_path: Path, leads: bool) -> None:
    harness = SchedulerHarness([node("a").gpus(2, mib=16384), node("b").gpus(1, mib=8192)], leads=leads)
    routes = http.socket_routes(harness.controller, Metrics(metrics_of("allocator")))
    server = serve_http(routes, tmp_path / "a.sock", name="a")
    try:
        found = cards(UnixClient(tmp_path / "a.sock"), patience=2)()
    finally:
        server.close()
    assert found is not None
    assert sorted(card.usable >> 20 for card in found) == [8192, 16384]
