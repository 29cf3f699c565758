"""
The application as it runs in production: the one place where its parts are made and connected.

It is made in the serving process, after gunicorn has forked, so that sockets and collectors belong to that process.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from contract.dialects import DIALECTS
from contract.dialects.table import Dialects
from contract.metrics import metrics_of
from contract.metrics.webhook import CERTIFICATE_EXPIRY, CONNECTIONS, TURNED_AWAY, WEBHOOK_OPTIONS_REFUSED
from contract.options import NO_OPTIONS, PoolOptions, pool_options
from runtime.livefile import LiveFile, yaml_file
from runtime.metrics import Metrics
from runtime.scraping import scraping
from runtime.unixhttp import UnixClient
from webhook.certificates.authority import expiry
from webhook.certificates.store import CERTIFICATE
from webhook.serving.application import create_app
from webhook.serving.asking import DEFAULT_PATIENCE, AllocatorClient, allocator, cards, scraper_review
from webhook.serving.health import Health, Pulse
from webhook.serving.known import KnownCards
from webhook.serving.server import Service
from webhook.settings import ServeSettings

log = logging.getLogger(__name__)
_AGAIN = 60.0
"""Seconds until wrong options are logged again."""
_UNREAD = (
    "the cluster's options for GPU shares are invalid, so defaults apply to this pod: without an amount of memory, it "
    "requests a GPU's whole memory. The condition OptionsRefused of the GPUNodes tells an administrator why"
)


class Document:
    """
    The administrator's document of options as the webhook applies it. While it is wrong, that is logged once a minute.

    `clock` in seconds. From any thread.
    """

    def __init__(self, file: LiveFile[PoolOptions], *, clock: Callable[[], float]) -> None:
        self._file = file
        self._clock = clock
        self._logged_at = float("-inf")

    def options(self) -> PoolOptions:
        """The options that apply: the last document that could be read, or none."""
        return self._file.value() or NO_OPTIONS

    def warning(self) -> str:
        """A warning for pods while no document could ever be read, else empty. It shows tenants nothing of it."""
        return _UNREAD if self._file.value() is None else ""

    def trouble(self) -> str:
        """What is wrong with the document, and what applies instead; empty if nothing is wrong."""
        known = self._file.value() is not None
        wrong = self._file.trouble
        if not wrong:
            self._logged_at = float("-inf")
            return ""
        instead = "with the previous options" if known else "without options"
        message = f"options refused: {wrong}; pods are read {instead}"
        now = self._clock()
        if now - self._logged_at >= _AGAIN:
            self._logged_at = now
            log.error(message)
        return message


def make_app(
    settings: ServeSettings,
    dialects: Dialects = DIALECTS,
    *,
    patience: float = DEFAULT_PATIENCE,
    client: Callable[[Path], AllocatorClient] = UnixClient,
) -> Service:
    """
    The webhook and its probes.

    A document of options that could never be read counts as empty, since the webhook has no state. A pod without an
    amount of memory then requests a whole card, so no other pod loses memory. `patience`: seconds that a review waits
    for the allocator. `client` makes a client of the allocator's socket.
    """
    document = Document(yaml_file(settings.options, pool_options), clock=time.monotonic)
    fixed = replace(settings.configuration(), dialects=dialects)
    metrics = Metrics(metrics_of("webhook"))
    certificate = settings.certificates / CERTIFICATE
    metrics.gauge(CERTIFICATE_EXPIRY).set_function(lambda: _expiry_seconds(certificate))
    metrics.gauge(WEBHOOK_OPTIONS_REFUSED).set_function(lambda: float(bool(document.trouble())))

    pulse, known, reviews, stopping = Pulse(), KnownCards(), client(settings.socket), threading.Event()
    known.poll(cards(reviews, patience=patience), stopping)
    health = Health(
        ready=lambda: unready(certificate, datetime.datetime.now(datetime.UTC)) or known.unready(),
        trouble=document.trouble,
        alive=pulse.reason,
    )
    app = create_app(
        lambda: replace(fixed, pools=document.options(), warning=document.warning()),
        allocator(reviews, patience=patience, floor=known.floor),
        metrics,
        health=health,
    )
    turned_away = metrics.counter(TURNED_AWAY)
    # By a client of its own: questions of scrapers and of reviews must not wait for each other.
    review = scraper_review(client(settings.socket))
    return Service(
        app,
        health.routes(metrics),
        pulse,
        turned_away=lambda reason: turned_away.labels(reason).inc(),
        watch_open=metrics.gauge(CONNECTIONS).set_function,
        scraping=scraping(settings.metrics_access, settings.metrics_certificates, review),
        stop=stopping.set,
    )


def unready(certificate: Path, now: datetime.datetime) -> str | None:
    """
    Why this process cannot serve, or None: the certificate. While the allocator does not answer, pods are still gated.
    """
    try:
        end = expiry(certificate.read_bytes())
    except (OSError, ValueError) as error:
        return f"the serving certificate cannot be read: {type(error).__name__}"
    return f"the serving certificate ended {end:%Y-%m-%d %H:%M}" if end <= now else None


def _expiry_seconds(certificate: Path) -> float:
    with contextlib.suppress(OSError, ValueError):
        return expiry(certificate.read_bytes()).timestamp()
    return 0.0
