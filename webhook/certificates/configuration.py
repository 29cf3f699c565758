"""
Changes to the MutatingWebhookConfiguration: the authority that the API server trusts, and the pods that it sends us.

- `trust` puts our certificate authority into the `caBundle` of every webhook. Other authorities in a bundle stay while
  they are valid, since another replica may still serve a certificate of theirs.
- `let_through` adds resources that an administrator has renamed to the match conditions. Without that, a pod that uses
  such a name would never reach the webhook, and would wait for a resource that no node has.
- `patch` prints the same conditions as a kustomization's patch.
"""

from __future__ import annotations

import base64
import binascii
import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from textwrap import indent
from typing import Any, Protocol

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from contract.dialects import DIALECTS
from contract.dialects.conditions import NAME, OTHERS_NAME, extended, match_conditions, other_conditions, unnamed
from contract.dialects.table import Dialects
from runtime.kubernetes.errors import KubeConflict, KubeInvalid
from runtime.kubernetes.paths import mutatingwebhookconfigurations

JSON = dict[str, Any]
_ATTEMPTS = 8
MOST = 32
"""Authorities in a bundle. A restarted pod may bring a new one, so the bundle would grow without a bound."""


class ConfigurationApi(Protocol):
    """The part of `runtime.kubernetes.client.Kube` that is needed."""

    def get(self, path: str) -> JSON: ...
    def patch_json(self, path: str, ops: list[JSON]) -> JSON: ...


def trust(kube: ConfigurationApi, configuration: str, ca: bytes, *, now: datetime.datetime) -> int:
    """
    Put the PEM authority `ca` into every webhook of the named configuration; returns how many webhooks changed.

    Raises `KubeError`, also where other writers were faster several times in a row.
    """
    return _change(kube, configuration, lambda found: _trusting(found, ca, now=now))


def let_through(kube: ConfigurationApi, configuration: str, renamed: Sequence[str]) -> int:
    """
    Let pods through that name the `renamed` resources; returns how many conditions changed.

    A condition that names all of them already stays as it is. Raises as `trust` does, and `KubeInvalid` if a
    condition that was written by hand lacks a name: we must not rewrite it.
    """
    found: JSON = {}

    def wanted(read: JSON) -> list[JSON]:
        found.update(read)
        return naming(read, renamed)

    changed = _change(kube, configuration, wanted)
    if left := lacking(found, renamed):
        raise KubeInvalid(
            f"a manually written condition of {configuration} does not name {', '.join(left)}; apply the output of "
            f"`python -m webhook conditions`"
        )
    return changed


def _change(kube: ConfigurationApi, configuration: str, wanted: Callable[[JSON], list[JSON]]) -> int:
    """
    Apply the JSON patch operations that `wanted` returns for the configuration; returns their number.

    Other replicas and administrators write the same object, so a patch is valid only for the version that was read.
    """
    path = mutatingwebhookconfigurations(configuration)
    for attempt in range(1, _ATTEMPTS + 1):
        found = kube.get(path)
        changes = wanted(found)
        if not changes:
            return 0
        version = {"op": "test", "path": "/metadata/resourceVersion", "value": found["metadata"]["resourceVersion"]}
        try:
            kube.patch_json(path, [version, *changes])
        except (KubeConflict, KubeInvalid):
            # Most likely another writer changed the object in between: read it again.
            if attempt == _ATTEMPTS:
                raise
            continue
        return len(changes)
    raise AssertionError("the last attempt returns or raises")


# -- the authorities ----------------------------------------------------------------------------------------------


def _trusting(configuration: Mapping[str, Any], ca: bytes, *, now: datetime.datetime) -> list[JSON]:
    """One JSON patch operation for each webhook whose bundle must change."""
    changes = []
    for position, webhook in enumerate(configuration.get("webhooks") or []):
        present = (webhook.get("clientConfig") or {}).get("caBundle") or ""
        wanted = base64.b64encode(merged(_decoded(present), ca, now=now)).decode("ascii")
        if wanted != present:
            changes.append({"op": "add", "path": f"/webhooks/{position}/clientConfig/caBundle", "value": wanted})
    return changes


def merged(present: bytes, ca: bytes, *, now: datetime.datetime) -> bytes:
    """The bundle `present` with the authority `ca`, and without unreadable, expired and repeated certificates."""
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
    """The readable certificates of a bundle; an unreadable one does not spoil the others."""
    end = b"-----END CERTIFICATE-----"
    found = []
    for piece in pem.split(end)[:-1]:
        try:
            found.append(x509.load_pem_x509_certificate(piece + end))
        except ValueError:
            continue
    return found


# -- the match conditions -----------------------------------------------------------------------------------------


def naming(configuration: Mapping[str, Any], renamed: Sequence[str]) -> list[JSON]:
    """
    One JSON patch operation for each of our conditions that does not name all `renamed` resources and can be extended.

    Names are only added, and the condition of all other pods stays the opposite of ours, so every pod is sent through
    one of the two entries, and the policy of this account can enforce that.
    """
    return [
        {"op": "replace", "path": f"/webhooks/{entry}/matchConditions/{place}/expression", "value": made}
        for entry, place, expression in _ours(configuration)
        if unnamed(expression, renamed) and (made := extended(expression, renamed)) is not None
    ]


def lacking(configuration: Mapping[str, Any], renamed: Sequence[str]) -> tuple[str, ...]:
    """The `renamed` resources that one of our conditions does not name and that cannot be added to it."""
    closed = [expression for _, _, expression in _ours(configuration) if extended(expression, renamed) is None]
    return tuple(dict.fromkeys(each for expression in closed for each in unnamed(expression, renamed)))


def _ours(configuration: Mapping[str, Any]) -> Iterator[tuple[int, int, str]]:
    """Our conditions: the numbers of the entry and of the condition in it, and the expression."""
    for entry, webhook in enumerate(configuration.get("webhooks") or []):
        for place, each in enumerate(webhook.get("matchConditions") or []):
            if each["name"] in (NAME, OTHERS_NAME):
                yield entry, place, each["expression"]


def patch(configuration: str, renamed: Sequence[str], *, hide_gpus: bool, dialects: Dialects = DIALECTS) -> str:
    """The conditions as a kustomization's patch in YAML, for clusters where no program may write the configuration."""
    ours, others = _conditions(dialects, renamed)
    entries = [("pods.gpufraction.io", ours), *([("others.gpufraction.io", others)] if hide_gpus else [])]
    return _HEAD.format(configuration=configuration) + "".join(
        _ENTRY.format(webhook=webhook, name=each["name"], expression=indent(each["expression"], " " * 10))
        for webhook, each in entries
    )


_HEAD = """apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata:
  name: {configuration}
webhooks:
"""
_ENTRY = """  - name: {webhook}
    matchConditions:
      - name: {name}
        expression: |-
{expression}
"""


def _conditions(dialects: Dialects, renamed: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """The condition for pods with a share, and the one for all others; each webhook has one condition."""
    ((ours,), (others,)) = match_conditions(dialects, renamed), other_conditions(dialects, renamed)
    assert (ours["name"], others["name"]) == (NAME, OTHERS_NAME)
    return ours, others
