"""
Reserved cores: each pod gets whole chunks of a card's multiprocessors, which no other pod can use.

The agent, the supervisor of MPS and their interface are real; NVIDIA's daemon is simulated
(`playground.programs.mps_control`), so the scene does not show the behaviour of a card.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

from contract import names
from playground import scenarios
from playground.cluster import DEFAULT_COMPONENTS, Cluster
from playground.programs import mps_control
from playground.programs.process import Program
from playground.shapes import gpu_node
from playground.tenants.scenes import Scene, Seen, create, running, team
from playground.waiting import wait_for
from runtime.kubernetes import paths

_ROOT = Path(tempfile.gettempdir()) / f"gpufraction-mps-{os.getpid()}"
"""Must be short, because a unix socket's path may have 108 bytes at most."""
_CDI = "nvidia.com/gpu"
_NODE, _CARD = "a10", "gpus.json"
_AN_AMPERE = json.dumps(
    {
        "driver": "615.10",
        "cuda": "13.1",
        "gpus": "1 x NVIDIA A10 23028MiB",
        "cards": {"0": {"computing": {}, "capability": "8.6"}},
    }
)
_PODS = {"serving": 50, "batch": 25}
"""Percent of the cores."""


def _show(cluster: Cluster) -> Seen:
    team(cluster, "team-a")
    cdi, control = _ROOT / "cdi", _ROOT / "control"
    cdi.mkdir(parents=True, exist_ok=True)
    control.write_text(f"#!{sys.executable} -IS\n{Path(mps_control.__file__).read_text(encoding='utf-8')}")
    control.chmod(stat.S_IRWXU)
    supervisor = Program(
        "mps-supervisor",
        [
            *("nodeagent", "mps-supervisor", f"--root={_ROOT}", f"--program={control}", f"--node={_NODE}"),
            *("--simulate", f"@{cluster.directory / _CARD}", "--interval=200ms"),
        ],
        log=cluster.directory / "mps-supervisor.log",
        environment={},
    )
    supervisor.start()
    try:
        wait_for(lambda: _reserves(cluster), lambda: f"{_NODE} reserves no cores: {_condition(cluster)}")
        for name, cores in _PODS.items():
            create(
                cluster, "team-a", name, {"gpufraction.io/gpu-memory": "4Gi", "gpufraction.io/gpu-cores": str(cores)}
            )
        wait_for(lambda: running(cluster, "team-a") == _PODS.keys(), lambda: f"they do not run: {_message(cluster)}")
        wait_for(lambda: len(_chunks(cluster)) == len(_PODS), lambda: f"partitions: {_chunks(cluster)}")
        wait_for(lambda: "rounded" in _condition(cluster).get("message", ""), "nobody says what was rounded")
        lines = (f"the condition CoresReserved of {_NODE}: {_condition(cluster)['message']}",)
        return Seen(_line({"serving": 5, "batch": 2}), _line(_chunks(cluster)), lines)
    finally:
        supervisor.terminate()
        supervisor.wait()
        shutil.rmtree(_ROOT, ignore_errors=True)


def _line(chunks: dict[str, int]) -> str:
    shown = ", ".join(f"{name} has {chunks.get(name, 0)}" for name in _PODS)
    return f"of the card's {mps_control.CHUNKS} chunks of multiprocessors {shown}"


def _message(cluster: Cluster) -> str:
    return scenarios.shown(scenarios.all_pods(cluster.kube, "team-a"))


def _condition(cluster: Cluster) -> dict[str, str]:
    conditions = cluster.kube.get(paths.gpunodes(_NODE)).get("status", {}).get("conditions") or []
    return next((each for each in conditions if each["type"] == "CoresReserved"), {})


def _reserves(cluster: Cluster) -> bool:
    return _condition(cluster).get("status") == "True"


def _chunks(cluster: Cluster) -> dict[str, int]:
    """The chunks of each pod's partition, by pod. The runtime's description of the pod's device names the partition."""
    file = _ROOT / "cdi" / "gpufraction.io-partition.json"
    devices = json.loads(file.read_text(encoding="utf-8"))["devices"] if file.exists() else []
    sizes, found = _partitions(), dict[str, int]()
    for name in _PODS:
        annotations = cluster.kube.get(paths.pods("team-a", name))["metadata"]["annotations"]
        asked = {
            device.partition("=")[2]
            for device in annotations.get(names.per_container(names.DEVICES_PREFIX, "main"), "").split(",")
        }
        env = [line for each in devices if each["name"] in asked for line in each["containerEdits"]["env"]]
        given = dict(line.split("=", 1) for line in env).get("CUDA_MPS_SM_PARTITION", "")
        if given:
            found[name] = sizes.get(given.partition("/")[2], 0)
    return found


def _partitions() -> dict[str, int]:
    """The chunks of each partition, as the daemon lists them."""
    for pipe in _ROOT.glob("GPU-*/pipe"):
        environment = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_VISIBLE_DEVICES": pipe.parent.name}
        asked = subprocess.run(
            [_ROOT / "control"],
            input="lspart\n",
            env=environment,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        rows = (line.split() for line in asked.stdout.splitlines())
        return {row[1]: int(row[3]) for row in rows if len(row) > 3 and row[3].isdecimal() and row[1] != "-"}
    return {}


RESERVED = Scene(
    "Cores that are reserved: half of a card and a quarter, by partitions of MPS (the daemon is played)",
    _show,
    settings={
        "nodeagent": (
            *("--limiters-mps", str(_ROOT), "--limiters-cdi", str(_ROOT / "cdi"), "--limiters-partitions"),
            *("--delivery", f"nri:{_CDI}"),
        )
    },
    nodes=(gpu_node(_NODE, f"@{_CARD}"),),
    components=(*DEFAULT_COMPONENTS, "node-access"),
    files={_CARD: _AN_AMPERE},
)
