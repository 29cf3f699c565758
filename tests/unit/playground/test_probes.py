"""Free ports: no two callers get the same one, in any processes."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from itertools import islice, zip_longest
from pathlib import Path

import pytest

from playground.programs.probes import claimed_ports, free_port

ROOT = Path(__file__).parents[3]
GIVEN = 90
PROGRAM = f"""
from playground.programs.probes import free_port
print(*[free_port() for _ in range({GIVEN})], flush=True)
input()
"""


def test_two_who_claim_ports_get_all_of_them_and_none_in_common() -> None:
    ours = list(islice(claimed_ports(), 32))  # so that no other process takes some
    few = range(ours[1], ours[1] + 28)
    one, another = claimed_ports(few, 4), claimed_ports(few, 4)
    found = [port for pair in zip_longest(one, another) for port in pair if port is not None]
    assert sorted(found) == list(few)


def test_two_processes_are_given_no_port_in_common() -> None:
    """Nothing listens on the ports, so they look free to both."""
    command = [sys.executable, "-c", PROGRAM]
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
            )
            for _ in range(2)
        ]
        given = {port for each in started if each.stdout is not None for port in each.stdout.readline().split()}
        for each in started:
            each.communicate("\n", timeout=20)
    assert len(given) == 2 * GIVEN


def test_a_port_that_somebody_has_bound_is_not_given() -> None:
    with contextlib.closing(socket.socket()) as bound:
        bound.bind(("127.0.0.1", free_port()))
        taken, another = bound.getsockname()[1], free_port()
        assert free_port(iter([taken, another])) == another
        with pytest.raises(OSError, match="every port is taken"):
            free_port(iter([taken]))
