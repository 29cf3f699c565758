"""
A cluster whose kubelets run the kit's pods with a simulated driver and an installed limiter.

    python -m tests.cluster.kit.cluster FILE    # the report of such a node, as docs/environments has it
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubectl_gpufraction.__main__ import main
from kubectl_gpufraction.conformance.pods import NAMESPACES
from playground.cluster import Cluster, MakeControlPlane
from playground.shapes import DEMO
from playground.tenants import limiter
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeNotFound
from tests.cluster.hiding import hide_gpus
from tests.cluster.kit.played import PlayedPrograms

JSON = dict[str, Any]
NODE = DEMO[0].spec.name
CLOSED = "registry.example.com/base:1"
"""An image that requests no GPU by itself: the simulated runtime recognises CUDA's images by their names."""
CUDA = "registry.example.com/cuda:12"


@dataclass
class Kit:
    """The cluster, the programs that run in it, and the command."""

    cluster: Cluster
    programs: PlayedPrograms

    def run(self, *arguments: str, image: str = CLOSED, **keywords: Any) -> tuple[int, JSON, str]:
        """The exit status, the printed report, and the messages for people."""
        out, err = io.StringIO(), io.StringIO()
        common = ("--kubeconfig", str(self.cluster.kubeconfig), "-o", "json")
        probe = ("--node", NODE, "--image", "registry.example.com/python:3.12", "--cuda-image", image)
        times = ("--measure", "1s", "--start-timeout", "20s")
        status = main(
            ["conformance", *probe, *times, *arguments, *common], out=out, err=err, environment={}, **keywords
        )
        return status, json.loads(out.getvalue()) if out.getvalue() else {}, err.getvalue()

    def namespaces(self) -> list[str]:
        """The kit's namespaces that exist."""
        found = []
        for name in NAMESPACES.values():
            try:
                self.cluster.kube.get(paths.namespaces(name))
            except KubeNotFound:
                continue
            found.append(name)
        return found

    def gpunode(self) -> JSON:
        return self.cluster.kube.get(paths.gpunodes(NODE))


@contextmanager
def kit_cluster(directory: Path, control_plane: MakeControlPlane | None = None) -> Iterator[Kit]:
    """The cluster with the level `preload` published on its node."""
    library = directory / "library"
    limiter.install(library)
    with Cluster(
        nodes=DEMO[:1],
        directory=directory,
        settings={"nodeagent": limiter.agents(library)},
        control_plane=control_plane,
        components=("hide-gpus",),
    ) as cluster:
        programs = PlayedPrograms(directory / "programs", tuple(NAMESPACES.values()))
        cluster.control_plane.use_programs(programs)
        hide_gpus(cluster)
        kit = Kit(cluster, programs)
        wait_for(lambda: "preload" in (kit.gpunode()["status"].get("isolation") or ()), "the level is not published")
        yield kit


def write_report() -> None:
    """Write the report of a node that passes."""
    with tempfile.TemporaryDirectory() as name, kit_cluster(Path(name)) as kit:
        print(kit.run("--report", sys.argv[1])[2], end="")


if __name__ == "__main__":
    write_report()
