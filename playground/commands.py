"""
The commands of the playground: what they print, and their exit statuses.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from playground import demo, shapes
from playground.alone import Unusable, alone
from playground.cluster import DEFAULT_COMPONENTS, Cluster, NotUp
from playground.operating import control, ending
from playground.operating.control import Action, Report
from playground.operating.drill import FAULTS, Drill
from playground.operating.ending import Ended, Ending
from playground.picture import draw
from playground.programs.process import ProgramFailed
from playground.tenants import demo as tenants
from playground.waiting import NotInTime
from runtime.kubernetes.client import KubeError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    given = _parser().parse_args(arguments)
    try:
        return _COMMANDS[given.command](given)
    except (Unusable, NotUp, ProgramFailed) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m playground", description="A cluster with gpufraction, on this machine."
    )
    commands = top.add_subparsers(dest="command", required=True)
    shown = commands.add_parser("demo", help="run the samples on it, show the results, and end")
    shown.add_argument("--keep", action="store_true", help="then show the plugin's page of it, until Ctrl-C")
    commands.add_parser("demo-tenants", help="show what several teams on few GPUs get, and end")
    commands.add_parser("up", help="start it and leave it running until Ctrl-C")
    commands.add_parser("upgrade", help="replace the programs of a running one by those of this checkout")
    broken = commands.add_parser("break", help="break a part of a running one, so that you can find and repair it")
    mended = commands.add_parser("mend", help="mend what was broken")
    for command in ("up", "upgrade", "break", "mend"):
        commands.choices[command].add_argument(
            "--directory", default=".playground", help="folder for kubeconfig and logs"
        )
    broken.add_argument("what", nargs="?", default="", help=", ".join(FAULTS))
    mended.add_argument("what", nargs="?", default="", help="everything without it")
    return top


def _up(directory: Path) -> int:
    signals = Ending()
    signal.signal(control.SIGNAL, lambda *_: signals.woken.set())
    try:
        with alone(directory), _cluster(directory, signals.check) as cluster:
            _introduce(cluster)
            actions = _actions(cluster)
            while True:
                signals.woken.wait()
                signals.woken.clear()
                signals.check()
                control.carry_out(directory, actions)
    except Ended:
        return 0


def _introduce(cluster: Cluster) -> None:
    print(f"\n{draw(cluster.kube)}\n\nThe cluster is up. In another terminal, in this folder:\n")
    print(f"    export KUBECONFIG={shlex.quote(str(cluster.kubeconfig))}")
    print(f"    export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH      # for kubectl gpufraction")
    print("    kubectl apply -f samples/4paradigm-vgpu.yaml")
    print("    kubectl get pods -o wide\n")
    if shutil.which("kubectl") is None:
        print(
            "There is no kubectl on PATH. docs/tutorial.md explains how to get one; kubectl-gpufraction works "
            "without it."
        )
    print("docs/tutorial.md shows what to do with it, and docs/fire-drill.md how to handle its failures.")
    print(f"Logs are in {cluster.directory}. Ctrl-C ends it.", flush=True)


def _actions(cluster: Cluster) -> Mapping[str, Action]:
    drill = Drill(cluster)

    def upgrade(_: str, report: Report) -> int:
        if drill.broken:
            report(f"The upgrade failed: {', '.join(drill.broken)} is broken; first: make playground-mend")
            return 1
        cluster.upgrade(report)
        report("The upgrade is done.")
        return 0

    return {
        name: _reported(action)
        for name, action in (("upgrade", upgrade), ("break", drill.break_), ("mend", drill.mend))
    }


def _reported(action: Action) -> Action:
    """Wrap the action: print its failure and return a status, so that a failure does not end the playground."""

    def carried_out(about: str, report: Report) -> int:
        try:
            return action(about, report)
        except (NotUp, NotInTime, ProgramFailed, KubeError, OSError) as error:
            report(f"That failed: {error}")
            return 1

    return carried_out


def _cluster(directory: Path, proceed: Callable[[], None]) -> Cluster:
    """
    The demo's nodes, with two replicas as in the manifests, and with preemption. A silent agent is detected sooner than
    in production, where an agent is also silent while the image of a new version is pulled.
    """
    return Cluster(
        nodes=[shapes.described_by_file(node, directory) for node in shapes.DEMO],
        directory=directory,
        replicas=2,
        components=(*DEFAULT_COMPONENTS, "allocator-eviction"),
        settings={
            "allocator": ("--preemption=true", "--agent-silence", "20s"),
            "nodeagent": ("--heartbeat", "10s"),
        },
        proceed=proceed,
    )


def _demo(keep: bool) -> int:
    ending.by_one_interrupt()
    return demo.run(keep=keep)


def _tenants() -> int:
    ending.by_one_interrupt()
    return tenants.run()


def _ask(given: argparse.Namespace) -> int:
    ending.by_one_interrupt()
    return control.ask(Path(given.directory).resolve(), given.command, getattr(given, "what", ""))


_COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "demo": lambda given: _demo(given.keep),
    "demo-tenants": lambda given: _tenants(),
    "up": lambda given: _up(Path(given.directory).resolve()),
    "upgrade": _ask,
    "break": _ask,
    "mend": _ask,
}
