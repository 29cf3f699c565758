"""
Making the API server trust our authority: the `caBundle` of every webhook in a MutatingWebhookConfiguration.

Other authorities in the bundle stay while they are valid, since another replica, or this one a moment ago, serves a
certificate of theirs.
"""

from __future__ import annotations

import base64
import binascii
import datetime
from collections.abc import Mapping
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from webhook.certificates.configuration import ConfigurationApi, change

JSON = dict[str, Any]

MOST = 32
"""Authorities in a bundle. A pod that is made anew may bring a new one, so without a bound the bundle would grow."""


def trust(kube: ConfigurationApi, configuration: str, ca: bytes, *, now: datetime.datetime) -> int:
    """
    Put the PEM authority `ca` into every webhook of the named configuration; how many were changed.

    Raises `KubeError`, as `configuration.change` does.
    """
    return change(kube, configuration, lambda found: operations(found, ca, now=now))


def operations(configuration: Mapping[str, Any], ca: bytes, *, now: datetime.datetime) -> list[JSON]:
    """One JSON patch operation for each webhook whose bundle must change."""
    changes = []
    for position, webhook in enumerate(configuration.get("webhooks") or []):
        present = (webhook.get("clientConfig") or {}).get("caBundle") or ""
        wanted = base64.b64encode(merged(_decoded(present), ca, now=now)).decode("ascii")
        if wanted != present:
            changes.append({"op": "add", "path": f"/webhooks/{position}/clientConfig/caBundle", "value": wanted})
    return changes


def merged(present: bytes, ca: bytes, *, now: datetime.datetime) -> bytes:
    """The bundle `present` with the authority `ca` in it, and without what is unreadable, expired or there twice."""
    ours = x509.load_pem_x509_certificate(ca)
    kept = [c for c in dict.fromkeys([*_certificates(present), ours]) if c == ours or c.not_valid_after_utc > now]
    if len(kept) > MOST:
        newest = sorted(kept, key=lambda c: (c == ours, c.not_valid_before_utc), reverse=True)[:MOST]
        kept = [c for c in kept if c in newest]
    return b"".join(c.public_bytes(serialization.Encoding.PEM) for c in kept)


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _certificates(pem: bytes) -> list[x509.Certificate]:
    """The certificates of a bundle; one that cannot be read spoils none of the others."""
    end = b"-----END CERTIFICATE-----"
    found = []
    for piece in pem.split(end)[:-1]:
        try:
            found.append(x509.load_pem_x509_certificate(piece + end))
        except ValueError:
            continue
    return found
