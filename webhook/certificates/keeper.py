"""
Keeping the serving certificate good: look, renew where there is a reason, and have the API server trust its authority.

Trust comes first: the authority is in the webhook configuration before a certificate of it is served. An API server
learns of a change there a moment after it is written, and several of them not at the same time. So where a certificate
that still serves is replaced by one of another authority, the new one is put aside, its authority trusted beside the
old one, and it is served only after `SETTLING`, at a look that finds the trust in place already. Where nothing serves
there is nothing to wait for.

The same configuration is held to let through what an administrator has renamed, since whoever applies the manifests
again puts the shipped conditions back.
"""

from __future__ import annotations

import datetime
import logging
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Protocol

from runtime.kubernetes.client import Kube, KubeError
from webhook.certificates import ca_bundle, files, match_conditions
from webhook.certificates.authority import DUE, Bundle, Lives, Renewal, expiry, made, needs_renewal, renewed
from webhook.certificates.configuration import ConfigurationApi
from webhook.certificates.files import CertificatePaths

log = logging.getLogger(__name__)


class Store(Protocol):
    """Where the certificate is kept: two folders, or a Secret and one. `where` names it for people."""

    where: str

    def locked(self) -> AbstractContextManager[None]: ...
    def read(self) -> Bundle | None: ...
    def write(self, bundle: Bundle) -> None: ...
    def prepared(self) -> Bundle | None: ...
    def prepare(self, bundle: Bundle) -> None: ...


_RETRY = 15.0
"""Seconds until the next look after one that failed."""

SETTLING = datetime.timedelta(minutes=1)
"""From the trust in a new authority until a certificate of it is served; API servers watch, so they need far less."""


def _utcnow() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _print(line: str) -> None:
    print(line, file=sys.stdout, flush=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ensure:
    """
    What to keep: a certificate for `names` in `places`, trusted by the named configuration (empty: by none), and that
    configuration letting through pods that name the `renamed` resources, which are asked for at each look. A
    `store` is asked for at each look and used instead of the places.
    """

    places: CertificatePaths
    store: Callable[[], Store] | None = None
    names: tuple[str, ...]
    configuration: str = ""
    kubeconfig: str | None = None
    renamed: Callable[[], tuple[str, ...]] = lambda: ()
    lives: Lives = field(default_factory=Lives)
    connect: Callable[[str | None], ConfigurationApi] = lambda kubeconfig: Kube.connect(kubeconfig=kubeconfig)
    now: Callable[[], datetime.datetime] = _utcnow
    say: Callable[[str], None] = _print
    assure: bool = True
    """Whether to say also that nothing had to be done."""

    def once(self) -> int:
        """Look once and say what was done; 0, or 1 where something could not be done."""
        try:
            self._ensure()
        except (KubeError, OSError) as error:
            log.error("the certificate could not be ensured", extra={"reason": str(error)})
            return 1
        return self._let_through(self.renamed()) if self.configuration else 0

    def _let_through(self, renamed: tuple[str, ...]) -> int:
        if not renamed:
            return 0
        listed = ", ".join(renamed)
        try:
            changed = match_conditions.let_through(self.connect(self.kubeconfig), self.configuration, renamed)
        except KubeError as error:
            fields = {"resources": listed, "reason": str(error)}
            log.error("pods that name renamed resources may pass the webhook by", extra=fields)
            return 1
        if changed:
            self.say(f"{changed} conditions of {self.configuration} now name {listed}")
        return 0

    def until(self, stop: threading.Event, *, every: float) -> None:
        """Look every `every` seconds, sooner after a failure, until `stop` is set."""
        look = self
        while not stop.wait(every if look.once() == 0 else min(every, _RETRY)):
            look = replace(self, assure=False)

    def _ensure(self) -> None:
        store = files.Directories(self.places) if self.store is None else self.store()
        with store.locked():
            found, now = store.read(), self.now()
            reason = needs_renewal(found, now, self.names)
            if found is not None and reason is None:
                self._trust(found, now)
                if self.assure:
                    self.say(f"the certificate in {store.where} is good")
                return
            assert reason is not None, "without a certificate there is a reason"
            self._renew(store, found, reason, now)

    def _renew(self, store: Store, found: Bundle | None, reason: Renewal, now: datetime.datetime) -> None:
        bundle = self._prepared(store, now) or renewed(found, now, self.names, lives=self.lives)
        if found is not None and self._must_settle(found, bundle, reason, now):
            # Written first: were it lost after the trust, every look would add another authority.
            store.prepare(bundle)
            waited = now >= made(bundle.certificate) + SETTLING
            # The old authority too, since what is still served is its own, and somebody may have taken it out.
            self._trust(found, now)
            if self._trust(bundle, now) or not waited:
                self.say(f"a new authority is ready and will be used when the API servers know it ({reason})")
                return
        else:
            self._trust(bundle, now)
        store.write(bundle)
        self.say(f"a new certificate is in {store.where} ({reason})")

    def _prepared(self, store: Store, now: datetime.datetime) -> Bundle | None:
        aside = store.prepared()
        return aside if needs_renewal(aside, now, self.names) is None else None

    def _must_settle(self, found: Bundle, bundle: Bundle, reason: Renewal, now: datetime.datetime) -> bool:
        """Whether what is served is good for a while yet, while nobody may know the new authority."""
        serves = reason.code == DUE and now < min(expiry(found.certificate), expiry(found.ca))
        return bool(self.configuration) and serves and bundle.ca != found.ca

    def _trust(self, bundle: Bundle, now: datetime.datetime) -> bool:
        """Have the bundle's authority trusted; whether that needed a change."""
        if not self.configuration:
            return False
        changed = ca_bundle.trust(self.connect(self.kubeconfig), self.configuration, bundle.ca, now=now)
        if changed:
            self.say(f"the authority is now in {changed} webhooks of {self.configuration}")
        return bool(changed)
