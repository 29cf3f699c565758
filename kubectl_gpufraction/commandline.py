"""
The command line: the flags, each command's help with an example, and what a mistyped word may have meant.

A command says which of the common flags it has (`Command.flags`), and its help lists those alone. As in kubectl,
commands that show the whole cluster accept `-n` and `-A` without effect.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from kubectl_gpufraction import connection
from kubectl_gpufraction.output.forms import FORMS
from kubectl_gpufraction.output.jsonpath import PREFIX, BadTemplate, compiled
from kubectl_gpufraction.output.wording import suggestion
from kubectl_gpufraction.session import Command

PROGRAM = "kubectl gpufraction"
HELP = "help"
"""The word that stands for `--help`: `help COMMAND`."""
_EVERYWHERE = frozenset(("namespace", "all_namespaces"))
"""Taken by commands that do not list them."""


class UsageError(Exception):
    """Wrong arguments. The message says what would be right."""


def _form(text: str) -> str:
    if text.startswith(PREFIX):
        try:
            compiled(text.removeprefix(PREFIX))
        except BadTemplate as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    elif text not in FORMS:
        raise argparse.ArgumentTypeError(_not_one_of("form", text, [*FORMS, f"{PREFIX}TEMPLATE"]))
    return text


def _duration(text: str) -> float:
    try:
        return connection.seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


_SHOWING: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "namespace": (("-n", "--namespace"), {"metavar": "NAMESPACE", "help": "namespace; default: the context's"}),
    "all_namespaces": (("-A", "--all-namespaces"), {"action": "store_true", "help": "all namespaces"}),
    "selector": (
        ("-l", "--selector"),
        {"metavar": "LABELS", "help": "only objects with these labels, such as app=web,tier!=test"},
    ),
    "output": (
        ("-o", "--output"),
        {"type": _form, "metavar": "FORM", "help": f"output format: {', '.join(FORMS)} or {PREFIX}TEMPLATE"},
    ),
    "watch": (("-w", "--watch"), {"action": "store_true", "help": "print again when the output changes"}),
    "no_headers": (
        ("--no-headers",),
        {"action": "store_true", "help": "the table's rows, without headings and totals"},
    ),
}
_CONNECTING: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "kubeconfig": (
        ("--kubeconfig",),
        {"metavar": "FILE", "help": "kubeconfig file; default: $KUBECONFIG or ~/.kube/config"},
    ),
    "context": (("--context",), {"metavar": "CONTEXT", "help": "context in it"}),
    "as_user": (("--as",), {"metavar": "USER", "help": "act as this user, if you may impersonate them"}),
    "as_group": (
        ("--as-group",),
        {"metavar": "GROUP", "action": "append", "help": "act as a member of this group; may be repeated"},
    ),
    "request_timeout": (
        ("--request-timeout",),
        {"type": _duration, "metavar": "DURATION", "help": "longest wait for one answer, such as 30s or 2m; 0: none"},
    ),
}
UNSET: dict[str, Any] = {
    "kubeconfig": None,
    "context": None,
    "as_user": None,
    "as_group": (),
    "request_timeout": None,
    "namespace": None,
    "all_namespaces": False,
    "selector": None,
    "output": "table",
    "watch": False,
    "no_headers": False,
}
"""The common flags where they are not given."""


class Parser(argparse.ArgumentParser):
    """An argument parser that raises `UsageError`, and names the word that a mistyped one resembles."""

    def error(self, message: str) -> NoReturn:
        """Raises `UsageError`."""
        raise UsageError(f"{message}\n{PROGRAM} {self.hint} shows the possible values")

    hint = HELP
    """The words that show the parser's help."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(each) for each in action.choices]
            if isinstance(action, argparse._SubParsersAction):
                self.error(f"unknown command {str(value)!r}{suggestion(str(value), known)}")
            self.error(_not_one_of(action.dest, str(value), known))


def _not_one_of(what: str, word: str, known: Sequence[str]) -> str:
    """The message about an unknown word, with the one that it resembles, and all known ones."""
    return f"unknown {what} {word!r}{suggestion(word, known)}\nGive one of {', '.join(known)}"


def parser(commands: Iterable[Command], version: str) -> Parser:
    """The arguments of all commands. `version`: of the plugin."""
    top = Parser(
        prog=PROGRAM, description="GPU shares: which pods have them, and which wait.", usage=f"{PROGRAM} COMMAND"
    )
    top.set_defaults(**UNSET)
    top.add_argument("--version", action="version", version=f"%(prog)s {version}")
    for name in (*_SHOWING, *_CONNECTING):
        _add(top, name, shown=False)
    top.epilog = f"{PROGRAM} {HELP} COMMAND shows the flags of a command, with an example."
    made = top.add_subparsers(required=True, title="commands", metavar="COMMAND", parser_class=Parser)
    for command in commands:
        _describe(made.add_parser(command.name, help=command.help, add_help=False), command)
    return top


