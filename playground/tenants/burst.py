"""Burstable memory: a pod with a limit above its request waits for a node that enforces it, and books its request."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from contract import names
from playground import scenarios
from playground.cluster import Cluster
from playground.tenants import limiter
from playground.tenants.scenes import Scene, Seen, create, message, plugin, running, team
from playground.waiting import wait_for
from runtime.kubernetes import paths

_LIBRARY = Path(tempfile.gettempdir()) / f"gpufraction-burst-{os.getpid()}"
_BURSTS = {"gpufraction.io/gpu-memory": "4Gi", "gpufraction.io/gpu-memory-limit": "12Gi"}
_ON_T4 = {"nodeSelector": {"gpushare": "true"}}
_NUMBERS = ("GPUFRACTION_MEMORY_MIB", "GPUFRACTION_MEMORY_LIMIT_MIB")
_NOTEBOOKS = tuple(f"notebook-{number}" for number in range(6))


def _show(cluster: Cluster) -> Seen:
    team(cluster, "team-a")
    options = paths.configmaps(names.NAMESPACE, names.OPTIONS)
    cluster.kube.patch_merge(options, {"data": {names.OPTIONS_FILE: "memoryLimitRatio: 3"}})
    wait_for(lambda: _allowed(cluster), "the option memoryLimitRatio is not published")
    create(cluster, "team-a", _NOTEBOOKS[0], _BURSTS, spec=_ON_T4)
    lines = [f"without a limiter a pod is told: {message(cluster, 'team-a', _NOTEBOOKS[0])}"]
    waited = not running(cluster, "team-a")
    try:
        limiter.install(_LIBRARY)
        wait_for(lambda: running(cluster, "team-a"), f"{_NOTEBOOKS[0]} does not run")
        for name in _NOTEBOOKS[1:]:
            create(cluster, "team-a", name, _BURSTS, spec=_ON_T4)
        wait_for(lambda: running(cluster, "team-a") == set(_NOTEBOOKS), "not all notebooks run")
        seen = scenarios.printed(cluster.kube, cluster.kube.get(paths.pods("team-a", _NOTEBOOKS[0])))
        lines += [f"its container reads {line}" for line in seen.splitlines() if line.startswith(_NUMBERS)]
        lines += [line for line in plugin(cluster, "nodes").splitlines() if line.startswith("Memory limits")]
    finally:
        limiter.remove(_LIBRARY)
    return Seen(
        _line(len(_NOTEBOOKS), waited=True), _line(len(running(cluster, "team-a")), waited=waited), tuple(lines)
    )


def _allowed(cluster: Cluster) -> bool:
    """Whether every agent has published the option."""
    return all((each.get("status") or {}).get("options") for each in cluster.kube.list(paths.gpunodes()).items)


def _line(number: int, *, waited: bool) -> str:
    before = "none, then " if waited else ""
    return f"notebooks of 4 GiB that may use 12, on 2 cards of 15 GiB: {before}{number} run"


BURST = Scene(
    "Memory that may burst: notebooks book 4 GiB and may use 12, where a node enforces it",
    _show,
    settings={"nodeagent": limiter.agents(_LIBRARY)},
)
