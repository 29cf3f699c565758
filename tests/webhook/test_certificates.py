"""Making certificates, judging them, writing them, and having them trusted."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import os
import ssl
import stat
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from runtime.kubeerrors import KubeInvalid, KubeNotFound
from webhook import cabundle, certfiles
from webhook.certfiles import Places
from webhook.certs import Bundle, Lives, expiry, needs_renewal, renewed, service_names
from webhook.ensuring import SETTLING, Ensure
from webhook.tls import ServingContext
from webhook.wiring import unready

JSON = dict[str, Any]
NOW = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)
NAMES = service_names("gpufraction-webhook", "gpufraction-system")
YEAR = timedelta(days=365)


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return renewed(None, NOW, NAMES)


def places(folder: Path) -> Places:
    """Both directories below a folder, made."""
    found = Places(folder / "serving", folder / "authority")
    with certfiles.locked(found):
        return found


def load(pem: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem)


def extension(certificate: x509.Certificate, kind: Any) -> Any:
    return certificate.extensions.get_extension_for_class(kind).value


def test_names_of_a_service() -> None:
    assert service_names("web", "ns") == ("web", "web.ns", "web.ns.svc", "web.ns.svc.cluster.local")


def test_the_authority_and_the_leaf_are_what_strict_clients_want(bundle: Bundle) -> None:
    ca, leaf = load(bundle.ca), load(bundle.certificate)
    leaf.verify_directly_issued_by(ca)
    assert extension(leaf, x509.SubjectAlternativeName).get_values_for_type(x509.DNSName) == list(NAMES)
    assert list(extension(leaf, x509.ExtendedKeyUsage)) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert extension(leaf, x509.BasicConstraints) == x509.BasicConstraints(ca=False, path_length=None)
    assert extension(ca, x509.BasicConstraints) == x509.BasicConstraints(ca=True, path_length=0)
    assert extension(leaf, x509.KeyUsage).digital_signature
    assert extension(ca, x509.KeyUsage).key_cert_sign
    identifier = extension(ca, x509.SubjectKeyIdentifier).digest
    assert extension(leaf, x509.AuthorityKeyIdentifier).key_identifier == identifier
    assert extension(leaf, x509.SubjectKeyIdentifier).digest != identifier
    early = NOW - timedelta(minutes=5)
    assert [(c.not_valid_before_utc, c.not_valid_after_utc) for c in (leaf, ca)] == [
        (early, NOW + YEAR),
        (early, NOW + 10 * YEAR),
    ]


def test_keys_do_not_show_in_a_repr(bundle: Bundle) -> None:
    assert "PRIVATE" not in repr(bundle)


def test_a_strict_client_accepts_it() -> None:
    now = datetime.datetime.now(datetime.UTC)
    made = renewed(None, now, NAMES)
    context = ssl.create_default_context(cadata=made.ca.decode())
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    assert shaken(made, context) == 1


def shaken(made: Bundle, client: ssl.SSLContext) -> int:
    """Number of certificates that the client trusted, over a handshake in memory."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        certfiles.write(places(Path(folder)), made)
        server = ServingContext(Path(folder) / "serving").current()
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=NAMES[2]),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert ends[0].version() in ("TLSv1.2", "TLSv1.3")
    return len(client.get_ca_certs())


JUDGED: dict[str, tuple[Any, timedelta, str | None]] = {
    "a new one is good": (lambda b: b, timedelta(0), None),
    "just before two thirds": (lambda b: b, YEAR * 2 / 3 - timedelta(minutes=10), None),
    "at two thirds it is due": (lambda b: b, YEAR * 2 / 3, "due"),
    "before it is valid": (lambda b: b, -timedelta(minutes=6), "not-yet"),
    "none": (lambda b: None, timedelta(0), "missing"),
    "no key": (lambda b: dataclasses.replace(b, key=b""), timedelta(0), "missing"),
    "a damaged certificate": (lambda b: dataclasses.replace(b, certificate=b"x"), timedelta(0), "unreadable"),
    "a damaged key": (lambda b: dataclasses.replace(b, key=b"x"), timedelta(0), "unreadable"),
    "another's key": (lambda b: dataclasses.replace(b, key=b.ca_key), timedelta(0), "mismatch"),
    "another authority": (
        lambda b: dataclasses.replace(b, ca=renewed(None, NOW, NAMES).ca),
        timedelta(0),
        "mismatch",
    ),
    "an authority that is due": (
        lambda b: renewed(None, NOW - 7 * YEAR, NAMES, lives=Lives(leaf=10 * YEAR)),
        timedelta(0),
        "due",
    ),
}


