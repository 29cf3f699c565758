"""
The serving certificate in a Secret, from where kubelet brings it to the webhook's pods.

The keeper of certificates runs in a pod of its own and shares no folder with the webhook. The authority's key stays in
the keeper's own folder, which lives as long as its pod: the Secret has only what the webhook serves. A keeper without
that key renews the certificate when it is due, by a new authority.

The Secret must be there: the keeper has the right to write this one, and none to make any. A write names the version
that was read, so two keepers cannot mix a certificate with another's key.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

from runtime.kubernetes.paths import secrets
from webhook.certificates import files
from webhook.certificates.authority import Bundle
from webhook.certificates.files import CA, CERTIFICATE, KEY, CertificatePaths

JSON = dict[str, Any]


class SecretApi(Protocol):
    """The part of `runtime.kubernetes.client.Kube` that is needed."""

    def get(self, path: str) -> JSON: ...
    def patch_merge(self, path: str, body: JSON) -> JSON: ...


class Secret:
    """
    The certificate in the Secret `namespace`/`name`, the authority in `places.authority`.

    Every method raises `KubeError` or `OSError` for what cannot be read or written.
    """

    def __init__(self, kube: SecretApi, namespace: str, name: str, places: CertificatePaths) -> None:
        self._kube, self._path, self._places = kube, secrets(namespace, name), places
        self.where = f"Secret {namespace}/{name}"
        self._version = ""

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the authority's folder against other writers on this machine."""
        with files.locked_folder(self._places.authority):
            yield

    def read(self) -> Bundle | None:
        """The bundle, None where there is no certificate. The authority's key is left out where it is another's."""
        found = self._kube.get(self._path)
        self._version = str(found["metadata"]["resourceVersion"])
        served = {name: _decoded((found.get("data") or {}).get(name)) for name in (CERTIFICATE, KEY, CA)}
        if not served[CERTIFICATE]:
            return None
        ca_key = files.authority_key(self._places, served[CA])
        return Bundle(ca=served[CA], certificate=served[CERTIFICATE], key=served[KEY], ca_key=ca_key)

    def write(self, bundle: Bundle) -> None:
        """Put the bundle in place, on the version that was read last."""
        files.write_authority(self._places, bundle)
        data = {CERTIFICATE: bundle.certificate, KEY: bundle.key, CA: bundle.ca}
        encoded = {name: base64.b64encode(content).decode("ascii") for name, content in data.items()}
        self._kube.patch_merge(self._path, {"metadata": {"resourceVersion": self._version}, "data": encoded})
        files.forget_prepared(self._places)

    def prepared(self) -> Bundle | None:
        """The bundle that was put aside to be served later, or None."""
        return files.prepared(self._places)

    def prepare(self, bundle: Bundle) -> None:
        """Put a bundle aside."""
        files.prepare(self._places, bundle)


def _decoded(text: Any) -> bytes:
    """What a Secret has under a key; empty where that is missing or no base64."""
    try:
        return base64.b64decode(text or "", validate=True)
    except (binascii.Error, ValueError, TypeError):
        return b""
