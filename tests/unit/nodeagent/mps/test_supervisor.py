"""Real processes: started, adopted, queried, ended; and what is reported about them."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

from nodeagent.mps.daemon import start_time
from nodeagent.mps.exchange import GpuReport, report_from_text
from tests.unit.nodeagent.mps.conftest import UUID, Node, await_end, computing


def test_a_daemon_is_started_on_a_claimed_card_and_reported(node: Node) -> None:
    assert node.look() == GpuReport("claiming", taking=False, most_clients=48)
    report = node.serves()
    assert (report, node.cards.mode) == (GpuReport("serving", True, True, most_clients=48, starts=1), True)
    written = report_from_text(node.places.report.read_text(), now=1000.0, patience=1.0)
    assert written == node.supervisor.report
    entries = Path(f"/proc/{node.pid()}/environ").read_text().split("\0")
    environment = dict(entry.split("=", 1) for entry in entries if "=" in entry)
    pipe = str(node.places.of(UUID) / "pipe")
    assert (environment["CUDA_VISIBLE_DEVICES"], environment["CUDA_MPS_PIPE_DIRECTORY"]) == (UUID, pipe)
    assert os.getsid(node.pid()) == node.pid(), "a session of its own"


def test_servers_and_clients_are_reported(node: Node) -> None:
    node.serves()
    node.scripted(servers={"71": [72, 73], "81": [82]})
    report = node.look()
    assert (report.servers, report.clients, node.supervisor.report.servers) == ((71, 81), 3, frozenset({71, 81}))
    node.scripted(servers={"71": list(range(100, 148))})
    assert node.look().why == "all 48 clients of MPS are in use; further processes fail"


def test_a_new_supervisor_adopts_the_daemon(node: Node) -> None:
    node.serves()
    before = node.pid()
    computing(node.cards, 71)
    node.restart()
    report = node.serves()
    assert (node.pid(), report.starts) == (before, 0)


def test_a_daemon_that_is_killed_is_started_again_and_its_servers_are_ended(node: Node) -> None:
    node.scripted(spawn=True)
    node.serves()
    first, server = node.pid(), int((node.places.of(UUID) / "pipe" / "spawned").read_text())
    os.kill(first, signal.SIGKILL)
    await_end(first)
    assert start_time(server), "a server outlives its daemon"
    report = node.look()
    assert (report.phase, report.why, report.taking) == ("paused", "the MPS daemon ended", False)
    await_end(server)
    node.now += 5.0
    assert node.serves().starts == 2
    assert node.pid() != first
    assert node.cards.mode, "the card stayed closed meanwhile"


def test_a_process_that_has_the_daemons_number_is_not_taken_for_it(node: Node) -> None:
    node.serves()
    ours = node.places.of(UUID) / "daemon"
    daemon = node.pid()
    ours.write_text(f"{os.getpid()} 1\n")
    node.restart()
    assert node.look().phase == "starting"
    assert node.supervisor._gpu(UUID).daemon.pid() not in (os.getpid(), 0), "another daemon was started"
    os.kill(daemon, signal.SIGKILL)


def test_a_daemon_that_crashes_at_each_start_is_given_up_and_frees_its_card(node: Node) -> None:
    node.scripted(crash=True)
    for _ in range(4):
        node.until(lambda report: report.phase == "paused")
        node.now += 60.0
    report = node.until(lambda report: report.phase == "resting")
    assert report.why == "the MPS daemon ended while it started; given up after 5 failures in a row"
    assert (node.cards.mode, report.taking, report.starts) == (False, True, 5)
    node.scripted()
    node.now += 600.0
    node.serves()


def test_a_program_that_is_not_there_is_given_up_too(node: Node) -> None:
    node.program.unlink()
    node.until(lambda report: report.phase == "paused")
    assert node.look().why == "the MPS daemon ended while it started"


def test_a_daemon_that_hangs_is_killed_and_started_again(node: Node) -> None:
    node.serves()
    first = node.pid()
    os.kill(first, signal.SIGSTOP)
    node.supervisor._gpu(UUID).daemon._timeout = 0.2
    assert node.look().serving, "once is not enough"
    node.now += 30.0
    assert node.look().phase == "stopping"
    node.supervisor._gpu(UUID).daemon._timeout = 20.0
    await_end(first)
    assert node.until(lambda report: report.phase == "paused").why == "the MPS daemon no longer answers"
    node.now += 5.0
    node.serves()


def test_a_fault_keeps_new_pods_away_until_its_clients_end(node: Node) -> None:
    node.serves()
    first = node.pid()
    node.scripted(servers={"71": [72]}, status="FAULT")
    report = node.look()
    assert (report.phase, report.serving, report.taking, report.servers) == ("faulted", False, False, (71,))
    node.scripted(servers={"71": []}, status="FAULT")
    node.until(lambda report: report.phase == "paused")
    assert not start_time(first)
    node.scripted()
    node.now += 5.0
    node.serves()


def test_a_card_on_which_others_compute_is_left_to_them(node: Node) -> None:
    computing(node.cards, 4711)
    report = node.look()
    assert (report.phase, report.taking, node.cards.mode) == ("blocked", True, False)
    node.cards.card = replace(node.cards.card, processes=None)
    assert node.look().phase == "blocked", "nor where nobody can tell"
    computing(node.cards)
    node.serves()


def test_what_is_not_wanted_ends_and_what_nobody_wants_anything_of_stays(node: Node) -> None:
    node.serves()
    pid = node.pid()
    node.places.wanted.unlink()
    assert node.look().phase == "serving", "the agent is away, nobody wanted anything else"
    node.wants()
    node.until(lambda report: report.phase == "off")
    assert (bool(start_time(pid)), node.cards.mode) == (False, False)


def test_a_deaf_daemon_is_killed_in_the_end(node: Node) -> None:
    node.serves()
    node.scripted(deaf=True)
    node.wants()
    assert [node.look().phase, node.look().phase] == ["stopping", "stopping"]
    node.now += 60.0
    node.until(lambda report: report.phase == "off")


def test_a_mode_that_cannot_be_set_and_one_that_cannot_be_put_back(node: Node) -> None:
    node.cards.refusal = "no permission"
    node.look()
    node.now += 30.0
    assert node.look().why == "the compute mode could not be set to EXCLUSIVE_PROCESS"
    node.cards.refusal = ""
    node.now += 5.0
    node.serves()
    node.cards.refusal = "no permission"
    node.wants()
    node.until(lambda report: report.phase == "off")
    assert node.cards.mode
    node.cards.refusal = ""
    node.look()
    assert not node.cards.mode, "tried again until it worked"


def test_a_driver_that_is_away_ends_nothing(node: Node) -> None:
    node.serves()
    pid, node.cards.broken = node.pid(), True
    report = node.look()
    assert (report.phase, report.serving, node.pid()) == ("serving", False, pid)
    node.cards.broken = False
    assert node.look().serving


def test_the_end_takes_all_daemons_along_and_gives_the_cards_back(node: Node) -> None:
    node.serves()
    pid = node.pid()
    node.scripted(deaf=True)
    node.supervisor._clock = iter(range(1000)).__next__
    node.supervisor.end(within=3.0)
    await_end(pid)
    assert (node.cards.mode, node.places.report.exists()) == (False, False)


def test_clients_of_a_dead_daemon_do_not_block_the_next(node: Node) -> None:
    node.serves()
    node.scripted(servers={"71": [72]})
    computing(node.cards, 71, 72)
    node.look()
    first = node.pid()
    os.kill(first, signal.SIGKILL)
    await_end(first)
    report = node.look()
    assert (report.phase, report.servers) == ("paused", (71,))
    node.now += 5.0
    assert node.look().phase == "starting"


def test_a_gpu_that_never_had_a_daemon_is_forgotten_once_unwanted(node: Node) -> None:
    computing(node.cards, 4711)
    reports = [node.supervisor.step().gpus]
    node.wants()
    reports += [node.supervisor.step().gpus, node.supervisor.step().gpus]
    assert [{uuid: gpu.phase for uuid, gpu in found.items()} for found in reports] == [
        {UUID: "blocked"},
        {UUID: "off"},
        {},
    ]
    node.wants(UUID)
    computing(node.cards)
    assert node.serves().starts == 1
