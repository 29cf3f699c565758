"""
Certificates in directories, exchanged in one step.

Two directories, because two programs with different rights read them: what the webhook serves (`tls.crt`, `tls.key`,
`ca.crt`), and the authority (`ca.crt`, `ca.key`), with which whoever reads it can make the API server trust him. In
each the files of one version lie in a folder of their own, `..data` is a symlink to the current one, and the names are
symlinks through it: kubelet's layout for Secret volumes, so that a reader written for those never meets a certificate
with the key of another. The exchange is one rename of `..data`.

Must not judge certificates; see `webhook.certificates.authority`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from webhook.certificates.authority import Bundle

CERTIFICATE, KEY, CA, CA_KEY = "tls.crt", "tls.key", "ca.crt", "ca.key"
_CURRENT, _VERSION_PREFIX, _LOCK, _NEXT = "..data", "..version-", "..lock", "next"
_SECRET = (KEY, CA_KEY)
_KEPT = 2
"""Versions that stay: the current one, and the one that a reader may be in the middle of."""


@dataclass(frozen=True, slots=True)
class CertificatePaths:
    """Where the files lie. `authority` is for the keeper of certificates alone."""

    serving: Path
    authority: Path

    @property
    def next(self) -> Path:
        """Where a bundle of the authority that comes next waits for its time."""
        return self.authority / _NEXT


@contextlib.contextmanager
def locked(places: CertificatePaths) -> Iterator[None]:
    """Holds the directories against other writers on this machine; makes them where they are missing."""
    places.serving.mkdir(mode=0o755, parents=True, exist_ok=True)
    with locked_folder(places.authority):
        yield


@contextlib.contextmanager
def locked_folder(authority: Path) -> Iterator[None]:
    """Holds the authority's folder alone, where what is served lies elsewhere."""
    authority.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(authority / _LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def read(places: CertificatePaths) -> Bundle | None:
    """
    The bundle, None where there is no certificate. Raises `OSError` for what cannot be read.

    The authority's key is left out where it is not the key of the authority that the served certificate is from.
    """
    served = _get(places.serving, (CERTIFICATE, KEY, CA))
    if not served[CERTIFICATE]:
        return None
    ca_key = authority_key(places, served[CA])
    return Bundle(ca=served[CA], certificate=served[CERTIFICATE], key=served[KEY], ca_key=ca_key)


def authority_key(places: CertificatePaths, ca: bytes) -> bytes:
    """The key of the authority `ca`; empty where another's is here, or none."""
    authority = _get(places.authority, (CA, CA_KEY))
    return authority[CA_KEY] if authority[CA] == ca else b""


def write_authority(places: CertificatePaths, bundle: Bundle) -> None:
    """Keep the bundle's authority. Call it while holding the lock."""
    _put(places.authority, {CA: bundle.ca, CA_KEY: bundle.ca_key})


def forget_prepared(places: CertificatePaths) -> None:
    """What was put aside is served now."""
    shutil.rmtree(places.next, ignore_errors=True)


def write(places: CertificatePaths, bundle: Bundle) -> None:
    """Put the bundle in place, all that is served at once for readers. Call it while holding `locked`."""
    # In this order: a stop in between leaves what was served before, from an authority whose key is gone.
    write_authority(places, bundle)
    _put(places.serving, {CERTIFICATE: bundle.certificate, KEY: bundle.key, CA: bundle.ca})
    forget_prepared(places)


def prepared(places: CertificatePaths) -> Bundle | None:
    """The bundle that was put aside to be served later, or None."""
    found = _get(places.next, (CERTIFICATE, KEY, CA, CA_KEY))
    if not found[CERTIFICATE]:
        return None
    return Bundle(ca=found[CA], certificate=found[CERTIFICATE], key=found[KEY], ca_key=found[CA_KEY])


def prepare(places: CertificatePaths, bundle: Bundle) -> None:
    """Put a bundle aside. Call it while holding `locked`."""
    places.next.mkdir(mode=0o700, exist_ok=True)
    _put(places.next, {CERTIFICATE: bundle.certificate, KEY: bundle.key, CA: bundle.ca, CA_KEY: bundle.ca_key})


def _get(directory: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """The named files of one version; empty for those that are missing."""
    base = directory / _CURRENT
    source = base.resolve() if base.exists() else directory
    return {name: _bytes(source / name) for name in names}


def _put(directory: Path, contents: Mapping[str, bytes]) -> None:
    version = Path(tempfile.mkdtemp(prefix=_VERSION_PREFIX, dir=directory))
    try:
        _fill(version, contents)
    except OSError:
        shutil.rmtree(version, ignore_errors=True)
        raise
    _link(directory / _CURRENT, version.name)
    for name in contents:
        target = f"{_CURRENT}/{name}"
        path = directory / name
        if not path.is_symlink() or os.readlink(path) != target:
            _link(path, target)
    _forget_old(directory, version)


def _fill(version: Path, contents: Mapping[str, bytes]) -> None:
    version.chmod(0o755)  # the keys are guarded by their own mode
    for name, content in contents.items():
        mode = 0o600 if name in _SECRET else 0o644
        descriptor = os.open(version / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)


def _link(path: Path, target: str) -> None:
    temporary = path.with_name(f"{path.name}.new")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    os.replace(temporary, path)


def _forget_old(directory: Path, current: Path) -> None:
    versions = [path for path in directory.glob(f"{_VERSION_PREFIX}*") if path != current]
    versions.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in versions[_KEPT - 1 :]:
        shutil.rmtree(path, ignore_errors=True)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


class Directories:
    """The same, bound to two places: what a keeper of certificates works on."""

    def __init__(self, places: CertificatePaths) -> None:
        self._places, self.where = places, str(places.serving)

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """See `locked`."""
        return locked(self._places)

    def read(self) -> Bundle | None:
        """See `read`."""
        return read(self._places)

    def write(self, bundle: Bundle) -> None:
        """See `write`."""
        write(self._places, bundle)

    def prepared(self) -> Bundle | None:
        """See `prepared`."""
        return prepared(self._places)

    def prepare(self, bundle: Bundle) -> None:
        """See `prepare`."""
        prepare(self._places, bundle)
