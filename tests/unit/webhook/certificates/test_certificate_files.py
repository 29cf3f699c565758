"""Certificates on disk: who may read which file, and a reader during a replacement."""

from __future__ import annotations

import dataclasses
import ssl
import stat
import threading
import time
from pathlib import Path

import pytest

from tests.unit.webhook.certificates.cluster import NAMES, NOW, places
from webhook.app import unready
from webhook.certificates.authority import Bundle, expiry, renewed
from webhook.certificates.store import Directories
from webhook.serving.tls import ServingContext


def test_what_is_written_is_read_back(tmp_path: Path, bundle: Bundle) -> None:
    here = places(tmp_path / "made" / "here")
    here.write(bundle)
    assert here.read() == bundle
    assert modes(here.serving) == {"tls.crt": 0o644, "tls.key": 0o600, "ca.crt": 0o644}
    assert modes(here.authority) == {"ca.crt": 0o644, "ca.key": 0o600}
    assert stat.S_IMODE(here.authority.stat().st_mode) == 0o700


def modes(directory: Path) -> dict[str, int]:
    """The existing files with their modes. Names that start with a dot are internal to the directory."""
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir() if path.name[0] != "."}


def test_the_authoritys_key_is_nowhere_below_what_the_webhook_reads(tmp_path: Path, bundle: Bundle) -> None:
    here = places(tmp_path)
    here.prepare(bundle)
    here.write(bundle)
    holding = {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*") if has(path, bundle.ca_key)}
    assert holding == {"authority"}


def has(path: Path, content: bytes) -> bool:
    return path.is_file() and content in path.read_bytes()


def test_a_key_of_another_authority_than_the_served_ones_is_left_out(tmp_path: Path, bundle: Bundle) -> None:
    """This is the state after a stop between the two writes."""
    here, other = places(tmp_path / "here"), places(tmp_path / "other")
    here.write(bundle)
    other.write(renewed(None, NOW, NAMES))
    assert Directories(here.serving, other.authority).read() == dataclasses.replace(bundle, ca_key=b"")


def test_an_empty_directory_has_no_certificate(tmp_path: Path) -> None:
    assert places(tmp_path).read() is None


def test_plain_files_are_read_and_replaced(tmp_path: Path, bundle: Bundle) -> None:
    here = places(tmp_path)
    (here.serving / "tls.crt").write_bytes(b"old")
    (here.serving / "tls.key").write_bytes(b"old")
    assert here.read() == Bundle(ca=b"", certificate=b"old", key=b"old", ca_key=b"")
    here.write(bundle)
    assert here.read() == bundle
    assert (here.serving / "tls.crt").read_bytes() == bundle.certificate


def test_old_versions_go_but_the_last_one_stays_for_readers(tmp_path: Path, bundle: Bundle) -> None:
    here = places(tmp_path)
    for number in range(4):
        here.write(dataclasses.replace(bundle, ca_key=str(number).encode()))
    assert [len(list(one.glob("..version-*"))) for one in (here.serving, here.authority)] == [2, 2]
    assert here.read() == dataclasses.replace(bundle, ca_key=b"3")


def test_a_reader_never_sees_a_mixed_pair(tmp_path: Path) -> None:
    """Versions are replaced as fast as possible while a reader loads pairs as fast as possible."""
    versions = [renewed(None, NOW, NAMES) for _ in range(2)]
    here = places(tmp_path)
    here.write(versions[0])
    serving = ServingContext(here.serving)
    stop = threading.Event()

    def exchange() -> None:
        while not stop.is_set():
            for version in versions:
                here.write(version)

    writer = threading.Thread(target=exchange, name="writer", daemon=True)
    writer.start()
    contexts: list[ssl.SSLContext] = []
    until = time.monotonic() + 20
    try:
        while len(contexts) < 10 and time.monotonic() < until:
            context = serving.current()  # OpenSSL refuses a certificate with another certificate's key
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


def test_kubelets_exchange_of_a_secret_is_seen(tmp_path: Path) -> None:
    """The layout of kubelet's atomic writer: a folder named by time, `..data` as a link to it, and one rename."""

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
