"""The plugin's sockets, called over gRPC as kubelet calls them."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

grpc = pytest.importorskip("grpc", reason="gRPC is the package's extra `dra`")

from nodeagent.dra import wire  # noqa: E402
from nodeagent.dra.health import HealthWatch  # noqa: E402
from nodeagent.dra.plugin import ClaimPlugin  # noqa: E402
from nodeagent.dra.server import PluginPaths, PluginServer  # noqa: E402
from nodeagent.dra.wire import ClaimRef  # noqa: E402
from nodeagent.gpus.library import Card  # noqa: E402
from nodeagent.gpus.observation import Observation  # noqa: E402
from playground.waiting import wait_for  # noqa: E402
from tests.unit.nodeagent.dra import kubelet  # noqa: E402
from tests.unit.nodeagent.dra.test_plugin import REF, Cluster, plugin  # noqa: E402

CARD = Card(index=0, uuid="GPU-11111111-2222-3333-4444-555555555555", model="Tesla T4", memory_bytes=1 << 34)
HEALTHY, UNHEALTHY = b"\x10\x01", b"\x10\x02"


class Agent:
    """An agent's plugin on a thread. `stop` ends it, and another one may replace it."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.seen = Observation((CARD,))
        self.watch = HealthWatch(lambda: self.seen, node="node-1")
        self.paths = PluginPaths(folder)
        self.paths.folder.mkdir(parents=True, exist_ok=True)
        self.woken = threading.Event()
        made: ClaimPlugin = plugin(cluster, self.paths.folder)
        self.server = PluginServer(made, self.paths, self.watch, changed=self.woken.set)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self.server.run, args=(self._stopping,), daemon=True)
        self._thread.start()
        wait_for(self.paths.registration.exists, "the plugin does not listen", 10)

    def look(self, *cards: Card) -> None:
        """Make a look show these cards."""
        self.seen = Observation(cards)
        self.watch.wake()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(10)
        assert not self._thread.is_alive(), "the plugin does not end"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A kubelet's folder with a short path, because a unix socket's path has at most 108 bytes."""
    with tempfile.TemporaryDirectory(prefix="gpf-") as name:
        (Path(name) / "plugins_registry").mkdir()
        yield Path(name)


def test_a_kubelet_registers_the_plugin_and_gets_the_devices(folder: Path) -> None:
    cluster = Cluster()
    agent = Agent(folder, cluster)
    try:
        info = kubelet.call(agent.paths.registration, wire.REGISTRATION, "GetInfo")
        assert info == wire.plugin_info("gpufraction.io", str(folder / "plugins/gpufraction.io/dra.sock"))
        assert agent.server.registered is None
        kubelet.call(agent.paths.registration, wire.REGISTRATION, "NotifyRegistrationStatus", b"\x08\x01")
        assert agent.server.registered is True
        assert agent.woken.is_set()
        answer = kubelet.prepare(agent.paths.endpoint, REF, ClaimRef("ns", "gone", "gone"))
        assert b"nvidia.com/gpu=GPU-11111111-2222-3333-4444-555555555555" in answer
        assert b"no answer" in answer
    finally:
        agent.stop()
    assert not agent.paths.registration.exists(), "a kubelet would go on asking a plugin that is gone"


def test_the_next_agent_takes_the_sockets_over_and_knows_what_was_prepared(folder: Path) -> None:
    cluster = Cluster()
    first = Agent(folder, cluster)
    answer = kubelet.prepare(first.paths.endpoint, REF)
    first.stop()
    cluster.away = True
    second = Agent(folder, cluster)
    try:
        assert kubelet.prepare(second.paths.endpoint, REF) == answer
        assert kubelet.unprepare(second.paths.endpoint, REF) == wire.unprepared({"claim-uid": ""})
    finally:
        second.stop()


def test_sockets_that_a_killed_agent_left_are_replaced(folder: Path) -> None:
    paths = PluginPaths(folder)
    paths.folder.mkdir(parents=True)
    paths.endpoint.write_text("")
    paths.registration.write_text("")
    agent = Agent(folder, Cluster())
    try:
        assert kubelet.call(paths.registration, wire.REGISTRATION, "GetInfo")
    finally:
        agent.stop()


def test_a_refusal_has_its_reason(folder: Path) -> None:
    agent = Agent(folder, Cluster())
    try:
        refused = b"\x12\x07too old"
        kubelet.call(agent.paths.registration, wire.REGISTRATION, "NotifyRegistrationStatus", refused)
        assert (agent.server.registered, agent.server.why) == (False, "too old")
    finally:
        agent.stop()


def test_a_call_that_cannot_be_read_is_refused(folder: Path) -> None:
    agent = Agent(folder, Cluster())
    try:
        with pytest.raises(grpc.RpcError) as caught:
            kubelet.call(agent.paths.endpoint, wire.SERVICE, "NodePrepareResources", b"\x0a\x05a")
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    finally:
        agent.stop()


def test_a_change_of_a_cards_health_reaches_the_watcher(folder: Path) -> None:
    agent = Agent(folder, Cluster())
    try:
        with kubelet.watching(agent.paths.endpoint) as stream:
            first = next(stream)
            assert b"node-1" in first
            assert b"gpu-11111111-2222-3333-4444-555555555555" in first
            assert HEALTHY in first
            agent.look(CARD)  # nothing new, nothing sent
            agent.look(replace(CARD, healthy=False, reason="XID 79"))
            second = next(stream)
            assert UNHEALTHY in second
            assert b"XID 79" in second
            agent.look(CARD)
            assert HEALTHY in next(stream)
    finally:
        agent.stop()


def test_a_watcher_that_reads_nothing_holds_neither_the_claims_nor_the_end(folder: Path) -> None:
    """For example, a stopped kubelet: its connection stays open."""
    many = [replace(CARD, uuid=f"GPU-{number}", healthy=False, reason="x" * 1000) for number in range(3000)]
    agent = Agent(folder, Cluster())
    agent.look(*many)  # 3 MB, more than gRPC sends to a client that does not read
    try:
        with kubelet.watching(agent.paths.endpoint), kubelet.watching(agent.paths.endpoint):
            for number in range(20):
                agent.look(*many[number:])
                assert b"nvidia.com/gpu=" in kubelet.prepare(agent.paths.endpoint, REF)
            agent.stop()
    finally:
        agent.stop()


def test_more_watchers_than_a_kubelet_has_are_refused_until_one_ends(folder: Path) -> None:
    agent = Agent(folder, Cluster())
    try:
        with kubelet.watching(agent.paths.endpoint) as first, kubelet.watching(agent.paths.endpoint) as second:
            assert next(first) == next(second)
            with kubelet.watching(agent.paths.endpoint) as third, pytest.raises(grpc.RpcError) as caught:
                next(third)
            assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED

        def again() -> bool:
            with kubelet.watching(agent.paths.endpoint) as stream:
                try:
                    return HEALTHY in next(stream)
                except grpc.RpcError:
                    return False

        wait_for(again, "the ended streams still count", 10)
    finally:
        agent.stop()


def test_the_end_of_the_agent_ends_the_stream_cleanly(folder: Path) -> None:
    agent = Agent(folder, Cluster())
    with kubelet.watching(agent.paths.endpoint) as stream:
        next(stream)
        agent.stop()
        assert list(stream) == []
        assert stream.code() == grpc.StatusCode.OK
