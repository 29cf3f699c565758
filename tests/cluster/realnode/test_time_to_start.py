"""How long a container takes to start once its pod has a share, by ResourceClaims and by NVIDIA's runtime, in turns."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

import pytest

from contract import names, pods
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.cluster.realnode.cluster import JSON, NODE, RealNodeCluster, container
from tests.cluster.realnode.ways import WAYS

pytestmark = [pytest.mark.realnode, pytest.mark.timeout(900)]
_ROUNDS, _STARTS = 3, 5
"""Turns of each way, and the starts in a turn; the first start of a turn does not count."""


class Gates:
    """When each pod's gate was removed, by this process's clock at the watch event."""

    def __init__(self, node: RealNodeCluster) -> None:
        self.ended: dict[str, float] = {}
        """By the pod's uid."""
        self._node, self._ended = node, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Gates:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        path = paths.pods("default")
        version = self._node.kube.list(path).resource_version
        while not self._ended.is_set():
            for event in self._node.kube.watch(path, resource_version=version, timeout_seconds=2):
                version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] == "MODIFIED" and names.GATE not in pods.gates(event["object"]):
                    self.ended.setdefault(pods.uid(event["object"]), time.time())
                if self._ended.is_set():
                    return


@contextmanager
def closed(node: RealNodeCluster) -> Iterator[None]:
    """No card accepts a pod in this context, so each new pod waits behind the gate, however its card is delivered."""

    def cordoned(cards: str | None) -> None:
        node.kube.patch_merge(paths.nodes(NODE), {"metadata": {"annotations": {str(names.CORDON): cards}}})

    cordoned("0,1")
    try:
        node.await_gpunode(lambda status: all(gpu["health"] == "Cordoned" for gpu in status["gpus"]))
        yield
    finally:
        cordoned(None)


def first_line(node: RealNodeCluster, pod: JSON) -> float:
    """When the container printed its first line, by the runtime's clock; 0 if it has not yet."""
    about = pod["metadata"]
    folder = node.node.machine.path(f"/var/log/pods/{about['namespace']}_{about['name']}_{about['uid']}/c")
    try:
        return datetime.fromisoformat((folder / "0.log").read_text().split(" ", 1)[0]).timestamp()
    except (FileNotFoundError, ValueError):
        return 0.0


def seconds(node: RealNodeCluster, gates: Gates, name: str) -> float:
    """Seconds from the removal of a pod's gate to the first line of its container. The pod is removed afterwards."""
    with closed(node):
        pod = node.submit(name, container(gpu_memory="1Gi"))
        node.waiting(name)
    wait_for(lambda: first_line(node, pod), lambda: f"{node.events(name)}", 60)
    took = first_line(node, pod) - gates.ended[pods.uid(pod)]
    node.delete(name)
    node.await_deleted(name)
    return took


def test_time_from_the_gates_removal_to_the_first_line(
    real: RealNodeCluster, up: RealNodeCluster, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    lacking = up.assets.lacks(WAYS["dra"].needs)
    if lacking:
        pytest.skip(f"REALNODE_ASSETS: {up.assets.folder} has no {' and no '.join(lacking)}")
    before = real.way
    assert before is not None
    took: dict[str, list[float]] = {"cdi": [], "dra": []}
    try:
        for turn in range(_ROUNDS):
            for way, found in took.items():
                real.use(WAYS[way])
                with Gates(real) as gates:
                    found += [seconds(real, gates, f"{way}-{turn}-{number}") for number in range(_STARTS)][1:]
    finally:
        real.use(before)
    with capsys.disabled():
        print()
        for way, found in took.items():
            shown = " ".join(f"{each:.2f}" for each in sorted(found))
            print(f"{request.node.callspec.id} {way}: median {statistics.median(found):.2f} s of {shown}")
