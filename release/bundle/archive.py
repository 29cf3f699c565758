"""
An image as an OCI archive: whether a file is whole, and which image it has.

Every blob is compared with the hash in its name, and everything that the index names must be there. So an archive that
passes has exactly the image of that digest. Must not: unpack anything.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

from release.image.check import Unfit

JSON = dict[str, Any]
_DEEPEST = 4
"""Index, the image's list, an image, and the blobs that it names."""
_LARGEST = 4 << 20
"""Bytes of a list or an image's description."""
_CHUNK = 1 << 20


def digests(path: Path) -> frozenset[str]:
    """
    The digests of the images in an OCI archive, as a registry names them. Raises `Unfit` for a file that is none, lacks
    a blob, or has one of another content.
    """
    try:
        with tarfile.open(path) as tar:
            members = {each.name.removeprefix("./"): each for each in tar if each.isfile()}
            index = _document(tar, members, "index.json", path)
            top = _names(index, path)
            _whole(tar, members, top, path, 0)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise Unfit(f"{path}: not an OCI archive: {error}; create it with podman save --format oci-archive") from error
    return frozenset(top)


def _whole(
    tar: tarfile.TarFile, members: dict[str, tarfile.TarInfo], wanted: list[str], path: Path, depth: int
) -> None:
    if depth > _DEEPEST:
        raise Unfit(f"{path}: lists of lists beyond {_DEEPEST}")
    for digest in wanted:
        name = f"blobs/{digest.replace(':', '/', 1)}"
        if name not in members:
            raise Unfit(
                f"{path}: has no {name}, which its index names; save all architectures (--all, --multi-image-archive)"
            )
        if (found := _hash(tar, members[name])) != digest:
            raise Unfit(f"{path}: {name} has the content of {found}")
        if members[name].size > _LARGEST or depth == _DEEPEST:
            continue
        below = _below(tar, members[name])
        if below:
            _whole(tar, members, below, path, depth + 1)


def _hash(tar: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    content, summed = tar.extractfile(member), hashlib.sha256()
    assert content is not None
    while piece := content.read(_CHUNK):
        summed.update(piece)
    return f"sha256:{summed.hexdigest()}"


def _below(tar: tarfile.TarFile, member: tarfile.TarInfo) -> list[str]:
    """The blobs that a blob names, if it is a list of images or an image's manifest; a layer names none."""
    content = tar.extractfile(member)
    assert content is not None
    try:
        found = json.loads(content.read())
    except ValueError:
        return []
    if not isinstance(found, dict) or found.get("schemaVersion") != 2:
        return []
    parts = [*(found.get("manifests") or ()), *(found.get("layers") or ()), *filter(None, [found.get("config")])]
    return [str(each.get("digest", "")) for each in parts if isinstance(each, dict)]


def _document(tar: tarfile.TarFile, members: dict[str, tarfile.TarInfo], name: str, path: Path) -> JSON:
    if name not in members or members[name].size > _LARGEST:
        raise Unfit(f"{path}: not an OCI archive: it has no {name}; create it with podman save --format oci-archive")
    content = tar.extractfile(members[name])
    assert content is not None
    try:
        found = json.loads(content.read())
    except ValueError as error:
        raise Unfit(f"{path}: {name}: {error}") from error
    return found if isinstance(found, dict) else {}


def _names(index: JSON, path: Path) -> list[str]:
    found = [str(each.get("digest", "")) for each in index.get("manifests") or () if isinstance(each, dict)]
    if not found or not all(each.startswith("sha256:") for each in found):
        raise Unfit(f"{path}: its index names no image by a digest of sha256")
    return found
