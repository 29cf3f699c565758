"""
The application as it runs in production: its parts made and put together in one place.

Called in the serving process, after gunicorn has forked, so that sockets and collectors belong to it.
"""

from __future__ import annotations

import datetime
from pathlib import Path

from flask import Flask

from contract.dialects import Options
from contract.metrics import CERTIFICATE_EXPIRY, metrics_of
from runtime.metrics import Metrics
from runtime.unixhttp import UnixClient
from webhook.app import create_app
from webhook.asking import asker
from webhook.certfiles import CERTIFICATE
from webhook.certs import expiry


def make_app(
    *,
    certificates: Path,
    socket: Path,
    patience: float,
    options: Options,
    hide_gpus: bool,
    runtime_class: str = "",
) -> Flask:
    """
    The webhook over the allocator's `socket`. `patience`: seconds that a review waits for an answer. `hide_gpus`: from
    pods that ask for none. `runtime_class`: for pods with a share that name none.
    """
    metrics = Metrics(metrics_of("webhook"))
    certificate = certificates / CERTIFICATE
    metrics.gauge(CERTIFICATE_EXPIRY).set_function(lambda: _expiry_seconds(certificate))
    return create_app(
        ask=asker(UnixClient(socket), patience=patience),
        metrics=metrics,
        options=options,
        hide_gpus=hide_gpus,
        runtime_class=runtime_class,
        ready=lambda: unready(certificate, datetime.datetime.now(datetime.UTC)),
    )


def unready(certificate: Path, now: datetime.datetime) -> str | None:
    """
    Why this process cannot serve, or None. Only the certificate matters: without an allocator pods are gated, and that
    is a service too.
    """
    try:
        end = expiry(certificate.read_bytes())
    except (OSError, ValueError) as error:
        return f"the serving certificate cannot be read: {type(error).__name__}"
    return f"the serving certificate ended {end:%Y-%m-%d %H:%M}" if end <= now else None


def _expiry_seconds(certificate: Path) -> float:
    try:
        return expiry(certificate.read_bytes()).timestamp()
    except (OSError, ValueError):
        return 0.0
