"""
Where the certificate is stored: in two directories, or in a Secret and one directory.

There are two directories because two programs with different rights read them: `serving` has what the webhook serves
(`tls.crt`, `tls.key`, `ca.crt`), and `authority` has what signs it (`ca.crt`, `ca.key`). Anyone who can read the second
can impersonate the webhook to the API server.

In each directory the files of one version lie in a folder of their own, `..data` is a symlink to the current folder,
and the file names are symlinks through `..data`. One rename of `..data` replaces all files at once, so a reader never
meets a certificate with the key of another. Kubelet lays Secret volumes out in the same way.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from runtime.kubernetes.paths import secrets
from webhook.certificates.authority import Bundle

JSON = dict[str, Any]
CERTIFICATE, KEY, CA, CA_KEY = "tls.crt", "tls.key", "ca.crt", "ca.key"
_CURRENT, _VERSION_PREFIX, _LOCK, _NEXT = "..data", "..version-", "..lock", "next"
_SECRET = (KEY, CA_KEY)
_KEPT = 2
"""Versions that stay: the current one, and the one before, which a reader may have opened."""


class Store(Protocol):
    """Where the certificate is stored. `where` names the place in messages. Methods raise `KubeError` or `OSError`."""

    @property
    def where(self) -> str: ...
    def locked(self) -> AbstractContextManager[None]:
        """Excludes other writers on this machine."""

    def read(self) -> Bundle | None:
        """The stored bundle, None without a certificate; without the authority's key if that belongs to another
        authority."""

    def write(self, bundle: Bundle) -> None:
        """Replace the stored bundle in one step. Call it while holding `locked`."""

    def prepared(self) -> Bundle | None:
        """The bundle that was set aside to be served later, or None."""

    def prepare(self, bundle: Bundle) -> None:
        """Set a bundle aside. Call it while holding `locked`."""


@dataclass(frozen=True, slots=True)
class Directories:
    """The `Store` in two directories."""

    serving: Path
    authority: Path

    @property
    def where(self) -> str:
        return str(self.serving)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        self.serving.mkdir(mode=0o755, parents=True, exist_ok=True)
        with self.locked_authority():
            yield

    @contextlib.contextmanager
    def locked_authority(self) -> Iterator[None]:
        self.authority.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(self.authority / _LOCK, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def read(self) -> Bundle | None:
        served = _get(self.serving, (CERTIFICATE, KEY, CA))
        return self.with_authority(served) if served[CERTIFICATE] else None

    def with_authority(self, served: Mapping[str, bytes]) -> Bundle:
        """The bundle of the files `served`, with the authority's key if the stored key is that authority's."""
        stored = _get(self.authority, (CA, CA_KEY))
        ca_key = stored[CA_KEY] if stored[CA] == served[CA] else b""
        return Bundle(ca=served[CA], certificate=served[CERTIFICATE], key=served[KEY], ca_key=ca_key)

    def write(self, bundle: Bundle) -> None:
        # In this order: a stop in between leaves the earlier certificate in service, without its authority's key.
        self.write_authority(bundle)
        _put(self.serving, {CERTIFICATE: bundle.certificate, KEY: bundle.key, CA: bundle.ca})
        self.forget_prepared()

    def write_authority(self, bundle: Bundle) -> None:
        """Store the bundle's authority. Call it while holding the lock."""
        _put(self.authority, {CA: bundle.ca, CA_KEY: bundle.ca_key})

    def prepared(self) -> Bundle | None:
        found = _get(self.authority / _NEXT, (CERTIFICATE, KEY, CA, CA_KEY))
        if not found[CERTIFICATE]:
            return None
        return Bundle(ca=found[CA], certificate=found[CERTIFICATE], key=found[KEY], ca_key=found[CA_KEY])

    def prepare(self, bundle: Bundle) -> None:
        aside = self.authority / _NEXT
        aside.mkdir(mode=0o700, exist_ok=True)
        _put(aside, {CERTIFICATE: bundle.certificate, KEY: bundle.key, CA: bundle.ca, CA_KEY: bundle.ca_key})

    def forget_prepared(self) -> None:
        """Remove the bundle that was set aside."""
        shutil.rmtree(self.authority / _NEXT, ignore_errors=True)


def _get(directory: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """The named files of one version; empty for missing ones."""
    base = directory / _CURRENT
    source = base.resolve() if base.exists() else directory
    found = dict.fromkeys(names, b"")
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            found[name] = (source / name).read_bytes()
    return found


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
    versions = [path for path in directory.glob(f"{_VERSION_PREFIX}*") if path != version]
    versions.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in versions[_KEPT - 1 :]:
        shutil.rmtree(path, ignore_errors=True)


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


# -- a Secret -----------------------------------------------------------------------------------------------------


class SecretApi(Protocol):
    """The part of `runtime.kubernetes.client.Kube` that is needed."""

    def get(self, path: str) -> JSON: ...
    def patch_merge(self, path: str, body: JSON) -> JSON: ...


class Secret:
    """
    The `Store` in the Secret `namespace`/`name`, from where kubelet brings the certificate to the webhook's pods.

    The keeper of certificates then runs in a separate pod and shares no directory with the webhook. The authority's key
    stays in the keeper's directory, which lives as long as its pod; a keeper without that key renews a due certificate
    from a new authority. The Secret must exist: the keeper may write this one but not create Secrets. A write names the
    version that was read, so two keepers cannot mix a certificate with the key of another.
    """

    def __init__(self, kube: SecretApi, namespace: str, name: str, directories: Directories) -> None:
        """`directories`: only their `authority` is used."""
        self._kube = kube
        self._path = secrets(namespace, name)
        self._directories = directories
        self.where = f"Secret {namespace}/{name}"
        self.locked = directories.locked_authority
        self.prepared = directories.prepared
        self.prepare = directories.prepare
        self._version = ""

    def read(self) -> Bundle | None:
        found = self._kube.get(self._path)
        self._version = str(found["metadata"]["resourceVersion"])
        served = {name: _decoded((found.get("data") or {}).get(name)) for name in (CERTIFICATE, KEY, CA)}
        return self._directories.with_authority(served) if served[CERTIFICATE] else None

    def write(self, bundle: Bundle) -> None:
        self._directories.write_authority(bundle)
        data = {CERTIFICATE: bundle.certificate, KEY: bundle.key, CA: bundle.ca}
        encoded = {name: base64.b64encode(content).decode("ascii") for name, content in data.items()}
        self._kube.patch_merge(self._path, {"metadata": {"resourceVersion": self._version}, "data": encoded})
        self._directories.forget_prepared()


def _decoded(text: Any) -> bytes:
    """The value of one key of a Secret; empty where it is missing or not base64."""
    try:
        return base64.b64decode(text or "", validate=True)
    except (binascii.Error, ValueError, TypeError):
        return b""
