"""
`python -m shadow record`: the recorder. `report`, `manifests`, `what-if`, `export`: commands on its recording.

Every setting of `record` is a flag, a variable of the environment (`GPUFRACTION_...`) and a key of the YAML file that
`--settings` names. The other commands only read the recording, and write only to their output.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, TextIO

from contract.encoding.reading import is_label, shown
from contract.options import NO_OPTIONS, PoolOptions, pool_options
from runtime import logs
from runtime.kubernetes.client import Kube, KubeError
from runtime.livefile import yaml_file
from runtime.process import Process
from runtime.settings import SettingsError, describe, effective, load, settings_file
from shadow import app
from shadow.recording.store import RecordingError, lines
from shadow.replay import changes
from shadow.replay.changes import BadChange, ChangeSet
from shadow.replay.cluster import replayed
from shadow.replay.demand import DemandWindow, demand_of, last_of
from shadow.report import manifests, text
from shadow.report.figures import reported
from shadow.settings import RecorderSettings

log = logging.getLogger("shadow")
_LAST = re.compile("([0-9]{1,4})(h|d)")
COMMANDS = ("report", "manifests", "what-if", "export")
_USAGE = """usage: python -m shadow record [--settings FILE] [--SETTING VALUE ...]
       python -m shadow report|manifests|what-if|export [--recording DIRECTORY|FILE] [flags]

record     record what happens to the cluster's GPUs and to the pods that request them, until stopped
report     what gpufraction would have done: cards, waiting times, overcommitted cards
manifests  each workload's pod as admission would store it, as a diff
what-if    replay the recording with a change, and without it
export     print the recording, so that the other commands can read it elsewhere with --recording FILE
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadChange(message)


