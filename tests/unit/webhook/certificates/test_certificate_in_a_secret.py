"""The serving certificate in a Secret: what is written there and what is not, and which writers may be late."""

from __future__ import annotations

import base64
import datetime
from pathlib import Path
from typing import Any

import pytest

from runtime.kubernetes.errors import KubeConflict, KubeNotFound
from tests.unit.webhook.certificates.cluster import JSON, NAMES, NOW, YEAR, Api, places
from webhook.certificates.authority import needs_renewal
from webhook.certificates.keeper import SETTLING, Ensure
from webhook.certificates.store import Secret

WHERE = "Secret gpufraction-system/certs"


class Secrets:
    """One Secret with the API server's rule about versions."""

    def __init__(self, data: JSON | None = None) -> None:
        self.data, self.version = data or {}, 1

    def get(self, path: str) -> JSON:
        assert path == "/api/v1/namespaces/gpufraction-system/secrets/certs"
        return {"metadata": {"resourceVersion": str(self.version)}, "data": dict(self.data)}

    def patch_merge(self, path: str, body: JSON) -> JSON:
        if body["metadata"]["resourceVersion"] != str(self.version):
            raise KubeConflict("the version has moved on")
        self.data |= body["data"]
        self.version += 1
        return {}


def secret(folder: Path, api: Any) -> Secret:
    return Secret(api, "gpufraction-system", "certs", places(folder))


def ensure(folder: Path, secrets: Secrets, api: Any, logged: list[str], now: datetime.datetime = NOW) -> Ensure:
    return Ensure(
        store=lambda: secret(folder, secrets),
        names=NAMES,
        configuration="gpufraction",
        connect=lambda: api,
        now=lambda: now,
        say=logged.append,
    )


def test_the_secret_has_what_is_served_and_never_the_authoritys_key(tmp_path: Path) -> None:
    secrets, logged = Secrets(), list[str]()
    assert ensure(tmp_path, secrets, Api(""), logged).once() == 0
    found = secret(tmp_path, secrets).read()
    assert needs_renewal(found, NOW, NAMES) is None
    assert secrets.data.keys() == {"tls.crt", "tls.key", "ca.crt"}
    assert found is not None
    assert found.ca_key
    assert found.ca_key not in [base64.b64decode(text) for text in secrets.data.values()]
    assert places(tmp_path).read() is None, "nothing is served from files"
    assert logged[-1] == f"a new certificate is in {WHERE} (missing: there is no complete certificate)"


def test_a_renewal_keeps_the_authority_while_its_key_is_here(tmp_path: Path) -> None:
    secrets, logged, api = Secrets(), list[str](), Api("")
    assert ensure(tmp_path, secrets, api, logged).once() == 0
    first = secret(tmp_path, secrets).read()
    assert ensure(tmp_path, secrets, api, logged, NOW + YEAR * 0.7).once() == 0
    second = secret(tmp_path, secrets).read()
    assert first is not None
    assert second is not None
    assert (first.ca == second.ca, first.certificate == second.certificate) == (True, False)


def test_a_replaced_keeper_changes_nothing_until_the_certificate_is_due(tmp_path: Path) -> None:
    secrets, logged, api = Secrets(), list[str](), Api("")
    assert ensure(tmp_path / "a", secrets, api, logged).once() == 0
    before, writes = dict(secrets.data), api.writes
    assert ensure(tmp_path / "b", secrets, api, logged).once() == 0
    assert (secrets.data, api.writes, logged[-1]) == (before, writes, f"the certificate in {WHERE} is good")
    # It is due: a new authority, which is trusted for a while before it serves.
    due = NOW + YEAR * 0.7
    assert ensure(tmp_path / "b", secrets, api, logged, due).once() == 0
    assert (secrets.data, api.writes) == (before, writes + 1)
    later = due + SETTLING + datetime.timedelta(seconds=1)
    assert ensure(tmp_path / "b", secrets, api, logged, later).once() == 0
    assert secrets.data != before
    assert needs_renewal(secret(tmp_path / "b", secrets).read(), later, NAMES) is None


def test_of_two_keepers_one_writes(tmp_path: Path) -> None:
    secrets = Secrets()
    first, second = secret(tmp_path / "a", secrets), secret(tmp_path / "b", secrets)
    assert (first.read(), second.read()) == (None, None)
    made = Ensure(store=lambda: places(tmp_path / "c"), names=NAMES, now=lambda: NOW, say=lambda line: None)
    assert made.once() == 0
    bundle = places(tmp_path / "c").read()
    assert bundle is not None
    first.write(bundle)
    with pytest.raises(KubeConflict):
        second.write(bundle)


@pytest.mark.parametrize("data", [{"tls.crt": "?"}, {"tls.crt": None}, {"tls.crt": ["x"]}, {"tls.key": "eA=="}])
def test_whatever_stands_in_the_secret_a_good_certificate_takes_its_place(data: JSON, tmp_path: Path) -> None:
    secrets, logged = Secrets(data), list[str]()
    assert ensure(tmp_path, secrets, Api(""), logged).once() == 0
    assert needs_renewal(secret(tmp_path, secrets).read(), NOW, NAMES) is None


def test_without_the_secret_nothing_is_trusted_and_the_next_look_tries_again(tmp_path: Path) -> None:
    class Missing(Secrets):
        def get(self, path: str) -> JSON:
            raise KubeNotFound("GET: 404")

    api, logged = Api(""), list[str]()
    assert ensure(tmp_path, Missing(), api, logged).once() == 1
    assert (api.writes, logged) == (0, [])
