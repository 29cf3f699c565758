"""
The command: reads its arguments and prints its output.

Exit status: see `kubectl_gpufraction.session.Exit`.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TextIO

from kubectl_gpufraction import commandline, connection
from kubectl_gpufraction.check import command as check
from kubectl_gpufraction.commandline import Parser, UsageError
from kubectl_gpufraction.commands import (
    advise,
    completion,
    cordon,
    dryrun,
    explain,
    fleet,
    inspect,
    kueueconfig,
    nodes,
    pods,
    pools,
    version,
    waiting,
)
from kubectl_gpufraction.conformance import command as conformance
from kubectl_gpufraction.idle import command as idle
from kubectl_gpufraction.output.forms import Form
from kubectl_gpufraction.output.tables import joined
from kubectl_gpufraction.output.terminal import CLEAR, Terminal
from kubectl_gpufraction.session import Command, Exit, Failed, Session
from kubectl_gpufraction.shadow import command as shadow
from kubectl_gpufraction.ui import command as ui
from runtime import logs
from runtime.kubernetes.client import Kube, KubeConfigError, KubeError, KubeForbidden, KubeUnavailable
from runtime.kubernetes.warnings import WarningTransport

_COMPLETE = "__complete"
"""The word that the scripts of `completion` put before the present line."""
_EVERY = 2.0
"""Seconds between two looks with --watch; each costs the API server a list of pods."""

COMMANDS: tuple[Command, ...] = (
    nodes.COMMAND,
    pods.COMMAND,
    waiting.COMMAND,
    idle.COMMAND,
    pools.COMMAND,
    explain.COMMAND,
    advise.COMMAND,
    dryrun.COMMAND,
    cordon.CORDON,
    cordon.UNCORDON,
    check.COMMAND,
    conformance.COMMAND,
    kueueconfig.COMMAND,
    version.COMMAND,
    fleet.COMMAND,
    inspect.COMMAND,
    ui.COMMAND,
    shadow.SHADOW,
    shadow.WHAT_IF,
    completion.COMMAND,
)


def parser() -> Parser:
    """The arguments."""
    return commandline.parser(COMMANDS, version.own())


def _candidates(words: Sequence[str]) -> list[str]:
    """The candidates for the last of these words, for the completion of shells."""
    common = commandline.common()
    commands = {command.name: commandline.actions(command) for command in COMMANDS}
    commands[commandline.HELP] = commandline.help_actions(COMMANDS)

    def objects(metavar: str) -> Iterable[str]:
        try:
            given, _ = common.parse_known_args(list(words), argparse.Namespace(**commandline.UNSET))
            return completion.objects_of(_session(given), words)(metavar)
        except (KubeError, UsageError, SystemExit):
            return ()

    return completion.candidates(commands, common._actions, words, objects)


def main(
    arguments: Sequence[str] | None = None,
    *,
    out: TextIO | None = None,
    err: TextIO | None = None,
    environment: Mapping[str, str] | None = None,
    stop: threading.Event | None = None,
) -> int:
    """Run the command; the exit status. `stop` ends a watch."""
    screen, errors = Terminal(out or sys.stdout), Terminal(err or sys.stderr)
    environment = os.environ if environment is None else environment
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == [_COMPLETE]:
        screen.write(joined(_candidates(words[1:])))
        return Exit.OK
    try:
        given = commandline.parsed(parser(), words)
    except SystemExit as end:
        return int(end.code or 0)
    except UsageError as error:
        errors.say(error)
        return Exit.USAGE
    if given.watch and getattr(given, "evict", False):
        errors.say("--evict runs once; omit --watch")
        return Exit.USAGE
    colour = screen.is_screen and "NO_COLOR" not in environment
    form = Form(given.output, colour, not given.no_headers, width=screen.width)
    try:
        return _carried_out(given, screen, errors, stop or threading.Event(), form)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        return Exit.OK
    except KubeError as error:
        _report(error, given, screen, errors, form)
        return Exit.FAILED
    except Failed as error:
        if error.shown is not None:
            screen.write(error.shown.text(form))
        errors.say(error)
        return error.status
    except Exception:
        # Python would print text of the object that caused this unchanged.
        errors.say(f"a bug in kubectl gpufraction, please report it:\n{traceback.format_exc()}")
        return Exit.FAILED


def _carried_out(given: argparse.Namespace, out: Terminal, errors: Terminal, stop: threading.Event, form: Form) -> int:
    """Carry the command out; the exit status."""
    if given.command is completion.COMMAND:  # needs no cluster
        out.write(completion.script(given.shell).text(form))
        return Exit.OK
    if given.command is ui.COMMAND:
        return ui.serve(_session(given), out, stop)
    session = fleet.session(given) if given.command is fleet.COMMAND else _session(given)
    return _print(replace(session, say=errors.say, stop=stop), out, stop, form)


def _report(error: KubeError, given: argparse.Namespace, out: Terminal, err: Terminal, form: Form) -> None:
    """Print why the API server gave no answer."""
    if given.command is inspect.COMMAND:
        out.say(f"Failed due to {error}")
    elif given.command is version.COMMAND:
        out.write(version.versions().text(form))
        unreached = isinstance(error, KubeUnavailable | KubeConfigError) and error.status == 0
        what = "the cluster cannot be reached" if unreached else "the cluster does not report its version"
        err.say(f"{what}: {error}")
    else:
        err.say(error)
    if isinstance(error, KubeForbidden) and (given.command in _OF_THE_CLUSTER or given.all_namespaces):
        err.say("waiting, pods and explain need only the right to list the pods of your namespace")


_OF_THE_CLUSTER = (nodes.COMMAND, advise.COMMAND)
"""Commands that need to see the whole cluster."""


def _print(session: Session, out: Terminal, stop: threading.Event, form: Form) -> int:
    """
    Print the output; the exit status. With --watch again whenever it changes, until stopped: in place of the text
    before it on a terminal, else below it.
    """
    given, before = session.given, ""
    command: Command = given.command
    while True:
        answer = command.run(session)
        text = answer.text(replace(form, now=session.now()))
        if text != before:
            out.write(_between(before, session.for_people, redraws=given.watch and out.is_screen) + text)
            before = text
        if not given.watch or stop.wait(_EVERY):
            return int(answer.status)


def _between(before: str, for_people: bool, *, redraws: bool) -> str:
    """The prefix of a text: nothing, an empty line, or a sequence that clears the screen."""
    if redraws:
        return CLEAR
    return "\n" if before and for_people else ""


def _session(given: argparse.Namespace) -> Session:
    transport = connection.connect(
        given.kubeconfig,
        given.context,
        user=given.as_user or "",
        groups=given.as_group,
        timeout=given.request_timeout,
    )
    listening = WarningTransport(transport)
    return Session(given, Kube(listening), listening, given.namespace or _namespace(given.kubeconfig, given.context))


def _namespace(kubeconfig: str | None, context: str | None) -> str:
    """The context's namespace, as kubectl takes it."""
    from kubernetes import config

    try:
        listed: Any = config.list_kube_config_contexts
        contexts, active = listed(config_file=kubeconfig)
    except config.ConfigException as error:
        raise KubeConfigError(f"kubeconfig: {error}") from error
    chosen = next((each for each in contexts if each["name"] == context), active)
    return str((chosen.get("context") or {}).get("namespace") or "default")


def run() -> None:
    """The entry of the installed command and of the single-file form: the process ends with the command's status."""
    logs.setup(form="text", level="warning", stream=sys.stderr)  # on one line, even if an error quotes several
    sys.exit(main())


if __name__ == "__main__":
    run()
