"""One pod's audit trail on a real API server: its creation, placement and eviction, each with user and cause."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contract import names
from playground import scenarios
from playground.cluster import Cluster
from playground.machinery.kubelet.gpuruntime import NodeGpus
from playground.realapi.real import Real
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import PodBuilder, pod
from tests.clusters import assets_with

pytestmark = [pytest.mark.system, pytest.mark.realcluster, pytest.mark.timeout(300)]
JSON = dict[str, Any]
ALLOCATOR = f"system:serviceaccount:{names.NAMESPACE}:gpufraction-allocator"
SETTINGS = ("--preemption", "--log-format", "json")


@pytest.fixture
def audited(tmp_path: Path) -> Iterator[tuple[Cluster, Path]]:
    """A cluster whose allocator may evict, and the file of its audit log."""
    assets = assets_with()
    if isinstance(assets, str):
        pytest.skip(assets)
    log = tmp_path / "audit.log"

    def plane(gpus_of: Callable[[str], NodeGpus]) -> Real:
        return Real(assets, gpus_of=gpus_of, audit=log)

    settings = {"allocator": SETTINGS}
    with Cluster(
        directory=tmp_path / "cluster", settings=settings, control_plane=plane, components=("allocator-eviction",)
    ) as cluster:
        for name, value in (("low", 10), ("high", 1000)):
            cluster.kube.create(paths.priorityclasses(), {"metadata": {"name": name}, "value": value})
        yield cluster, log


def t4(name: str, priority: str) -> PodBuilder:
    """A pod that takes more than half of one of the two cards of the node t4."""
    made = pod(name).asks("gpufraction.io/gpu-memory", "10000Mi")
    return made.spec(nodeSelector={"gpushare": "true"}, terminationGracePeriodSeconds=1, priorityClassName=priority)


def trail(log: Path, name: str) -> list[tuple[str, str, dict[str, str]]]:
    """The requests about a pod: verb and subresource, the user, and our notes by the last part of their keys."""
    found = []
    for event in map(json.loads, log.read_text().splitlines()):
        about = event.get("objectRef") or {}
        if about.get("name") == name and about.get("resource") == "pods" and event["responseStatus"]["code"] < 300:
            ours = {k.rpartition("/")[2]: v for k, v in (event.get("annotations") or {}).items() if "gpufraction" in k}
            what = "/".join(filter(None, (event["verb"], about.get("subresource"))))
            dry = "dryRun=All" in event["requestURI"]
            if ours and not dry:
                found.append((what, event["user"]["username"], ours))
    return found


def create(cluster: Cluster, builder: PodBuilder) -> None:
    cluster.kube.create(paths.pods("default"), builder.manifest())


def test_one_pod_from_creation_to_eviction(audited: tuple[Cluster, Path]) -> None:
    cluster, log = audited
    for name in ("low-1", "low-2"):
        create(cluster, t4(name, "low"))
    scenarios.settled(cluster.kube, 2, running=2)
    create(cluster, t4("victim", "low"))  # waits: both cards are taken
    since = time.monotonic()
    wait_for(lambda: time.monotonic() - since > 3, "the clock stands")  # the allocator looks once a second
    cluster.kube.delete(paths.pods("default", "low-1"))

    def runs(name: str) -> bool:
        return any(p["metadata"]["name"] == name and scenarios.is_running(p) for p in scenarios.all_pods(cluster.kube))

    wait_for(lambda: runs("victim"), "the pod was not placed from the queue")
    held = cluster.kube.get(paths.pods("default", "victim"))
    allocation = held["metadata"]["annotations"][names.ALLOCATION]
    create(cluster, t4("high-1", "high"))
    create(cluster, t4("high-2", "high"))
    wait_for(lambda: runs("high-1") and runs("high-2"), "nothing was preempted")

    steps = trail(log, "victim")
    assert [step[0] for step in steps[:3]] == ["create", "patch", "create/eviction"]
    (_, creator, created), (_, binder, placed), (_, evictor, evicted) = steps[:3]
    assert (creator, binder, evictor) != (ALLOCATOR, creator, creator)
    assert (binder, evictor) == (ALLOCATOR, ALLOCATOR)
    assert (created["outcome"], created["dialect"]) == ("gated", "native")
    assert json.loads(placed["granted"]) == json.loads(allocation)
    uid = held["metadata"]["uid"]
    assert evicted["eviction"].startswith(f"pod default/victim, uid {uid}: preemption: ")

    wait_for(lambda: bool(lines(cluster, "share released", uid)), "no line of the released share")
    [granted], [released] = lines(cluster, "share granted", uid), lines(cluster, "share released", uid)
    identity = json.loads(allocation)["id"]
    assert (granted["by"], granted["allocation"], granted["node"]) == ("queue", identity, "t4")
    assert (released["end"], released["cause"], released["allocation"]) == ("evicted", "preemption", identity)
    assert released["reason"]


def lines(cluster: Cluster, message: str, uid: str) -> list[JSON]:
    """The allocators' lines in the audit log."""
    found = []
    for file in cluster.directory.rglob("*.log"):
        for text in file.read_text(errors="replace").splitlines():
            if message in text and uid in text and re.match(r"^\{", text):
                found.append(json.loads(text))
    return [line for line in found if line["logger"] == "allocator.features.audit.lines" and line["message"] == message]
