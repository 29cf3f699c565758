"""
The scores of kube-scheduler's own plugins: at the highest verbosity it logs each score of each plugin and node.

There is no extender, so a pod is bound to the winning node. There is one pod at a time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playground.machinery.cluster import SCHEDULER
from playground.realapi import components
from playground.realapi.server import RealServer

JSON = dict[str, Any]
Scores = Mapping[str, Mapping[str, int]]
"""By plugin and node; weighted, as they are added up."""
_LINE = re.compile(
    r'"Plugin scored node for pod" pod="(?P<pod>[^"]*)" plugin="(?P<plugin>[^"]*)" node="(?P<node>[^"]*)" '
    r"score=(?P<score>[0-9]+)"
)


def _configuration(kubeconfig: Path, profiles: Mapping[str, JSON]) -> JSON:
    """`profiles`: the `addedAffinity` and `defaultConstraints` of each, as in our options."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 500, "burst": 1000},
        "percentageOfNodesToScore": 100,
        "profiles": [
            {
                "schedulerName": name,
                "plugins": {"postFilter": {"disabled": [{"name": "*"}]}},
                "pluginConfig": [
                    {"name": "NodeAffinity", "args": {"addedAffinity": given.get("addedAffinity")}},
                    {
                        "name": "PodTopologySpread",
                        "args": {
                            "defaultingType": "List",
                            "defaultConstraints": given.get("defaultConstraints", []),
                        },
                    },
                ],
            }
            for name, given in profiles.items()
        ],
    }


@contextmanager
def scoring(server: RealServer, profiles: Mapping[str, JSON]) -> Iterator[Path]:
    """Run the server's kube-scheduler with these profiles. Yields its log, which has the scores."""
    file = server.directory / "scoring.json"
    file.write_text(json.dumps(_configuration(server.certified(SCHEDULER), profiles)))
    flags = [f"--config={file}", "--secure-port=0", "--bind-address=127.0.0.1", "--vmodule=schedule_one=10"]
    program = server.add(components.SCHEDULER, flags)
    program.start()
    try:
        yield program.log
    finally:
        program.terminate()
        program.wait()


def read(log: Path) -> dict[str, dict[str, dict[str, int]]]:
    """The scores in the log by pod (`namespace/name`), plugin and node."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for each in _LINE.finditer(log.read_text(errors="replace")):
        by_plugin = found.setdefault(each["pod"], {})
        by_plugin.setdefault(each["plugin"], {})[each["node"]] = int(each["score"])
    return found
