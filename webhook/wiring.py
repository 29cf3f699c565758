"""
The application as it runs in production: its parts made and put together in one place.

Called in the serving process, after gunicorn has forked, so that sockets and collectors belong to it.
"""

from __future__ import annotations

import datetime
from pathlib import Path

from flask import Flask

from contract.dialects import Options
from contract.metrics import metrics_of
from contract.metrics.webhook import CERTIFICATE_EXPIRY, WEBHOOK_OPTIONS_REFUSED
from contract.pools import NOTHING_SAID, PoolOptions
from runtime import pooloptions
from runtime.livefile import LiveFile
from runtime.metrics import Metrics
from runtime.unixhttp import UnixClient
from webhook.app import create_app
from webhook.asking import asker
from webhook.certfiles import CERTIFICATE
from webhook.certs import expiry
from webhook.volumes import NOTHING, Given


def make_app(
    *,
    certificates: Path,
    socket: Path,
    patience: float,
    options: Options,
    hide_gpus: bool,
    runtime_class: str = "",
    limiters: Given = NOTHING,
    file: Path = Path(),
) -> Flask:
    """
    The webhook over the allocator's `socket`. `patience`: seconds that a review waits for an answer. `hide_gpus`: from
    pods that ask for none. `runtime_class`: for pods with a share that name none. `limiters`: volumes that these all
    get. `file`: the administrator's document of options, which goes before `options`; one that could never be read says
    nothing, since the webhook remembers nothing, and nothing said is the dialects' own whole card, which takes from
    nobody.
    """
    followed = pooloptions.follow(file)
    metrics = Metrics(metrics_of("webhook"))
    certificate = certificates / CERTIFICATE
    metrics.gauge(CERTIFICATE_EXPIRY).set_function(lambda: _expiry_seconds(certificate))
    metrics.gauge(WEBHOOK_OPTIONS_REFUSED).set_function(lambda: _refused(followed))
    return create_app(
        ask=asker(UnixClient(socket), patience=patience),
        metrics=metrics,
        options=options,
        hide_gpus=hide_gpus,
        runtime_class=runtime_class,
        limiters=limiters,
        pools=lambda: followed.value() or NOTHING_SAID,
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


def _refused(file: LiveFile[PoolOptions]) -> float:
    file.value()
    return float(bool(file.trouble))


def _expiry_seconds(certificate: Path) -> float:
    try:
        return expiry(certificate.read_bytes()).timestamp()
    except (OSError, ValueError):
        return 0.0
