"""The benchmark's slow clients exist, are slow, and reconnect when the server ends their connections."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from playground.waiting import wait_for
from tests.unit.webhook.serving.test_front import DEADLINE, Served
from tests.unit.webhook.serving.test_server import NAMES, places_in, utcnow
from webhook.certificates.authority import renewed
from webhook.serving import front
from webhook.serving.connections import Bounds

ROOT = Path(__file__).parents[4]


def test_slow_clients_are_given_up_again_and_again(tmp_path: Path) -> None:
    places = places_in(tmp_path)
    places.write(renewed(None, utcnow(), NAMES))
    served = Served(places.serving, Bounds(silence=0.5, linger=0.1), threads=1)
    flags = ("--port", str(served.port), "--ca", str(places.serving / "ca.crt"), "--server-name", NAMES[2])
    command = [sys.executable, "-m", "benchmarks.admission.slow", *flags, "--clients", "10"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"all are there\n"
        wanted = {front.LATE_HANDSHAKE: 10, front.LATE_REQUEST: 10}
        wait_for(
            lambda: all(served.turned_away[reason] >= number for reason, number in wanted.items()),
            lambda: f"{served.turned_away}",
            DEADLINE,
        )
        assert served.requests == []
        assert served.serves(within=2.0)
        process.terminate()
    served.stop()
    assert served.ended()
