"""`make playground` as a newcomer uses it: start it, use the KUBECONFIG that it prints and kubectl, press Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import pty
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from playground import scenarios
from playground.alone import Unusable, alone
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube

pytestmark = pytest.mark.system
_TOP = scenarios.SAMPLES.parent


@contextlib.contextmanager
def playground(directory: Path, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A running playground, which ends as its user ends it."""
    with output.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "playground", "up", "--directory", str(directory)],
            cwd=_TOP,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for(lambda: "Ctrl-C" in output.read_text() or process.poll() is not None, output.read_text, timeout=60)
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a running playground. Its name has a space, as users' folders can have."""
    top = tmp_path_factory.mktemp("playground")
    with playground(top / "my run", top / "said"):
        yield top / "my run"


def typed(line: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """What a user types in another terminal."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(directory.parent), "NO_PROXY": "*"}
    return subprocess.run(
        ["bash", "-c", line], cwd=_TOP, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def command(directory: Path, *arguments: str) -> tuple[int, str]:
    """`python -m playground` with these arguments. Returns the exit status and its whole output."""
    line = [sys.executable, "-m", "playground", *arguments, "--directory", str(directory)]
    done = subprocess.run(line, cwd=_TOP, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


def processes(directory: Path) -> list[str]:
    """The command lines of this machine's processes that contain the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in found if str(directory) in line]


@pytest.mark.kubectl
def test_a_kubectl_works_with_the_lines_that_it_prints(running: Path) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl 1.30 or newer on PATH")
    said = (running.parent / "said").read_text()
    lines = [line.strip() for line in said.splitlines() if line.startswith("    ")]
    done = typed("\n".join(["set -e", *lines, "kubectl delete -f samples/4paradigm-vgpu.yaml"]), running)
    assert (done.returncode, len(lines)) == (0, 4), done.stderr
    assert done.stdout.startswith("deployment.apps/vgpu-test created\n"), done.stdout


def test_a_part_of_it_is_broken_and_mended(running: Path) -> None:
    """`tests/cluster/acceptance/test_tutorial.py` breaks every part."""
    broken = (
        "Broken: card. What would you check first? docs/fire-drill.md leads to the cure.\n"
        "To undo it: make playground-mend WHAT=card\n"
    )
    assert command(running, "break", "card") == (0, broken)
    assert command(running, "break", "card") == (
        1,
        "card is broken already; to mend it: make playground-mend WHAT=card\n",
    )
    refused = "The upgrade failed: card is broken; first: make playground-mend\n"
    assert command(running, "upgrade") == (1, refused)
    assert command(running, "mend") == (0, "Repaired: card.\n")
    assert command(running, "mend") == (0, "nothing is broken\n")
    assert command(running, "mend", "card") == (0, "card is not broken\n")


def test_a_drill_without_a_part_names_the_parts(running: Path) -> None:
    parts = "it is one of card, agent, leader, webhook, certificate, node"
    assert command(running, "break") == (2, f"WHAT is missing; {parts}: make playground-break WHAT=card\n")
    assert command(running, "break", "brain") == (2, f"WHAT is 'brain'; {parts}: make playground-break WHAT=card\n")
    assert command(running, "mend", "brain") == (2, f"WHAT is 'brain'; {parts}\n")


@pytest.mark.long
def test_a_terminal_that_closes_ends_it_and_what_it_started(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process, terminal = pty.fork()
    if process == 0:  # The first process of the terminal waits, as make does.
        line = f"trap '' HUP; {sys.executable} -m playground up --directory {run}; true"
        os.execvp("bash", ["bash", "-c", line])
    said = b""
    while b"Ctrl-C" not in said:
        said += os.read(terminal, 4096)
    assert len(processes(run)) > 7
    os.close(terminal)
    os.waitpid(process, 0)
    wait_for(lambda: processes(run) == [], lambda: "\n".join(processes(run)), timeout=20)


STARTING = {"as it imports": "", "as it installs": "kubeconfig"}
STARTED = pytest.param("webhook.log", id="as programs start", marks=pytest.mark.long)


@pytest.mark.parametrize("file", [*(pytest.param(file, id=name) for name, file in STARTING.items()), STARTED])
def test_ctrl_c_twice_while_it_starts_ends_it_without_a_word(file: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    line = [sys.executable, "-X", "importtime", "-m", "playground", "up", "--directory", str(run)]
    with (tmp_path / "said").open("wb") as out:
        process = subprocess.Popen(line, cwd=_TOP, stdout=out, stderr=subprocess.STDOUT)
    imported = "playground.operating.ending\n"
    wait_for(
        lambda: (run / file).exists() if file else imported in (tmp_path / "said").read_text(),
        lambda: (tmp_path / "said").read_text(),
        every=0.01,
    )
    for _ in range(2):
        process.send_signal(signal.SIGINT)
    assert process.wait(30) in (0, -signal.SIGINT)
    said = (tmp_path / "said").read_text().splitlines()
    assert [each for each in said if not each.startswith("import time:")] == []
    assert processes(run) == []


def up(directory: Path) -> subprocess.CompletedProcess[str]:
    """A playground that is expected to refuse."""
    command = [sys.executable, "-m", "playground", "up", "--directory", str(directory)]
    return subprocess.run(command, cwd=_TOP, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.long
def test_a_second_one_in_the_same_folder_is_refused_and_the_first_one_goes_on(tmp_path: Path) -> None:
    """C12: it would overwrite the kubeconfig of the first one."""
    run = tmp_path / "run"
    with playground(run, tmp_path / "said") as first:
        before = (run / "kubeconfig").read_text()
        second = up(run)
        assert (second.returncode, second.stdout) == (1, "")
        assert second.stderr == (
            f"a playground already runs in {run} (process {first.pid}). To use it:\n\n"
            f"    export KUBECONFIG={run}/kubeconfig\n\n"
            "Ctrl-C in its terminal ends it. To start another one alongside it: make playground "
            "DIRECTORY=.playground-2\n"
        )
        assert (run / "kubeconfig").read_text() == before
        assert Kube.connect(kubeconfig=str(run / "kubeconfig"), user_agent="test").list(paths.pods()).items == []


def test_what_one_left_that_was_killed_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text(f"{2**22}\n")
    with alone(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
        with pytest.raises(Unusable, match=f"process {os.getpid()}"), alone(tmp_path):
            raise AssertionError("two have it")
    with alone(tmp_path):
        pass


def test_an_upgrade_of_a_playground_that_does_not_run_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "playground", "upgrade", "--directory", str(tmp_path)]
    refused = subprocess.run(command, cwd=_TOP, capture_output=True, text=True, timeout=60, check=False)
    assert (refused.returncode, refused.stderr) == (
        1,
        f"no playground runs in {tmp_path}; start one in another terminal: make playground\n",
    )


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = up(tmp_path / "file")
    assert (refused.returncode, refused.stderr) == (
        1,
        f"{tmp_path / 'file'} cannot be written to: File exists; give another by --directory\n",
    )