@pytest.mark.parametrize(("change", "later", "want"), JUDGED.values(), ids=JUDGED.keys())
def test_when_a_new_certificate_is_needed(bundle: Bundle, change: Any, later: timedelta, want: str | None) -> None:
    reason = needs_renewal(change(bundle), NOW + later, NAMES)
    assert (reason.code if reason else None) == want


def test_other_names_need_a_new_one(bundle: Bundle) -> None:
    reason = needs_renewal(bundle, NOW, [*NAMES, "example.org"])
    assert str(reason) == "names: the certificate lacks example.org"
    assert needs_renewal(bundle, NOW, NAMES[:2]) is None


def test_a_renewal_keeps_the_authority_while_it_can(bundle: Bundle) -> None:
    later = renewed(bundle, NOW + YEAR, NAMES)
    assert (later.ca, later.ca_key) == (bundle.ca, bundle.ca_key)
    assert later.certificate != bundle.certificate
    assert later.key != bundle.key
    assert needs_renewal(later, NOW + YEAR, NAMES) is None


NEW_AUTHORITY = {
    "its key is not here": lambda b: dataclasses.replace(b, ca_key=b""),
    "its key is damaged": lambda b: dataclasses.replace(b, ca_key=b"x"),
    "its key is another's": lambda b: dataclasses.replace(b, ca_key=b.key),
}


@pytest.mark.parametrize("change", NEW_AUTHORITY.values(), ids=NEW_AUTHORITY.keys())
def test_a_new_authority_is_made_when(bundle: Bundle, change: Any) -> None:
    later = renewed(change(bundle), NOW, NAMES)
    assert later.ca != bundle.ca
    assert needs_renewal(later, NOW, NAMES) is None


def test_an_authority_late_in_its_life_is_replaced(bundle: Bundle) -> None:
    assert renewed(bundle, NOW + 8 * YEAR, NAMES).ca != bundle.ca


# -- files ------------------------------------------------------------------------------------------------------------


def test_what_is_written_is_read_back(tmp_path: Path, bundle: Bundle) -> None:
    here = places(tmp_path / "made" / "here")
    certfiles.write(here, bundle)
    assert certfiles.read(here) == bundle
    assert modes(here.serving) == {"tls.crt": 0o644, "tls.key": 0o600, "ca.crt": 0o644}
    assert modes(here.authority) == {"ca.crt": 0o644, "ca.key": 0o600}
    assert stat.S_IMODE(here.authority.stat().st_mode) == 0o700


def modes(directory: Path) -> dict[str, int]:
    """The files that are there, with their modes; what starts with a dot is the directory's own business."""
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir() if path.name[0] != "."}


