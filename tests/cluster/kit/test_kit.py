"""`kubectl gpufraction conformance` end to end: its pods run with a simulated driver, and it finds what is broken."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from kubectl_gpufraction.conformance import report
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.cluster.kit.cluster import CUDA, NODE, Kit

pytestmark = [pytest.mark.system, pytest.mark.long, pytest.mark.timeout(300)]
JSON = dict[str, Any]
Line = tuple[str, str, str, str]
_OTHER, _UNASKED = ("not tried", "NotThisNodesWay"), ("not tried", "NotAsked")
HEALTHY: tuple[Line, ...] = (
    ("delivery", "env-plain", "passed", ""),
    ("delivery", "env-plain-cdi", *_OTHER),
    ("delivery", "env-class", *_OTHER),
    ("delivery", "env-class-cdi", *_OTHER),
    ("delivery", "nri-annotation", *_OTHER),
    ("delivery", "dra", *_OTHER),
    ("delivery", "device-plugin", *_OTHER),
    ("without-share", "served", "passed", ""),
    ("without-share", "unserved", "passed", ""),
    ("memory", "driver", "not tried", "LevelNotPublished"),
    ("memory", "mps", "not tried", "LevelNotPublished"),
    ("memory", "preload", "passed", ""),
    ("cores", "driver", "not tried", "LimitsNoCores"),
    ("cores", "mps", "not tried", "LevelNotPublished"),
    ("cores", "preload", "passed", ""),
    ("neighbour", "", "passed", ""),
    ("mig", "", "not tried", "NoSlices"),
    ("restart-container", "", "passed", ""),
    ("restart-agent", "", *_UNASKED),
    ("restart-kubelet", "", *_UNASKED),
)
"""The results on the node while nothing is wrong."""


def lines(found: JSON) -> tuple[Line, ...]:
    """The results without figures."""
    return tuple((each["check"], each["variant"], each["result"], each["reason"]) for each in found["results"])


def but(**changed: tuple[str, str]) -> tuple[Line, ...]:
    """
    `HEALTHY` with other results, by `check__variant` with `_` for `-`. A name without a variant changes all variants.
    """
    wanted = {key.replace("_", "-").replace("--", "/"): value for key, value in changed.items()}
    return tuple(
        (check, variant, *wanted.get(f"{check}/{variant}" if variant else check, wanted.get(check, (result, reason))))
        for check, variant, result, reason in HEALTHY
    )


def only(*checks: str, **changed: tuple[str, str]) -> tuple[Line, ...]:
    """Like `but`, for these checks alone, if no others were requested."""
    return tuple(line if line[0] in checks else (line[0], line[1], *_UNASKED) for line in but(**changed))


def asked(*checks: str) -> tuple[str, ...]:
    """The flags that request only these checks."""
    return tuple(word for check in checks for word in ("--check", check))


def figures(found: JSON, check: str, variant: str = "") -> dict[str, int]:
    """The figures of one result."""
    [only] = [each for each in found["results"] if (each["check"], each["variant"]) == (check, variant)]
    return dict(only["figures"])


def test_a_node_that_holds_passes(kit: Kit, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    status, found, said = kit.run("--report", str(file))
    assert (lines(found), status) == (HEALTHY, 0)
    assert json.loads(file.read_text()) == found
    assert report.to_json(report.from_text(file.read_bytes())) == found
    assert figures(found, "delivery", "env-plain") == {"seen": 1, "given": 1}
    assert figures(found, "memory", "preload") == {"shareMiB": 2048, "tookMiB": 2048, "shownMiB": 2048}
    slow = figures(found, "neighbour")
    assert slow["besideP50Microseconds"] > slow["aloneP50Microseconds"] > 0
    assert "registry.example.com/python:3.12" in said


def test_the_report_names_no_node(kit: Kit, tmp_path: Path) -> None:
    """The report names nothing else of the cluster either: all its words are from the kit's own tables."""
    _, found, _ = kit.run("--timeout", "1s")
    text = json.dumps(found).lower()
    uuids = [gpu["uuid"].lower() for gpu in kit.gpunode()["status"]["gpus"]]
    assert [word for word in (f'"{NODE}"', "registry.example", "default", *uuids, str(tmp_path)) if word in text] == []


def test_a_limiter_that_does_not_hold_fails(kit: Kit) -> None:
    kit.programs.holds = frozenset()
    status, found, _ = kit.run(*asked("memory", "cores"))
    failed = ("failed", "LimitNotHeld")
    assert (lines(found), status) == (only("memory", "cores", memory__preload=failed, cores__preload=failed), 1)
    assert figures(found, "memory", "preload")["tookMiB"] == 2048 + 64


def test_cores_that_are_not_held_fail_alone(kit: Kit) -> None:
    kit.programs.holds = frozenset(("memory",))
    status, found, _ = kit.run(*asked("memory", "cores"))
    assert (lines(found), status) == (only("memory", "cores", cores__preload=("failed", "LimitNotHeld")), 1)


