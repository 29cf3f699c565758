"""
`python -m playground demo` and `python -m playground up`.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from playground import demo
from playground.alone import Unusable, alone
from playground.cluster import Cluster, NotUp
from playground.picture import draw
from playground.programs.process import ProgramFailed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    top = argparse.ArgumentParser(
        prog="python -m playground", description="A cluster with gpufraction, on this machine."
    )
    commands = top.add_subparsers(dest="command", required=True)
    commands.add_parser("demo", help="run the samples on it, show what came of them, and end")
    up = commands.add_parser("up", help="start it and leave it running until Ctrl-C")
    up.add_argument("--directory", default=".playground", help="where kubeconfig and logs go")
    given = top.parse_args(arguments)
    try:
        return demo.run() if given.command == "demo" else _up(Path(given.directory).resolve())
    except (Unusable, NotUp, ProgramFailed) as error:
        print(error, file=sys.stderr)
        return 1


def _up(directory: Path) -> int:
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with alone(directory), Cluster(directory=directory) as cluster:
        print(f"\n{draw(cluster.kube)}\n\nThe cluster is up. In another terminal:\n")
        print(f"    export KUBECONFIG={cluster.kubeconfig}")
        print("    kubectl apply -f samples/4paradigm-vgpu.yaml")
        print("    kubectl get pods -o wide\n")
        print(f"Logs are in {cluster.directory}. Ctrl-C ends it.", flush=True)
        stop.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
