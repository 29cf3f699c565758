"""
A container image that is built here, because the tests use no registry: busybox, as one layer in an OCI archive.

Must not: need more than the standard library.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

APPLETS = (
    "sh",
    "cat",
    "echo",
    "env",
    "grep",
    "id",
    "ls",
    "mknod",
    "mount",
    "sleep",
    "stat",
    "test",
    "touch",
    "true",
    "wc",
)
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def busybox_image(busybox: Path, archive: Path, name: str, environment: Mapping[str, str]) -> None:
    """Write `archive`: an image that sleeps unless it gets another command. `environment`: its variables."""
    layer = _layer(busybox)
    variables = [f"{key}={value}" for key, value in environment.items()]
    config = {
        "architecture": _ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": {"Env": ["PATH=/bin", *variables], "Cmd": ["/bin/sleep", "infinity"]},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
    }
    blobs = [layer, json.dumps(config).encode()]
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": _descriptor(_CONFIG, blobs[1]),
        "layers": [_descriptor(_LAYER, layer)],
    }
    blobs.append(json.dumps(manifest).encode())
    named = {**_descriptor(_MANIFEST, blobs[2]), "annotations": {"io.containerd.image.name": name}}
    named["annotations"]["org.opencontainers.image.ref.name"] = name
    with tarfile.open(archive, "w") as tar:
        _file(tar, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
        _file(tar, "index.json", json.dumps({"schemaVersion": 2, "manifests": [named]}).encode())
        for blob in blobs:
            _file(tar, f"blobs/sha256/{_digest(blob).removeprefix('sha256:')}", blob)


def _layer(busybox: Path) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for folder in ("bin", "etc", "tmp", "proc", "sys", "dev", "usr/lib"):
            about = tarfile.TarInfo(folder)
            about.type, about.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            tar.addfile(about)
        _file(tar, "bin/busybox", busybox.read_bytes(), mode=0o755)
        _file(tar, "etc/passwd", b"root:x:0:0::/:/bin/sh\n")
        for applet in APPLETS:
            about = tarfile.TarInfo(f"bin/{applet}")
            about.type, about.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(about)
    return content.getvalue()


def _file(tar: tarfile.TarFile, name: str, content: bytes, *, mode: int = 0o644) -> None:
    about = tarfile.TarInfo(name)
    about.size, about.mode = len(content), mode
    tar.addfile(about, io.BytesIO(content))


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _descriptor(media: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": media, "digest": _digest(content), "size": len(content)}
