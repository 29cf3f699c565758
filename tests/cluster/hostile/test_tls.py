"""Which TLS a stranger can negotiate with the webhooks: each version and suite of OpenSSL is tested on a port."""

from __future__ import annotations

import contextlib
import ssl

import pytest

from tests.cluster.hostile.attack import Hostile
from tests.cluster.hostile.strangers import complaints, plain
from tests.unit.webhook.serving.test_tls import TLS_1_2, VERSIONS, client

pytestmark = pytest.mark.hostile


def agreed(port: int, context: ssl.SSLContext) -> tuple[str, str] | None:
    """Version and suite of a handshake; None if the server ends it."""
    with contextlib.closing(plain(port)) as made:
        try:
            with context.wrap_socket(made) as secured:
                found = secured.cipher()
                return (secured.version() or "", found[0]) if found else None
        except OSError:
            return None


def test_tls_needs_forward_secrecy_and_authenticated_encryption(hostile: Hostile) -> None:
    """B5: TLS 1.2 without CBC, and 1.3."""
    older = client(ssl.TLSVersion.TLSv1_2)
    offered = {each["name"] for each in older.get_ciphers() if each["protocol"] != "TLSv1.3"}
    for replica in hostile.cluster.replicas:
        port = replica.webhook_port
        spoken = {version.name: (agreed(port, client(version)) or ("",))[0] for version in VERSIONS}
        assert spoken == {"TLSv1": "", "TLSv1_1": "", "TLSv1_2": "TLSv1.2", "TLSv1_3": "TLSv1.3"}
        answered = {name: agreed(port, client(ssl.TLSVersion.TLSv1_2, name)) for name in offered}
        assert {name for name, found in answered.items() if found} == TLS_1_2
    assert complaints(hostile) == []
