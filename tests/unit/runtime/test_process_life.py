"""How a process ends, and what it reports about its health until then."""

from __future__ import annotations

import http.client
import io
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from contract.metrics import metrics_of
from contract.metrics.allocator import WAITING_PODS
from runtime.httpserver import serve_http
from runtime.logs import setup
from runtime.metrics import Metrics
from runtime.process import HealthChecks, Process, health_routes


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    ours = setup(form="json", level="info", stream=stream)
    yield stream
    root.removeHandler(ours)
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_thread_that_raises_ends_the_process_with_1(logged: io.StringIO) -> None:
    process = Process()

    def work() -> None:
        raise LookupError("no such thing")

    process.spawn("worker", work)
    assert process.stop.wait(5)
    assert (process.wait(), process.failed) == (1, "thread worker: LookupError")
    died = lines(logged)[0]
    assert (died["message"], died["level"], died["thread_name"]) == ("thread died", "critical", "worker")
    assert "no such thing" in str(died["error"])


def test_a_thread_that_returns_ends_nothing() -> None:
    process = Process()
    process.spawn("worker", lambda: None).join(5)
    assert not process.stop.is_set()


def test_stopping_is_exit_0(logged: io.StringIO) -> None:
    process = Process()
    process.stop.set()
    assert process.wait() == 0


def test_the_first_failure_is_the_reason(logged: io.StringIO) -> None:
    process = Process()
    process.fail("first")
    process.fail("second")
    assert (process.wait(), process.failed) == (1, "first")


def test_a_foreign_thread_that_dies_ends_the_process_too(logged: io.StringIO) -> None:
    process, before = Process(), threading.excepthook
    process.watch_threads()
    try:
        thread = threading.Thread(target=lambda: [][0], name="foreign")
        thread.start()
        thread.join(5)
    finally:
        threading.excepthook = before
    assert (process.wait(), process.failed) == (1, "thread foreign: IndexError")


def test_a_signal_stops_in_order(logged: io.StringIO) -> None:
    process, before = Process(), signal.getsignal(signal.SIGUSR1)
    process.handle_signals([signal.SIGUSR1])
    try:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert process.stop.wait(5)
    finally:
        os.close(signal.set_wakeup_fd(-1))
        signal.signal(signal.SIGUSR1, before)
    assert process.wait() == 0
    assert lines(logged)[0]["signal"] == "SIGUSR1"


BESIDE = """
import signal, sys, threading, time
from runtime.process import Process
process = Process()
process.handle_signals()
def other():
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    time.sleep(3600)
threading.Thread(target=other, daemon=True).start()
sys.exit(process.wait())
"""


def test_a_signal_that_another_thread_gets_ends_a_main_thread_that_waits() -> None:
    """A handler would not run, because the main thread keeps waiting."""
    with subprocess.Popen([sys.executable, "-c", BESIDE]) as child:
        try:
            assert child.wait(60) == 0
        finally:
            child.kill()


STUBBORN = """
import sys
from runtime.process import Process
process = Process()
process.handle_signals()
print("up", flush=True)
process.wait()
print("stopping", flush=True)
sys.stdin.read()
"""


def test_a_second_signal_kills_what_does_not_end() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STUBBORN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        child.terminate()
        assert child.stdout.readline() == "stopping\n"
        child.terminate()
        assert child.wait(10) == -signal.SIGTERM


def ask(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("GET", path)
    answer = connection.getresponse()
    status, body = answer.status, answer.read()
    connection.close()
    return status, body


def test_health_says_why(logged: io.StringIO) -> None:
    reasons: dict[str, str | None] = {"cache": "pods not listed yet"}

    def broken() -> str | None:
        raise OSError("disk")

    metrics = Metrics(metrics_of("allocator"))
    metrics.gauge(WAITING_PODS).set(2)
    ready = HealthChecks(cache=lambda: reasons["cache"])
    server = serve_http(
        health_routes(metrics, ready=ready, alive=HealthChecks(disk=broken)), ("127.0.0.1", 0), name="health"
    )
    try:
        assert ask(server.port, "/readyz") == (503, b'{"ok":false,"reasons":{"cache":"pods not listed yet"}}')
        reasons["cache"] = None
        assert ask(server.port, "/readyz") == (200, b'{"ok":true,"reasons":{}}')
        assert ask(server.port, "/healthz") == (
            503,
            b'{"ok":false,"reasons":{"disk":"check failed: OSError"}}',
        )
        status, text = ask(server.port, "/metrics")
        assert status == 200
        assert b"gpufraction_waiting_pods 2.0\n" in text
    finally:
        server.close()