def test_an_image_that_asks_for_every_gpu_and_gets_it_fails(kit: Kit) -> None:
    """In a served namespace the component hide-gpus removes the GPUs; elsewhere on such a node nothing does."""
    status, found, _ = kit.run(*asked("without-share"), image=CUDA)
    wanted = only("without-share", without_share__unserved=("failed", "SeesGPUs"))
    assert (lines(found), status) == (wanted, 1)
    assert figures(found, "without-share", "unserved") == {"seen": len(kit.gpunode()["status"]["gpus"])}


def test_a_program_that_is_not_there_is_no_failure(kit: Kit) -> None:
    status, found, _ = kit.run("--interpreter", "sh -c 'exit 127'", *asked("memory", "neighbour"))
    missing = ("not tried", "ProgramMissing")
    wanted = only("memory", "neighbour", memory__preload=missing, neighbour=missing)
    assert (lines(found), status) == (wanted, 0)


def test_a_node_whose_kubelet_is_away_starts_no_pod(kit: Kit) -> None:
    kit.cluster.control_plane.fail_node(NODE)
    try:
        status, found, _ = kit.run("--start-timeout", "3s", *asked("delivery", "without-share", "restart-container"))
    finally:
        kit.cluster.control_plane.restart_node(NODE)
    waits = ("not tried", "NoRoom")
    wanted = only(
        *("delivery", "without-share", "restart-container"),
        delivery__env_plain=waits,
        without_share__served=("failed", "PodNotStarted"),
        without_share__unserved=("failed", "PodNotStarted"),
        restart_container=waits,
    )
    assert (lines(found), status) == (wanted, 1)


def test_an_agent_that_is_away_is_no_failure_of_the_node(kit: Kit) -> None:
    agent = kit.cluster.programs[f"nodeagent-{NODE}"]
    agent.terminate()
    agent.wait()
    kit.cluster.kube.delete(paths.gpunodes(NODE))
    try:
        status, found, _ = kit.run()
        away = ("not tried", "AgentAway")
        kept = {("without-share", "served"), ("without-share", "unserved"), ("cores", "driver")}
        wanted = tuple((c, v, r, w) if (c, v) in kept else (c, v, *away) for c, v, r, w in HEALTHY)
        assert (lines(found), status) == (wanted, 0)
    finally:
        agent.start()
        wait_for(lambda: kit.cluster.kube.list(paths.gpunodes()).items, "the agent does not come back")
        wait_for(lambda: "preload" in (kit.gpunode().get("status") or {}).get("isolation", ()), "no level")


def test_the_agent_and_the_kubelet_restart_while_a_pod_runs(kit: Kit) -> None:
    """A simulated DaemonSet creates the agent's next pod, and a simulated administrator restarts the kubelet."""
    stop = threading.Event()
    kube = kit.cluster.kube
    collection = paths.pods("gpufraction-system")

    def agent(number: int) -> None:
        labels = {"app.kubernetes.io/component": "nodeagent"}
        restricted = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True}
        restricted["seccompProfile"] = {"type": "RuntimeDefault"}
        container = {"name": "nodeagent", "image": "x", "securityContext": restricted}
        spec = {"nodeName": NODE, "containers": [container], "tolerations": [{"operator": "Exists"}]}
        metadata = {"name": f"agent-{number}", "namespace": "gpufraction-system", "labels": labels}
        kube.create(collection, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def hand() -> None:
        number = 1
        while not stop.wait(0.5):
            if not kube.list(collection, {"labelSelector": "app.kubernetes.io/component=nodeagent"}).items:
                number += 1
                agent(number)
                program = kit.cluster.programs[f"nodeagent-{NODE}"]
                program.terminate()
                program.wait()
                kube.delete(paths.gpunodes(NODE))  # else the kit would wait for its heartbeat
                program.start()
            moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            about = {"kind": "Node", "name": NODE, "uid": NODE}
            event = {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"generateName": "kubelet-", "namespace": "default"},
                "involvedObject": about,
                "reason": "Starting",
                "lastTimestamp": moment,
            }
            kube.create(paths.events("default"), event)

    agent(1)
    thread = threading.Thread(target=hand)
    thread.start()
    try:
        flags = ("--restart-agent", "--restart-kubelet")
        status, found, said = kit.run(*flags, *asked("restart-agent", "restart-kubelet"))
    finally:
        stop.set()
        thread.join()
        for pod in kube.list(collection, {"labelSelector": "app.kubernetes.io/component=nodeagent"}).items:
            kube.delete(paths.pods("gpufraction-system", pod["metadata"]["name"]), {"gracePeriodSeconds": 0})
    back = ("passed", "")
    wanted = only("restart-agent", "restart-kubelet", restart_agent=back, restart_kubelet=back)
    assert (lines(found), status) == (wanted, 0)
    assert "systemctl restart kubelet" in said


def test_a_hand_that_does_nothing_is_not_tried(kit: Kit) -> None:
    """The flag is given and no one restarts the kubelet: the time limit ends first."""
    status, found, _ = kit.run("--restart-kubelet", "--timeout", "20s", *asked("restart-kubelet"))
    assert lines(found)[-1] in {
        ("restart-kubelet", "", "not tried", "OutOfTime"),
        ("restart-kubelet", "", "not tried", "NotDone"),
    }
    assert status == 0
