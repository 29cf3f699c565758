"""The command line: help with an example, flags, mistyped words, the user it acts as, and its timeout."""

from __future__ import annotations

import argparse
import io
import shlex
import warnings
from pathlib import Path
from typing import Any

import pytest
from urllib3.exceptions import InsecureRequestWarning

from kubectl_gpufraction import commandline, connection
from kubectl_gpufraction.__main__ import COMMANDS, main, parser
from kubectl_gpufraction.connection import UserTransport
from kubectl_gpufraction.session import Command
from runtime.kubernetes.transport import HttpRequest
from tests.unit.kubectl_gpufraction.test_manners import called
from tests.wires import Answer

NAMES = [command.name for command in COMMANDS]


def help_of(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["help", name]) == 0
    shown = capsys.readouterr().out
    assert main([name, "--help"]) == 0
    assert capsys.readouterr().out == shown, "both ways show the same"
    return shown


@pytest.mark.parametrize("command", COMMANDS, ids=NAMES)
def test_every_help_has_an_example_that_can_be_typed(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    shown = help_of(command.name, capsys)
    typed = [line for line in command.example.splitlines() if not line.startswith("#")]
    assert typed
    for line in typed:
        assert f"\n  {line}\n" in shown
        ours = next(part for part in line.replace("<(", "|").replace(")", "").split("|") if "gpufraction" in part)
        words = shlex.split(ours.partition(" > ")[0])[2:]
        assert commandline.parsed(parser(), words).command.name == command.name


SHOWING = {"-n": "namespace", "-A": "all_namespaces", "-l": "selector", "-o": "output", "-w": "watch"}


@pytest.mark.parametrize("command", COMMANDS, ids=NAMES)
def test_a_help_lists_the_flags_that_the_command_has(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    shown = help_of(command.name, capsys)
    assert {flag for flag in SHOWING if f"\n  {flag}" in shown} == {
        flag for flag, name in SHOWING.items() if name in command.flags
    }
    assert all(flag in shown for flag in ("--kubeconfig", "--context", "--as ", "--request-timeout"))


def test_help_alone_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help"]) == 0
    shown = capsys.readouterr().out
    assert [name for name in NAMES if f"\n    {name}" not in shown] == []


WRONG: dict[tuple[str, ...], str] = {
    (
        "nodess",
    ): "unknown command 'nodess'; did you mean 'nodes'?\nkubectl gpufraction help shows the possible values\n",
    ("sing",): "unknown command 'sing'\nkubectl gpufraction help shows the possible values\n",
    ("help", "wait"): "unknown command 'wait'; did you mean 'waiting'?\n"
    "kubectl gpufraction help shows the possible values\n",
    ("pods", "--selctor", "x"): "pods has no --selctor; did you mean '--selector'?\n"
    "kubectl gpufraction help pods shows its flags\n",
    ("pools", "a"): "pools: 'a' is one word too many\nkubectl gpufraction help pools shows its form\n",
    ("pods", "-o", "jsno"): "argument -o/--output: unknown form 'jsno'; did you mean 'json'?\n"
    "Give one of table, wide, json, yaml, name, jsonpath=TEMPLATE\n"
    "kubectl gpufraction help pods shows the possible values\n",
    ("pods", "-o", "jsonpath={"): "argument -o/--output: '{' is not a JSONPath; give paths in braces, such as "
    "{.items[*].name}\nkubectl gpufraction help pods shows the possible values\n",
    ("completion", "bsh"): "unknown shell 'bsh'; did you mean 'bash'?\nGive one of bash, zsh, fish, kubectl\n"
    "kubectl gpufraction help completion shows the possible values\n",
    ("nodes", "--request-timeout", "5x"): "argument --request-timeout: '5x' is not a duration; give one such as 30s or "
    "2m\nkubectl gpufraction help nodes shows the possible values\n",
    ("nodes", "--as-group", "ops"): "--as-group needs --as: a group has members, and requests come from one of them\n",
    ("cordon", "n1", "0", "-w"): "cordon runs once; omit --watch\n",
    ("pools", "-l", "a=b"): "pools has no --selector; kubectl gpufraction help pools shows its flags\n",
    ("explain",): "the following arguments are required: POD|KIND/NAME\n"
    "kubectl gpufraction help explain shows the possible values\n",
}


@pytest.mark.parametrize(("words", "message"), WRONG.items(), ids=[" ".join(words) for words in WRONG])
def test_a_wrong_word_is_named_with_the_one_it_resembles(words: tuple[str, ...], message: str) -> None:
    err = io.StringIO()
    assert (main(list(words), err=err, environment={}), err.getvalue()) == (2, message)


def test_namespaces_change_nothing_where_the_cluster_is_shown(tmp_path: Path) -> None:
    assert called(tmp_path, "nodes", "-A", "-n", "team") == called(tmp_path, "nodes")


class Asked:
    """A transport that keeps the last request."""

    def __init__(self) -> None:
        self.request_of: HttpRequest | None = None

    def request(self, request: HttpRequest) -> Any:
        self.request_of = request
        return Answer(200, {})


def sent(**given: Any) -> HttpRequest:
    asked = Asked()
    UserTransport(asked, **given).request(HttpRequest("GET", "/version", {}, {"Accept": "json"}, None, 10.0))
    assert asked.request_of is not None
    return asked.request_of


def test_requests_are_sent_as_the_user_and_the_groups_that_were_named() -> None:
    headers = sent(user="mia", groups=("dev", "ops")).headers
    assert headers == {
        "Accept": "json",
        "Impersonate-User": "mia",
        "Impersonate-Group": "dev",
        "impersonate-Group": "ops",
    }


def test_a_request_waits_for_as_long_as_was_said() -> None:
    assert (sent(timeout=2.0).timeout, sent(user="mia").timeout) == (2.0, 10.0)


DURATIONS = {"30s": 30.0, "2m": 120.0, "1h": 3600.0, "500ms": 0.5, "7": 7.0, "0": 86_400.0, "0s": 86_400.0}


@pytest.mark.parametrize(("text", "want"), DURATIONS.items())
def test_durations_as_kubectl_takes_them(text: str, want: float) -> None:
    assert connection.seconds(text) == want


def test_a_kubeconfig_that_trusts_any_certificate_costs_no_warning(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        called(tmp_path, "pods")
        warnings.warn(
            "Unverified HTTPS request is being made to host 'x'. Adding", InsecureRequestWarning, stacklevel=1
        )
    assert [each for each in shown if each.category is InsecureRequestWarning] == []


def test_every_flag_of_a_command_is_one_of_the_common_ones() -> None:
    known = argparse.Namespace(**commandline.UNSET)
    assert {flag for command in COMMANDS for flag in command.flags if not hasattr(known, flag)} == set()
