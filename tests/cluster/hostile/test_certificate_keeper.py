"""B4: the keeper of certificates as it is installed: its own pod, its own token, and the certificate in a Secret."""

from __future__ import annotations

import base64
import datetime
import ssl
from pathlib import Path

import pytest

from contract import names
from playground.cluster import account
from playground.programs.process import Program
from runtime.kubernetes import paths
from tests.cluster.hostile.attack import Hostile
from webhook.certificates.authority import Bundle, needs_renewal, service_names

pytestmark = [pytest.mark.hostile, pytest.mark.long]

SECRET = paths.secrets(names.NAMESPACE, "gpufraction-webhook-certs")
HOOK = paths.mutatingwebhookconfigurations("zz-gpufraction-webhook")
SERVICE = service_names("gpufraction-webhook", names.NAMESPACE)


@pytest.fixture
def restored(hostile: Hostile) -> Hostile:
    """Other tests find the Secret empty, as after the installation."""
    hostile.kube.patch_merge(SECRET, {"data": None})
    return hostile


def keeper(hostile: Hostile, folder: Path) -> Program:
    """The program with the account's own token; it ends after its first look."""
    config = folder / "kubeconfig"
    config.write_text(hostile.cluster.control_plane.kubeconfig(account("gpufraction-certs")))
    arguments = [
        *("webhook", "certs", "--secret", "gpufraction-webhook-certs", "--authority", str(folder / "authority")),
        *("--configuration", "zz-gpufraction-webhook", "--names", "localhost"),
    ]
    return Program("keeper", arguments, log=folder / "keeper.log", environment={"KUBECONFIG": str(config)})


def served(hostile: Hostile) -> Bundle:
    data = {key: base64.b64decode(text) for key, text in (hostile.kube.get(SECRET).get("data") or {}).items()}
    assert data.keys() == {"tls.crt", "tls.key", "ca.crt"}
    return Bundle(ca=data["ca.crt"], certificate=data["tls.crt"], key=data["tls.key"], ca_key=b"")


def authorities(hostile: Hostile) -> int:
    """How many authorities the first webhook trusts."""
    text = base64.b64decode(hostile.kube.get(HOOK)["webhooks"][0]["clientConfig"]["caBundle"])
    context = ssl.create_default_context(cadata=text.decode())
    return len(context.get_ca_certs())


def test_the_keepers_token_is_enough_to_make_trust_and_keep_a_certificate(restored: Hostile, tmp_path: Path) -> None:
    """B4: it needs two rights on two of our objects, and no file that the webhook shares."""
    before = authorities(restored)
    keeper(restored, tmp_path).run()
    first = served(restored)
    assert needs_renewal(first, datetime.datetime.now(datetime.UTC), (*SERVICE, "localhost")) is None
    assert authorities(restored) == before + 1
    assert first.ca in base64.b64decode(restored.kube.get(HOOK)["webhooks"][0]["clientConfig"]["caBundle"])
    # A new keeper pod has no key of the authority, and does not replace a valid certificate.
    (tmp_path / "second").mkdir()
    keeper(restored, tmp_path / "second").run()
    assert (served(restored), authorities(restored)) == (first, before + 1)
