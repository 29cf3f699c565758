"""What probes get: whether reviews are served, and with which certificate."""

from __future__ import annotations

import pytest

from contract.metrics import metrics_of
from runtime.httpserver import Reply, Request
from runtime.metrics import Metrics
from webhook.serving.health import Health, Pulse

WELL = ((200, b"ok\n"), (200, b"ok\n"))
PROBED = {
    "well": (None, "", None, WELL),
    "something beside": (
        None,
        "options refused: line 1",
        None,
        ((200, b"ok\n"), (200, b"ok; options refused: line 1\n")),
    ),
    "no certificate": ("the certificate ended", "x", None, ((200, b"ok\n"), (503, b"the certificate ended\n"))),
    "stuck": (None, "", "stuck", ((503, b"stuck\n"), (200, b"ok\n"))),
}


@pytest.mark.parametrize(("ready", "trouble", "alive", "answers"), PROBED.values(), ids=PROBED.keys())
def test_what_probes_get(
    ready: str | None, trouble: str, alive: str | None, answers: tuple[tuple[int, bytes], tuple[int, bytes]]
) -> None:
    health = Health(ready=lambda: ready, trouble=lambda: trouble, alive=lambda: alive)
    made = health.routes(Metrics(metrics_of("webhook")))

    def ask(path: str) -> Reply:
        return made["GET", path](Request("GET", path, "", {}, b""))

    assert tuple((ask(path).status, ask(path).body) for path in ("/healthz", "/readyz")) == answers
    assert b"gpufraction_webhook_connections 0.0" in ask("/metrics").body


def test_a_pulse_that_stops_is_reported_after_a_while() -> None:
    now = 100.0
    pulse = Pulse(lambda: now)
    assert pulse.reason() is None
    now = 119.0
    assert pulse.reason() is None
    pulse.beat()
    now = 138.0
    assert pulse.reason() is None
    now = 140.0
    assert pulse.reason() == "no connection has been served for 21 s"
