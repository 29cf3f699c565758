"""
Shows the scenes in turn, each on its own cluster. The exit status is 0 only if all outcomes are as expected.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import TextIO

from playground.cluster import Cluster
from playground.tenants.bill import BILL
from playground.tenants.burst import BURST
from playground.tenants.fair import FAIR
from playground.tenants.idle import IDLE
from playground.tenants.moving import MOVING
from playground.tenants.reserved import RESERVED
from playground.tenants.scenes import Scene
from playground.tenants.together import TOGETHER
from playground.waiting import NotInTime

SCENES: tuple[Scene, ...] = (FAIR, BURST, IDLE, BILL, MOVING, RESERVED, TOGETHER)


def run(out: TextIO = sys.stdout) -> int:
    """Show all scenes; the exit status."""
    began = time.monotonic()
    good = sum(_shown(scene, out) for scene in SCENES)
    print(f"\n{good} of {len(SCENES)} as expected, in {time.monotonic() - began:.0f} s", file=out)
    return 0 if good == len(SCENES) else 1


def _shown(scene: Scene, out: TextIO) -> bool:
    print(f"        {scene.title} ...", file=out, flush=True)
    with tempfile.TemporaryDirectory(prefix="gpufraction-") as name:
        directory = Path(name)
        nodes = scene.nodes_in(directory)
        settings, components = scene.settings, scene.components
        with Cluster(nodes=nodes, settings=settings, components=components, directory=directory) as cluster:
            try:
                seen = scene.show(cluster)
            except NotInTime as error:
                print(f"DIFFERS {scene.title}: {error}", file=out, flush=True)
                return False
    good = seen.observed == seen.expected
    print(f"{'ok' if good else 'DIFFERS':8}{scene.title}", file=out)
    for what, line in (("expected", seen.expected), ("observed", seen.observed), *(("", line) for line in seen.lines)):
        print(f"          {what:8}  {line}", file=out)
    out.flush()
    return good
