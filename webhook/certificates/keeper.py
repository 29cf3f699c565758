"""
Keeping the serving certificate good: check it, renew it when needed, and make the API server trust its authority.

Trust comes first: the authority is in the webhook configuration before a certificate of it is served. Each API server
learns about a change there a moment after it is written. So when a new authority replaces one whose certificate still
serves, the new bundle is set aside, its authority is trusted alongside the old one, and it is served only after
`SETTLING`, by a check that finds the trust already in place. If no certificate is served, there is nothing to wait for.

The keeper also keeps renamed resources in the match conditions of that configuration, since applying the manifests
again restores the shipped conditions.
"""

from __future__ import annotations

import datetime
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from runtime.kubernetes.client import Kube, KubeError
from webhook.certificates import configuration
from webhook.certificates.authority import DUE, Bundle, Lives, Renewal, expiry, made, needs_renewal, renewed
from webhook.certificates.configuration import ConfigurationApi
from webhook.certificates.store import Store

log = logging.getLogger(__name__)

_RETRY = 15.0
"""Seconds until the next check after a failed one."""

SETTLING = datetime.timedelta(minutes=1)
"""From the trust in a new authority until a certificate of it is served; API servers watch, so they need far less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ensure:
    """
    What the keeper ensures: a certificate for `names` in `store`, and its authority in the named configuration.

    An empty `configuration` is not written. `renamed` gives the additional resources that its conditions must name.
    `store`, `connect` and `renamed` are called at each check.
    """

    store: Callable[[], Store]
    names: tuple[str, ...]
    configuration: str = ""
    renamed: Callable[[], tuple[str, ...]] = lambda: ()
    lives: Lives = field(default_factory=Lives)
    connect: Callable[[], ConfigurationApi] = Kube.connect
    now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC)
    say: Callable[[str], None] = lambda line: print(line, flush=True)
    assure: bool = True
    """Whether a check that changes nothing says so."""

    def once(self) -> int:
        """Check once; returns 0, or 1 if something failed."""
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
            changed = configuration.let_through(self.connect(), self.configuration, renamed)
        except KubeError as error:
            fields = {"resources": listed, "reason": str(error)}
            log.error("pods that name renamed resources may not reach the webhook", extra=fields)
            return 1
        if changed:
            self.say(f"{changed} conditions of {self.configuration} now name {listed}")
        return 0

    def until(self, stop: threading.Event, *, every: float) -> None:
        """Check every `every` seconds, sooner after a failure, until `stop` is set."""
        check = self
        while not stop.wait(every if check.once() == 0 else min(every, _RETRY)):
            check = replace(self, assure=False)

    def _ensure(self) -> None:
        store = self.store()
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
        aside = store.prepared()
        if aside is not None and needs_renewal(aside, now, self.names) is None:
            bundle = aside
        else:
            bundle = renewed(found, now, self.names, lives=self.lives)
        if found is not None and self._must_settle(found, bundle, reason, now):
            # Stored first: if it were lost after the trust, every check would add another authority.
            store.prepare(bundle)
            waited = now >= made(bundle.certificate) + SETTLING
            # The old authority too: its certificate is still served, and somebody may have removed it from the bundle.
            self._trust(found, now)
            if self._trust(bundle, now) or not waited:
                self.say(f"a new authority is ready and will be used when the API servers know it ({reason})")
                return
        else:
            self._trust(bundle, now)
        store.write(bundle)
        self.say(f"a new certificate is in {store.where} ({reason})")

    def _must_settle(self, found: Bundle, bundle: Bundle, reason: Renewal, now: datetime.datetime) -> bool:
        """Whether the certificate in service is still good while API servers may not know the new authority."""
        serves = reason.code == DUE and now < min(expiry(found.certificate), expiry(found.ca))
        return bool(self.configuration) and serves and bundle.ca != found.ca

    def _trust(self, bundle: Bundle, now: datetime.datetime) -> bool:
        """Make the API server trust the bundle's authority; returns whether that needed a change."""
        if not self.configuration:
            return False
        changed = configuration.trust(self.connect(), self.configuration, bundle.ca, now=now)
        if changed:
            self.say(f"the authority is now in {changed} webhooks of {self.configuration}")
        return bool(changed)
