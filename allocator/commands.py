"""
The other commands of `python -m allocator`: show the queue and the snapshot of the running allocator, and repeat the
decisions of a snapshot.

For the person on call. Prints text, never changes anything.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from allocator.scheduler.view import SchedulerView
from allocator.server import debug, http
from allocator.server.debug import Outcome
from contract.encoding.reading import Malformed
from runtime.unixhttp import SocketError, UnixClient

COMMANDS = ("replay", "snapshot", "waiting")
_SOCKET = Path("/run/gpufraction/socket/allocator.sock")
_TIMEOUT = 10.0
_LARGEST = 256 << 20
"""Bytes of a snapshot that are accepted: 5,000 nodes of 8 GPUs are about 10 MiB."""


def run(arguments: Sequence[str], *, out: TextIO | None = None) -> int:
    """Do one of `COMMANDS`; the exit status."""
    target = out or sys.stdout
    given = _parser().parse_args(arguments)
    try:
        if given.command == "replay":
            return _replay(Path(given.file), given.pod, target)
        path = http.SNAPSHOT_PATH if given.command == "snapshot" else http.WAITING_PATH
        answer = UnixClient(given.socket, max_answer=_LARGEST).get(path, timeout=_TIMEOUT)
        if answer.status != 200:
            print(f"{given.socket} answered {answer.status}", file=sys.stderr)
            return 1
        print(answer.body.decode() if given.command == "snapshot" else _line(answer.json()), file=target)
    except (SocketError, OSError, Malformed) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m allocator")
    commands = parser.add_subparsers(dest="command", required=True)
    again = commands.add_parser("replay", help="repeat the decisions of a snapshot and explain them")
    again.add_argument("file", metavar="FILE", help="output of `snapshot`")
    again.add_argument("--pod", metavar="NAMESPACE/NAME", help="explain this pod node by node")
    for name, text in (("snapshot", "print the state that the next decision will use"), ("waiting", "print the queue")):
        command = commands.add_parser(name, help=text)
        command.add_argument("--socket", type=Path, default=_SOCKET, help=f"the allocator's socket ({_SOCKET})")
    return parser


def _line(entries: list[dict[str, Any]]) -> str:
    return "\n".join(f"{e['position']:>4}  {e['pod']}  {e['reason']}" for e in entries) or "no pod waits"


def _replay(file: Path, key: str | None, out: TextIO) -> int:
    view = _read(file)
    outcomes = list(debug.one_cycle(view))
    if key is None:
        for outcome in outcomes:
            print(f"{outcome.position:>4}  {outcome.pod.key}  {outcome.reason}", file=out)
        if not outcomes:
            print("no pod waits", file=out)
        return 0
    found = [outcome for outcome in outcomes if outcome.pod.key == key]
    if not found:
        known = ", ".join(outcome.pod.key for outcome in outcomes[:5]) or "none"
        print(f"{key} is not in the queue; queued: {known}", file=sys.stderr)
        return 1
    _explain(view, found[0], out)
    return 0


def _explain(view: SchedulerView, outcome: Outcome, out: TextIO) -> None:
    before = outcome.position - 1
    print(f"{outcome.pod.key}  position {outcome.position}  {outcome.reason}", file=out)
    if before:
        print(f"nodes as they are before the {before} pod{'s' if before > 1 else ''} ahead of it:", file=out)
    for node, text in debug.explain(view, outcome.pod.ask, outcome.pod.rules):
        print(f"  {node}: {text}", file=out)


def _read(file: Path) -> SchedulerView:
    try:
        return debug.from_json(json.loads(file.read_text()))
    except ValueError as error:
        raise error if isinstance(error, Malformed) else Malformed(f"{file} is not JSON") from error
