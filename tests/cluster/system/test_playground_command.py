"""`make playground` as a newcomer uses it: start it, take the KUBECONFIG that it prints, kubectl, Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import re
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
    """One that runs, and is ended as its user ends it."""
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


@pytest.mark.kubectl
def test_a_kubectl_works_with_what_it_prints_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl 1.30 or newer on PATH")
    output = tmp_path / "said"
    with playground(tmp_path / "run", output):
        found = re.search(r"export KUBECONFIG=(\S+)", output.read_text())
        assert found is not None
        kubectl = ["kubectl", "--kubeconfig", found[1], "--cache-dir", str(tmp_path / "cache")]
        for command in (
            ["apply", "-f", str(scenarios.SAMPLES / "superedge-nano-gpu.yaml")],
            ["wait", "pod/gpu-pod", "--for=condition=Ready", "--timeout=30s"],
        ):
            subprocess.run([*kubectl, *command], check=True, capture_output=True, timeout=60)


def up(directory: Path) -> subprocess.CompletedProcess[str]:
    """One that is expected to say no."""
    command = [sys.executable, "-m", "playground", "up", "--directory", str(directory)]
    return subprocess.run(command, cwd=_TOP, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.long
def test_a_second_one_in_the_same_folder_is_refused_and_the_first_one_goes_on(tmp_path: Path) -> None:
    """C12: it would write its kubeconfig over the first one's."""
    run = tmp_path / "run"
    with playground(run, tmp_path / "said") as first:
        before = (run / "kubeconfig").read_text()
        second = up(run)
        assert (second.returncode, second.stdout) == (1, "")
        assert second.stderr == (
            f"a playground runs in {run} already (process {first.pid}). To use it:\n\n"
            f"    export KUBECONFIG={run}/kubeconfig\n\n"
            "Ctrl-C in its terminal ends it. For another one beside it: make playground DIRECTORY=.playground-2\n"
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
