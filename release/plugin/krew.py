"""
The manifest by which krew installs the kubectl plugin, and the archive that it names.

krew unpacks an archive and links its `bin` as `kubectl-gpufraction`. The plugin is one file for any Python 3.11 or
newer, so Linux and macOS have the same archive. The archive's bytes depend on its content alone, so that a release that
is made again has the same sum.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

NAME = "gpufraction"
ARCHIVE = "kubectl-gpufraction.tar.gz"
MANIFEST = f"{NAME}.krew.yaml"
_BIN = "kubectl-gpufraction"
_SYSTEMS = ("linux", "darwin")


def archive(plugin: Path, license_file: Path) -> bytes:
    """The archive: the plugin, and the license that krew's index requires."""
    made = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=made, mode="wb", filename="", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for name, path, mode in ((_BIN, plugin, 0o755), ("LICENSE", license_file, 0o644)):
            content = path.read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mode = mode
            tar.addfile(entry, io.BytesIO(content))
    return made.getvalue()


def manifest(version: str, project_url: str, packed: bytes, commands: Iterable[str]) -> dict[str, Any]:
    """
    krew's Plugin. `project_url`: the repository's page, below which its releases are. `commands`: the plugin's, for the
    description.
    """
    uri = f"{project_url}/releases/download/v{version}/{ARCHIVE}"
    digest = hashlib.sha256(packed).hexdigest()
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": NAME},
        "spec": {
            "version": f"v{version}",
            "homepage": project_url,
            "shortDescription": "Show and explain shares of GPUs",
            "description": (
                "Shows the GPUs of a cluster with gpufraction, the pods that share them, and why pods wait; shows\n"
                "where the pods of a manifest would be placed. It reads the cluster with your rights and needs no "
                "service\nthere. "
                f"Commands: {', '.join(commands)}.\n"
            ),
            "caveats": "It needs Python 3.11 or newer as python3.\n",
            "platforms": [_platform(system, uri, digest) for system in _SYSTEMS],
        },
    }


def _platform(system: str, uri: str, digest: str) -> dict[str, Any]:
    files = [{"from": name, "to": "."} for name in (_BIN, "LICENSE")]
    return {"selector": {"matchLabels": {"os": system}}, "uri": uri, "sha256": digest, "bin": _BIN, "files": files}
