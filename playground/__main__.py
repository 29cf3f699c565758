"""
`python -m playground demo`, `... demo-tenants`, `python -m playground up` and `python -m playground upgrade`.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from playground import demo, upgrading
from playground.alone import Unusable, alone
from playground.cluster import DEFAULT_COMPONENTS, Cluster, NotUp
from playground.picture import draw
from playground.programs.process import ProgramFailed
from playground.tenants import demo as tenants


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    top = argparse.ArgumentParser(
        prog="python -m playground", description="A cluster with gpufraction, on this machine."
    )
    commands = top.add_subparsers(dest="command", required=True)
    shown = commands.add_parser("demo", help="run the samples on it, show what came of them, and end")
    shown.add_argument("--keep", action="store_true", help="then show the plugin's page of it, until Ctrl-C")
    commands.add_parser("demo-tenants", help="show what several teams on few cards get, and end")
    up = commands.add_parser("up", help="start it and leave it running until Ctrl-C")
    upgrade = commands.add_parser("upgrade", help="replace the programs of a running one by those of this checkout")
    for command in (up, upgrade):
        command.add_argument("--directory", default=".playground", help="where kubeconfig and logs go")
    given = top.parse_args(arguments)
    try:
        return _COMMANDS[given.command](given)
    except (Unusable, NotUp, ProgramFailed) as error:
        print(error, file=sys.stderr)
        return 1


def _up(directory: Path) -> int:
    stop = threading.Event()
    asked = threading.Event()

    def end(*_: object) -> None:
        stop.set()
        asked.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    signal.signal(upgrading.SIGNAL, lambda *_: asked.set())
    with alone(directory), _cluster(directory) as cluster:
        print(f"\n{draw(cluster.kube)}\n\nThe cluster is up. In another terminal, in this folder:\n")
        print(f"    export KUBECONFIG={cluster.kubeconfig}")
        print(f"    export PATH={Path(sys.executable).parent}:$PATH      # for kubectl gpufraction")
        print("    kubectl apply -f samples/4paradigm-vgpu.yaml")
        print("    kubectl get pods -o wide\n")
        if shutil.which("kubectl") is None:
            print(
                "There is no kubectl on PATH. docs/tutorial.md says how to get one; kubectl-gpufraction works without."
            )
        print("docs/tutorial.md leads through an hour with it.")
        print(f"Logs are in {cluster.directory}. Ctrl-C ends it.", flush=True)
        while asked.wait() and not stop.is_set():
            asked.clear()
            upgrading.carry_out(cluster)
    return 0


def _cluster(directory: Path) -> Cluster:
    """The demo's nodes, with two replicas as the manifests have them, and with preemption."""
    return Cluster(
        directory=directory,
        replicas=2,
        components=(*DEFAULT_COMPONENTS, "allocator-eviction"),
        settings={"allocator": ("--preemption=true",)},
    )


_COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "demo": lambda given: demo.run(keep=given.keep),
    "demo-tenants": lambda given: tenants.run(),
    "up": lambda given: _up(Path(given.directory).resolve()),
    "upgrade": lambda given: upgrading.ask_for_it(Path(given.directory).resolve()),
}


if __name__ == "__main__":
    sys.exit(main())
