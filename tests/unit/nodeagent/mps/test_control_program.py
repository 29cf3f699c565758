"""
Tests our assumptions about `nvidia-cuda-mps-control` with the program that simulates it and with NVIDIA's own.

NVIDIA's program needs no GPU for this: its daemon starts, listens and accepts commands without one. Only its servers do
not start. `MPS_CONTROL=/path/to/nvidia-cuda-mps-control` names one, and `MPS_CONTROL_DRIVER=555.58.02` its driver.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.mps import daemon as module
from nodeagent.mps.daemon import start_time
from nodeagent.mps.exchange import GpuReport, knows_multiuser, shortcomings
from tests.unit.nodeagent.mps.conftest import UUID, Node, await_end


@pytest.fixture(params=["the stand-in", "NVIDIA's"])
def played(request: pytest.FixtureRequest) -> Iterator[Node]:
    real = os.environ.get("MPS_CONTROL", "")
    if request.param == "NVIDIA's" and not (real and os.access(real, os.X_OK)):
        pytest.skip("needs MPS_CONTROL=/path/to/nvidia-cuda-mps-control")
    # NVIDIA's program binds its sockets by their full path, which may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="mps", dir="/tmp") as folder:
        node = Node(Path(folder))
        if request.param == "NVIDIA's":
            node.program = Path(real)
            node.cards.driver = os.environ.get("MPS_CONTROL_DRIVER", node.cards.driver)
            node.restart()
        yield node
        node.close()


def listing(node: Node) -> str:
    return (node.places.of(UUID) / "log" / "output").read_text()


def test_it_serves_with_the_flags_that_its_driver_knows(played: Node) -> None:
    assert played.serves() == GpuReport(
        "serving", True, True, why=shortcomings(played.cards.driver, multiuser=True), most_clients=48, starts=1
    )
    flags = Path(f"/proc/{played.pid()}/cmdline").read_bytes().split(b"\0")
    assert (b"-multiuser-server" in flags) is knows_multiuser(played.cards.driver)


def test_a_flag_that_it_does_not_know_keeps_it_from_starting(played: Node) -> None:
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(played.root)}
    done = subprocess.run([played.program, "-multiuser", "-f"], env=environment, capture_output=True, timeout=60)
    assert done.returncode == 1


def test_a_question_about_a_server_that_is_not_there_gives_no_process(played: Node) -> None:
    played.serves()
    daemon = played.supervisor._gpu(UUID).daemon
    assert daemon.pids("get_server_list") == ()
    assert daemon.ask("get_client_list 4711") == "Server 4711 not found\n"
    assert daemon.pids("get_client_list 4711") == ()
    assert daemon.ask("no_such_command") == 'Unknown command "no_such_command"\n'


def test_it_ends_when_it_is_not_wanted_any_more(played: Node) -> None:
    played.serves()
    pid = played.pid()
    played.wants()
    assert played.until(lambda report: report.phase == "off").starts == 1
    await_end(pid)
    assert not played.cards.mode
    played.wants(UUID)
    assert played.serves().starts == 2, "over what the first one left"


def test_it_ends_with_its_supervisor_without_being_killed(played: Node) -> None:
    played.serves()
    pid = played.pid()
    played.supervisor._clock = iter(range(10_000)).__next__
    played.supervisor.end(within=5_000.0)
    assert (start_time(pid), played.cards.mode) == ("", False)
    assert not (played.places.of(UUID) / "pipe" / "nvidia-cuda-mps-control.pid").exists(), "it went by itself"


def test_a_killed_one_is_followed_by_another(played: Node) -> None:
    played.serves()
    first = played.pid()
    os.kill(first, 9)
    await_end(first)
    played.until(lambda report: report.phase == "paused")
    played.now += 5.0
    assert (played.serves().starts, played.pid() != first) == (2, True)


def test_a_new_supervisor_adopts_it(played: Node) -> None:
    played.serves()
    before = played.pid()
    played.restart()
    assert (played.serves().starts, played.pid()) == (0, before)
    played.wants()
    played.until(lambda report: report.phase == "off")
    await_end(before)


def test_a_second_one_in_the_same_folder_is_refused(played: Node) -> None:
    played.serves()
    pipe = played.places.of(UUID) / "pipe"
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipe)}
    done = subprocess.run([played.program, "-f"], env=environment, capture_output=True, text=True, timeout=60)
    output = done.stdout + done.stderr
    assert (done.returncode, "An instance of this daemon is already running" in output) == (1, True)
    assert played.look().serving


def test_who_has_its_folder_cannot_end_it(played: Node) -> None:
    """The daemon treats a container's root as root. The container has the folder with the sockets, as while serving."""
    played.serves()
    pipe = played.places.of(UUID) / "pipe"
    assert not (pipe / "control_privileged").exists()
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipe)}
    command = {"env": environment, "capture_output": True, "text": True, "timeout": 60}
    done = subprocess.run([played.program], input="quit\n", **command)  # type: ignore[call-overload]
    assert "Not enough privilege" in done.stdout
    (pipe / "control_privileged").write_text("a container's")
    assert played.look().serving, "asked by the socket that no container has"
    assert (pipe / "control_privileged").read_text() == "a container's"
    assert played.places.of(UUID).joinpath("keys").stat().st_mode & 0o777 == 0o700


def test_what_it_says_is_bounded(played: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_OUTPUT", 200)
    played.serves()
    played.until(lambda _: (played.places.of(UUID) / "log" / "output.before").exists())
    monkeypatch.undo()
    played.look()
    assert 0 < len(listing(played)) < 2_000, "it writes on, from the start"
    assert "\0" not in listing(played)


def test_an_old_one_serves_without_what_it_lacks(node: Node) -> None:
    node.cards.driver = "535.261.03"
    node.scripted(old=True, servers={"71": [72]}, status="FAULT")
    report = node.until(lambda report: report.serving)
    assert (report.clients, report.why) == (
        1,
        "the MPS daemon of driver 535.261.03 is an old one: a container of another user waits until the earlier "
        "clients have ended, and faults of its servers are not detected",
    )