def test_the_authoritys_key_is_nowhere_below_what_the_webhook_reads(tmp_path: Path, bundle: Bundle) -> None:
    here = places(tmp_path)
    certfiles.prepare(here, bundle)
    certfiles.write(here, bundle)
    holding = {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*") if has(path, bundle.ca_key)}
    assert holding == {"authority"}


def has(path: Path, content: bytes) -> bool:
    return path.is_file() and content in path.read_bytes()


def test_a_key_of_another_authority_than_the_served_ones_is_left_out(tmp_path: Path, bundle: Bundle) -> None:
    """As after a stop between the two writes."""
    here, other = places(tmp_path / "here"), places(tmp_path / "other")
    certfiles.write(here, bundle)
    certfiles.write(other, renewed(None, NOW, NAMES))
    assert certfiles.read(Places(here.serving, other.authority)) == dataclasses.replace(bundle, ca_key=b"")


def test_an_empty_directory_has_no_certificate(tmp_path: Path) -> None:
    assert certfiles.read(places(tmp_path)) is None


def test_plain_files_are_read_and_replaced(tmp_path: Path, bundle: Bundle) -> None:
    here = places(tmp_path)
    (here.serving / "tls.crt").write_bytes(b"old")
    (here.serving / "tls.key").write_bytes(b"old")
    assert certfiles.read(here) == Bundle(ca=b"", certificate=b"old", key=b"old", ca_key=b"")
    certfiles.write(here, bundle)
    assert certfiles.read(here) == bundle
    assert (here.serving / "tls.crt").read_bytes() == bundle.certificate


def test_old_versions_go_but_the_last_one_stays_for_readers(tmp_path: Path, bundle: Bundle) -> None:
    here = places(tmp_path)
    for number in range(4):
        certfiles.write(here, dataclasses.replace(bundle, ca_key=str(number).encode()))
    assert [len(list(one.glob("..version-*"))) for one in (here.serving, here.authority)] == [2, 2]
    assert certfiles.read(here) == dataclasses.replace(bundle, ca_key=b"3")


def test_a_reader_never_sees_a_mixed_pair(tmp_path: Path) -> None:
    """Versions are exchanged as fast as possible under a reader that loads pairs as fast as possible."""
    versions = [renewed(None, NOW, NAMES) for _ in range(2)]
    here = places(tmp_path)
    certfiles.write(here, versions[0])
    serving = ServingContext(here.serving)
    stop = threading.Event()

    def exchange() -> None:
        while not stop.is_set():
            for version in versions:
                certfiles.write(here, version)

    writer = threading.Thread(target=exchange, name="writer", daemon=True)
    writer.start()
    contexts: list[ssl.SSLContext] = []
    until = time.monotonic() + 20
    try:
        while len(contexts) < 10 and time.monotonic() < until:
            context = serving.current()  # OpenSSL refuses a certificate with the key of another
            if context not in contexts:
                contexts.append(context)
    finally:
        stop.set()
        writer.join(10)
    assert len(contexts) == 10


def test_a_pair_that_does_not_fit_keeps_the_one_before_serving(tmp_path: Path, bundle: Bundle) -> None:
    for name, content in (("tls.crt", bundle.certificate), ("tls.key", bundle.key)):
        (tmp_path / name).write_bytes(content)
    context = ServingContext(tmp_path)
    first = context.current()
    (tmp_path / "tls.key").write_bytes(bundle.ca_key)
    assert context.current() is first
    (tmp_path / "tls.key").write_bytes(b"")
    assert context.current() is first
    (tmp_path / "tls.key").unlink()
    assert context.current() is first
    (tmp_path / "tls.key").write_bytes(bundle.key)
    second = context.current()
    assert second is not first
    assert context.current() is second


def test_without_a_certificate_there_is_no_context(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ServingContext(tmp_path).current()


def test_readiness_is_the_certificate(tmp_path: Path, bundle: Bundle) -> None:
    path = tmp_path / "tls.crt"
    assert unready(path, NOW) == "the serving certificate cannot be read: FileNotFoundError"
    path.write_bytes(b"x")
    assert unready(path, NOW) == "the serving certificate cannot be read: ValueError"
    path.write_bytes(bundle.certificate)
    assert unready(path, NOW) is None
    assert unready(path, expiry(bundle.certificate)) == "the serving certificate ended 2027-03-01 12:00"


# -- trust ------------------------------------------------------------------------------------------------------------


def authority(number: int, at: datetime.datetime = NOW) -> bytes:
    return renewed(None, at, (f"n{number}",)).ca


@pytest.fixture(scope="module")
def authorities() -> list[bytes]:
    return [authority(number) for number in range(3)]


def test_bundles_are_merged(authorities: list[bytes]) -> None:
    first, second, third = authorities
    old = authority(9, NOW - 11 * YEAR)
    junk = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    cases = {
        "nothing there": (b"", first),
        "a placeholder": (b"\n", first),
        "ours is there": (first, first),
        "another stays, in front": (second, second + first),
        "ours stays where it is": (first + second, first + second),
        "an ended one goes": (old + second, second + first),
        "doubles go": (second + second, second + first),
        "an unreadable one spoils nothing": (junk + third, third + first),
    }
    assert {name: cabundle.merged(present, first, now=NOW) for name, (present, _) in cases.items()} == {
        name: want for name, (_, want) in cases.items()
    }


def test_a_bundle_does_not_grow_without_end(authorities: list[bytes]) -> None:
    many = [authority(number, NOW - timedelta(days=number)) for number in range(1, cabundle.MOST + 4)]
    merged = cabundle.merged(b"".join(many), authorities[0], now=NOW)
    assert merged == b"".join(many[: cabundle.MOST - 1]) + authorities[0]


class Api:
    """One configuration with the API server's rule on the version; `races` writers come in between first."""

    def __init__(self, *bundles: str, races: int = 0) -> None:
        self.webhooks: list[JSON] = [{"name": f"w{i}", "clientConfig": {"caBundle": b}} for i, b in enumerate(bundles)]
        self.version, self.races, self.writes = 1, races, 0

    def get(self, path: str) -> JSON:
        assert path == "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/gpufraction"
        return {"metadata": {"resourceVersion": str(self.version)}, "webhooks": self.webhooks}

    def patch_json(self, path: str, ops: list[JSON]) -> JSON:
        if self.races:
            self.races -= 1
            self.version += 1
        test, *changes = ops
        if test != {"op": "test", "path": "/metadata/resourceVersion", "value": str(self.version)}:
            raise KubeInvalid("the version has moved on")
        for change in changes:
            position = int(change["path"].split("/")[2])
            assert change == {
                "op": "add",
                "path": f"/webhooks/{position}/clientConfig/caBundle",
                "value": change["value"],
            }
            self.webhooks[position]["clientConfig"]["caBundle"] = change["value"]
        self.writes += 1
        self.version += 1
        return {}


def b64(pem: bytes) -> str:
    return base64.b64encode(pem).decode()


def test_every_webhook_of_the_configuration_gets_the_authority_once(authorities: list[bytes]) -> None:
    first, second, _ = authorities
    api = Api("", b64(second), "!", b64(first))
    assert cabundle.trust(api, "gpufraction", first, now=NOW) == 3
    assert [w["clientConfig"]["caBundle"] for w in api.webhooks] == [
        b64(first),
        b64(second + first),
        b64(first),
        b64(first),
    ]
    assert cabundle.trust(api, "gpufraction", first, now=NOW) == 0
    assert api.writes == 1


def test_a_writer_in_between_is_not_overwritten(authorities: list[bytes]) -> None:
    api = Api("", races=3)
    assert cabundle.trust(api, "gpufraction", authorities[0], now=NOW) == 1
    with pytest.raises(KubeInvalid):
        cabundle.trust(Api("", races=100), "gpufraction", authorities[0], now=NOW)


# -- all of it --------------------------------------------------------------------------------------------------------


def ensure(folder: Path, api: Any, said: list[str], now: datetime.datetime = NOW) -> Ensure:
    return Ensure(
        places=places(folder),
        names=NAMES,
        configuration="gpufraction",
        connect=lambda kubeconfig: api,
        now=lambda: now,
        say=said.append,
    )


def test_ensuring_makes_keeps_and_renews(tmp_path: Path) -> None:
    api = Api("")
    said: list[str] = []
    assert [ensure(tmp_path, api, said).once() for _ in range(2)] == [0, 0]
    first = certfiles.read(places(tmp_path))
    assert ensure(tmp_path, api, said, NOW + YEAR * 0.7).once() == 0
    second = certfiles.read(places(tmp_path))
    assert first is not None
    assert second is not None
    assert (first.ca == second.ca, first.certificate == second.certificate) == (True, False)
    assert said == [
        "the authority is now in 1 webhooks of gpufraction",
        f"a new certificate is in {tmp_path / 'serving'} (missing: there is no complete certificate)",
        f"the certificate in {tmp_path / 'serving'} is good",
        f"a new certificate is in {tmp_path / 'serving'} (due: the certificate ends 2027-03-01 12:00 and has two "
        "thirds of its life behind it)",
    ]


def test_a_certificate_that_nobody_trusts_yet_is_not_served(tmp_path: Path) -> None:
    class Missing(Api):
        def get(self, path: str) -> JSON:
            raise KubeNotFound("GET: 404")

    said: list[str] = []
    assert ensure(tmp_path, Missing(""), said).once() == 1
    assert certfiles.read(places(tmp_path)) is None
    assert said == []


def test_looking_again_ends_with_the_stop_and_says_only_what_changed(tmp_path: Path) -> None:
    stop = threading.Event()
    said: list[str] = []
    looks: list[datetime.datetime] = []

    def clock() -> datetime.datetime:
        looks.append(NOW)
        if len(looks) > 5:
            stop.set()
        return NOW

    looped = dataclasses.replace(ensure(tmp_path, Api(""), said), now=clock)
    looped.until(stop, every=0.001)
    assert len(looks) == 6
    assert len(said) == 2
    assert os.path.islink(tmp_path / "serving" / "tls.crt")


# -- a new authority --------------------------------------------------------------------------------------------------

DUE_AT = NOW + 7 * YEAR
"""By then two thirds of the authority's life are over, and so are those of a certificate that lives as long."""
LONG = Lives(leaf=10 * YEAR)


def test_a_new_authority_is_trusted_beside_the_old_one_before_it_serves(tmp_path: Path) -> None:
    api = Api("")
    said: list[str] = []

    def look(at: datetime.datetime) -> tuple[Bundle, bytes]:
        """The bundle that is served after a look, and the authorities that are trusted then."""
        assert dataclasses.replace(ensure(tmp_path, api, said, at), lives=LONG).once() == 0
        served = certfiles.read(places(tmp_path))
        assert served is not None
        return served, base64.b64decode(api.webhooks[0]["clientConfig"]["caBundle"])

    first, _ = look(NOW)
    aside, both = look(DUE_AT)
    soon, same = look(DUE_AT + SETTLING / 2)
    second, after = look(DUE_AT + SETTLING)
    kept, _ = look(DUE_AT + 2 * SETTLING)
    assert (aside, soon, kept) == (first, first, second)
    assert second.ca != first.ca
    assert both == same == after == first.ca + second.ca
    assert needs_renewal(second, DUE_AT, NAMES) is None
    assert certfiles.prepared(places(tmp_path)) is None
    why = "due: the certificate ends 2036-02-27 12:00 and has two thirds of its life behind it"
    assert said[2:] == [
        "the authority is now in 1 webhooks of gpufraction",
        f"a new authority is ready and will be used when the API servers know it ({why})",
        f"a new authority is ready and will be used when the API servers know it ({why})",
        f"a new certificate is in {tmp_path / 'serving'} ({why})",
        f"the certificate in {tmp_path / 'serving'} is good",
    ]


def test_a_new_authority_that_was_just_taken_out_again_waits_another_look(tmp_path: Path) -> None:
    api = Api("")
    said: list[str] = []
    for at in (NOW, DUE_AT):
        assert dataclasses.replace(ensure(tmp_path, api, said, at), lives=LONG).once() == 0
    first = certfiles.read(places(tmp_path))
    api.webhooks[0]["clientConfig"]["caBundle"] = ""
    for at in (DUE_AT + SETTLING, DUE_AT + 2 * SETTLING):
        assert certfiles.read(places(tmp_path)) == first
        assert dataclasses.replace(ensure(tmp_path, api, said, at), lives=LONG).once() == 0
    assert certfiles.read(places(tmp_path)) != first


def test_a_certificate_that_has_ended_is_replaced_at_once(tmp_path: Path) -> None:
    api = Api("")
    said: list[str] = []
    for at in (NOW, NOW + 11 * YEAR):
        assert ensure(tmp_path, api, said, at).once() == 0
    assert said[-1].startswith("a new certificate is in ")


def test_kubelets_exchange_of_a_secret_is_seen(tmp_path: Path) -> None:
    """The layout of kubelet's atomic writer: a folder by time, `..data` to it, and one rename."""

    def exchange(version: str, made: Bundle) -> None:
        folder = tmp_path / f"..{version}"
        folder.mkdir()
        (folder / "tls.crt").write_bytes(made.certificate)
        (folder / "tls.key").write_bytes(made.key)
        (tmp_path / "..data_tmp").symlink_to(folder.name)
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")

    exchange("2026_03_01_12_00_00.1", renewed(None, NOW, NAMES))
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    context = ServingContext(tmp_path)
    first = context.current()
    assert context.current() is first
    exchange("2027_03_01_12_00_00.1", renewed(None, NOW, NAMES))
    assert context.current() is not first