def _describe(to: Parser, command: Command) -> None:
    """A command's arguments and flags, and its help."""
    to.set_defaults(command=command)
    to.hint = f"{HELP} {command.name}"
    to.formatter_class = argparse.RawDescriptionHelpFormatter
    to._positionals.title, to._optionals.title = "arguments", "flags"
    command.arguments(to)
    usage = _usage(action for action in to._actions)
    for name in _SHOWING:
        _add(to, name, shown=name in command.flags)
    to.add_argument("-h", "--help", action="help", help="show this help and exit")
    connecting = to.add_argument_group("flags of the connection to the cluster")
    for name in _CONNECTING:
        _add(connecting, name, shown=True)
    to.usage = " ".join([PROGRAM, command.name, *usage, "[flags]"])
    example = "\n".join(f"  {line}" for line in command.example.splitlines())
    to.description = f"{command.help[:1].upper()}{command.help[1:]}.\n\nexample:\n{example}"


def _usage(actions: Iterable[argparse.Action]) -> Iterable[str]:
    """The words that must or may follow a command, besides its flags."""
    forms = {"?": "[{}]", "*": "[{}...]", "+": "{}..."}
    for action in actions:
        word = str(action.metavar or action.dest.upper())
        if not action.option_strings:
            yield forms.get(str(action.nargs), "{}").format(
                word if action.choices is None else "|".join(action.choices)
            )
        elif action.required:
            yield f"{action.option_strings[0]} {word}"


def _add(to: argparse._ActionsContainer, name: str, *, shown: bool) -> None:
    """A common flag. It may stand before the command or after it; the one after it must not reset the one before it."""
    flags, options = {**_SHOWING, **_CONNECTING}[name]
    text = options["help"] if shown else argparse.SUPPRESS
    to.add_argument(*flags, **{**options, "help": text, "dest": name, "default": argparse.SUPPRESS})


def actions(command: Command) -> list[argparse.Action]:
    """The arguments and the flags that a command has, for the completion of shells."""
    made = Parser(add_help=False)
    _describe(made, command)
    return [each for each in made._actions if each.help != argparse.SUPPRESS]


def help_actions(commands: Iterable[Command]) -> list[argparse.Action]:
    """The one argument of `help`."""
    made = Parser(add_help=False)
    return [made.add_argument("command", choices=[command.name for command in commands])]


def common() -> Parser:
    """The common flags alone, which may stand before a command."""
    made = Parser(add_help=False)
    for name in (*_SHOWING, *_CONNECTING):
        _add(made, name, shown=True)
    return made


def parsed(top: Parser, words: Sequence[str]) -> argparse.Namespace:
    """The arguments. Raises `UsageError`, and SystemExit where the help was printed."""
    words = list(words)
    if words[:1] == [HELP]:
        words = [*words[1:2], "--help"]
    given, rest = top.parse_known_args(words)
    command: Command = given.command
    if rest:
        raise _unknown(command, rest)
    if given.as_group and not given.as_user:
        raise UsageError("--as-group needs --as: a group has members, and requests come from one of them")
    for name in sorted(_SHOWING.keys() - command.flags - _EVERYWHERE):
        if getattr(given, name) != UNSET[name]:
            raise UsageError(_without(command, name))
    return given


def _without(command: Command, name: str) -> str:
    flag = _SHOWING[name][0][-1]
    if name == "watch" and command.once:
        return f"{command.name} runs once; omit {flag}"
    return f"{command.name} has no {flag}; {PROGRAM} {HELP} {command.name} shows its flags"


def _unknown(command: Command, rest: Sequence[str]) -> UsageError:
    """The first unknown word, and what it may have meant."""
    word = next((each for each in rest if each.startswith("-")), rest[0])
    flag = word.partition("=")[0]
    known = [each for action in actions(command) for each in action.option_strings if each.startswith("--")]
    if flag.startswith("-"):
        found = suggestion(flag, known)
        return UsageError(f"{command.name} has no {flag}{found}\n{PROGRAM} {HELP} {command.name} shows its flags")
    return UsageError(f"{command.name}: {word!r} is one word too many\n{PROGRAM} {HELP} {command.name} shows its form")