def main(
    arguments: Sequence[str] | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    out: TextIO | None = None,
) -> int:
    """Run the command; the exit status: 0 success, 1 failure, 2 wrong arguments."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    target = out or sys.stdout
    if given and given[0] in COMMANDS:
        try:
            return _made(given, target)
        except BadChange as error:
            print(error, file=sys.stderr)
            return 2
        except RecordingError as error:
            print(error, file=sys.stderr)
            return 1
        except BrokenPipeError:
            return 0
    if not given or given[0] != "record" or "--help" in given:
        print(f"{_USAGE}\n{describe(RecorderSettings)}", file=target if "--help" in given else sys.stderr)
        return 0 if "--help" in given else 2
    try:
        file, flags = settings_file(given[1:])
        environment = os.environ if environment is None else environment
        settings = load(RecorderSettings, file=file, env=environment, argv=flags)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    return _record(settings)


def _record(settings: RecorderSettings) -> int:
    logs.setup(form=settings.log_format, level=settings.log_level, stream=sys.stderr)
    log.info("starting", extra=effective(settings))
    process = Process()
    process.handle_signals()
    process.watch_threads()
    try:
        kube = Kube.connect(kubeconfig=settings.kubeconfig or None, user_agent="gpufraction-shadow")
        running, server = app.start(settings, kube, process)
    except (KubeError, OSError) as error:
        log.critical("cannot start", extra={"reason": str(error)})
        return 1
    code = process.wait()
    if server is not None:
        server.close()
    with contextlib.suppress(OSError):
        running.stop()
    return code


def _made(words: Sequence[str], out: TextIO) -> int:
    given = parser().parse_args(words)
    if given.command == "export":
        for line in lines(given.recording):
            out.write(line)
        return 0
    length = _length(given.last) if given.last else 0.0
    window = demand_of(lines(given.recording))
    if not window.nodes and not window.pods:
        raise RecordingError(f"{given.recording}: nothing has been recorded yet")
    window = last_of(window, length) if length else window
    for text_ in {"report": _report, "manifests": _manifests, "what-if": _what_if}[given.command](given, window):
        out.write(text_)
    return 0


def _report(given: argparse.Namespace, window: DemandWindow) -> Iterator[str]:
    change = _changes(given)
    found = reported(window, changes.choices_of(change, window))
    yield _dumped(text.report_json(found)) if given.output == "json" else text.report(found)


def _manifests(given: argparse.Namespace, window: DemandWindow) -> Iterator[str]:
    if given.namespace and not is_label(given.namespace):
        raise BadChange(f"--namespace {given.namespace!r}: give the name of a namespace")
    change = _changes(given)
    translate = changes.translation(window, replica=change.replica, whole=change.whole)
    found = manifests.manifests(window, namespace=given.namespace, options=change.options, translate=translate)
    yield manifests.shown(found)


def _what_if(given: argparse.Namespace, window: DemandWindow) -> Iterator[str]:
    change = _changes(given)
    if not change.some:
        raise BadChange("give a change, such as --cards A100=10; --help lists them")
    without = ChangeSet(replica=0, whole=0, options=NO_OPTIONS)
    after = changes.enlarged(window, change.cards)
    choices = changes.choices_of(replace(change, cards=()), after)
    before = replayed(window, changes.choices_of(without, window))
    compared = before, replayed(after, choices)
    yield _dumped(text.compared_json(*compared)) if given.output == "json" else text.compared(*compared)


def _dumped(document: Any) -> str:
    return json.dumps(document, indent=2) + "\n"


def _changes(given: argparse.Namespace) -> ChangeSet:
    return ChangeSet(
        cards=tuple(map(changes.more_cards, getattr(given, "cards", ()))),
        mig=tuple(map(changes.mig_layout, getattr(given, "mig", ()))),
        allocator=tuple(getattr(given, "allocator", ())),
        quotas=dict(map(changes.quota, getattr(given, "quota", ()))),
        replica=changes.percent("--replica", given.replica) if given.replica else 0,
        whole=changes.percent("--whole", given.whole) if given.whole else 0,
        options=_options(given.options) if given.options else NO_OPTIONS,
    )


def _length(text: str) -> float:
    found = _LAST.fullmatch(text)
    if found is None or not int(found[1]):
        raise BadChange(f"--last {shown(text)}: give hours or days, such as 12h or 3d")
    return int(found[1]) * (3600.0 if found[2] == "h" else 86400.0)


def _options(path: Path) -> PoolOptions:
    if not path.is_file():
        raise BadChange(f"--options {path}: no such file")
    file = yaml_file(path, pool_options)
    found = file.value()
    if file.trouble or found is None:
        raise BadChange(f"--options {path}: {file.trouble}")
    return found


def parser() -> argparse.ArgumentParser:
    """The arguments of the commands that read a recording."""
    top = _Parser(prog="python -m shadow")
    commands = top.add_subparsers(dest="command", required=True, parser_class=_Parser)
    default = RecorderSettings().directory
    for name in COMMANDS:
        command = commands.add_parser(name)
        command.add_argument(
            "--recording", type=Path, default=default, metavar="PATH", help=f"its folder, or an export ({default})"
        )
        if name == "export":
            continue
        add = command.add_argument
        add("--last", default="", metavar="TIME", help="only the last part of the recording, such as 12h or 3d")
        add("--replica", default="", metavar="PERCENT", help="the request of pods with a replica of a time-sliced card")
        add("--whole", default="", metavar="PERCENT", help="the request of pods with whole cards")
        add("--options", type=Path, metavar="FILE", help="the options document, as options.yaml")
        if name == "manifests":
            add("--namespace", "-n", default="", help="only the workloads of this namespace")
            continue
        add("--output", "-o", choices=("text", "json"), default="text")
        add("--allocator", action="append", default=[], metavar="NAME=VALUE", help="a setting of the allocator")
        if name == "what-if":
            add("--cards", action="append", default=[], metavar="MODEL[:MEMORY]=NUMBER", help="further cards")
            add("--mig", action="append", default=[], metavar="MODEL=PROFILE,...", help="cards in MIG slices")
            add("--quota", action="append", default=[], metavar="NAMESPACE=MEMORY[,CORES]", help="a namespace's quota")
    return top


def run() -> NoReturn:
    """The program, which ends with its exit status."""
    sys.exit(main())


if __name__ == "__main__":
    run()
