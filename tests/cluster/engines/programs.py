"""The folder with an engine's program, for tests that need it."""

from __future__ import annotations

from pathlib import Path

import pytest

from playground.engines.manager import Manager


def folder_of(manager: Manager) -> Path:
    """The folder with its program and manifests; skips the test where it is not there."""
    folder = manager.assets()
    if isinstance(folder, str):
        pytest.skip(folder)
    return folder
