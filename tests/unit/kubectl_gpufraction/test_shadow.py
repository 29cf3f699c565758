"""
`shadow` and `what-if` run the recorder's own command with `kubectl exec`, as the user, and pass on what it prints.

A script replaces kubectl: it notes its arguments and runs the recorder's command here, on a recording of a simulated
HAMi.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.unit.shadow.test_report import cluster as played_cluster

TOP = Path(__file__).resolve().parents[3]
KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "team-a"}}],
    "current-context": "c",
}


@dataclass(frozen=True)
class Typed:
    """What a command printed and returned, and the arguments with which kubectl was called."""

    status: int
    out: str
    err: str
    called: list[str]


@dataclass(frozen=True)
class Machine:
    """A user's machine."""

    directory: Path

    def types(self, *words: str, script: str = "") -> Typed:
        log, folder = self.directory / "called", self.directory / "bin"
        folder.mkdir(exist_ok=True)
        recording = self.directory / "recording.jsonl"
        recording.write_text("".join(played_cluster().lines()))
        run = f'exec {shlex.quote(sys.executable)} "${{@:2}}" --recording {shlex.quote(str(recording))}'
        stand_in = folder / "kubectl"
        stand_in.write_text(
            f'#!/bin/bash\nprintf "%s\\n" "$@" > {shlex.quote(str(log))}\n{script}\n'
            f'while [ "$1" != "--" ]; do shift; done; shift\n{run}\n'
        )
        stand_in.chmod(0o755)
        config = self.directory / "kubeconfig"
        config.write_text(yaml.safe_dump(KUBECONFIG))
        command = [sys.executable, "-m", "kubectl_gpufraction", *words, "--kubeconfig", str(config)]
        environment = {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(self.directory), "PYTHONPATH": str(TOP)}
        done = subprocess.run(
            command, cwd=TOP, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        called = log.read_text().splitlines() if log.exists() else []
        return Typed(done.returncode, done.stdout, done.stderr, called)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_report_is_made_in_the_recorders_pod_as_the_user(machine: Machine) -> None:
    typed = machine.types("shadow", "--context", "c", "--as", "ann", "--as-group", "admins")
    assert (typed.status, typed.err) == (0, "")
    assert "gpufraction would have saved" in typed.out
    config = str(machine.directory / "kubeconfig")
    connection = ["--kubeconfig", config, "--context", "c", "--as", "ann", "--as-group", "admins"]
    pod = ["-n", "gpufraction-shadow", "exec", "deployment/gpufraction-shadow", "--"]
    assert typed.called == [*connection, *pod, "python", "-m", "shadow", "report"]


def test_programs_get_the_report_as_a_document(machine: Machine) -> None:
    typed = machine.types("shadow", "-o", "json")
    assert json.loads(typed.out)["overcommitted"][0]["uuid"] == "GPU-n-0"
    assert machine.types("shadow", "-o", "jsonpath={.saved.most}").out == "1"


def test_manifests_of_one_team_go_into_a_file(machine: Machine) -> None:
    file = machine.directory / "team-a.diff"
    typed = machine.types("shadow", "manifests", "-n", "team-a", "--file", str(file))
    assert (typed.status, typed.out) == (0, f"written to {file}\n")
    assert "gpufraction.io/gpu-memory: 10000Mi" in file.read_text()
    assert "team-b" not in file.read_text()


def test_what_if_passes_every_change_on(machine: Machine) -> None:
    typed = machine.types("what-if", "--cards", "A100=4", "--quota", "team-a=80Gi", "--allocator", "queue.order=fair")
    assert typed.status == 0
    assert typed.called[-4:] == ["what-if", "--cards=A100=4", "--quota=team-a=80Gi", "--allocator=queue.order=fair"]
    assert typed.out.splitlines()[0].split() == ["without", "the", "change", "with", "it"]


@pytest.mark.parametrize(
    ("words", "script", "said"),
    [
        (("what-if",), "", "give a change"),
        (("what-if", "--cards", "A100"), "", "--cards 'A100': give a model"),
        (("shadow", "export", "--whole", "5"), "", "it prints the unchanged recording"),
        (
            ("shadow",),
            "echo 'Error from server (NotFound): deployments.apps \"gpufraction-shadow\" not found' >&2; exit 1",
            "kubectl apply -k manifests/shadow installs it",
        ),
        (
            ("shadow",),
            "echo 'Error from server (Forbidden): pods is forbidden: cannot create resource pods/exec' >&2; exit 1",
            "cannot create resource pods/exec",
        ),
        (("shadow", "-o", "json"), "echo no json; exit 0", "is not JSON"),
    ],
)
def test_what_fails_is_said_with_what_helps(words: tuple[str, ...], script: str, said: str, machine: Machine) -> None:
    typed = machine.types(*words, script=script)
    assert typed.status == 1
    assert said in typed.err


def test_no_control_character_of_the_recorder_reaches_the_terminal(machine: Machine) -> None:
    typed = machine.types("shadow", script=r"printf 'a\033[2Jb\n'; exit 0")
    assert (typed.status, "\x1b" in typed.out) == (0, False)
