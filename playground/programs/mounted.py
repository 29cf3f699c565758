"""
Keeps a ConfigMap as a folder of files, as kubelet does for a container that mounts it, because programs are processes
here.

Kubelet writes a new folder and then moves the link `..data` to it, so that a reader finds either all of the old content
or all of the new. Kubelet may take a minute or two to detect a change; this module detects it at once.

Must not: know what is in the ConfigMap.
"""

from __future__ import annotations

import os
import shutil
from itertools import count
from pathlib import Path
from typing import Any

from runtime.kubernetes.client import Kube
from runtime.kubernetes.paths import configmaps
from runtime.kubernetes.watch import Deleted, Event, Informer, Put, Replaced

JSON = dict[str, Any]


class Mounted:
    """Keeps `directory` equal to the ConfigMap from `start` to `stop`; empty while there is no ConfigMap."""

    def __init__(self, kube: Kube, namespace: str, name: str, directory: Path) -> None:
        self._directory = directory
        self._versions = count()
        directory.mkdir(parents=True, exist_ok=True)
        query = {"fieldSelector": f"metadata.name={name}"}
        self._informer = Informer(kube, configmaps(namespace), self._event, name="mounted", query=query)

    def start(self) -> None:
        """Follow the ConfigMap."""
        self._informer.start()

    def stop(self) -> None:
        """Stop following, and leave the files as they are."""
        self._informer.stop()

    def _event(self, event: Event) -> None:
        match event:
            case Put(found) | Replaced([found, *_]):
                self._write(found.get("data") or {})
            case Deleted() | Replaced():
                self._write({})

    def _write(self, data: dict[str, str]) -> None:
        link = self._directory / "..data"
        before = link.resolve() if link.is_symlink() else None
        # An earlier process that used this folder may have left its files.
        fresh = next(path for path in (self._directory / f"..{n}" for n in self._versions) if not path.exists())
        fresh.mkdir()
        for name, text in data.items():
            (fresh / name).write_text(text, encoding="utf-8")
        swapped = self._directory / "..data_tmp"
        swapped.symlink_to(fresh.name)
        os.replace(swapped, link)
        for name in data:
            visible = self._directory / name
            if not visible.is_symlink():
                visible.symlink_to(Path("..data") / name)
        for visible in self._directory.iterdir():
            if not visible.name.startswith("..") and visible.name not in data:
                visible.unlink()
        if before is not None:
            shutil.rmtree(before)
